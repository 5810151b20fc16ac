//! The rule that each counter which a layer reports has a row in the catalogue, and each row is of
//! a counter.
//!
//! A layer reports by `fn counters(&self, each: …)`, whose string literals are names, or by the
//! macro `counters!`, whose fields are. The store's own list needs no rule: its values are made
//! from its rows.

use std::collections::BTreeSet;

use crate::report;
use crate::source::{File, closing, files};

/// The path of the catalogue of the counters of processes, transports, drivers and devices.
const CATALOGUE: &str = "crates/cli/src/counters/catalogue.rs";
/// The signature of a method by which a layer reports its counters by name.
const REPORTS: &str = "fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {";
/// The beginning of a use of the macro `counters!`. Its definition has a space instead of the
/// brace.
const MACRO: &str = "\ncounters! {";

/// Returns the names of counters in the catalogue.
fn rows(text: &str) -> BTreeSet<String> {
    let tables = text.split("totals! {").skip(1).filter_map(|rest| rest.split("\n};").next());
    // A row begins with four spaces; its meaning may go on in further lines.
    let rows = tables.flat_map(str::lines).filter_map(|line| line.strip_prefix("    "));
    let rows = rows.filter(|row| row.starts_with(|c: char| c.is_ascii_lowercase()));
    rows.filter_map(|row| row.split_whitespace().next()).map(Into::into).collect()
}

/// Returns the names of counters that the code of `file` reports.
fn names(file: &File) -> Vec<String> {
    let (code, text) = (file.code_without_tests(), &file.text);
    let mut names = Vec::new();
    for (at, _) in code.match_indices(REPORTS) {
        let end = closing(&code, at + REPORTS.len() - 1);
        names.extend(text[at + REPORTS.len()..end].split('"').skip(1).step_by(2).map(Into::into));
    }
    for (at, _) in code.match_indices(MACRO) {
        let open = at + MACRO.len() - 1;
        let body = &text[open..closing(&code, open)];
        // Only proto's form has a prefix, after the name of the structure.
        let prefix = body.split(", \"").nth(1).and_then(|rest| rest.split('"').next());
        let fields = body.lines().filter_map(|line| line.trim().strip_suffix(','));
        let fields = fields.filter(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        });
        names.extend(fields.map(|name| format!("{}{name}", prefix.unwrap_or_default())));
    }
    names
}

#[test]
fn each_counter_has_a_row() {
    let files = files();
    let catalogue = files.iter().find(|file| file.path == CATALOGUE).expect("the catalogue");
    let mut unused = rows(&catalogue.text);
    let rows = unused.clone();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        for name in names(file) {
            unused.remove(&name);
            if !rows.contains(&name) {
                wrong.push(format!("{}: {name} has no row in {CATALOGUE}", file.path));
            }
        }
    }
    wrong.extend(unused.iter().map(|name| format!("{CATALOGUE}: no layer reports {name}")));
    assert!(rows.len() > 100, "the catalogue is read");
    report("counters", &wrong);
}
