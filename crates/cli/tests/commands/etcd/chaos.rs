//! Tests of `sprat chaos` with several coordinators and the etcd that it starts for them.

use std::fs;
use std::path::Path;

use sprat_bench::process::wait_until;

use crate::cluster::{PATIENCE, Running, errors, run, text};

/// The options of a small cluster with three coordinators.
const SMALL: [&str; 10] = [
    "chaos",
    "--coordinators",
    "3",
    "--servers",
    "2",
    "--replicas",
    "1",
    "--memory",
    "48M",
    "--faults",
];

/// Returns the processes whose arguments name a folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let name = folder.to_str().expect("a plain path");
    let all = fs::read_dir("/proc").expect("it is there").flatten();
    let lines = all.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let texts = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    texts.filter(|text| text.contains(name)).collect()
}

/// The coordinator that leads is killed, etcd is killed, and all answers are right. Nothing is
/// left.
#[test]
fn a_run_kills_leaders_and_etcd() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().to_str().expect("a plain path");
    let more = ["coordinator-kill,etcd-kill", "--clients", "4", "--seed", "1", "--seconds", "4"];
    let output = run(&[&SMALL[..], &more, &["--dir", dir, "--json"]].concat());
    assert!(output.status.success(), "{}{}", text(&output), errors(&output));
    let report: serde_json::Value = serde_json::from_str(&text(&output)).expect("JSON");
    assert_eq!((&report["good"], &report["coordinators"]), (&true.into(), &3.into()), "{report}");
    for count in ["leaders_killed", "etcd_restarts"] {
        assert!(report[count].as_u64() >= Some(1), "{count}: {report}");
    }
    assert_eq!(folder.path().read_dir().expect("it is there").count(), 0);
    assert_eq!(processes_of(folder.path()), [""; 0]);
}

/// Etcd is no program of ours, and ends all the same with a run that is killed.
#[test]
fn a_killed_run_leaves_no_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().to_str().expect("a plain path");
    let mut chaos = Running::start(&[&SMALL[..], &["kill", "--dir", dir]].concat());
    // The run itself, etcd, and two servers.
    let runs = wait_until(PATIENCE, || processes_of(folder.path()).len() == 4);
    assert!(runs, "{:?}", processes_of(folder.path()));
    chaos.signal("KILL");
    chaos.ended();
    let ended = wait_until(PATIENCE, || processes_of(folder.path()).is_empty());
    assert!(ended, "{:?}", processes_of(folder.path()));
}
