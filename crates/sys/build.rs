//! Compiles the C shim of the driver `dpdk` if the feature `dpdk` is on.

fn main() {
    println!("cargo:rerun-if-changed=dpdk/shim.c");
    #[cfg(feature = "dpdk")]
    dpdk();
}

#[cfg(feature = "dpdk")]
fn dpdk() {
    let found =
        pkg_config::Config::new().atleast_version("22.11").cargo_metadata(true).probe("libdpdk");
    let library = found.unwrap_or_else(|e| {
        panic!("DPDK's development files are needed (Debian: libdpdk-dev): {e}")
    });
    let mut build = cc::Build::new();
    // Its headers are compiled for the instructions that they need at least, and expect the
    // configuration before all others.
    build
        .file("dpdk/shim.c")
        .includes(&library.include_paths)
        .flag("-include")
        .flag("rte_config.h");
    if cfg!(target_arch = "x86_64") {
        build.flag("-march=corei7");
    }
    // Warnings in headers of others are theirs.
    build.flag("-Wno-unused-parameter").compile("sprat_dpdk");
}
