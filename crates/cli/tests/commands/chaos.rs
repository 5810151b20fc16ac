//! Tests of `sprat chaos`: short runs, their histories, and what they leave behind. `make chaos`
//! has the long ones.

use std::fs;
use std::io::Read as _;

use sprat_bench::process::wait_until;

use crate::cluster::{PATIENCE, Running, errors, lives, run, text};

/// Returns the ids of the processes that a process has started and that run.
fn children(parent: u32) -> Vec<u32> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// A run injects its faults and finds all answers right. Its history has a line for each operation,
/// and gets the same verdict when it is read again. A history that lacks a write gets another one.
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

    // A value is read that no write of the history has written.
    let number = |line: &str, field: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line[field].as_u64()
    };
    let written = |line: &str| line.contains("\"op\":\"write\"") && line.contains("written");
    let is_read = |write: &str| {
        let version = number(write, "version");
        lines.iter().any(|line| {
            line.contains("\"op\":\"read\"")
                && ["table", "key"].iter().all(|name| number(line, name) == number(write, name))
                && number(line, "version") == version
        })
    };
    let write = lines.iter().position(|line| written(line) && is_read(line)).expect("a write");
    let without: Vec<_> = [&lines[..write], &lines[write + 1..]].concat();
    let broken = check(&without);
    assert_eq!(broken.status.code(), Some(1));
    assert!(errors(&broken).contains("no order explains"), "{}", errors(&broken));

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
