//! `sprat transact`: executes commands on several objects as one transaction.
//!
//! ```text
//! get TABLE KEY           put TABLE KEY VALUE
//! remove TABLE KEY        check TABLE KEY VERSION
//! ```
//!
//! A line is one command. Blanks separate its words; quotes keep them together. The commands are
//! read to the end before the first one is executed, and results are written after the commit.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};
use sprat::kv::{
    AnyTable, Condition, Error, MAX_TRANSACTION_BYTES, Object, TableId, Transaction, Version,
};
use sprat_bench::fail::{Fail, Named};
use sprat_bench::out;
use sprat_bench::store::Store;

use super::index;
use crate::options::Cluster;
use crate::records::json_member;

/// The most bytes of the commands: those of a transaction with every byte quoted, and as much again
/// for names and blanks.
const INPUT_LIMIT: usize = 4 * MAX_TRANSACTION_BYTES;

/// Read and write several objects as one transaction.
///
/// All changes are made, or none. The objects that the commands read are as they were at one time,
/// and no other change comes between the reads and the writes. Each line of the file is a command:
///
///   get TABLE KEY             write the object as a line: the key, a tab and the value
///   put TABLE KEY VALUE       write an object
///   remove TABLE KEY          remove an object
///   check TABLE KEY VERSION   commit only if the object has this version; 0: only if it is absent
///
/// A word with blanks stands in single or double quotes. Within double quotes, and outside of
/// quotes, a backslash makes the next character an ordinary one. Empty lines and lines that begin
/// with # are ignored. A get sees the changes of the lines before it. It writes no tab if there is
/// no such object. Control characters are escaped as by scan; --json has the exact bytes.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  sprat transact transfer.txt
  printf 'get stock dune\\nput orders 17 dune\\n' | sprat transact
  printf 'check locks leader 0\\nput locks leader me\\nput log 1 elected\\n' | sprat transact
  sprat transact transfer.txt --retry --json

Exit code 4 means a conflict: an object has changed meanwhile, or a check does not hold; nothing was
changed. With --retry the transaction is repeated until no other change meets it; a check that does
not hold ends it."
)]
pub(crate) struct Transact {
    #[command(flatten)]
    at: Cluster,
    /// The file with the commands; `-` is standard input.
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Repeat the transaction after a conflict, as long as an operation may take (--timeout).
    #[arg(long)]
    retry: bool,
    /// Write a JSON object for each command: table and key, value and version of what was read, the
    /// new version of what was written.
    #[arg(long)]
    json: bool,
}

/// A command of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Action {
    Get,
    Put(String),
    Remove,
    Check(u64),
}

/// A line of the input: a command with the object that it names.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    /// The number of the line, from 1.
    number: usize,
    table: String,
    key: String,
    action: Action,
}

/// The transaction as it was executed: the object that each `get` has found, and the objects in the
/// order in which a conflict numbers them.
#[derive(Default)]
struct Executed {
    found: Vec<Option<Object>>,
    objects: Vec<(TableId, Vec<u8>)>,
}

/// Runs `sprat transact`.
pub(crate) fn run(args: &Transact) -> Result<(), Fail> {
    let lines = commands(&input(&args.file)?)?;
    if lines.is_empty() {
        return Err(Fail::usage("there are no commands").next("see sprat transact --help"));
    }
    let mut store = args.at.connect()?;
    let mut tables = HashMap::new();
    for line in &lines {
        if !tables.contains_key(&line.table) {
            tables.insert(line.table.clone(), store.table(&line.table)?);
        }
    }
    let changed =
        lines.iter().filter(|line| matches!(line.action, Action::Put(_) | Action::Remove));
    let changed: HashSet<TableId> = changed.map(|line| tables[&line.table]).collect();
    let mut indexed = HashMap::new();
    for table in changed {
        if let Some(with_indexes) = index::of(&store, table)? {
            indexed.insert(table, with_indexes);
        }
    }
    let mut executed = Executed::default();
    let mut at = 0;
    let body = |transaction: &mut Transaction<'_>| {
        executed.found.clear();
        for (index, line) in lines.iter().enumerate() {
            at = index;
            let table = store.raw().table_by_id(tables[&line.table]);
            match indexed.get(&table.id()) {
                Some(indexed) => execute(transaction, indexed, line, &mut executed.found)?,
                None => execute(transaction, &table, line, &mut executed.found)?,
            }
        }
        at = lines.len();
        let objects = transaction.objects().into_iter();
        executed.objects = objects.map(|(table, key)| (table, key.to_vec())).collect();
        Ok(())
    };
    let outcome = transact(&store, args.retry, body);
    match outcome {
        Ok(versions) => print(args.json, &lines, &tables, &executed, &versions),
        Err(error) => {
            Err(explain(&store, (&lines, &tables), lines.get(at), &executed.objects, error))
        }
    }
}

/// Runs the transaction, once or until there is no conflict. Returns the new versions.
fn transact(
    store: &Store,
    retry: bool,
    mut body: impl FnMut(&mut Transaction<'_>) -> Result<(), Error>,
) -> Result<Vec<Version>, Error> {
    let client = store.raw();
    if retry {
        return client.transact_versioned(body).map(|(_, committed)| committed.versions);
    }
    let mut transaction = client.transaction();
    body(&mut transaction)?;
    Ok(transaction.commit()?.versions)
}

/// Executes one command.
fn execute(
    transaction: &mut Transaction<'_>,
    table: &impl AnyTable,
    line: &Line,
    found: &mut Vec<Option<Object>>,
) -> Result<(), Error> {
    let key = line.key.as_bytes();
    match &line.action {
        Action::Get => found.push(transaction.get(table, key)?),
        Action::Put(value) => transaction.put(table, key, value.as_bytes())?,
        Action::Remove => transaction.remove(table, key)?,
        Action::Check(version) => {
            transaction.check(table, key, Condition::if_version(Version(*version)))?;
        }
    }
    Ok(())
}

/// Returns the failure of the transaction, which names the line of the object if one is known.
fn explain(
    store: &Store,
    (lines, tables): (&[Line], &HashMap<String, TableId>),
    failed: Option<&Line>,
    objects: &[(TableId, Vec<u8>)],
    error: Error,
) -> Fail {
    let conflict = if let Error::Conflict { part, .. } = error { objects.get(part) } else { None };
    let of_object = |line: &&Line| {
        conflict
            .is_some_and(|(table, key)| tables[&line.table] == *table && line.key.as_bytes() == key)
    };
    // The command that needs the object unchanged comes first, if there is one.
    let needs = |line: &&Line| matches!(line.action, Action::Get | Action::Check(_));
    let line = failed
        .or_else(|| lines.iter().filter(needs).find(of_object))
        .or_else(|| lines.iter().find(of_object));
    let what = line.map_or_else(
        || "the transaction".to_owned(),
        |line| format!("line {}: {} {}", line.number, line.table, line.key),
    );
    if let Error::Conflict { why, version, .. } = error {
        let now = match version {
            Version(0) => "it does not exist".to_owned(),
            Version(version) => format!("it has version {version}"),
        };
        return Fail::refused(format!("{what}: {why}; {now}")).next(
            "nothing was changed; read the objects again and decide anew, or repeat with --retry \
             if the commands stay right",
        );
    }
    store.explain(error, &what)
}

/// Writes the results of the commands.
fn print(
    json: bool,
    lines: &[Line],
    tables: &HashMap<String, TableId>,
    executed: &Executed,
    versions: &[Version],
) -> Result<(), Fail> {
    let mut text = String::new();
    let mut found = executed.found.iter();
    for line in lines {
        let object = if line.action == Action::Get { found.next() } else { None };
        if json {
            let key = (tables[&line.table], line.key.as_bytes());
            let place = executed.objects.iter().position(|(table, name)| (*table, &**name) == key);
            let version = place.and_then(|place| versions.get(place)).copied();
            text += &members(line, object, version).to_string();
            text.push('\n');
        } else if let Some(object) = object {
            text += &out::plain(&line.key);
            if let Some(object) = object {
                text.push('\t');
                text += &out::plain(&String::from_utf8_lossy(&object.value));
            }
            text.push('\n');
        }
    }
    out::raw(text)
}

/// Returns the JSON object of a command. `written` is the new version of its object, if the
/// transaction has written it.
fn members(line: &Line, found: Option<&Option<Object>>, written: Option<Version>) -> Value {
    let name = match line.action {
        Action::Get => "get",
        Action::Put(_) => "put",
        Action::Remove => "remove",
        Action::Check(_) => "check",
    };
    let mut members = Map::new();
    members.insert("command".to_owned(), name.into());
    members.insert("table".to_owned(), line.table.as_str().into());
    members.insert("key".to_owned(), line.key.as_str().into());
    let version = match (&line.action, found) {
        (Action::Get, Some(Some(object))) => {
            members.extend([json_member("value", &object.value)]);
            // One of the transaction's own values has no version yet.
            (object.version != Version(0)).then_some(object.version.0)
        }
        (Action::Get, _) => Some(0),
        (Action::Put(_), _) => written.map(|version| version.0),
        (Action::Check(version), _) => Some(*version),
        (Action::Remove, _) => None,
    };
    if let Some(version) = version {
        members.insert("version".to_owned(), version.into());
    }
    Value::Object(members)
}

/// Reads the commands.
fn input(path: &Path) -> Result<String, Fail> {
    let place = || {
        if path == Path::new("-") { "standard input".into() } else { path.display().to_string() }
    };
    let read: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).named(format!("cannot read {}", place()))?))
    };
    let mut text = Vec::new();
    read.take(INPUT_LIMIT as u64 + 1)
        .read_to_end(&mut text)
        .named(format!("cannot read {}", place()))?;
    if text.len() > INPUT_LIMIT {
        return Err(Fail::new(format!("{} is longer than {INPUT_LIMIT} bytes", place()))
            .next(format!("a transaction has at most {MAX_TRANSACTION_BYTES} bytes")));
    }
    String::from_utf8(text).map_err(|_| {
        Fail::new(format!("{} is not UTF-8", place()))
            .next("the library (sprat::kv) has transactions with keys and values of any bytes")
    })
}

/// Parses all commands.
fn commands(text: &str) -> Result<Vec<Line>, Fail> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let number = index + 1;
        let parsed = words(trimmed).and_then(|words| command(number, words));
        lines.push(parsed.map_err(|why| {
            Fail::usage(format!("line {number}: {why}")).next("see sprat transact --help")
        })?);
    }
    Ok(lines)
}

/// Makes a command of its words.
fn command(number: usize, words: Vec<String>) -> Result<Line, String> {
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let (shape, count) = match &*name {
        "get" => ("get TABLE KEY", 2),
        "put" => ("put TABLE KEY VALUE", 3),
        "remove" => ("remove TABLE KEY", 2),
        "check" => ("check TABLE KEY VERSION", 3),
        _ => return Err(format!("{name} is no command: use get, put, remove or check")),
    };
    if rest.len() != count {
        let hint = if rest.len() > count { "; quote a word with blanks" } else { "" };
        return Err(format!("expected {shape}{hint}"));
    }
    let mut rest = rest.into_iter();
    let (table, key) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
    let action = match (&*name, rest.next()) {
        ("get", _) => Action::Get,
        ("put", Some(value)) => Action::Put(value),
        ("check", Some(version)) => {
            let version = version.parse().map_err(|_| format!("{version} is no version"))?;
            Action::Check(version)
        }
        _ => Action::Remove,
    };
    Ok(Line { number, table, key, action })
}

/// Splits a line into words, as a shell does without expansions.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    // The word that goes on, and the quote that is open.
    let (mut word, mut quote): (Option<String>, Option<char>) = (None, None);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                let next = characters.next().ok_or("nothing follows the backslash")?;
                word.get_or_insert_default().push(next);
            }
            (None, _) if character.is_ascii_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is not closed".to_owned()) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_by_a_shell() {
        let split = |line| words(line).unwrap();
        assert_eq!(split("get t k"), ["get", "t", "k"]);
        assert_eq!(split(r#"put 'my t' "a \"b\" 'c'" ''"#), ["put", "my t", r#"a "b" 'c'"#, ""]);
        assert_eq!(split(r"a\ b\\ 'c\d'e"), [r"a b\", r"c\de"]);
        assert!(words("'open").is_err() && words("end\\").is_err());
    }

    #[test]
    fn commands_are_checked_before_any_is_executed() {
        let parsed =
            commands("# comment\n\nput t k 'a value'\n  check t k 7\nremove t k\r\n").unwrap();
        let line = |number, action| Line { number, table: "t".into(), key: "k".into(), action };
        let put = Action::Put("a value".into());
        assert_eq!(parsed, [line(3, put), line(4, Action::Check(7)), line(5, Action::Remove)]);
        for (wrong, said) in [
            ("get t", "expected get TABLE KEY"),
            ("put t k a value", "quote"),
            ("check t k x", "x is no version"),
            ("\nnonsense t", "line 2: nonsense is no command"),
        ] {
            let error = commands(wrong).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("--help"), "{error}");
        }
    }
}
