//! The path of data as C programs use it, in one program of ours (`path.c`) on the two libraries: it names whatever is not as
//! it should be.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[path = "../place/mod.rs"]
#[allow(dead_code, reason = "each test program uses what it needs of it")]
mod place;

use place::{libraries, output};

/// The program, built once, on our libraries.
fn program() -> Command {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, binary) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let binary = folder.path().join("path");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/path/path.c");
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-o"];
        let linked = ["-libverbs", "-lrdmacm", "-lpthread"];
        output(Command::new("cc").args(flags).arg(&binary).arg(source).args(linked));
        (folder, binary)
    });
    let mut command = Command::new(binary);
    command.env("LD_LIBRARY_PATH", libraries());
    command
}

/// Every call of it that posts, polls, waits or fails, in one process that is both ends of its connections; see there.
#[test]
fn c_programs_post_poll_wait_and_fail_as_on_hardware() {
    assert_eq!(output(&mut program()), "all as it should be\n");
}

/// A program that asked for no event of the device had no line in its log about why its connection ended. Both ends are in one
/// process here, so there is one line each.
#[test]
fn an_error_that_ends_a_connection_is_logged_by_both_ends() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let log = folder.path().join("log");
    output(program().arg("refused_silently").env("SPRAT_LOG", format!("error,{}", log.display())));
    let lines = std::fs::read_to_string(&log).expect("there is a log");
    assert_eq!(lines.lines().count(), 2, "{lines}");
}
