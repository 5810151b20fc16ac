//! rdma_cm as C sees it: programs of ours that use it, rightly and wrongly.

#[path = "../place/mod.rs"]
#[allow(dead_code, reason = "each test program uses what it needs of it")]
mod place;

use std::path::Path;
use std::process::Command;

use place::{libraries, output};

/// What a program of this folder prints on our libraries.
fn run(source: &str, args: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let binary = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cm").join(source);
    let flags = ["-Wall", "-Werror", "-O1", "-o"];
    output(Command::new("cc").args(flags).arg(&binary).arg(source).args([
        "-lrdmacm",
        "-libverbs",
        "-lpthread",
    ]));
    output(Command::new(&binary).args(args).env("LD_LIBRARY_PATH", libraries()))
}

/// Names whatever is wrong, a line each.
#[test]
fn misuse_has_the_errno_of_rdma_core() {
    assert_eq!(run("misuse.c", &[]), "all as it should be\n");
}

/// Regions are left out, of which there may be a million: the engine's own tests have them.
#[test]
fn there_is_as_much_as_the_device_says_and_no_more() {
    assert_eq!(run("limits.c", &[]), "all as it should be\n");
}
