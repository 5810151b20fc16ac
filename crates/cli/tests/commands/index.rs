//! Tests of `sprat index` and `sprat find`.

use serde_json::Value;

use crate::cluster::Cluster;

#[test]
fn objects_are_found_by_an_index() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "people", "--span", "2"]);
    cluster.ok(&["put", "people", "17", "Ada,Paris"]);
    cluster.ok(&["index", "create", "people", "by-city", "--field", "2"]);
    // A repetition changes nothing.
    cluster.ok(&["index", "create", "people", "by-city", "--field", "2"]);
    cluster.ok(&["index", "create", "people", "ordered", "--own-key"]);
    cluster.ok(&["put", "people", "23", "Bob,Oslo"]);
    cluster.ok(&["put", "people", "4", "Cleo,Paris"]);
    cluster.ok(&["put", "people", "5", "Dora"]);
    assert_eq!(
        cluster.ok(&["find", "people", "by-city"]),
        "Oslo\t23\tBob,Oslo\nParis\t17\tAda,Paris\nParis\t4\tCleo,Paris\n"
    );
    assert_eq!(cluster.ok(&["find", "people", "by-city", "Paris", "--keys"]), "17\n4\n");
    assert_eq!(cluster.ok(&["find", "people", "by-city", "--prefix", "O", "--keys"]), "23\n");
    let ordered = ["find", "people", "ordered", "--from", "2", "--below", "5", "--keys"];
    assert_eq!(cluster.ok(&ordered), "23\n4\n");
    assert_eq!(cluster.ok(&["find", "people", "ordered", "--limit", "1", "--keys"]), "17\n");
    assert_eq!(cluster.ok(&["find", "people", "ordered", "--reverse", "--keys"]), "5\n4\n23\n17\n");
    let last =
        ["find", "people", "by-city", "--reverse", "--prefix", "P", "--limit", "1", "--keys"];
    assert_eq!(cluster.ok(&last), "4\n");
    assert_eq!(cluster.ok(&["find", "people", "by-city", "Rome"]), "");
    let json = cluster.ok(&["find", "people", "by-city", "Oslo", "--json"]);
    let found: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&found["index_key"], &found["key"]), (&"Oslo".into(), &"23".into()));
    // A change of the key moves the object, and a removal takes it out.
    cluster.ok(&["put", "people", "23", "Bob,Paris", "--if-exists"]);
    cluster.fails(4, &["put", "people", "23", "Bob,Rome", "--if-absent"]);
    cluster.ok(&["del", "people", "17"]);
    cluster.fails(3, &["del", "people", "17"]);
    assert_eq!(cluster.ok(&["find", "people", "by-city", "--keys"]), "23\n4\n");
    let list = cluster.ok(&["index", "list", "people"]);
    assert!(list.contains("by-city") && list.contains("field 2 by ','"), "{list}");
    let lines = cluster.ok(&["index", "list", "people", "--json"]);
    let second: Value = serde_json::from_str(lines.lines().nth(1).unwrap()).expect("JSON");
    assert_eq!((&second["name"], &second["key"]), (&"ordered".into(), &"own".into()));
    cluster.ok(&["index", "drop", "people", "by-city"]);
    let error = cluster.fails(1, &["find", "people", "by-city"]);
    assert!(
        error.contains("no index \"by-city\"") && error.contains("sprat index list"),
        "{error}"
    );
    // The table goes with its indexes.
    cluster.ok(&["table", "drop", "people"]);
    assert!(cluster.ok(&["table", "list"]).starts_with("There are no tables"));
    cluster.end();
}

#[test]
fn a_transaction_keeps_an_index() {
    let cluster = Cluster::up(2);
    for table in ["people", "plain"] {
        cluster.ok(&["table", "create", table]);
    }
    cluster.ok(&["index", "create", "people", "by-city", "--field", "2"]);
    cluster.ok(&["put", "people", "17", "Ada,Paris"]);
    let lines = b"get people 17\nput people 17 Ada,Oslo\nput people 23 Bob,Oslo\nput plain k v\n";
    let output = cluster.feed(&["transact"], lines);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "17\tAda,Paris\n");
    assert_eq!(cluster.ok(&["find", "people", "by-city", "Oslo", "--keys"]), "17\n23\n");
    assert_eq!(cluster.ok(&["find", "people", "by-city", "Paris", "--keys"]), "");
    // A check that does not hold changes neither objects nor entries.
    let lines = b"remove people 17\nput people 42 Cleo,Oslo\ncheck people 23 0\n";
    let output = cluster.feed(&["transact", "--retry"], lines);
    assert_eq!(output.status.code(), Some(4));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("line 3: people 23"), "{error}");
    let output = cluster.feed(&["transact"], &lines[..lines.len() - 18]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(cluster.ok(&["find", "people", "by-city", "--keys"]), "23\n42\n");
    let long = format!("put people 1 a,{}\n", "x".repeat(1025));
    let output = cluster.feed(&["transact"], long.as_bytes());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("the index key has 1025 bytes"), "{error}");
    cluster.end();
}

#[test]
fn an_import_keeps_an_index() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "people", "--span", "2"]);
    cluster.ok(&["index", "create", "people", "by-city", "--field", "2"]);
    cluster.ok(&["put", "people", "17", "Ada,Paris"]);
    let rows = b"key,value,expires_ms\n17,\"Ada,Oslo\",\n4,\"Bob,Oslo\",\n5,\"Cleo,Rome\",1\n";
    let import = ["import", "people", "-", "--format", "csv"];
    let output = cluster.feed(&import, rows);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3 records written to people\n");
    // The third record had expired.
    assert_eq!(
        cluster.ok(&["find", "people", "by-city"]),
        "Oslo\t17\tAda,Oslo\nOslo\t4\tBob,Oslo\n"
    );
    let long = format!("key,value\n1,\"a,b\"\n2,\"a,{}\"\n3,\"a,b\"\n", "x".repeat(1025));
    let output = cluster.feed(&import, long.as_bytes());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("line 3: the record: the index key has 1025 bytes"), "{error}");
    assert_eq!(cluster.ok(&["find", "people", "by-city", "--keys"]), "17\n4\n1\n");
    cluster.end();
}

/// Each change of an object keeps the index, and gives what it gives in a table without indexes.
#[test]
fn swaps_appends_and_increments_keep_an_index() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "plain"]);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["index", "create", "t", "i", "--bytes", "0:3"]);
    let steps: [(i32, &[&str]); 21] = [
        (0, &["append", "", "k", "ab"]),
        (0, &["append", "", "k", "c"]),
        (4, &["append", "", "k", "c", "--if-absent"]),
        (0, &["get", "", "k"]),
        (0, &["swap", "", "k", "41", "--if-exists"]),
        (4, &["swap", "", "k", "x", "--if-version", "1"]),
        (0, &["incr", "", "k"]),
        (0, &["incr", "", "k"]),
        (0, &["incr", "", "k", "--float", "0.5"]),
        (1, &["incr", "", "k", "9223372036854775807"]),
        (3, &["incr", "", "none", "--if-exists"]),
        (0, &["incr", "", "new", "-7"]),
        (1, &["incr", "", "new", "-9223372036854775807"]),
        (0, &["put", "", "soon", "1", "--expires", "1000"]),
        (0, &["incr", "", "soon"]),
        (0, &["append", "", "soon", "23"]),
        (0, &["get", "", "soon"]),
        (0, &["swap", "", "new", "ghi", "--expires", "2000"]),
        (3, &["swap", "", "none", "x", "--if-exists"]),
        (1, &["incr", "", "new"]),
        (0, &["get", "", "new"]),
    ];
    for (status, step) in steps {
        let [plain, with] = ["plain", "t"].map(|table| {
            let step: Vec<_> =
                step.iter().map(|it| if it.is_empty() { table } else { it }).collect();
            if status == 0 {
                return cluster.ok(&step);
            }
            // Errors name versions, which differ.
            cluster.fails(status, &step).chars().filter(|it| !it.is_ascii_digit()).collect()
        });
        assert_eq!(plain, with, "{step:?}");
    }
    let rest: f64 = cluster.ok(&["get", "t", "soon", "--expires"]).trim().parse().unwrap();
    assert!(900.0 < rest && rest <= 1000.0, "{rest}");
    assert_eq!(cluster.ok(&["get", "t", "k", "--expires"]), "never\n");
    let swapped = cluster.ok(&["swap", "t", "k", "44.5", "--json"]);
    assert!(swapped.contains("\"old_value\":\"43.5\""), "{swapped}");
    let version: u64 = swapped.rsplit_once(":").unwrap().1.trim_end_matches("}\n").parse().unwrap();
    let versions = [version.to_string(), (version + 1).to_string()];
    let sum =
        cluster.ok(&["incr", "t", "k", "--float", "1", "--if-version", &versions[0], "--json"]);
    assert_eq!(sum, format!("{{\"value\":45.5,\"version\":{}}}\n", versions[1]));
    cluster.fails(4, &["append", "t", "k", "x", "--if-version", &versions[0]]);
    let length = cluster.ok(&["append", "t", "k", "5", "--if-version", &versions[1], "--json"]);
    assert_eq!(length, format!("{{\"length\":5,\"version\":{}}}\n", version + 2));
    for (found, key) in [("45.", "k"), ("223", "soon"), ("ghi", "new"), ("abc", ""), ("43.", "")] {
        let keys = cluster.ok(&["find", "t", "i", found, "--keys"]);
        assert_eq!(keys.trim(), key, "{found}");
    }
    cluster.end();
}

#[test]
fn commands_that_would_break_an_index_say_so() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["index", "create", "t", "i", "--bytes", "0:3"]);
    cluster.ok(&["put", "t", "k", "abcdef"]);
    cluster.ok(&["touch", "t", "k", "never"]);
    assert_eq!(cluster.ok(&["find", "t", "i", "abc", "--keys"]), "k\n");
    let error = cluster.fails(1, &["index", "create", "t", "i", "--field", "1"]);
    assert!(error.contains("another index \"i\""), "{error}");
    let error = cluster.fails(1, &["index", "drop", "t", "j"]);
    assert!(error.contains("no index \"j\""), "{error}");
    for wrong in [
        &["index", "create", "t", "x"][..],
        &["index", "create", "t", "x", "--field", "0"],
        &["index", "create", "t", "x", "--bytes", "3"],
        &["index", "create", "t", "x", "--own-key", "--field", "1"],
        &["find", "t", "i", "abc", "--prefix", "a"],
    ] {
        cluster.fails(2, wrong);
    }
    let long = "x".repeat(65);
    let error = cluster.fails(1, &["index", "create", "t", &long, "--own-key"]);
    assert!(error.contains("no name for an index"), "{error}");
    cluster.end();
}
