//! The log of a process that serves, on standard error: one place for all its messages.
//!
//! ```text
//! 2026-11-26T19:52:00.123Z warning server 4711 fast+shm:name=lab.1: a turn took 5.10 ms …
//! {"time":"2026-11-26T19:52:00.123Z","level":"warning","process":"server","pid":4711,"at":…}
//! ```
//! Without `--log-format` a message is a line for people, as those of other commands. A message of
//! the thread that serves goes through a thread of the log, so that a standard error that takes
//! nothing never stops the server. The queue between them is bounded; what does not fit is dropped
//! and counted.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Map, Value};
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;
use sprat_sys::clock;

/// The longest time that the end of a process waits for its log.
const FLUSH: Duration = Duration::from_millis(200);
/// The most messages that wait for the log's thread.
const WAITING: usize = 256;

/// The format of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// A line with the time, the level and the process in front.
    Text,
    /// A JSON object a line.
    Json,
}

impl Format {
    /// Returns the name of the format on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// The weight of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// The message tells the course of things.
    Info,
    /// The process goes on, and something is wrong.
    Warning,
    /// The process ends.
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A message with the numbers that it names, for programs.
pub(crate) struct Message {
    pub(crate) level: Level,
    pub(crate) text: String,
    pub(crate) fields: Vec<(&'static str, Value)>,
}

impl Message {
    /// Makes a message without numbers.
    pub(crate) fn new(level: Level, text: impl Into<String>) -> Self {
        Self { level, text: text.into(), fields: Vec::new() }
    }
}

/// The log of this process.
#[derive(Debug)]
struct Log {
    format: Option<Format>,
    /// The kind of the process, and its first locator.
    process: &'static str,
    at: String,
    queue: SyncSender<Queued>,
    /// The number of messages that were dropped since the last one that was not.
    dropped: AtomicU64,
}

/// A message for the log's thread, or a request.
enum Queued {
    /// A message with the time in milliseconds since 1970, and the number of those dropped before
    /// it.
    Message(u64, Message, u64),
    /// Says when everything before it is written.
    Flush(SyncSender<()>),
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.level.name(), self.text)
    }
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Begins the log of this process, which is a `process` at these locators.
pub(crate) fn begin(
    format: Option<Format>,
    process: &'static str,
    locators: &str,
) -> Result<(), Fail> {
    let (queue, queued) = sync_channel(WAITING);
    let at = locators.split(';').next().unwrap_or_default().to_owned();
    let log = Log { format, process, at, queue, dropped: AtomicU64::new(0) };
    if LOG.set(log).is_ok() {
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write_queued(&queued)).named("cannot start a thread")?;
    }
    Ok(())
}

fn write_queued(queued: &Receiver<Queued>) {
    for queued in queued {
        let (wall_ms, message, dropped) = match queued {
            Queued::Message(wall_ms, message, dropped) => (wall_ms, message, dropped),
            Queued::Flush(written) => {
                let _ = written.try_send(());
                continue;
            }
        };
        if dropped > 0 {
            let text = format!("{dropped} messages were dropped: the log was full");
            write_at(wall_ms, &Message::new(Level::Warning, text));
        }
        write_at(wall_ms, &message);
    }
}

/// Writes a message to the log at once.
pub(crate) fn write(message: &Message) {
    write_at(clock::wall_ms(), message);
}

/// Hands a message to the log's thread, or drops it if too many wait: the call never waits.
pub(crate) fn queue(message: Message) {
    let Some(log) = LOG.get() else { return write(&message) };
    let dropped = log.dropped.swap(0, Ordering::Relaxed);
    let queued = Queued::Message(clock::wall_ms(), message, dropped);
    if log.queue.try_send(queued).is_err() {
        log.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
    }
}

/// Waits until everything in the queue is written, for at most [`FLUSH`].
pub(crate) fn flush() {
    let (written, wait) = sync_channel(1);
    let log = LOG.get();
    if log.is_some_and(|log| log.queue.try_send(Queued::Flush(written)).is_ok()) {
        let _ = wait.recv_timeout(FLUSH);
    }
}

/// True if the log has a format.
pub(crate) fn has_format() -> bool {
    LOG.get().is_some_and(|log| log.format.is_some())
}

/// Writes the failure that ends this process.
pub(crate) fn failed(fail: &Fail) {
    if !has_format() {
        return out::note(fail);
    }
    let text = fail.to_string().replace("\n  next: ", "; next: ");
    write(&Message::new(Level::Error, text.trim_start_matches("sprat: ")));
}

/// Writes that a signal ends this process, if its log has a format.
pub(crate) fn ends() {
    if has_format() {
        queue(Message::new(Level::Info, "ends after a signal"));
    }
}

fn write_at(wall_ms: u64, message: &Message) {
    let line = match LOG.get() {
        Some(log @ Log { format: Some(format), .. }) => {
            log.line(*format, std::process::id(), wall_ms, message)
        }
        _ => match message.level {
            Level::Info => message.text.clone(),
            level => format!("{}: {}", level.name(), message.text),
        },
    };
    // One write, so that lines of processes that share standard error stay whole. A closed standard
    // error is no failure.
    let _ = std::io::stderr().lock().write_all(format!("{}\n", out::lines(&line)).as_bytes());
}

impl Log {
    /// Returns a message as a line.
    fn line(&self, format: Format, pid: u32, wall_ms: u64, message: &Message) -> String {
        let (time, level) = (timestamp(wall_ms), message.level.name());
        match format {
            Format::Text => {
                let text = out::plain(&message.text);
                format!("{time} {level} {} {pid} {}: {text}", self.process, out::plain(&self.at))
            }
            Format::Json => {
                let mut object = Map::new();
                object.insert("time".to_owned(), time.into());
                object.insert("level".to_owned(), level.into());
                object.insert("process".to_owned(), self.process.into());
                object.insert("pid".to_owned(), pid.into());
                object.insert("at".to_owned(), self.at.clone().into());
                object.insert("message".to_owned(), message.text.clone().into());
                for (name, value) in &message.fields {
                    object.insert((*name).to_owned(), value.clone());
                }
                Value::from(object).to_string()
            }
        }
    }
}

/// Returns a time in UTC as RFC 3339 has it.
fn timestamp(wall_ms: u64) -> String {
    let (days, ms) = (wall_ms / 86_400_000, wall_ms % 86_400_000);
    // Days since 1 March of the year 0; eras of 400 years repeat. Years begin in March here, so
    // that the day that is not in each year is the last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (wall_ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (4_107_542_400_007, "2100-03-01T00:00:00.007Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        ] {
            assert_eq!(timestamp(wall_ms), expected);
        }
    }

    #[test]
    fn a_message_is_one_line() {
        let (queue, _queued) = sync_channel(1);
        let at = "tcp:host=127.0.0.1,port=7740".to_owned();
        let dropped = AtomicU64::new(0);
        let log = Log { format: None, process: "server", at, queue, dropped };
        let message = Message {
            level: Level::Warning,
            text: "two\nlines\x1b".to_owned(),
            fields: vec![("bytes", 7.into())],
        };
        let text = log.line(Format::Text, 12, 1_700_000_000_123, &message);
        let head = "2023-11-14T22:13:20.123Z warning server 12 tcp:host=127.0.0.1,port=7740: ";
        assert_eq!(text, format!("{head}two\\nlines\\u{{1b}}"));
        let json = log.line(Format::Json, 12, 1_700_000_000_123, &message);
        assert!(!json.contains(['\n', '\x1b']), "{json}");
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["message"], "two\nlines\x1b");
        assert_eq!((&json["level"], &json["bytes"]), (&"warning".into(), &7.into()));
        assert_eq!((&json["process"], &json["pid"]), (&"server".into(), &12.into()));
    }
}
