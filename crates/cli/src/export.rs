//! `sprat export`: all objects of a table to a file.
//!
//! The records go to a temporary file beside the one that is named, which is renamed when it is complete and on disk: a
//! file of that name is always a whole export.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::args;
use crate::fail::{Fail, Named};
use crate::out;
use crate::progress::Progress;
use crate::records::{self, Record, Writer};

/// Where records come from: the next one, until `None`.
pub(crate) type Source<'s> = dyn FnMut() -> Result<Option<Record>, Fail> + 's;

/// Writes all records of `source` to the file; says how many.
pub(crate) fn file(args: &args::File, source: &mut Source<'_>) -> Result<u64, Fail> {
    let format = records::format_of(&args.path, args.format)?;
    if args.path.as_os_str() == "-" {
        let mut writer = records::writer(format, BufWriter::new(io::stdout().lock()));
        return match copy(source, &mut *writer)? {
            (_, Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            (count, written) => written.named("cannot write to standard output").map(|()| count),
        };
    }
    let failed = format!("cannot write {}", args.path.display());
    let temporary = Temporary::beside(&args.path)?;
    let file = File::create(&temporary.0).named(&failed)?;
    let mut writer = records::writer(format, BufWriter::with_capacity(1 << 16, &file));
    let (count, written) = copy(source, &mut *writer)?;
    drop(writer);
    written
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary.0, &args.path))
        .named(&failed)?;
    Ok(count)
}

/// Copies until the source ends or the file fails.
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

/// A file that is removed unless it was renamed.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(path: &Path) -> Result<Self, Fail> {
        let Some(name) = path.file_name() else {
            return Err(Fail::usage(format!("{} names no file", path.display())));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        Ok(Self(path.with_file_name(hidden)))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is nothing of this name.
        let _ = fs::remove_file(&self.0);
    }
}

/// Says what was done; not on standard output if that took the records.
pub(crate) fn say(count: u64, args: &args::File) -> Result<(), Fail> {
    let line = format!("{count} records of {} exported", args.table);
    if args.path.as_os_str() == "-" {
        out::note(line);
        return Ok(());
    }
    out::print(format!("{line} to {}\n", args.path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;

    fn args(path: PathBuf) -> args::File {
        args::File { path, table: "t".to_owned(), format: Some(Format::Jsonl), outstanding: 1 }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.jsonl");
        fs::write(&path, "old").expect("writes");
        let record = || Record { key: b"k".to_vec(), value: b"v".to_vec() };

        let mut left = 3;
        let failing = file(&args(path.clone()), &mut || {
            left -= 1;
            if left > 0 { Ok(Some(record())) } else { Err(Fail::new("the server is gone")) }
        });
        assert!(failing.is_err());
        assert_eq!(fs::read_to_string(&path).expect("reads"), "old");
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1, "no temporary file is left");

        let mut left = 3;
        let count = file(&args(path.clone()), &mut || {
            left -= 1;
            Ok((left > 0).then(record))
        });
        assert_eq!(count.expect("exports"), 2);
        assert_eq!(fs::read_to_string(&path).expect("reads").lines().count(), 2);
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = file(&args("/nonexistent/x.jsonl".into()), &mut || Ok(None)).expect_err("no such folder");
        assert!(error.to_string().contains("/nonexistent/x.jsonl"), "{error}");
    }
}
