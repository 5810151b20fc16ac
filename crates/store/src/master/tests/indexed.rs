//! Tests of changes of objects together with their entries, at the master.

use alloc::string::String;

use super::*;
use crate::btree::catalog::{Catalog, Definition, Source};
use crate::btree::node::{Entry, Node, Point, emit};
use crate::btree::{ROOT, catalog_key, node_key};
use crate::message::transaction::{Change, Part, Participant, request};
use crate::objects::tablet::Tablet;
use crate::ops::{ChangeIndexed, Kind};
use crate::types::{KeyHash, Lifetime, MAX_INDEX_KEY};

const NODES: TableId = TableId(8);
/// The table of the nodes as a target.
const OF_NODES: Target = Target { table: NODES, ..TARGET };
/// The size of a full node.
const FULL: u32 = 100;

fn point<'a>(key: &'a [u8], object: &'a [u8]) -> Point<'a> {
    Point { key, object }
}

/// Returns a catalog with an index by the second field of a value.
fn catalog(is_ready: bool) -> Vec<u8> {
    let source = Source::Field { number: 1, separator: b',' };
    let index =
        Definition { name: "by city".into(), source, node_bytes: FULL, is_ready, number: 0 };
    Catalog { indexes: vec![index], next: 1 }.bytes()
}

/// A master with an index, and the number of its client's next mutation.
struct Indexed {
    rig: Rig,
    rpc: u64,
}

impl Indexed {
    /// Returns a master with a table and the table of its nodes, which has a catalog and these
    /// nodes.
    fn new(nodes: &[(u64, Vec<u8>)]) -> Self {
        let mut rig = Rig::small();
        assert_eq!(rig.ask(TakeTablet { table: NODES, ..take(0, u64::MAX) }.emit()), done());
        rig.client(1, TERM_NS);
        let mut it = Self { rig, rpc: 1 };
        it.put(&catalog_key(0), &catalog(true));
        nodes.iter().for_each(|(id, bytes)| it.put(&node_key((0, *id)), bytes));
        it
    }

    /// Returns a master with an index whose root is a leaf without entries.
    fn empty() -> Self {
        Self::new(&[(ROOT, emit(0, Point::FIRST, None, [].into_iter()))])
    }

    fn once(&mut self) -> Once {
        self.rpc += 1;
        once(1, self.rpc, 1)
    }

    /// Writes an object of the table of the nodes.
    fn put(&mut self, key: &[u8], value: &[u8]) {
        let once = self.once();
        let write = Write { target: OF_NODES, once, key, value, lifetime: None };
        assert!(mutation_reply(&self.rig.ask(write.emit())).is_ok());
    }

    fn request<'a>(&mut self, key: &'a [u8], value: Option<&'a [u8]>) -> ChangeIndexed<'a> {
        let kind = if value.is_some() { Kind::Write(None) } else { Kind::Remove };
        let (once, value) = (self.once(), value.unwrap_or_default());
        ChangeIndexed { target: TARGET, once, nodes: NODES, kind, key, value }
    }

    fn send(&mut self, change: &ChangeIndexed<'_>) -> Result<u64, Status> {
        let reply = self.rig.ask(change.emit());
        mutation_reply(&reply).map(|version| version.0).map_err(|refusal| refusal.status)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<u64, Status> {
        let request = self.request(key, Some(value));
        self.send(&request)
    }

    fn remove(&mut self, key: &[u8]) -> Result<u64, Status> {
        let request = self.request(key, None);
        self.send(&request)
    }

    /// Returns the version of a node and its entries, as text.
    fn node(&mut self, id: u64) -> (u64, Vec<String>) {
        let reply = self.rig.ask(Read { target: OF_NODES, key: &node_key((0, id)) }.emit());
        let (version, bytes) = read_reply(&reply).map_err(|refusal| refusal.status).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let entries = Node::parse(bytes).expect("an intact node").entries();
        let entries = entries.map(|it| text(it.point.key) + " " + &text(it.point.object));
        (version.0, entries.collect())
    }

    fn entries(&mut self) -> Vec<String> {
        self.node(ROOT).1
    }

    /// Prepares an object: it is locked.
    fn prepare(&mut self, table: TableId, key: &[u8], change: Change<'_>) {
        let elsewhere = Participant { table: TableId(70), hash: KeyHash(3), rpc: 90 };
        let rpc = self.once().rpc;
        let part = Part { table, rules: RejectRules::default(), rpc, key, change };
        let identity = (CLUSTER, LeaseId(1), 1);
        let parts = [part].into_iter();
        let prepare = request(Opcode::Prepare, identity, [elsewhere].into_iter(), parts);
        assert_eq!(self.rig.status(prepare), Some(Status::Ok));
    }
}

#[test]
fn an_object_takes_its_entries_along() {
    let mut it = Indexed::empty();
    let first = it.request(b"17", Some(b"Ada,Paris"));
    let version = it.send(&first).unwrap();
    assert_eq!(it.rig.read(b"17"), Ok((Version(version), b"Ada,Paris".to_vec())));
    assert!(it.write(b"23", b"Bob,Oslo").is_ok());
    assert_eq!(it.entries(), ["Oslo 23", "Paris 17"]);
    assert_eq!(it.write(b"17", b"Ada,Lima"), Ok(version + 1));
    assert_eq!(it.entries(), ["Lima 17", "Oslo 23"]);
    // A repetition has the same answer, and changes nothing anew.
    assert_eq!(it.send(&first), Ok(version));
    assert_eq!(it.entries(), ["Lima 17", "Oslo 23"]);
    // Without another index key, the leaf stays as it is.
    let (before, _) = it.node(ROOT);
    assert_eq!(it.write(b"17", b"Eve,Lima"), Ok(version + 2));
    assert_eq!(it.node(ROOT).0, before);
    // An object without the field has no entry.
    assert_eq!(it.write(b"17", b"Eve"), Ok(version + 3));
    assert_eq!(it.entries(), ["Oslo 23"]);
    assert!(it.write(b"17", b"Eve,Kiel").is_ok());
    let removed = it.request(b"17", None);
    assert_eq!(it.send(&removed), Ok(version + 4));
    assert_eq!(it.entries(), ["Oslo 23"]);
    assert_eq!((it.remove(b"17"), it.send(&removed)), (Ok(0), Ok(version + 4)));
    assert_eq!(it.rig.read(b"17"), Err(Status::ObjectDoesntExist));
    assert_eq!(it.rig.master.counter("indexed_changes"), 8);
}

#[test]
fn an_index_that_is_being_built_gets_entries_that_it_may_not_have() {
    let mut it = Indexed::empty();
    assert!(it.rig.write(once(1, 100, 1), b"17", b"Ada,Paris").is_ok());
    assert!(it.write(b"17", b"Eve,Paris").is_ok());
    assert_eq!(it.entries(), [""; 0], "a ready index has the entry");
    it.put(&catalog_key(0), &catalog(false));
    assert!(it.write(b"17", b"Ida,Paris").is_ok());
    assert_eq!(it.entries(), ["Paris 17"]);
}

#[test]
fn a_table_without_a_catalog_has_no_entries() {
    let mut it = Indexed::empty();
    let remove = Remove { target: OF_NODES, once: it.once(), key: &catalog_key(0) };
    assert!(mutation_reply(&it.rig.ask(remove.emit())).is_ok());
    let version = it.write(b"17", b"Ada,Paris").unwrap();
    assert_eq!(it.rig.read(b"17").unwrap().0, Version(version));
    assert_eq!(it.entries(), [""; 0]);
}

#[test]
fn a_verdict_is_recorded() {
    let mut it = Indexed::empty();
    let rules = RejectRules { exists: true, ..RejectRules::default() };
    let target = Target { rules, ..TARGET };
    let first = ChangeIndexed { target, ..it.request(b"17", Some(b"Ada,Paris")) };
    let version = it.send(&first).unwrap();
    let second = ChangeIndexed { target, ..it.request(b"17", Some(b"Eve,Oslo")) };
    assert_eq!(it.send(&second), Err(Status::ObjectExists));
    assert_eq!(it.remove(b"17"), Ok(version));
    assert_eq!(it.send(&second), Err(Status::ObjectExists));
    assert_eq!(it.entries(), [""; 0]);
}

#[test]
fn entries_are_in_the_leaves_that_the_root_leads_to() {
    let (middle, end) = (point(b"M", b""), None);
    let child = |at, child| Entry { point: at, child };
    let root = [child(Point::FIRST, 4), child(middle, 5)];
    let mut it = Indexed::new(&[
        (ROOT, emit(1, Point::FIRST, end, root.into_iter())),
        (4, emit(0, Point::FIRST, Some(middle), [].into_iter())),
        (5, emit(0, middle, end, [].into_iter())),
    ]);
    for (key, value) in [(b"1", b"a,Paris"), (b"2", b"b,Osaka"), (b"3", b"c,Quito")] {
        assert!(it.write(key, value).is_ok());
    }
    assert!(it.write(b"4", b"d,Delft").is_ok());
    assert_eq!(it.node(5).1, ["Osaka 2", "Paris 1", "Quito 3"]);
    assert!(it.write(b"1", b"a,Basel").is_ok());
    assert_eq!((it.node(4).1, it.node(5).1.len()), (vec!["Basel 1".into(), "Delft 4".into()], 2));
    // A leaf without entries takes a merge.
    assert!(it.write(b"2", b"b,Essen").is_ok());
    assert_eq!(it.write(b"3", b"c,Essen"), Err(Status::OtherLeaf));
    assert_eq!((it.node(4).1.len(), it.node(5).1), (3, vec!["Quito 3".into()]));
    // The leaf is not the one that the root leads to.
    it.put(&node_key((0, 5)), &emit(0, point(b"N", b""), end, [].into_iter()));
    assert_eq!(it.write(b"5", b"e,Mainz"), Err(Status::OtherLeaf));
    // A way that leads to itself ends.
    let again = [child(Point::FIRST, ROOT)].into_iter();
    it.put(&node_key((0, ROOT)), &emit(9, Point::FIRST, end, again));
    assert_eq!(it.write(b"5", b"e,Mainz"), Err(Status::OtherLeaf));
    it.put(&node_key((0, ROOT)), b"\x02\0\0\0");
    assert_eq!(it.write(b"5", b"e,Mainz"), Err(Status::OtherLeaf));
    assert_eq!(it.rig.read(b"5"), Err(Status::ObjectDoesntExist));
}

/// The client makes another request, so that the first one must not be executed later on.
#[test]
fn what_is_left_to_the_client_stays_so() {
    let mut it = Indexed::new(&[]);
    let change = it.request(b"17", Some(b"Ada,Paris"));
    assert_eq!(it.send(&change), Err(Status::OtherLeaf));
    it.put(&node_key((0, ROOT)), &emit(0, Point::FIRST, None, [].into_iter()));
    assert_eq!(it.send(&change), Err(Status::OtherLeaf));
    assert_eq!(it.rig.read(b"17"), Err(Status::ObjectDoesntExist));
    assert!(it.write(b"17", b"Ada,Paris").is_ok());

    let long = [b"Eve,".to_vec(), vec![b'x'; MAX_INDEX_KEY + 1]].concat();
    assert_eq!(it.write(b"17", &long), Err(Status::OtherLeaf));
    // There is no room for a third entry of this length.
    let value = |n| [b"Ida,".to_vec(), vec![n; 30]].concat();
    assert!(it.write(b"18", &value(b'a')).is_ok());
    assert_eq!(it.write(b"19", &value(b'b')), Err(Status::OtherLeaf));
    assert_eq!(it.entries().len(), 2);
    it.put(&catalog_key(0), b"no catalog");
    assert_eq!(it.write(b"17", b"Ada,Rome"), Err(Status::OtherLeaf));
    let nodes = Tablet { table: NODES, first: 0, last: u64::MAX };
    it.rig.master.memory.tablets.drop_tablet(nodes);
    assert_eq!(it.write(b"17", b"Ada,Rome"), Err(Status::OtherLeaf));
    let whole = Tablet { table: TABLE, first: 0, last: u64::MAX };
    it.rig.master.memory.tablets.drop_tablet(whole);
    assert_eq!(it.write(b"17", b"Ada,Rome"), Err(Status::UnknownTablet));
}

#[test]
fn what_a_transaction_holds_is_waited_for() {
    let leaf = node_key((0, ROOT));
    let key = catalog_key(0);
    let held: [(TableId, &[u8], Change<'_>); 3] = [
        (TABLE, b"17", Change::Check),
        (NODES, &leaf, Change::Check),
        (NODES, &key, Change::Write(b"", None)),
    ];
    for (table, key, change) in held {
        let mut it = Indexed::empty();
        assert!(it.write(b"17", b"Ada,Paris").is_ok());
        it.prepare(table, key, change);
        let waiting = it.request(b"17", Some(b"Ada,Rome"));
        assert_eq!(it.send(&waiting), Err(Status::Locked), "{key:?}");
        // Another index key or none: a leaf that stays is not needed.
        let same = it.write(b"17", b"Eve,Paris");
        assert_eq!(same.is_ok(), table == NODES && key == leaf, "{key:?}");
    }
    // A check of the catalog keeps no change from it.
    let mut it = Indexed::empty();
    it.prepare(NODES, &catalog_key(0), Change::Check);
    assert!(it.write(b"17", b"Ada,Paris").is_ok());
}

#[test]
fn an_object_that_has_expired_leaves_no_entry() {
    let mut it = Indexed::empty();
    let kind = Kind::Write(Some(Lifetime(5)));
    let expiring = ChangeIndexed { kind, ..it.request(b"17", Some(b"Ada,Paris")) };
    let version = it.send(&expiring).unwrap();
    // The master has not removed it yet.
    it.rig.now = it.rig.now.after(6 * MS);
    assert_eq!(it.write(b"17", b"Eve,Oslo"), Ok(version + 1));
    assert_eq!(it.entries(), ["Oslo 17"]);
    let expiring = ChangeIndexed { kind, ..it.request(b"17", Some(b"Ada,Rome")) };
    assert!(it.send(&expiring).is_ok());
    it.rig.pass(6 * MS);
    // Its entry stays until a look-up meets it.
    assert_eq!((it.remove(b"17"), it.entries().len()), (Ok(0), 1));
}

#[test]
fn bad_requests_are_refused() {
    let mut it = Indexed::empty();
    let change = it.request(b"17", Some(b"Ada,Paris"));
    // An object is no node of its own table.
    let same = ChangeIndexed { nodes: TABLE, ..change };
    assert_eq!(it.send(&same), Err(Status::BadFormat));
    let removed = ChangeIndexed { kind: Kind::Remove, ..change };
    assert_eq!(it.send(&removed), Err(Status::BadFormat));
    let mut bytes = change.emit();
    bytes[73] = 1;
    assert_eq!(it.rig.status(bytes), Some(Status::BadFormat));
    assert!(it.send(&change).is_ok());
}
