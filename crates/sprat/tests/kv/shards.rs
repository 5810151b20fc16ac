//! Tests of a server with several shards, and of the workers that run them.

use std::time::Duration;

use sprat::kv::{Client, ServerState};
use sprat::server::{CoordinatorOptions, MAX_SHARDS, ServerOptions, coordinator, run, shards};

use super::Cluster;

fn options(cluster: &Cluster, listen: &str) -> ServerOptions {
    ServerOptions { memory_bytes: 256 << 20, ..ServerOptions::new(&cluster.coordinator, listen) }
}

/// All shards serve parts of a table. When one is stopped, all of them leave the cluster.
#[test]
fn the_shards_of_a_server_share_a_table_and_end_together() {
    let cluster = Cluster::start("tcp", "shards", 0);
    let workers = shards(&options(&cluster, "tcp:host=127.0.0.1,port=0"), 3).unwrap();
    let stop = workers[1].stop();
    let server = std::thread::spawn(move || run(workers, &[]));
    let client = cluster.client();
    while client.servers().unwrap().len() < 3 {
        std::thread::yield_now();
    }
    let table = client.create_table("shared", 1).unwrap();
    for i in 0..100_u64 {
        table.put(&i.to_be_bytes(), b"value").unwrap();
    }
    let process = client.servers().unwrap()[0].site.process;
    assert!(process != 0);
    for server in client.servers().unwrap() {
        assert_eq!((server.tablets, server.site.process), (1, process));
        assert!(server.usage.capacity_bytes <= (256 << 20) / 3, "each has a third of the memory");
    }
    for i in 0..100_u64 {
        assert_eq!(table.get(&i.to_be_bytes()).unwrap().unwrap().value, b"value");
    }
    stop.stop();
    assert_eq!(server.join().unwrap(), Ok(()));
    let client = Client::builder(&cluster.coordinator);
    let client = client.timeout(Duration::from_secs(30)).connect().unwrap();
    let servers = client.servers().unwrap();
    let crashed = servers.iter().filter(|server| server.state == ServerState::Crashed);
    assert_eq!(crashed.count(), 3, "{servers:?}");
}

#[test]
fn the_number_of_shards_has_limits() {
    let cluster = Cluster::start("tcp", "limits", 0);
    for count in [0, MAX_SHARDS + 1] {
        let refusal = shards(&options(&cluster, "tcp:host=127.0.0.1,port=0"), count).unwrap_err();
        assert!(refusal.to_string().contains("1 to 64 shards"), "{refusal}");
    }
    let refusal = shards(&options(&cluster, "tcp:host=127.0.0.1,port=65535"), 2).unwrap_err();
    assert!(refusal.to_string().contains("65535+1"), "{refusal}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("shard-2")).unwrap();
    let kept = ServerOptions {
        directory: Some(folder.path().to_owned()),
        replicas: 1,
        ..options(&cluster, "tcp:host=127.0.0.1,port=0")
    };
    let refusal = shards(&kept, 2).unwrap_err();
    assert!(refusal.to_string().contains("replicas of 3 shards"), "{refusal}");
}

/// A thread leaves something for the caller of a worker and wakes the worker, after the caller's
/// last look. Then the caller looks again before the worker sleeps: operations of an asynchronous
/// client waited for the next timer, up to a second.
#[test]
fn a_wake_up_counts_as_work() {
    let mut worker = coordinator(&CoordinatorOptions::at("tcp:host=127.0.0.1,port=0")).unwrap();
    while worker.turn() {}
    worker.waker().wake();
    assert!(worker.turn(), "the caller looks again");
    assert!(!worker.turn());
}
