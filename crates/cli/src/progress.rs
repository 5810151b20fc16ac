//! The display of progress on standard error: a bar on a terminal, else a plain line now and then.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use sprat_bench::out;

/// The time between two plain lines of progress, where standard error is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// The progress of a long operation, such as an import.
pub(crate) struct Progress {
    verb: &'static str,
    bar: Option<ProgressBar>,
    total: Option<u64>,
    said: Cell<Instant>,
}

impl Progress {
    /// Begins to show progress at 0 of `total` bytes or items, if the total is known.
    pub(crate) fn new(verb: &'static str, total: Option<u64>) -> Self {
        let bar = stderr().is_terminal().then(|| match total {
            Some(total) => {
                let style =
                    ProgressStyle::with_template("  {bar:40} {percent:>3} %  {msg}  {eta} left");
                ProgressBar::new(total)
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            }
            None => {
                let style = ProgressStyle::with_template("  {spinner} {msg}  {elapsed}");
                ProgressBar::new_spinner()
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
            }
        });
        Self { verb, bar, total, said: Cell::new(Instant::now()) }
    }

    /// Shows that a long operation is at `position` of the total, and has done `records`.
    pub(crate) fn at(&self, position: u64, records: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            // Formatting a message costs more than writing a record.
            if records.is_multiple_of(256) {
                bar.set_message(format!("{records} records {}", self.verb));
            }
        } else if self.said.get().elapsed() >= PLAIN_EVERY {
            self.said.set(Instant::now());
            match self.total {
                Some(total) if total > 0 => {
                    out::note(format_args!(
                        "{records} records {}, {} %",
                        self.verb,
                        position * 100 / total
                    ));
                }
                _ => out::note(format_args!("{records} records {}", self.verb)),
            }
        }
    }

    /// Shows the state of a long operation whose total is unknown.
    pub(crate) fn say(&self, state: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(state.to_owned());
            bar.tick();
        } else if self.said.get().elapsed() >= PLAIN_EVERY {
            self.said.set(Instant::now());
            out::note(state);
        }
    }

    /// Prints a line above the progress bar.
    pub(crate) fn note(&self, line: impl Display) {
        match &self.bar {
            Some(bar) => bar.println(out::lines(&line.to_string())),
            None => out::note(line),
        }
    }

    /// Removes the progress bar.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
