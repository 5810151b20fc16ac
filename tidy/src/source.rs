//! The repository's files, and Rust code with everything but code blanked out, for the rules to
//! read.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the repository that git tracks (or would, if it were added).
pub(crate) struct File {
    /// The file's path from the root of the repository, with `/`.
    pub(crate) path: String,
    /// The file's text; bytes that are no UTF-8 are replaced.
    pub(crate) text: String,
}

impl File {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True if the file holds nothing but tests: an integration test, or a module named `tests`.
    pub(crate) fn is_test(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/benches/")
    }

    /// Returns the name of the crate under `crates/` that the file belongs to, if it is in one.
    pub(crate) fn in_crate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Returns the file's code with comments, strings and characters replaced by spaces; every line
    /// keeps its number and length.
    pub(crate) fn code(&self) -> String {
        blank(&self.text)
    }

    /// Returns the file's code as [`File::code`] does, with `#[cfg(test)] mod … { … }` replaced by
    /// spaces too.
    pub(crate) fn code_without_tests(&self) -> String {
        let mut code = self.code();
        for range in test_modules(&code).into_iter().rev() {
            let blanks: String =
                code[range.clone()].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
            code.replace_range(range, &blanks);
        }
        code
    }

    /// Counts the lines of the test modules in the source file.
    pub(crate) fn lines_of_tests(&self) -> usize {
        let code = self.code();
        test_modules(&code).into_iter().map(|r| code[r].lines().count()).sum()
    }
}

/// Finds the items of code under `#[cfg(test)]` that have a body. A field has none: its comma comes
/// first.
fn test_modules(code: &str) -> Vec<Range<usize>> {
    let opened = code.match_indices("#[cfg(test)]").filter_map(|(at, _)| {
        let open = at + code[at..].find(['{', ';', ','])?;
        (code.as_bytes()[open] == b'{').then(|| at..closing(code, open) + 1)
    });
    opened.collect()
}

/// Finds the brace in code that closes the one at `open`.
pub(crate) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (i, b) in code.bytes().enumerate().skip(open) {
        match b {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return i;
        }
    }
    code.len() - 1
}

/// Returns the root folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .expect("the repository has a root")
}

/// Returns all text files of the repository.
///
/// The function asks git where there is a checkout, else walks the folders (a source archive has no
/// `.git`).
pub(crate) fn files() -> Vec<File> {
    let root = root();
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output();
    let mut paths: Vec<String> = match listed {
        Ok(out) if out.status.success() && !out.stdout.is_empty() => {
            String::from_utf8_lossy(&out.stdout)
                .split('\0')
                .filter(|p| !p.is_empty())
                .map(Into::into)
                .collect()
        }
        _ => walk(&root, &root),
    };
    paths.sort();
    paths.dedup();
    let files: Vec<File> = paths
        .into_iter()
        .filter_map(|path| {
            // What holds zeros is a capture or a picture, no text.
            let bytes = fs::read(root.join(&path)).ok().filter(|b| !b.contains(&0))?;
            Some(File { path, text: String::from_utf8_lossy(&bytes).into_owned() })
        })
        .collect();
    assert!(
        files.iter().filter(|f| f.is_rust()).count() > 10,
        "the repository's files were not found"
    );
    files
}

fn walk(root: &Path, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if name == "target" || name == ".git" || name == "bench" {
            continue;
        }
        if path.is_dir() {
            found.extend(walk(root, &path));
        } else if let Ok(relative) = path.strip_prefix(root) {
            found.push(relative.to_string_lossy().replace('\\', "/"));
        }
    }
    found
}

/// Returns the number, from 1, of the line that byte `at` of `text` is on.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1
}

/// Finds `word` in `code` where no letter, digit or underscore is beside it.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = code.as_bytes();
        let end = at + word.len();
        (at == 0 || !part(bytes[at - 1])) && (end == bytes.len() || !part(bytes[end]))
    })
}

/// Returns Rust code with comments, strings and characters replaced by spaces, byte for byte.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end > at {
            for b in &mut code[at..end] {
                if *b != b'\n' {
                    *b = b' ';
                }
            }
            at = end;
        } else {
            at += 1;
        }
    }
    String::from_utf8(code).expect("only whole literals were blanked")
}

/// Returns the end of the comment, string or character of Rust code that begins at `at`; `at`
/// itself if none does.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let before = at.checked_sub(1).map_or(b' ', |i| bytes[i]);
    let in_word = before.is_ascii_alphanumeric() || before == b'_';
    let length = match rest {
        [b'/', b'/', ..] => rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => comment(rest),
        [b'"', ..] => string(rest),
        [b'b' | b'c', b'"', ..] if !in_word => 1 + string(&rest[1..]),
        [b'r', b'"' | b'#', ..] if !in_word => raw(&rest[1..]).map_or(0, |n| n + 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !in_word => raw(&rest[2..]).map_or(0, |n| n + 2),
        [b'\'', ..] => character(rest),
        _ => 0,
    };
    at + length
}

fn comment(rest: &[u8]) -> usize {
    let (mut depth, mut i) = (0_usize, 0);
    while i < rest.len() {
        match rest[i..] {
            [b'/', b'*', ..] => (depth, i) = (depth + 1, i + 2),
            [b'*', b'/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i.min(rest.len())
}

fn string(rest: &[u8]) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != b'"' {
        i += if rest[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

fn raw(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|&&b| b == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None; // A raw identifier.
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = hashes + 1;
    let end = rest[body..].windows(close.len()).position(|w| w == close)?;
    Some(body + end + close.len())
}

fn character(rest: &[u8]) -> usize {
    match rest {
        [_, b'\\', ..] => rest[3..].iter().position(|&b| b == b'\'').map_or(0, |n| n + 4),
        [_, _, b'\'', ..] => 3,
        // One character of several bytes; otherwise it is a lifetime.
        [_, first, ..] if *first >= 0x80 => {
            rest[1..].iter().position(|&b| b == b'\'').map_or(0, |n| n + 2)
        }
        _ => 0,
    }
}

#[test]
fn blanking_keeps_code_and_lines() {
    let check = |text: &str, code: &str| assert_eq!(blank(text), code, "{text}");
    check("a // b\nc", "a     \nc");
    check("a /* b /* c */\n*/ d", "a             \n   d");
    check(r#"f("x\"y", b"z", r"w")"#, "f(      ,     ,     )");
    check("r#\"a\"b\"# + r#type", "         + r#type");
    check("'a' '\\'' '\\u{1F}' &'a x", "                  &'a x");
    check("'é'.x", "    .x");
}
