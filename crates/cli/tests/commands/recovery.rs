//! Tests of clusters with replicas whose servers are killed.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use sprat_bench::process::wait_until;

use crate::cluster::{Cluster, PATIENCE, errors, signal, text};

/// The number of objects that the test writes before it kills the server.
const OBJECTS: usize = 500;

/// A server dies under increments. Every object is read again as it was, the object of the
/// increments says how many were acknowledged, and writes go on.
#[test]
fn a_killed_server_loses_nothing() {
    let cluster = Cluster::up_with(3, &["--replicas", "1"]);
    cluster.ok(&["table", "create", "t", "--span", "3"]);
    let mut lines = String::new();
    for i in 0..OBJECTS {
        let _ = writeln!(lines, r#"{{"key":"key{i}","value":"value{i}"}}"#);
    }
    let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines.as_bytes());
    assert!(fed.status.success(), "{}", errors(&fed));
    let (begun, killed) = (AtomicU32::new(0), AtomicBool::new(false));
    let after = thread::scope(|scope| {
        let clients = ["n0", "n1", "n2", "n3"].map(|key| {
            let (cluster, begun, killed) = (&cluster, &begun, &killed);
            scope.spawn(move || {
                let (mut sum, mut after) = (0, 0);
                while after < 2 {
                    after += u64::from(killed.load(Ordering::Relaxed));
                    let said = cluster.ok(&["incr", "t", key, "--timeout", "30"]);
                    sum += 1;
                    begun.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(said.trim(), sum.to_string(), "{key}: none is lost or doubled");
                }
                sum
            })
        });
        assert!(wait_until(PATIENCE, || begun.load(Ordering::Relaxed) >= 8), "clients work");
        signal(cluster.ids[1], "KILL");
        killed.store(true, Ordering::Relaxed);
        clients.map(|client| client.join().expect("no command fails"))
    });
    assert!(after.iter().all(|sum| *sum > 1), "{after:?}");
    // The exit code says that the cluster serves all tables.
    let serves = wait_until(PATIENCE, || cluster.run(&["status"]).status.success());
    assert!(serves, "{}", cluster.ok(&["table", "list"]));
    let output = cluster.run(&["export", "t", "-", "--format", "jsonl"]);
    assert!(output.status.success(), "{}", errors(&output));
    let read = text(&output);
    for i in 0..OBJECTS {
        assert!(read.contains(&format!(r#""key{i}","value":"value{i}""#)), "key{i}: {read}");
    }
    assert_eq!(read.lines().count(), OBJECTS + after.len());
    cluster.ok(&["put", "t", "key0", "another"]);
    assert_eq!(cluster.ok(&["get", "t", "key0"]), "another");
    assert!(cluster.ok(&["table", "list"]).contains("complete"));
    cluster.end();
}

/// The coordinator learns from the kernel that a server on its machine was killed. The server's
/// objects are there again long before its lease ends.
#[test]
fn a_killed_server_is_noticed_before_its_lease_ends() {
    let lease = (2 * PATIENCE).as_secs().to_string();
    let cluster = Cluster::up_with(3, &["--replicas", "1", "--lease", &lease]);
    cluster.ok(&["table", "create", "t", "--span", "3"]);
    for i in 0..20 {
        cluster.ok(&["put", "t", &format!("key{i}"), "value"]);
    }
    // The coordinator has to know where its links lead.
    let stats = || cluster.ok(&["stats", "--json"]);
    let pinged = || stats().lines().filter(|line| !line.contains(r#""pings":0"#)).count() == 3;
    assert!(wait_until(PATIENCE, pinged), "{}", stats());
    signal(cluster.ids[1], "KILL");
    let serves = wait_until(PATIENCE, || cluster.run(&["status"]).status.success());
    assert!(serves, "{}", text(&cluster.run(&["status"])));
    for i in 0..20 {
        assert_eq!(cluster.ok(&["get", "t", &format!("key{i}")]), "value");
    }
    cluster.end();
}

/// Servers with --populate have all of their memory from the start, and serve as others do.
#[test]
fn populated_memory_is_there_from_the_start() {
    let resident = |id: u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib =
            line.and_then(|line| line.trim().strip_suffix(" kB")).expect("proc_pid_status(5)");
        kib.parse::<u64>().expect("a number") << 10
    };
    // 64 MiB for objects, and as many for replicas.
    let all = 128 << 20;
    let cluster = Cluster::up_with(2, &["--replicas", "1"]);
    assert!(cluster.ids[1..].iter().all(|&id| resident(id) < all));
    cluster.end();
    let cluster = Cluster::up_with(2, &["--replicas", "1", "--populate"]);
    assert!(cluster.ids[1..].iter().all(|&id| resident(id) >= all));
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    cluster.ok(&["put", "t", "k", "v"]);
    assert_eq!(cluster.ok(&["get", "t", "k"]), "v");
    cluster.end();
}

/// Two servers with the only replicas of each other's logs die at once. The status says so and
/// names the command that goes on, which refuses without its flag.
#[test]
fn a_loss_is_accepted_by_hand() {
    let cluster = Cluster::up_with(2, &["--replicas", "1"]);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    for i in 0..20 {
        cluster.ok(&["put", "t", &format!("key{i}"), "before"]);
    }
    assert!(cluster.fails(1, &["recover", "0.1"]).contains("server 0.1 is up"));
    let wrong = cluster.fails(2, &["recover", "first"]);
    assert!(wrong.contains("2.1"), "{wrong}");
    signal(cluster.ids[1], "KILL");
    signal(cluster.ids[2], "KILL");
    let mut losses = 0;
    let serves = wait_until(PATIENCE, || {
        let status = cluster.run(&["status"]);
        if status.status.success() {
            return losses > 0;
        }
        let shown = text(&status);
        let blocked = shown.lines().find_map(|line| {
            line.strip_prefix("server ")?.split_once(" is blocked: no server has ").map(|it| it.0)
        });
        let Some(blocked) = blocked else { return false };
        let next = errors(&status);
        if next.contains("the cluster has no server") {
            // Both are gone, and `sprat up` starts them anew.
            return false;
        }
        assert!(next.contains(&format!("sprat recover {blocked}")), "{next}");
        let refused = cluster.run(&["recover", blocked]);
        if !text(&refused).contains("would lose") {
            return false;
        }
        assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
        assert!(errors(&refused).contains("--accept-loss"), "{}", errors(&refused));
        assert!(text(&refused).contains("  t "), "{}", text(&refused));
        let accepted = cluster.ok(&["recover", blocked, "--accept-loss"]);
        assert!(accepted.contains("goes on"), "{accepted}");
        losses += 1;
        false
    });
    assert!(serves, "{losses}: {}", text(&cluster.run(&["status"])));
    for i in 0..20 {
        let key = format!("key{i}");
        let read = cluster.run(&["get", "t", &key]);
        let code = read.status.code();
        assert!(code == Some(3) || (code == Some(0) && text(&read) == "before"), "{key}: {code:?}");
        cluster.ok(&["put", "t", &key, "after"]);
        assert_eq!(cluster.ok(&["get", "t", &key]), "after");
    }
    cluster.end();
}
