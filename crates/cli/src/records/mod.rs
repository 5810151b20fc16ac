//! Files of records, as JSON Lines ([`jsonl`]) or CSV ([`csv`]). A record is a key and a
//! value, and the end of its lifetime if the object expires.
//!
//! Bytes that are UTF-8 appear as text, others as base64 in fields whose names end in `64`. A file
//! that was written here reads back as the same bytes. A malformed record is a [`Bad`] with its
//! line, and reading continues after it. No line and no field takes more memory than
//! [`LINE_LIMIT`].

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, ValueEnum};
use sprat_store::types::{MAX_KEY, MAX_VALUE, WallTime};

use sprat_bench::fail::Fail;

mod csv;
mod jsonl;

/// The longest line of a file of records in bytes: enough for the largest key and value with every
/// byte escaped.
const LINE_LIMIT: usize = 8 << 20;

/// Format of a file of records.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// JSON Lines: one object a line.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
}

/// Options for the table and the file of an import or export.
#[derive(Args, Clone, Debug)]
pub(crate) struct File {
    /// Name of the table.
    #[arg(value_name = "TABLE")]
    first: OsString,
    /// The file; `-` is standard input or output.
    #[arg(value_name = "FILE", required_unless_present = "named", conflicts_with = "named")]
    second: Option<PathBuf>,
    /// Name of the table in the spelling of earlier versions: FILE --table TABLE.
    #[arg(long = "table", id = "named", value_name = "TABLE", hide = true)]
    named: Option<String>,
    /// Format of the file. The default is the one of its extension (.jsonl, .ndjson, .json, .csv).
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// Number of operations in progress.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=4096),
    )]
    pub(crate) outstanding: u16,
}

impl File {
    /// Makes the options for the file `path` and the table `table`.
    pub(crate) fn new(table: &str, path: PathBuf, format: Format) -> Self {
        let (first, second) = (table.into(), Some(path));
        Self { first, second, named: None, format: Some(format), outstanding: 64 }
    }

    /// Returns the name of the table that an import or export uses.
    pub(crate) fn table(&self) -> Result<&str, Fail> {
        self.named.as_deref().or_else(|| self.first.to_str()).ok_or_else(|| {
            Fail::usage(format!("the name {} is not UTF-8", self.first.to_string_lossy()))
                .next("table names are UTF-8: see sprat table list")
        })
    }

    /// Returns the path of the file that an import or export uses.
    pub(crate) fn path(&self) -> &Path {
        self.second.as_deref().unwrap_or_else(|| Path::new(&self.first))
    }

    /// Returns the format of the file that an import or export uses.
    pub(crate) fn format(&self) -> Result<Format, Fail> {
        format_of(self.path(), self.format)
    }
}

/// A record: a key and its value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Record {
    /// The key of the record, at most 64 KiB.
    pub(crate) key: Vec<u8>,
    /// The value of the record, at most 1 MiB.
    pub(crate) value: Vec<u8>,
    /// The end of the object's lifetime in milliseconds since 1970, `None` if it does not expire.
    pub(crate) expires_ms: Option<u64>,
}

/// A malformed record of a file, and its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bad {
    /// The line of the malformed record in the file, from 1.
    pub(crate) line: u64,
    /// The fault of the malformed record, for the user.
    pub(crate) why: String,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// The result of reading one record from a file.
#[derive(Debug)]
pub(crate) enum Next {
    /// A record that was read, after the number of its line.
    Record(u64, Record),
    /// A malformed record that was read, and its line.
    Bad(Bad),
    /// The end of the file of records.
    End,
}

/// The records of a file, which are read in order.
pub(crate) trait Reader {
    /// Reads the next record of the file. Fails only if the file cannot be read.
    fn next(&mut self) -> Result<Next, Fail>;
}

/// A writer of records to a file.
pub(crate) trait Writer {
    /// Writes one record to the file.
    fn write(&mut self, record: &Record) -> std::io::Result<()>;

    /// Writes all buffered bytes of records to the file.
    fn finish(&mut self) -> std::io::Result<()>;
}

/// Returns a reader of records in `format` from `input`.
pub(crate) fn reader<'i>(format: Format, input: impl BufRead + 'i) -> Box<dyn Reader + 'i> {
    match format {
        Format::Jsonl => Box::new(jsonl::Lines::new(input)),
        Format::Csv => Box::new(csv::Rows::new(input)),
    }
}

/// Returns a writer of records in `format` to `output`.
pub(crate) fn writer<'o>(format: Format, output: impl Write + 'o) -> Box<dyn Writer + 'o> {
    match format {
        Format::Jsonl => Box::new(jsonl::Printer::new(output)),
        Format::Csv => Box::new(csv::Printer::new(output)),
    }
}

/// Returns the format that an option names, or else that of the file's extension.
fn format_of(path: &Path, asked: Option<Format>) -> Result<Format, Fail> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    match (asked, extension.as_str()) {
        (Some(format), _) => Ok(format),
        (None, "jsonl" | "ndjson" | "json") => Ok(Format::Jsonl),
        (None, "csv") => Ok(Format::Csv),
        (None, _) => {
            Err(Fail::usage(format!("the name {} does not tell the format", path.display()))
                .next("add --format jsonl or --format csv"))
        }
    }
}

/// Makes a record from the fields of its line, each of which is text, base64 or missing.
fn assemble(
    key: Option<&str>,
    key64: Option<&str>,
    value: Option<&str>,
    value64: Option<&str>,
    expires_ms: Option<u64>,
) -> Result<Record, String> {
    let key = one_of("key", key, key64)?;
    let value = one_of("value", value, value64)?;
    for (name, bytes, limit) in [("key", &key, MAX_KEY), ("value", &value, MAX_VALUE)] {
        if bytes.len() > limit {
            return Err(format!("the {name} has {} bytes, the limit is {limit}", bytes.len()));
        }
    }
    if let Some(ms) = expires_ms.filter(|&ms| ms > WallTime::MAX.0) {
        return Err(format!("expires_ms is {ms}, the limit is {}", WallTime::MAX.0));
    }
    Ok(Record { key, value, expires_ms })
}

fn one_of(name: &str, text: Option<&str>, base64: Option<&str>) -> Result<Vec<u8>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.as_bytes().to_vec()),
        (None, Some(code)) => {
            BASE64.decode(code).map_err(|error| format!("{name}64 is not base64: {error}"))
        }
        (Some(_), Some(_)) => Err(format!("both {name} and {name}64 are given")),
        (None, None) => Err(format!("neither {name} nor {name}64 is given")),
    }
}

/// The bytes of a key or value as text, or as base64 if they are no text.
enum Shown<'b> {
    Text(&'b str),
    Base64(String),
}

fn show(bytes: &[u8]) -> Shown<'_> {
    std::str::from_utf8(bytes).map_or_else(|_| Shown::Base64(BASE64.encode(bytes)), Shown::Text)
}

/// Returns the member of a JSON object for the bytes of a key or value: `name` with text, or
/// `name64` with base64.
pub(crate) fn json_member(name: &str, bytes: &[u8]) -> (String, serde_json::Value) {
    match show(bytes) {
        Shown::Text(text) => (name.to_owned(), text.into()),
        Shown::Base64(code) => (format!("{name}64"), code.into()),
    }
}

#[cfg(test)]
mod tests;
