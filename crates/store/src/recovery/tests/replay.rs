//! Tests of the rules of the replay.

use alloc::vec::Vec;

use sprat_proto::wire::checksum::crc32c;

use super::{Bytes, CLUSTER, LEASE, MASTER, TABLE, filled};
use crate::message::Status;
use crate::message::data::Once;
use crate::objects::entry::{Header, Outcome, Record};
use crate::objects::segment::SegmentId;
use crate::recovery::Replay;
use crate::recovery::replay::Damaged;
use crate::types::{LeaseId, TableId, Version};

/// Replays these segments in both orders, which must not matter.
fn replay(segments: &[&Bytes]) -> Replay {
    let (mut replay, mut reverse) = (Replay::new(crc32c), Replay::new(crc32c));
    for segment in segments {
        replay.segment(&segment.0).unwrap();
    }
    for segment in segments.iter().rev() {
        reverse.segment(&segment.0).unwrap();
    }
    assert!(replay.objects().eq(reverse.objects()));
    assert!(replay.outcomes().eq(reverse.outcomes()));
    assert_eq!(replay.safe_version(), reverse.safe_version());
    replay
}

fn record(rpc: u64, ack: u64) -> Option<Record<'static>> {
    Some(Record { once: Once { lease: LEASE, rpc, ack }, sum: None, old: &[] })
}

#[test]
fn the_highest_version_counts() {
    let one = Bytes::new(1).object(b"a", 1, b"one", None).object(b"b", 5, b"five", None);
    let two = Bytes::new(2).object(b"a", 2, b"two", None).object(b"b", 4, b"four", None);
    let both = replay(&[&one, &two]);
    assert_eq!(both.object(TABLE, b"a"), Some((Version(2), &b"two"[..])));
    assert_eq!(both.object(TABLE, b"b"), Some((Version(5), &b"five"[..])));
    assert_eq!(both.object(TABLE, b"c"), None);
    assert_eq!(both.object(TableId(9), b"a"), None);
    assert_eq!(both.objects().count(), 2);
}

#[test]
fn a_tombstone_removes_its_version_and_those_before() {
    let objects = Bytes::new(1).object(b"a", 1, b"one", None).object(b"b", 2, b"two", None);
    let objects = objects.object(b"c", 3, &filled(7, 100), None);
    let tombstones = Bytes::new(2).tombstone(b"a", 1, None).tombstone(b"b", 1, None);
    let tombstones = tombstones.tombstone(b"c", 9, None);
    let both = replay(&[&objects, &tombstones]);
    let left: Vec<_> = both.objects().collect();
    assert_eq!(left, [(TABLE, &b"b"[..], Version(2), &b"two"[..])]);
}

#[test]
fn outcomes_count_until_they_are_acknowledged() {
    let outcome = |version, status| Outcome { status, version: Version(version), sum: None };
    let one = Bytes::new(1).object(b"a", 1, b"1", record(1, 0)).object(b"a", 2, b"2", record(2, 0));
    let once = Once { lease: LEASE, rpc: 3, ack: 1 };
    let two = Bytes::new(2).completion(once, outcome(2, Status::WrongVersion));
    let two = two.tombstone(b"a", 2, record(4, 1));
    let other = Once { lease: LeaseId(9), rpc: 1, ack: 0 };
    let sum = Some([5; 8]);
    let two = two.object(b"b", 3, b"3", Some(Record { once: other, sum, old: &[] }));
    let outcomes: Vec<_> = replay(&[&one, &two]).outcomes().collect();
    let ok = |version| outcome(version, Status::Ok);
    assert_eq!(
        outcomes,
        [
            (LEASE, 2, TABLE, ok(2)),
            (LEASE, 3, TABLE, outcome(2, Status::WrongVersion)),
            (LEASE, 4, TABLE, ok(2)),
            (LeaseId(9), 1, TABLE, Outcome { sum, ..ok(3) }),
        ]
    );
}

#[test]
fn no_version_is_used_twice() {
    let header = |safe_version| Header {
        cluster: CLUSTER,
        server: MASTER,
        segment: SegmentId(1),
        capacity: 4096,
        safe_version: Version(safe_version),
    };
    let safe_version = |segments: &[&Bytes]| replay(segments).safe_version().0;
    assert_eq!(safe_version(&[]), 1);
    assert_eq!(safe_version(&[&Bytes::with(header(7)), &Bytes::with(header(5))]), 7);
    assert_eq!(safe_version(&[&Bytes::with(header(7)).object(b"k", 7, b"", None)]), 8);
    assert_eq!(safe_version(&[&Bytes::with(header(7)).tombstone(b"k", 9, None)]), 10);
    let once = Once { lease: LEASE, rpc: 1, ack: 0 };
    let outcome = Outcome { status: Status::Ok, version: Version(20), sum: None };
    assert_eq!(safe_version(&[&Bytes::with(header(7)).completion(once, outcome)]), 21);
}

#[test]
fn a_damaged_segment_changes_nothing() {
    let good = Bytes::new(1).object(b"a", 1, b"one", None).object(b"b", 2, b"two", None);
    let mut bad = good.0.clone();
    *bad.last_mut().unwrap() ^= 1;
    let mut replay = Replay::new(crc32c);
    for bytes in [&bad[..], &good.0[..good.0.len() - 1], &[], &good.0[1..]] {
        assert_eq!(replay.segment(bytes), Err(Damaged));
    }
    assert_eq!((replay.objects().count(), replay.safe_version()), (0, Version(1)));
    assert_eq!(replay.segment(&good.0), Ok(()));
    assert_eq!(replay.objects().count(), 2);
}
