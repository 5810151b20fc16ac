//! Tests of `sprat chaos`: short runs, their histories, and what they leave behind. `make chaos`
//! has the long ones.

use std::fs;
use std::io::Read as _;

use sprat_bench::process::wait_until;

use crate::cluster::{PATIENCE, Running, errors, lives, run, sprat, text};
use crate::porcupine;

/// Returns the ids of the processes that a process has started and that run.
fn children(parent: u32) -> Vec<u32> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Returns the index of a write whose value a later line has read, and a line that reads the object
/// as it was before another write.
fn planted(lines: &[&str]) -> (usize, String) {
    let parsed: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let is = |line: &serde_json::Value, op: &str, answer: &str| {
        line["op"] == *op && line["answer"] == *answer
    };
    let same = |a: &serde_json::Value, b: &serde_json::Value| {
        a["table"] == b["table"] && a["key"] == b["key"]
    };
    let read_later = |write: &serde_json::Value| {
        parsed.iter().any(|line| {
            is(line, "read", "value") && same(line, write) && line["version"] == write["version"]
        })
    };
    let writes = || parsed.iter().filter(|line| is(line, "write", "written"));
    let write = parsed
        .iter()
        .position(|line| is(line, "write", "written") && read_later(line))
        .expect("a value is read");
    let old = writes()
        .find(|old| {
            writes().any(|new| same(old, new) && new["called"].as_u64() > old["ended"].as_u64())
        })
        .expect("an object is written twice");
    let end = parsed.iter().filter_map(|line| line["ended"].as_u64()).max().expect("a moment");
    let stale = serde_json::json!({
        "client": 0, "table": old["table"], "key": old["key"], "op": "read", "outcome": "ok",
        "answer": "value", "version": old["version"], "result": old["value"],
        "called": end + 1, "ended": end + 2, "called_ns": 0, "ended_ns": 1,
    });
    (write, stale.to_string())
}

/// A run injects its faults and finds all answers right. Its history has a line for each operation,
/// and gets the same verdict when it is read again, also from another checker. A history that lacks
/// a write, and one with a stale read, get another verdict from both.
#[test]
fn a_run_has_a_history_and_a_verdict() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("history");
    let path = file.to_str().expect("a plain path");
    let size = ["--servers", "3", "--replicas", "1", "--clients", "4", "--memory", "48M"];
    let dir = folder.path().to_str().expect("a plain path");
    let more = ["--seed", "1", "--seconds", "2", "--faults", "coordinator-kill,kill"];
    let kept = ["--dir", dir, "--history", path, "--json"];
    let output = run(&[&["chaos"], &size[..], &more, &kept].concat());
    assert!(output.status.success(), "{}{}", text(&output), errors(&output));
    let report: serde_json::Value = serde_json::from_str(&text(&output)).expect("JSON");
    assert_eq!((&report["good"], &report["seed"]), (&true.into(), &1.into()), "{report}");
    let history = fs::read_to_string(&file).expect("it was written");
    let count = |what: &str| history.lines().filter(|line| line.contains(what)).count() as u64;
    let operations = &report["operations"];
    for outcome in ["ok", "failed", "unknown"] {
        let counted = count(&format!("\"outcome\":\"{outcome}\""));
        assert_eq!(operations[outcome].as_u64(), Some(counted), "{report}");
    }
    assert!(count("\"fault\":") >= 1 && count("\"op\":") > 1000, "{report}");
    let left: Vec<_> = folder.path().read_dir().expect("it is there").collect();
    assert_eq!(left.len(), 1, "only the history is left: {left:?}");

    let check = |lines: &[&str]| {
        let other = folder.path().join("other");
        fs::write(&other, lines.join("\n")).expect("it is ours");
        run(&["chaos", "--check", other.to_str().expect("a plain path")])
    };
    let lines: Vec<_> = history.lines().collect();
    let good = check(&lines);
    assert!(good.status.success() && text(&good).contains("linearizable"), "{}", errors(&good));

    // Both checkers agree: about the history, and about others that are not linearizable.
    assert!(porcupine::is_linearizable(&lines));
    let (write, stale) = planted(&lines);
    let without = [&lines[..write], &lines[write + 1..]].concat();
    for wrong in [without, [&lines[..], &[&stale]].concat()] {
        let broken = check(&wrong);
        assert_eq!(broken.status.code(), Some(1));
        assert!(errors(&broken).contains("no order explains"), "{}", errors(&broken));
        assert!(!porcupine::is_linearizable(&wrong));
    }

    let torn = check(&[&lines[..1], &["{\"client\":1"]].concat());
    assert!(errors(&torn).contains("other:2"), "{}", errors(&torn));
}

/// Ctrl-C ends a run: no process of the cluster is left, not even a stopped one, and no folder.
#[test]
fn an_interrupted_run_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().to_str().expect("a plain path");
    let args = ["chaos", "--seed", "1", "--servers", "3", "--replicas", "1", "--memory", "48M"];
    let mut chaos = Running::start(&[&args[..], &["--dir", dir, "--faults", "stop"]].concat());
    let mut all = Vec::new();
    let stopped = wait_until(PATIENCE, || {
        all = children(chaos.0.id());
        let is_stopped = |id: &u32| {
            fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| stat.contains(") T "))
        };
        all.len() == 4 && all.iter().any(is_stopped)
    });
    assert!(stopped, "a server is stopped: {all:?}");
    chaos.signal("INT");
    let status = chaos.ended();
    let mut said = String::new();
    let errors = chaos.0.stderr.as_mut().expect("it is kept");
    errors.read_to_string(&mut said).expect("it is text");
    assert!(!status.success() && said.contains("interrupted"), "{said}");
    assert!(!all.iter().any(|&id| lives(id)), "{said}");
    assert_eq!(folder.path().read_dir().expect("it is there").count(), 0);
}

#[test]
fn wrong_options_are_refused() {
    for (options, expected) in [
        (&["--replicas", "2", "--servers", "2"][..], "need 3 servers"),
        (&["--faults", "kill-all"], "--dir"),
        (&["--faults", "flip", "--dir", "/tmp", "--replicas", "1"], "--replicas 2"),
        (&["--faults", "cut"], "--network"),
        (&["--faults", "disk-full", "--dir", "/tmp"], "--small-disk"),
        (&["--faults", "etcd-kill"], "--coordinators 3"),
        (&["--faults", "cut-leader", "--network"], "--coordinators 3 and --network"),
        (&["--faults", "flood"], "coordinator-kill"),
        (&["--check", "/nonexistent"], "cannot read /nonexistent"),
        (&["--check", "x", "--seed", "1"], "cannot be used with"),
        (&["--dir", "/nonexistent", "--seconds", "1"], "/nonexistent"),
        (&["--history", "/nonexistent/x", "--seconds", "1"], "cannot write /nonexistent/x"),
    ] {
        let output = run(&[&["chaos"], options].concat());
        assert!(!output.status.success(), "{options:?}");
        assert!(errors(&output).contains(expected), "{options:?}: {}", errors(&output));
    }
}

/// Without etcd, in the build or on the machine, a run with several coordinators says what is
/// missing before it starts anything.
#[test]
fn several_coordinators_need_etcd() {
    let mut command = sprat();
    let output =
        command.args(["chaos", "--coordinators", "3"]).env("PATH", "/nonexistent").output();
    let output = output.expect("the program starts");
    let missing = if cfg!(feature = "etcd") { "cannot run etcd" } else { "--features etcd" };
    assert!(!output.status.success());
    assert!(errors(&output).contains(missing), "{}", errors(&output));
}
