//! Tests of `--durability`: what the modes need, and that a cluster has one mode.

use crate::cluster::{Cluster, errors, kill, run, sprat, text, unique};

/// With `disk` every acknowledged change is on the disks of all replicas. A test cannot take the
/// power away: the simulator does that. Here the processes are killed.
#[test]
fn a_cluster_that_acknowledges_what_its_disks_have() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let dir = dir.to_str().expect("a plain path");
    let options = ["--dir", dir, "--replicas", "2", "--durability", "disk"];
    let mut cluster = Cluster::up_with(3, &options);
    assert!(cluster.ok(&["status"]).contains("2 replicas, durability disk"));
    let status = cluster.ok(&["status", "--json"]);
    assert!(status.contains(r#""durability":"disk""#), "{status}");
    cluster.ok(&["table", "create", "t", "--span", "3"]);
    for round in 1..=20 {
        assert_eq!(cluster.ok(&["incr", "t", "n", "--timeout", "30"]).trim(), round.to_string());
    }
    // A server of another mode cannot join.
    let (number, _) = unique(1);
    let listen = format!("fast+shm:name=test-{number}.9");
    for other in [&["--replicas", "1"][..], &["--replicas", "2", "--durability", "async"]] {
        let mut server = cluster.command(&["server", "-L", &listen, "--memory", "48M"]);
        let output = server.args(other).output().expect("the program starts");
        let said = errors(&output);
        assert!(
            said.contains("--replicas 2 --durability disk") && said.contains("next:"),
            "{said}"
        );
    }
    kill(&mut cluster);
    drop(cluster);
    // The next run of the cluster may have another mode.
    let cluster = Cluster::up_with(3, &["--dir", dir, "--replicas", "2"]);
    assert_eq!(cluster.ok(&["get", "t", "n", "--timeout", "30"]), "20");
    let shown = text(&cluster.run(&["status"]));
    assert!(shown.contains("2 replicas, durability process"), "{shown}");
    cluster.end();
}

#[test]
fn a_lone_server_acknowledges_what_its_disk_has() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let options = ["--dir", dir.to_str().expect("a plain path"), "--durability", "disk"];
    let mut cluster = Cluster::up_with(1, &options);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["put", "t", "k", "v"]);
    kill(&mut cluster);
    drop(cluster);
    let cluster = Cluster::up_with(1, &options);
    assert_eq!(cluster.ok(&["get", "t", "k", "--timeout", "30"]), "v");
    cluster.end();
}

#[test]
fn an_asynchronous_cluster_serves() {
    let cluster = Cluster::up_with(2, &["--replicas", "1", "--durability", "async"]);
    assert!(cluster.ok(&["status"]).contains("1 replica, durability async"));
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["put", "t", "k", "v"]);
    assert_eq!(cluster.ok(&["get", "t", "k"]), "v");
    cluster.end();
}

#[test]
fn modes_name_what_they_need() {
    for (options, remedy) in [
        (&["--durability", "disk"][..], "--replicas 1"),
        (&["--replicas", "1", "--durability", "disk"], "--dir"),
        (&["--replicas", "1", "--durability", "process"], "--dir"),
        (&["--replicas", "1", "--durability", "none"], "--replicas 0"),
        (&["--replicas", "1", "--dir", "/x", "--durability", "memory"], "--durability process"),
        (&["--replicas", "0", "--dir", "/x"], "--replicas 1"),
    ] {
        let memory: &[_] = if options.contains(&"--dir") { &[] } else { &["--ephemeral"] };
        let up = [&["up", "--name", "test-modes", "--port", "1"], memory].concat();
        for command in [&up[..], &["server", "-L", "x"]] {
            let output = sprat().args(command).args(options).output().expect("it starts");
            let said = errors(&output);
            assert!(!output.status.success() && said.contains("durability"), "{said}");
            assert!(said.contains("next:") && said.contains(remedy), "{options:?}: {said}");
        }
    }
    assert!(
        errors(&run(&["up", "--durability", "Disk", "--ephemeral"])).contains("possible values")
    );
}

/// A table whose changes do not wait for the disk, in a cluster whose other changes do.
#[test]
fn a_table_has_a_durability_of_its_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let dir = dir.to_str().expect("a plain path");
    let options = ["--dir", dir, "--replicas", "1", "--durability", "disk"];
    let mut cluster = Cluster::up_with(3, &options);
    cluster.ok(&["table", "create", "books"]);
    cluster.ok(&["table", "create", "log", "--span", "3", "--durability", "async"]);
    let listed = |cluster: &Cluster| {
        let lines = cluster.ok(&["table", "list", "--json"]);
        let value = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            (line["name"].to_string(), line["durability"].to_string())
        };
        lines.lines().map(value).collect::<Vec<_>>()
    };
    let wanted = [("\"books\"", "\"cluster\""), ("\"log\"", "\"async\"")]
        .map(|(name, durability)| (name.to_owned(), durability.to_owned()));
    assert_eq!(listed(&cluster), wanted);
    let again = cluster.run(&["table", "create", "log"]);
    assert!(errors(&again).contains("log exists, and has durability async"), "{again:?}");
    for round in 1..=20 {
        for table in ["books", "log"] {
            let sum = cluster.ok(&["incr", table, "n", "--timeout", "30"]);
            assert_eq!(sum.trim(), round.to_string());
        }
    }
    kill(&mut cluster);
    drop(cluster);
    let cluster = Cluster::up_with(3, &options);
    assert_eq!(cluster.ok(&["get", "books", "n", "--timeout", "30"]), "20");
    // What lacks replicas is at most 10 ms old, and each of these changes took longer.
    let found = cluster.ok(&["get", "log", "n", "--timeout", "30"]);
    assert!(["19", "20"].contains(&&found[..]), "{found}");
    assert_eq!(listed(&cluster), wanted);
    cluster.end();
}

#[test]
fn an_asynchronous_table_needs_replicas() {
    let cluster = Cluster::up(1);
    let refused = cluster.run(&["table", "create", "log", "--durability", "async"]);
    let said = errors(&refused);
    assert!(!refused.status.success() && said.contains("needs replicas"), "{said}");
    assert!(cluster.ok(&["table", "list"]).contains("no tables yet"));
    cluster.end();
}
