//! Tests of commands on one object, on tables and on statistics.

use std::thread;

use serde_json::Value;

use crate::cluster::{Cluster, errors, text};

#[test]
fn objects_are_put_read_and_removed() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    cluster.ok(&["put", "t", "dune", "Frank Herbert"]);
    assert_eq!(cluster.ok(&["get", "t", "dune"]), "Frank Herbert", "no byte more than was put");
    let json: Value =
        serde_json::from_str(&cluster.ok(&["get", "t", "dune", "--json"])).expect("JSON");
    assert_eq!(
        (json["key"].as_str(), json["value"].as_str()),
        (Some("dune"), Some("Frank Herbert"))
    );
    cluster.ok(&["del", "t", "dune"]);
    for args in [["get", "t", "dune"], ["del", "t", "dune"]] {
        let error = cluster.fails(3, &args);
        assert!(error.contains("dune: there is no such object"), "{error}");
    }
    // Any bytes, by standard input and output.
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    assert!(cluster.feed(&["put", "t", "bytes", "-"], &bytes).status.success());
    assert_eq!(cluster.run(&["get", "t", "bytes"]).stdout, bytes);
    let json: Value =
        serde_json::from_str(&cluster.ok(&["get", "t", "bytes", "--json"])).expect("JSON");
    assert!(json["value64"].is_string() && json.get("value").is_none());
    // The empty value is a value.
    cluster.ok(&["put", "t", "empty", ""]);
    assert_eq!(cluster.ok(&["get", "t", "empty"]), "");
    cluster.end();
}

#[test]
fn conditions_are_kept() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    let version = |text: &str| {
        serde_json::from_str::<Value>(text).expect("JSON")["version"].as_u64().expect("a version")
    };
    let error = cluster.fails(3, &["put", "t", "k", "v", "--if-exists"]);
    assert!(error.contains("no such object"), "{error}");
    let first = version(&cluster.ok(&["put", "t", "k", "1", "--if-absent", "--json"]));
    let error = cluster.fails(4, &["put", "t", "k", "2", "--if-absent"]);
    assert!(error.contains(&first.to_string()), "the version that it has: {error}");
    let second =
        version(&cluster.ok(&["put", "t", "k", "2", "--if-version", &first.to_string(), "--json"]));
    assert!(second > first);
    let old = first.to_string();
    for args in [
        vec!["put", "t", "k", "3", "--if-version", &old],
        vec!["del", "t", "k", "--if-version", &old],
        vec!["get", "t", "k", "--if-version", &old],
    ] {
        let error = cluster.fails(4, &args);
        assert!(error.contains("next:"), "{error}");
    }
    assert_eq!(cluster.ok(&["get", "t", "k", "--if-version", &second.to_string()]), "2");
    cluster.ok(&["del", "t", "k", "--if-version", &second.to_string()]);
    // Versions continue, also across a removal.
    let third = version(&cluster.ok(&["put", "t", "k", "4", "--json"]));
    assert!(third > second, "{third} after {second}");
    cluster.fails(2, &["put", "t", "k", "5", "--if-absent", "--if-exists"]);
}

/// `swap` prints the value that it has replaced, and with `--json` the versions too.
#[test]
fn swaps_print_what_was_there() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    assert_eq!(cluster.ok(&["swap", "t", "k", "one"]), "");
    assert_eq!(cluster.ok(&["swap", "t", "k", "two"]), "one");
    let json = cluster.ok(&["swap", "t", "k", "three", "--json", "--if-exists"]);
    assert_eq!(json, "{\"old_value\":\"two\",\"old_version\":2,\"version\":3}\n");
    cluster.fails(4, &["swap", "t", "k", "x", "--if-version", "2"]);
    assert_eq!(cluster.ok(&["swap", "t", "k", "gone", "--expires", "0"]), "three");
    assert_eq!(cluster.ok(&["swap", "t", "k", "y", "--json"]), "{\"version\":5}\n");
}

/// `put --expires` and `touch`: an object is there until its end, and a touch moves the end.
#[test]
fn objects_expire_and_are_touched() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    assert_eq!(cluster.ok(&["put", "t", "k", "v", "--expires", "0"]), "");
    cluster.fails(3, &["get", "t", "k"]);
    cluster.fails(3, &["touch", "t", "k", "10"]);
    cluster.ok(&["put", "t", "k", "v", "--expires", "3600"]);
    let json = cluster.ok(&["touch", "t", "k", "never", "--json"]);
    assert!(json.starts_with("{\"version\":"), "{json}");
    assert_eq!(cluster.ok(&["get", "t", "k"]), "v");
    assert_eq!(cluster.ok(&["get", "t", "k", "--expires"]), "never\n");
    cluster.ok(&["touch", "t", "k", "3600"]);
    let rest: f64 = cluster.ok(&["get", "t", "k", "--expires"]).trim().parse().unwrap();
    assert!(rest > 3000.0 && rest <= 3600.0, "{rest}");
    let json = cluster.ok(&["get", "t", "k", "--expires", "--json"]);
    assert!(json.starts_with("{\"expires\":3") && json.contains("\"value\":\"v\""), "{json}");
    cluster.ok(&["touch", "t", "k", "0", "--if-exists"]);
    cluster.fails(3, &["get", "t", "k"]);
    let error = cluster.fails(2, &["put", "t", "k", "v", "--expires", "soon"]);
    assert!(error.contains("expected seconds"), "{error}");
    let error = cluster.fails(2, &["touch", "t", "k", "-1"]);
    assert!(error.contains("expected seconds"), "{error}");
    let error = cluster.fails(1, &["put", "t", "k", "v", "--expires", "1e15"]);
    assert!(error.contains("does not expire"), "{error}");
}

#[test]
fn appends_add_bytes_and_print_the_length() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    assert_eq!(cluster.ok(&["append", "t", "k", "one "]), "4\n");
    assert_eq!(cluster.ok(&["append", "t", "k", "-two", "--if-exists"]), "8\n");
    assert_eq!(cluster.ok(&["get", "t", "k"]), "one -two");
    let json = cluster.ok(&["append", "t", "k", "", "--json"]);
    assert!(json.starts_with("{\"length\":8,\"version\":"), "{json}");
    let error = cluster.fails(4, &["append", "t", "k", "x", "--if-absent"]);
    assert!(error.contains("the object exists"), "{error}");
}

#[test]
fn increments_add_up_from_many_processes() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    assert_eq!(cluster.ok(&["incr", "t", "n"]), "1\n");
    assert_eq!(cluster.ok(&["incr", "t", "n", "41"]), "42\n");
    assert_eq!(cluster.ok(&["incr", "t", "n", "-50"]), "-8\n");
    assert_eq!(cluster.ok(&["incr", "t", "x", "--float", "0.5"]), "0.5\n");
    assert_eq!(cluster.ok(&["incr", "t", "x", "--float", "-2.25"]), "-1.75\n");
    assert_eq!(
        (&*cluster.ok(&["get", "t", "n"]), &*cluster.ok(&["get", "t", "x"])),
        ("-8", "-1.75")
    );
    cluster.ok(&["put", "t", "n", "42"]);
    assert_eq!(cluster.ok(&["incr", "t", "n", "-5"]), "37\n");
    assert_eq!(cluster.ok(&["incr", "t", "x", "--float=1.75"]), "0\n");
    for amount in ["-inf", "inf", "nan", "-nan", "1e999"] {
        let error = cluster.fails(2, &["incr", "t", "x", "--float", amount]);
        assert!(error.contains("must be finite"), "{error}");
    }
    cluster.ok(&["put", "t", "large", "9223372036854775807"]);
    let error = cluster.fails(1, &["incr", "t", "large"]);
    assert!(
        error.contains("too large") && cluster.ok(&["get", "t", "large"]) == "9223372036854775807",
        "{error}"
    );
    cluster.fails(4, &["incr", "t", "n", "--if-absent"]);
    cluster.fails(3, &["incr", "t", "other", "--if-exists"]);
    cluster.ok(&["put", "t", "text", "no number"]);
    let error = cluster.fails(1, &["incr", "t", "text"]);
    assert!(error.contains("not a number"), "{error}");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| drop(cluster.ok(&["incr", "t", "shared"]))));
        }
    });
    assert_eq!(cluster.ok(&["incr", "t", "shared", "0"]), "20\n");
}

#[test]
fn tables_are_created_listed_and_dropped() {
    let cluster = Cluster::up(3);
    assert!(cluster.ok(&["table", "list"]).contains("no tables yet"));
    cluster.ok(&["table", "create", "wide", "--span", "3"]);
    cluster.ok(&["table", "create", "wide", "--span", "3"]);
    cluster.ok(&["table", "create", "narrow"]);
    let list = cluster.ok(&["table", "list"]);
    assert!(
        list.contains("wide") && list.contains("narrow") && list.contains("complete"),
        "{list}"
    );
    let json = cluster.ok(&["table", "list", "--json"]);
    let tables: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let tablets = |name: &str| {
        tables.iter().find(|t| t["name"] == name).expect("is listed")["tablets"].as_u64()
    };
    assert_eq!((tables.len(), tablets("wide"), tablets("narrow")), (2, Some(3), Some(1)));
    cluster.ok(&["put", "wide", "k", "v"]);
    cluster.ok(&["table", "drop", "wide"]);
    for args in
        [vec!["get", "wide", "k"], vec!["table", "drop", "wide"], vec!["put", "wide", "k", "v"]]
    {
        let error = cluster.fails(1, &args);
        assert!(error.contains("no such table") && error.contains("sprat table"), "{error}");
    }
    let long = "x".repeat(300);
    for name in ["", &long] {
        let error = cluster.fails(1, &["table", "create", name]);
        assert!(error.contains("a table's name"), "{error}");
    }
}

#[test]
fn statistics_name_every_server() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    cluster.ok(&["put", "t", "k", "v"]);
    let shown = cluster.ok(&["stats"]);
    for server in 1..=2 {
        assert!(shown.contains(&format!("fast+shm:name={}.{server}", cluster.name)), "{shown}");
    }
    let all = cluster.ok(&["stats", "--all"]);
    let counters = |text: &str, which: fn(&[&str]) -> bool| {
        let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.len() == 3 && which(&row[1..])).count()
    };
    let zero: fn(&[&str]) -> bool = |counts| counts == ["0", "0"];
    assert_eq!(counters(&shown, zero), 0, "{shown}");
    assert!(counters(&all, zero) > 50 && counters(&shown, |_| true) > 5, "{shown}{all}");
    let json = cluster.ok(&["stats", "--json"]);
    let servers: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(servers.len(), 2);
    for server in &servers {
        let counters = &server["counters"];
        assert!(counters["reads"].is_u64() && server["locators"].is_string(), "{server}");
        // Each transport has counters. This request used shared memory or TCP.
        let asked = |protocol: &str| counters[protocol]["requests"].as_u64().expect("a number");
        assert!(asked("fast+shm") + asked("tcp") > 0, "{server}");
        assert_eq!((asked("rdma"), counters["rdma"]["bad_crc"].as_u64()), (0, Some(0)), "{server}");
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    let key = "k".repeat((64 << 10) + 1);
    for args in [vec!["put", "t", &key, "v"], vec!["get", "t", &key], vec!["incr", "t", &key]] {
        let error = cluster.fails(1, &args);
        assert!(
            error.contains("k… (65537 bytes): the key has 65537 bytes, the limit")
                && error.len() < 200,
            "{}",
            &error[error.len().saturating_sub(200)..]
        );
    }
    let key = "k".repeat(64 << 10);
    cluster.ok(&["put", "t", &key, "v"]);
    assert_eq!(cluster.ok(&["get", "t", &key]), "v");
    let output = cluster.feed(&["put", "t", "k", "-"], &vec![b'v'; (1 << 20) + 1]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("1048576"), "{}", errors(&output));
    let largest = vec![b'v'; 1 << 20];
    assert!(cluster.feed(&["put", "t", "k", "-"], &largest).status.success());
    assert_eq!(text(&cluster.run(&["get", "t", "k"])).len(), 1 << 20);
}

#[test]
fn names_of_other_people_do_nothing_to_a_terminal() {
    let cluster = Cluster::up(1);
    let (hostile, harmless) = ("a\x1b]0;x\x07\nb\u{9b}2J", r"a\u{1b}]0;x\u{7}\nb\u{9b}2J");
    cluster.ok(&["table", "create", hostile]);
    let list = cluster.ok(&["table", "list"]);
    assert!(list.contains(harmless) && list.lines().count() == 2, "{list:?}");
    let error = cluster.fails(3, &["get", hostile, hostile]);
    assert!(error.contains(harmless) && error.lines().count() == 1, "{error:?}");
    let error = cluster.fails(2, &["get", "t", "k", hostile]);
    assert!(!error.contains(['\x1b', '\u{9b}', '\x07']), "{error:?}");
    let json = cluster.ok(&["table", "list", "--json"]);
    let table: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(table["name"], hostile);
    cluster.ok(&["put", hostile, "k", hostile]);
    assert_eq!(cluster.ok(&["get", hostile, "k"]), hostile, "a value is as it is");
    let file = cluster.path("x.jsonl").to_string_lossy().into_owned();
    let said = cluster.ok(&["export", &file, "--table", hostile]);
    assert_eq!(said, format!("1 records of {harmless} exported to {file}\n"));
    assert_eq!(
        cluster.ok(&["import", &file, "--table", hostile]),
        format!("1 records written to {harmless}\n")
    );
}
