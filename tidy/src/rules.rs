//! The rule that the page of iWARP's rules and the tests that are named after them agree.
//!
//! A test is about the rules that its name begins with: `f6_f7_a_crc_error_is_…` is about F6 and
//! F7.

use std::collections::{BTreeMap, BTreeSet};

use crate::report;
use crate::source::{files, words};

/// The page of iWARP's rules, and the folders of the tests that it may name.
const PAGE: &str = "docs/rules.md";
const CODE: [&str; 2] = ["crates/proto/src/", "crates/proto/tests/siw/"];

/// The number of iWARP's rules of each group: MPA's start-up and FPDUs, DDP, RDMAP, Terminate,
/// enhanced start-up, RFC 7306, tags.
const GROUPS: [(char, usize); 8] =
    [('M', 11), ('F', 15), ('D', 13), ('R', 14), ('T', 5), ('E', 7), ('A', 4), ('S', 2)];

fn is_rule(word: &str) -> bool {
    let mut chars = word.chars();
    let known = chars.next().is_some_and(|c| GROUPS.iter().any(|(group, _)| *group == c));
    known && !chars.as_str().is_empty() && chars.all(|c| c.is_ascii_digit())
}

/// Returns the iWARP rules that a test of this name is about.
fn rules_of(test: &str) -> Vec<String> {
    test.split('_').map(str::to_uppercase).take_while(|word| is_rule(word)).collect()
}

/// Returns the tests of each iWARP rule that the code has.
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

/// Returns the tests of each iWARP rule that the page lists, in the page's order.
fn on_page() -> Vec<(String, BTreeSet<String>)> {
    let page = files().into_iter().find(|f| f.path == PAGE).map(|f| f.text).unwrap_or_default();
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split('|').map(str::trim);
        let rule = cells.next().filter(|cell| is_rule(cell))?;
        Some((
            rule.to_owned(),
            cells.nth(2)?.split('`').skip(1).step_by(2).map(str::to_owned).collect(),
        ))
    });
    rows.collect()
}

#[test]
fn every_rule_of_iwarp_is_listed_with_its_tests() {
    let all =
        GROUPS.iter().flat_map(|(group, count)| (1..=*count).map(move |n| format!("{group}{n}")));
    let (page, code) = (on_page(), in_code());
    assert_eq!(
        page.iter().map(|(rule, _)| rule.clone()).collect::<Vec<_>>(),
        all.collect::<Vec<_>>(),
        "{PAGE}"
    );

    let none = BTreeSet::new();
    let mut wrong = Vec::new();
    for (rule, listed) in &page {
        let there = code.get(rule).unwrap_or(&none);
        wrong.extend(
            listed
                .difference(there)
                .map(|test| format!("{rule}: {test} is listed and is no test of it")),
        );
        wrong.extend(there.difference(listed).map(|test| format!("{rule}: {test} is not listed")));
        if listed.is_empty() {
            wrong.push(format!("{rule}: no test"));
        }
    }
    let unknown = code.keys().filter(|rule| !page.iter().any(|(listed, _)| listed == *rule));
    wrong.extend(
        unknown.map(|rule| format!("{rule}: tests are named after it, and there is no such rule")),
    );
    report("rules:", &wrong);
}

#[test]
fn a_test_is_about_the_rules_that_its_name_begins_with() {
    assert_eq!(rules_of("f6_f7_a_crc_error"), ["F6", "F7"]);
    assert!(rules_of("a_region_ends").is_empty() && rules_of("x1_y").is_empty());
}
