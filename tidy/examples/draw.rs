//! Draws doc comments and names of the repository by a seed and prints each alone, without its
//! code: `cargo run -q -p sprat-tidy --example draw -- SEED`. A reader mends those that cannot be
//! understood, and draws again with another seed. The places stand at the end.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::env;

#[allow(dead_code, reason = "the rules use the rest of the file")]
#[path = "../src/source.rs"]
mod source;

use source::{File, files, words};

/// The number of doc comments in one draw.
const COMMENTS: usize = 40;
/// The number of names in one draw.
const NAMES: usize = 20;

/// A doc comment or a name of the repository, and the place where it stands.
struct Found {
    text: String,
    place: String,
}

/// Adds the doc comments of a file to `found`, one for each item or module.
fn comments(file: &File, found: &mut Vec<Found>) {
    let mut block: Vec<&str> = Vec::new();
    for (i, line) in file.text.lines().chain([""]).enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(text) = doc {
            block.push(text.strip_prefix(' ').unwrap_or(text));
        } else if !block.is_empty() {
            let place = format!("{}:{}", file.path, i + 1 - block.len());
            found.push(Found { text: block.join("\n"), place });
            block.clear();
        }
    }
}

/// Adds the names of types, traits, functions and modules that a file defines to `found`, and the
/// name of the file.
fn names(file: &File, found: &mut Vec<Found>) {
    let place = |line: usize| format!("{}:{line}", file.path);
    found.push(Found { text: format!("file {}", file.path), place: place(1) });
    let code = file.code();
    for keyword in ["struct", "enum", "trait", "type", "fn", "mod"] {
        for at in words(&code, keyword) {
            let rest = code[at + keyword.len()..].trim_start();
            let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
            let name: String = rest.chars().take_while(is_part).collect();
            // The type of a function pointer, `fn(u8)`, has no name.
            if !name.is_empty() && name != "tests" {
                let line = code[..at].matches('\n').count() + 1;
                found.push(Found { text: format!("{keyword} {name}"), place: place(line) });
            }
        }
    }
}

/// Returns the next random number of the sequence that `state` begins (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Takes `count` elements of `from` at random.
fn draw(mut from: Vec<Found>, count: usize, state: &mut u64) -> Vec<Found> {
    let count = count.min(from.len());
    (0..count)
        .map(|_| {
            let at = next(state) % from.len() as u64;
            from.swap_remove(at as usize)
        })
        .collect()
}

fn main() {
    let Some(seed) = env::args().nth(1).and_then(|seed| seed.parse().ok()) else {
        eprintln!("usage: cargo run -q -p sprat-tidy --example draw -- SEED");
        std::process::exit(2);
    };
    let (mut all_comments, mut all_names) = (Vec::new(), Vec::new());
    for file in files().iter().filter(|file| file.is_rust()) {
        comments(file, &mut all_comments);
        names(file, &mut all_names);
    }
    println!("seed {seed}: {} doc comments, {} names", all_comments.len(), all_names.len());
    let mut state = seed;
    let mut drawn = draw(all_comments, COMMENTS, &mut state);
    drawn.extend(draw(all_names, NAMES, &mut state));
    for (i, found) in drawn.iter().enumerate() {
        println!("\n{}.\n{}", i + 1, found.text);
    }
    println!("\nplaces");
    for (i, found) in drawn.iter().enumerate() {
        println!("{}. {}", i + 1, found.place);
    }
}
