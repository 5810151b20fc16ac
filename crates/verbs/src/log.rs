//! The log that the variable `SPRAT_LOG` enables: decisions of the libraries that explain why a
//! program does not work.
//!
//! ```text
//!   SPRAT_LOG=error               calls and requests that fail, errors that end connections
//!   SPRAT_LOG=info                also: the engine, devices opened, connections and their ends
//!   SPRAT_LOG=debug               also: events, calls that find nothing (EAGAIN)
//!   SPRAT_LOG=info,/tmp/log-%p    appends to a file; %p is the process id
//!
//!   sprat[4711] 0.103277 info: opens iw_lo
//! ```
//!
//! A line has the process id, the seconds since the process's first line, the level and the text.
//! One write call writes it, so lines of several threads and processes do not mix. The log keeps no
//! descriptor open, since a program that closes all descriptors could reuse its number. A line that
//! cannot be written is dropped.
//!
//! Invariant: a disabled message costs one atomic load, and its text is not formatted.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use sprat_sys::clock;

/// The importance of a log message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Level {
    /// The message reports a failed call or request, or an error that ended a connection.
    Error = 1,
    /// The message reports a decision that a program sees: a device opened, a connection made or
    /// refused.
    Info,
    /// The message reports a rare event. Nothing on the data path is logged.
    Debug,
}

const NAME: &str = "SPRAT_LOG";
/// The log level before the environment is read.
const UNKNOWN: u8 = u8::MAX;
/// The highest enabled log level; 0 disables the log.
static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);
/// The name of the log file, or none for standard error.
static FILE: OnceLock<Option<String>> = OnceLock::new();

/// True if log messages of this level are enabled.
#[inline]
pub(crate) fn on(level: Level) -> bool {
    match LEVEL.load(Ordering::Relaxed) {
        UNKNOWN => level as u8 <= read_environment(),
        highest => level as u8 <= highest,
    }
}

/// Reads the log's level and file from the environment, once.
#[cold]
fn read_environment() -> u8 {
    let value = std::env::var(NAME).unwrap_or_default();
    let (highest, file) = parse(&value).unwrap_or_else(|| {
        write_line(
            None,
            format_args!(
                "sprat: {NAME}={value:?} is invalid. \
                 next: set error, info or debug, or a level and a file as in info,FILE\n"
            ),
        );
        (0, None)
    });
    let _ = FILE.set(file.map(str::to_owned));
    LEVEL.store(highest, Ordering::Relaxed);
    highest
}

/// Parses the value of the variable `SPRAT_LOG` into a level (0 for off) and a file name.
fn parse(value: &str) -> Option<(u8, Option<&str>)> {
    let (level, file) =
        value.split_once(',').map_or((value, None), |(level, file)| (level, Some(file)));
    let highest = match level.trim() {
        "" | "off" | "0" => 0,
        "error" => Level::Error as u8,
        "info" | "1" => Level::Info as u8,
        "debug" => Level::Debug as u8,
        _ => return None,
    };
    Some((highest, file.filter(|f| !f.is_empty())))
}

/// Writes a message to the log; [`log!`](crate::log::log) calls it.
#[cold]
pub(crate) fn write(level: Level, text: fmt::Arguments<'_>) {
    let name = match level {
        Level::Error => "error",
        Level::Info => "info",
        Level::Debug => "debug",
    };
    let process = std::process::id();
    let since = clock::now().as_ns();
    let (seconds, us) = (since / 1_000_000_000, since / 1000 % 1_000_000);
    // A forked child writes to a file of its own.
    let file = FILE
        .get()
        .and_then(Option::as_ref)
        .map(|file| PathBuf::from(file.replace("%p", &process.to_string())));
    write_line(
        file.as_deref(),
        format_args!("sprat[{process}] {seconds}.{us:06} {name}: {text}\n"),
    );
}

/// Writes one line to the log by one write call.
fn write_line(file: Option<&Path>, text: fmt::Arguments<'_>) {
    let bytes = text.to_string();
    let written = match file {
        Some(file) => File::options()
            .append(true)
            .create(true)
            .open(file)
            .and_then(|mut f| f.write_all(bytes.as_bytes())),
        None => std::io::stderr().write_all(bytes.as_bytes()),
    };
    // A log that cannot be written cannot report that.
    drop(written);
}

/// Logs a message if its level is enabled: `log!(Info, "connects to {address}")`.
macro_rules! log {
    ($level:ident, $($text:tt)+) => {
        if $crate::log::on($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, format_args!($($text)+));
        }
    };
}
pub(crate) use log;

#[cfg(test)]
mod tests {
    use super::{Level, parse};

    #[test]
    fn values_are_levels_and_files() {
        assert_eq!(parse(""), Some((0, None)));
        assert_eq!(parse("off"), Some((0, None)));
        assert_eq!(parse("error"), Some((Level::Error as u8, None)));
        assert_eq!(parse("info,/tmp/a,b"), Some((Level::Info as u8, Some("/tmp/a,b"))));
        assert_eq!(parse("debug,"), Some((Level::Debug as u8, None)));
        assert_eq!(parse("loud"), None);
    }
}
