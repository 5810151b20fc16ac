//! Tests of `sprat bench`: it measures, and its JSON has the promised fields. No test judges a
//! figure.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::cluster::{Cluster, errors, left_of, sprat, text};

const FIELDS: [&str; 16] = [
    "test",
    "transport",
    "size_bytes",
    "count",
    "avg_us",
    "min_us",
    "p50_us",
    "p90_us",
    "p99_us",
    "p999_us",
    "max_us",
    "bytes_per_s",
    "ops_per_s",
    "floor",
    "floor_us",
    "tcp_us",
];

/// Returns the context and the rows of a run's JSON Lines.
fn rows(json: &str) -> (Value, Vec<Value>) {
    let mut lines = json.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let context = lines.next().expect("a first line");
    for field in ["commit", "kernel", "cpu", "cores", "load", "governor"] {
        assert!(!context[field].is_null(), "{field}");
    }
    let rows: Vec<Value> = lines.collect();
    for row in &rows {
        let row = row.as_object().expect("an object");
        assert!(FIELDS.iter().all(|field| row.contains_key(*field)), "{row:?}");
    }
    (context, rows)
}

/// Runs a test of `sprat bench` on processes of its own, for as short a time as possible. Returns
/// its rows.
fn bench(test: &str, args: &[&str]) -> Vec<Value> {
    let short = ["bench", test, "--seconds", "0.02", "--rounds", "2", "--json", "-"];
    spawned([&short, args].concat())
}

/// Runs `sprat` to its end, and returns the rows of JSON that it wrote.
fn spawned(args: Vec<&str>) -> Vec<Value> {
    let child = sprat().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the program starts");
    let name = format!("perf-{}", child.id());
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(left_of(&name), Vec::<PathBuf>::new(), "its processes clean up");
    rows(&text(&output)).1
}

fn named<'r>(rows: &'r [Value], test: &str, transport: &str) -> &'r Value {
    rows.iter().find(|row| row["test"] == test && row["transport"] == transport).expect(test)
}

#[test]
fn echo_stands_beside_its_floor() {
    let rows = bench("echo", &["--size", "100,20KB", "--outstanding", "16"]);
    for (transport, floor) in
        [("fast+shm", "floor.ring"), ("fast+udp", "floor.udp"), ("tcp", "floor.tcp")]
    {
        let row = named(&rows, "echo", transport);
        assert_eq!((row["floor"].as_str(), row["size_bytes"].as_u64()), (Some(floor), Some(100)));
        for field in
            ["avg_us", "min_us", "p50_us", "p999_us", "max_us", "ops_per_s", "floor_us", "tcp_us"]
        {
            assert!(row[field].as_f64().is_some_and(|n| n > 0.0), "{transport} {field}: {row}");
        }
        assert!(
            named(&rows, "echo.throughput", transport)["ops_per_s"]
                .as_f64()
                .is_some_and(|n| n > 0.0)
        );
    }
    assert_eq!(rows.len(), 3 * 2 + 3 * 2);
}

/// Our own TCP by events stands beside the raw device and kernel TCP. A request that came in the
/// burst that opened its connection once left it waiting.
#[test]
fn our_tcp_stands_beside_the_device_and_the_kernel() {
    let rows = bench("tcp", &["--size", "64,5KB", "--transport", "utcp+shmnet,utcp+memif"]);
    for transport in ["utcp+shmnet", "utcp+memif"] {
        for test in ["tcp.echo", "tcp.stream"] {
            let row = named(&rows, test, transport);
            for field in ["p50_us", "floor_us", "tcp_us", "bytes_per_s"] {
                assert!(row[field].as_f64().is_some_and(|n| n > 0.0), "{field}: {row}");
            }
        }
    }
    assert_eq!(rows.len(), 2 * 3);
    let other = ["bench", "tcp", "--transport", "fast+shm"];
    let output = sprat().args(other).output().expect("the program runs");
    assert!(!output.status.success() && errors(&output).contains("utcp"), "{}", errors(&output));
}

#[test]
fn the_floors_are_measured_alone() {
    let rows = bench("baseline", &["--size", "100"]);
    for test in ["floor.cacheLine", "floor.memory"] {
        assert!(named(&rows, test, "memory")["p50_us"].as_f64().is_some_and(|n| n > 0.0), "{test}");
    }
    for (test, transport) in
        [("floor.ring", "fast+shm"), ("floor.udp", "fast+udp"), ("floor.tcp", "tcp")]
    {
        assert!(
            named(&rows, test, transport)["p50_us"].as_f64().is_some_and(|n| n > 0.0),
            "{test}"
        );
    }
}

#[test]
fn sessions_are_counted_in_bytes() {
    let rows = bench("sessions", &["--transport", "fast+shm", "--sessions", "3000"]);
    for test in ["sessions.server", "sessions.client", "sessions.open"] {
        let row = named(&rows, test, "fast+shm");
        assert!(row["value"].is_number() && row["unit"].is_string(), "{row}");
    }
    assert!(
        named(&rows, "sessions.echo.64x3000", "fast+shm")["ops_per_s"]
            .as_f64()
            .is_some_and(|n| n > 0.0)
    );
}

/// `sprat perf` is the spelling of earlier versions for `sprat bench`, with several tests in one
/// run.
#[test]
fn perf_is_an_old_name_of_bench() {
    let short = ["perf", "--local", "--seconds", "0.02", "--rounds", "2", "--json", "-"];
    let more = ["--size", "100,20KB", "--objects", "20", "basic", "readThroughput"];
    let rows = spawned([&short[..], &more].concat());
    for transport in ["fast+shm", "fast+udp", "tcp"] {
        for test in ["basic.read", "basic.write", "readThroughput"] {
            let row = named(&rows, test, transport);
            assert!(row["ops_per_s"].as_f64().is_some_and(|n| n > 0.0), "{row}");
        }
        assert!(named(&rows, "basic.read", transport)["floor_us"].is_number());
    }
}

/// The tests of `sprat bench` have aliases: RAMCloud's names, and those of earlier versions.
#[test]
fn tests_have_aliases() {
    let rows = bench("basic", &["--size", "100", "--objects", "20", "--transport", "fast+shm"]);
    assert!(named(&rows, "basic.write", "fast+shm")["p50_us"].is_number());
    let rows = bench("turns", &["--transport", "fast+shm"]);
    for test in ["singleThread.echo", "singleThread.read"] {
        assert!(named(&rows, test, "fast+shm")["p50_us"].is_number());
    }
    let rows = bench("readThroughput", &["--size", "100", "--objects", "20", "--transport", "tcp"]);
    assert!(named(&rows, "readThroughput", "tcp")["ops_per_s"].is_number());
}

#[test]
fn the_parts_of_a_read_and_of_a_write_add_up() {
    let rows = bench("breakdown", &["--size", "100", "--objects", "20"]);
    for transport in ["fast+shm", "fast+udp", "tcp"] {
        for test in ["breakdown.read", "breakdown.write"] {
            let these: Vec<&Value> = rows
                .iter()
                .filter(|row| row["test"] == test && row["transport"] == transport)
                .collect();
            let us = |part: &str| {
                let row = these.iter().find(|row| row["part"] == part).expect(part);
                assert_eq!(row["joined"], "one clock", "{row}");
                row["value"].as_f64().expect("a number")
            };
            // Both are sums over the same round trips: no clock decides.
            assert!((us("sum") - us("whole")).abs() < 0.05 * us("whole"), "{these:?}");
            for part in
                ["client.out.caller", "client.out.driver", "server.service", "client.in.caller"]
            {
                assert!(us(part) > 0.0, "{part}: {these:?}");
            }
            let parts = these.iter().filter(|row| row["part"] != "whole" && row["part"] != "sum");
            let sum: f64 = parts.filter_map(|row| row["value"].as_f64()).sum();
            assert!((sum - us("sum")).abs() < 1e-6 * sum, "{these:?}");
            assert_eq!((us("away"), us("client.out.ip"), these.len()), (0.0, 0.0, 20));
        }
    }
    assert_eq!(rows.len(), 3 * 2 * 20);
}

#[test]
fn load_is_offered_up_to_saturation() {
    let rows = bench("loaded", &["--transport", "fast+shm", "--objects", "20"]);
    for test in ["loaded.10", "loaded.100", "loaded.mixed.10", "loaded.mixed.100"] {
        let row = named(&rows, test, "fast+shm");
        assert!(
            row["p999_us"].is_number() && row["value"].as_f64().is_some_and(|rate| rate > 0.0),
            "{row}"
        );
    }
}

#[test]
fn a_running_cluster_is_measured_and_left_as_it_was() {
    let cluster = Cluster::up(1);
    let file = cluster.path("results.jsonl");
    let name = file.to_string_lossy().into_owned();
    let short = ["--seconds", "0.02", "--rounds", "1", "--size", "100", "--json", &name];
    let test = |test: &[&str]| {
        let shown = cluster.ok(&[&["bench"], test, &short].concat());
        (shown, rows(&std::fs::read_to_string(&file).expect("reads")).1)
    };
    let (_, rows) = test(&["echo"]);
    assert!(named(&rows, "echo", "tcp")["p50_us"].is_number());
    let (shown, _) = test(&["read-write", "--objects", "10"]);
    assert!(shown.contains("basic.read") && shown.contains("× floor"), "{shown}");
    assert!(cluster.ok(&["table", "list"]).contains("no tables yet"), "its tables are dropped");
    let error = cluster
        .fails(1, &["bench", "read-write", "--seconds", "0.02", "--objects", "1", "--size", "2MB"]);
    assert!(error.contains("the limit is 1048576"), "{error}");
    assert!(cluster.ok(&["table", "list"]).contains("no tables yet"), "also of a test that failed");
    let error = cluster.fails(2, &["bench", "echo", "--transport", "pigeon"]);
    assert!(error.contains("pigeon"), "{error}");
}

/// YCSB's workloads run on our store and beside Redis and memcached, each with the figures of reads
/// and of updates. Workload E runs beside Redis, and says that memcached has no scans.
#[test]
fn ycsb_stands_beside_other_stores() {
    // CI has both; a machine without them has nothing to test here.
    let installed = |program: &str| Path::new("/usr/bin").join(program).exists();
    let strict = std::env::var_os("CI").is_some();
    if !strict && ["redis-server", "memcached"].iter().any(|program| !installed(program)) {
        return;
    }
    let small = ["--records", "100", "--size", "100", "--clients", "2", "--pipeline", "2"];
    let beside = ["--beside", "redis,redis+unix,memcached,memcached+unix"];
    let rows = bench("ycsb", &[&small[..], &beside, &["--transport", "fast+shm,tcp"]].concat());
    let stores = ["fast+shm", "tcp", "redis", "redis+unix", "memcached", "memcached+unix"];
    for workload in ["a", "b", "c", "d", "f"] {
        for store in stores {
            let row = named(&rows, &format!("ycsb.{workload}.2"), store);
            let above_zero = |field: &str| row[field].as_f64().is_some_and(|n| n > 0.0);
            assert!(above_zero("ops_per_s") && above_zero("read_p999_us"), "{row}");
            // One operation in 20 is an update in b and d: such a short time may have none.
            assert!(!["a", "f"].contains(&workload) || above_zero("update_p50_us"), "{row}");
            assert!(workload != "c" || row["update_p50_us"].is_null(), "{row}");
            assert!(above_zero("redis_ops_per_s"), "{row}");
        }
    }
    for store in &stores[..4] {
        let row = named(&rows, "ycsb.e.2", store);
        assert!(row["ops_per_s"].as_f64().is_some_and(|n| n > 0.0), "{row}");
    }
    for store in &stores[4..] {
        let none = named(&rows, "ycsb.e", store);
        assert_eq!(
            (none["unit"].as_str(), &none["ops_per_s"]),
            (Some("no ordered scan"), &Value::Null)
        );
    }
    assert_eq!(rows.len(), 6 * stores.len());
}

#[test]
fn ycsb_writes_to_replicas() {
    let small = ["--records", "50", "--field-count", "2", "--clients", "1", "--workload", "a"];
    let rows = bench("ycsb", &[&small[..], &["--replicas", "1", "--transport", "tcp"]].concat());
    let row = named(&rows, "ycsb.a.1", "tcp");
    assert_eq!((row["size_bytes"].as_u64(), row["clients"].as_u64()), (Some(200), Some(1)));
}

/// Scans and inserts of workload E are in progress at the same time, as tasks of an asynchronous
/// client, which meet conflicts of their own inserts.
#[test]
fn ycsb_scans_with_several_in_progress() {
    let small = ["--records", "200", "--size", "100", "--clients", "2", "--workload", "e"];
    for pipeline in ["1", "8"] {
        let more = ["--pipeline", pipeline, "--transport", "fast+shm,tcp"];
        let rows = bench("ycsb", &[&small[..], &more].concat());
        for transport in ["fast+shm", "tcp"] {
            let row = named(&rows, "ycsb.e.2", transport);
            assert_eq!(row["pipeline"].to_string(), pipeline, "{row}");
            assert!(row["read_p50_us"].as_f64().is_some_and(|n| n > 0.0), "{row}");
        }
    }
}

/// Each of ClusterPerf's tests runs by RAMCloud's name over one transport, and its results begin
/// with that name.
fn cluster_perf(test: &str, args: &[&str], results: &[&str]) {
    let rows = bench(test, &[&["--transport", "fast+shm"], args].concat());
    for result in results {
        let row = named(&rows, &format!("{test}{result}"), "fast+shm");
        for field in ["p50_us", "p999_us", "ops_per_s"] {
            assert!(row[field].as_f64().is_some_and(|n| n > 0.0), "{field}: {row}");
        }
    }
}

#[test]
fn cluster_perf_with_one_client() {
    let few = ["--local", "--objects", "20"];
    for test in ["readNotFound", "readDist", "readDistRandom", "writeDistRandom"] {
        cluster_perf(test, &few, &[""]);
    }
    for test in ["readVaryingKeyLength", "writeVaryingKeyLength"] {
        cluster_perf(test, &few, &[".1", ".30", ".60000"]);
    }
    let rows = bench("read-dist", &[&few[..], &["--transport", "tcp"]].concat());
    let row = named(&rows, "readDist", "tcp");
    assert!(row["floor_us"].is_number() && row["tcp_us"].is_number(), "{row}");
    let points = row["distribution"].as_array().expect("a distribution");
    assert!(points.last().is_some_and(|point| point[1] == 1.0), "{row}");
}

#[test]
fn cluster_perf_with_several_clients() {
    for test in ["readLoaded", "multiReadThroughput"] {
        cluster_perf(test, &["--local", "--objects", "20", "--clients", "1,2"], &[".1", ".2"]);
    }
    cluster_perf("broadcast", &["--local", "--clients", "2"], &[".2"]);
    for test in ["readDistWorkload", "writeDistWorkload", "workloadThroughput"] {
        let args = ["--local", "--records", "100", "--workload", "f", "--clients", "2"];
        cluster_perf(test, &args, &[".f.2"]);
    }
    for test in ["readInterference", "writeInterference"] {
        let args = ["--local", "--size", "100,10KB", "--replicas", "1"];
        cluster_perf(test, &args, &[".alone", ".together"]);
    }
    // The first write of a pair goes to a table that does not wait for the replica.
    let kinds = [".sync.first", ".sync.second", ".async.first", ".async.second"];
    cluster_perf("writeAsyncSync", &["--local", "--size", "100"], &kinds);
}

#[test]
fn echoes_of_a_distribution_are_offered_at_a_rate() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sizes.txt");
    std::fs::write(&path, "1000\n50 0.5\n1000 0.9\n20000 1\n").expect("it is ours");
    let name = path.to_string_lossy().into_owned();
    let args = ["--message-sizes", &name, "--gbps", "0.2", "--local", "--transport", "fast+shm"];
    let rows = bench("echo_workload", &args);
    let offered = |row: &Value| row["value"].as_f64().is_some_and(|rate| rate > 1000.0);
    assert!(rows.iter().all(offered) && !rows.is_empty(), "{rows:?}");
    assert!(named(&rows, "echo_workload", "fast+shm")["p50_us"].is_number());
    std::fs::write(&path, "no numbers").expect("it is ours");
    let output = sprat().args(["bench", "echo-workload"]).args(args).output().expect("it runs");
    assert!(
        !output.status.success() && errors(&output).contains("sizes.txt"),
        "{}",
        errors(&output)
    );
}

#[test]
fn cluster_perf_with_several_servers() {
    for test in ["readRandom", "readAllToAll"] {
        cluster_perf(test, &["--servers", "2", "--clients", "2"], &[".2"]);
    }
    let size = ["--servers", "2", "--clients", "2", "--size", "10KB"];
    cluster_perf("netBandwidth", &size, &[".2", ".2.max", ".2.min"]);
    for test in ["oneObjectPerMaster", "general", "generalRandom"] {
        cluster_perf(&format!("multiRead_{test}"), &["--servers", "2"], &[".1", ".2"]);
    }
    let clients = ["--servers", "2", "--clients", "1"];
    cluster_perf("multiRead_colocation", &clients, &[".0x1", ".16x1"]);
}

#[test]
fn cluster_perf_with_indexes() {
    let few = ["--local", "--objects", "200"];
    cluster_perf("indexReadDist", &few, &[""]);
    let copied = [&few[..], &["--replicas", "1"]].concat();
    cluster_perf("indexWriteDist", &copied, &[".change", ".keep"]);
    let spread = ["--servers", "2", "--clients", "1,2", "--objects", "200"];
    for outstanding in ["1", "20"] {
        let args = [&spread[..], &["--outstanding", outstanding]].concat();
        cluster_perf("indexScalability", &args, &[".1.1", ".1.2", ".2.1", ".2.2"]);
    }
}

#[test]
fn cluster_perf_with_transactions() {
    let one = bench("transaction_oneMaster", &["--transport", "fast+shm"]);
    for count in [1, 30] {
        let row = named(&one, &format!("transaction.commit.1.{count}"), "fast+shm");
        assert!(row["p50_us"].as_f64().is_some_and(|n| n > 0.0), "{row}");
    }
    let spread = ["--servers", "2", "--objects", "60"];
    let random = [&spread[..], &["--replicas", "1", "--span", "1"]].concat();
    cluster_perf("transactionDistRandom", &random, &["", ".whole"]);
    let several = [&spread[..], &["--clients", "1,3"]].concat();
    for test in ["transactionThroughput", "transactionContention"] {
        cluster_perf(test, &several, &[".1", ".3"]);
    }
}

/// A transfer that is not atomic changes the sum of all accounts, and the test of the transfers
/// fails then. Clients with objects of their own meet no conflict.
#[test]
fn transactions_keep_the_sum_and_count_their_aborts() {
    let args = ["--servers", "2", "--clients", "1,4", "--transport", "fast+shm,tcp"];
    let rows = bench("transaction_collision", &[&args[..], &["--objects", "5"]].concat());
    for transport in ["fast+shm", "tcp"] {
        let sum = named(&rows, "transaction_collision.sum", transport);
        assert_eq!(sum["value"], 2.0 * 5.0 * 100.0, "{sum}");
        for (clients, name) in [(1, "transaction_collision.1"), (4, "transaction_collision.4")] {
            let row = named(&rows, name, transport);
            assert_eq!((&row["clients"], &row["servers"]), (&clients.into(), &2.into()));
            let (aborts, count) = (row["aborts"].as_f64(), row["count"].as_f64());
            let (aborts, count) = (aborts.expect("a count"), count.expect("a count"));
            let share = row["value"].as_f64().expect("a share");
            assert!((share - 100.0 * aborts / (aborts + count)).abs() < 1e-6, "{row}");
            assert!(clients > 1 || aborts == 0.0, "one client meets no conflict: {row}");
        }
    }
    let rows = bench("transactionThroughput", &[&args[..], &["--objects", "60"]].concat());
    assert!(rows.iter().all(|row| row["aborts"] == 0), "{rows:?}");
    for (wrong, way_out) in [
        (&["--span", "3"][..], "more with --servers"),
        (&["--span", "1", "--objects", "2"], "more with --objects"),
    ] {
        let test = ["bench", "transaction-collision", "--servers", "2"];
        let output = sprat().args(test).args(wrong).output().expect("it runs");
        let error = errors(&output);
        assert!(output.status.code() == Some(2) && error.contains(way_out), "{error}");
    }
}

/// The page of `--html` has the table and plots, and loads nothing.
#[test]
fn a_page_has_tables_and_plots() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("page.html");
    let name = path.to_string_lossy().into_owned();
    bench("echo", &["--size", "100,1KB", "--transport", "fast+shm,tcp", "--html", &name]);
    let page = std::fs::read_to_string(&path).expect("a page");
    for part in ["<h2>echo</h2>", "Distribution of times: echo 100 B", "Median time by size"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.contains("<td>echo.throughput</td>") && !page.contains("<script"));
}

#[test]
fn a_restart_has_its_parts() {
    let rows = spawned(vec!["bench", "restart", "--bytes", "1MB", "--rounds", "1", "--json", "-"]);
    let names: Vec<_> = rows.iter().filter_map(|row| row["test"].as_str()).collect();
    for part in ["floor", "stopped", "readable", "rolling.longest", "rolling.whole"] {
        assert!(names.contains(&format!("restart.{part}").as_str()), "{names:?}");
    }
}

#[test]
fn a_migration_has_its_parts() {
    let args = ["bench", "migration", "--bytes", "1MB", "--size", "1000", "--rounds", "1"];
    let rows = spawned([&args[..], &["--json", "-"]].concat());
    let names: Vec<_> = rows.iter().filter_map(|row| row["test"].as_str()).collect();
    for part in ["peak", "time", "bytes", "read.before", "read.during", "read.after"] {
        assert!(names.contains(&format!("migration.{part}").as_str()), "{names:?}");
    }
}
