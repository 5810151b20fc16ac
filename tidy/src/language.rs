//! The rules of language: text is plain technical English, with lines of at most 100 columns, no
//! banned words, and doc comments that begin and end as sentences do.
//!
//! The tests read comments of Rust, C and shell, and Markdown outside of tables and code blocks.
//! Words of [`NAMES`] are banned as parts of names in code too. CONTRIBUTING has the glossary.

use std::collections::BTreeMap;

use crate::report;
use crate::source::{File, files};

/// The most columns of a line of code, of a comment and of Markdown.
const COLUMNS: usize = 100;

/// Banned words, which name a person where a part of the program acts, or hide the subject.
const WORDS: &[&str] = &[
    "who",
    "whom",
    "whoever",
    "whomever",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "he",
    "him",
    "his",
    "himself",
    "she",
    "hers",
];

/// Banned phrases, which hide the subject.
const PHRASES: &[&str] =
    &["so many", "is looked at", "are looked at", "is told", "are told", "was told", "in vain"];

/// Banned words that meant something in this repository alone. The field has other names for them.
const NAMES: &[&str] = &[
    "door",
    "doors",
    "desk",
    "strand",
    "strands",
    "crowd",
    "soil",
    "doze",
    "rouse",
    "stranger",
    "strangers",
    "unkeep",
    "express",
    "nap",
];

/// Banned openings of a doc comment, which make it half a sentence, or one that does not stand
/// alone.
const OPENINGS: &[&str] = &[
    "The same",
    "As above",
    "See the file",
    "As [`",
    "What ",
    "Who ",
    "Whom ",
    "Why ",
    "How ",
    "Where ",
    "Whether ",
    "When ",
    "Same as",
    "Ditto",
];

/// Lines that may have a banned word: a part of the path, a part of the line, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// The number of violations left in the text, by rule. A ratchet: empty is the goal.
const LEFT: &[(&str, usize)] = &[];

/// A violation of a rule of language: its place, and the words.
struct Wrong {
    path: String,
    line: usize,
    what: String,
}

/// Returns the place for which the rules of language count violations: a crate, or a folder of the
/// root.
fn place(path: &str) -> &str {
    path.strip_prefix("crates/").unwrap_or(path).split('/').next().unwrap_or(path)
}

fn is_c(path: &str) -> bool {
    path.ends_with(".c") || path.ends_with(".h")
}

/// Returns the text of a comment line, without its slashes.
fn comment<'a>(file: &File, line: &'a str) -> Option<&'a str> {
    let line = line.trim_start();
    if file.is_rust() || is_c(&file.path) {
        if let Some(text) = line.strip_prefix("//") {
            return Some(text.trim_start_matches(['/', '!']));
        }
        if is_c(&file.path) {
            return line.strip_prefix("/*").or_else(|| line.strip_prefix("* "));
        }
        // Behind code.
        return line.split_once(" // ").map(|(_, text)| text);
    }
    None
}

/// Returns the prose of a file: its comments, or the lines of its Markdown, with their numbers.
fn prose(file: &File) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in file.text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        if file.path.ends_with(".md") {
            fenced ^= line.trim_start().starts_with("```");
            if !fenced {
                found.push((number, line));
            }
        } else if let Some(text) = comment(file, line) {
            found.push((number, text));
        }
    }
    found
}

/// Returns `text` with everything between backquotes and double quotes blanked out.
fn unquoted(text: &str) -> String {
    let mut quote = None;
    text.chars()
        .map(|c| match (quote, c) {
            (None, '`' | '"') => {
                quote = Some(c);
                ' '
            }
            (Some(q), c) if q == c => {
                quote = None;
                ' '
            }
            (Some(_), _) => ' ',
            (None, c) => c,
        })
        .collect()
}

/// Returns the words of the names in a line: `strandOf`, `strand_of` and `Strand` all have
/// "strand".
fn parts(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut lower = false;
    for c in line.chars() {
        if !c.is_ascii_alphabetic() || lower && c.is_ascii_uppercase() {
            parts.push(String::new());
        }
        if c.is_ascii_alphabetic() {
            parts.last_mut().expect("never empty").push(c.to_ascii_lowercase());
        }
        lower = c.is_ascii_lowercase();
    }
    parts
}

/// Fails if a rule has more violations than [`LEFT`] allows, and names them, place by place. With a
/// path in the environment's `TIDY`, names all violations below it.
#[track_caller]
fn ratchet(rule: &str, wrong: Vec<Wrong>) {
    let left = LEFT.iter().find(|(r, _)| *r == rule).map_or(0, |l| l.1);
    let below = std::env::var("TIDY").ok();
    if below.is_none() && wrong.len() <= left {
        return;
    }
    let mut places = BTreeMap::<String, Vec<Wrong>>::new();
    let mut lines = vec![format!("{} violations, at most {left}", wrong.len())];
    let below = below.unwrap_or_default();
    for one in wrong.into_iter().filter(|w| w.path.starts_with(&below)) {
        places.entry(place(&one.path).to_owned()).or_default().push(one);
    }
    for (place, wrong) in places {
        lines.push(format!("{place}: {}", wrong.len()));
        lines.extend(wrong.iter().map(|w| format!("{}:{}: {}", w.path, w.line, w.what)));
    }
    report(rule, &lines);
}

/// Returns the files whose text the rules of language read. The change log keeps the words of its
/// time.
fn texts() -> Vec<File> {
    let mut files = files();
    files.retain(|f| {
        let known = f.is_rust() || is_c(&f.path) || f.path.ends_with(".md");
        known && !f.path.starts_with("tidy/src/language") && f.path != "CHANGELOG.md"
    });
    files
}

#[test]
fn width() {
    let mut wrong = Vec::new();
    for file in &texts() {
        let mut fenced = false;
        for (i, line) in file.text.lines().enumerate() {
            let markdown = file.path.ends_with(".md");
            fenced ^= markdown && line.trim_start().starts_with("```");
            // A table's row and an address cannot be wrapped.
            let free = markdown && (line.starts_with('|') || fenced) || line.contains("://");
            let columns = line.chars().count();
            if columns > COLUMNS && !free {
                let what = format!("{columns} columns");
                wrong.push(Wrong { path: file.path.clone(), line: i + 1, what });
            }
        }
    }
    ratchet("width", wrong);
}

#[test]
fn words() {
    let mut wrong = Vec::new();
    for file in &texts() {
        for (line, text) in prose(file) {
            let excepted =
                |(path, part, _): &(&str, &str, _)| file.path.contains(path) && text.contains(part);
            if EXCEPTIONS.iter().any(excepted) {
                continue;
            }
            let plain = unquoted(text).to_lowercase();
            let mut tokens = plain.split(|c: char| !c.is_alphanumeric() && c != '_');
            let word = tokens.find(|t| WORDS.contains(t) || NAMES.contains(t));
            let phrase = PHRASES.iter().find(|p| plain.contains(**p)).copied();
            if let Some(what) = word.or(phrase) {
                let what = what.to_owned();
                wrong.push(Wrong { path: file.path.clone(), line, what });
            }
        }
    }
    ratchet("words", wrong);
}

#[test]
fn names() {
    let mut wrong = Vec::new();
    for file in texts().iter().filter(|f| f.is_rust()) {
        for (i, line) in file.code().lines().enumerate() {
            if let Some(name) = parts(line).into_iter().find(|p| NAMES.contains(&p.as_str())) {
                wrong.push(Wrong { path: file.path.clone(), line: i + 1, what: name });
            }
        }
    }
    ratchet("names", wrong);
}

#[test]
fn doc_comments_are_sentences() {
    let mut wrong = Vec::new();
    for file in texts().iter().filter(|f| f.is_rust()) {
        let mut block: Vec<(usize, &str)> = Vec::new();
        let mut check = |block: &mut Vec<(usize, &str)>| {
            let first = block.iter().find(|(_, t)| !t.trim().is_empty()).copied();
            // The first paragraph is what a list of items shows.
            let end = block.iter().position(|(_, t)| t.trim().is_empty()).unwrap_or(block.len());
            let last = block[..end].last().map_or("", |(_, t)| t.trim());
            if let Some((line, text)) = first {
                let text = text.trim();
                let begins = text.starts_with(|c: char| !c.is_lowercase());
                let ends = last.ends_with(['.', ':', '?', '!', ')']) || last.ends_with("```");
                let opening = OPENINGS.iter().find(|o| text.starts_with(**o));
                let what = match (opening, begins && ends) {
                    (Some(opening), _) => format!("opens with {opening:?}"),
                    (None, false) => "is no whole sentence".into(),
                    (None, true) => String::new(),
                };
                if !what.is_empty() {
                    wrong.push(Wrong { path: file.path.clone(), line, what });
                }
            }
            block.clear();
        };
        for (i, line) in file.text.lines().enumerate() {
            let line = line.trim_start();
            match line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
                Some(text) => block.push((i + 1, text)),
                None => check(&mut block),
            }
        }
        check(&mut block);
    }
    ratchet("doc comments", wrong);
}

#[test]
fn names_have_parts() {
    let parts = parts("take_Door(aStrand");
    assert_eq!(parts.iter().filter(|p| !p.is_empty()).count(), 4);
    assert!(parts.contains(&"door".into()) && parts.contains(&"strand".into()));
    assert_eq!(unquoted("a `who` b \"he\" c").split_whitespace().collect::<String>(), "abc");
}
