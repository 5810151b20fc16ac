//! Tests that hold the rules of the repository by reading its files.
//!
//! The rules are about imports, `unsafe`, lengths of files and functions, words, links, the tests
//! that documents name, and the programs that scripts start. Each rule is one module. A limit that
//! the tree does not meet yet, or an exception with a reason, stands in a list beside its rule: a
//! *ratchet*. A list may shrink and must not grow. A test fails on an entry that no longer holds.
//!
//! Not here: rules that the compiler or clippy can hold (the lints in `Cargo.toml`), and style
//! (`rustfmt.toml`).

#![cfg(test)]

mod circles;
mod counters;
mod crates;
mod devices;
mod imports;
mod language;
mod planted;
mod programs;
mod rules;
mod size;
mod source;
mod text;
mod time;
mod traits;
mod unsafety;

/// Fails with all violations of a rule at once, one line each.
#[track_caller]
fn report(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}\n  {}\n", wrong.join("\n  "));
}
