//! The rule that a source file has at most 600 lines, and a function at most one screen.

use crate::report;
use crate::source::{File, closing, files, line_of, words};

/// The most lines of a source file.
const FILE_LINES: usize = 600;
/// The most lines of a function: one screen.
const FUNCTION_LINES: usize = 70;
/// The most lines of a function whose body is one flat `match` that calls others.
const DISPATCHER_LINES: usize = 150;

/// Source files that are longer than the rule allows, with their length. A ratchet: empty is the
/// goal.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions that are longer than the rule allows, with their length. A ratchet: empty is the goal.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[("crates/sim/tests/rdma/judge.rs", "event", 71)];

/// Functions that are flat dispatchers: a `match` whose arms call other functions.
const DISPATCHERS: &[(&str, &str)] = &[];

/// Returns every function of a file with a body: its name, its first line and the number of its
/// lines from `fn` to the closing brace.
fn functions(file: &File) -> Vec<(String, usize, usize)> {
    let code = file.code();
    let mut found = Vec::new();
    for at in words(&code, "fn") {
        let after = code[at + 2..].trim_start();
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(open) = code[at..].find(['{', ';']).map(|n| at + n) else { continue };
        if name.is_empty() || code.as_bytes()[open] == b';' {
            continue;
        }
        let first = line_of(&code, at);
        found.push((name, first, line_of(&code, closing(&code, open)) - first + 1));
    }
    found
}

#[test]
fn files_are_short() {
    let mut wrong = Vec::new();
    let mut met = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let lines = file.text.lines().count();
        let listed = LONG_FILES.iter().find(|(path, _)| *path == file.path).map_or(0, |(_, n)| *n);
        if lines > FILE_LINES.max(listed) {
            wrong.push(format!("{}: {lines} lines, at most {}", file.path, FILE_LINES.max(listed)));
        }
        if lines > FILE_LINES {
            met.push(file.path.clone());
        }
    }
    for (path, _) in LONG_FILES.iter().filter(|(p, _)| !met.iter().any(|m| m == p)) {
        wrong.push(format!("{path}: listed as long, but it is not: take it off"));
    }
    report("long files:", &wrong);
}

#[test]
fn functions_fit_a_screen() {
    let mut wrong = Vec::new();
    let mut met = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        for (name, line, lines) in functions(file) {
            let same = |path: &str, function: &str| path == file.path && function == name;
            let listed = LONG_FUNCTIONS.iter().find(|(p, f, _)| same(p, f)).map(|(_, _, n)| *n);
            let dispatcher =
                DISPATCHERS.iter().any(|(p, f)| same(p, f)).then_some(DISPATCHER_LINES);
            let limit = listed.or(dispatcher).unwrap_or(FUNCTION_LINES);
            if lines > limit {
                wrong.push(format!(
                    "{}:{line}: fn {name} has {lines} lines, at most {limit}",
                    file.path
                ));
            }
            if lines > FUNCTION_LINES {
                met.push((file.path.clone(), name));
            }
        }
    }
    let listed = LONG_FUNCTIONS
        .iter()
        .map(|(p, f, _)| (p, f))
        .chain(DISPATCHERS.iter().map(|(p, f)| (p, f)));
    for (path, name) in listed.filter(|(p, f)| !met.iter().any(|(mp, mf)| mp == **p && mf == **f)) {
        wrong.push(format!("{path}: fn {name} is listed as long, but it is not: take it off"));
    }
    report("long functions:", &wrong);
}

#[test]
fn lengths_are_measured_without_tests() {
    let text = "//! x\nfn a() {\n    b(\"}\");\n}\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\n";
    let file = File { path: "x.rs".into(), text: text.into() };
    assert_eq!(file.lines_of_tests(), 4);
    assert!(!file.code_without_tests().contains("fn c"));
    assert_eq!(functions(&file), [("a".into(), 2, 3), ("c".into(), 7, 1)]);
}
