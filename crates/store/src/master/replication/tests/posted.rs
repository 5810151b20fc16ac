//! Tests of posted writes: they are durable at once, and a message follows that asks for a reply.

use super::*;

/// Writes with data are posted.
fn is_confirm(call: &Call) -> bool {
    matches!(call, Call::Write { close: false, .. })
}

/// A posted write is durable at once, and one question follows for all within 10 ms.
#[test]
fn posted_writes_are_durable_without_a_reply() {
    let mut rig = Rig::sharing(2, 2, 1 << 14);
    rig.append(200);
    rig.end_all(any);
    for _ in 0..5 {
        let end = rig.append(200);
        rig.step();
        assert!(rig.log.durable() == end && rig.sent.is_empty(), "no call");
    }
    assert_eq!(rig.replication.posted_writes(), 10);
    assert_eq!(rig.replica(A, 1).unwrap().len, rig.replica(B, 1).unwrap().len);
    assert_eq!(rig.wait(), 10 * MS);
    assert_eq!(rig.sent.len(), 2);
    // More can be posted meanwhile, and no other question follows before this one's answer.
    let end = rig.append(200);
    rig.step();
    assert!(rig.log.durable() == end && rig.sent.len() == 2);
    assert!(is_confirm(&rig.end(is_write_to(1, A), None)));
    assert!(is_confirm(&rig.end(is_write_to(1, B), None)));
    let tail = rig.log.tail().offset;
    assert_eq!(rig.replica(A, 1).map(|r| r.len), Some(tail), "a message finds what was posted");
    rig.wait();
    rig.end_all(any);
    assert_eq!(rig.replication.deadline(), Instant::NEVER, "all is confirmed");
}

#[test]
fn a_backup_that_does_not_confirm_is_replaced() {
    let mut rig = Rig::sharing(1, 2, 1 << 14);
    rig.append(200);
    rig.end_all(any);
    let silent = rig.holder(1);
    let other = if silent == A { B } else { A };
    let end = rig.append(200);
    rig.step();
    assert_eq!(rig.log.durable(), end);
    rig.wait();
    rig.end(is_confirm, Some(LOST));
    rig.append(200);
    rig.end(is_write_to(1, other), None);
    rig.end_all(|call| !is_free(call));
    assert_eq!(rig.replica(other, 1).map(|r| (r.len, r.epoch)), Some((rig.log.tail().offset, 1)));
    assert_eq!(rig.log.durable(), rig.log.tail());
}

#[test]
fn a_closed_or_full_ring_is_followed_by_messages() {
    let mut rig = Rig::sharing(1, 1, 1 << 14);
    rig.append(200);
    rig.end_all(any);
    for _ in 0..20 {
        rig.append(200);
        rig.step();
    }
    assert_eq!(rig.replication.posted_writes(), 8, "a ring of the test holds so many");
    rig.end_all(any);
    assert_eq!(rig.log.durable(), rig.log.tail());
    assert!(rig.replication.posted_writes() > 8, "a message has made room");
    // The backup closes the ring: it does not know the master any more.
    rig.backups.get_mut(&A).unwrap().fence(ME).unwrap();
    let durable = rig.log.durable();
    rig.append(200);
    rig.step();
    assert_eq!(rig.log.durable(), durable, "it does not count");
    rig.end(is_write_to(1, A), None);
    assert_eq!(rig.log.durable(), durable, "the reply says why");
}

/// The next head is opened by messages, and no post goes to it before the last one is closed.
#[test]
fn posted_writes_obey_the_order_of_heads() {
    let mut rig = Rig::sharing(2, 2, 1 << 10);
    rig.append(200);
    rig.end_all(any);
    rig.roll();
    rig.step();
    let posted = rig.replication.posted_writes();
    assert_eq!(shapes(&rig), [(2, A, false, false), (2, B, false, false)], "the rest is posted");
    rig.end(is_write_to(2, A), None);
    rig.end(is_write_to(2, B), None);
    assert_eq!(shapes(&rig), [(1, A, true, false), (1, B, true, false)]);
    rig.end(is_write_to(1, A), None);
    assert_eq!(rig.replication.posted_writes(), posted, "nothing is in the next head");
    rig.end(is_write_to(1, B), None);
    assert!(rig.replication.posted_writes() > posted);
    assert_eq!(rig.log.durable(), rig.log.tail());
}

#[test]
fn a_session_that_ends_is_followed_by_a_question_at_once() {
    let mut rig = Rig::sharing(1, 1, 1 << 14);
    rig.append(200);
    rig.end_all(any);
    rig.append(200);
    rig.step();
    assert!(rig.sent.is_empty());
    rig.replication.unreachable(links::backup(A));
    rig.step();
    assert_eq!(rig.rings.open(), 1);
    assert!(rig.has(is_confirm) && rig.has(|call| matches!(call, Call::OpenRing(_))));
    rig.end_all(any);
    let posted = rig.replication.posted_writes();
    rig.append(200);
    rig.step();
    assert_eq!(rig.replication.posted_writes(), posted + 1, "by another ring");
}

/// A server that is gone refuses at once. The master asks it now and then, not as fast as it can.
#[test]
fn a_backup_that_refuses_at_once_is_asked_for_a_ring_after_a_pause() {
    let is_question = |call: &Call| matches!(call, Call::OpenRing(_));
    let mut rig = Rig::sharing(1, 1, 1 << 14);
    rig.append(200);
    rig.end_all(any);
    rig.replication.unreachable(links::backup(A));
    rig.step();
    for _ in 0..3 {
        rig.replication.unreachable(links::backup(A));
        rig.end(is_question, Some(RpcError::NotExecuted));
        assert!(!rig.has(is_question));
        assert!(rig.replication.deadline() <= rig.now.after(LATER_NS));
        rig.now = rig.now.after(LATER_NS);
        rig.replication.tick(rig.now);
        rig.step();
        assert!(rig.has(is_question));
    }
}
