//! The rule that code names only the crates that it may name, and within `proto` and `store` only
//! the modules.

use crate::report;
use crate::source::{File, files, line_of, words};

/// The forbidden imports: files below the first path must not name the second paths, for the reason
/// that the third text gives.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    (
        "crates/proto/",
        &["sprat_store", "sprat_sys", "sprat_rdma", "sprat", "sprat_sim"],
        "proto depends on no sibling",
    ),
    (
        "crates/store/",
        &["sprat_sys", "sprat_rdma", "sprat", "sprat_sim"],
        "store knows proto alone",
    ),
    ("crates/sys/", &["sprat_store", "sprat_rdma", "sprat", "sprat_sim"], "sys knows proto alone"),
    ("crates/rdma/", &["sprat_store", "sprat", "sprat_sim"], "rdma knows sys and proto alone"),
    ("crates/sprat/", &["sprat_sim"], "sprat and sim never see each other"),
    ("crates/sim/", &["sprat", "sprat_sys", "sprat_rdma"], "sprat and sim never see each other"),
    ("crates/sprat/", &["sprat_bench"], "the library is measured from above"),
    ("crates/bench/src/perf/", &["sprat_sim"], "measurements are about the real world"),
    ("crates/cli/src/", &["sprat_sim"], "the simulator is never shipped"),
    (
        "crates/verbs/src/",
        &["sprat_sim", "sprat_proto", "sprat_store"],
        "the C ABI stands on the verbs of rdma, and on devices by their locators",
    ),
    (
        "crates/c/src/",
        &["sprat_sim", "sprat_proto", "sprat_store", "sprat_rdma"],
        "the C API stands on the library as any other program does",
    ),
    ("crates/proto/src/", &["std"], "proto is no_std"),
    ("crates/store/src/", &["std"], "store is no_std"),
    (
        "crates/store/src/",
        &["Endpoint", "Datagrams", "net", "rdma"],
        "the store knows messages, not how they travel",
    ),
];

/// The protocol families of `proto`: none names another.
const FAMILIES: &[&str] = &["net", "rdma", "rpc"];

fn named(file: &File, word: &str, why: &str) -> Vec<String> {
    // Tests of the pure crates run under std.
    let code = if word == "std" { file.code_without_tests() } else { file.code() };
    // A path or an import, not a field, a method or a variable that happens to have the name.
    let names = |at: usize| {
        let (before, after) = (code[..at].trim_end(), code[at + word.len()..].trim_start());
        after.starts_with("::") || before.ends_with("::") || before.ends_with("extern crate")
    };
    let found = words(&code, word).filter(|&at| names(at));
    found.map(|at| format!("{}:{}: names `{word}`: {why}", file.path, line_of(&code, at))).collect()
}

#[test]
fn crates_name_only_whom_they_may() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        for (below, words, why) in FORBIDDEN {
            if !file.path.starts_with(below) || (file.is_test() && words.contains(&"std")) {
                continue;
            }
            for word in *words {
                wrong.extend(named(file, word, why));
            }
        }
    }
    report("imports against the order of the crates:", &wrong);
}

#[test]
fn protocol_families_do_not_name_each_other() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let Some(inside) = file.path.strip_prefix("crates/proto/src/") else { continue };
        let Some(own) = FAMILIES.iter().find(|f| inside.starts_with(&format!("{f}/"))) else {
            continue;
        };
        let code = file.code();
        for other in FAMILIES.iter().filter(|f| *f != own) {
            let paths = [format!("crate::{other}"), format!("super::super::{other}")];
            for path in &paths {
                for at in words(&code, path) {
                    wrong.push(format!("{}:{}: names {path}", file.path, line_of(&code, at)));
                }
            }
        }
    }
    report("net, rdma and rpc are siblings that meet in stack.rs only:", &wrong);
}
