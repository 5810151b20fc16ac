//! Runs each example of the library to its end.

use std::process::Command;

/// Builds an example as `make unit` builds this test, and runs it. In the folder of the workspace,
/// cargo chooses the same features of other crates, and compiles none of them again.
fn run(name: &str) {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--profile", "test", "--example", name])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed: {errors}");
    assert!(!output.stdout.is_empty(), "{name} printed nothing");
}

#[test]
fn store() {
    run("store");
}

#[test]
fn store_async() {
    run("store_async");
}

#[test]
fn rpc() {
    run("rpc");
}

#[test]
fn rdma() {
    run("rdma");
}

#[test]
fn rpc_async() {
    run("rpc_async");
}

#[test]
fn event_loop() {
    run("event_loop");
}

#[test]
fn tcp_files() {
    run("tcp_files");
}

#[test]
fn tcp_events() {
    run("tcp_events");
}
