//! Failures of a command: what went wrong, what to do next, and the exit code.

use std::fmt;
use std::process::ExitCode;

use crate::text::plain;

/// The failure of a command: a message, the user's next step, and the exit code.
#[derive(Debug)]
pub struct Fail {
    code: u8,
    what: String,
    next: Option<String>,
}

/// Exit code of a command whose output has no reader.
const UNREAD: u8 = 0;
/// Exit code of a command that failed for a reason without a code of its own.
const FAILED: u8 = 1;
/// Exit code of wrong usage, which clap uses too.
const USAGE: u8 = 2;
/// Exit code of a command whose object does not exist.
const MISSING: u8 = 3;
/// Exit code of a command whose condition the object does not meet.
const REFUSED: u8 = 4;

impl Fail {
    /// Makes the failure of a command, with `what` as its message.
    pub fn new(what: impl Into<String>) -> Self {
        Self { code: FAILED, what: what.into(), next: None }
    }

    /// Makes the failure of a command whose standard output has no reader any more, as with `head`.
    pub fn unread() -> Self {
        Self { code: UNREAD, ..Self::new("the reader of standard output has gone") }
    }

    /// Makes the failure of a command whose arguments are wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(what) }
    }

    /// Makes the failure of a command whose object does not exist.
    pub fn missing(what: impl Into<String>) -> Self {
        Self { code: MISSING, ..Self::new(what) }
    }

    /// Makes the failure of a command whose condition the object does not meet.
    pub fn refused(what: impl Into<String>) -> Self {
        Self { code: REFUSED, ..Self::new(what) }
    }

    /// Adds the place of the failure to the beginning of the message.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }

    /// Adds the user's next step to the failure.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Returns the exit code of the failed command.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// True if the user should see the failure's message.
    pub const fn has_a_reader(&self) -> bool {
        self.code != UNREAD
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sprat: {}", plain(&self.what))?;
        match &self.next {
            Some(next) => write!(f, "\n  next: {}", plain(next)),
            None => Ok(()),
        }
    }
}

/// A trait that turns an error into a [`Fail`] that names the file, address or other object of the
/// failed call.
pub trait Named<T> {
    /// Turns the error into a [`Fail`] that begins with `what`.
    fn named(self, what: impl fmt::Display) -> Result<T, Fail>;
}

impl<T, E: fmt::Display> Named<T> for Result<T, E> {
    fn named(self, what: impl fmt::Display) -> Result<T, Fail> {
        self.map_err(|error| Fail::new(format!("{what}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_of_a_message_reaches_a_terminal() {
        let hostile = "a\x1b[2Jb\n";
        assert_eq!(
            Fail::new(hostile).next(hostile).to_string(),
            "sprat: a\\u{1b}[2Jb\\n\n  next: a\\u{1b}[2Jb\\n"
        );
    }
}
