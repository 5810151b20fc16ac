//! Files of records in JSON Lines: `{"key":"…","value":"…"}`, one object a line; `key64` and
//! `value64` have bytes that are no text. `expires_ms` is the end of a lifetime.
//!
//! The reader skips empty lines, other members, and a byte order mark at the start of the file.
//! Everything else that is not an object with one key and one value is malformed, also a member
//! that is given twice.

use std::borrow::Cow;
use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};

use super::{Bad, LINE_LIMIT, Next, Reader, Record, Shown, Writer, assemble, show};
use sprat_bench::fail::{Fail, Named};

/// The byte order mark U+FEFF, which some Windows programs write at the start of a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// One line of a file in JSON Lines: the members of a record.
#[derive(Deserialize, Serialize, Default)]
struct Line<'t> {
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    key64: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'t, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    value64: Option<Cow<'t, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
}

/// A reader of records in JSON Lines.
pub(super) struct Lines<I> {
    input: I,
    line: u64,
    bytes: Vec<u8>,
}

impl<I: BufRead> Lines<I> {
    pub(super) fn new(input: I) -> Self {
        Self { input, line: 0, bytes: Vec::new() }
    }

    /// Reads the next line of the file into `bytes`, up to the limit of its length. False at the
    /// end of the file.
    fn read(&mut self) -> io::Result<bool> {
        self.bytes.clear();
        let mut limited = self.input.by_ref().take(LINE_LIMIT as u64 + 1);
        Ok(limited.read_until(b'\n', &mut self.bytes)? != 0)
    }

    /// Skips the remaining bytes of a line that is too long.
    fn skip_rest(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.input.fill_buf()?;
            let (used, done) = match buffer.iter().position(|&b| b == b'\n') {
                Some(end) => (end + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            self.input.consume(used);
            if done {
                return Ok(());
            }
        }
    }

    fn parse(&self) -> Result<Record, String> {
        // Without this check an array would be accepted: serde takes its elements as the members in
        // order.
        if !self.bytes.trim_ascii_start().starts_with(b"{") {
            return Err("not a JSON object".to_owned());
        }
        let line: Line<'_> = serde_json::from_slice(&self.bytes).map_err(|error| {
            // The parser's own line number is always 1.
            let text = error.to_string();
            text.split(" at line ")
                .next()
                .map_or_else(|| text.clone(), |t| format!("{t} (column {})", error.column()))
        })?;
        assemble(
            line.key.as_deref(),
            line.key64.as_deref(),
            line.value.as_deref(),
            line.value64.as_deref(),
            line.expires_ms,
        )
    }
}

impl<I: BufRead> Reader for Lines<I> {
    fn next(&mut self) -> Result<Next, Fail> {
        loop {
            self.line += 1;
            if !self.read().named(format_args!("cannot read line {}", self.line))? {
                return Ok(Next::End);
            }
            if self.line == 1 && self.bytes.starts_with(BYTE_ORDER_MARK) {
                self.bytes.drain(..BYTE_ORDER_MARK.len());
            }
            if self.bytes.len() > LINE_LIMIT {
                if !self.bytes.ends_with(b"\n") {
                    self.skip_rest().named(format_args!("cannot read line {}", self.line))?;
                }
                let why = format!("longer than {LINE_LIMIT} bytes");
                return Ok(Next::Bad(Bad { line: self.line, why }));
            }
            if self.bytes.trim_ascii().is_empty() {
                continue;
            }
            return Ok(match self.parse() {
                Ok(record) => Next::Record(self.line, record),
                Err(why) => Next::Bad(Bad { line: self.line, why }),
            });
        }
    }
}

/// A writer of records in JSON Lines.
pub(super) struct Printer<O>(O);

impl<O: Write> Printer<O> {
    pub(super) fn new(output: O) -> Self {
        Self(output)
    }
}

impl<O: Write> Writer for Printer<O> {
    fn write(&mut self, record: &Record) -> io::Result<()> {
        let mut line = Line { expires_ms: record.expires_ms, ..Line::default() };
        match show(&record.key) {
            Shown::Text(text) => line.key = Some(text.into()),
            Shown::Base64(code) => line.key64 = Some(code.into()),
        }
        match show(&record.value) {
            Shown::Text(text) => line.value = Some(text.into()),
            Shown::Base64(code) => line.value64 = Some(code.into()),
        }
        serde_json::to_writer(&mut self.0, &line)?;
        self.0.write_all(b"\n")
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
