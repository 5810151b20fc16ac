//! Tests of reports about lost replicas.

use super::*;
use crate::message::damage::LostReplica;

/// Returns a rig with one closed segment and a head, whose replicas are whole.
fn rolled(replicas: usize, servers: u32) -> Rig {
    let mut rig = Rig::new(replicas, servers, 1 << 10);
    rig.append(200);
    rig.roll();
    rig.end_all(any);
    rig
}

/// Reports that `backup` has lost its replica of `segment` in `epoch`.
fn report(rig: &mut Rig, backup: ServerId, segment: u32, epoch: u32) -> Result<(), Status> {
    let lost = LostReplica { segment: SegmentId(segment), epoch };
    rig.replication.take_report(&rig.log, backup, &[lost])
}

/// Returns the servers that have a replica of `segment` that counts.
fn holders(rig: &Rig, segment: u32) -> Vec<ServerId> {
    let all = rig.backups.keys().copied();
    all.filter(|&backup| rig.replica(backup, segment).is_some()).collect()
}

fn damage(rig: &mut Rig, backup: ServerId, segment: u32) {
    let backup = rig.backups.get_mut(&backup).unwrap();
    backup.mark_damaged((ME, SegmentId(segment)));
}

#[test]
fn a_lost_replica_is_made_anew_elsewhere_and_then_freed() {
    let mut rig = rolled(2, 3);
    let [lost, other] = holders(&rig, 1)[..] else { panic!() };
    damage(&mut rig, lost, 1);
    assert_eq!(report(&mut rig, lost, 1, 0), Ok(()));
    assert_eq!(rig.replication.missing(), 2, "the other one lacks the epoch");
    rig.step();
    let third = [A, B, C].into_iter().find(|s| ![lost, other].contains(s)).unwrap();
    assert!(rig.has(is_write_to(1, third)) && !rig.has(is_free), "the new one is not whole");
    rig.end_all(|call| !is_free(call));
    assert_eq!(rig.replication.missing(), 0);
    assert_eq!(rig.backups[&lost].damaged(), 1);
    rig.end_all(any);
    assert_eq!(rig.backups[&lost].damaged(), 0);
    let mut wanted = vec![other, third];
    wanted.sort();
    assert_eq!(holders(&rig, 1), wanted);
    assert_eq!(rig.replica(third, 1).map(|r| (r.epoch, r.closed)), Some((1, true)));
    let reported = rig.replication.reported();
    assert_eq!((reported.lost, reported.unknown), (1, 0));
}

#[test]
fn without_another_server_the_same_one_gets_the_replica_in_another_frame() {
    let mut rig = rolled(1, 1);
    rig.end_all(any);
    damage(&mut rig, A, 1);
    assert_eq!(report(&mut rig, A, 1, 0), Ok(()));
    let counts = |rig: &Rig| (rig.backups[&A].replicas(), rig.backups[&A].damaged());
    assert_eq!(counts(&rig), (2, 1));
    rig.end_all(any);
    assert_eq!((counts(&rig), rig.replication.missing()), ((2, 0), 0));
    assert_eq!(rig.replica(A, 1).map(|r| r.epoch), Some(1));
}

/// A report that is repeated after the replica was replaced must not cost the new one.
#[test]
fn stale_forged_and_repeated_reports_change_nothing() {
    let mut rig = rolled(1, 1);
    damage(&mut rig, A, 1);
    for (backup, segment, epoch) in [(A, 1, 1), (B, 1, 0), (A, 9, 0), (A, 2, 1)] {
        assert_eq!(report(&mut rig, backup, segment, epoch), Ok(()));
    }
    rig.step();
    assert!(!rig.has(any));
    assert_eq!(report(&mut rig, A, 1, 0), Ok(()));
    assert_eq!(report(&mut rig, A, 1, 0), Ok(()), "it knows");
    rig.end_all(any);
    assert_eq!(report(&mut rig, A, 1, 0), Ok(()));
    rig.step();
    assert!(!rig.has(any));
    let reported = rig.replication.reported();
    assert_eq!((reported.lost, reported.unknown), (1, 5));
}

#[test]
fn a_lost_replica_of_the_head_is_given_up_under_a_recorded_epoch() {
    let mut rig = rolled(1, 2);
    let lost = rig.holder(2);
    damage(&mut rig, lost, 2);
    assert_eq!(report(&mut rig, lost, 2, 0), Ok(()));
    let end = rig.append(200);
    rig.end_all(|call| !is_head(call));
    assert!(rig.log.durable() < end && rig.has(is_head));
    rig.end_all(any);
    assert_eq!(rig.log.durable(), end);
    assert_ne!(rig.holder(2), lost);
}

/// The reply to a write in progress would count for the next replica on the same server.
#[test]
fn a_report_during_a_write_is_repeated() {
    let mut rig = rolled(1, 1);
    rig.append(200);
    rig.step();
    assert!(rig.has(is_write_to(2, A)));
    assert_eq!(report(&mut rig, A, 2, 0), Err(Status::Retry));
    rig.end_all(any);
    assert_eq!(report(&mut rig, A, 2, 0), Ok(()));
}

/// Nothing has the bytes of such a segment, which leaves the log soon.
#[test]
fn a_report_about_a_segment_without_memory_is_repeated_until_it_has_left_the_log() {
    let mut rig = rolled(1, 2);
    rig.log.free(rig.log.slot(SegmentId(1)).unwrap());
    let lost = rig.holder(1);
    damage(&mut rig, lost, 1);
    assert_eq!(report(&mut rig, lost, 1, 0), Err(Status::Retry));
    assert!(rig.log.change_digest());
    rig.end_all(any);
    assert_eq!(report(&mut rig, lost, 1, 0), Ok(()));
    assert_eq!(rig.backups[&lost].damaged(), 0);
}

#[test]
fn a_full_backup_is_avoided_for_a_while() {
    let mut rig = Rig::new(1, 0, 1 << 10);
    rig.add(A, 0);
    rig.list();
    rig.append(200);
    rig.step();
    rig.add(B, 64);
    rig.list();
    rig.end(is_write_to(1, A), None);
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
    assert_eq!(rig.replica(B, 1).unwrap().epoch, 0, "the full one has changed nothing");
    rig.roll();
    rig.step();
    assert!(rig.has(is_write_to(2, B)) && !rig.has(is_write_to(2, A)));
    rig.end_all(any);
    rig.now = rig.now.after(1_001 * MS);
    rig.roll();
    rig.step();
    assert!(rig.has(is_write_to(3, A)), "it has the fewest replicas");
}

/// It may be this server itself, which answers in the same turn.
#[test]
fn a_server_that_refuses_is_asked_again_after_a_pause() {
    let mut rig = Rig::new(1, 1, 1 << 10);
    rig.append(200);
    rig.end_all(any);
    let fenced = rig.backups.get_mut(&A).unwrap();
    fenced.fence(ME).unwrap();
    rig.append(200);
    rig.step();
    rig.end(is_write_to(1, A), None);
    assert!(!rig.has(is_write_to(1, A)), "not at once");
    assert_eq!(rig.wait(), AGAIN_NS);
    assert!(rig.has(is_write_to(1, A)));
}
