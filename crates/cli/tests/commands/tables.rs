//! Tests of tables whose tablets are split, merged and moved to other servers.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sprat_bench::process::wait_until;

use crate::cluster::{Cluster, PATIENCE, Running, errors, lives, run, signal, text, unique};

/// Returns the lines of a command that writes one JSON object a line.
fn lines(cluster: &Cluster, args: &[&str]) -> Vec<Value> {
    let text = cluster.ok(&[args, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns the servers that own the tablets of the table `t`, in their order.
fn owners(cluster: &Cluster) -> Vec<String> {
    let tablets = lines(cluster, &["table", "tablets", "t"]);
    tablets.iter().map(|tablet| tablet["server"].as_str().expect("an id").to_owned()).collect()
}

/// Returns the records of the table `t`, apart from the one that the load changes.
fn records(cluster: &Cluster) -> BTreeSet<String> {
    let all = cluster.ok(&["export", "t", "-", "--format", "jsonl"]);
    all.lines().filter(|line| !line.contains("counter")).map(str::to_owned).collect()
}

/// A table moves from server to server while a client counts in it. Then a server that got a part
/// of it is killed, and the part is recovered.
#[test]
fn a_table_moves_while_it_is_used() {
    let cluster = Cluster::up_with(3, &["--replicas", "1"]);
    let mut input = String::new();
    for n in 0..3000 {
        let _ = writeln!(input, r#"{{"key":"key {n}","value":"value {n}"}}"#);
    }
    let args = ["import", "t", "-", "--format", "jsonl", "--create"];
    assert!(cluster.feed(&args, input.as_bytes()).status.success());
    let before = records(&cluster);
    assert_eq!(before.len(), 3000);
    let stop = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut count = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                cluster.ok(&["incr", "t", "counter", "1"]);
                count += 1;
                assert_eq!(cluster.ok(&["get", "t", "counter"]).trim(), count.to_string());
            }
            count
        });
        for server in ["0.1", "1.1", "2.1", "1.1"] {
            cluster.ok(&["table", "move", "t", "--to", server]);
            assert_eq!(owners(&cluster), [server]);
        }
        cluster.ok(&["table", "split", "t", "--into", "4"]);
        cluster.ok(&["table", "split", "t", "--tablet", "0"]);
        assert_eq!(owners(&cluster), ["1.1"; 5]);
        let said = cluster.ok(&["table", "rebalance"]);
        assert!(said.contains("to server 0.1") && said.contains("to server 2.1"), "{said}");
        assert!(cluster.ok(&["table", "rebalance", "t"]).contains("where it should be"));
        stop.store(true, Ordering::Relaxed);
        load.join().expect("the load goes on")
    });
    assert_eq!(cluster.ok(&["get", "t", "counter"]).trim(), counted.to_string());
    assert_eq!(records(&cluster), before);
    let moves = lines(&cluster, &["table", "migrations"]);
    assert!(moves.len() >= 5 && moves.iter().all(|one| one["state"] == "done"), "{moves:?}");
    let servers: BTreeSet<_> = owners(&cluster).into_iter().collect();
    assert_eq!(servers.len(), 3);

    let id = cluster.ids[2];
    signal(id, "KILL");
    assert!(wait_until(PATIENCE, || !lives(id)));
    let whole = || {
        let status = cluster.run(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        status["serves"] == true && status["servers"].as_array().map(Vec::len) == Some(3)
    };
    assert!(wait_until(PATIENCE, whole), "{}", cluster.ok(&["stats"]));
    assert_eq!(records(&cluster), before);
    assert_eq!(cluster.ok(&["get", "t", "counter"]).trim(), counted.to_string());
    cluster.end();
}

#[test]
fn tablets_of_one_server_are_merged() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["put", "t", "k", "v"]);
    cluster.ok(&["table", "split", "t", "--into", "8"]);
    let listed = cluster.ok(&["table", "tablets", "t"]);
    assert!(listed.lines().count() == 9 && listed.contains("12.5 %"), "{listed}");
    cluster.ok(&["table", "merge", "t", "--tablet", "6"]);
    assert_eq!(owners(&cluster).len(), 7);
    cluster.ok(&["table", "merge", "t"]);
    assert_eq!(owners(&cluster).len(), 1);
    // A part goes to the other server, which has had nothing of the table before, and back.
    let (here, there) = match &owners(&cluster)[0][..] {
        "0.1" => ("0.1", "1.1"),
        _ => ("1.1", "0.1"),
    };
    cluster.ok(&["table", "split", "t"]);
    cluster.ok(&["table", "move", "t", "--tablet", "1", "--to", there]);
    let error = cluster.fails(1, &["table", "merge", "t", "--tablet", "0"]);
    assert!(error.contains("two servers own the tablets"), "{error}");
    cluster.ok(&["table", "move", "t", "--tablet", "0", "--to", there]);
    cluster.ok(&["table", "merge", "t"]);
    assert_eq!(owners(&cluster), [there]);
    cluster.ok(&["table", "rebalance", "--without", there]);
    assert_eq!(owners(&cluster), [here]);
    assert_eq!(cluster.ok(&["get", "t", "k"]).trim(), "v");
    cluster.end();
}

#[test]
fn what_cannot_be_arranged_is_refused() {
    let cluster = Cluster::up(2);
    assert!(cluster.ok(&["table", "migrations"]).contains("No keys have moved"));
    cluster.ok(&["table", "create", "t"]);
    for (args, text) in [
        (["table", "move", "t", "--to", "7.1"], "no server 7.1 is up"),
        (["table", "split", "t", "--tablet", "3"], "t has the tablets 0 to 0"),
        (["table", "merge", "t", "--tablet", "0"], "no tablet follows tablet 0"),
        (["table", "move", "u", "--to", "1.1"], "no such table"),
    ] {
        let error = cluster.fails(1, &args);
        assert!(error.contains(text), "{error}");
    }
    for args in [
        vec!["table", "split", "u"],
        vec!["table", "tablets", "u"],
        vec!["table", "rebalance", "u"],
    ] {
        let error = cluster.fails(1, &args);
        assert!(error.contains("no such table"), "{error}");
    }
    for wrong in
        [vec!["table", "move", "t", "--to", "x"], vec!["table", "split", "t", "--into", "1"]]
    {
        cluster.fails(2, &wrong);
    }
    cluster.end();
}

/// A server that joins gets a part of each table from a coordinator that may move them.
#[test]
fn a_coordinator_balances_tables_by_itself() {
    let (number, port) = unique(1);
    let at = format!("tcp:host=127.0.0.1,port={port}");
    let mut coordinator = Running::start(&["coordinator", "-C", &at, "--rebalance"]);
    coordinator.wait_for("listening at");
    let server = |n: u32| {
        let locator = format!("fast+shm:name=test-{number}.{n}");
        let mut server = Running::start(&["server", "-C", &at, "-L", &locator, "--memory", "64M"]);
        server.wait_for("listening at");
        server
    };
    let one = server(1);
    let created = || run(&["table", "create", "t", "-C", &at]).status.success();
    assert!(wait_until(PATIENCE, created));
    for n in 0..20 {
        let put = run(&["put", "t", &format!("key {n}"), "value", "-C", &at]);
        assert!(put.status.success(), "{}", errors(&put));
    }
    let two = server(2);
    let owners = || {
        let tablets = text(&run(&["table", "tablets", "t", "-C", &at, "--json"]));
        let one = |line: &str| -> Value { serde_json::from_str(line).unwrap_or_default() };
        tablets.lines().map(|line| one(line)["server"].to_string()).collect::<BTreeSet<_>>()
    };
    assert!(wait_until(PATIENCE, || owners().len() == 2), "{:?}", owners());
    for n in 0..20 {
        let get = run(&["get", "t", &format!("key {n}"), "-C", &at]);
        assert_eq!(text(&get).trim(), "value");
    }
    for mut process in [two, one, coordinator] {
        process.signal("INT");
        assert!(process.ended().success());
    }
}
