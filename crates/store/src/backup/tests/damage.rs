//! Tests of replicas that are lost while the server runs.

use super::kept::{HEADER_BYTES, Kept, fill, list, sealed};
use super::*;
use crate::message::damage::LostReplica;

const EARLY: ServerId = ServerId { index: 0, generation: 1 };

/// Returns a backup with a closed replica of [`SEGMENT`], and its bytes.
fn closed(frames: u64) -> (Backup, Vec<u8>) {
    let (mut backup, bytes) = (backup(frames), segment(MASTER, SEGMENT));
    backup.write(&WriteReplica { close: true, ..open(&bytes, 99) }).unwrap();
    (backup, bytes)
}

fn any(_: ServerId) -> bool {
    true
}

#[test]
fn a_damaged_replica_does_not_count_and_is_reported_until_its_master_knows() {
    let (mut backup, bytes) = closed(2);
    assert_eq!(backup.next_report(EARLY, any), None);
    backup.mark_damaged((MASTER, SEGMENT));
    assert_eq!(backup.list(MASTER, SegmentId(0)).replicas, []);
    assert_eq!(backup.bytes(MASTER, SEGMENT), None);
    assert_eq!(backup.write(&write(&bytes, 99, 99)), Err(Status::NoReplica));
    let page = vec![LostReplica { segment: SEGMENT, epoch: 2 }];
    assert_eq!(backup.next_report(EARLY, any), Some((MASTER, page.clone())));
    assert_eq!(backup.next_report(MASTER, any), Some((MASTER, page.clone())), "the only one");
    assert_eq!(backup.next_report(EARLY, |_| false), None);
    backup.reported(MASTER, &[LostReplica { segment: SEGMENT, epoch: 1 }]);
    assert_eq!(backup.unreported(), 1, "a reply to an earlier report");
    backup.reported(MASTER, &page);
    assert_eq!((backup.next_report(EARLY, any), backup.damaged()), (None, 1));
    backup.free(MASTER, SEGMENT, 2);
    assert_eq!((backup.damaged(), backup.free_frames()), (0, 2));
}

#[test]
fn masters_take_turns_and_pages_are_bounded() {
    let count = control::MAX_PAGE as u32 + 1;
    let mut backup = backup(2 * u64::from(count));
    let other = ServerId { index: 9, ..MASTER };
    for master in [MASTER, other] {
        for id in 1..=count {
            let bytes = segment(master, SegmentId(id));
            let target = target(master, SegmentId(id));
            backup.write(&WriteReplica { target, ..open(&bytes, 80) }).unwrap();
            backup.mark_damaged((master, SegmentId(id)));
        }
    }
    let (mut last, mut pages) = (EARLY, Vec::new());
    while let Some((master, page)) = backup.next_report(last, any) {
        backup.reported(master, &page);
        pages.push((master, page.len()));
        last = master;
    }
    let whole = control::MAX_PAGE;
    assert_eq!(pages, [(MASTER, whole), (other, whole), (MASTER, 1), (other, 1)]);
}

#[test]
fn a_fenced_master_needs_no_report() {
    let (mut backup, _) = closed(2);
    backup.mark_damaged((MASTER, SEGMENT));
    backup.fence(MASTER).unwrap();
    assert_eq!((backup.next_report(EARLY, any), backup.unreported()), (None, 0));
    assert!(backup.free_all(MASTER));
    assert_eq!(backup.free_frames(), 2);
}

#[test]
fn another_replica_takes_another_frame_and_frees_the_damaged_one_when_it_is_whole() {
    let (mut backup, bytes) = closed(2);
    backup.mark_damaged((MASTER, SEGMENT));
    let first = WriteReplica { epoch: 3, commit: false, ..open(&bytes, 50) };
    assert_eq!(backup.write(&first), Ok(50));
    assert_eq!((backup.replicas(), backup.free_frames(), backup.unreported()), (2, 0, 0));
    backup.free(MASTER, SEGMENT, 1);
    assert_eq!(backup.damaged(), 1, "a free of an earlier one");
    let rest = WriteReplica { epoch: 3, close: true, ..write(&bytes, 50, 99) };
    assert_eq!(backup.write(&rest), Ok(99));
    assert_eq!((backup.replicas(), backup.free_frames(), backup.damaged()), (1, 1, 0));
    assert_eq!(listed(&backup), (3, 99, true));
    assert_eq!(backup.bytes(MASTER, SEGMENT), Some(&bytes[..99]));
}

#[test]
fn a_replaced_replica_is_freed_by_its_epoch_alone() {
    let (mut backup, bytes) = closed(2);
    backup.mark_damaged((MASTER, SEGMENT));
    backup.write(&WriteReplica { epoch: 3, commit: false, ..open(&bytes, 50) }).unwrap();
    backup.free(MASTER, SEGMENT, 2);
    assert_eq!((backup.replicas(), backup.damaged()), (1, 0), "not the new one");
    backup.free(MASTER, SEGMENT, 3);
    assert_eq!(backup.free_frames(), 2);
}

#[test]
fn without_a_free_frame_the_damaged_replica_gives_its_own() {
    let (mut backup, bytes) = closed(1);
    backup.mark_damaged((MASTER, SEGMENT));
    assert_eq!(backup.write(&WriteReplica { epoch: 3, ..open(&bytes, 50) }), Ok(50));
    assert_eq!((backup.replicas(), backup.damaged()), (1, 0));
    assert_eq!(listed(&backup), (3, 50, false));
}

/// An open replica of an early segment would look like the end of the log.
#[test]
fn a_closed_replica_stays_closed_with_either_slot_damaged() {
    let (kept, len) = (Kept::new(1), sealed(SEGMENT).len());
    let mut backup = kept.start(1, 1);
    fill(&mut backup, SEGMENT, len);
    drop(backup);
    let whole = kept.0.lock().unwrap().clone();
    let closed = [(SEGMENT.0, 2, len as u32, true)];
    let slots = [0, 2048].map(|at| HEADER_BYTES + at + 20);
    for at in slots {
        kept.change(|bytes| {
            bytes.copy_from_slice(&whole);
            bytes[at] ^= 1;
        });
        assert_eq!(list(&kept.start(1, 2)), closed);
        // That life has written the damaged slot anew.
        slots.iter().filter(|&&other| other != at).for_each(|&other| {
            kept.change(|bytes| bytes[other] ^= 1);
        });
        assert_eq!(list(&kept.start(1, 3)), closed);
    }
}
