//! The rules of time and tests: only the clock of `sys` reads the time, so that everything else can
//! run in virtual time. No test is switched off, expects a panic or sleeps. No destructor panics
//! while a test already does.

use crate::report;
use crate::source::{closing, files, line_of, words};

/// Calls that the rules of time and tests allow as exceptions: the path, the call below it, and the
/// reason.
const LISTED: &[(&str, &str, &str)] = &[
    ("crates/bench/src/", "Instant::now", "a program waits for its children"),
    ("crates/cli/src/", "Instant::now", "a program waits for its children and paints its progress"),
    ("crates/cli/tests/commands/", "Instant::now", "real processes are waited for, not forever"),
    (
        "crates/cli/tests/commands/",
        "thread::sleep",
        "until a process has ended, which gives no sign",
    ),
    ("crates/verbs/tests/programs/", "Instant::now", "real processes are waited for, not forever"),
    (
        "crates/verbs/tests/programs/",
        "thread::sleep",
        "a child that listens or ends gives no sign to wait on",
    ),
    (
        "crates/bench/src/process.rs",
        "thread::sleep",
        "a child that starts or ends gives no sign to wait on",
    ),
    (
        "crates/bench/src/perf/idle.rs",
        "thread::sleep",
        "to measure what idling costs, it must idle",
    ),
    (
        "crates/sprat/src/frames.rs",
        "thread::sleep",
        "at its start a server waits until a killed one has lost its lock, which gives no sign",
    ),
    (
        "crates/bench/src/cluster.rs",
        "thread::sleep",
        "servers join one by one, and the coordinator gives no sign of it",
    ),
];

const CLOCKS: &[&str] = &["Instant::now", "SystemTime::now", "thread::sleep", "UNIX_EPOCH.elapsed"];

#[test]
fn only_the_clock_tells_the_time() {
    let mut wrong = Vec::new();
    let mut met = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let code = file.code();
        for clock in CLOCKS {
            for (at, _) in code.match_indices(clock) {
                if LISTED.iter().any(|(path, c, _)| file.path.starts_with(path) && c == clock) {
                    met.push((file.path.clone(), *clock));
                } else {
                    wrong.push(format!(
                        "{}:{}: {clock} outside the clock",
                        file.path,
                        line_of(&code, at)
                    ));
                }
            }
        }
    }
    for (path, clock, _) in
        LISTED.iter().filter(|(p, c, _)| !met.iter().any(|(mp, mc)| mp.starts_with(p) && mc == c))
    {
        wrong.push(format!("{path}: {clock} is listed but not there: take it off"));
    }
    report("time comes from one place:", &wrong);
}

#[test]
fn no_test_is_switched_off() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let code = file.code();
        for (word, instead) in [
            ("#[ignore", "run it, or remove it"),
            ("should_panic", "assert what is wrong, by a result"),
        ] {
            for (at, _) in code.match_indices(word) {
                wrong.push(format!("{}:{}: {word}: {instead}", file.path, line_of(&code, at)));
            }
        }
    }
    report("switched-off tests:", &wrong);
}

/// No destructor panics during a panic, unless it asks `panicking()` first. Such a panic aborts the
/// test program, and with it every test that has not run yet: one failed test of the command line
/// took 30 others along.
#[test]
fn no_destructor_panics_twice() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let code = file.code();
        for (at, _) in code.match_indices("Drop for ") {
            let Some(open) = code[at..].find('{').map(|open| at + open) else { continue };
            let body = &code[open..closing(&code, open)];
            if words(body, "panicking").next().is_some() {
                continue;
            }
            for word in
                ["unwrap", "expect", "panic", "assert", "assert_eq", "assert_ne", "unreachable"]
            {
                for found in words(body, word) {
                    wrong.push(format!(
                        "{}:{}: {word} in a destructor",
                        file.path,
                        line_of(&code, open + found)
                    ));
                }
            }
        }
    }
    report("destructors that panic:", &wrong);
}
