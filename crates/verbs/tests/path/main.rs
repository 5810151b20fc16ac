//! Tests of the data path as C programs use it: `path.c` and `events.c` print their failures,
//! `placed.c` counts completions that arrive too early.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test program uses what it needs of it")]
mod support;

use support::{libraries, output};

/// Builds a C program of the directory tests/path into `folder`, to run on our libraries.
fn program(folder: &Path, name: &str) -> Command {
    let binary: PathBuf = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/path/{name}.c"));
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-o"];
    let linked = ["-libverbs", "-lrdmacm", "-lpthread"];
    output(Command::new("cc").args(flags).arg(&binary).arg(source).args(linked));
    let mut command = Command::new(binary);
    command.env("LD_LIBRARY_PATH", libraries());
    command
}

/// A C program uses every call that posts, polls, waits or fails, as on hardware. One process is
/// both ends of its connections.
#[test]
fn c_programs_post_poll_wait_and_fail_as_on_hardware() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["path", "events"] {
        assert_eq!(output(&mut program(folder.path(), name)), "all as it should be\n", "{name}");
    }
}

/// An error that ends a connection is logged by both ends. A program that reads no asynchronous
/// events used to have no line in its log about the end. Both ends are in one process here, so
/// there is one line for each.
#[test]
fn an_error_that_ends_a_connection_is_logged_by_both_ends() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let log = folder.path().join("log");
    output(
        program(folder.path(), "events")
            .arg("refused_silently")
            .env("SPRAT_LOG", format!("error,{}", log.display())),
    );
    let lines = std::fs::read_to_string(&log).expect("there is a log");
    assert_eq!(lines.lines().count(), 2, "{lines}");
}

/// A Write completes when its bytes are in the peer's memory or rejected, on a busy machine too.
#[test]
fn a_write_completes_when_it_is_placed() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let printed = output(program(folder.path(), "placed").arg("2000"));
    assert_eq!(printed, "0 late, refused: remote access error\n");
}
