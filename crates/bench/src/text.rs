//! Text for people: names without control characters, tables, and figures with their units.
//!
//! Names of tables, keys and locators come from other users. Each function that shows one escapes
//! the control characters in it, so that none reaches a terminal.

use std::borrow::Cow;

/// Most characters of a name that a message shows: enough to recognise it.
const NAME_CHARS: usize = 64;

/// Returns `text` in one line, with an escape for each character that a terminal obeys or that
/// reorders text.
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, obeyed)
}

/// True if a terminal shows `text` as it is.
pub fn is_plain(text: &str) -> bool {
    !text.contains(obeyed)
}

/// Returns `text` with its line ends, and with an escape for each other character that a terminal
/// obeys.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && obeyed(c))
}

fn escaped(text: &str, which: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&which) {
        return Cow::Borrowed(text);
    }
    let one = |c: char| if which(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(one).collect())
}

/// True for control characters (C0, DEL and C1), line and paragraph separators, and the marks of
/// bidirectional text.
fn obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}')
}

/// Formats a key or a name for a message: its beginning, and its length if that is not all.
pub fn name(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "\"\"".to_owned();
    }
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(NAME_CHARS) {
        None => plain(&text).into_owned(),
        Some((end, _)) => format!("{}… ({} bytes)", plain(&text[..end]), bytes.len()),
    }
}

/// Alignment of a table's column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lean {
    /// Aligns a column to the left: words.
    Left,
    /// Aligns a column to the right: numbers.
    Right,
}

/// A table in plain text. Each column is as wide as its widest cell, two spaces from the next.
pub struct Columns {
    leans: Vec<Lean>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Makes a table with these headings. A heading that begins with `>` has a column of numbers.
    pub fn new(headings: &[&str]) -> Self {
        let leans = headings
            .iter()
            .map(|h| if h.starts_with('>') { Lean::Right } else { Lean::Left })
            .collect();
        let head = headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
        Self { leans, rows: vec![head] }
    }

    /// Adds a row of cells to the table. Missing cells are empty.
    pub fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> =
            cells.into_iter().map(|cell| plain(cell.as_ref()).into_owned()).collect();
        row.resize(self.leans.len(), String::new());
        self.rows.push(row);
    }

    /// Returns the cells of the table by rows, of which the first has the headings.
    pub(crate) fn cells(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Returns true for each column of numbers.
    pub(crate) fn numbers(&self) -> Vec<bool> {
        self.leans.iter().map(|&lean| lean == Lean::Right).collect()
    }

    /// Returns the table as text, each line indented by two spaces.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.leans.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::from(" ");
            for ((cell, lean), width) in row.iter().zip(&self.leans).zip(&widths) {
                let pad = " ".repeat(width - cell.chars().count());
                line.push(' ');
                match lean {
                    Lean::Left => line.extend([cell.as_str(), &pad]),
                    Lean::Right => line.extend([pad.as_str(), cell]),
                }
                line.push(' ');
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Formats a time, given in microseconds, in the unit that suits it, with three digits.
pub fn micros(us: f64) -> String {
    if us < 0.9995 {
        format!("{:.0} ns", us * 1e3)
    } else if us < 9.995 {
        format!("{us:.2} µs")
    } else if us < 99.95 {
        format!("{us:.1} µs")
    } else if us < 999.5 {
        format!("{us:.0} µs")
    } else if us < 999_500.0 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

/// Formats a number of bytes in decimal units: exact where a unit divides it, else with two
/// decimals.
pub fn bytes(n: u64) -> String {
    for (unit, name) in [(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "KB")] {
        if n >= unit {
            let whole = n / unit;
            return if n.is_multiple_of(unit) {
                format!("{whole} {name}")
            } else {
                format!("{:.2} {name}", n as f64 / unit as f64)
            };
        }
    }
    format!("{n} B")
}

/// Formats a rate of `of` per second in decimal units.
pub fn rate(per_second: f64, of: &str) -> String {
    let (value, unit) = match per_second {
        r if r >= 1e9 => (r / 1e9, "G"),
        r if r >= 1e6 => (r / 1e6, "M"),
        r if r >= 1e3 => (r / 1e3, "K"),
        r => (r, ""),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}{of}/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Columns::new(&["name", ">n"]);
        table.row(["a", "1000"]);
        table.row(["äöü", "7"]);
        table.row(["short"]);
        assert_eq!(table.text(), "  name      n\n  a      1000\n  äöü       7\n  short\n");
    }

    #[test]
    fn no_control_character_of_a_name_reaches_a_terminal() {
        let hostile = "a\x1b[2Jb\u{9b}c\x7f\td\ne\u{202e}";
        let harmless = r"a\u{1b}[2Jb\u{9b}c\u{7f}\td\ne\u{202e}";
        assert_eq!(plain(hostile), harmless);
        assert_eq!(name(hostile.as_bytes()), harmless);
        let mut table = Columns::new(&["name"]);
        table.row([hostile]);
        assert_eq!(table.text(), format!("  name\n  {harmless}\n"));
        assert_eq!(lines("two\nlines\r"), "two\nlines\\r");
        assert_eq!(plain("Frank Herbert, äöü"), "Frank Herbert, äöü");
    }

    #[test]
    fn a_long_name_is_shown_by_its_beginning_and_its_length() {
        assert_eq!(name(&[b'k'; NAME_CHARS]), "k".repeat(NAME_CHARS));
        assert_eq!(
            name("ü".repeat(30_000).as_bytes()),
            format!("{}… (60000 bytes)", "ü".repeat(NAME_CHARS))
        );
        assert_eq!((name(b"\xff").as_str(), name(b"").as_str()), ("\u{fffd}", "\"\""));
    }

    #[test]
    fn units_are_decimal_and_have_three_digits() {
        assert_eq!(micros(0.4704), "470 ns");
        assert_eq!(micros(7.125), "7.12 µs");
        assert_eq!(micros(43.21), "43.2 µs");
        assert_eq!(micros(1234.5), "1.23 ms");
        assert_eq!(bytes(100), "100 B");
        assert_eq!(bytes(1_000_000), "1 MB");
        assert_eq!(bytes(1_234_567), "1.23 MB");
        assert_eq!(rate(2_345_678.0, "op"), "2.35 Mop/s");
        assert_eq!(rate(13.2, "B"), "13.2 B/s");
    }
}
