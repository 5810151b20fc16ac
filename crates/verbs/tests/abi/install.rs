//! Tests of `make install` into a directory: the pkg-config files build C programs, and the
//! installed `sprat exec` runs one of verbs.

use std::path::Path;
use std::process::Command;

use crate::support::{Staging, libraries, output, repository};

fn install(prefix: &Path, destdir: &str) {
    let staging = Staging::new(); // builds what is installed
    assert!(staging.sprat().exists() && libraries().exists());
    output(Command::new("scripts/c").arg("test").current_dir(repository()));
    let mut command = Command::new("scripts/install");
    output(command.arg(prefix).arg("test").env("DESTDIR", destdir).current_dir(repository()));
}

#[test]
fn a_program_is_built_and_run_by_what_is_installed() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let prefix = folder.path().join("prefix");
    install(&prefix, "");
    let asked = output(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "sprat-verbs"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    );
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abi/probe.c");
    let binary = folder.path().join("probe");
    output(
        Command::new("cc")
            .arg("-o")
            .arg(&binary)
            .arg(source)
            .args(asked.split_whitespace())
            .arg("-ldl"),
    );
    let mut exec = Command::new(prefix.join("bin/sprat"));
    let exec = exec
        .args(["exec", "--"])
        .arg(&binary)
        .env_remove("SPRAT_VERBS")
        .env_remove("LD_LIBRARY_PATH");
    assert_eq!(output(exec), "all as it should be\n");
    // It also runs without `sprat exec`: the pkg-config file names the directory to the loader.
    let loaded = output(Command::new("ldd").arg(&binary).env_remove("LD_LIBRARY_PATH"));
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let ours = prefix.join("lib/sprat").join(library);
        assert!(loaded.contains(ours.to_str().expect("a path in ASCII")), "{loaded}");
    }
}

/// The store's C API: the example is built by what pkg-config says, and loads what is installed.
#[test]
fn a_program_of_the_store_is_built_by_what_is_installed() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let prefix = folder.path().join("prefix");
    install(&prefix, "");
    let asked = output(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "sprat"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    );
    let binary = folder.path().join("store");
    let source = repository().join("crates/c/examples/store.c");
    output(Command::new("cc").arg("-o").arg(&binary).arg(source).args(asked.split_whitespace()));
    let library = prefix.join("lib");
    let loaded = output(Command::new("ldd").arg(&binary).env("LD_LIBRARY_PATH", &library));
    let ours = library.join("libsprat.so.0");
    assert!(loaded.contains(ours.to_str().expect("a path in ASCII")), "{loaded}");
    let ended = Command::new(&binary).env("LD_LIBRARY_PATH", &library).output().expect("it runs");
    assert_eq!(ended.status.code(), Some(2), "the program asks for its argument");
}

#[test]
fn a_packager_gets_a_tree_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    install(Path::new("/opt/sprat"), folder.path().to_str().expect("a path in ASCII"));
    let listed =
        output(Command::new("find").arg(".").args(["!", "-type", "d"]).current_dir(folder.path()));
    let mut listed: Vec<&str> = listed.lines().collect();
    listed.sort_unstable();
    let (shared, listed): (Vec<&str>, Vec<&str>) =
        listed.into_iter().partition(|file| file.starts_with("./opt/sprat/share/"));
    for file in ["man/man1/sprat.1", "man/man1/sprat-exec.1", "zsh/site-functions/_sprat"] {
        let file = format!("./opt/sprat/share/{file}");
        assert!(shared.contains(&file.as_str()), "{file}: {shared:?}");
    }
    let expected = [
        "bin/sprat",
        "include/sprat.h",
        "lib/libsprat.a",
        "lib/libsprat.so",
        "lib/libsprat.so.0",
        "lib/pkgconfig/sprat-verbs.pc",
        "lib/pkgconfig/sprat.pc",
        "lib/sprat/libibverbs.so",
        "lib/sprat/libibverbs.so.1",
        "lib/sprat/librdmacm.so",
        "lib/sprat/librdmacm.so.1",
        "lib/sprat/libsprat-sysfs.so",
    ];
    assert_eq!(listed, expected.map(|file| format!("./opt/sprat/{file}")));
}
