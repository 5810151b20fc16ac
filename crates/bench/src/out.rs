//! Output: results and tables on standard output, everything else on standard error.
//!
//! [`print()`] and [`note`] escape control characters in text for people; [`raw`] writes values and
//! JSON as they are. A closed standard output (`sprat export books - | head`) ends the command
//! without a message.

use std::io::{self, IsTerminal as _, Write};

use crate::fail::Fail;
pub use crate::text::{Columns, bytes, is_plain, lines, micros, name, plain, rate};

/// Writes text for people to standard output at once.
pub fn print(text: impl AsRef<str>) -> Result<(), Fail> {
    raw(lines(text.as_ref()).as_bytes())
}

/// Writes `bytes` to standard output at once, without any change: a value, or JSON.
pub fn raw(bytes: impl AsRef<[u8]>) -> Result<(), Fail> {
    let mut out = io::stdout().lock();
    out.write_all(bytes.as_ref()).and_then(|()| out.flush()).map_err(|error| failed(&error))
}

/// Writes an object's value to standard output. A terminal gets a newline after a value that ends
/// without one.
pub fn value(bytes: &[u8]) -> Result<(), Fail> {
    raw(bytes)?;
    let wants_newline = io::stdout().is_terminal() && !bytes.ends_with(b"\n");
    if wants_newline { raw("\n") } else { Ok(()) }
}

/// Returns the failure of a command that cannot write to standard output.
pub fn failed(error: &io::Error) -> Fail {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Fail::unread(),
        _ => Fail::new(format!("cannot write to standard output: {error}")),
    }
}

/// Writes lines for people to standard error. A closed standard error is no failure.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{}", lines(&text.to_string()));
}
