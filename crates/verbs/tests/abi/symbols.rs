//! Tests that every symbol and version exists with which programs may be linked: those of the
//! table, and those of Debian's libraries.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::SYSTEM;
use crate::support::{LIBRARIES, libraries, output, repository};

/// The symbols that a library defines, as `name@NODE`. Programs name the version, so the test does
/// not check which one is the default.
fn defined(library: &Path) -> BTreeSet<String> {
    let listed = output(
        Command::new("nm").args(["-D", "--with-symbol-versions", "--defined-only"]).arg(library),
    );
    // Address, kind, name; kind A is a version itself.
    let fields = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|f| f.len() == 3 && f[1] != "A").map(|f| f[2].replace("@@", "@")).collect()
}

/// The rows of the table `symbols.txt`: library, node, symbol, state, answer. Each private node has
/// one row.
fn table() -> Vec<[String; 5]> {
    let text = fs::read_to_string(repository().join("crates/verbs/symbols.txt"))
        .expect("the table is there");
    let private = text
        .lines()
        .find_map(|line| line.strip_prefix("# private "))
        .expect("it has private nodes");
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [library, node, symbol, state, answer] = fields[..] else {
            panic!("five columns: {line}")
        };
        let mut add = |node: String, symbol: String| {
            rows.push([library.to_owned(), node, symbol, state.to_owned(), answer.to_owned()]);
        };
        if node == "PRIVATE" {
            for version in private.split_whitespace() {
                add(format!("IBVERBS_PRIVATE_{version}"), symbol.replace('*', version));
            }
        } else {
            add(node.to_owned(), symbol.to_owned());
        }
    }
    rows
}

#[test]
fn the_table_is_what_is_built() {
    for library in ["ibverbs", "rdmacm"] {
        let mut expected: BTreeSet<String> = table()
            .iter()
            .filter(|r| r[0] == library)
            .map(|r| format!("{}@{}", r[2], r[1]))
            .collect();
        if library == "ibverbs" {
            // The functions to which librdmacm.so.1 jumps.
            let jumps = table().into_iter().filter(|r| r[0] == "rdmacm" && r[3] == "works");
            expected.extend(jumps.map(|r| format!("sprat_{}@SPRAT_RDMACM", r[2])));
            // The function that libsprat-sysfs.so calls.
            expected.insert("sprat_sysfs@SPRAT_RDMACM".to_owned());
        }
        let built = defined(&libraries().join(format!("lib{library}.so.1")));
        let missing: Vec<_> = expected.difference(&built).collect();
        let more: Vec<_> = built.difference(&expected).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "lib{library}: missing {missing:?}, more {more:?}"
        );
    }
}

#[test]
fn debians_symbols_are_defined() {
    for library in LIBRARIES {
        let debian = defined(&Path::new(SYSTEM).join(library));
        assert!(debian.len() > 60, "{library}: {debian:?}");
        let ours = defined(&libraries().join(library));
        let missing: Vec<_> = debian.difference(&ours).collect();
        assert!(missing.is_empty(), "{library}: missing {missing:?}");
    }
}

#[test]
fn the_table_says_what_is_so() {
    let states = ["works", "later", "errno", "old"];
    let answers = ["code", "minus", "null", "void", "zero", "data"];
    let mut seen = BTreeSet::new();
    for [library, node, symbol, state, answer] in table() {
        assert!(states.contains(&state.as_str()), "{symbol}: {state}");
        let good =
            if state == "works" { answer == "-" } else { answers.contains(&answer.as_str()) };
        assert!(good, "{symbol}: {answer}");
        assert!(seen.insert((library, node, symbol.clone())), "{symbol} stands there twice");
    }
}

/// The part of docs/verbs.md that the table of symbols determines: the symbols of each node of each
/// library, by state.
fn page() -> String {
    let states = [("works", "works"), ("later", "not yet"), ("errno", "not with this device")];
    let mut text = String::from("\n| library, version | state | symbols |\n| --- | --- | --- |\n");
    let mut nodes: Vec<(String, String)> = Vec::new();
    let rows: Vec<_> = table()
        .into_iter()
        .filter(|r| r[3] != "old" && !r[1].starts_with("IBVERBS_PRIVATE"))
        .collect();
    for [library, node, ..] in &rows {
        if !nodes.contains(&(library.clone(), node.clone())) {
            nodes.push((library.clone(), node.clone()));
        }
    }
    for (library, node) in nodes {
        for (state, word) in states {
            let here = rows.iter().filter(|r| r[0] == library && r[1] == node && r[3] == state);
            let names: Vec<String> = here.map(|r| format!("`{}`", r[2])).collect();
            if !names.is_empty() {
                writeln!(text, "| {library}, {node} | {word} | {} |", names.join(" "))
                    .expect("a string grows");
            }
        }
    }
    text
}

/// The page docs/verbs.md has all symbols with their states. `SPRAT_WRITE_SYMBOLS=1 cargo test -p
/// sprat-verbs --test abi symbols` writes it.
#[test]
fn the_page_has_all_symbols_with_their_states() {
    let path = repository().join("docs/verbs.md");
    let whole = fs::read_to_string(&path).expect("the page is there");
    let mark = "<!-- made of crates/verbs/symbols.txt -->\n";
    let (own, made) = whole.split_once(mark).expect("it has the mark");
    if std::env::var_os("SPRAT_WRITE_SYMBOLS").is_some() {
        fs::write(&path, format!("{own}{mark}{}", page())).expect("the page can be written");
        return;
    }
    assert_eq!(made, page(), "SPRAT_WRITE_SYMBOLS=1 writes it");
}
