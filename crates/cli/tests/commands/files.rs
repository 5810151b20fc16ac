//! Tests of import and export: round trips in both formats, malformed lines, standard input and
//! output.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, errors, signal, text};

/// Returns JSON Lines with many small records, some with unusual bytes.
fn lines() -> String {
    let mut text = String::new();
    for i in 0..2000 {
        text.push_str(&format!(
            "{{\"key\":\"key {i}\",\"value\":\"value, {i} \\\"quoted\\\"\\nü\"}}\n"
        ));
    }
    text.push_str(
        "{\"key64\":\"/wA=\",\"value64\":\"AAECA/8=\"}\n{\"key\":\"empty\",\"value\":\"\"}\n",
    );
    text
}

/// Returns the records of a file of JSON Lines, in order of their keys.
fn records(text: &str) -> BTreeMap<String, String> {
    let field = |line: &Value, name: &str| {
        let found = line.get(name).or_else(|| line.get(format!("{name}64"))).expect("is there");
        format!("{}{}", line.get(name).is_some(), found.as_str().expect("text"))
    };
    let parsed = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    parsed.map(|line: Value| (field(&line, "key"), field(&line, "value"))).collect()
}

#[test]
fn a_file_comes_back_as_it_was_in_either_format() {
    let cluster = Cluster::up(2);
    let path = |name: &str| cluster.path(name).to_string_lossy().into_owned();
    let original = lines();
    fs::write(path("in.jsonl"), &original).expect("writes");
    let said = cluster.ok(&["import", "a", &path("in.jsonl"), "--create", "--span", "2"]);
    assert_eq!(said, "2002 records written to a\n");
    cluster.ok(&["export", "a", &path("out.csv")]);
    let said = cluster.ok(&["import", "b", &path("out.csv"), "--create"]);
    assert_eq!(said, "2002 records written to b\n");
    cluster.ok(&["export", "b", &path("out.jsonl")]);
    let back = fs::read_to_string(path("out.jsonl")).expect("reads");
    assert_eq!(back.lines().count(), 2002, "each object once");
    assert_eq!(records(&back), records(&original));
    let left = fs::read_dir(cluster.path("")).expect("lists").count();
    assert_eq!(left, 3, "no temporary file is left");
}

/// An object that expires has the end of its lifetime in an export, in either format, and keeps it
/// in an import. One whose end has passed is gone, as the later record of its key says.
#[test]
fn lifetimes_survive_an_export_and_an_import() {
    let cluster = Cluster::up(1);
    let path = |name: &str| cluster.path(name).to_string_lossy().into_owned();
    cluster.ok(&["table", "create", "a"]);
    cluster.ok(&["put", "a", "e", "v", "--expires", "3600"]);
    cluster.ok(&["put", "a", "f", "w"]);
    cluster.ok(&["export", "a", &path("a.csv")]);
    cluster.ok(&["import", "b", &path("a.csv"), "--create"]);
    cluster.ok(&["export", "b", &path("b.jsonl")]);
    let mut text = fs::read_to_string(path("b.jsonl")).expect("reads");
    assert_eq!(text.matches("expires_ms").count(), 1, "{text}");
    text += "{\"key\":\"f\",\"value\":\"x\",\"expires_ms\":1000}\n";
    fs::write(path("c.jsonl"), text).expect("writes");
    cluster.ok(&["import", "c", &path("c.jsonl"), "--create"]);
    let rest: f64 = cluster.ok(&["get", "c", "e", "--expires"]).trim().parse().expect("seconds");
    assert!(rest > 3000.0 && rest <= 3600.0, "{rest}");
    cluster.fails(3, &["get", "c", "f"]);
}

#[test]
fn the_standard_streams_are_files_too() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    let output = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines().as_bytes());
    assert!(output.status.success(), "{}", errors(&output));
    let output = cluster.run(&["export", "t", "-", "--format", "jsonl"]);
    assert_eq!(
        records(&text(&output)),
        records(&lines()),
        "nothing but records on standard output"
    );
    let error = cluster.fails(2, &["import", "t", "-"]);
    assert!(error.contains("--format"), "{error}");
}

#[test]
fn a_malformed_line_is_named() {
    let cluster = Cluster::up(1);
    let path = |name: &str| cluster.path(name).to_string_lossy().into_owned();
    cluster.ok(&["table", "create", "t"]);
    let bad =
        "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\"}\n{\"key\":\"c\",\"value\":\"3\"}\n{\"key";
    fs::write(path("bad.jsonl"), bad).expect("writes");
    let error = cluster.fails(1, &["import", "t", &path("bad.jsonl")]);
    assert!(
        error.contains("bad.jsonl: line 2: neither value nor value64")
            && error.contains("--skip-bad"),
        "{error}"
    );
    assert_eq!(cluster.ok(&["get", "t", "a"]), "1", "what came before is written");
    cluster.fails(3, &["get", "t", "c"]);
    let output = cluster.run(&["import", "t", &path("bad.jsonl"), "--skip-bad"]);
    assert!(output.status.success());
    assert_eq!(text(&output), "2 records written to t, 2 malformed lines skipped\n");
    let said = errors(&output);
    assert!(said.contains("line 2") && said.contains("line 4"), "{said}");
    assert_eq!(cluster.ok(&["get", "t", "c"]), "3");

    fs::write(path("bad.csv"), "key,value\nx,1\ny\nz,3\n").expect("writes");
    let error = cluster.fails(1, &["import", "t", &path("bad.csv")]);
    assert!(error.contains("line 3: 1 fields, but the header has 2"), "{error}");
    let key = format!("{{\"key\":\"{}\",\"value\":\"\"}}\n", "k".repeat(70_000));
    fs::write(path("long.jsonl"), key).expect("writes");
    let error = cluster.fails(1, &["import", "t", &path("long.jsonl")]);
    assert!(error.contains("line 1: the key has 70000 bytes"), "{error}");
}

#[test]
fn files_and_tables_that_are_not_there_are_named() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    let error = cluster.fails(1, &["import", "new", "/nonexistent/x.jsonl", "--create"]);
    assert!(error.contains("/nonexistent/x.jsonl"), "{error}");
    assert!(
        !cluster.ok(&["table", "list"]).contains("new"),
        "nothing is created for a file that is not there"
    );
    let error = cluster.fails(1, &["export", "t", "/nonexistent/x.jsonl"]);
    assert!(error.contains("/nonexistent/x.jsonl"), "{error}");
    let file = cluster.path("x.jsonl").to_string_lossy().into_owned();
    fs::write(&file, "").expect("writes");
    for command in ["import", "export"] {
        let error = cluster.fails(1, &[command, &file, "--table", "none"]);
        assert!(error.contains("none: there is no such table"), "{error}");
    }
    let folder = cluster.path("").to_string_lossy().into_owned();
    let error = cluster.fails(1, &["import", "t", &folder, "--format", "csv"]);
    assert!(error.contains("is a directory"), "{error}");
}

#[test]
fn ctrl_c_in_the_middle_of_an_export_leaves_the_old_file() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["put", "t", "k", "v"]);
    let file = cluster.path("x.jsonl");
    fs::write(&file, "old").expect("writes");
    let files = || fs::read_dir(cluster.path("")).expect("lists").count();
    // The server is stopped, so that the export waits for its first objects.
    signal(cluster.ids[1], "STOP");
    let mut export =
        cluster.command(&["export", "t", &file.to_string_lossy()]).spawn().expect("starts");
    let begin = Instant::now();
    while files() == 1 {
        assert!(begin.elapsed() < PATIENCE, "no temporary file");
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(export.id(), "INT");
    let ended = export.wait().expect("is our child");
    signal(cluster.ids[1], "CONT");
    assert_eq!(ended.signal(), Some(2), "a shell sees that it was interrupted");
    assert_eq!((files(), fs::read_to_string(&file).expect("reads")), (1, "old".to_owned()));
    cluster.end();
}
