//! Gives the shared library the name by which programs load it.

fn main() {
    // The number is that of the ABI: it rises when a program must be compiled anew. The library's
    // code stays mapped until the process ends, since its threads may have destructors in it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsprat.so.0,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
