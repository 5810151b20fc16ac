//! Tests of a backup: its rules one by one, and random writes of several masters.

use alloc::vec;
use alloc::vec::Vec;

use sprat_proto::Rng;
use sprat_proto::wire::checksum::crc32c;

use super::*;
use crate::objects::entry::{HEADER, Header, put_header};
use crate::types::Version;

mod damage;
mod journal;
mod kept;
pub(crate) mod posted;
mod scrub;

const CLUSTER: u64 = 7;
const ME: ServerId = ServerId { index: 1, generation: 1 };
const MASTER: ServerId = ServerId { index: 2, generation: 5 };
const SEGMENT: SegmentId = SegmentId(3);
const FRAME: u32 = 256;

fn backup(frames: u64) -> Backup {
    Backup::new(Box::new(MemoryFrames::new(frames * u64::from(FRAME), FRAME)), crc32c, 0)
}

fn target(master: ServerId, segment: SegmentId) -> Target {
    Target { cluster: CLUSTER, backup: ME, master, segment }
}

/// Returns the bytes of a segment: its header, and bytes that differ from segment to segment.
fn segment(master: ServerId, segment: SegmentId) -> Vec<u8> {
    let seed = u64::from(master.index) << 40 | u64::from(master.generation) << 32;
    let mut rng = Rng::seeded(seed | u64::from(segment.0));
    let mut bytes: Vec<u8> = (0..FRAME).map(|_| rng.u64() as u8).collect();
    let (cluster, server, capacity) = (CLUSTER, master, FRAME);
    let header = Header { cluster, server, segment, capacity, safe_version: Version(1) };
    put_header(&mut bytes, &header);
    bytes
}

/// Returns a write of the bytes `from..to` of [`SEGMENT`], whose bytes are `bytes`.
fn write(bytes: &[u8], from: u32, to: u32) -> WriteReplica<'_> {
    WriteReplica {
        target: target(MASTER, SEGMENT),
        epoch: 2,
        offset: from,
        open: false,
        commit: true,
        sync: false,
        close: false,
        data: &bytes[from as usize..to as usize],
    }
}

fn open(bytes: &[u8], to: u32) -> WriteReplica<'_> {
    WriteReplica { open: true, ..write(bytes, 0, to) }
}

/// Returns epoch, length and state of the only replica of [`MASTER`].
fn listed(backup: &Backup) -> (u32, u32, bool) {
    let [ref replica] = backup.list(MASTER, SegmentId(0)).replicas[..] else { panic!() };
    assert_eq!(replica.segment, SEGMENT);
    (replica.epoch, replica.len, replica.closed)
}

#[test]
fn a_replica_is_opened_continued_and_closed() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    assert_eq!(backup.write(&open(&bytes, 50)), Ok(50));
    assert_eq!(backup.write(&write(&bytes, 50, 80)), Ok(80));
    assert_eq!(listed(&backup), (2, 80, false));
    assert_eq!(backup.write(&WriteReplica { close: true, ..write(&bytes, 80, 99) }), Ok(99));
    assert_eq!(listed(&backup), (2, 99, true));
    assert_eq!(backup.bytes(MASTER, SEGMENT), Some(&bytes[..99]));
    assert_eq!(backup.bytes(MASTER, SegmentId(4)), None);
}

#[test]
fn duplicates_and_overlaps_change_nothing() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    let other = [0xee; FRAME as usize];
    assert_eq!(backup.write(&open(&bytes, 80)), Ok(80));
    for repeated in [open(&bytes, 80), open(&bytes, 60), write(&other, 0, 80), write(&other, 9, 9)]
    {
        assert_eq!(backup.write(&repeated), Ok(80));
        assert_eq!(backup.bytes(MASTER, SEGMENT), Some(&bytes[..80]));
    }
    assert_eq!(backup.write(&write(&bytes, 70, 90)), Ok(90));
    assert_eq!(backup.bytes(MASTER, SEGMENT), Some(&bytes[..90]));
}

#[test]
fn a_gap_changes_nothing() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    backup.write(&open(&bytes, 80)).unwrap();
    let gap = WriteReplica { epoch: 9, close: true, ..write(&bytes, 81, 90) };
    assert_eq!(backup.write(&gap), Ok(80));
    assert_eq!(listed(&backup), (2, 80, false), "not even the epoch");
    assert_eq!(backup.bytes(MASTER, SEGMENT), Some(&bytes[..80]));
}

#[test]
fn the_epoch_of_a_replica_only_grows() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    backup.write(&open(&bytes, 80)).unwrap();
    assert_eq!(backup.write(&WriteReplica { epoch: 3, ..write(&bytes, 80, 80) }), Ok(80));
    assert_eq!(listed(&backup), (3, 80, false), "a write without data stamps it");
    assert_eq!(backup.write(&write(&bytes, 80, 90)), Err(Status::WrongEpoch));
    assert_eq!(backup.write(&open(&bytes, 90)), Err(Status::WrongEpoch));
    assert_eq!(listed(&backup), (3, 80, false));
    let reopened = WriteReplica { epoch: 4, ..open(&bytes, 50) };
    assert_eq!(backup.write(&reopened), Ok(80), "the bytes stay");
    assert_eq!(listed(&backup), (4, 80, false));
}

#[test]
fn an_unknown_replica_is_only_opened() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    assert_eq!(backup.write(&write(&bytes, 0, 80)), Err(Status::NoReplica));
    assert_eq!(
        backup.write(&WriteReplica { open: true, ..write(&bytes, 1, 80) }),
        Err(Status::BadFormat),
        "from its start on"
    );
    assert_eq!((backup.replicas(), backup.free_frames()), (0, 1));
}

/// A replica with the wrong header would be the replica of nothing. A recovery would look for it in
/// vain.
#[test]
fn a_replica_begins_with_the_header_of_its_segment() {
    let mut backup = backup(1);
    let bytes = segment(MASTER, SEGMENT);
    assert_eq!(backup.write(&open(&bytes, HEADER as u32 - 1)), Err(Status::BadFormat));
    assert_eq!(backup.write(&open(&bytes[1..], 50)), Err(Status::BadFormat));
    let header = Header {
        cluster: CLUSTER,
        server: MASTER,
        segment: SEGMENT,
        capacity: FRAME,
        safe_version: Version(1),
    };
    let earlier = ServerId { generation: MASTER.generation - 1, ..MASTER };
    for (wrong, status) in [
        (Header { cluster: CLUSTER + 1, ..header }, Status::BadFormat),
        (Header { server: earlier, ..header }, Status::BadFormat),
        (Header { segment: SegmentId(4), ..header }, Status::BadFormat),
        (Header { capacity: FRAME + 1, ..header }, Status::NoSpace),
    ] {
        let mut bytes = bytes.clone();
        put_header(&mut bytes, &wrong);
        assert_eq!(backup.write(&open(&bytes, 50)), Err(status), "{wrong:?}");
    }
    assert_eq!((backup.replicas(), backup.free_frames()), (0, 1));
    assert_eq!(backup.write(&open(&bytes, HEADER as u32)), Ok(HEADER as u32));
}

#[test]
fn a_closed_replica_takes_no_more_bytes() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    let close = WriteReplica { close: true, ..open(&bytes, 80) };
    assert_eq!(backup.write(&close), Ok(80));
    assert_eq!(backup.write(&close), Ok(80));
    assert_eq!(backup.write(&write(&bytes, 50, 80)), Ok(80));
    for more in [write(&bytes, 80, 81), write(&bytes, 90, 91), open(&bytes, 81)] {
        assert_eq!(backup.write(&more), Err(Status::BadFormat));
    }
    assert_eq!(backup.write(&WriteReplica { epoch: 3, ..write(&bytes, 80, 80) }), Ok(80));
    assert_eq!(listed(&backup), (3, 80, true));
}

#[test]
fn a_replica_is_not_closed_short_of_its_bytes() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    backup.write(&open(&bytes, 80)).unwrap();
    let close = WriteReplica { close: true, ..write(&bytes, 50, 79) };
    assert_eq!(backup.write(&close), Err(Status::BadFormat));
    assert_eq!(listed(&backup), (2, 80, false));
}

#[test]
fn a_write_stays_within_its_frame() {
    let (mut backup, bytes) = (backup(1), segment(MASTER, SEGMENT));
    backup.write(&open(&bytes, FRAME - 1)).unwrap();
    let long = [0; 2];
    let mut beyond = WriteReplica { offset: FRAME - 1, data: &long, ..write(&bytes, 0, 0) };
    assert_eq!(backup.write(&beyond), Err(Status::BadFormat));
    beyond.offset = u32::MAX;
    assert_eq!(backup.write(&beyond), Err(Status::BadFormat));
    assert_eq!(backup.write(&write(&bytes, FRAME - 1, FRAME)), Ok(FRAME));
}

#[test]
fn each_replica_takes_a_frame() {
    let mut backup = backup(2);
    let all: Vec<_> = (1..=3).map(|n| (SegmentId(n), segment(MASTER, SegmentId(n)))).collect();
    let opens = all.iter().map(|(id, bytes)| {
        let target = target(MASTER, *id);
        WriteReplica { target, ..open(bytes, 80) }
    });
    let opens: Vec<_> = opens.collect();
    assert_eq!(backup.write(&opens[0]), Ok(80));
    assert_eq!(backup.write(&opens[1]), Ok(80));
    assert_eq!(backup.write(&opens[2]), Err(Status::NoSpace));
    for _ in 0..2 {
        backup.free(MASTER, SegmentId(1), u32::MAX);
        assert_eq!((backup.replicas(), backup.free_frames()), (1, 1), "once or twice");
    }
    assert_eq!(backup.write(&opens[2]), Ok(80));
    assert_eq!(backup.bytes(MASTER, SegmentId(3)), Some(&all[2].1[..80]));
    assert_eq!(backup.bytes(MASTER, SegmentId(2)), Some(&all[1].1[..80]));
    assert_eq!(Backup::new(Box::new(MemoryFrames::new(0, 0)), crc32c, 0).write(&opens[0]), {
        Err(Status::BadFormat)
    });
}

/// A recovery relies on the replicas that it has found. A master that still writes must not take
/// that for durable.
#[test]
fn a_fenced_master_writes_no_more() {
    let (mut backup, bytes) = (backup(2), segment(MASTER, SEGMENT));
    backup.write(&open(&bytes, 80)).unwrap();
    backup.fence(MASTER).unwrap();
    assert_eq!(backup.write(&write(&bytes, 80, 90)), Err(Status::Fenced));
    assert_eq!(backup.write(&write(&bytes, 80, 80)), Err(Status::Fenced));
    assert_eq!(backup.write(&open(&bytes, 80)), Err(Status::Fenced));
    assert_eq!(listed(&backup), (2, 80, false));
    let later = ServerId { generation: MASTER.generation + 1, ..MASTER };
    let bytes = segment(later, SEGMENT);
    let open_later = WriteReplica { target: target(later, SEGMENT), ..open(&bytes, 80) };
    assert_eq!(backup.write(&open_later), Ok(80), "another life of the server");
    backup.fence(later).unwrap();
    backup.fence(MASTER).unwrap();
    for master in [MASTER, later] {
        assert!(backup.is_fenced(master), "{master}");
    }
    assert!(!backup.is_fenced(ServerId { generation: later.generation + 1, ..later }));
    backup.free(MASTER, SEGMENT, u32::MAX);
    assert_eq!(backup.replicas(), 1, "but its replicas can be freed");
}

#[test]
fn the_number_of_fenced_masters_has_a_limit() {
    let mut backup = backup(0);
    let master = |index| ServerId { index, generation: 1 };
    for index in 0..MAX_FENCED as u32 {
        backup.fence(master(index)).unwrap();
    }
    assert_eq!(backup.fence(master(u32::MAX)), Err(Status::NoSpace));
    assert!(!backup.is_fenced(master(u32::MAX)));
    assert_eq!(backup.fence(ServerId { index: 5, generation: 2 }), Ok(()));
}

#[test]
fn replicas_are_listed_page_by_page() {
    let count = control::MAX_PAGE as u32 + 3;
    let mut backup = backup(u64::from(count) + 2);
    let others = [
        ServerId { generation: MASTER.generation + 1, ..MASTER },
        ServerId { generation: MASTER.generation - 1, ..MASTER },
    ];
    let own = (1..=count).rev().map(|n| (MASTER, n));
    for (master, n) in own.chain(others.map(|other| (other, 2))) {
        let bytes = segment(master, SegmentId(n));
        let write = WriteReplica { target: target(master, SegmentId(n)), ..open(&bytes, 80) };
        backup.write(&write).unwrap();
    }
    let ids = |page: &ReplicaPage| page.replicas.iter().map(|r| r.segment.0).collect::<Vec<_>>();
    let first = backup.list(MASTER, SegmentId(0));
    assert_eq!((first.more, ids(&first)), (true, (1..=count - 3).collect()));
    let second = backup.list(MASTER, SegmentId(count - 3));
    assert_eq!((second.more, ids(&second)), (false, vec![count - 2, count - 1, count]));
    for end in [count, u32::MAX] {
        let last = backup.list(MASTER, SegmentId(end));
        assert_eq!((last.more, ids(&last)), (false, vec![]));
    }
}

/// Masters send the parts of their segments in any order, with repetitions, overlaps and new
/// epochs, some of them as opens and closes. A replica is always the beginning of its segment, and
/// one whose master goes on from the length in the reply becomes whole.
#[test]
fn random_writes() {
    for seed in 0..200 {
        let mut rng = Rng::seeded(seed);
        let mut backup = backup(6);
        let masters = [MASTER, ServerId { index: 9, generation: 1 }];
        let mut all: Vec<_> = (0..8)
            .map(|n| {
                let (master, id) = (masters[n % 2], SegmentId(n as u32 / 2 + 1));
                let whole = rng.below(u64::from(FRAME) - 100) as u32 + 100;
                (master, id, segment(master, id), whole, None::<(u32, u32, bool)>)
            })
            .collect();
        for _ in 0..400 {
            let index = rng.below(8) as usize;
            let (master, id, bytes, whole, state) = &mut all[index];
            if rng.below(40) == 0 {
                backup.free(*master, *id, u32::MAX);
                *state = None;
            }
            let (epoch, len, closed) = state.unwrap_or((2, 0, false));
            let open = rng.below(4) == 0;
            let from = match rng.below(3) {
                _ if open => 0,
                0 => len.min(*whole),
                _ => rng.below(u64::from(*whole)) as u32,
            };
            let to = from + rng.below(u64::from(*whole - from) + 1) as u32;
            let write = WriteReplica {
                target: target(*master, *id),
                epoch: epoch + u32::from(rng.below(8) == 0) - u32::from(rng.below(8) == 0),
                offset: from,
                open,
                commit: true,
                sync: false,
                close: to == *whole && rng.below(2) == 0,
                data: &bytes[from as usize..to as usize],
            };
            let used = backup.replicas();
            match backup.write(&write) {
                Ok(end) if from <= len => {
                    assert_eq!(end, len.max(to));
                    assert!(write.epoch >= epoch || state.is_none());
                    *state = Some((write.epoch, end, closed | write.close));
                }
                Ok(end) => assert_eq!(end, len, "a gap"),
                Err(Status::NoReplica) => assert!(state.is_none() && !open),
                Err(Status::BadFormat) => {
                    assert!(state.is_none() && to < HEADER as u32 && open);
                }
                Err(Status::NoSpace) => assert!(state.is_none() && open && used == 6),
                Err(Status::WrongEpoch) => assert!(write.epoch < epoch && state.is_some()),
                Err(status) => panic!("{status:?}"),
            }
            for (master, id, bytes, _, state) in &all {
                let len = state.map(|(_, len, _)| len as usize);
                assert_eq!(backup.bytes(*master, *id), len.map(|len| &bytes[..len]), "seed {seed}");
            }
        }
        for master in masters {
            let page = backup.list(master, SegmentId(0));
            let found = page.replicas.iter().map(|r| (r.segment, (r.epoch, r.len, r.closed)));
            let of = |other: &ServerId| *other == master;
            let expected = all.iter().filter(|(other, ..)| of(other));
            let expected = expected.filter_map(|(_, id, _, _, state)| Some((*id, (*state)?)));
            assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
