//! Tests that the layouts of `sprat_verbs::abi` equal those that the C compiler computes from the
//! installed headers.
//!
//! They also equal those of rdma-core's releases, as `scripts/layouts` recorded them. A release
//! with another layout is listed here, with the reason why its programs run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use sprat_verbs::abi::LAYOUTS;
use sprat_verbs::abi::layout::Layout;

use crate::support::{output, repository};

/// The C program that prints `size align` of each C structure and `offset size` of its fields.
fn program() -> String {
    let mut c = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n\
         #include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         int main(void) {\n",
    );
    for Layout { c: name, fields, .. } in LAYOUTS.iter().copied().flatten() {
        writeln!(c, "printf(\"{name} %zu %zu\\n\", sizeof({name}), _Alignof({name}));")
            .expect("a string grows");
        for (field, _, _) in fields.iter().filter(|f| !f.0.is_empty()) {
            let size = format!("sizeof((({name} *)0)->{field})");
            writeln!(
                c,
                "printf(\"{name}.{field} %zu %zu\\n\", offsetof({name}, {field}), {size});"
            )
            .expect("a string grows");
        }
    }
    c + "return 0; }\n"
}

/// The layouts of `sprat_verbs::abi` in the format that the C program prints.
fn ours() -> String {
    let mut text = String::new();
    for Layout { c: name, size, align, fields } in LAYOUTS.iter().copied().flatten() {
        writeln!(text, "{name} {size} {align}").expect("a string grows");
        for (field, offset, size) in fields.iter().filter(|f| !f.0.is_empty()) {
            writeln!(text, "{name}.{field} {offset} {size}").expect("a string grows");
        }
    }
    text
}

#[test]
fn they_are_those_of_the_headers() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (source, binary) = (folder.path().join("layouts.c"), folder.path().join("layouts"));
    fs::write(&source, program()).expect("the folder is ours");
    output(Command::new("cc").arg("-o").arg(&binary).arg(&source));
    let (theirs, ours) = (output(&mut Command::new(&binary)), ours());
    assert!(ours.lines().count() > 400, "{}", ours.lines().count());
    let wrong: Vec<String> = theirs
        .lines()
        .zip(ours.lines())
        .filter(|(theirs, ours)| theirs != ours)
        .map(|(theirs, ours)| format!("C: {theirs}, here: {ours}"))
        .collect();
    assert!(
        wrong.is_empty() && theirs.lines().count() == ours.lines().count(),
        "{}",
        wrong.join("\n")
    );
}

/// A difference between a C structure's layout in an rdma-core release and in v44.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Differs {
    /// The C structure has another size, since it grew at its end.
    Size,
    /// One of the two releases lacks this field of the C structure.
    Missing(&'static str),
    /// The C structure grew at its front, which moves all fields.
    Front,
}

/// All differences of C structures between rdma-core v44, whose layouts `abi` has, and the releases
/// from v25 to v64.
const DIFFERENCES: [(&str, Differs, &str); 9] = [
    ("struct verbs_context", Differs::Front, "programs reckon from its end, where `context` is"),
    (
        "struct ibv_device_attr_ex",
        Differs::Missing("phys_port_cnt_ex"),
        "the room for it was there",
    ),
    ("struct ibv_port_attr", Differs::Size, "programs say how long theirs is"),
    ("struct ibv_gid_entry", Differs::Size, "it and its functions came with v32"),
    ("struct ibv_ece", Differs::Size, "the same, with v31"),
    (
        "struct ibv_qp_ex",
        Differs::Size,
        "we make it; an operation of later releases has to be asked for, and is refused",
    ),
    ("struct ibv_qp_ex", Differs::Missing("wr_atomic_write"), "the same"),
    ("struct ibv_cq_init_attr_ex", Differs::Size, "its mask says whether a program has the field"),
    ("struct ibv_cq_init_attr_ex", Differs::Missing("parent_domain"), "the same"),
];

/// Compares one rdma-core release's layout of a C structure with ours.
fn differences(layout: &Layout, number: impl Fn(&str) -> String) -> Vec<Differs> {
    let Layout { c, size, align, fields } = layout;
    let mut found = Vec::new();
    let own = number(c);
    if own == "-" {
        // A release that lacks the structure: its programs cannot use it.
        return vec![Differs::Size];
    }
    let (bytes, alignment) = own.split_once('/').expect("bytes/alignment");
    assert_eq!(alignment, align.to_string(), "{c}");
    let front = bytes.parse::<usize>().expect("bytes") as i64 - *size as i64;
    let mut shifted = 0;
    for &(field, offset, size) in fields.iter().filter(|f| !f.0.is_empty()) {
        let theirs = number(&format!("{c}.{field}"));
        if theirs == "-" {
            found.push(Differs::Missing(field));
        } else if theirs == format!("{}:{size}", offset as i64 + front) && front != 0 {
            shifted += 1;
        } else {
            assert_eq!(theirs, format!("{offset}:{size}"), "{c}.{field}");
        }
    }
    if front != 0 {
        found.push(if shifted > 0 { Differs::Front } else { Differs::Size });
    }
    found
}

#[test]
fn they_are_those_of_every_release_or_it_is_known_why_not() {
    let path = repository().join("crates/verbs/layouts.txt");
    let table = fs::read_to_string(path).expect("the table is there");
    let cells = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
    let releases =
        table.lines().find(|line| line.starts_with("# name\t")).map(cells).expect("it has a head");
    let rows: BTreeMap<String, Vec<String>> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|l| (cells(l)[0].clone(), cells(l)))
        .collect();
    let mut found = BTreeSet::new();
    for layout in LAYOUTS.iter().copied().flatten() {
        for release in 1..releases.len() {
            let number = |name: &str| {
                let row = rows.get(name).unwrap_or_else(|| {
                    panic!(
                        "crates/verbs/layouts.txt lacks {name}: add a line and run scripts/layouts"
                    )
                });
                row[release].clone()
            };
            found.extend(differences(layout, number).into_iter().map(|d| (layout.c, d)));
        }
    }
    let listed: BTreeSet<_> =
        DIFFERENCES.iter().map(|(name, differs, _)| (*name, *differs)).collect();
    assert!(releases.len() > 8 && found == listed, "found {found:#?}");
}
