//! Tests of lists of replicas, and of the search for the head.

use super::*;
use crate::durability::TableDurability;
use crate::recovery::inventory::Found;

const ONE: u32 = HEADER as u32;

/// Returns true for the second page of a list.
fn second_page(request: &[u8]) -> bool {
    ListReplicas::parse(request).is_ok_and(|list| list.after == SegmentId(2))
}

/// Server x crashes and leaves one table. Server y has its log but for the first segment.
fn lacks_one() -> (World, ServerId, ServerId) {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    let y = w.join("y");
    w.put("y", x, 3, None);
    w.put("y", x, 4, Some(&[(1, ONE), (2, ONE), (3, ONE)]));
    w.put("y", x, 2, None);
    w.leave(x);
    (w, x, y)
}

/// Puts the three closed segments on a server, which needs two pages for them.
fn put_closed(w: &mut World, on: &str, x: ServerId) {
    (1..4).for_each(|id| w.put(on, x, id, None));
}

#[test]
fn a_page_of_an_earlier_round_does_not_count() {
    let (mut w, x, _) = lacks_one();
    assert_eq!(w.servers()[0].1, ServerState::Blocked);
    w.join("z");
    put_closed(&mut w, "z", x);
    w.holds = second_page;
    w.pass(200 * MS, &["y", "z"]);
    assert_eq!(w.held.len(), 1);
    // The recovery makes all lists again while the call is in progress.
    w.holds = |_| false;
    w.pass(SECOND, &["y", "z"]);
    assert_eq!(w.order("y"), None);
    w.release();
    assert_eq!(w.servers()[0].1, ServerState::Recovering);
    assert!(w.order("y").is_some() || w.order("z").is_some());
}

#[test]
fn a_backup_that_dies_while_it_lists_drops_out() {
    let (mut w, x, _) = lacks_one();
    let z = w.join("z");
    put_closed(&mut w, "z", x);
    w.holds = second_page;
    w.pass(200 * MS, &["y", "z"]);
    w.holds = |_| false;
    w.leave(z);
    w.release();
    w.pass(2 * SECOND, &["y"]);
    assert_eq!(w.servers()[0].1, ServerState::Blocked);
    assert_eq!(w.order("y"), None);
    w.put("y", x, 1, None);
    w.pass(2 * SECOND, &["y"]);
    assert!(w.order("y").is_some());
}

#[test]
fn a_backup_that_dies_while_its_head_is_read_is_replaced() {
    let mut w = World::new(config());
    let x = w.join("x");
    let a = w.create("a", 1).unwrap();
    let (y, z) = (w.join("y"), w.join("z"));
    w.put_log("y", x);
    w.put_log("z", x);
    w.holds = |request| opcode(request) == Ok(Opcode::ReadReplica);
    w.leave(x);
    assert_eq!((w.held.len(), w.order("y"), w.order("z")), (1, None, None));
    assert_eq!(w.coordinator.recoveries.counts(), (1, 0, 0));
    w.holds = |_| false;
    w.leave(y);
    assert!(w.order("z").is_some(), "the head of z is read");
    w.release();
    assert_eq!(w.end("z", Ending::Done, 4), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(z, NORMAL)]);
}

#[test]
fn a_long_head_is_read_in_parts() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    w.join("y");
    w.put_log("y", x);
    // Changes fill the head: each names the first segment anew.
    let (_, _, head) = &w.masters["y"].recoverer.replicas[&(x, SegmentId(2))];
    let seed = u32::from_be_bytes(head[4..8].try_into().unwrap());
    let mut change = vec![0; 8 + 40_000 * DIGESTED];
    let mut bytes = head[HEADER..].to_vec();
    entry::put_change(&mut change, (0..40_000).map(|_| (SegmentId(1), ONE)));
    for _ in 0..9 {
        entry::seal(crc32c, seed, &mut change).unwrap();
        bytes.extend_from_slice(&change);
    }
    let len = HEADER + bytes.len();
    assert!(len > 5 << 19, "{len}");
    let more = bytes[8 + DIGESTED..].to_vec();
    w.extend("y", x, 2, &more);
    w.leave(x);
    let (_, order) = w.order("y").unwrap();
    assert_eq!(order.segments, [(1, ONE, 1), (2, len as u32, 1)]);
}

#[test]
fn a_candidate_without_a_digest_is_read_no_further() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    w.join("y");
    // A survivor: open, long, and without a digest.
    w.put("y", x, 1, None);
    w.extend("y", x, 1, &vec![0; 3 << 20]);
    let replicas = &mut w.masters.get_mut("y").unwrap().recoverer.replicas;
    replicas.get_mut(&(x, SegmentId(1))).unwrap().1 = false;
    w.holds = |request| ReadReplica::parse(request).is_ok_and(|read| read.offset > 0);
    w.leave(x);
    assert!(w.held.is_empty());
    assert_eq!(w.servers()[0].1, ServerState::Blocked);
}

#[test]
fn one_replica_is_read_at_a_time() {
    let mut w = World::new(config());
    let (x, y) = (w.join("x"), w.join("y"));
    w.create("a", 2).unwrap();
    w.join("z");
    w.join("u");
    w.put_log("z", x);
    w.put_log("u", y);
    w.holds = |request| opcode(request) == Ok(Opcode::ReadReplica);
    w.leave(x);
    w.leave(y);
    assert_eq!(w.held.len(), 1);
    w.release();
    assert_eq!(w.held.len(), 1, "the other one");
    w.holds = |_| false;
    w.release();
    assert!(w.order("z").is_some() && w.order("u").is_some());
}

/// A read ends with its recovery, so that others can read.
#[test]
fn a_recovery_without_tablets_reads_no_more() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    let y = w.join("y");
    w.create("b", 1).unwrap();
    w.join("z");
    w.put_log("z", x);
    w.put_log("z", y);
    w.holds = |request| opcode(request) == Ok(Opcode::ReadReplica);
    w.leave(x);
    w.leave(y);
    assert_eq!(w.held.len(), 1);
    w.holds = |request| opcode(request) == Ok(Opcode::FreeReplicas);
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.order("z").unwrap().1.crashed, y);
}

#[test]
fn a_log_that_an_order_cannot_name_is_blocked() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    let y = w.join("y");
    let names: Vec<_> = (1..=65_535).map(|id| (id, ONE)).collect();
    w.put("y", x, 65_536, Some(&names));
    w.leave(x);
    assert_eq!(w.coordinator.recoveries.blocked(x), "the log has too many segments");
    w.put("y", x, 65_536, Some(&names[1..]));
    w.pass(2 * SECOND, &["y"]);
    let missing = "no server has 65534 segments of the log: 2, 3, 4, 5 and others";
    assert_eq!(w.coordinator.recoveries.blocked(x), missing);

    let found = |backups| Found { segment: SegmentId(1), len: 1, backups: vec![y; backups] };
    assert!(w.coordinator.order_fits(&vec![found(60_000); 130]));
    assert!(!w.coordinator.order_fits(&vec![found(60_000); 140]));
}

#[test]
fn a_tablet_of_a_table_that_is_created_moves() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.masters.get_mut("x").unwrap().alive = false;
    let asked =
        w.ask(CreateTable { span: 1, durability: TableDurability::Cluster, name: "a" }.emit());
    let y = w.join("y");
    w.leave(x);
    let a = TableKey::parse(&w.replies[&asked]).unwrap().table;
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
    w.pass(SECOND, &["y"]);
    assert_eq!(w.servers(), [(y, ServerState::Up, 1)], "the replicas of {x} are freed");
    assert_eq!(w.order("y"), None);
}
