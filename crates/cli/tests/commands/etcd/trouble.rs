//! Coordinators with an etcd that is full, has lost the cluster's keys, is of an earlier time, or
//! answers slowly.

use std::fs;
use std::time::{Duration, Instant};

use sprat_bench::process::wait_until;

use super::{Etcd, Stack};
use crate::cluster::{PATIENCE, errors, run};

/// Nothing ends and nothing is lost while etcd is full. All goes on by itself once it has room.
#[test]
fn a_full_etcd_refuses_changes_until_it_has_room() {
    let mut stack = Stack::over(Etcd::start(1, &["--quota-backend-bytes", "1048576"]), 2, "");
    run(&["put", "-C", &stack.list, "first", "key", "value"]);
    let junk = "x".repeat(100_000);
    let filled = (0..100).any(|n| {
        let output = stack.etcd.try_control(&["put", &format!("junk{n}"), &junk]);
        !output.status.success() && errors(&output).contains("space exceeded")
    });
    assert!(filled);
    let (begin, mut said) = (Instant::now(), String::new());
    while begin.elapsed() < Duration::from_secs(3) {
        said = stack.refused("meanwhile");
    }
    let clear = wait_until(PATIENCE, || {
        said.contains("database space exceeded") || {
            said = stack.refused("meanwhile");
            false
        }
    });
    assert!(clear, "{said}");
    stack.lives();
    // The way of docs/coordinators.md to make room.
    stack.etcd.control(&["del", "--prefix", "junk"]);
    let status = stack.etcd.control(&["get", "none", "-w", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let revision = status["header"]["revision"].to_string();
    stack.etcd.control(&["compaction", "--physical", &revision]);
    stack.etcd.control(&["defrag"]);
    stack.etcd.control(&["alarm", "disarm"]);
    stack.creates("after");
    stack.reads("key", "value");
    let tables = stack.tables();
    assert!(tables.contains("first") && !tables.contains("meanwhile"), "{tables}");
    stack.lives();
}

/// Waits until all coordinators have ended, and checks that each said why.
fn all_end(stack: &mut Stack, why: &str) {
    for running in stack.coordinators.values_mut() {
        assert!(!running.ended().success());
        let mut said = String::new();
        let stderr = running.0.stderr.take().expect("it is kept");
        std::io::read_to_string(stderr).map(|text| said = text).expect("it can be read");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn coordinators_end_when_their_keys_are_gone() {
    let mut stack = Stack::start(1);
    stack.etcd.control(&["del", "--prefix", "/sprat/main/"]);
    all_end(&mut stack, "keys are gone");
    let left = stack.etcd.control(&["get", "--prefix", "/sprat/main/"]);
    assert_eq!(left, "", "no new cluster");
}

/// The snapshot is of the present term, so that only its revision is an earlier one.
#[test]
fn coordinators_end_when_their_keys_are_of_an_earlier_time() {
    let mut stack = Stack::start(1);
    let saved = stack.etcd.path().join("saved");
    let saved = saved.to_str().expect("UTF-8");
    stack.etcd.control(&["snapshot", "save", saved]);
    stack.creates("later");
    // Some beats more: the leader's first request to the restored etcd adds a revision.
    std::thread::sleep(Duration::from_secs(1));
    stack.etcd.members.clear();
    let data = stack.etcd.path().join("n0");
    fs::remove_dir_all(&data).expect("it is ours");
    let (peers, data) = (stack.etcd.peers(), data.to_str().expect("UTF-8").to_owned());
    let url = peers.trim_start_matches("n0=");
    let place = ["--name", "n0", "--initial-cluster", &peers, "--data-dir", &data];
    let place = [&place[..], &["--initial-advertise-peer-urls", url]].concat();
    stack.etcd.control(&[&["snapshot", "restore", saved], &place[..]].concat());
    stack.etcd.run();
    all_end(&mut stack, "replaced");
}

/// An etcd that stands still for a third of a second again and again delays changes, and loses
/// none.
#[test]
fn an_etcd_that_answers_slowly_loses_nothing() {
    let mut stack = Stack::start(1);
    let mut created = 0;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let etcd = &stack.etcd;
        scope.spawn(move || {
            while begin.elapsed() < Duration::from_secs(6) {
                etcd.signal("STOP");
                std::thread::sleep(Duration::from_millis(330));
                etcd.signal("CONT");
                std::thread::sleep(Duration::from_millis(170));
            }
        });
        while begin.elapsed() < Duration::from_secs(6) {
            stack.creates(&format!("slow{created}"));
            created += 1;
        }
    });
    let tables = stack.tables();
    assert!((0..created).all(|n| tables.contains(&format!("slow{n}"))), "{tables}");
    stack.lives();
}
