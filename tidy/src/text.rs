//! The rules of text: it holds no trace of the place where it was written, no white space at line
//! ends, a header comment in every source file, plain names, and links that lead to files.

use crate::report;
use crate::source::{File, files, root};

/// Banned words, which say where or by what a text was written rather than anything about the
/// project. Each is in two parts, so that this list does not find itself.
const FOREIGN: &[(&str, &str)] = &[
    ("/wo", "rk/"),
    ("/tm", "p/t/"),
    ("shared/", "facts"),
    ("shared/", "design"),
    ("shared/", "seeds"),
    ("clau", "de"),
    ("anthro", "pic"),
    ("open", "ai"),
    ("chat", "gpt"),
    ("co", "pilot"),
    ("static.", "crates.io"),
    ("index.", "crates.io"),
    ("pypi.", "org"),
    ("registry.", "npmjs"),
    ("deb.", "debian.org"),
];

/// Banned endings of type names, which say nothing.
const EMPTY_NAMES: &[&str] = &["Manager", "Helper", "Util", "Utils"];

/// The functions whose names may begin with `get_`: named as the standard library does, as an
/// operation, or by the English verb.
const GET_NAMES: &[&str] = &["get_if", "get_with", "get_mut", "get_table", "get_tablets", "get_up"];

fn lines(file: &File) -> impl Iterator<Item = (usize, &str)> {
    file.text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

#[test]
fn the_text_speaks_of_the_project_alone() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.path != "Cargo.lock") {
        for (number, line) in lines(file) {
            let line = line.to_lowercase();
            for word in
                FOREIGN.iter().map(|(a, b)| format!("{a}{b}")).filter(|w| line.contains(w.as_str()))
            {
                wrong.push(format!("{}:{number}: {word}", file.path));
            }
        }
    }
    report("foreign words:", &wrong);
}

#[test]
fn lines_are_clean() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.path != "Cargo.lock") {
        for (number, line) in lines(file) {
            // What a test compares a program's output with is as that program writes it.
            if line.ends_with([' ', '\t', '\r']) && !(file.is_test() && file.path.ends_with(".txt"))
            {
                wrong.push(format!("{}:{number}: white space at the end", file.path));
            }
            if file.is_rust() && line.contains('\t') {
                wrong.push(format!("{}:{number}: a tab", file.path));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            wrong.push(format!("{}: the last line has no end", file.path));
        }
    }
    report("white space:", &wrong);
}

#[test]
fn every_source_file_says_what_it_is() {
    let wrong: Vec<String> = files()
        .iter()
        .filter(|f| {
            f.is_rust()
                && !f.path.ends_with("/tests.rs")
                && !f.text.starts_with("//! ")
                && !f.text.starts_with("#!")
        })
        .map(|f| format!("{}: begins with no `//!` comment", f.path))
        .collect();
    report("files without a header comment:", &wrong);
}

#[test]
fn names_are_plain() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let code = file.code();
        for (number, line) in code.lines().enumerate().map(|(i, line)| (i + 1, line)) {
            let mut tokens =
                line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|t| !t.is_empty());
            while let Some(token) = tokens.next() {
                let kind = ["struct", "enum", "trait", "type"].contains(&token);
                let Some(name) = (if kind || token == "fn" { tokens.next() } else { None }) else {
                    continue;
                };
                if kind && EMPTY_NAMES.iter().any(|e| name.ends_with(e)) {
                    wrong.push(format!("{}:{number}: {name} says nothing", file.path));
                }
                if token == "fn" && name.starts_with("get_") && !GET_NAMES.contains(&name) {
                    wrong.push(format!("{}:{number}: {name}: leave the get_ out", file.path));
                }
            }
        }
    }
    report("names:", &wrong);
}

/// Returns the targets of the Markdown links `[text](target)` in one line.
fn links(line: &str) -> Vec<&str> {
    let after_each = line.split("](").skip(1);
    after_each
        .filter_map(|rest| rest.split(')').next())
        .map(|l| l.split(' ').next().unwrap_or(l))
        .collect()
}

#[test]
fn messages_are_words() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.path.starts_with("crates/cli/src/") && !f.is_test()) {
        let lines = file.text.lines().count() - file.lines_of_tests();
        for (number, line) in file.text.lines().enumerate().take(lines) {
            if line.contains(":?}") {
                wrong.push(format!(
                    "{}:{}: a user reads no Rust: use Display",
                    file.path,
                    number + 1
                ));
            }
        }
    }
    report("Debug in the command line's messages:", &wrong);
}

#[test]
fn links_lead_to_files() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.path.ends_with(".md")) {
        let folder =
            root().join(&file.path).parent().map(std::path::Path::to_path_buf).unwrap_or_default();
        for (number, line) in lines(file) {
            for link in
                links(line).into_iter().filter(|l| !l.contains("://") && !l.starts_with('#'))
            {
                let path = link.split('#').next().unwrap_or(link);
                if !folder.join(path).exists() {
                    wrong.push(format!("{}:{number}: {link} does not exist", file.path));
                }
            }
        }
    }
    report("links:", &wrong);
}

#[test]
fn paths_in_documents_exist() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.path.ends_with(".md") && f.path != "CHANGELOG.md") {
        for (number, line) in lines(file) {
            // `crates/…` in backquotes names a file or folder of today.
            for path in line.split('`').skip(1).step_by(2).filter(|p| p.starts_with("crates/")) {
                let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
                if plain && !root().join(path).exists() {
                    wrong.push(format!("{}:{number}: {path} does not exist", file.path));
                }
            }
        }
    }
    report("paths in documents:", &wrong);
}
