//! Tests of servers that end by a signal, and of the log that says so.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sprat_bench::process::wait_until;

use crate::cluster::{Cluster, PATIENCE, Running, lives, signal, unique};

/// Servers that end one after the other under load lose nothing that they have acknowledged, also
/// what they acknowledge before replicas have it.
#[test]
fn servers_that_end_lose_no_acknowledged_change() {
    let cluster = Cluster::up_with(3, &["--replicas", "1", "--durability", "async"]);
    cluster.ok(&["table", "create", "t"]);
    let (stop, ids) = (AtomicBool::new(false), &cluster.ids[1..]);
    let acknowledged = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut count = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                cluster.ok(&["incr", "t", "n", "1"]);
                count += 1;
                assert_eq!(cluster.ok(&["get", "t", "n"]).trim(), count.to_string());
            }
            count
        });
        for &id in ids {
            signal(id, "TERM");
            assert!(wait_until(PATIENCE, || !lives(id)), "it ends by itself");
            // `sprat up` starts it again. The next one ends when the objects have replicas.
            let whole = || {
                let status = cluster.run(&["status", "--json"]);
                let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
                status["serves"] == true && status["servers"].as_array().map(Vec::len) == Some(3)
            };
            assert!(wait_until(PATIENCE, whole), "{}", cluster.ok(&["stats"]));
        }
        stop.store(true, Ordering::Relaxed);
        load.join().expect("the load goes on")
    });
    assert!(acknowledged > 0);
    assert_eq!(cluster.ok(&["get", "t", "n"]).trim(), acknowledged.to_string());
    cluster.end();
}

#[test]
fn a_log_has_the_time_the_level_and_the_process_of_each_message() {
    let (_, port) = unique(2);
    let at = format!("tcp:host=127.0.0.1,port={port}");
    let metrics = format!("127.0.0.1:{}", port + 1);
    let start = |format: &str| {
        let args = ["coordinator", "-C", &at, "--log-format", format, "--metrics", &metrics];
        let mut coordinator = Running::start(&args);
        coordinator.wait_for("listening at");
        let refused = crate::cluster::run(&["coordinator", "-C", &at, "--log-format", format]);
        coordinator.signal("INT");
        assert!(coordinator.ended().success());
        let mut log = String::new();
        let stderr = coordinator.0.stderr.as_mut().expect("kept");
        std::io::Read::read_to_string(stderr, &mut log).expect("text");
        (log, String::from_utf8_lossy(&refused.stderr).into_owned(), coordinator.0.id())
    };
    let (log, refused, pid) = start("json");
    let lines = log.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.filter(|line: &Value| line["level"] == "info").collect();
    assert_eq!(lines.len(), 2, "{log}");
    for line in &lines {
        assert_eq!((&line["process"], &line["pid"]), (&"coordinator".into(), &pid.into()));
        assert_eq!(line["at"], at.as_str());
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    }
    assert_eq!(lines[0]["message"], format!("metrics at http://{metrics}/metrics"));
    let refused: Value = serde_json::from_str(refused.trim()).expect("one line");
    assert_eq!(refused["level"], "error");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("; next: ")));
    let (log, refused, pid) = start("text");
    let head = format!("Z info coordinator {pid} {at}: metrics at http://{metrics}/metrics");
    assert!(log.lines().any(|line| line.ends_with(&head)), "{log}");
    assert!(refused.contains("Z error coordinator ") && refused.lines().count() == 1, "{refused}");
}
