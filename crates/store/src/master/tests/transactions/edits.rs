//! Tests of edits of leaves, as parts of transactions.

use super::*;
use crate::btree::edit::{begin, push};
use crate::btree::node::{Entry, Node, Point, emit};

const LEAF: &[u8] = b"leaf";
const SOME: &[&[u8]] = &[b"c", b"e"];

fn point(key: &[u8]) -> Point<'_> {
    Point { key, object: b"o" }
}

/// Returns a leaf with entries of these keys, from `b` on up to `x`.
fn leaf(keys: &[&[u8]]) -> Vec<u8> {
    emit(0, point(b"b"), Some(point(b"x")), keys.iter().map(|key| Entry::leaf(point(key))))
}

fn edits(edits: &[(&[u8], bool)]) -> Vec<u8> {
    let mut bytes = begin(0, 1000);
    edits.iter().for_each(|&(key, add)| push(&mut bytes, point(key), add));
    bytes
}

impl Rig {
    /// Returns the keys of the leaf's entries.
    fn keys(&mut self) -> Vec<Vec<u8>> {
        let bytes = self.read(LEAF).expect("a leaf").1;
        let entries = Node::parse(&bytes).expect("an intact leaf").entries();
        entries.map(|entry| entry.point.key.to_vec()).collect()
    }
}

fn with_leaf() -> Rig {
    let mut rig = rig();
    assert_eq!(rig.write(once(1, 2, 1), LEAF, &leaf(SOME)), Ok(Version(1)));
    rig
}

#[test]
fn a_commit_edits_a_leaf_once() {
    let mut rig = with_leaf();
    let moved = edits(&[(b"d", true), (b"c", false)]);
    let parts = [write(b"a", 3, None, b"v"), part(LEAF, 4, None, Change::Edit(&moved))];
    let committed = rig.commit(&[], &parts);
    assert_eq!(committed.as_ref().unwrap()[1], (false, 2));
    assert_eq!(rig.keys(), [b"d", b"e"]);
    // An edit meanwhile: the repetition has the same answer, and makes nothing anew.
    let back = edits(&[(b"c", true), (b"d", false)]);
    assert!(rig.commit(&[], &[part(LEAF, 5, None, Change::Edit(&back))]).is_ok());
    assert_eq!(rig.commit(&[], &parts), committed);
    assert_eq!(rig.keys(), [b"c", b"e"]);
    // What is there already is not written.
    let same = edits(&[(b"c", true)]);
    let same = rig.commit(&[], &[part(LEAF, 6, None, Change::Edit(&same))]);
    assert_eq!(same, Ok([(false, 3)].to_vec()));
    assert_eq!(rig.read(LEAF).unwrap().0, Version(3));
}

#[test]
fn a_leaf_that_refuses_its_edits_stays_and_so_do_the_other_objects() {
    let mut rig = with_leaf();
    let behind = edits(&[(b"x", true)]);
    let none = edits(&[(b"d", true)]);
    assert!(rig.write(once(1, 3, 1), b"word", b"no leaf").is_ok());
    let refused = |key, rpc, bytes| [write(b"a", rpc, None, b"v"), part(key, rpc + 1, None, bytes)];
    for (key, bytes) in [(LEAF, &behind), (b"absent", &none), (b"word", &none)] {
        let parts = refused(key, 4, Change::Edit(bytes));
        assert_eq!(rig.commit(&[], &parts), Err((1, Status::OtherLeaf)));
        assert_eq!(rig.prepare(&parts[1..]), Err((0, Status::OtherLeaf)));
    }
    // A repetition is refused as the first try was, also when the leaf would take the edits.
    let parts = refused(LEAF, 4, Change::Edit(&none));
    assert_eq!(rig.commit(&[], &parts), Err((1, Status::OtherLeaf)));
    assert_eq!((rig.keys().len(), rig.read(b"a")), (2, Err(Status::ObjectDoesntExist)));
    assert_eq!(
        rig.commit(&[], &refused(LEAF, 6, Change::Edit(b"no"))),
        Err((99, Status::BadFormat))
    );
}

#[test]
fn a_prepared_edit_locks_its_leaf_until_the_decision() {
    let mut rig = with_leaf();
    let add = |key| edits(&[(key, true)]);
    let (d, f) = (add(&b"d"[..]), add(b"f"));
    let prepare = [part(LEAF, 3, None, Change::Edit(&d))];
    assert_eq!(rig.prepare(&prepare), Ok([(true, 2)].to_vec()));
    assert_eq!(rig.prepare(&prepare), Ok([(true, 2)].to_vec()));
    // Whatever the other edit would find, the lock comes first.
    let behind = add(b"x");
    for (rpc, bytes) in [(10, &f), (11, &d), (12, &behind)] {
        let other = [part(LEAF, rpc, None, Change::Edit(bytes))];
        assert_eq!(rig.prepare(&other), Err((0, Status::Locked)));
        assert_eq!(rig.commit(&[], &other), Err((0, Status::Locked)));
        assert_eq!(rig.commit(&[], &other), Err((0, Status::Locked)));
    }
    assert_eq!(rig.decide(Decision::Commit, &[object(LEAF, 3)]), Some(Status::Ok));
    assert_eq!(rig.keys(), [b"c", b"d", b"e"]);
    assert!(rig.commit(&[], &[part(LEAF, 6, None, Change::Edit(&f))]).is_ok());
    assert_eq!(rig.decide(Decision::Commit, &[object(LEAF, 3)]), Some(Status::Ok));
    assert_eq!(rig.keys(), [&b"c"[..], b"d", b"e", b"f"]);
}

/// Clients that write objects whose entries stay do not keep each other from it.
#[test]
fn entries_that_are_there_lock_nothing_but_their_removal() {
    let mut rig = with_leaf();
    let (stays, goes) = (edits(&[(b"c", true)]), edits(&[(b"c", false)]));
    assert!(rig.prepare(&[part(LEAF, 3, None, Change::Edit(&stays))]).is_ok());
    assert!(rig.prepare(&[part(LEAF, 4, None, Change::Edit(&stays))]).is_ok());
    assert!(rig.commit(&[], &[part(LEAF, 5, None, Change::Edit(&stays))]).is_ok());
    let removal = [part(LEAF, 6, None, Change::Edit(&goes))];
    assert_eq!(rig.prepare(&removal), Err((0, Status::Locked)));
    let both = [object(LEAF, 3), object(LEAF, 4)];
    assert_eq!(rig.decide(Decision::Commit, &both), Some(Status::Ok));
    assert!(rig.prepare(&removal).is_ok());
    assert_eq!(rig.decide(Decision::Abort, &[object(LEAF, 6)]), Some(Status::Ok));
    assert_eq!((rig.keys().len(), rig.read(LEAF).unwrap().0), (2, Version(1)));
}
