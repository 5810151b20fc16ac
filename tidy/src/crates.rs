//! The rule that each `Cargo.toml` names only the crates that it may depend on, its licence and its
//! terms.
//!
//! `no_std` alone proves nothing about dependencies: a `no_std` crate may depend on one that uses
//! `std`. The build for a bare target proves it. Where that target is missing, these lists do.

use std::collections::{BTreeMap, BTreeSet};

use crate::report;
use crate::source::{File, files};

/// The crates of the workspace, and the crates of the workspace that each may depend on.
const SIBLINGS: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("store", &["sprat-proto"]),
    ("sys", &["sprat-proto"]),
    ("rdma", &["sprat-proto", "sprat-sys"]),
    ("sprat", &["sprat-proto", "sprat-rdma", "sprat-store", "sprat-sys"]),
    ("sim", &["sprat-proto", "sprat-store"]),
    // `sprat chaos` judges histories of real clusters by the simulator's checker.
    ("bench", &["sprat", "sprat-proto", "sprat-sim", "sprat-store", "sprat-sys"]),
    ("cli", &["sprat", "sprat-bench", "sprat-proto", "sprat-store", "sprat-sys"]),
    // `sprat exec --device` opens a packet device by its locator, which only `sprat` can do.
    ("verbs", &["sprat", "sprat-rdma", "sprat-sys"]),
    // A wait with a limit reads the clock, which `sys` has.
    ("c", &["sprat", "sprat-sys"]),
];

/// The crates that programs outside of this repository may depend on.
const PUBLISHED: &[&str] = &["proto", "store", "sys", "rdma", "sprat"];

/// The external crates that `proto` and `store` may depend on: all `no_std`, none does I/O.
const PURE: &[&str] =
    &["arrayvec", "hashbrown", "rand_chacha", "rapidhash", "siphasher", "thiserror", "zerocopy"];

/// The crates that those of [`PURE`] depend on, macros that run at build time included.
const PURE_BEHIND: &[&str] = &[
    "byteorder",
    "equivalent",
    "foldhash",
    "ppv-lite86",
    "proc-macro2",
    "quote",
    "rand_core",
    "rustversion",
    "syn",
    "thiserror-impl",
    "unicode-ident",
    "zerocopy-derive",
];

/// Returns the sections of a `Cargo.toml`: their names and lines, without comments and blank lines.
fn sections(toml: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut sections = BTreeMap::<_, Vec<_>>::new();
    let mut current = "";
    for line in toml.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            current = name.trim_matches(['[', ']']);
        } else {
            sections.entry(current).or_default().push(line);
        }
    }
    sections
}

/// Returns the names of the crates in the dependency sections that `wanted` accepts.
fn dependencies(toml: &str, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut names = Vec::new();
    for (section, lines) in sections(toml) {
        if let Some((_, name)) = section.split_once("dependencies.") {
            if wanted(section) {
                names.push(name);
            }
        } else if section.ends_with("dependencies") && wanted(section) {
            names.extend(lines.iter().filter_map(|l| l.split(['.', '=', ' ']).next()));
        }
    }
    names
}

fn manifest<'a>(files: &'a [File], name: &str) -> &'a str {
    let path = format!("crates/{name}/Cargo.toml");
    &files.iter().find(|f| f.path == path).unwrap_or_else(|| panic!("{path} exists")).text
}

#[test]
fn siblings_are_imported_in_one_direction() {
    let files = files();
    let ours: Vec<&str> = SIBLINGS.iter().map(|(name, _)| *name).collect();
    let mut wrong = Vec::new();
    for file in
        files.iter().filter(|f| f.path.starts_with("crates/") && f.path.ends_with("/Cargo.toml"))
    {
        let name = file.in_crate().unwrap_or_default();
        let Some((_, allowed)) = SIBLINGS.iter().find(|(n, _)| *n == name) else {
            wrong.push(format!("{}: a new crate must be listed here, among {ours:?}", file.path));
            continue;
        };
        for dependency in dependencies(&file.text, |_| true) {
            if dependency.starts_with("sprat") && !allowed.contains(&dependency) {
                wrong.push(format!("{}: must not depend on {dependency}", file.path));
            }
        }
    }
    report(
        "cli → bench → sprat → rdma → sys → proto, sprat → store → proto, verbs → sprat, rdma and \
         sys, c → sprat and sys, sim → store and proto, bench → sim, and nothing else:",
        &wrong,
    );
}

#[test]
fn pure_crates_depend_on_pure_crates() {
    let files = files();
    let mut wrong = Vec::new();
    let mut reached = BTreeSet::new();
    for name in ["proto", "store"] {
        for dependency in dependencies(manifest(&files, name), |s| !s.contains("dev-")) {
            if !PURE.contains(&dependency) && dependency != "sprat-proto" {
                wrong.push(format!("{name}: {dependency} is not on the list"));
            }
            reached.insert(dependency);
        }
    }
    for unused in PURE.iter().filter(|p| !reached.contains(*p)) {
        wrong.push(format!("{unused} is on the list but no longer used: take it off"));
    }
    report("proto and store depend on listed no_std crates only:", &wrong);
}

#[test]
fn pure_crates_reach_nothing_else_by_the_lock_file() {
    let files = files();
    let lock = &files.iter().find(|f| f.path == "Cargo.lock").expect("Cargo.lock is tracked").text;
    let mut behind = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
        let name = package.lines().find(|l| l.starts_with("name = ")).and_then(quoted);
        let version = package.lines().find(|l| l.starts_with("version = ")).and_then(quoted);
        let (Some(name), Some(version)) = (name, version) else { continue };
        let list: Vec<String> =
            package.lines().filter(|l| l.starts_with(" \"")).filter_map(quoted).collect();
        behind.insert(format!("{name} {version}"), list);
    }
    // An entry is "name", or "name version" where the tree holds several versions.
    let resolve = |entry: &str| {
        let exact = behind.contains_key(entry).then(|| entry.to_owned());
        exact.or_else(|| behind.keys().find(|k| k.split(' ').next() == Some(entry)).cloned())
    };
    // Which versions proto and store themselves name; their dev-dependencies stand in the same
    // list, so go by PURE.
    let mut open: Vec<String> = behind
        .iter()
        .filter(|(package, _)| {
            package.starts_with("sprat-proto ") || package.starts_with("sprat-store ")
        })
        .flat_map(|(_, list)| {
            list.iter().filter(|d| PURE.contains(&d.split(' ').next().unwrap_or_default()))
        })
        .filter_map(|d| resolve(d))
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(package) = open.pop() {
        open.extend(
            behind[&package].iter().filter_map(|d| resolve(d)).filter(|d| !seen.contains(d)),
        );
        seen.insert(package);
    }
    let wrong: Vec<String> = seen
        .into_iter()
        .filter(|package| {
            let name = package.split(' ').next().unwrap_or_default();
            !PURE.contains(&name) && !PURE_BEHIND.contains(&name)
        })
        .collect();
    report("crates that proto and store bring along and that are not on the list:", &wrong);
}

#[test]
fn every_crate_has_the_workspace_terms() {
    let files = files();
    let mut wrong = Vec::new();
    for (name, _) in SIBLINGS {
        let sections = sections(manifest(&files, name));
        let publish =
            if PUBLISHED.contains(name) { "publish = true" } else { "publish.workspace = true" };
        let terms = ["version", "edition", "rust-version", "license"]
            .map(|field| format!("{field}.workspace = true"));
        for line in terms.into_iter().chain([publish.to_owned()]) {
            if !sections["package"].contains(&line.as_str()) {
                wrong.push(format!("crates/{name}/Cargo.toml: [package] lacks `{line}`"));
            }
        }
        if sections.get("lints").is_none_or(|lines| !lines.contains(&"workspace = true")) {
            wrong.push(format!("crates/{name}/Cargo.toml: [lints] lacks `workspace = true`"));
        }
    }
    let root = files.iter().find(|f| f.path == "Cargo.toml").expect("the workspace has a manifest");
    for line in ["license = \"Apache-2.0 OR MIT\"", "publish = false"] {
        if !sections(&root.text)["workspace.package"].contains(&line) {
            wrong.push(format!("Cargo.toml: [workspace.package] lacks `{line}`"));
        }
    }
    report("version, licence, lints and publication are set once, in the workspace:", &wrong);
}

#[test]
fn the_toolchain_is_stated_once() {
    let files = files();
    let text = |path: &str| {
        &files.iter().find(|f| f.path == path).unwrap_or_else(|| panic!("{path} exists")).text
    };
    let value = |path: &str, key: &str| {
        let line = text(path)
            .lines()
            .find(|l| l.starts_with(key))
            .unwrap_or_else(|| panic!("{path} says {key}"));
        line.split('"').nth(1).unwrap_or_default().to_owned()
    };
    let version = value("Cargo.toml", "rust-version = ");
    let mut wrong = Vec::new();
    if !value("rust-toolchain.toml", "channel = ").starts_with(&version) {
        wrong.push(format!("rust-toolchain.toml pins another release than Cargo.toml's {version}"));
    }
    if !text("README.md").contains(&format!("Rust {version}")) {
        wrong.push(format!("README.md does not say `Rust {version}`"));
    }
    report("one version of Rust:", &wrong);
}

#[test]
fn pure_crates_declare_themselves() {
    let files = files();
    let mut wrong = Vec::new();
    for name in ["proto", "store"] {
        let path = format!("crates/{name}/src/lib.rs");
        let lib = files.iter().find(|f| f.path == path).unwrap_or_else(|| panic!("{path} exists"));
        for line in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !lib.text.lines().any(|l| l == line) {
                wrong.push(format!("{path}: lacks {line}"));
            }
        }
        let inside = format!("crates/{name}/src/");
        for file in files.iter().filter(|f| f.is_rust() && f.path.starts_with(&inside)) {
            if file.code().contains("cfg(feature") {
                wrong.push(format!("{}: has a feature; proto and store have none", file.path));
            }
        }
    }
    report("proto and store are pure:", &wrong);
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    let files = files();
    let mut wrong = Vec::new();
    for (name, _) in SIBLINGS.iter().filter(|(name, _)| !["sys", "verbs", "c"].contains(name)) {
        for root in ["lib.rs", "main.rs"] {
            let path = format!("crates/{name}/src/{root}");
            let Some(root) = files.iter().find(|f| f.path == path) else { continue };
            if !root.text.lines().any(|l| l == "#![forbid(unsafe_code)]") {
                wrong.push(format!("{path}: lacks #![forbid(unsafe_code)]"));
            }
        }
    }
    report("every crate but sys, verbs and c forbids unsafe code:", &wrong);
}
