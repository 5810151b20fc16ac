//! Tests of `sprat status` and `sprat down`.

use serde_json::Value;

use crate::cluster::{Cluster, Running, errors, lives, run, signal, text, unique};

#[test]
fn the_status_of_a_cluster_is_its_servers_and_the_tables_that_lack_data() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    let shown = cluster.ok(&["status"]);
    assert!(shown.contains("2 servers, 1 table") && shown.contains("fast+shm:name="), "{shown}");
    let status: Value = serde_json::from_str(&cluster.ok(&["status", "--json"])).expect("JSON");
    assert_eq!((&status["serves"], &status["tables"]), (&true.into(), &1.into()));
    assert_eq!(status["servers"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["coordinator"], cluster.coordinator.as_str());
}

#[test]
fn no_cluster_has_no_status() {
    let (_, port) = unique(1);
    let at = format!("tcp:host=127.0.0.1,port={port}");
    let output = run(&["status", "-C", &at, "--json"]);
    assert_eq!((output.status.code(), text(&output)), (Some(1), String::new()));
    assert!(errors(&output).contains("next:"), "{}", errors(&output));
}

#[test]
fn a_cluster_without_servers_does_not_serve() {
    let (_, port) = unique(1);
    let at = format!("tcp:host=127.0.0.1,port={port}");
    let mut coordinator = Running::start(&["coordinator", "-C", &at]);
    coordinator.wait_for("listening at");
    let output = run(&["status", "-C", &at]);
    assert_eq!(output.status.code(), Some(1));
    let error = errors(&output);
    assert!(error.contains("no server") && error.contains("next:"), "{error}");
    coordinator.signal("TERM");
    assert!(coordinator.ended().success());
}

#[test]
fn down_ends_the_cluster_of_that_name() {
    let mut cluster = Cluster::up(1);
    let name = cluster.name.clone();
    let again = run(&["up", "--name", &name, "--port", "9999"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(errors(&again).contains("sprat down --name"), "{}", errors(&again));
    assert_eq!(cluster.ok(&["down", "--name", &name]), format!("The cluster {name} has ended.\n"));
    assert!(cluster.up.ended().success(), "a good end");
    assert!(!cluster.ids.iter().any(|&id| lives(id)), "no process is left");
    let error = cluster.fails(1, &["down", "--name", &name]);
    assert!(error.contains("no cluster named") && error.contains("next:"), "{error}");
}

/// `sprat down` waits for a `sprat up` that is stopped (SIGSTOP) and so cannot end. Both end once
/// `sprat up` continues.
#[test]
fn down_waits_for_a_cluster_that_ends_late() {
    let mut cluster = Cluster::up(1);
    let name = cluster.name.clone();
    signal(cluster.up.0.id(), "STOP");
    let mut down = Running::start(&["down", "--name", &name]);
    assert!(down.0.try_wait().expect("our child").is_none());
    signal(cluster.up.0.id(), "CONT");
    assert!(down.ended().success());
    assert!(cluster.up.ended().success());
}
