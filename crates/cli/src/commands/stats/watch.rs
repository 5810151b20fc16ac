//! `sprat stats --watch`: repeats what matters most until Ctrl-C.

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use sprat_bench::fail::Fail;
use sprat_bench::out;
use sprat_bench::process::StopSignals;
use sprat_sys::clock;

use super::sample::Sample;
use super::summary;
use crate::options::Cluster;

/// The time that the cluster may take for an answer, unless --timeout says otherwise: the next
/// table is due soon.
const ANSWER: Duration = Duration::from_secs(2);
/// The number of lines after which lines that are no table on a terminal get headings again.
const HEADINGS_EACH: usize = 40;
/// The least width of a cell in such lines, so that they stay below each other.
const CELL: usize = 9;

/// Moves a terminal's cursor to the upper left.
const HOME: &str = "\x1b[H";
/// Clears a terminal from the cursor to the end of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears a terminal from the cursor on.
const CLEAR_REST: &str = "\x1b[J";

/// Runs `sprat stats --watch`.
pub(super) fn run(at: &Cluster, interval: Duration, json: bool) -> Result<(), Fail> {
    let signals = StopSignals::catch()?;
    let (stop, stopped) = channel();
    signals.then(move || _ = stop.send(()))?;
    let mut store = at.connect()?;
    if at.timeout.is_none() {
        store.set_timeout(ANSWER);
    }
    let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
    let is_terminal = io::stdout().is_terminal();
    let mut lines = Lines::default();
    let mut before = None;
    let mut due = clock::now();
    loop {
        match Sample::take(&mut store) {
            Ok(sample) => {
                if json {
                    out::raw(sample.json(Some(before.as_ref())))?;
                } else if is_terminal {
                    out::raw(screen(&sample, before.as_ref(), interval))?;
                } else {
                    out::raw(lines.of(&sample, before.as_ref()))?;
                }
                before = Some(sample);
            }
            // A cluster that does not answer the first time has the wrong name, or is down.
            Err(fail) if before.is_none() => return Err(fail),
            Err(fail) => out::note(&fail),
        }
        // A sample that took long leaves the times of the others as they are.
        let now = clock::now();
        while due <= now {
            due = due.after(interval_ns);
        }
        match stopped.recv_timeout(Duration::from_nanos(due.since(now))) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Returns a table that replaces the last one on a terminal.
fn screen(sample: &Sample, before: Option<&Sample>, interval: Duration) -> String {
    let since = match before {
        Some(before) => format!("rates of the last {:.1} s", sample.seconds_since(before)),
        None => "rates since the start of each server".to_owned(),
    };
    let text = format!(
        "{}  {since}; each {} s, until Ctrl-C\n\n{}{}",
        time_of_day(sample.wall_ms),
        interval.as_secs_f64(),
        summary::coordinator(sample),
        summary::columns(sample, before).text()
    );
    let text = out::lines(&text).replace('\n', &format!("{CLEAR_LINE}\n"));
    format!("{HOME}{text}{CLEAR_REST}")
}

/// Lines for files and programs: each has a time, and all have the same columns.
#[derive(Default)]
struct Lines {
    /// The number of lines since the last headings.
    since: Option<usize>,
}

impl Lines {
    fn of(&mut self, sample: &Sample, before: Option<&Sample>) -> String {
        let mut text = String::new();
        if self.since.is_none_or(|since| since >= HEADINGS_EACH) {
            text += &line("time", &summary::HEADINGS.map(str::to_owned));
            self.since = Some(0);
        }
        let time = time_of_day(sample.wall_ms);
        for row in summary::rows(sample, before) {
            text += &line(&time, &row);
            self.since = self.since.map(|since| since + 1);
        }
        text
    }
}

/// Returns a line of cells. Each is as wide as its heading, and at least [`CELL`].
fn line(time: &str, cells: &[String]) -> String {
    let mut line = format!("{time:<CELL$}");
    for (cell, heading) in cells.iter().zip(summary::HEADINGS) {
        let cell = out::plain(cell.trim_start_matches('>')).into_owned();
        let width = heading.len().max(CELL);
        line += &match heading.starts_with('>') {
            true => format!(" {cell:>width$}"),
            false => format!(" {cell:<width$}"),
        };
    }
    format!("{}\n", line.trim_end())
}

/// Returns the time of day in UTC.
fn time_of_day(wall_ms: u64) -> String {
    let seconds = wall_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_below_each_other() {
        let headings = line("time", &summary::HEADINGS.map(str::to_owned));
        let cells = [
            "1.1", "1000000", "2.50 MB", "1 GB", "1.50 M", "15.0", "2.00", "812 ns", "9.92 ms",
            "2", "5 of 8",
        ];
        let text = line("12:34:56Z", &cells.map(str::to_owned));
        let end = |text: &str, of: &str| text.find(of).map(|at| at + of.len());
        assert_eq!(end(&headings, "objects"), end(&text, "1000000"));
        assert_eq!(end(&headings, "segments free"), end(&text, "5 of 8"));
    }

    #[test]
    fn headings_come_again() {
        let mut lines = Lines::default();
        let sample = Sample::default();
        assert!(lines.of(&sample, None).starts_with("time "));
        assert_eq!(lines.of(&sample, None), "");
        lines.since = Some(HEADINGS_EACH);
        assert!(lines.of(&sample, None).starts_with("time "));
    }

    #[test]
    fn the_time_of_day_is_that_of_utc() {
        assert_eq!(time_of_day(1_700_000_000_123), "22:13:20Z");
    }
}
