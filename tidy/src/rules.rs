//! The rule that the pages of iWARP's and TCP's rules agree with the tests that are named after the
//! rules.
//!
//! A test is about the rules that its name begins with: `f6_f7_a_crc_error_is_…` is about F6 and
//! F7. Each rule has a row of its page, with its tests. Rules that bind nothing here, or that are
//! not obeyed yet, have a row below a heading that says so, and no tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::report;
use crate::source::{File, files, words};

/// A page of rules.
struct Page {
    path: &'static str,
    /// The groups of rules on the page, in the page's order, each with the number of its rules.
    groups: &'static [(&'static str, usize)],
}

/// The folders of the tests that the pages may name.
const CODE: [&str; 2] = ["crates/proto/src/", "crates/proto/tests/siw/"];

/// The headings of rules without tests.
const UNTESTED: [&str; 2] = ["## Left out", "## Not yet"];

const PAGES: [Page; 2] = [
    // MPA's start-up and FPDUs, DDP, RDMAP, Terminate, enhanced start-up, RFC 7306, tags.
    Page {
        path: "docs/rules.md",
        groups: &[
            ("M", 11),
            ("F", 16),
            ("D", 14),
            ("R", 14),
            ("T", 5),
            ("E", 7),
            ("A", 4),
            ("S", 2),
        ],
    },
    // RFC 9293 MUST-n and SHLD-n, 5961, 6528, 6298, 5681, 6582, 7323, 3168, 6675, 8985, 6937.
    Page {
        path: "docs/rules-tcp.md",
        groups: &[
            ("TM", 69),
            ("TS", 31),
            ("BA", 8),
            ("IS", 3),
            ("RT", 15),
            ("CC", 26),
            ("NR", 7),
            ("HP", 27),
            ("EC", 19),
            ("SK", 13),
            ("RK", 21),
            ("PR", 5),
        ],
    },
];

/// The rules of a page and their tests.
#[derive(Default)]
struct Listed {
    rules: Vec<(String, BTreeSet<String>)>,
    untested: Vec<String>,
}

fn is_rule(word: &str) -> bool {
    let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_group = |page: &Page| page.groups.iter().any(|(group, _)| *group == letters);
    letters.len() < word.len() && PAGES.iter().any(is_group)
}

/// Returns the rules that a test of this name is about.
fn rules_of(test: &str) -> Vec<String> {
    test.split('_').map(str::to_uppercase).take_while(|word| is_rule(word)).collect()
}

/// Returns the tests of each rule that the code has.
fn in_code() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for file in files()
        .iter()
        .filter(|f| f.is_rust() && f.is_test() && CODE.iter().any(|c| f.path.starts_with(c)))
    {
        let code = file.code();
        for at in words(&code, "fn").filter(|&at| code[..at].trim_end().ends_with("#[test]")) {
            let rest = code[at + 2..].trim_start();
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            for rule in rules_of(&name) {
                found.entry(rule).or_default().insert(name.clone());
            }
        }
    }
    found
}

/// Returns the rules that a page lists, in the page's order.
fn on_page(file: &File) -> Listed {
    let (mut listed, mut is_tested) = (Listed::default(), true);
    for line in file.text.lines() {
        if line.starts_with("## ") {
            is_tested = !UNTESTED.contains(&line);
        }
        let mut cells = line.strip_prefix("| ").unwrap_or_default().split('|').map(str::trim);
        let Some(rule) = cells.next().filter(|cell| is_rule(cell)) else { continue };
        if !is_tested {
            listed.untested.push(rule.to_owned());
            continue;
        }
        let tests = cells.nth(2).unwrap_or_default().split('`').skip(1).step_by(2);
        listed.rules.push((rule.to_owned(), tests.map(str::to_owned).collect()));
    }
    listed
}

/// Returns the rules that a page should list, in its order, without those of `except`.
fn wanted(page: &Page, except: &[String]) -> Vec<String> {
    let all = page.groups.iter();
    let all = all.flat_map(|(group, count)| (1..=*count).map(move |n| format!("{group}{n}")));
    all.filter(|rule| !except.contains(rule)).collect()
}

#[test]
fn every_rule_is_listed_with_its_tests() {
    let (files, code) = (files(), in_code());
    let none = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    for page in &PAGES {
        let file = files.iter().find(|file| file.path == page.path).expect("the page exists");
        let Listed { rules, untested } = on_page(file);
        let names: Vec<_> = rules.iter().map(|(rule, _)| rule.clone()).collect();
        assert_eq!(names, wanted(page, &untested), "{}", page.path);
        for (rule, listed) in &rules {
            let there = code.get(rule).unwrap_or(&none);
            wrong.extend(
                listed
                    .difference(there)
                    .map(|test| format!("{rule}: {test} is listed and is no test of it")),
            );
            wrong.extend(
                there.difference(listed).map(|test| format!("{rule}: {test} is not listed")),
            );
            if listed.is_empty() {
                wrong.push(format!("{rule}: no test"));
            }
        }
        let mut once = BTreeSet::new();
        wrong.extend(
            untested
                .iter()
                .filter(|rule| !once.insert(*rule) || !wanted(page, &[]).contains(rule))
                .map(|rule| format!("{rule}: listed twice, or no rule")),
        );
        known.extend(names);
    }
    let unknown = code.keys().filter(|rule| !known.contains(*rule));
    wrong.extend(
        unknown.map(|rule| format!("{rule}: tests are named after it, and no row has them")),
    );
    report("rules:", &wrong);
}

#[test]
fn a_test_is_about_the_rules_that_its_name_begins_with() {
    assert_eq!(rules_of("f6_f7_a_crc_error"), ["F6", "F7"]);
    assert_eq!(rules_of("tm13_t5_time_wait"), ["TM13", "T5"]);
    assert!(rules_of("a_region_ends").is_empty() && rules_of("x1_y").is_empty());
    assert!(rules_of("tmx_y").is_empty() && rules_of("13_y").is_empty());
}
