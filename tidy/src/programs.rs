//! The rule that every program which tests, scripts and commands start is installed when they start
//! it.
//!
//! The program is in Debian's smallest root, or in a row of scripts/programs.txt whose option the
//! stage asks scripts/tools for. A developer's machine has everything installed, so that a missing
//! row shows nowhere else: one stage lacked `ip`, which a later stage installed.
//!
//! [`shell`] reads shell: words in the place of a command. It does not read variables and quoted
//! text. Of Rust, this file reads `Command::new("NAME")`, and in tests strings that begin with the
//! name of a listed program.

use std::collections::BTreeSet;

use crate::report;
use crate::source::{File, files, line_of, words};

mod shell;

const TABLE: &str = "scripts/programs.txt";

/// Programs that need no row: those in Debian's minbase, the shell's own, and git, make, rustup and
/// cargo, with which a reader starts.
const GIVEN: &str = "
    . : [ apt apt-cache apt-get awk basename bash break cargo cat cd chmod chroot cksum
    command continue cp cut date declare diff dirname dpkg echo env exec exit expand export false
    find flock git grep head id install kill ldd ln local ls make mapfile mkdir mktemp mount
    mv nice nproc nsenter paste printf prlimit read return rm rmdir rustc rustup sed seq set
    setpriv sh shift sleep sort tail tar taskset tee test timeout touch tr trap true umount
    uname unset unshare wait wc xargs";

/// The stages of the tests: the paths whose programs each starts, the options that it asks
/// scripts/tools for, and the target of the Makefile that asks (none: the file itself does).
const STAGES: &[(&str, &[&str], &str)] = &[
    ("crates/sprat/", &["devices"], "unit"),
    ("crates/bench/src/cluster/etcd.rs", &["etcd"], "unit"),
    ("crates/bench/src/peers/", &["stores"], "unit"),
    ("crates/cli/", &["devices", "etcd", "stores"], "unit"),
    ("crates/c/", &["cxx"], "unit"),
    ("crates/verbs/", &["verbs"], "unit"),
    ("scripts/instructions", &["valgrind"], "instructions"),
    ("scripts/bench-verbs", &["verbs"], "bench-verbs"),
    ("scripts/compare-rdma", &["compare"], ""),
    ("scripts/fuzz", &["cxx"], ""),
    ("scripts/coordinators", &["etcd"], ""),
    ("scripts/fresh", &["fresh"], ""),
    ("scripts/footprint-ramcloud", &["cxx"], ""),
    ("scripts/footprint", &["stores"], ""),
    ("interop/packetdrill/run", &["packetdrill"], ""),
    ("interop/build", &["interop"], ""),
    // They call interop/build first.
    ("interop/run", &["interop"], ""),
    ("interop/compare", &["interop"], ""),
    ("interop/cases.sh", &["interop"], ""),
    ("interop/guest.sh", &["interop"], ""),
];

/// Scripts that run inside the emulated machine, with the programs that interop/build puts there.
const IN_THE_GUEST: &[&str] = &["interop/init", "interop/compare-guest"];

/// Strings in tests that begin with a program's name and start no program.
const NO_COMMAND: &[(&str, &str)] =
    &[("crates/sprat/tests/devices/ends.rs", "ip"), ("crates/sprat/src/locator/tests.rs", "rdma")];

/// Returns the option and the program (or a file by its whole path) of each row of
/// scripts/programs.txt.
fn rows(files: &[File]) -> Vec<(String, String)> {
    let table = files.iter().find(|f| f.path == TABLE).map_or("", |f| &f.text);
    let rows = table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    });
    rows.collect()
}

fn options_of(path: &str) -> Vec<&'static str> {
    let stage = STAGES.iter().find(|(prefix, ..)| path.starts_with(prefix));
    stage.map_or(&[][..], |(_, options, _)| options).iter().copied().chain(["base"]).collect()
}

fn is_shell(file: &File) -> bool {
    let shebang =
        file.text.starts_with("#!/usr/bin/env bash") || file.text.starts_with("#!/bin/sh");
    (shebang || file.path.ends_with(".sh")) && !IN_THE_GUEST.contains(&file.path.as_str())
}

/// Returns the recipes of the Makefile as one shell text, in which each line keeps its number.
fn recipes(makefile: &str) -> String {
    let line = |line: &str| match line.strip_prefix('\t') {
        // Variables of make's are expanded before the shell sees them.
        Some(recipe) => {
            let recipe =
                recipe.trim_start_matches('@').replace("$(MAKE)", "make").replace("$$", "\u{2}");
            recipe.replace("$(", "${").replace('\u{2}', "$")
        }
        // A recipe is a command of its own.
        None => ";".to_owned(),
    };
    makefile.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the programs that a file of Rust starts: lines and names.
fn started(file: &File, listed: &BTreeSet<&str>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let name = |text: &str| text.split('"').next().unwrap_or_default().to_owned();
    for (at, what) in file.text.match_indices("Command::new(") {
        let argument = &file.text[at + what.len()..];
        if let Some(literal) = argument.strip_prefix('"') {
            found.push((line_of(&file.text, at), name(literal)));
        } else if argument.starts_with("PROGRAM)")
            && let Some((_, literal)) = file.text.split_once("const PROGRAM: &str = \"")
        {
            found.push((line_of(&file.text, at), name(literal)));
        }
    }
    if file.is_test() {
        for (at, _) in file.text.match_indices('"') {
            let rest = &file.text[at + 1..];
            let end = rest
                .find(|c: char| !c.is_alphanumeric() && !"-_+".contains(c))
                .unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            let except = NO_COMMAND.contains(&(&file.path, word));
            if listed.contains(word) && behind.starts_with(' ') && !except {
                found.push((line_of(&file.text, at), word.to_owned()));
            }
        }
    }
    found
}

#[test]
fn every_program_is_there_when_it_is_started() {
    let files = files();
    let rows = rows(&files);
    let given: BTreeSet<&str> = GIVEN.split_whitespace().collect();
    let mut wrong = Vec::new();
    let listed: BTreeSet<&str> = rows
        .iter()
        .filter(|(option, _)| option != "base")
        .map(|(_, program)| program.as_str())
        .collect();
    let functions: BTreeSet<String> =
        files.iter().filter(|f| is_shell(f)).flat_map(|f| shell::read(&f.text).functions).collect();
    for file in &files {
        let programs = if file.path == "Makefile" {
            shell::read(&recipes(&file.text)).commands
        } else if is_shell(file) {
            shell::read(&file.text).commands
        } else if file.is_rust() && !file.path.starts_with("tidy/") {
            started(file, &listed)
        } else {
            continue;
        };
        let options = options_of(&file.path);
        for (line, program) in programs {
            let asked =
                |(option, row): &(String, String)| *row == program && options.contains(&&**option);
            // What has a slash is the repository's own, or was just built.
            let known =
                given.contains(&&*program) || program.contains('/') || functions.contains(&program);
            if !known && !rows.iter().any(asked) {
                let of = options.join(", ");
                wrong.push(format!("{}:{line}: {program} is not in {TABLE} for {of}", file.path));
            }
        }
        if file.path.ends_with(".c")
            && ["system", "popen"].iter().any(|f| words(&file.text, f).next().is_some())
        {
            wrong.push(format!("{}: starts programs, which this test cannot read", file.path));
        }
    }
    for (option, program) in &rows {
        let used = |f: &&File| {
            f.path != TABLE
                && (program.starts_with('/') || words(&f.text, program).next().is_some())
        };
        if !files.iter().any(|f| used(&f)) {
            wrong.push(format!("{TABLE}: {option} {program} is used nowhere: take it off"));
        }
    }
    report("programs that a fresh machine lacks:", &wrong);
}

#[test]
fn every_stage_asks_for_its_programs() {
    let files = files();
    let text = |path: &str| files.iter().find(|f| f.path == path).map_or("", |f| &f.text);
    let mut wrong = Vec::new();
    for (path, options, target) in STAGES {
        for option in *options {
            let asks = format!("scripts/tools --{option}");
            let asked = if target.is_empty() {
                text(path).contains(&asks)
                    || path.starts_with("interop/") && text("interop/build").contains(&asks)
            } else {
                let recipe = text("Makefile")
                    .split_once(&format!("\n{target}:"))
                    .map_or("", |(_, rest)| rest);
                recipe.split("\n\n").next().is_some_and(|recipe| recipe.contains(&asks))
            };
            if !asked {
                wrong.push(format!("{path}: nothing calls {asks} first"));
            }
        }
    }
    report("stages that do not ask for what they need:", &wrong);
}
