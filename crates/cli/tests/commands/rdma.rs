//! Tests of `sprat rdma`: it measures in every setup, and its tables and its JSON have the promised
//! fields. No test judges a figure.

use std::process::Stdio;

use serde_json::Value;

use crate::cluster::{errors, run, shm_folders, sprat, text};

/// Returns the rows of JSON Lines behind the first line, which is the context.
fn rows(json: &str) -> Vec<Value> {
    json.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_table_has_a_row_for_each_model_and_size_beside_its_floor() {
    let output = run(&["rdma", "table", "--size", "64,10KB", "--seconds", "0.02"]);
    assert!(output.status.success(), "{}", errors(&output));
    let text = text(&output);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| o")).collect();
    assert_eq!(lines.len(), 8 * 2, "{text}");
    for line in lines {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 12, "{line}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{line}");
    }
}

#[test]
fn every_operation_is_measured_with_what_the_json_promises() {
    for what in ["lat", "bw"] {
        let short =
            ["rdma", what, "send", "write", "read", "atomic", "--size", "64", "--seconds", "0.02"];
        let output =
            run(&[&short[..], &["--rounds", "2", "--threading", "io", "--json", "-"]].concat());
        assert!(output.status.success(), "{}", errors(&output));
        let rows = rows(&text(&output));
        let tests: Vec<&str> = rows.iter().filter_map(|row| row["test"].as_str()).collect();
        assert_eq!(
            tests,
            ["send", "write", "read", "atomic"].map(|op| format!("rdma.{what}.{op}"))
        );
        for row in rows {
            assert_eq!((&row["crc"], &row["threading"]), (&Value::Bool(true), &Value::from("io")));
            for field in ["p50_us", "floor_us", "times_floor", "cpu_percent"] {
                assert!(row[field].is_number(), "{field}: {row}");
            }
        }
    }
}

/// Both ends are killed at the end of a measurement in shared memory, and once left the name of
/// their rings behind.
#[test]
fn a_measurement_in_shared_memory_leaves_no_name() {
    let args = ["rdma", "lat", "write", "--size", "64", "--seconds", "0.02", "--rounds", "2"];
    let child = sprat().args(args).args(["--under", "shmnet"]).stdout(Stdio::null()).spawn();
    let mut child = child.expect("the program starts");
    let name = format!("rdma-{}", child.id());
    assert!(child.wait().expect("it ends").success());
    assert!(!shm_folders().into_iter().any(|folder| folder.join(&name).exists()));
}

#[test]
fn many_connections_open_and_ping() {
    let output = run(&["rdma", "connections", "--connections", "50"]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(text(&output).starts_with("50 connections at once"), "{}", text(&output));
}
