//! Tests of `sprat stats`, and of the metrics of servers and coordinators.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, Running, errors, run, unique};

#[test]
fn stats_begin_with_what_matters() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    (0..8).for_each(|key| _ = cluster.ok(&["put", "t", &key.to_string(), "value"]));
    let shown = cluster.ok(&["stats"]);
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("2 servers up, 1 table, 2 tablets, "), "{shown}");
    assert!(lines[1].contains("reads/s") && lines[1].contains("replicas"), "{shown}");
    let words: Vec<_> = lines[4].split_whitespace().collect();
    assert_eq!(words[..2], ["all", "8"], "{shown}");
    assert!(shown.contains("\n  writes "), "and then the others: {shown}");
}

#[test]
fn watched_stats_go_on_until_ctrl_c() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    let mut watch = Running::of(cluster.command(&["stats", "--watch", "0.1", "--json"]));
    let shown = watch.wait_for("\"rates\":{");
    let lines: Vec<Value> =
        shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["rates"], Value::Null, "there is nothing before it");
    let last = lines.last().expect("a line");
    assert!(last["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{last}");
    assert!(last["rates"]["writes"].as_f64().is_some(), "{last}");
    assert!(last["counters"]["objects"].as_u64().is_some(), "{last}");
    watch.signal("INT");
    assert!(watch.ended().success(), "Ctrl-C is a good end");

    let mut watch = Running::of(cluster.command(&["stats", "--watch", "0.1"]));
    let shown = watch.wait_for(" of 1");
    assert!(shown.starts_with("time ") && !shown.contains('\x1b'), "{shown}");
    watch.signal("TERM");
    assert!(watch.ended().success());
    cluster.fails(2, &["stats", "--watch", "0"]);
    cluster.fails(2, &["stats", "--watch", "--prometheus"]);
}

/// Sends bytes to the metrics at this port, and returns the answer.
fn ask(port: u16, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(request).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and closes");
    answer
}

/// Returns the text of the metrics at this port.
pub(crate) fn metrics(port: u16) -> String {
    let answer = ask(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", text.len())), "{head}");
    text.to_owned()
}

/// Checks the text by the rules of the exposition format, and returns its samples: their names with
/// labels, and their values.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut kinds = BTreeMap::new();
    let (mut helps, mut samples) = (BTreeSet::new(), BTreeMap::new());
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect("a text");
            assert!(helps.insert(name.to_owned()) && text.ends_with('.'), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a kind");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert!(helps.contains(name), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(kinds.insert(name.to_owned(), kind).is_none(), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a value");
            let name = sample.split('{').next().unwrap_or_default();
            assert!(name.starts_with("sprat_") && is_name(name), "{line}");
            let of = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let is_histogram = of.is_some_and(|of| kinds.get(of) == Some(&"histogram"));
            assert!(kinds.contains_key(name) || is_histogram, "the kind comes first: {line}");
            let value = value.parse::<f64>().expect("a number");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    assert!(text.ends_with('\n') && !samples.is_empty());
    samples
}

/// Lets Prometheus's own `promtool` check the text, if SPRAT_PROMTOOL names the program.
fn check_by_promtool(text: &str) {
    let Some(program) = std::env::var_os("SPRAT_PROMTOOL") else {
        sprat_bench::out::note(
            "skipped: SPRAT_PROMTOOL names no promtool (it is in Debian's package prometheus)",
        );
        return;
    };
    let mut command = Command::new(program);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("promtool starts");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn every_process_serves_its_counters_to_prometheus() {
    let (_, first) = unique(3);
    let cluster = Cluster::up_with(2, &["--metrics", &first.to_string()]);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    (0..8).for_each(|key| _ = cluster.ok(&["put", "t", &key.to_string(), "value"]));
    let texts: Vec<_> = (first..first + 3).map(metrics).collect();
    texts.iter().for_each(|text| check_by_promtool(text));
    let [coordinator, one, two] = [0, 1, 2].map(|index| samples(&texts[index]));
    assert_eq!(coordinator["sprat_coordinator_servers_up"], 2.0);
    assert_eq!(coordinator["sprat_coordinator_tablets"], 2.0);
    assert_eq!(one["sprat_objects"] + two["sprat_objects"], 8.0);
    assert!(one.contains_key("sprat_transport_requests_total{transport=\"fast+shm\"}"));
    assert!(
        one.contains_key("sprat_stalls_total") && coordinator.contains_key("sprat_stalls_total")
    );
    // The same counters as those of the command, whatever they are called there.
    let stats = cluster.ok(&["stats", "--json"]);
    let stats: Value = serde_json::from_str(stats.lines().next().expect("a line")).expect("JSON");
    let own = stats["counters"].as_object().expect("counters").iter();
    for (name, _) in own.filter(|(_, value)| value.is_u64()) {
        let name = match name.strip_suffix("_ns") {
            Some(name) => format!("sprat_{name}_seconds"),
            None => format!("sprat_{name}"),
        };
        let elsewhere = name.starts_with("sprat_refused_") || name.starts_with("sprat_answered");
        let there = one.contains_key(&name) || one.contains_key(&format!("{name}_total"));
        assert!(there || elsewhere, "{name}");
    }
    // A histogram: each bucket has those before, the last one has all.
    let buckets = texts[1].lines().filter(|line| line.starts_with("sprat_answer_seconds_bucket"));
    let counts = buckets.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<u64>());
    let counts: Vec<_> = counts.map(|count| count.expect("a number")).collect();
    assert!(counts.is_sorted() && counts.len() > 1, "{counts:?}");
    let all = one["sprat_answer_seconds_count"];
    assert_eq!(one["sprat_answer_seconds_bucket{le=\"+Inf\"}"], all);
    assert!(all > 0.0 && one["sprat_answer_seconds_sum"] > 0.0);
}

#[test]
fn metrics_have_limits_and_refuse_what_they_do_not_know() {
    let (_, port) = unique(2);
    let (at, metrics_at) =
        (format!("tcp:host=127.0.0.1,port={port}"), format!("127.0.0.1:{}", port + 1));
    let mut coordinator = Running::start(&["coordinator", "-C", &at, "--metrics", &metrics_at]);
    coordinator.wait_for("listening at");
    let ask = |request: &[u8]| ask(port + 1, request);
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(9 << 10));
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "404 Not Found"),
        ("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "405 Method Not Allowed"),
        ("nonsense\r\n\r\n", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
    ] {
        let answer = ask(request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
    }
    let head = ask(b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");

    // Peers that send nothing take all places for a while, and no longer.
    let idle = || TcpStream::connect(("127.0.0.1", port + 1)).expect("it listens");
    let mut idle: Vec<_> = (0..8).map(|_| idle()).collect();
    assert!(ask(b"").starts_with("HTTP/1.1 503 Service Unavailable"), "there is no room");
    for stream in &mut idle {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it closes");
        // The place of the last request may not have been free yet.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    assert!(ask(b"GET /metrics HTTP/1.0\r\n\r\n").contains("sprat_coordinator_leads 1\n"));
    coordinator.signal("TERM");
    assert!(coordinator.ended().success());
}

#[test]
fn metrics_beyond_loopback_are_refused_without_the_option_for_it() {
    let args = ["coordinator", "-C", "tcp:host=127.0.0.1,port=0", "--metrics", "0.0.0.0:0"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("--insecure-network"), "{}", errors(&output));
}
