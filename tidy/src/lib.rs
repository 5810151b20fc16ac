//! The rules of the house, held by tests that read the repository's files: who may import whom, where `unsafe` may
//! stand, how long files and functions may be, which words do not belong here, that links lead somewhere, and
//! that the pages of iWARP's rules and of packet devices name their tests, and that programs are there when started.
//!
//! Each rule is one module. A limit that the tree does not meet yet, or an exception with a reason, stands in a list
//! beside its rule: a *ratchet*. What is listed may shrink and must not grow; the test fails on an entry that no longer
//! holds, so that the list cannot go stale.
//!
//! Not here: whatever the compiler or clippy can say (see the lints in `Cargo.toml`), and style (`rustfmt.toml`).

#![cfg(test)]

mod circles;
mod crates;
mod devices;
mod imports;
mod language;
mod programs;
mod rules;
mod size;
mod source;
mod text;
mod time;
mod traits;
mod unsafety;

/// Fails with all that is wrong at once, one line each.
#[track_caller]
fn report(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}\n  {}\n", wrong.join("\n  "));
}
