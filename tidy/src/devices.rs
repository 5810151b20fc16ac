//! The rule that the page about packet devices names tests and fuzz targets that exist, and that
//! every parser of a device's bytes has a fuzz target there.

use std::collections::BTreeSet;

use crate::report;
use crate::source::{File, files, words};

const PAGE: &str = "docs/devices.md";
/// The test programs with harnesses of their own, whose tests are named by strings.
const HARNESSES: [&str; 2] = ["crates/sprat/tests/devices/", "crates/cli/tests/devices/"];
/// Parsers of bytes that no peer of ours sends: files that a user gives the program, settings, and
/// replies of servers that a benchmark starts itself.
const OWN: [&str; 5] = [
    "crates/bench/src/peers/memcached.rs",
    "crates/bench/src/peers/resp.rs",
    "crates/cli/src/records/csv.rs",
    "crates/cli/src/records/jsonl.rs",
    "crates/verbs/src/log.rs",
];

fn name_at(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Returns the names of all tests: functions, and whatever a harness has in quotes, each part of it
/// between colons.
fn tests(files: &[File]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        let code = file.code();
        for at in words(&code, "fn").filter(|&at| code[..at].trim_end().ends_with("#[test]")) {
            found.insert(name_at(code[at + 2..].trim_start()));
        }
        if HARNESSES.iter().any(|folder| file.path.starts_with(folder)) {
            let quoted = file.text.split('"').skip(1).step_by(2);
            found.extend(quoted.flat_map(|text| text.split("::")).map(str::to_owned));
        }
    }
    found
}

/// Returns the names in backquotes in a cell of the page's table.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn the_page_of_devices_names_tests_that_exist() {
    let files = files();
    let page = files.iter().find(|f| f.path == PAGE).map(|f| f.text.as_str()).unwrap_or_default();
    let tests = tests(&files);
    let mut wrong = Vec::new();
    let (mut column, mut rows) = (None, 0);
    for (number, line) in page.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            column = None;
        } else if column.is_none() {
            column = cells.iter().position(|cell| *cell == "tests").or(Some(0));
        } else if let Some(cell) = column.filter(|&at| at > 0).and_then(|at| cells.get(at))
            && !cell.starts_with("---")
        {
            rows += 1;
            if named(cell).next().is_none() {
                wrong.push(format!("{PAGE}:{}: no test", number + 1));
            }
            wrong.extend(
                named(cell)
                    .filter(|name| !tests.contains(*name))
                    .map(|name| format!("{PAGE}:{}: {name} is no test", number + 1)),
            );
        }
    }
    assert!(rows > 30, "{PAGE}: {rows} rows with tests");
    report("tests of devices:", &wrong);
}

#[test]
fn every_parser_has_a_fuzz_target() {
    let files = files();
    let page = files.iter().find(|f| f.path == PAGE).map(|f| f.text.as_str()).unwrap_or_default();
    let table = page.split("## Fuzz targets").nth(1).unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let (mut parsers, mut targets) = (BTreeSet::new(), BTreeSet::new());
    for (left, right) in rows {
        parsers.extend(named(left));
        targets.extend(named(right));
    }
    let mut wrong = Vec::new();
    for target in &targets {
        if !files.iter().any(|f| f.path == format!("fuzz/src/bin/{target}.rs")) {
            wrong.push(format!("{PAGE}: there is no fuzz target {target}"));
        }
    }
    for file in files.iter().filter(|f| f.is_rust() && f.path.starts_with("fuzz/src/bin/")) {
        let name = file.path.trim_start_matches("fuzz/src/bin/").trim_end_matches(".rs");
        if !targets.contains(name) {
            wrong.push(format!("{PAGE}: the fuzz target {name} is not listed"));
        }
    }
    for file in files.iter().filter(|f| f.is_rust() && f.in_crate().is_some() && !f.is_test()) {
        let code = file.code_without_tests();
        let parses = words(&code, "fn").any(|at| name_at(code[at + 2..].trim_start()) == "parse");
        let (listed, own) =
            (parsers.contains(file.path.as_str()), OWN.contains(&file.path.as_str()));
        match (parses, listed || own) {
            (true, false) => {
                wrong.push(format!("{}: a parser without a fuzz target in {PAGE}", file.path))
            }
            (false, true) if own => {
                wrong.push(format!("{}: is no parser: take it off the list", file.path))
            }
            _ => {}
        }
    }
    report("fuzz targets:", &wrong);
}
