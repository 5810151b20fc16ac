//! Tests that run Debian's programs on our libraries, as an unprivileged user over loopback, and
//! over our own TCP: a matrix of program and option.
//!
//! `cargo test -p sprat-verbs --test programs [PART OF A NAME]` runs the rows of `table` one after
//! the other. It prints `program option ... ok` or the failure, the matrix, and the count as every
//! test program does. docs/programs.md has the same table; SPRAT_WRITE_PROGRAMS=1 writes it and
//! runs nothing.
//!
//! Without the programs installed the matrix is one ignored test, or one failed test in CI (the
//! variable CI is set).

#![allow(clippy::print_stdout, reason = "it is its own harness")]

mod left;
mod network;
mod over;
mod page;
mod run;
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use support::Staging;
use table::{Row, State};

/// The test's verdict on a row of the matrix of programs.
enum Verdict {
    Ok,
    Failed(String),
}

fn main() -> ExitCode {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let rows = table::rows();
    let begin = Instant::now();
    if std::env::var_os(page::WRITE).is_some() {
        let written = page::same(&rows);
        println!("{written:?}");
        return ExitCode::from(u8::from(written.is_err()));
    }
    let missing =
        rows.iter().map(|row| row.program()).find(|p| !Path::new("/usr/bin").join(p).exists());
    if let Some(program) = missing {
        let failed = usize::from(std::env::var_os("CI").is_some());
        println!("{program} is not installed: see scripts/tools --verbs");
        return finish(0, failed, 1 - failed, begin);
    }
    let staging = Staging::new();
    let suppressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/valgrind.supp");
    std::fs::copy(suppressions, staging.folder.path().join("valgrind.supp"))
        .expect("the folder is ours");
    println!("\n{}", run::user(&staging));
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    let mut matrix = Vec::new();
    for row in rows.iter().filter(|row| row.name().contains(&filter)) {
        if row.network && support::own_uid() != 0 {
            println!("test {} ... ignored, only root can make a network", row.name());
            ignored += 1;
            continue;
        }
        let row_begin = Instant::now();
        let seen = run::row(&staging, row);
        let (verdict, word) = judge(row, &seen);
        println!("test {} ... {word} ({:.1} s)", row.name(), row_begin.elapsed().as_secs_f64());
        match verdict {
            Verdict::Ok => passed += 1,
            Verdict::Failed(why) => {
                println!("    {}", why.replace('\n', "\n    "));
                failed += 1;
            }
        }
        matrix.push((row, seen.is_ok()));
    }
    println!("\n{}", page::matrix(&matrix));
    if filter.is_empty() {
        match page::same(&rows) {
            Ok(()) => passed += 1,
            Err(why) => {
                println!("test docs/programs.md ... FAILED\n    {why}");
                failed += 1;
            }
        }
    }
    finish(passed, failed, ignored, begin)
}

/// Turns the outcome of a row of the matrix into a verdict and its word.
fn judge(row: &Row, seen: &Result<(), String>) -> (Verdict, String) {
    match (&row.state, seen) {
        (State::Works, Ok(())) => (Verdict::Ok, "ok".to_owned()),
        (State::Works, Err(why)) => (Verdict::Failed(why.clone()), "FAILED".to_owned()),
        (State::Refused(reason), Ok(())) => (Verdict::Ok, format!("ok, refused: {reason}")),
        (State::Refused(_), Err(why)) => (Verdict::Failed(why.clone()), "FAILED".to_owned()),
    }
}

fn finish(passed: usize, failed: usize, ignored: usize, begin: Instant) -> ExitCode {
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {failed} failed; {ignored} ignored; \
         0 measured; 0 filtered out; finished in {:.2}s\n",
        begin.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(failed > 0))
}
