//! Tests of rdma_cm as C sees it: programs of ours use and misuse it.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test program uses what it needs of it")]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{libraries, output};

/// The output of a C program of the directory tests/cm on our libraries.
fn run(source: &str) -> String {
    logged(source, "")
}

/// The output of a C program of the directory tests/cm on our libraries, with a value of SPRAT_LOG.
fn logged(source: &str, log: &str) -> String {
    with(source, &[("SPRAT_LOG", log)])
}

/// The output of a C program of the directory tests/cm on our libraries, with variables of the
/// environment.
fn with(source: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let binary = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cm").join(source);
    let flags = ["-Wall", "-Werror", "-O1", "-o"];
    output(Command::new("cc").args(flags).arg(&binary).arg(source).args([
        "-lrdmacm",
        "-libverbs",
        "-lpthread",
    ]));
    let mut program = Command::new(&binary);
    program.env("LD_LIBRARY_PATH", libraries()).envs(variables.iter().copied());
    output(&mut program)
}

/// Misuse of rdma_cm has the errno of rdma-core. The C programs print a line for each failed check.
#[test]
fn misuse_has_the_errno_of_rdma_core() {
    assert_eq!(run("misuse.c"), "all as it should be\n");
    assert_eq!(run("endpoints.c"), "all as it should be\n");
}

/// Peers may send nonsense and vanish. The C program prints a line for each failed check, and the
/// log shows the outcome of each connection.
#[test]
fn peers_may_talk_nonsense_and_vanish() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("log");
    assert_eq!(logged("bad_peers.c", &format!("info,{}", file.display())), "all as it should be\n");
    let log = fs::read_to_string(file).expect("the log has lines");
    for expected in [
        "info: listens on 127.0.0.1:",
        "with 3 bytes of private data",
        "rejects queue pair",
        "is connected to 127.0.0.1:",
        "fails: no MPA start-up frame",
        "error: rdma_connect: Invalid argument",
    ] {
        assert!(log.contains(expected), "no {expected} in {log}");
    }
    assert!(!log.contains("debug:"), "{log}");
}

/// The device creates as many objects as its limits state, and no more. Regions are left out, since
/// there may be a million: the engine's own tests cover them.
#[test]
fn there_is_as_much_as_the_device_says_and_no_more() {
    assert_eq!(run("limits.c"), "all as it should be\n");
}

/// A packet device that `SPRAT_DEVICE` names is the only RDMA device, with the address and the
/// routes of its stack. The C program prints a line for each failed check.
#[test]
fn a_packet_device_is_the_only_rdma_device() {
    let device = |host| {
        format!(
            "rdma+shmnet:name=verbs-cm-{},host=10.79.0.{host},prefix=24,port=0",
            std::process::id()
        )
    };
    let variables = [("SPRAT_DEVICE", &*device(1)), ("OTHER_DEVICE", &*device(2))];
    assert_eq!(with("device.c", &variables), "all as it should be\n");
}
