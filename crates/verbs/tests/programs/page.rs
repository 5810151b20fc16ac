//! The matrix of programs as text: the form that a run prints, and the page docs/programs.md.

use std::fmt::Write as _;
use std::fs;

use crate::over::Over;
use crate::support::repository;
use crate::table::{Row, State, UNDER, VALGRIND};

const PAGE: &str = "docs/programs.md";
/// The environment variable that makes the test write the page docs/programs.md instead of
/// comparing it.
pub(crate) const WRITE: &str = "SPRAT_WRITE_PROGRAMS";
/// The line that ends the hand-written text of docs/programs.md; the table follows it.
const MARK: &str = "<!-- made of crates/verbs/tests/programs/table.rs -->\n";

/// The matrix of a run's outcomes, a line for each program: each option with pass, the reason, or
/// FAILED.
pub(crate) fn matrix(rows: &[(&Row, bool)]) -> String {
    let mut text = String::from("program × option");
    let mut last = "";
    for (row, good) in rows {
        if row.program() != last {
            last = row.program();
            write!(text, "\n{last:<14}").expect("a string grows");
        }
        let option = if row.option.is_empty() { "plain" } else { &row.option };
        let over = if row.over == Over::Loopback { "" } else { " over " };
        let word = match (&row.state, good) {
            (State::Works, true) => "pass".to_owned(),
            (State::Refused(reason), true) => format!("({reason})"),
            (_, false) => "FAILED".to_owned(),
        };
        write!(text, " | {option}{over}{}: {word}", row.over.name()).expect("a string grows");
    }
    text + "\n"
}

/// The table of the page docs/programs.md.
fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "\nIn commands {UNDER} stands for\n\n```text\n{VALGRIND}\n```\n\n\
         and SUPPRESSIONS for `crates/verbs/tests/programs/valgrind.supp`.\n\n\
         | server | client | state |\n| --- | --- | --- |\n"
    );
    for row in rows.iter().filter(|row| row.over == Over::Loopback) {
        let state = match row.state {
            State::Works => "pass".to_owned(),
            State::Refused(reason) => format!("refused: {reason}"),
        };
        let server =
            row.server.as_ref().map_or_else(|| "–".to_owned(), |server| code(&row.shown(server)));
        writeln!(text, "| {server} | {} | {state} |", code(&row.shown(&row.client)))
            .expect("a string grows");
    }
    text.push_str("\n## Over our own TCP\n\n| over | server | client |\n| --- | --- | --- |\n");
    for row in rows.iter().filter(|row| row.over != Over::Loopback) {
        let server = row.server.as_ref().map_or_else(|| "–".to_owned(), |server| code(server));
        writeln!(text, "| {} | {server} | {} |", row.over.name(), code(&row.client))
            .expect("a string grows");
    }
    text
}

fn code(command: &str) -> String {
    format!("`{}`", command.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Compares the page docs/programs.md with the table of rows, or writes it.
///
/// # Errors
/// The page differs.
pub(crate) fn same(rows: &[Row]) -> Result<(), String> {
    let path = repository().join(PAGE);
    let page = fs::read_to_string(&path).map_err(|e| format!("{PAGE}: {e}"))?;
    let (own, made) = page.split_once(MARK).ok_or_else(|| format!("{PAGE}: no line {MARK}"))?;
    let expected = table(rows);
    if std::env::var_os(WRITE).is_some() {
        return fs::write(&path, format!("{own}{MARK}{expected}"))
            .map_err(|e| format!("{PAGE}: {e}"));
    }
    if made == expected {
        Ok(())
    } else {
        Err(format!("{PAGE} says otherwise: {WRITE}=1 writes it"))
    }
}
