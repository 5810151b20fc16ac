//! What people read: results and tables on standard output, everything else on standard error.
//!
//! A reader that goes away (`sprat export - | head`) ends the command quietly.

use std::io::{self, Write};

use crate::fail::Fail;

/// Writes `text` to standard output at once.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Fail> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        // Whoever read the output has enough of it; there is nobody to tell.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Fail::new(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes one line to standard error; if that is gone, so is the reason to write.
pub(crate) fn note(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Which way a column leans.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lean {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table in plain text: columns as wide as their widest cell, two spaces apart.
pub(crate) struct Columns {
    leans: Vec<Lean>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// A table with these headings; a heading that begins with `>` heads a column of numbers.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let leans =
            headings.iter().map(|h| if h.starts_with('>') { Lean::Right } else { Lean::Left }).collect();
        let head = headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
        Self { leans, rows: vec![head] }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.leans.len(), String::new());
        self.rows.push(row);
    }

    /// The whole table, each line indented by two spaces.
    pub(crate) fn text(&self) -> String {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
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

/// A time in the unit that suits it, three digits.
pub(crate) fn micros(us: f64) -> String {
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

/// A decimal size: exact where a unit divides it, else two digits after the point.
pub(crate) fn bytes(n: u64) -> String {
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

/// A rate in decimal units.
pub(crate) fn rate(per_second: f64, of: &str) -> String {
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
