//! `sprat index`: creates, drops and lists the indexes of a table.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sprat::kv::{IndexError, IndexedTable, Source, TableId};

use crate::options::Cluster;
use crate::progress::Progress;
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};
use sprat_bench::store::Store;

/// Create, drop and list the indexes of a table.
///
/// An index has the objects of a table in the order of a part of them, for `sprat find`. `sprat
/// put`, `del`, `import` and `transact` change objects and their indexes at once. Commands that
/// would leave the indexes as they are do not take tables that have some.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  sprat index create people by-city --field 2
  sprat put people 17 Ada,Paris
  sprat find people by-city Paris
  sprat index drop people by-city")]
pub(crate) enum Index {
    /// Create an index, also of the objects that exist.
    ///
    /// Other commands and programs can use the table meanwhile. Run it again if it was broken off.
    #[command(after_help = "Examples:
  sprat index create people by-city --field 2                  the second of a value like Ada,Paris
  sprat index create people by-mail --field 3 --separator ';'
  sprat index create hits by-time --bytes 0:8
  sprat index create words ordered --own-key")]
    Create {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        table: String,
        /// Name of the index.
        #[arg(value_name = "INDEX")]
        name: String,
        #[command(flatten)]
        key: Key,
        /// Byte between two fields.
        #[arg(
            long,
            value_name = "CHAR",
            default_value = ",",
            value_parser = separator,
            requires = "field",
        )]
        separator: u8,
    },
    /// Drop an index. The objects stay as they are.
    #[command(after_help = "Example:
  sprat index drop people by-city")]
    Drop {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        table: String,
        /// Name of the index.
        #[arg(value_name = "INDEX")]
        name: String,
    },
    /// List the indexes of a table.
    #[command(after_help = "Example:
  sprat index list people --json")]
    List {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        table: String,
        /// Write one JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

/// Options for the part of an object that is its key in an index.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Key {
    /// A field of the value, from 1 on. Objects with fewer fields are not in the index.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    field: Option<u32>,
    /// Bytes of the value, from 0 on. Objects with shorter values are not in the index.
    #[arg(long, value_name = "AT:LENGTH", value_parser = bytes)]
    bytes: Option<(u32, u32)>,
    /// The object's own key: the index has the table in the order of its keys.
    #[arg(long)]
    own_key: bool,
    /// A key that a program has packed before the value, from 1 on (docs/formats.md).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    packed: Option<u32>,
}

impl Key {
    fn source(&self, separator: u8) -> Source {
        match *self {
            Self { field: Some(field), .. } => Source::Field { number: field - 1, separator },
            Self { bytes: Some((at, len)), .. } => Source::Bytes { at, len },
            Self { packed: Some(packed), .. } => Source::Packed { number: packed - 1 },
            _ => Source::Key,
        }
    }
}

/// Parses the separator of fields.
fn separator(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [byte] => Ok(*byte),
        b"\\t" => Ok(b'\t'),
        _ => Err("expected one byte, like ; or \\t".to_owned()),
    }
}

/// Parses a range of bytes.
fn bytes(text: &str) -> Result<(u32, u32), String> {
    let parsed =
        text.split_once(':').and_then(|(at, len)| Some((at.parse().ok()?, len.parse().ok()?)));
    parsed.ok_or_else(|| "expected the offset and the length, like 0:8".to_owned())
}

/// Runs `sprat index`.
pub(crate) fn run(command: &Index) -> Result<(), Fail> {
    match command {
        Index::Create { at, table, name, key, separator } => {
            create(&mut at.connect()?, table, name, key.source(*separator))
        }
        Index::Drop { at, table, name } => {
            let mut store = at.connect()?;
            let id = store.table(table)?;
            let none = || store.explain_index(IndexError::NoIndex(name.clone()), table);
            let indexed = of(&store, id)?.ok_or_else(none)?;
            indexed.drop_index(name).map_err(|error| store.explain_index(error, table))
        }
        Index::List { at, table, json } => list(&mut at.connect()?, table, *json),
    }
}

fn create(store: &mut Store, table: &str, name: &str, source: Source) -> Result<(), Fail> {
    let id = store.table(table)?;
    let failed = |error| store.explain_index(error, table);
    let indexed = store.raw().indexed(&store.raw().table_by_id(id)).map_err(failed)?;
    let mut building = indexed.begin_index(name, source).map_err(failed)?;
    let progress = Progress::new("indexed", None);
    loop {
        let built = indexed.build_index(&mut building);
        progress.say(&format!("{} objects", building.objects()));
        match built {
            Ok(false) => {}
            Ok(true) => break,
            Err(error) => {
                progress.end();
                return Err(store
                    .explain_index(error, table)
                    .next("run the command again: it goes on with this index"));
            }
        }
    }
    progress.end();
    if building.skipped() > 0 {
        out::note(format_args!(
            "{} of {} objects are not in the index: their index keys are too long",
            building.skipped(),
            building.objects()
        ));
    }
    Ok(())
}

fn list(store: &mut Store, table: &str, as_json: bool) -> Result<(), Fail> {
    let id = store.table(table)?;
    let indexed = of(store, id)?;
    let indexes = match &indexed {
        Some(indexed) => {
            indexed.list_indexes().map_err(|error| store.explain_index(error, table))?
        }
        None => Vec::new(),
    };
    if as_json {
        let lines = indexes.iter().map(|index| {
            let members = json!({
                "name": index.name, "key": json_source(index.source),
                "node_bytes": index.node_bytes, "ready": index.is_ready,
            });
            format!("{members}\n")
        });
        return out::raw(lines.collect::<String>());
    }
    if indexes.is_empty() {
        return out::print("There are no indexes; create one with: sprat index create\n");
    }
    let mut columns = Columns::new(&["index", "key", "state"]);
    for index in indexes {
        let state = if index.is_ready { "ready" } else { "is built" };
        columns.row([out::plain(&index.name).into(), index.source.to_string(), state.to_owned()]);
    }
    out::print(columns.text())
}

fn json_source(source: Source) -> Value {
    match source {
        Source::Key => json!("own"),
        Source::Bytes { at, len } => json!({ "at": at, "length": len }),
        Source::Field { number, separator } => {
            json!({ "field": u64::from(number) + 1, "separator": separator })
        }
        Source::Packed { number } => json!({ "packed": u64::from(number) + 1 }),
        other => json!(other.to_string()),
    }
}

/// Returns a table as one with indexes, if it has some.
pub(crate) fn of(store: &Store, table: TableId) -> Result<Option<IndexedTable<'_>>, Fail> {
    let client = store.raw();
    let indexed = client.if_indexed(&client.table_by_id(table));
    indexed.map_err(|error| store.explain_index(error, "the indexes of the table"))
}
