//! `sprat import`: writes the records of a file into a table, with many writes in progress.
//!
//! The later of two records with one key stays: its write waits until the earlier one is done. A
//! malformed line ends the import after the writes in progress; with `--skip-bad` it is reported
//! and counted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::index;
use crate::options::{Cluster, SPANS};
use crate::progress::Progress;
use crate::records::{self, Bad, Format, Next, Reader, Record};
use clap::Args;
use sprat::kv::{Condition, IndexedTable, MAX_LIFETIME, OperationId, TableId};
use sprat_bench::fail::{Fail, Named};
use sprat_bench::out;
use sprat_bench::store::Store;
use sprat_sys::clock;

/// Write the records of a file into a table, each under its key.
#[derive(Args, Debug)]
#[command(override_usage = "sprat import [OPTIONS] <TABLE> <FILE>")]
#[command(after_help = "JSON Lines: {\"key\":\"dune\",\"value\":\"Frank Herbert\"};
\"key64\" and \"value64\" have base64 where bytes are no text.
CSV: a header that names the columns key or key64, value or value64; others are ignored.
A member or column \"expires_ms\" has the end of the object's lifetime, in milliseconds since 1970
by the clock of this machine. An object that has expired does not exist after the import.
A table with indexes keeps them: one record at a time then, so that many records take less time
if the indexes are created after the import.

Examples:
  sprat import books books.jsonl
  sprat import books books.csv --create --span 3
  zcat big.jsonl.gz | sprat import big - --format jsonl --skip-bad

The message about a malformed line has its number. The import ends there: the lines before it are
written, the lines behind it are not.")]
pub(crate) struct Import {
    #[command(flatten)]
    at: Cluster,
    #[command(flatten)]
    file: records::File,
    /// Create the table if there is none.
    #[arg(long)]
    create: bool,
    /// With --create: number of servers that share its keys, 1 to 256.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "create",
        value_parser = clap::value_parser!(u32).range(SPANS),
    )]
    span: u32,
    /// Skip malformed lines: report and count them, and go on.
    #[arg(long)]
    skip_bad: bool,
}

/// Runs `sprat import`.
pub(crate) fn run(args: &Import) -> Result<(), Fail> {
    let input = Input::open(&args.file)?;
    let mut store = args.at.connect()?;
    let to = args.file.table()?;
    let table = if args.create { store.create_table(to, args.span)? } else { store.table(to)? };
    let indexed = index::of(&store, table)?;
    let counts = match indexed {
        Some(indexed) => {
            let mut sink = IndexedWrites { store: &store, indexed, written: VecDeque::new() };
            file(&args.file, input, args.skip_bad, &mut sink)?
        }
        None => file(&args.file, input, args.skip_bad, &mut sink(&mut store, table))?,
    };
    say(counts, to)
}

/// The number of malformed lines that an import reports one by one.
const NAMED: u64 = 20;

/// The destination of an import's records.
pub(crate) trait Sink {
    /// Begins to write a record. [`Sink::finished`] returns its `line` when the write is done. A
    /// failure is that of this record.
    fn start(&mut self, line: u64, record: Record) -> Result<(), Fail>;

    /// Waits for a write of a record to end. Returns the record's line and the result. Called only
    /// while a write is in progress.
    fn finished(&mut self) -> (u64, Result<(), Fail>);
}

/// Returns the destination of records that writes them to this table.
pub(crate) fn sink(store: &mut Store, table: TableId) -> impl Sink + '_ {
    Writes { store, table, lines: Vec::new() }
}

/// The writes to a table in progress, with the lines of their records.
struct Writes<'s> {
    store: &'s mut Store,
    table: TableId,
    lines: Vec<(OperationId, u64)>,
}

impl Sink for Writes<'_> {
    fn start(&mut self, line: u64, record: Record) -> Result<(), Fail> {
        let table = self.store.raw().table_by_id(self.table);
        let Record { key, value, .. } = &record;
        let op = match lifetime(&record) {
            Some(lifetime) => {
                table.start_put_expiring_if(key, value, lifetime, Condition::always()).queue()
            }
            None => table.start_put(key, value).queue(),
        };
        self.lines.push((op, line));
        Ok(())
    }

    fn finished(&mut self) -> (u64, Result<(), Fail>) {
        loop {
            if let Some((op, outcome)) = self.store.raw().next_completed() {
                let Some(at) = self.lines.iter().position(|(o, _)| *o == op) else { continue };
                let (_, line) = self.lines.swap_remove(at);
                let result =
                    outcome.map(|_| ()).map_err(|error| self.store.explain(error, "the record"));
                return (line, result);
            }
            self.store.raw().turn_and_rest();
        }
    }
}

/// The writes to a table with indexes, one after the other.
struct IndexedWrites<'s> {
    store: &'s Store,
    indexed: IndexedTable<'s>,
    /// The lines of records that are written.
    written: VecDeque<u64>,
}

impl Sink for IndexedWrites<'_> {
    fn start(&mut self, line: u64, record: Record) -> Result<(), Fail> {
        let Record { key, value, .. } = &record;
        let always = Condition::always();
        let written = match lifetime(&record) {
            Some(lifetime) => self.indexed.put_expiring_if(key, value, lifetime, always),
            None => self.indexed.put(key, value),
        };
        written.map_err(|error| self.store.explain_index(error, "the record"))?;
        self.written.push_back(line);
        Ok(())
    }

    fn finished(&mut self) -> (u64, Result<(), Fail>) {
        (self.written.pop_front().unwrap_or_default(), Ok(()))
    }
}

/// Returns the rest of a record's lifetime, `None` if it has no end. A record that has expired
/// still takes the place of earlier ones of its key, and is gone.
fn lifetime(record: &Record) -> Option<Duration> {
    let rest = |ms: u64| Duration::from_millis(ms.saturating_sub(clock::wall_ms()));
    record.expires_ms.map(|ms| rest(ms).min(MAX_LIFETIME))
}

/// The numbers of records that an import has written and skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) written: u64,
    pub(crate) skipped: u64,
}

/// Reads all records and writes them, at most `window` at a time. Calls `bad` with each malformed
/// line: it returns true to go on. Calls `done` with the number of records written so far.
pub(crate) fn load(
    reader: &mut dyn Reader,
    sink: &mut dyn Sink,
    window: usize,
    bad: &mut dyn FnMut(&Bad) -> bool,
    done: &mut dyn FnMut(u64),
) -> Result<Counts, Fail> {
    let mut flight = Flight { sink, keys: HashSet::new(), lines: HashMap::new(), written: 0 };
    let mut skipped = 0;
    let end = loop {
        match reader.next() {
            Ok(Next::Record(line, record)) => {
                while flight.keys.len() >= window || flight.keys.contains(&record.key) {
                    flight.land()?;
                    done(flight.written);
                }
                flight.start(line, record)?;
            }
            Ok(Next::Bad(malformed)) if bad(&malformed) => skipped += 1,
            Ok(Next::Bad(malformed)) => {
                break Err(Fail::new(malformed.to_string()).next(
                    "correct the line, or skip malformed lines with --skip-bad; importing again \
                     does no harm",
                ));
            }
            Ok(Next::End) => break Ok(()),
            Err(fail) => break Err(fail),
        }
    };
    while !flight.keys.is_empty() {
        flight.land()?;
        done(flight.written);
    }
    end.map(|()| Counts { written: flight.written, skipped })
}

/// The records that an import is writing, by key and by line.
struct Flight<'s> {
    sink: &'s mut dyn Sink,
    keys: HashSet<Vec<u8>>,
    lines: HashMap<u64, Vec<u8>>,
    written: u64,
}

impl Flight<'_> {
    fn start(&mut self, line: u64, record: Record) -> Result<(), Fail> {
        self.keys.insert(record.key.clone());
        self.lines.insert(line, record.key.clone());
        self.sink.start(line, record).map_err(|fail| fail.at(format_args!("line {line}")))
    }

    fn land(&mut self) -> Result<(), Fail> {
        let (line, result) = self.sink.finished();
        result.map_err(|fail| fail.at(format_args!("line {line}")))?;
        if let Some(key) = self.lines.remove(&line) {
            self.keys.remove(&key);
        }
        self.written += 1;
        Ok(())
    }
}

/// A reader that counts the bytes it has read, for the progress bar.
struct Counted<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(into)?;
        self.1.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// An open file of records to import.
pub(crate) struct Input {
    format: Format,
    input: Box<dyn Read>,
    /// The size of the file in bytes, if it is a regular file.
    size: Option<u64>,
}

impl Input {
    /// Opens the file of records, so that an import of an unusable one fails before it creates a
    /// table.
    pub(crate) fn open(args: &records::File) -> Result<Self, Fail> {
        let format = args.format()?;
        let (input, size) = open(args.path())?;
        Ok(Self { format, input, size })
    }
}

/// Reads records from a file into `sink`. Shows progress, and a line for each malformed record.
pub(crate) fn file(
    args: &records::File,
    Input { format, input, size }: Input,
    skip_bad: bool,
    sink: &mut dyn Sink,
) -> Result<Counts, Fail> {
    let passed = Arc::new(AtomicU64::new(0));
    let input = BufReader::with_capacity(1 << 16, Counted(input, Arc::clone(&passed)));
    let mut reader = records::reader(format, input);
    let progress = Progress::new("imported", size);
    let mut named = 0;
    let mut bad = |bad: &Bad| {
        if skip_bad {
            named += 1;
            if named <= NAMED {
                progress.note(format_args!("skipped {bad}"));
            } else if named == NAMED + 1 {
                progress.note("more malformed lines are skipped without being named");
            }
        }
        skip_bad
    };
    let mut done = |written| progress.at(passed.load(Ordering::Relaxed), written);
    let result = load(&mut *reader, sink, usize::from(args.outstanding), &mut bad, &mut done);
    progress.end();
    result.map_err(|fail| fail.at(args.path().display()))
}

fn open(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Fail> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = File::open(path).named(format_args!("cannot read {}", path.display()))?;
    let data = file.metadata().named(format_args!("cannot read {}", path.display()))?;
    if data.is_dir() {
        return Err(
            Fail::new(format!("{} is a directory", path.display())).next("name a file of records")
        );
    }
    Ok((Box::new(file), data.is_file().then_some(data.len())))
}

/// Prints the numbers of records that an import has written and skipped.
pub(crate) fn say(counts: Counts, table: &str) -> Result<(), Fail> {
    let skipped = match counts.skipped {
        0 => String::new(),
        n => format!(", {n} malformed lines skipped"),
    };
    out::print(format!(
        "{} records written to {}{skipped}\n",
        counts.written,
        out::name(table.as_bytes())
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A destination of records that finishes the newest write first, which is the worst order.
    #[derive(Default)]
    struct Stack {
        open: Vec<(u64, Record)>,
        most: usize,
        stored: HashMap<Vec<u8>, Vec<u8>>,
        refuse: Option<u64>,
    }

    impl Sink for Stack {
        fn start(&mut self, line: u64, record: Record) -> Result<(), Fail> {
            self.open.push((line, record));
            self.most = self.most.max(self.open.len());
            Ok(())
        }

        fn finished(&mut self) -> (u64, Result<(), Fail>) {
            let (line, record) = self.open.pop().expect("called only if a write is in progress");
            if self.refuse == Some(line) {
                return (line, Err(Fail::new("no memory")));
            }
            self.stored.insert(record.key, record.value);
            (line, Ok(()))
        }
    }

    fn import(text: &str, skip: bool, stack: &mut Stack) -> (Result<Counts, Fail>, Vec<u64>) {
        let mut lines = Vec::new();
        let mut reader = records::reader(Format::Jsonl, Cursor::new(text.as_bytes()));
        let mut bad = |bad: &Bad| {
            lines.push(bad.line);
            skip
        };
        (load(&mut *reader, stack, 4, &mut bad, &mut |_| {}), lines)
    }

    fn line(key: u32, value: u32) -> String {
        format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}\n")
    }

    #[test]
    fn the_later_of_two_records_with_one_key_stays() {
        let text: String = (0..100).map(|i| line(i % 7, i)).collect();
        let mut stack = Stack::default();
        let (counts, _) = import(&text, false, &mut stack);
        assert_eq!(counts.expect("all is well"), Counts { written: 100, skipped: 0 });
        assert_eq!(stack.most, 4, "the window is used and never exceeded");
        for i in 93..100u32 {
            assert_eq!(stack.stored[&(i % 7).to_string().into_bytes()], i.to_string().into_bytes());
        }
    }

    #[test]
    fn a_malformed_line_stops_after_what_is_in_progress() {
        let text = format!("{}{}oops\n{}", line(1, 1), line(2, 2), line(3, 3));
        let mut stack = Stack::default();
        let (result, lines) = import(&text, false, &mut stack);
        assert!(result.expect_err("line 3").to_string().contains("line 3: not a JSON object"));
        assert_eq!((lines, stack.stored.len()), (vec![3], 2));
    }

    #[test]
    fn malformed_lines_are_skipped_and_counted() {
        let text = format!("oops\n{}{{}}\n{}", line(1, 1), line(2, 2));
        let mut stack = Stack::default();
        let (result, lines) = import(&text, true, &mut stack);
        assert_eq!(result.expect("skips"), Counts { written: 2, skipped: 2 });
        assert_eq!((lines, stack.stored.len()), (vec![1, 3], 2));
    }

    #[test]
    fn a_write_that_fails_names_its_line() {
        let text: String = (1..=10).map(|i| line(i, i)).collect();
        let mut stack = Stack { refuse: Some(2), ..Stack::default() };
        let (result, _) = import(&text, true, &mut stack);
        assert!(result.expect_err("line 2 fails").to_string().contains("line 2: no memory"));
    }
}
