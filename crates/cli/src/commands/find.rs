//! `sprat find`: writes the objects with an index key, or with those of a range, to standard
//! output.

use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use serde_json::{Map, Value};
use sprat::kv::{Found, IndexError, IndexRange};

use super::index;
use crate::options::Cluster;
use crate::records::json_member;
use sprat_bench::fail::Fail;
use sprat_bench::out;

/// Find the objects of a table by an index, in the order of their index keys.
///
/// Each line has an index key, a tab, the object's key, a tab and the value. Control characters are
/// escaped: use --json for the exact bytes. An object that keeps its index key meanwhile is listed
/// exactly once.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat find people by-city Paris
  sprat find people by-city --prefix P
  sprat find people by-city --from M --limit 10
  sprat find hits by-time --reverse --limit 10                the last ten
  sprat find words ordered --from a --below b --keys
  sprat find people by-city Paris --json      {\"index_key\":\"Paris\",\"key\":\"17\",…}")]
pub(crate) struct Find {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Name of the index.
    index: String,
    /// Index key; all without it and the options.
    #[arg(conflicts_with_all = ["from", "below", "prefix"])]
    key: Option<OsString>,
    /// Only index keys from this one on.
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Only index keys before this one.
    #[arg(long, value_name = "KEY")]
    below: Option<OsString>,
    /// Only index keys that begin with this.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["from", "below"])]
    prefix: Option<OsString>,
    /// Begin with the last index key and go down.
    #[arg(long)]
    reverse: bool,
    /// At most this many objects.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Write the objects' own keys only.
    #[arg(long)]
    keys: bool,
    /// Write one JSON object a line, with index key, key, value and version.
    #[arg(long)]
    json: bool,
}

impl Find {
    fn range(&self) -> IndexRange {
        let bytes =
            |key: &'_ Option<OsString>| key.as_deref().map(|key| OsStr::as_bytes(key).to_vec());
        if let Some(key) = bytes(&self.key) {
            return IndexRange::new(key.clone()..=key);
        }
        if let Some(prefix) = bytes(&self.prefix) {
            return IndexRange::prefix(&prefix);
        }
        let from = bytes(&self.from).map_or(Bound::Unbounded, Bound::Included);
        let below = bytes(&self.below).map_or(Bound::Unbounded, Bound::Excluded);
        IndexRange::new::<Vec<u8>>((from, below))
    }
}

/// Runs `sprat find`.
pub(crate) fn run(args: &Find) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let none = || IndexError::NoIndex(args.index.clone());
    let explain = |error| store.explain_index(error, &args.table);
    let indexed = index::of(&store, table)?.ok_or_else(none).map_err(explain)?;
    let mut left = args.limit.unwrap_or(usize::MAX);
    let mut rest = Some(args.range());
    while let Some(range) = rest.filter(|_| left > 0) {
        let page = match args.reverse {
            false => indexed.page(&args.index, range, left),
            true => indexed.page_back(&args.index, range, left),
        };
        let page = page.map_err(explain)?;
        left -= page.found.len();
        out::raw(page.found.iter().map(|found| line(args, found)).collect::<String>())?;
        rest = page.rest;
    }
    Ok(())
}

fn line(args: &Find, Found { index_key, key, version, value }: &Found) -> String {
    if args.json {
        let mut members = Map::from_iter([json_member("index_key", index_key)]);
        members.extend([json_member("key", key)]);
        if !args.keys {
            members.extend([json_member("value", value)]);
        }
        members.insert("version".to_owned(), version.0.into());
        return format!("{}\n", Value::Object(members));
    }
    let plain = |bytes: &[u8]| out::plain(&String::from_utf8_lossy(bytes)).into_owned();
    if args.keys {
        return format!("{}\n", plain(key));
    }
    format!("{}\t{}\t{}\n", plain(index_key), plain(key), plain(value))
}
