//! How a command fails: what went wrong, what to do next, and the exit code.

use std::fmt;
use std::process::ExitCode;

use crate::text::plain;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub struct Fail {
    code: u8,
    what: String,
    next: Option<String>,
}

/// Nothing is wrong, but what is left to do is of no use.
const UNREAD: u8 = 0;
/// The command failed.
const FAILED: u8 = 1;
/// What was typed makes no sense; clap uses the same code.
const USAGE: u8 = 2;
/// There is no such object.
const MISSING: u8 = 3;
/// The object is not in the state that was demanded.
const REFUSED: u8 = 4;

impl Fail {
    /// The command failed.
    pub fn new(what: impl Into<String>) -> Self {
        Self { code: FAILED, what: what.into(), next: None }
    }

    /// The reader of standard output has gone, as `head` does when it has enough.
    pub fn unread() -> Self {
        Self { code: UNREAD, ..Self::new("the reader of standard output has gone") }
    }

    /// What was typed makes no sense.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(what) }
    }

    /// There is no such object.
    pub fn missing(what: impl Into<String>) -> Self {
        Self { code: MISSING, ..Self::new(what) }
    }

    /// The object is not in the state that was demanded.
    pub fn refused(what: impl Into<String>) -> Self {
        Self { code: REFUSED, ..Self::new(what) }
    }

    /// Says where it went wrong.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }

    /// Adds what the reader can do about it.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// The exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }

    /// Whether there is a reason to say it.
    pub const fn is_worth_saying(&self) -> bool {
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

/// A system call failed on something that has a name.
pub trait Named<T> {
    /// Says `what` could not be done, and to what.
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
