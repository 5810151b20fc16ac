//! Tests of servers with roles, and in racks.

use serde_json::Value;
use sprat_bench::process::wait_until;

use crate::cluster::{PATIENCE, Running, errors, run, text, unique};

/// A coordinator, and servers with these options.
fn start(servers: &[&[&str]]) -> (String, Vec<Running>) {
    let (number, port) = unique(1);
    let at = format!("tcp:host=127.0.0.1,port={port}");
    let mut all = vec![Running::start(&["coordinator", "-C", &at])];
    all[0].wait_for("listening at");
    for (index, options) in servers.iter().enumerate() {
        let locator = format!("fast+shm:name=test-{number}.{index}");
        let mut args = vec!["server", "-C", &at, "-L", &locator, "--memory", "64M"];
        args.extend(["--replicas", "1"]);
        args.extend(*options);
        let mut server = Running::start(&args);
        server.wait_for("listening at");
        all.push(server);
        // In the order of the options.
        assert!(wait_until(PATIENCE, || status(&at)["servers"].as_array().map(Vec::len)
            == Some(index + 1)));
    }
    (at, all)
}

fn status(at: &str) -> Value {
    serde_json::from_str(&text(&run(&["status", "-C", at, "--json"]))).unwrap_or_default()
}

/// Returns a counter of each server.
fn counters(at: &str, name: &str) -> Vec<u64> {
    let output = run(&["stats", "-C", at, "--json"]);
    let lines = text(&output);
    let one = |line: &str| -> Value { serde_json::from_str(line).unwrap_or_default() };
    lines.lines().map(|line| one(line)["counters"][name].as_u64().unwrap_or(0)).collect()
}

#[test]
fn replicas_are_in_other_racks_and_roles_are_kept() {
    let (at, mut all) = start(&[
        &["--rack", "left"],
        &["--rack", "left"],
        &["--rack", "right", "--role", "backup"],
        &["--rack", "left", "--role", "master"],
    ]);
    let created = run(&["table", "create", "t", "--span", "6", "-C", &at]);
    assert!(created.status.success(), "{}", errors(&created));
    let now = status(&at);
    let column = |name: &str| -> Vec<Value> {
        let servers = now["servers"].as_array().expect("servers");
        servers.iter().map(|server| server[name].clone()).collect()
    };
    assert_eq!(column("tablets"), [2, 2, 0, 2]);
    assert_eq!(column("role"), ["both", "both", "backup", "master"]);
    assert_eq!(column("rack"), ["left", "left", "right", "left"]);
    let shown = text(&run(&["status", "-C", &at]));
    assert!(shown.contains("role") && shown.contains("right"), "{shown}");
    // All logs have a head now, with a replica in the other rack.
    assert_eq!(counters(&at, "replicas_missing"), [0; 4]);
    let held = counters(&at, "replicas_held");
    assert!(held[2] >= 3 && held.iter().sum::<u64>() == held[2], "{held:?}");

    // Without the rack on the right, replicas are on the left. The master has none.
    all.remove(3).signal("KILL");
    let whole = || {
        let held = counters(&at, "replicas_held");
        held.len() == 3
            && held[2] == 0
            && held[0] > 0
            && held[1] > 0
            && counters(&at, "replicas_missing") == [0; 3]
    };
    assert!(wait_until(PATIENCE, whole), "{:?}", counters(&at, "replicas_held"));
}

#[test]
fn roles_that_the_options_contradict_are_refused() {
    let refused = |options: &[&str]| {
        let mut args = vec!["server", "-C", "tcp:host=127.0.0.1,port=1", "-L"];
        args.push("fast+shm:name=test-refused");
        args.extend(options);
        let output = run(&args);
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        errors(&output)
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().to_str().expect("a plain path");
    let error = refused(&["--role", "master", "--replicas", "1", "--dir", dir]);
    assert!(error.contains("leave the directory out"), "{error}");
    let error = refused(&["--role", "backup"]);
    assert!(error.contains("--replicas"), "{error}");
    let error = refused(&["--rack", &"r".repeat(256)]);
    assert!(error.contains("255 bytes"), "{error}");
}
