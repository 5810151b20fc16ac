//! Failures of a command: what went wrong, what to do next, and the exit code.

use std::fmt;
use std::process::ExitCode;

use crate::text::plain;

/// The failure of a command.
#[derive(Debug)]
pub struct Fail {
    code: u8,
    what: String,
    next: Option<String>,
}

/// Exit code of a command whose output has no reader.
const UNREAD: u8 = 0;
/// The command failed.
const FAILED: u8 = 1;
/// Exit code of wrong usage, which clap uses too.
const USAGE: u8 = 2;
/// There is no such object.
const MISSING: u8 = 3;
/// The object does not meet the condition of the command.
const REFUSED: u8 = 4;

impl Fail {
    /// The command failed.
    pub fn new(what: impl Into<String>) -> Self {
        Self { code: FAILED, what: what.into(), next: None }
    }

    /// The reader of standard output has closed it, as `head` does.
    pub fn unread() -> Self {
        Self { code: UNREAD, ..Self::new("the reader of standard output has gone") }
    }

    /// The arguments are wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(what) }
    }

    /// There is no such object.
    pub fn missing(what: impl Into<String>) -> Self {
        Self { code: MISSING, ..Self::new(what) }
    }

    /// The object does not meet the condition of the command.
    pub fn refused(what: impl Into<String>) -> Self {
        Self { code: REFUSED, ..Self::new(what) }
    }

    /// Adds the place of the failure.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }

    /// Adds what the user can do next.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Returns the exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// True if the user should see the message.
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

/// Adds the name of the object to the error of a system call.
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
