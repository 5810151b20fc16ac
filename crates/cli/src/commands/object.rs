//! `sprat get`, `put`, `swap`, `touch`, `del`, `incr`, `append`: each executes one operation on one
//! object.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};
use sprat::kv::{Condition, MAX_VALUE, Version, double_text};

use super::index;
use crate::options::Cluster;
use crate::records::json_member;
use sprat_bench::fail::{Fail, Named};
use sprat_bench::out;
use sprat_bench::text::name;
use sprat_store::message::data::Amount;

mod indexed;

/// Read an object, and write its bytes to standard output.
///
/// On a terminal, a newline follows a value that does not end in one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat get books dune
  sprat get books cover > cover.png
  sprat get books dune --json             {\"key\":\"dune\",\"value\":\"…\",\"version\":1}
  sprat get sessions alice --expires      1799.482

Exit code 3 means that there is no such object.")]
pub(crate) struct Get {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: OsString,
    /// Only if the object has this version.
    #[arg(long, value_name = "V")]
    if_version: Option<u64>,
    /// Write the seconds that the object still exists, or `never`, and not its value.
    #[arg(long)]
    expires: bool,
    /// Write a JSON object with key, value and version; with --expires the seconds too, or null.
    #[arg(long)]
    json: bool,
}

/// Write an object.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat put books dune 'Frank Herbert'
  sprat put books cover - < cover.png
  sprat put books dune 'F. Herbert' --if-version 1
  sprat put locks leader me --if-absent
  sprat put sessions alice 5d41 --expires 1800

Exit code 4 means that the object does not meet the condition; nothing was written.")]
pub(crate) struct Put {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: OsString,
    /// The value; `-` reads it from standard input.
    #[arg(allow_hyphen_values = true)]
    value: OsString,
    /// The time in seconds after which the object does not exist any more.
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    expires: Option<Duration>,
    #[command(flatten)]
    only: Only,
    /// Write a JSON object with the new version.
    #[arg(long)]
    json: bool,
}

/// Write an object, and write the value that it had before to standard output.
///
/// No other change comes between the two. Each swap takes effect exactly once, however often the
/// network makes the client send it. On a terminal, a newline follows a value that does not end in
/// one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat swap queue head 17
  sprat swap locks leader me --if-exists
  sprat swap sessions alice 5d41 --expires 1800 --json

Without an object before, nothing is printed; --json tells that from an empty value.
Exit code 4 means that the object does not meet the condition; nothing was written.")]
pub(crate) struct Swap {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: OsString,
    /// The new value; `-` reads it from standard input.
    #[arg(allow_hyphen_values = true)]
    value: OsString,
    /// The time in seconds after which the object does not exist any more.
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    expires: Option<Duration>,
    #[command(flatten)]
    only: Only,
    /// Write a JSON object with the new version, and the old value and version.
    #[arg(long)]
    json: bool,
}

/// Give an object another lifetime, from now on.
///
/// The value stays as it is. The object gets a new version, as by a write.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat touch sessions alice 1800
  sprat touch sessions alice never

Exit code 3 means that there is no such object, 4 that it does not meet the condition.")]
pub(crate) struct Touch {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: OsString,
    /// The time in seconds after which the object does not exist any more, or `never`.
    #[arg(value_name = "S", value_parser = lifetime, allow_negative_numbers = true)]
    expires: Expires,
    #[command(flatten)]
    only: Only,
    /// Write a JSON object with the new version.
    #[arg(long)]
    json: bool,
}

/// The time after which an object does not exist any more; `None` if it does not expire.
#[derive(Clone, Copy, Debug)]
struct Expires(Option<Duration>);

/// Remove an object.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat del books dune
  sprat del books dune --if-version 7

Exit code 3 means that there was no such object, 4 that it has another version.")]
pub(crate) struct Del {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: OsString,
    /// Only if the object has this version.
    #[arg(long, value_name = "V")]
    if_version: Option<u64>,
    /// Write a JSON object with the removed version.
    #[arg(long)]
    json: bool,
}

/// Add to an object that is a number in decimal text, and print the sum.
///
/// The object becomes the sum's text, which `get` prints and `put` can set. A missing object counts
/// as 0. An object that is no number stays as it is, and so does one whose sum does not fit into 64
/// bits. Each increment takes effect exactly once, however often the network makes the client send
/// it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat incr hits /index.html
  sprat incr hits /index.html -5
  sprat incr temperature berlin --float 0.5")]
pub(crate) struct Incr {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: OsString,
    /// The number to add.
    #[arg(value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    by: i64,
    /// Take the object as a double, and add this.
    #[arg(
        long,
        value_name = "X",
        allow_hyphen_values = true,
        conflicts_with = "by",
        value_parser = finite,
    )]
    float: Option<f64>,
    #[command(flatten)]
    only: Only,
    /// Write a JSON object with the sum and the new version.
    #[arg(long)]
    json: bool,
}

/// Add bytes to the end of an object's value, and print the new length.
///
/// A missing object counts as empty. Each append takes effect exactly once, however often the
/// network makes the client send it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat append logs today 'one line'
  date | sprat append logs today -")]
pub(crate) struct Append {
    #[command(flatten)]
    at: Cluster,
    /// Name of the table.
    table: String,
    /// Key of the object.
    key: OsString,
    /// The bytes to append; - reads standard input.
    #[arg(allow_hyphen_values = true)]
    bytes: OsString,
    #[command(flatten)]
    only: Only,
    /// Write a JSON object with the new length and the new version.
    #[arg(long)]
    json: bool,
}

/// Options for the condition under which a command changes an object.
#[derive(Args, Clone, Debug, Default)]
#[group(multiple = false)]
struct Only {
    /// Only if the object has this version.
    #[arg(long, value_name = "V")]
    if_version: Option<u64>,
    /// Only if there is no such object yet.
    #[arg(long)]
    if_absent: bool,
    /// Only if there is such an object.
    #[arg(long)]
    if_exists: bool,
}

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.ok_or_else(|| "expected seconds, like 0.5 or 1800".to_owned())
}

/// Parses the lifetime for a touch.
fn lifetime(text: &str) -> Result<Expires, String> {
    if text == "never" { Ok(Expires(None)) } else { Ok(Expires(Some(seconds(text)?))) }
}

/// Parses a double for an increment, which must be finite.
fn finite(text: &str) -> Result<f64, String> {
    let number: f64 =
        text.parse().map_err(|_| "it must be a number, like 0.5 or -2e3".to_owned())?;
    if number.is_finite() { Ok(number) } else { Err("it must be finite".to_owned()) }
}

/// Runs `sprat get`: reads an object to standard output.
pub(crate) fn get(args: &Get) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let condition = version_is(args.if_version).unwrap_or_else(Condition::if_exists);
    let key = args.key.as_bytes();
    let (value, version, rest) = if args.expires {
        store.read_expiring(table, key, condition)?
    } else {
        let (value, version) = store.read(table, key, condition)?;
        (value, version, None)
    };
    let seconds = rest.map(|rest| rest.as_secs_f64());
    if args.json {
        let expires = args.expires.then(|| ("expires".to_owned(), seconds.into()));
        let members =
            [json_member("key", key), json_member("value", &value), number("version", version.0)];
        return print_json(members.into_iter().chain(expires));
    }
    if args.expires {
        let text = seconds.map_or_else(|| "never".to_owned(), |seconds| seconds.to_string());
        return out::print(format!("{text}\n"));
    }
    out::value(&value)
}

/// Runs `sprat put`: writes an object.
pub(crate) fn put(args: &Put) -> Result<(), Fail> {
    let value = if args.value == "-" { standard_input()? } else { args.value.as_bytes().to_vec() };
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let (key, condition) = (args.key.as_bytes(), condition(&args.only));
    let indexed = index::of(&store, table)?;
    let version = match (args.expires, indexed) {
        (Some(lifetime), Some(indexed)) => indexed
            .put_expiring_if(key, &value, lifetime, condition)
            .map_err(|error| store.explain_index(error, &name(key)))?,
        (None, Some(indexed)) => indexed
            .put_if(key, &value, condition)
            .map_err(|error| store.explain_index(error, &name(key)))?,
        (Some(lifetime), None) => store.write_expiring(table, key, &value, lifetime, condition)?,
        (None, None) => store.write(table, key, &value, condition)?,
    };
    if args.json { print_json([number("version", version.0)]) } else { Ok(()) }
}

/// Runs `sprat swap`: writes an object, and the one before to standard output.
pub(crate) fn swap(args: &Swap) -> Result<(), Fail> {
    let value = if args.value == "-" { standard_input()? } else { args.value.as_bytes().to_vec() };
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let (key, condition) = (args.key.as_bytes(), condition(&args.only));
    let (version, before) = match index::of(&store, table)? {
        Some(of) => indexed::swap(&of, key, (&value, args.expires), condition)
            .map_err(|error| store.explain_index(error, &name(key)))?,
        None => store.swap(table, key, &value, args.expires, condition)?,
    };
    if args.json {
        let old = before.map(|old| {
            [json_member("old_value", &old.value), number("old_version", old.version.0)]
        });
        let members = old.into_iter().flatten();
        return print_json(members.chain([number("version", version.0)]));
    }
    before.map_or(Ok(()), |old| out::value(&old.value))
}

/// Runs `sprat touch`: gives an object another lifetime.
pub(crate) fn touch(args: &Touch) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let (key, condition) = (args.key.as_bytes(), condition(&args.only));
    let version = store.touch(table, key, args.expires.0, condition)?;
    if args.json { print_json([number("version", version.0)]) } else { Ok(()) }
}

/// Runs `sprat append`: adds bytes to the end of an object.
pub(crate) fn append(args: &Append) -> Result<(), Fail> {
    let bytes = if args.bytes == "-" { standard_input()? } else { args.bytes.as_bytes().to_vec() };
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let (key, condition) = (args.key.as_bytes(), condition(&args.only));
    let (length, version) = match index::of(&store, table)? {
        Some(of) => indexed::append(&of, key, &bytes, condition)
            .map_err(|error| store.explain_index(error, &name(key)))?,
        None => {
            let length = store.append(table, key, &bytes, condition)?;
            (length.value, length.version)
        }
    };
    if args.json {
        return print_json([number("length", length), number("version", version.0)]);
    }
    out::print(format!("{length}\n"))
}

/// Runs `sprat del`: removes an object.
pub(crate) fn del(args: &Del) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let condition = version_is(args.if_version).unwrap_or_else(Condition::if_exists);
    let key = args.key.as_bytes();
    let version = match index::of(&store, table)? {
        Some(indexed) => indexed
            .remove_if(key, condition)
            .map_err(|error| store.explain_index(error, &name(key)))?,
        None => store.remove(table, key, condition)?,
    };
    if args.json {
        print_json([number("version", version.map_or(0, |version| version.0))])
    } else {
        Ok(())
    }
}

/// Runs `sprat incr`: adds to an object that is a number.
pub(crate) fn incr(args: &Incr) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let table = store.table(&args.table)?;
    let (key, condition) = (args.key.as_bytes(), condition(&args.only));
    let (sum, text, version) = match (index::of(&store, table)?, args.float) {
        (Some(of), float) => {
            let by = float.map_or(Amount::Integer(args.by), Amount::Double);
            indexed::increment(&of, key, by, condition)
                .map_err(|error| store.explain_index(error, &name(key)))?
        }
        (None, None) => {
            let sum = store.increment(table, key, args.by, condition)?;
            (Value::from(sum.value), sum.value.to_string(), sum.version)
        }
        (None, Some(by)) => {
            let sum = store.increment_double(table, key, by, condition)?;
            (Value::from(sum.value), double_text(sum.value), sum.version)
        }
    };
    if args.json {
        return print_json([("value".to_owned(), sum), number("version", version.0)]);
    }
    out::print(format!("{text}\n"))
}

fn version_is(version: Option<u64>) -> Option<Condition> {
    version.map(|version| Condition::if_version(Version(version)))
}

fn condition(only: &Only) -> Condition {
    version_is(only.if_version).unwrap_or_else(|| match (only.if_exists, only.if_absent) {
        (true, _) => Condition::if_exists(),
        (false, true) => Condition::if_absent(),
        (false, false) => Condition::always(),
    })
}

/// Reads standard input, up to the largest size of a value.
fn standard_input() -> Result<Vec<u8>, Fail> {
    let mut value = Vec::new();
    io::stdin()
        .take(MAX_VALUE as u64 + 1)
        .read_to_end(&mut value)
        .named("cannot read standard input")?;
    if value.len() > MAX_VALUE {
        return Err(Fail::new(format!(
            "standard input is longer than {MAX_VALUE} bytes, the limit of a value"
        )));
    }
    Ok(value)
}

fn number(name: &str, value: u64) -> (String, Value) {
    (name.to_owned(), value.into())
}

fn print_json(members: impl IntoIterator<Item = (String, Value)>) -> Result<(), Fail> {
    let object: Map<String, Value> = members.into_iter().collect();
    out::raw(format!("{}\n", Value::Object(object)))
}
