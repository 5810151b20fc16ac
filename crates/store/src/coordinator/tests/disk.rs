//! Tests of the coordinator with a disk that is full or fails, after any change.

use super::*;
use crate::durability::TableDurability;

/// The life of a test's cluster. Its later replies must agree with every acknowledged step.
/// Requests without a reply are repeated.
struct Story {
    w: World,
    /// The tables that the coordinator has acknowledged, by name.
    tables: BTreeMap<String, TableKey>,
    ids: BTreeSet<TableId>,
    leases: BTreeSet<u64>,
    servers: BTreeSet<ServerId>,
    heads: BTreeMap<ServerId, u32>,
}

impl Story {
    fn new(w: World) -> Self {
        let (tables, ids, leases) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { w, tables, ids, leases, servers: BTreeSet::new(), heads: BTreeMap::new() }
    }

    /// Repeats a request until the reply is no refusal of the disk, even if the coordinator must be
    /// started again.
    fn insist(&mut self, request: Vec<u8>) -> Vec<u8> {
        for _ in 0..10 {
            let asked = self.w.ask(request.clone());
            if let Some(reply) = self.w.replies.remove(&asked) {
                if !matches!(outcome(&reply).unwrap().0, Status::NotDurable | Status::Unfinished) {
                    return reply;
                }
                assert_eq!(failure_text(&reply), "no room");
                assert!(self.w.disk_full, "the disk has room");
                self.check();
                self.w.disk_full = false;
                // The servers are not heard of in this time, but it is short.
                self.w.pass(300 * MS, &[]);
                continue;
            }
            assert_eq!(self.w.persists_left, 0, "no answer, though the disk works");
            self.w.restart();
            self.check();
        }
        panic!("never answered");
    }

    fn check(&mut self) {
        for (name, key) in self.tables.clone() {
            assert_eq!(self.w.table(&name).as_ref(), Ok(&key), "{name}");
            let owners = self.w.tablets(key.table).unwrap();
            for ((server, state), i) in owners.into_iter().zip(0..) {
                assert_eq!(state, NORMAL);
                let master = self.w.masters.values().find(|master| master.id == server).unwrap();
                assert!(
                    master.owns.iter().any(|owned| owned.0 == key.table),
                    "tablet {i} of {name}"
                );
            }
        }
        for (server, segment) in &self.heads {
            let slot = &self.w.coordinator.servers.slots[server.index as usize];
            assert!(slot.head >= (SegmentId(*segment), 1), "the head of {server}");
        }
        for lease in self.leases.clone() {
            assert!(self.w.check(&[LeaseId(lease)])[0] > 0);
        }
    }

    fn live(&mut self) {
        for (nonce, locator) in [(11, "x"), (12, "y")] {
            let enlist = joining(nonce, locator);
            let id = Enlisted::parse(&self.insist(enlist.emit())).unwrap().server;
            assert!(self.servers.insert(id), "two servers have one id");
            self.w.masters.insert(locator.into(), Master { alive: true, id, ..Master::default() });
        }
        for (server, segment) in self.servers.clone().into_iter().zip(3..) {
            let cluster = self.w.coordinator.cluster();
            let head = SetHead { cluster, server, segment: SegmentId(segment), epoch: 1 };
            assert_eq!(self.insist(head.emit()), done());
            self.heads.insert(server, segment);
        }
        for name in ["a", "b", "a"] {
            let reply = self
                .insist(CreateTable { span: 2, durability: TableDurability::Cluster, name }.emit());
            let key = TableKey::parse(&reply).unwrap();
            assert!(self.ids.insert(key.table) || self.tables.get(name) == Some(&key));
            self.tables.insert(name.into(), key);
            self.check();
        }
        let lease = Leased::parse(
            &self.insist(RenewClient { cluster: 0, lease: LeaseId(0), release: false }.emit()),
        );
        assert!(self.leases.insert(lease.unwrap().lease.0));
        let key = self.tables.remove("a").unwrap();
        assert_eq!(self.insist(DropTable { table: key.table, name: "a" }.emit()), done());
        assert_eq!(self.w.table("a"), Err(Status::TableDoesntExist));
        let key = TableKey::parse(&self.insist(
            CreateTable { span: 1, durability: TableDurability::Cluster, name: "a" }.emit(),
        ))
        .unwrap();
        assert!(self.ids.insert(key.table), "an id was used twice");
        self.tables.insert("a".into(), key);
        self.check();
        let owned: usize = self.w.masters.values().map(|master| master.owns.len()).sum();
        assert_eq!(owned, 3, "a server owns what belongs to no table");
    }
}

/// While the disk is full, changes are refused with its error text, other requests succeed, and
/// refused changes leave no trace. They succeed when the disk has room again.
#[test]
fn a_full_disk_refuses_changes_and_nothing_else() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    let lease = w.lease(LeaseId(0)).unwrap().lease;
    w.disk_full = true;
    let refused = |w: &mut World, request: Vec<u8>| {
        let reply = w.answer(request);
        assert_eq!(
            (outcome(&reply).unwrap().0, failure_text(&reply)),
            (Status::NotDurable, "no room")
        );
    };
    let drop_a = DropTable { table: TableId(0), name: "a" }.emit();
    let lease_request = RenewClient { cluster: 0, lease: LeaseId(0), release: false }.emit();
    for _ in 0..3 {
        refused(
            &mut w,
            CreateTable { span: 1, durability: TableDurability::Cluster, name: "b" }.emit(),
        );
        refused(&mut w, drop_a.clone());
        refused(&mut w, lease_request.clone());
        refused(&mut w, joining(5, "z").emit());
        assert_eq!(w.table("b"), Err(Status::TableDoesntExist));
        assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
        assert!(w.lease(lease).is_ok() && w.renew("x").is_ok());
        assert_eq!(w.create("a", 2), Ok(a), "it exists");
        w.pass(SECOND, &["x", "y"]);
    }
    assert!(w.coordinator.refusals <= 4, "the disk is asked again now and then");
    // A server that dies meanwhile is declared crashed as soon as that can be written.
    w.pass(10 * SECOND, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    w.disk_full = false;
    w.pass(SECOND, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert_eq!(w.answer(drop_a), done());
    assert!(w.create("b", 1).is_ok() && w.lease(LeaseId(0)).unwrap().lease > lease);
    assert_eq!(w.masters["x"].owns.len(), 1);
}

/// A change that is queued when the disk refuses an earlier change is dropped too, since it may
/// depend on the earlier one.
#[test]
fn what_the_disk_has_not_been_handed_is_given_up_too() {
    let mut w = World::new(config());
    w.enlist("x");
    let before = w.disk.clone();
    let lease = RenewClient { cluster: 0, lease: LeaseId(0), release: false }.emit();
    w.disk_stalls = true;
    let first = w.ask(lease.clone());
    let second = Caller { transport: 0, rpc: ServerRpc(first + 1), at: Instant::ZERO };
    let reply = crate::testing::request(
        &mut w.coordinator,
        w.now,
        second,
        Payload::Owned(lease),
        Instant::NEVER,
    );
    assert!(reply.is_none(), "it waits for the disk");
    w.disk_full = true;
    w.persist_one();
    (w.disk_full, w.disk_stalls) = (false, false);
    w.run();
    assert!(w.disk == before, "nothing of what was refused is on the disk");
    for asked in [first, first + 1] {
        assert_eq!(outcome(&w.replies[&asked]).unwrap().0, Status::NotDurable);
    }
}

/// A table whose first record is durable and whose second one is not is created later, when the
/// disk has room. The reply to the request reports that the creation is unfinished.
#[test]
fn a_table_that_is_half_created_is_finished_later() {
    let mut w = World::new(config());
    w.enlist("x");
    w.disk_stalls = true;
    let create =
        w.ask(CreateTable { span: 1, durability: TableDurability::Cluster, name: "a" }.emit());
    w.persist_one();
    w.run();
    assert_eq!(w.masters["x"].took, 1);
    (w.disk_full, w.disk_stalls) = (true, false);
    w.run();
    assert_eq!(outcome(&w.replies[&create]).unwrap().0, Status::Unfinished);
    let again =
        w.answer(CreateTable { span: 1, durability: TableDurability::Cluster, name: "a" }.emit());
    assert_eq!(outcome(&again).unwrap().0, Status::Unfinished);
    assert_eq!(w.table("a"), Err(Status::Retry));
    w.disk_full = false;
    w.pass(300 * MS, &["x"]);
    assert!(w.table("a").is_ok());
}

/// Each of the coordinator's changes in turn finds the disk full. It is refused or unfinished,
/// acknowledged changes hold, and the request succeeds when the disk has room again.
#[test]
fn every_change_may_find_the_disk_full() {
    for before in 1..40 {
        let w = World { persists_left: before, fills: true, ..World::new(config()) };
        let mut story = Story::new(w);
        story.live();
        if before == 39 {
            assert!(story.w.fills, "the story is longer");
        }
    }
}

/// The disk fails after each of the coordinator's changes in turn. Acknowledged changes hold, and
/// others can be requested again.
#[test]
fn every_acknowledged_change_survives_a_crash_at_any_change() {
    for persists in 0..40 {
        let w = World { persists_left: persists, ..World::new(config()) };
        let mut story = Story::new(w);
        story.live();
        if persists == 39 {
            assert!(story.w.persists_left > 0 && story.w.persists_left < 39, "the story is longer");
        }
    }
}
