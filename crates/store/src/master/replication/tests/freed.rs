//! Tests of segments whose memory is free, and of their replicas.

use super::*;

#[test]
fn a_freed_segment_is_freed_on_all_backups_until_they_answer() {
    let mut rig = Rig::new(2, 2, 1 << 10);
    rig.append(200);
    rig.roll();
    rig.end_all(any);
    rig.log.free(rig.log.slot(SegmentId(1)).unwrap());
    assert!(rig.log.change_digest());
    rig.step();
    assert!(!rig.has(is_free), "the digest still names it");
    rig.end_all(|call| !is_free(call));
    rig.end(is_free, Some(UNSENT));
    rig.end(is_free, None);
    assert!(!rig.has(any));
    assert_eq!(rig.wait(), LATER_NS);
    rig.end(is_free, Some(LOST));
    rig.wait();
    rig.end(is_free, None);
    assert!(!rig.has(any) && rig.replication.deadline() == Instant::NEVER);
    assert_eq!([A, B].map(|backup| rig.backups[&backup].replicas()), [1, 1]);
}

/// The order to free a replica overtakes the write that makes it. It stayed for ever, in seed 15 of
/// the simulator's world `with_hot_ranges_under_faults`.
#[test]
fn a_replica_that_is_made_after_it_was_freed_is_freed_again() {
    for error in [None, Some(LOST)] {
        let mut rig = Rig::new(1, 2, 1 << 10);
        rig.append(200);
        rig.roll();
        rig.end_all(any);
        let gone = rig.holder(1);
        let other = if gone == A { B } else { A };
        rig.backups.remove(&gone);
        rig.list();
        let is_first =
            |call: &Call| matches!(call, Call::Write { segment, .. } if *segment == SegmentId(1));
        assert!(rig.has(is_first), "it gets another replica");
        rig.log.free(rig.log.slot(SegmentId(1)).unwrap());
        assert!(rig.log.change_digest());
        rig.end_all(|call| !is_first(call));
        assert!(rig.replica(other, 1).is_none() && !rig.has(is_free));
        rig.end(is_first, error);
        assert!(rig.replica(other, 1).is_some());
        rig.end_all(any);
        assert!(rig.replica(other, 1).is_none(), "{error:?}");
    }
}

/// A segment is durable before its replicas are closed, and the cleaner may free its memory then. A
/// replica that is lost after that cannot be made anew, and must not hold up the log.
#[test]
fn a_lost_replica_of_a_segment_without_memory_is_waived() {
    for replicas in [1, 2] {
        let mut rig = Rig::new(replicas, 3, 1 << 10);
        rig.append(200);
        rig.roll();
        rig.step();
        let is_first =
            |call: &Call| matches!(call, Call::Write { segment, .. } if *segment == SegmentId(1));
        rig.end_all(is_first);
        assert_eq!(rig.log.durable().segment, SegmentId(1));
        rig.log.free(rig.log.slot(SegmentId(1)).unwrap());
        let gone = rig.holder(1);
        rig.backups.remove(&gone);
        rig.list();
        for _ in 0..100 {
            if rig.has(any) {
                rig.end(any, None);
            }
        }
        assert!(!rig.has(any), "{replicas}: {:?}", rig.writes());
        assert!(rig.log.is_all_durable() && !rig.replication.is_whole());
        assert!(rig.log.change_digest());
        rig.end_all(any);
        assert!(rig.log.is_all_durable() && rig.replication.is_whole());
        let count: usize = rig.backups.values().map(Backup::replicas).sum();
        assert_eq!(count, replicas, "of the head alone");
    }
}

/// All replicas of such a segment may be lost. Its new epoch must not be recorded before a later
/// head is on its backups: a recovery would find neither. Backups that return have what it needs.
#[test]
fn the_epoch_of_a_segment_without_replicas_waits_for_the_next_head() {
    let is_record = |call: &Call| matches!(call, Call::SetHead(..));
    let mut rig = Rig::new(1, 1, 1 << 10);
    rig.append(200);
    rig.roll();
    rig.step();
    rig.end_all(|call| matches!(call, Call::Write { segment: SegmentId(1), .. }));
    rig.log.free(rig.log.slot(SegmentId(1)).unwrap());
    rig.backups.remove(&A);
    rig.list();
    for _ in 0..100 {
        assert!(!rig.has(is_record), "no server has a head");
        if rig.has(any) {
            rig.end(any, None);
        }
    }
    assert!(!rig.has(any) && !rig.log.is_all_durable());
    rig.add(B, 64);
    rig.list();
    while !rig.has(is_record) {
        assert!(rig.has(any), "the next head has not been opened");
        rig.end(any, None);
    }
    assert!(rig.replica(B, 2).is_some());
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
}

/// The cleaner may free the memory of a head in the turn in which the log closes it: all of it is
/// durable before. Its replicas are closed all the same. They were not, and nothing of the log
/// became durable any more, in the simulator's world `with_returns_of_long_left_replicas`.
#[test]
fn a_head_that_is_freed_as_soon_as_the_log_closes_it_is_closed_on_all_backups() {
    let mut rig = Rig::new(2, 2, 1 << 10);
    while rig.log.tail().segment <= SegmentId(1) {
        rig.end_all(any);
        rig.append(200);
    }
    rig.log.free(rig.log.slot(SegmentId(1)).unwrap());
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
    assert!(rig.log.change_digest());
    rig.end_all(any);
    assert_eq!([A, B].map(|backup| rig.backups[&backup].replicas()), [1, 1]);
}

/// It came to know this server after the coordinator had freed its replicas.
#[test]
fn a_master_that_the_next_list_does_not_name_was_given_up() {
    let mut rig = Rig::new(1, 1, 1 << 10);
    let news = |rig: &mut Rig| rig.replication.take_news().map(|(_, given_up)| given_up);
    assert_eq!(news(&mut rig), Some(vec![]));
    let unlisted = ServerId { index: 9, generation: 4 };
    rig.replication.meet(A);
    rig.step();
    assert!(rig.sent.is_empty() && news(&mut rig).is_none(), "the list names it");
    rig.replication.meet(unlisted);
    rig.step();
    assert_eq!(news(&mut rig), Some(vec![unlisted]));
    // It may have joined after a list that was asked for before.
    rig.replication.meet(unlisted);
    rig.add(unlisted, 4);
    rig.list();
    assert_eq!(news(&mut rig), Some(vec![]));
}
