//! Tests that the header and the library agree: functions, numbers, and layouts of structures.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::process::Command;

use sprat::kv::{
    MAX_INDEX_KEY, MAX_INDEX_NAME, MAX_INDEXES, MAX_KEY, MAX_PARTS, MAX_TRANSACTION,
    MAX_TRANSACTION_BYTES, MAX_VALUE,
};
use sprat_c::{Status, abi};

use crate::{folder, libraries, output};

fn header() -> String {
    fs::read_to_string(folder().join("include/sprat.h")).expect("the header exists")
}

/// The header without its comments.
fn declarations() -> String {
    let header = header();
    let mut code = String::new();
    for piece in header.split("/*") {
        code.push_str(piece.split_once("*/").map_or(piece, |(_, behind)| behind));
    }
    code
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let code = declarations();
    let declared: BTreeSet<&str> = code
        .match_indices('(')
        .filter_map(|(at, _)| {
            let name = code[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            name.starts_with("sprat_").then_some(name)
        })
        .collect();
    let listed = output(
        Command::new("nm").args(["-D", "--defined-only"]).arg(libraries().join("libsprat.so.0")),
    );
    // Each name has the version of its first release behind it.
    let names = listed.lines().filter_map(|line| line.split_whitespace().last()?.split_once("@@"));
    let (exported, versions): (BTreeSet<&str>, BTreeSet<&str>) = names.unzip();
    assert!(versions.iter().all(|version| version.starts_with("SPRAT_0.")), "{versions:?}");
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(declared, exported);
}

#[test]
fn statuses_have_the_numbers_of_the_header() {
    let code = declarations();
    let body = code.split("typedef enum sprat_status {").nth(1).expect("the enum exists");
    let body = body.split('}').next().expect("it ends");
    let declared: BTreeSet<(&str, i32)> = body
        .split(',')
        .map(|line| {
            let (name, number) = line.split_once('=').expect("each has a number");
            (name.trim(), number.trim().parse().expect("it is a number"))
        })
        .collect();
    let known: BTreeSet<(&str, i32)> =
        Status::ALL.iter().map(|status| (status.c_name(), *status as i32)).collect();
    assert_eq!(declared, known);
}

/// Adds a check of the size of a structure and of the offsets of its fields.
macro_rules! layout {
    ($code:ident, $rust:ident, $c:literal, [$($field:ident),* $(,)?]) => {
        let (name, size) = ($c, size_of::<abi::$rust>());
        let _ = writeln!($code, "_Static_assert(sizeof({name}) == {size}, \"{name}\");");
        $(
            let (field, offset) = (stringify!($field), offset_of!(abi::$rust, $field));
            let _ = writeln!(
                $code,
                "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");"
            );
        )*
    };
}

#[test]
fn structures_have_the_layout_of_the_header() {
    let mut code = "#include <sprat.h>\n".to_owned();
    layout!(code, Error, "sprat_error", [status, maybe_executed, version, message]);
    layout!(
        code,
        Options,
        "sprat_options",
        [size, timeout_ms, try_timeout_ms, transports, local, max_operations, insecure_network]
    );
    layout!(code, TableOptions, "sprat_table_options", [size, span, durability]);
    layout!(
        code,
        TableInfo,
        "sprat_table_info",
        [table, tablets, lost, recovering, durability, name]
    );
    layout!(code, Condition, "sprat_condition", [kind, reserved, version]);
    layout!(code, OperationOptions, "sprat_operation_options", [size, timeout_ms, condition]);
    layout!(code, Result, "sprat_result", [version, length, integer, real, value, reserved]);
    layout!(
        code,
        Part,
        "sprat_part",
        [
            kind,
            status,
            table,
            key,
            key_length,
            value,
            value_length,
            integer,
            real,
            condition,
            buffer,
            room,
            result,
            message,
            reserved
        ]
    );
    layout!(
        code,
        Counters,
        "sprat_counters",
        [
            size,
            started,
            completed,
            cancelled,
            retried,
            late,
            route_refreshes,
            bundles,
            saved_round_trips
        ]
    );
    layout!(code, Entry, "sprat_entry", [key, key_length, value, value_length, version]);
    index_layouts(&mut code);
    check(&code);
}

/// Adds checks of the structures of indexes.
fn index_layouts(code: &mut String) {
    layout!(
        code,
        IndexSource,
        "sprat_index_source",
        [kind, number, separator, at, length, reserved]
    );
    layout!(code, IndexInfo, "sprat_index_info", [source, ready, node_bytes, reserved, name]);
    layout!(
        code,
        IndexKeys,
        "sprat_index_keys",
        [from, from_length, to, to_length, from_bound, to_bound, reserved]
    );
    layout!(
        code,
        IndexEntry,
        "sprat_index_entry",
        [index_key, index_key_length, key, key_length, value, value_length, version]
    );
    layout!(code, Lent, "sprat_bytes", [bytes, length]);
    layout!(code, Piece, "sprat_bytes", [bytes, length]);
}

#[test]
fn limits_are_those_of_the_header() {
    let mut code = "#include <sprat.h>\n".to_owned();
    for (name, number) in [
        ("SPRAT_MAX_KEY", MAX_KEY),
        ("SPRAT_MAX_VALUE", MAX_VALUE),
        ("SPRAT_MAX_PARTS", MAX_PARTS),
        ("SPRAT_MAX_TRANSACTION", MAX_TRANSACTION),
        ("SPRAT_MAX_TRANSACTION_BYTES", MAX_TRANSACTION_BYTES),
        ("SPRAT_MAX_INDEX_KEY", MAX_INDEX_KEY),
        ("SPRAT_MAX_INDEXES", MAX_INDEXES),
        ("SPRAT_NAME_SIZE", abi::NAME_SIZE),
        ("SPRAT_INDEX_NAME_SIZE", abi::INDEX_NAME_SIZE),
    ] {
        let _ = writeln!(code, "_Static_assert({name} == {number}, \"{name}\");");
    }
    const { assert!(MAX_INDEX_NAME < abi::INDEX_NAME_SIZE) };
    check(&code);
}

/// Compiles the assertions of `code`.
fn check(code: &str) {
    let scratch = tempfile::tempdir().expect("a folder can be made");
    let source = scratch.path().join("layout.c");
    fs::write(&source, code).expect("it is our folder");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-fsyntax-only", "-I"]).arg(folder().join("include"));
    output(compiler.arg(source));
}
