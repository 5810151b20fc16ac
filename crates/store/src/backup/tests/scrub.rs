//! Tests of scrubbing: closed replicas are verified on a device that has other bytes than the
//! process.

use sprat_proto::Instant;
use sprat_proto::time::SECOND;

use super::kept::{HEADER_BYTES, Kept, SIZE, fill, list, sealed};
use super::*;

const ROUND_NS: u64 = 1000 * SECOND;
const ONE: SegmentId = SegmentId(1);
const TWO: SegmentId = SegmentId(2);

/// Returns a backup that scrubs, with two closed replicas and one that is open.
fn scrubbing(kept: &Kept) -> Backup {
    let mut backup = kept.start(1, 1);
    [ONE, TWO].into_iter().for_each(|id| fill(&mut backup, id, sealed(id).len()));
    fill(&mut backup, SegmentId(3), HEADER + 12);
    backup.scrub_each(ROUND_NS);
    backup
}

/// Lets a backup verify `count` replicas. Returns true if one is damaged.
fn scrub(backup: &mut Backup, now: &mut Instant, count: u32) -> bool {
    let mut found = false;
    for _ in 0..=count {
        *now = (*now).max(backup.scrub_deadline());
        found |= backup.scrub(*now);
    }
    found
}

/// Returns the offset in the file of the frame with the replica of a segment: the first frame is
/// the first one that is taken.
fn frame_at(id: SegmentId) -> usize {
    HEADER_BYTES + (id.0 as usize - 1) * (HEADER_BYTES + SIZE as usize)
}

#[test]
fn closed_replicas_are_verified_in_turn_and_slowly() {
    let kept = Kept::new(4);
    let (mut backup, mut now) = (scrubbing(&kept), Instant::from_ns(SECOND));
    assert!(!scrub(&mut backup, &mut now, 4));
    let round = 2 * (sealed(ONE).len() + sealed(TWO).len()) as u64;
    assert!((round / 2..=round).contains(&backup.scrubbed().bytes), "{:?}", backup.scrubbed());
    assert_eq!(backup.scrubbed().damaged, 0);
    assert!(now.since(Instant::ZERO) > ROUND_NS / 2, "{now:?}");
}

#[test]
fn nothing_is_verified_without_frames_that_outlive_the_process() {
    let mut backup = backup(2);
    backup.scrub_each(ROUND_NS);
    assert_eq!(backup.scrub_deadline(), Instant::NEVER);
}

#[test]
fn bytes_that_differ_on_the_device_are_found_and_reported() {
    for at in [0, HEADER - 1, sealed(TWO).len() - 1] {
        let kept = Kept::new(4);
        let (mut backup, mut now) = (scrubbing(&kept), Instant::from_ns(SECOND));
        kept.1.lock().unwrap().push((frame_at(TWO) + HEADER_BYTES + at, 4));
        assert!(scrub(&mut backup, &mut now, 3), "byte {at}");
        assert_eq!((backup.scrubbed().damaged, backup.unreported()), (1, 1));
        assert_eq!(list(&backup).len(), 2, "the others");
        assert!(!scrub(&mut backup, &mut now, 3), "once");
        backup.free(MASTER, TWO, 2);
        assert_eq!((backup.damaged(), backup.free_frames()), (0, 2));
    }
}

/// A write to another frame went to this one: it has sound bytes of another segment, also with
/// their header.
#[test]
fn a_misdirected_write_is_found() {
    for with_header in [false, true] {
        let kept = Kept::new(4);
        let (mut backup, mut now) = (scrubbing(&kept), Instant::from_ns(SECOND));
        let differs = |at: usize, one: &[u8], two: &[u8]| -> Vec<(usize, u8)> {
            let bits = one.iter().zip(two).map(|(one, two)| one ^ two);
            bits.enumerate().filter(|(_, bits)| *bits != 0).map(|(n, b)| (at + n, b)).collect()
        };
        let (one, two) = (backup.frames.bytes(0), backup.frames.bytes(1));
        kept.1.lock().unwrap().extend(differs(frame_at(TWO) + HEADER_BYTES, one, two));
        for slot in (0..SLOTS).filter(|_| with_header) {
            let slot_of = |frame| backup.frames.header(Block::Frame(frame)).unwrap()[slot];
            let at = frame_at(TWO) + slot * HEADER_BYTES / SLOTS;
            kept.1.lock().unwrap().extend(differs(at, slot_of(0), slot_of(1)));
        }
        assert!(scrub(&mut backup, &mut now, 3), "with its header: {with_header}");
        assert_eq!(list(&backup).iter().map(|r| r.0).collect::<Vec<_>>(), [1, 3]);
    }
}

#[test]
fn a_damaged_header_is_written_anew() {
    for slot in [0, 2048] {
        let kept = Kept::new(4);
        let (mut backup, mut now) = (scrubbing(&kept), Instant::from_ns(SECOND));
        kept.1.lock().unwrap().push((frame_at(TWO) + slot + 20, 1));
        assert!(!scrub(&mut backup, &mut now, 3), "no replica is lost");
        assert!(backup.scrubbed().damaged >= 1);
        kept.1.lock().unwrap().clear();
        assert!(!scrub(&mut backup, &mut now, 3));
        let damaged = backup.scrubbed().damaged;
        scrub(&mut backup, &mut now, 3);
        assert_eq!(backup.scrubbed().damaged, damaged);
        assert_eq!(list(&backup).len(), 3);
    }
}

/// A write to a part of a page of it would end the process.
#[test]
fn a_frame_that_the_device_does_not_deliver_is_never_used_again() {
    for at in [frame_at(TWO), frame_at(TWO) + HEADER_BYTES + 9] {
        let kept = Kept::new(4);
        let (mut backup, mut now) = (scrubbing(&kept), Instant::from_ns(SECOND));
        kept.1.lock().unwrap().push((at, 0));
        assert!(scrub(&mut backup, &mut now, 3));
        assert_eq!(backup.free_frames(), 1);
        backup.free(MASTER, TWO, 2);
        assert_eq!((backup.damaged(), backup.free_frames()), (0, 1));
        fill(&mut backup, TWO, sealed(TWO).len());
        assert_eq!((backup.free_frames(), list(&backup).len()), (0, 3), "in another frame");
    }
}

/// The frame has got another replica while the device was read.
#[test]
fn an_outcome_for_an_earlier_replica_of_the_frame_changes_nothing() {
    let kept = Kept::new(4);
    let (mut backup, mut now) = (scrubbing(&kept), Instant::from_ns(SECOND));
    for id in [ONE, TWO] {
        kept.1.lock().unwrap().push((frame_at(id) + HEADER_BYTES + 9, 4));
    }
    assert!(!scrub(&mut backup, &mut now, 0), "it has begun");
    kept.1.lock().unwrap().clear();
    for id in [ONE, TWO] {
        backup.free(MASTER, id, 2);
        fill(&mut backup, id, sealed(id).len());
    }
    assert!(!scrub(&mut backup, &mut now, 3));
    assert_eq!((backup.damaged(), list(&backup).len()), (0, 3));
}
