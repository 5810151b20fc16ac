//! The rule that each bug which `scripts/planted` plants has a place in the sources, and a world
//! that looks for it.

use std::process::Command;

use crate::source::root;

#[test]
fn planted_bugs_have_a_place() {
    let root = root();
    let checked = Command::new(root.join("scripts/planted")).arg("--check").output();
    let checked = checked.expect("the script starts");
    let said = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&said));
}
