//! Tests of `sprat scan`, and of the place of the table among the arguments of import and export.

use serde_json::Value;

use crate::cluster::{Cluster, errors};

#[test]
fn a_scan_lists_every_object_once() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    let lines: String =
        (0..500).map(|i| format!("{{\"key\":\"key {i}\",\"value\":\"{i}\"}}\n")).collect();
    assert!(
        cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines.as_bytes()).status.success()
    );
    let all = cluster.ok(&["scan", "t"]);
    let mut found: Vec<&str> = all.lines().collect();
    found.sort_unstable();
    let mut expected: Vec<String> = (0..500).map(|i| format!("key {i}\t{i}")).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
    let keys = cluster.ok(&["scan", "t", "--keys", "--prefix", "key 49"]);
    assert_eq!(keys.lines().count(), 11, "key 49, and key 490 to key 499");
    assert_eq!(cluster.ok(&["scan", "t", "--limit", "7"]).lines().count(), 7);
    assert_eq!(cluster.ok(&["scan", "t", "--limit", "0"]), "");
    let error = cluster.fails(1, &["scan", "nowhere"]);
    assert!(error.contains("no such table") && error.contains("next:"), "{error}");
}

#[test]
fn control_characters_are_escaped_and_json_has_the_bytes() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    assert!(cluster.feed(&["put", "t", "k\x1b[2J", "-"], b"a\nb\xff").status.success());
    assert_eq!(cluster.ok(&["scan", "t"]), "k\\u{1b}[2J\ta\\nb\u{fffd}\n");
    let object: Value = serde_json::from_str(&cluster.ok(&["scan", "t", "--json"])).expect("JSON");
    assert_eq!(object["key"], "k\u{1b}[2J");
    assert_eq!(object["value64"], "YQpi/w==");
    assert!(object["version"].is_u64());
}

#[test]
fn the_table_is_the_first_argument() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["put", "t", "k", "v"]);
    let file = cluster.path("out.jsonl").to_string_lossy().into_owned();
    assert!(cluster.ok(&["export", "t", &file]).starts_with("1 records of t exported to "));
    let said = cluster.ok(&["import", "u", &file, "--create"]);
    assert_eq!(said, "1 records written to u\n");
    // The spelling of earlier versions.
    assert_eq!(cluster.ok(&["import", &file, "--table", "u"]), "1 records written to u\n");
    cluster.fails(2, &["import", &file]);
    cluster.fails(2, &["import", "u", &file, "--table", "u"]);
    assert_eq!(cluster.ok(&["get", "u", "k"]), "v");
}

#[test]
fn a_timeout_is_kept() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = format!("tcp:host=127.0.0.1,port={}", silent.local_addr().expect("bound").port());
    let output = crate::cluster::run(&["get", "-C", &at, "--timeout", "0.1", "t", "k"]);
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&at) && error.contains("next:"), "{error}");
    let output = crate::cluster::run(&["get", "--timeout", "0", "t", "k"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
}
