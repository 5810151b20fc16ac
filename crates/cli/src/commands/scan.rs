//! `sprat scan`: writes the objects of a table to standard output.

use clap::Args;
use serde_json::{Map, Value};
use sprat::kv::{Cursor, Listed, Page};
use sprat_bench::fail::Fail;
use sprat_bench::out;

use crate::options::Cluster;
use crate::records::json_member;

/// List the objects of a table, in no particular order.
///
/// Each line has a key, a tab and a value. Control characters are escaped: use --json, or `sprat
/// export`, for the exact bytes. Objects that change meanwhile may be listed with either value.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat scan books
  sprat scan books --prefix du --limit 10
  sprat scan books --keys | wc -l
  sprat scan books --json                 {\"key\":\"dune\",\"value\":\"…\",\"version\":1}")]
pub(crate) struct Scan {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Write keys only.
    #[arg(long)]
    keys: bool,
    /// Only objects whose keys begin with this. The command still reads the whole table.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// At most this many objects.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Write one JSON object a line, with key, value and version.
    #[arg(long)]
    json: bool,
}

/// Runs `sprat scan`.
pub(crate) fn run(args: &Scan) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor.filter(|_| left > 0) {
        let page = match store.raw().table_by_id(table).page(from) {
            Ok(page) => page,
            Err(error) => return Err(store.explain(error, "the table's objects")),
        };
        out::raw(text(args, &page, &mut left))?;
        cursor = page.next;
    }
    Ok(())
}

/// Returns the lines of text for the objects of one page of a table, `left` at most. Lowers `left`
/// by their number.
fn text(args: &Scan, page: &Page<'_>, left: &mut u64) -> String {
    let prefix = args.prefix.as_deref().unwrap_or_default().as_bytes();
    let mut text = String::new();
    let wanted = page.objects().filter(|object| object.key.starts_with(prefix));
    for Listed { key, version, value, .. } in wanted {
        if *left == 0 {
            break;
        }
        *left -= 1;
        if args.json {
            let mut members = Map::from_iter([json_member("key", key)]);
            if !args.keys {
                members.extend([json_member("value", value)]);
            }
            members.insert("version".to_owned(), version.0.into());
            text += &Value::Object(members).to_string();
        } else {
            text += &out::plain(&String::from_utf8_lossy(key));
            if !args.keys {
                text.push('\t');
                text += &out::plain(&String::from_utf8_lossy(value));
            }
        }
        text.push('\n');
    }
    text
}
