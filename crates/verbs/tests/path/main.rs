//! The path of data as C programs use it, in two programs of ours on the two libraries: `path.c` names
//! whatever is not as it should be, `placed.c` counts completions that come too early.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../place/mod.rs"]
#[allow(dead_code, reason = "each test program uses what it needs of it")]
mod place;

use place::{libraries, output};

/// A program of this folder, built into `folder`, on our libraries.
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

/// Every call of it that posts, polls, waits or fails, in one process that is both ends of its connections; see there.
#[test]
fn c_programs_post_poll_wait_and_fail_as_on_hardware() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    assert_eq!(output(&mut program(folder.path(), "path")), "all as it should be\n");
}

/// A program that asked for no event of the device had no line in its log about why its connection ended. Both ends are in one
/// process here, so there is one line each.
#[test]
fn an_error_that_ends_a_connection_is_logged_by_both_ends() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let log = folder.path().join("log");
    output(
        program(folder.path(), "path")
            .arg("refused_silently")
            .env("SPRAT_LOG", format!("error,{}", log.display())),
    );
    let lines = std::fs::read_to_string(&log).expect("there is a log");
    assert_eq!(lines.lines().count(), 2, "{lines}");
}

/// A Write's completion comes when its octets are in the peer's memory, or says that they are refused, on a busy machine too.
#[test]
fn a_write_completes_when_it_is_placed() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let printed = output(program(folder.path(), "placed").arg("2000"));
    assert_eq!(printed, "0 late, refused: remote access error\n");
}
