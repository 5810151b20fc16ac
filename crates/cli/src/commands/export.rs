//! `sprat export`: writes all objects of a table to a file.
//!
//! A regular file of that name is always a whole export: see [`Destination`].

use std::io::{self, BufWriter};

use crate::destination::Destination;
use crate::options::Cluster;
use crate::progress::Progress;
use crate::records::{self, Record, Writer};
use clap::Args;
use sprat::kv::{Cursor, Listed, TableId};
use sprat_bench::fail::{Fail, Named};
use sprat_bench::out;
use sprat_bench::store::Store;
use sprat_store::types::{Lifetime, WallTime};
use sprat_sys::clock;

/// The source of an export: a function that returns the next record, or `None` at the end.
pub(crate) type Source<'s> = dyn FnMut() -> Result<Option<Record>, Fail> + 's;

/// The number of bytes that an export writes with one system call.
const BUFFER: usize = 1 << 16;

/// Write all objects of a table to a file, in no particular order.
#[derive(Args, Debug)]
#[command(override_usage = "sprat export [OPTIONS] <TABLE> <FILE>")]
#[command(after_help = "Examples:
  sprat export books books.jsonl
  sprat export books - --format csv | head

The file appears when it is complete: until then the records go to a temporary file beside it,
which an error or Ctrl-C removes. Symbolic links are followed. A file that is replaced keeps its
mode and its owner; other names of it (hard links) keep the old content. A device, a FIFO or
/dev/fd/N is written in place.

The record of an object that expires has the end of its lifetime, \"expires_ms\": the time by the
clock of this machine in milliseconds since 1970.")]
pub(crate) struct Export {
    #[command(flatten)]
    at: Cluster,
    #[command(flatten)]
    file: records::File,
}

/// Runs `sprat export`.
pub(crate) fn run(args: &Export) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let table = store.table(args.file.table()?)?;
    file(&args.file, &mut objects(&mut store, table))
}

/// Returns all objects of a table, in no particular order.
fn objects(store: &mut Store, table: TableId) -> impl FnMut() -> Result<Option<Record>, Fail> {
    let mut cursor = Some(Cursor::default());
    let mut ready = Vec::new().into_iter();
    move || loop {
        if let Some(record) = ready.next() {
            return Ok(Some(record));
        }
        let Some(from) = cursor.clone() else { return Ok(None) };
        let page = match store.raw().table_by_id(table).page(from) {
            Ok(page) => page,
            Err(error) => return Err(store.explain(error, "the table's objects")),
        };
        let now = clock::wall_ms();
        let record = |Listed { key, value, lifetime, .. }: Listed<'_>| Record {
            key: key.to_vec(),
            value: value.to_vec(),
            expires_ms: lifetime.map(|Lifetime(ms)| (now + ms).min(WallTime::MAX.0)),
        };
        ready = page.objects().map(record).collect::<Vec<_>>().into_iter();
        cursor = page.next;
    }
}

/// Writes all records of `source` to the export's file, and prints their number.
pub(crate) fn file(args: &records::File, source: &mut Source<'_>) -> Result<(), Fail> {
    let format = args.format()?;
    let destination = Destination::open(args.path())?;
    let is_stdout = destination.is_stdout();
    let mut writer =
        records::writer(format, BufWriter::with_capacity(BUFFER, destination.writer()));
    let (count, written) = copy(source, &mut *writer)?;
    drop(writer);
    match written.and_then(|()| destination.finish()) {
        Err(error) if is_stdout => return Err(out::failed(&error)),
        written => written.named(format_args!("cannot write {}", args.path().display()))?,
    }
    let line = format!("{count} records of {} exported", out::name(args.table()?.as_bytes()));
    if is_stdout {
        // The records take standard output.
        out::note(line);
        return Ok(());
    }
    let path = args.path().display().to_string();
    out::print(format!("{line} to {}\n", out::plain(&path)))
}

/// Copies records to `writer` until the source ends or the file fails. Returns the number of
/// records and the result of writing.
fn copy(source: &mut Source<'_>, writer: &mut dyn Writer) -> Result<(u64, io::Result<()>), Fail> {
    let progress = Progress::new("exported", None);
    let mut count = 0;
    while let Some(record) = source()? {
        if let Err(error) = writer.write(&record) {
            return Ok((count, Err(error)));
        }
        count += 1;
        progress.at(count, count);
    }
    progress.end();
    Ok((count, writer.finish()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::records::Format;

    fn args(path: PathBuf) -> records::File {
        records::File::new("t", path, Format::Jsonl)
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.jsonl");
        fs::write(&path, "old").expect("writes");
        let record = || Record { key: b"k".to_vec(), ..Record::default() };

        let mut left = 3;
        let failing = file(&args(path.clone()), &mut || {
            left -= 1;
            if left > 0 { Ok(Some(record())) } else { Err(Fail::new("the server is gone")) }
        });
        assert!(failing.is_err());
        assert_eq!(fs::read_to_string(&path).expect("reads"), "old");
        assert_eq!(
            fs::read_dir(folder.path()).expect("lists").count(),
            1,
            "no temporary file is left"
        );

        let mut left = 3;
        let done = file(&args(path.clone()), &mut || {
            left -= 1;
            Ok((left > 0).then(record))
        });
        done.expect("exports");
        assert_eq!(fs::read_to_string(&path).expect("reads").lines().count(), 2);
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = file(&args("/nonexistent/x.jsonl".into()), &mut || Ok(None))
            .expect_err("no such folder");
        assert!(error.to_string().contains("/nonexistent/x.jsonl"), "{error}");
    }
}
