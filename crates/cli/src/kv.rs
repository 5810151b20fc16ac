//! `sprat get`, `put`, `del`, `incr`: one object, one operation.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use serde_json::{Map, Value};
use sprat::kv::{Condition, MAX_VALUE, Version, double_text};

use crate::args;
use crate::client;
use crate::records::json_member;
use sprat_bench::fail::{Fail, Named};
use sprat_bench::out;

/// Reads an object to standard output.
pub(crate) fn get(args: &args::Get) -> Result<(), Fail> {
    let mut store = client::connect(&args.at)?;
    let table = store.table(&args.table)?;
    let condition = version_is(args.if_version).unwrap_or_else(Condition::if_exists);
    let (value, version) = store.read(table, args.key.as_bytes(), condition)?;
    if args.json {
        let members = [
            json_member("key", args.key.as_bytes()),
            json_member("value", &value),
            number("version", version.0),
        ];
        return print_json(members);
    }
    out::raw(value)
}

/// Writes an object.
pub(crate) fn put(args: &args::Put) -> Result<(), Fail> {
    let value = if args.value == "-" { standard_input()? } else { args.value.as_bytes().to_vec() };
    let mut store = client::connect(&args.at)?;
    let table = store.table(&args.table)?;
    let version = store.write(table, args.key.as_bytes(), &value, condition(&args.only))?;
    if args.json { print_json([number("version", version.0)]) } else { Ok(()) }
}

/// Removes an object.
pub(crate) fn del(args: &args::Del) -> Result<(), Fail> {
    let mut store = client::connect(&args.at)?;
    let table = store.table(&args.table)?;
    let condition = version_is(args.if_version).unwrap_or_else(Condition::if_exists);
    let version = store.remove(table, args.key.as_bytes(), condition)?;
    if args.json {
        print_json([number("version", version.map_or(0, |version| version.0))])
    } else {
        Ok(())
    }
}

/// Adds to a number.
pub(crate) fn incr(args: &args::Incr) -> Result<(), Fail> {
    let mut store = client::connect(&args.at)?;
    let table = store.table(&args.table)?;
    let (key, condition) = (args.key.as_bytes(), condition(&args.only));
    let (sum, text, version) = match args.float {
        None => {
            let sum = store.increment(table, key, args.by, condition)?;
            (Value::from(sum.value), sum.value.to_string(), sum.version)
        }
        Some(by) => {
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

fn condition(only: &args::Condition) -> Condition {
    version_is(only.if_version).unwrap_or_else(|| match (only.if_exists, only.if_absent) {
        (true, _) => Condition::if_exists(),
        (false, true) => Condition::if_absent(),
        (false, false) => Condition::always(),
    })
}

/// All of standard input, unless it is longer than any value.
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
