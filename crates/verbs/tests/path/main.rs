//! The path of data as C programs use it, in one program of ours (`path.c`) on the two libraries: it names whatever is not as
//! it should be.

use std::path::Path;
use std::process::Command;

#[path = "../place/mod.rs"]
#[allow(dead_code, reason = "each test program uses what it needs of it")]
mod place;

use place::{libraries, output};

/// Every call of it that posts, polls, waits or fails, in one process that is both ends of its connections; see there.
#[test]
fn c_programs_post_poll_wait_and_fail_as_on_hardware() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let binary = folder.path().join("path");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/path/path.c");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-o"];
    let linked = ["-libverbs", "-lrdmacm", "-lpthread"];
    output(Command::new("cc").args(flags).arg(&binary).arg(source).args(linked));
    let mut command = Command::new(&binary);
    assert_eq!(output(command.env("LD_LIBRARY_PATH", libraries())), "all as it should be\n");
}
