//! Files of records in CSV with a header (RFC 4180): the columns `key` or `key64`, `value` or
//! `value64`, and `expires_ms`. The reader ignores other columns.
//!
//! The writer uses the columns `key,value,key64,value64,expires_ms`. Each row fills one of each
//! pair: a column of base64 that is not empty counts, else the column of text. A row with more or
//! fewer fields than the header is malformed.

use std::io::{self, BufRead, Read, Write};

use csv::{ByteRecord, ErrorKind, StringRecord};

use super::{Bad, LINE_LIMIT, Next, Reader, Record, Shown, Writer, assemble, show};
use sprat_bench::fail::{Fail, Named};

/// The positions of the columns of a CSV file of records.
#[derive(Clone, Copy, Default)]
struct Header {
    key: Option<usize>,
    key64: Option<usize>,
    value: Option<usize>,
    value64: Option<usize>,
    expires_ms: Option<usize>,
}

/// A reader that limits the number of bytes read for each CSV record.
struct Bounded<I> {
    input: I,
    left: usize,
}

impl<I: Read> Read for Bounded<I> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let why =
                format!("the record is longer than {LINE_LIMIT} bytes: is a quote left open?");
            return Err(io::Error::other(why));
        }
        let most = into.len().min(self.left);
        let n = self.input.read(&mut into[..most])?;
        self.left -= n;
        Ok(n)
    }
}

/// A reader of records in CSV.
pub(super) struct Rows<I> {
    csv: csv::Reader<Bounded<I>>,
    header: Option<Header>,
    row: ByteRecord,
}

impl<I: BufRead> Rows<I> {
    pub(super) fn new(input: I) -> Self {
        let bounded = Bounded { input, left: LINE_LIMIT };
        Self { csv: csv::Reader::from_reader(bounded), header: None, row: ByteRecord::new() }
    }

    /// Finds the columns in the header of a CSV file. A file without them is no file of records,
    /// and no row of it can be skipped.
    fn read_header(&mut self) -> Result<Header, Fail> {
        let names = self.csv.byte_headers().named("cannot read line 1")?;
        for name in ["key", "key64", "value", "value64", "expires_ms"] {
            if names.iter().filter(|n| *n == name.as_bytes()).count() > 1 {
                return Err(Fail::new(format!("line 1: the header names the column {name} twice"))
                    .next("give the column that is not meant another name"));
            }
        }
        let at = |name: &str| names.iter().position(|n| n == name.as_bytes());
        let header = Header {
            key: at("key"),
            key64: at("key64"),
            value: at("value"),
            value64: at("value64"),
            expires_ms: at("expires_ms"),
        };
        if (header.key.or(header.key64)).is_none() || (header.value.or(header.value64)).is_none() {
            return Err(Fail::new("line 1: the header names no columns key and value")
                .next("let the first line be: key,value (or key64,value64 for base64)"));
        }
        self.header = Some(header);
        Ok(header)
    }

    fn parse(&self, header: Header) -> Result<Record, String> {
        let text = StringRecord::from_byte_record(self.row.clone()).map_err(|_| {
            "not UTF-8; bytes that are no text belong in key64 and value64".to_owned()
        })?;
        let field = |column: Option<usize>| column.and_then(|c| text.get(c));
        let (mut key, mut value) = (field(header.key), field(header.value));
        let mut key64 = field(header.key64).filter(|code| !code.is_empty() || header.key.is_none());
        let mut value64 =
            field(header.value64).filter(|code| !code.is_empty() || header.value.is_none());
        // A row that uses one column of a pair has the other one too, empty.
        for (text, code) in [(&mut key, &mut key64), (&mut value, &mut value64)] {
            if code.is_some() && text.is_some_and(str::is_empty) {
                *text = None;
            }
        }
        let expires_ms = field(header.expires_ms).filter(|text| !text.is_empty()).map(|text| {
            text.parse().map_err(|_| format!("expires_ms is no time in milliseconds: {text}"))
        });
        let expires_ms = expires_ms.transpose()?;
        assemble(key.take(), key64.take(), value.take(), value64.take(), expires_ms)
    }
}

impl<I: BufRead> Reader for Rows<I> {
    fn next(&mut self) -> Result<Next, Fail> {
        let header = match self.header {
            Some(header) => header,
            None => self.read_header()?,
        };
        let line = self.csv.position().line();
        self.csv.get_mut().left = LINE_LIMIT;
        match self.csv.read_byte_record(&mut self.row) {
            Ok(false) => Ok(Next::End),
            Ok(true) => {
                let line = self.row.position().map_or(line, csv::Position::line);
                Ok(match self.parse(header) {
                    Ok(record) => Next::Record(line, record),
                    Err(why) => Next::Bad(Bad { line, why }),
                })
            }
            Err(error) => match error.kind() {
                ErrorKind::UnequalLengths { pos, expected_len, len } => {
                    let line = pos.as_ref().map_or(line, csv::Position::line);
                    let why = format!("{len} fields, but the header has {expected_len}");
                    Ok(Next::Bad(Bad { line, why }))
                }
                _ => Err(Fail::new(format!("cannot read line {line}: {error}"))),
            },
        }
    }
}

/// A writer of records in CSV.
pub(super) struct Printer<O: Write> {
    csv: csv::Writer<O>,
    headed: bool,
}

impl<O: Write> Printer<O> {
    pub(super) fn new(output: O) -> Self {
        Self { csv: csv::Writer::from_writer(output), headed: false }
    }

    fn head(&mut self) -> io::Result<()> {
        if !self.headed {
            self.headed = true;
            self.csv.write_record(["key", "value", "key64", "value64", "expires_ms"])?;
        }
        Ok(())
    }
}

impl<O: Write> Writer for Printer<O> {
    fn write(&mut self, record: &Record) -> io::Result<()> {
        self.head()?;
        let (key, key64) = pair(&record.key);
        let (value, value64) = pair(&record.value);
        let expires_ms = record.expires_ms.map(|ms| ms.to_string()).unwrap_or_default();
        self.csv.write_record([&key, &value, &key64, &value64, &expires_ms])?;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.head()?;
        self.csv.flush()
    }
}

fn pair(bytes: &[u8]) -> (String, String) {
    match show(bytes) {
        Shown::Text(text) => (text.to_owned(), String::new()),
        Shown::Base64(code) => (String::new(), code),
    }
}
