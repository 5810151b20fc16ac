//! Tests of frames whose device fails, or does not deliver some of them.

use super::*;

/// A frame that the device does not deliver is neither read nor written: both may end the process.
#[test]
fn a_frame_that_the_device_does_not_deliver_is_left_out() {
    let [header, first, last] = [0, HEADER_BYTES, STRIDE - 1];
    // Of three frames, the first one has a closed replica, the second one an open one.
    for (gone, closed, expected) in [
        (header, true, vec![(2, 2, 104, false)]),
        (first, true, vec![(2, 2, 104, false)]),
        (header, false, vec![(1, 2, 504, true)]),
        (first, false, vec![(1, 2, 504, true)]),
        // Its master may write there.
        (last, false, vec![(1, 2, 504, true)]),
    ] {
        let kept = Kept::new(3);
        let mut backup = kept.start(1, 1);
        fill(&mut backup, SegmentId(1), sealed(SegmentId(1)).len());
        fill(&mut backup, SegmentId(2), 104);
        drop(backup);
        let frame = if closed { 0 } else { 1 };
        let at = HEADER_BYTES + frame * STRIDE + gone;
        kept.1.lock().unwrap().push((at, 0));
        let mut backup = kept.start(2, 2);
        assert_eq!(list(&backup), expected, "{gone} {closed}");
        let damaged = usize::from(gone != header);
        assert_eq!((backup.left(), backup.retired()), ((1 + damaged, damaged), 1));
        // Its frame is not used again.
        backup.free_unknown(&[ME].into());
        assert_eq!((backup.replicas(), backup.free_frames()), (0, 2), "{gone} {closed}");
    }
}

/// A closed replica is not read at a start of the process alone. The device fails when it is read.
#[test]
fn a_replica_that_the_device_does_not_deliver_is_not_read() {
    let (id, bytes) = (SegmentId(1), sealed(SegmentId(1)));
    let kept = Kept::new(2);
    fill(&mut kept.start(1, 1), id, bytes.len());
    let mut backup = kept.start(1, 2);
    kept.1.lock().unwrap().push((HEADER_BYTES + STRIDE - SIZE as usize + 100, 0));
    assert!(backup.delivers(MASTER, id, 0, 100) && !backup.delivers(MASTER, id, 0, 101));
    assert!(!backup.delivers(MASTER, id, 0, bytes.len() as u32 + 1));
    assert!(!backup.delivers(MASTER, SegmentId(2), 0, 1));
    // Its master begins anew, in another frame.
    assert_eq!(backup.write(&write_of(id, &bytes, 0, HEADER)), Ok(HEADER as u32));
    assert_eq!((backup.retired(), backup.free_frames()), (1, 0));
}

#[test]
fn frames_of_a_failed_device_hold_nothing() {
    let kept = Kept::new(2);
    let mut backup = kept.start(1, 1);
    fill(&mut backup, SEGMENT, 104);
    drop(backup);
    let mut life = kept.life();
    life.failed = true;
    let frames = FlatFrames::open(crc32c, life, 0).unwrap();
    let mut backup = Backup::new(Box::new(frames), crc32c, 1);
    assert_eq!(list(&backup), []);
    assert_eq!(backup.bytes(MASTER, SEGMENT), None);
    let bytes = sealed(SEGMENT);
    assert_eq!(backup.write(&write_of(SEGMENT, &bytes, 104, 200)), Err(Status::NoReplica));
    let open = write_of(SEGMENT, &bytes, 0, HEADER);
    assert_eq!(backup.write(&open), Err(Status::NoSpace), "its master looks elsewhere");
}

#[test]
fn a_write_that_the_device_does_not_take_is_refused_and_ends_all_replicas() {
    let mut life = Kept::new(2).life();
    life.broken_at = Some(flat_offset(SIZE, 0) as usize + HEADER_BYTES + 150);
    let frames = FlatFrames::open(crc32c, life, 0).unwrap();
    let (mut backup, bytes) = (Backup::new(Box::new(frames), crc32c, 1), sealed(SEGMENT));
    fill(&mut backup, SEGMENT, 104);
    assert_eq!(backup.write(&write_of(SEGMENT, &bytes, 104, 200)), Err(Status::NoReplica));
    assert_eq!(list(&backup), []);
}
