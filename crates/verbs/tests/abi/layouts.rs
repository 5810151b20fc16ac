//! The layouts of `sprat_verbs::abi` are those of the installed headers, said by the C compiler.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use sprat_verbs::abi::{LAYOUTS, Layout};

use super::output;

/// `size align` of a structure and `offset size` of its fields, a line each, as C computes them.
fn program() -> String {
    let mut c = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         int main(void) {\n",
    );
    for Layout { c: name, fields, .. } in LAYOUTS.iter().copied().flatten() {
        writeln!(c, "printf(\"{name} %zu %zu\\n\", sizeof({name}), _Alignof({name}));")
            .expect("a string grows");
        for (field, _, _) in fields.iter().filter(|f| !f.0.is_empty()) {
            let size = format!("sizeof((({name} *)0)->{field})");
            writeln!(c, "printf(\"{name}.{field} %zu %zu\\n\", offsetof({name}, {field}), {size});")
                .expect("a string grows");
        }
    }
    c + "return 0; }\n"
}

/// The same as they are here.
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
    assert!(wrong.is_empty() && theirs.lines().count() == ours.lines().count(), "{}", wrong.join("\n"));
}
