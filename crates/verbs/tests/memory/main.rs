//! Misuse of registered memory. Each test runs a part of `memory.c`, which prints whatever fails.

#[path = "../place/mod.rs"]
#[expect(dead_code, reason = "of what test programs share only the libraries are used")]
mod place;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use place::{libraries, output};

/// The program, built once.
fn program() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, binary) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let binary = folder.path().join("memory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory/memory.c");
        let flags = ["-Wall", "-Werror", "-O1", "-g", "-o"];
        let linked = ["-libverbs", "-lrdmacm", "-lpthread"];
        output(Command::new("cc").args(flags).arg(&binary).arg(source).args(linked));
        (folder, binary)
    });
    binary
}

/// Runs a part of the program.
fn run(part: &str) {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program()).arg(part).env("LD_LIBRARY_PATH", libraries());
    assert_eq!(output(&mut command), "all as it should be\n", "{part}");
}

#[test]
fn registering_refuses_what_hardware_refuses() {
    run("registering");
}

#[test]
fn a_registration_is_changed() {
    run("changing");
}

#[test]
fn memory_that_goes_away_is_an_error_completion() {
    run("gone");
}

#[test]
fn memory_that_goes_away_while_a_peer_writes_is_no_signal() {
    run("while");
}

#[test]
fn a_program_with_handlers_of_its_own_keeps_them() {
    run("handlers");
}

#[test]
fn a_child_gives_back_what_its_parent_made() {
    run("fork");
}

#[test]
fn windows_of_both_types() {
    run("windows");
}

#[test]
fn what_was_given_back_opens_nothing() {
    run("ends");
}
