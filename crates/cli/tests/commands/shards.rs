//! Tests of servers with several cores.

use serde_json::Value;
use sprat_bench::process::wait_until;

use crate::cluster::{Cluster, PATIENCE, signal, unique};
use crate::stats::metrics;

/// The number of objects that a test writes.
const OBJECTS: usize = 40;

fn status(cluster: &Cluster) -> Value {
    serde_json::from_str(&cluster.ok(&["status", "--json"])).expect("JSON")
}

/// The shards of one server are killed together, and those of the other one have all objects. The
/// next cluster has more cores. One with fewer cores would leave replicas behind, and is refused.
#[test]
fn the_objects_of_a_server_are_on_all_of_its_cores() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let dir = dir.to_str().expect("a plain path");
    let cluster = Cluster::up_with(2, &["--cores", "2", "--dir", dir]);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["table", "create", "wide", "--span", "2"]);
    let now = status(&cluster);
    let servers = now["servers"].as_array().expect("a list");
    let place = |server: &Value| (server["process"].as_u64(), server["shard"].as_u64());
    let mut places: Vec<_> = servers.iter().map(place).collect();
    places.sort_unstable();
    assert_eq!(places, [(1, 0), (1, 1), (2, 0), (2, 1)].map(|(p, s)| (Some(p), Some(s))), "{now}");
    let tablets: u64 = servers.iter().filter_map(|server| server["tablets"].as_u64()).sum();
    assert_eq!(tablets, 2 + 4, "a table has a tablet on each core of its servers: {now}");
    assert!(cluster.ok(&["status"]).contains("2 servers with 4 shards"));

    // A server that is to end gives the keys of all of its shards.
    let of_second = |server: &&Value| server["process"] == 2;
    let second = servers.iter().find(of_second).and_then(|server| server["server"].as_str());
    cluster.ok(&["table", "rebalance", "--without", second.expect("a server")]);
    let left = status(&cluster);
    let all = left["servers"].as_array().expect("a list").iter();
    assert!(all.filter(of_second).all(|server| server["tablets"] == 0), "{left}");
    assert!(cluster.fails(1, &["table", "rebalance", "--without", "77.1"]).contains("77.1"));
    cluster.ok(&["table", "rebalance"]);

    let key = |i: usize| format!("key{i}");
    for i in 0..OBJECTS {
        cluster.ok(&["put", "wide", &key(i), &i.to_string()]);
    }
    signal(cluster.ids[1], "KILL");
    for i in 0..OBJECTS {
        assert_eq!(cluster.ok(&["get", "wide", &key(i), "--timeout", "30"]), i.to_string());
    }
    let whole = || status(&cluster)["servers"].as_array().is_some_and(|all| all.len() == 4);
    assert!(wait_until(PATIENCE, whole), "{}", status(&cluster));
    cluster.end();

    let refusal = Cluster::refused(2, &["--dir", dir]);
    assert!(refusal.contains("2 shards") && refusal.contains("--cores"), "{refusal}");
    let cluster = Cluster::up_with(2, &["--cores", "3", "--dir", dir]);
    for i in 0..OBJECTS {
        assert_eq!(cluster.ok(&["get", "wide", &key(i), "--timeout", "30"]), i.to_string());
    }
    cluster.end();
}

#[test]
fn the_metrics_of_a_server_name_its_shards() {
    let (_, first) = unique(2);
    let cluster = Cluster::up_with(1, &["--cores", "2", "--metrics", &first.to_string()]);
    let text = metrics(first + 1);
    for shard in 0..2 {
        let sample = format!("\nsprat_objects{{shard=\"{shard}\"}} 0\n");
        assert!(text.contains(&sample), "{text}");
    }
    cluster.end();
}
