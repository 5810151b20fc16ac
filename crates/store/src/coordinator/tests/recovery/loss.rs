//! Tests of recoveries that lack segments, and go on after the loss is accepted.

use super::*;

const ONE: u32 = HEADER as u32;
const FLOOR: u64 = 1 << 42;

/// Server x crashes and leaves the table "a". Server y has its log but for the segments 1 and 2.
fn lacks_two() -> (World, ServerId, ServerId, TableId) {
    let mut w = World::new(config());
    let x = w.join("x");
    let a = w.create("a", 1).unwrap();
    let y = w.join("y");
    w.put("y", x, 3, None);
    w.put("y", x, 4, Some(&[(1, ONE), (2, ONE), (3, ONE)]));
    w.leave(x);
    (w, x, y, a)
}

impl World {
    fn loss(&mut self, server: ServerId, accept: bool) -> Result<Loss, (Status, String)> {
        let reply = self.answer(AcceptLoss { server, accept }.emit());
        Loss::parse(&reply).map_err(|status| (status, failure_text(&reply).to_string()))
    }

    /// The server reports that it has found these replicas damaged.
    fn damaged(&mut self, on: &str, replicas: &[(ServerId, u32)]) -> Status {
        let request = self.end_request(on, Ending::Lacking, 0);
        let mut ended = RecoveryEnded::parse(&request).unwrap();
        let replica = |&(backup, id)| DamagedReplica { backup, segment: SegmentId(id) };
        ended.damaged = replicas.iter().map(replica).collect();
        outcome(&self.answer(ended.emit())).unwrap().0
    }
}

fn segments(range: core::ops::RangeInclusive<u32>) -> SegmentRange {
    SegmentRange { first: SegmentId(*range.start()), last: SegmentId(*range.end()) }
}

#[test]
fn a_blocked_recovery_goes_on_once_the_loss_is_accepted() {
    let (mut w, x, y, a) = lacks_two();
    assert_eq!(w.blocked(), ["no server has 2 segments of the log: 1, 2", ""]);
    let head = ONE + 8 + 3 * DIGESTED as u32;
    let expected = Loss {
        head: false,
        segments: 2,
        bytes: 2 * u64::from(ONE),
        lost: vec![segments(1..=2)],
        damaged: Vec::new(),
        kept_segments: 2,
        kept_bytes: u64::from(ONE + head),
        tablets: 1,
        ranges: vec![Range { table: a, first: 0, last: u64::MAX }],
    };
    assert_eq!(w.loss(x, false), Ok(expected.clone()));
    w.pass(3 * SECOND, &["y"]);
    assert_eq!((w.order("y"), w.servers()[0].1), (None, ServerState::Blocked));

    // Neither the reply nor an order goes out before the decision is durable.
    w.disk_stalls = true;
    let asked = w.ask(AcceptLoss { server: x, accept: true }.emit());
    w.pass(3 * SECOND, &["y"]);
    assert!(!w.replies.contains_key(&asked) && w.order("y").is_none());
    w.disk_stalls = false;
    w.run();
    assert_eq!(Loss::parse(&w.replies[&asked]), Ok(expected));
    let (_, order) = w.order("y").unwrap();
    assert_eq!(order.segments, [(3, ONE, 1), (4, head, 1)]);
    assert_eq!(order.floors, [FLOOR]);

    // Another coordinator goes on by the decision.
    w.restart();
    w.pass(3 * SECOND, &["y"]);
    let (number, order) = w.order("y").unwrap();
    assert_eq!((number >> 32, order.segments.len(), order.floors), (2, 2, vec![FLOOR]));
    assert_eq!(w.end("y", Ending::Done, 9), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
    assert_eq!(w.servers(), [(y, ServerState::Up, 1)]);
    assert_eq!(w.loss(x, true).unwrap_err().0, Status::NoRecovery);

    // A later recovery of the tablet keeps the lowest version, also without a loss.
    w.restart();
    let z = w.join("z");
    w.put_log("z", y);
    w.leave(y);
    assert_eq!(w.order("z").unwrap().1.floors, [FLOOR]);
    // A second loss begins the next range of versions.
    assert_eq!(w.damaged("z", &[(z, 1)]), Status::Ok);
    w.pass(3 * SECOND, &["z"]);
    assert_eq!(w.loss(y, true).map(|loss| loss.segments), Ok(1));
    assert_eq!(w.order("z").unwrap().1.floors, [2 * FLOOR]);
}

#[test]
fn only_a_blocked_recovery_can_lose_something() {
    let (mut w, x, y, _) = crashed();
    let refused = |w: &mut World, server| {
        let (status, text) = w.loss(server, true).unwrap_err();
        assert_eq!(status, Status::NoRecovery);
        text
    };
    assert_eq!(refused(&mut w, x), "the recovery of server 0.1 is not blocked");
    assert_eq!(refused(&mut w, y), "server 1.1 is up, and its data is not lost");
    let text = "no server 0.2 is known, or its recovery has ended";
    assert_eq!(refused(&mut w, ServerId { generation: 2, ..x }), text);
    assert_eq!(refused(&mut w, ServerId { index: 9, generation: 1 }).len(), text.len());
    assert!(w.order("y").unwrap().1.floors == [0]);
    // A log without replicas is not recovered.
    let mut w = World::new(config());
    let x = w.enlist("x");
    w.create("a", 1).unwrap();
    w.leave(x);
    assert_eq!(refused(&mut w, x), "the log of server 0.1 had no replicas: all of it is lost");
}

#[test]
fn damaged_replicas_block_a_recovery() {
    let (mut w, x, y, a) = crashed();
    let z = w.join("z");
    w.put("z", x, 1, None);
    // A replica on another server is good: the next order names that one.
    assert_eq!(w.damaged("y", &[(y, 1)]), Status::Ok);
    w.pass(3 * SECOND, &["y", "z"]);
    let on = if w.order("z").is_some() { "z" } else { "y" };
    let head = ONE + 8 + DIGESTED as u32;
    assert_eq!(w.order(on).unwrap().1.segments, [(1, ONE, 1), (2, head, 1)]);
    assert_eq!(w.blocked()[0], "");
    let (number, _) = w.order(on).unwrap();
    assert_eq!(w.damaged(on, &[(z, 1), (z, 77)]), Status::Ok);
    w.pass(9 * SECOND, &["y", "z"]);
    assert_eq!(
        w.blocked()[0],
        "no server has 1 segment of the log: 1; the replica of segment 1 on server 1.1 is \
         damaged; the replica of segment 1 on server 2.1 is damaged"
    );
    assert_eq!(w.servers()[0].1, ServerState::Blocked);
    assert_eq!(w.order(on).unwrap().0, number, "no master tries again what is damaged");
    let loss = w.loss(x, true).unwrap();
    let replica = |backup| DamagedReplica { backup, segment: SegmentId(1) };
    assert_eq!((loss.segments, loss.damaged), (1, vec![replica(y), replica(z)]));
    w.pass(SECOND, &["y", "z"]);
    let on = if w.order("z").unwrap().0 > number { "z" } else { "y" };
    assert_eq!(w.order(on).unwrap().1.segments, [(2, head, 1)]);
    assert_eq!(w.end(on, Ending::Done, 3), Status::Ok);
    assert_eq!(w.tablets(a).unwrap()[0].1, NORMAL);
}

/// A segment that gets lost after the decision is not part of it.
#[test]
fn a_further_loss_blocks_the_recovery_again() {
    let (mut w, x, _, _) = lacks_two();
    w.join("z");
    w.put("z", x, 2, None);
    w.pass(2 * SECOND, &["y", "z"]);
    assert_eq!(w.loss(x, true).map(|loss| (loss.segments, loss.kept_segments)), Ok((1, 3)));
    let z = w.masters["z"].id;
    w.leave(z);
    w.restart();
    w.pass(3 * SECOND, &["y"]);
    assert_eq!(w.blocked()[0], "no server has 1 segment of the log: 2");
    assert_eq!(w.loss(x, true).map(|loss| (loss.segments, loss.kept_segments)), Ok((1, 2)));
    let (_, order) = w.order("y").unwrap();
    assert_eq!((order.segments.len(), order.floors), (2, vec![2 * FLOOR]));
}

#[test]
fn a_log_without_a_head_ends_with_the_last_digest_that_is_left() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    w.join("y");
    // Segment 1 was freed and came back, 2 is missing, 4 was the head before.
    for id in [1, 3, 5] {
        w.put("y", x, id, None);
    }
    w.put("y", x, 4, Some(&[(2, ONE), (3, ONE)]));
    let replicas = &mut w.masters.get_mut("y").unwrap().recoverer.replicas;
    replicas.get_mut(&(x, SegmentId(4))).unwrap().1 = true;
    w.leave(x);
    assert_eq!(w.blocked()[0], "no server has the head of the log");
    let loss = w.loss(x, true).unwrap();
    assert_eq!((loss.head, loss.lost), (true, vec![segments(2..=2)]));
    let ids: Vec<_> = w.order("y").unwrap().1.segments.iter().map(|piece| piece.0).collect();
    assert_eq!(ids, [3, 4, 5]);
}

/// The head is there, and one of its entries is damaged. Its intact bytes are not taken for all.
#[test]
fn a_damaged_head_does_not_end_the_log() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    let y = w.join("y");
    w.put_log("y", x);
    // A change of 8 bytes with a wrong checksum.
    w.extend("y", x, 2, &[[6, 0, 0, 8].as_slice(), &[0; 12]].concat());
    w.leave(x);
    w.pass(3 * SECOND, &["y"]);
    assert_eq!(w.order("y"), None);
    assert_eq!(
        w.blocked()[0],
        "no server has the head of the log; the replica of segment 2 on server 1.1 is damaged"
    );
    let loss = w.loss(x, true).unwrap();
    let damaged = vec![DamagedReplica { backup: y, segment: SegmentId(2) }];
    assert_eq!((loss.head, loss.segments, loss.damaged), (true, 0, damaged));
    // Of the head its intact bytes are left.
    let head = ONE + 8 + DIGESTED as u32;
    assert_eq!(w.order("y").unwrap().1.segments, [(1, ONE, 1), (2, head, 1)]);
}

/// All replicas are gone. The tablets are recovered without objects.
#[test]
fn a_log_of_which_nothing_is_left_is_recovered_empty() {
    let mut w = World::new(config());
    let x = w.join("x");
    let a = w.create("a", 1).unwrap();
    let y = w.join("y");
    w.leave(x);
    let loss = w.loss(x, true).unwrap();
    assert_eq!((loss.head, loss.segments, loss.kept_segments), (true, 0, 0));
    let (_, order) = w.order("y").unwrap();
    assert_eq!((order.segments.len(), order.floors), (0, vec![FLOOR]));
    assert_eq!(w.end("y", Ending::Done, 3), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
}

/// The disk does not take the decision: it is not made.
#[test]
fn a_decision_that_is_not_durable_is_not_made() {
    let (mut w, x, ..) = lacks_two();
    w.disk_full = true;
    let (status, _) = w.loss(x, true).unwrap_err();
    assert_eq!(status, Status::NotDurable);
    w.disk_full = false;
    w.pass(3 * SECOND, &["y"]);
    assert_eq!(w.order("y"), None);
    assert_eq!(w.servers()[0].1, ServerState::Blocked);
    assert_eq!(w.loss(x, true).map(|loss| loss.segments), Ok(2));
    assert_eq!(w.order("y").unwrap().1.floors, [FLOOR]);
}
