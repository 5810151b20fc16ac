//! Tests of `sprat transact`.

use std::fs;
use std::thread;

use serde_json::Value;

use crate::cluster::{Cluster, errors, text};

/// Runs commands as one transaction, with these options besides. Returns the exit code, the
/// standard output and the standard error.
fn transact(cluster: &Cluster, options: &[&str], commands: &str) -> (i32, String, String) {
    let output = cluster.feed(&[&["transact"], options].concat(), commands.as_bytes());
    (output.status.code().unwrap_or(-1), text(&output), errors(&output))
}

#[test]
fn several_objects_change_at_once() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "books", "--span", "2"]);
    cluster.ok(&["table", "create", "my loans"]);
    cluster.ok(&["put", "books", "dune", "Frank Herbert"]);
    let commands = "# Lend a book.\n\
                    get books dune\n\
                    put 'my loans' dune \"to \\\"Ada\\\"\"\n\
                    remove books dune\n\
                    get 'my loans' dune\n\
                    get books dune\n\
                    check books emma 0\n";
    let path = cluster.path("lend.txt");
    fs::write(&path, commands).expect("it is our folder");
    let said = cluster.ok(&["transact", &path.to_string_lossy()]);
    assert_eq!(said, "dune\tFrank Herbert\ndune\tto \"Ada\"\ndune\n");
    assert_eq!(cluster.ok(&["get", "my loans", "dune"]), "to \"Ada\"");
    cluster.fails(3, &["get", "books", "dune"]);
    // As JSON, with versions that other commands know.
    let commands = "get 'my loans' dune\nput books a 1\nput books b '2 3'\nget books b\n\
                    remove books x\nget books x\ncheck books c 0\n";
    let (code, said, error) = transact(&cluster, &["-", "--json"], commands);
    assert_eq!(code, 0, "{error}");
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 7);
    assert_eq!((&lines[0]["value"], &lines[0]["command"]), (&"to \"Ada\"".into(), &"get".into()));
    assert!(lines[0]["version"].as_u64().is_some_and(|version| version > 0), "{said}");
    for (line, key) in [(1, "a"), (2, "b")] {
        let json = cluster.ok(&["get", "books", key, "--json"]);
        let object: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(lines[line]["version"], object["version"], "{said}");
    }
    assert_eq!((&lines[3]["value"], lines[3].get("version")), (&"2 3".into(), None));
    assert_eq!((lines[4].get("version"), &lines[5]["version"]), (None, &0.into()));
    assert!(lines[5].get("value").is_none() && lines[6]["version"] == 0, "{said}");
    cluster.end();
}

#[test]
fn a_conflict_names_the_object_and_changes_nothing() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    cluster.ok(&["put", "t", "k", "1"]);
    for options in [&[][..], &["--retry"]] {
        let commands = "put t other 1\ncheck t k 7\nput t k 2\n";
        let (code, said, error) = transact(&cluster, options, commands);
        assert_eq!((code, &*said), (4, ""));
        assert!(error.contains("line 2: t k: ") && error.contains("it has version 1"), "{error}");
        assert!(error.contains("next: nothing was changed"), "{error}");
        // The check meets what the transaction has read.
        let (code, _, error) = transact(&cluster, options, "get t k\ncheck t k 0\nput t k 2\n");
        assert!(code == 4 && error.contains("line 2: t k: the object exists"), "{error}");
        let (code, _, error) = transact(&cluster, options, "check t none 3\nput t k 2\n");
        assert!(code == 4 && error.contains("line 1") && error.contains("not exist"), "{error}");
    }
    assert_eq!(cluster.ok(&["get", "t", "k"]), "1");
    cluster.fails(3, &["get", "t", "other"]);
    let (code, _, error) = transact(&cluster, &[], "put t k 2\nput nothing k 2\n");
    assert!(code == 1 && error.contains("nothing: there is no such table"), "{error}");
    assert_eq!(cluster.ok(&["get", "t", "k"]), "1");
}

/// Processes that change the same objects at once succeed with `--retry`.
#[test]
fn repetitions_get_past_conflicts() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    cluster.ok(&["put", "t", "n", "0"]);
    thread::scope(|scope| {
        for process in 0..4 {
            let cluster = &cluster;
            scope.spawn(move || {
                for n in 0..3 {
                    let commands =
                        format!("get t n\nput t n {process}\nput t {process}.{n} done\n");
                    let (code, _, error) = transact(cluster, &["--retry"], &commands);
                    assert_eq!(code, 0, "{error}");
                }
            });
        }
    });
    assert_eq!(cluster.ok(&["scan", "t", "--keys"]).lines().count(), 13);
}

#[test]
fn wrong_commands_are_not_executed() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    for (commands, said) in [
        ("", "there are no commands"),
        ("put t k 1\nput t k a value\n", "line 2: expected put TABLE KEY VALUE"),
        ("put t k 1\nincr t k\n", "line 2: incr is no command"),
        ("put t k 'open\n", "line 1: a quote is not closed"),
    ] {
        let (code, _, error) = transact(&cluster, &[], commands);
        assert!(code == 2 && error.contains(said) && error.contains("next:"), "{error}");
    }
    cluster.fails(3, &["get", "t", "k"]);
    let many: String = (0..257).map(|n| format!("put t {n} v\n")).collect();
    let (code, _, error) = transact(&cluster, &[], &many);
    assert!(code == 1 && error.contains("line 257") && error.contains("1 to 256"), "{error}");
    let error = cluster.fails(1, &["transact", "/nonexistent"]);
    assert!(error.contains("cannot read /nonexistent"), "{error}");
}
