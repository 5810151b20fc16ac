//! Tests with C programs that destroy everything, misuse it, load and unload the libraries, or
//! connect and disconnect thousands of times. Each prints the objects that are left behind, or its
//! failure.
//!
//! The misuse that is covered here and elsewhere:
//!
//! - Null objects: `nothing`; `arguments` of cm/misuse.c.
//! - Destroyed objects: their keys in `keys`, `own`. As in rdma-core, pointers are not checked.
//! - Unmapped or read-only memory, wrong flags: `registering` of memory/memory.c.
//! - Memory that is unmapped after registration: `gone`, `while` of memory/memory.c.
//! - Requests without the right, of another domain, of a bad size: `keys`, `own`, `atomics`;
//!   path/path.c.
//! - Full queues: `overfull`; `refused_requests` of path/path.c, `overflow` of path/events.c.
//! - Objects in use: `busy`; path/path.c; windows in memory/windows.c.
//! - Peers that vanish: `killed`; `vanished` of cm/misuse.c.
//! - No descriptor left: `exhausted`, `asked`; `exhausted` of cm/misuse.c.
//! - A fork between creation and destruction: `forked`; `fork` of memory/memory.c, `no_calls` of
//!   path/path.c, `forked` of cm/misuse.c.
//! - dlopen and dlclose: unload.c.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test program uses what it needs of it")]
mod support;

use std::path::Path;
use std::process::Command;

use support::{libraries, output};

/// The output of a C program of the directory tests/clean on our libraries. It is linked with
/// Debian's libraries, unless it loads ours itself.
fn run(source: &str, linked: &[&str], args: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let binary = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clean").join(source);
    // Not every program uses all functions of path.h.
    let flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-O1", "-o"];
    output(Command::new("cc").args(flags).arg(&binary).arg(source).args(linked));
    output(Command::new(&binary).args(args).env("LD_LIBRARY_PATH", libraries()))
}

const BOTH: [&str; 3] = ["-lrdmacm", "-libverbs", "-lpthread"];
const FINE: &str = "all as it should be\n";

/// Two processes connect and disconnect thousands of times and leave nothing behind. The test does
/// not check the rate, because the machine may be busy: `make churn` does.
#[test]
fn connections_of_two_processes_come_and_go_and_leave_nothing_behind() {
    let said = run("churn.c", &BOTH, &["rounds", "3000"]);
    assert!(said.ends_with("nothing is left behind\n"), "{said}");
}

#[test]
fn all_that_was_made_is_gone_once_it_was_given_back() {
    assert_eq!(run("leaks.c", &BOTH, &[]), FINE);
}

#[test]
fn libraries_are_loaded_and_given_back_again_and_again() {
    assert_eq!(run("unload.c", &["-lpthread", "-ldl"], &[]), FINE);
}

#[test]
fn misuse_is_an_errno_or_an_event() {
    assert_eq!(run("misuse.c", &BOTH, &[]), FINE);
}
