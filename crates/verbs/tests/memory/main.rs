//! Tests of misused registered memory. Each runs a part of the C program `memory.c` or `windows.c`,
//! which prints its failures.

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "of what test programs share only the libraries are used")]
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use support::{libraries, output};

/// The directory of the built C programs `memory` and `windows`. The first call builds them.
fn programs() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder can be made");
        for name in ["memory", "windows"] {
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory");
            let source = sources.join(format!("{name}.c"));
            let flags = ["-Wall", "-Werror", "-Wno-unused-function", "-O1", "-g", "-o"];
            let linked = ["-libverbs", "-lrdmacm", "-lpthread"];
            let binary = folder.path().join(name);
            output(Command::new("cc").args(flags).arg(&binary).arg(source).args(linked));
        }
        folder
    });
    folder.path()
}

/// Runs a part of a C program of the directory tests/memory, which must print no failure.
fn run(program: &str, part: &str) {
    let mut command = Command::new("timeout");
    command.arg("60").arg(programs().join(program)).arg(part).env("LD_LIBRARY_PATH", libraries());
    assert_eq!(output(&mut command), "all as it should be\n", "{part}");
}

#[test]
fn registering_refuses_what_hardware_refuses() {
    run("memory", "registering");
}

#[test]
fn a_registration_is_changed() {
    run("memory", "changing");
}

#[test]
fn memory_that_goes_away_is_an_error_completion() {
    run("memory", "gone");
}

#[test]
fn memory_that_goes_away_while_a_peer_writes_is_no_signal() {
    run("memory", "while");
}

#[test]
fn a_program_with_handlers_of_its_own_keeps_them() {
    run("memory", "handlers");
}

#[test]
fn a_child_gives_back_what_its_parent_made() {
    run("memory", "fork");
}

#[test]
fn windows_of_both_types() {
    run("windows", "windows");
}

#[test]
fn what_was_given_back_opens_nothing() {
    run("windows", "ends");
}
