//! The rule that source files do not depend on each other in circles.
//!
//! An edge runs from file A to file B of the same crate if code of A names an item that B defines,
//! by `use` or by a path that starts with `crate`, `self` or `super`. A re-export (`pub use`) makes
//! no edge of its own: an import of a re-exported name leads to the file that defines it. `mod`
//! lines and tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::report;
use crate::source::{File, files, words};

/// The number of source files that lie on circles of dependencies. A ratchet: 0 is the goal.
const ON_CIRCLES: usize = 0;

/// The path of a module: the names from the root of its crate.
type Path = Vec<String>;

/// The modules of one crate, with their files and re-exports.
struct Modules {
    /// The file that defines each module.
    files: BTreeMap<Path, String>,
    /// The re-exports of each module: the name there, and the path of the item.
    exports: BTreeMap<Path, BTreeMap<String, Path>>,
}

/// One path that a `use` names, and whether the `use` re-exports it.
struct Import {
    path: Path,
    name: String,
    exported: bool,
}

/// Returns the crate and the path of the module that a file of a crate's `src` defines.
fn module(path: &str) -> Option<(String, Path)> {
    let (krate, inside) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    let root = inside == "lib" || inside == "main";
    let names = if root { Vec::new() } else { inside.split('/').map(str::to_owned).collect() };
    Some((krate.to_owned(), names))
}

/// Adds the paths that the tree of a `use` names to `found`: `a::{b, c::d as e}` gives `a::b` and
/// `a::c::d`.
fn expand(tree: &str, prefix: &[String], found: &mut Vec<(Path, String)>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let mut path = prefix.to_vec();
        path.extend(
            tree[..open].split("::").map(str::trim).filter(|p| !p.is_empty()).map(Into::into),
        );
        let inner = tree[open + 1..].trim_end().strip_suffix('}').unwrap_or_default();
        let (mut depth, mut from) = (0_usize, 0);
        for (at, byte) in inner.bytes().enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => {
                    expand(&inner[from..at], &path, found);
                    from = at + 1;
                }
                _ => {}
            }
        }
        expand(&inner[from..], &path, found);
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (tree, alias) = tree.split_once(" as ").map_or((tree, None), |(t, a)| (t, Some(a.trim())));
    let mut path = prefix.to_vec();
    path.extend(tree.split("::").map(|p| p.trim().to_owned()));
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), Into::into);
    found.push((path, name));
}

/// Returns true if the item that starts at `at` is public, by the words before it.
fn is_exported(code: &str, at: usize) -> bool {
    let from = code[..at].rfind([';', '{', '}', ']']).map_or(0, |n| n + 1);
    words(&code[from..at], "pub").next().is_some()
}

/// Returns all paths that code names, by `use` and in place.
fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    let mut uses = Vec::new();
    for at in words(code, "use") {
        let Some(end) = code[at..].find(';').map(|n| at + n) else { continue };
        // `impl Trait + use<>` is no import.
        if code[at + 3..].trim_start().starts_with('<') {
            continue;
        }
        let mut paths = Vec::new();
        expand(&code[at + 3..end], &[], &mut paths);
        let exported = is_exported(code, at);
        found.extend(paths.into_iter().map(|(path, name)| Import { path, name, exported }));
        uses.push(at..end);
    }
    for start in ["crate", "self", "super"] {
        for at in words(code, start) {
            let before = code[..at].trim_end();
            if uses.iter().any(|u| u.contains(&at))
                || before.ends_with("::")
                || before.ends_with("(in")
                || !code[at + start.len()..].starts_with("::")
            {
                continue;
            }
            let part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let text: String = code[at..].chars().take_while(|c| part(*c)).collect();
            let names = text.split("::").filter(|p| !p.is_empty()).map(str::to_owned);
            found.push(Import { path: names.collect(), name: String::new(), exported: false });
        }
    }
    found
}

impl Modules {
    /// Returns the absolute path of the item that `path` means in `module`; none if it lies outside
    /// of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Path> {
        let mut base = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            first => {
                let mut child = module.to_vec();
                child.push(first.to_owned());
                self.files.contains_key(&child).then_some(child)?
            }
        };
        let mut rest = &path[1..];
        while rest.first().is_some_and(|name| name == "super") {
            base.pop()?;
            rest = &rest[1..];
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// Returns the file that defines the item at an absolute path.
    fn definition(&self, path: &[String], depth: usize) -> Option<&str> {
        let deepest = (0..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]))?;
        let (module, rest) = path.split_at(deepest);
        if let Some(name) = rest.first().filter(|_| depth < 8)
            && let Some(target) = self.exports.get(module).and_then(|e| e.get(name))
        {
            let whole: Path = target.iter().chain(&rest[1..]).cloned().collect();
            return self.definition(&whole, depth + 1);
        }
        self.files.get(module).map(String::as_str)
    }
}

/// Returns the dependencies between source files, crate by crate.
fn edges(files: &[File]) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut crates = BTreeMap::<String, Modules>::new();
    let mut codes = Vec::new();
    for file in files.iter().filter(|f| f.is_rust() && !f.is_test()) {
        let Some((krate, path)) = module(&file.path) else { continue };
        let empty = || Modules { files: BTreeMap::new(), exports: BTreeMap::new() };
        let modules = crates.entry(krate.clone()).or_insert_with(empty);
        modules.files.insert(path.clone(), file.path.clone());
        codes.push((krate, path, imports(&file.code_without_tests())));
    }
    for (krate, path, imports) in &codes {
        for import in imports.iter().filter(|i| i.exported) {
            let modules = &crates[krate];
            if let Some(target) = modules.absolute(path, &import.path) {
                let exports = &mut crates.get_mut(krate).expect("entered above").exports;
                exports.entry(path.clone()).or_default().insert(import.name.clone(), target);
            }
        }
    }
    let mut all = BTreeMap::<String, BTreeMap<String, BTreeSet<String>>>::new();
    for (krate, path, imports) in &codes {
        let modules = &crates[krate];
        let from = &modules.files[path];
        for import in imports.iter().filter(|i| !i.exported) {
            let target = modules.absolute(path, &import.path);
            let Some(to) = target.and_then(|t| modules.definition(&t, 0)) else { continue };
            if to != from {
                let edges = all.entry(krate.clone()).or_default();
                edges.entry(from.clone()).or_default().insert(to.to_owned());
            }
        }
    }
    all
}

/// Returns every source file that `from` depends on, directly or not.
fn reached<'a>(edges: &'a BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = edges.get(from).into_iter().flatten().map(String::as_str).collect();
    while let Some(file) = open.pop() {
        if seen.insert(file) {
            open.extend(edges.get(file).into_iter().flatten().map(String::as_str));
        }
    }
    seen
}

#[test]
fn files_form_no_circles() {
    let mut all = 0;
    let mut wrong = Vec::new();
    for (krate, edges) in edges(&files()) {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            edges.keys().map(|file| (file.as_str(), reached(&edges, file))).collect();
        let on: BTreeSet<&str> =
            reach.iter().filter(|(file, to)| to.contains(*file)).map(|(file, _)| *file).collect();
        all += on.len();
        if !on.is_empty() {
            wrong.push(format!("{krate}: {} files:", on.len()));
        }
        for from in &on {
            let back = edges[*from]
                .iter()
                .filter(|to| reach.get(to.as_str()).is_some_and(|r| r.contains(from)));
            wrong.extend(back.map(|to| format!("{from} -> {to}")));
        }
    }
    if all > ON_CIRCLES {
        report("circles of files:", &wrong);
    }
}

#[test]
fn imports_are_read() {
    let code =
        "use a::{b, c::{d as e, self}};\npub(crate) use crate::f::G;\nfn x() { super::h::i(); }\n";
    let found: Vec<String> = imports(code)
        .iter()
        .map(|i| format!("{}={} {}", i.path.join("::"), i.name, i.exported))
        .collect();
    let expected = ["a::b=b false", "a::c::d=e false", "a::c=c false", "crate::f::G=G true"];
    assert_eq!(found[..4], expected);
    assert_eq!(found[4..], ["super::h::i= false"]);
}

#[test]
fn a_circle_through_a_reexport_is_found() {
    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let edges = edges(&[
        file("crates/x/src/lib.rs", "pub mod a;\n"),
        file("crates/x/src/a/mod.rs", "mod b;\nmod c;\npub use b::B;\n"),
        file("crates/x/src/a/b.rs", "use super::c::C;\npub struct B;\n"),
        file(
            "crates/x/src/a/c.rs",
            "use crate::a::B;\npub struct C;\n#[cfg(test)]\nmod tests { use crate::Z; }\n",
        ),
    ]);
    let b = "crates/x/src/a/b.rs";
    assert!(reached(&edges["x"], b).contains(b));
    assert!(!edges["x"].contains_key("crates/x/src/a/mod.rs"), "a re-export makes no edge");
}
