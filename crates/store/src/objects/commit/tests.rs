//! Tests of the group of a commit in replays.

use alloc::vec;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::crc32c;

use super::*;
use crate::durability::TableDurability;
use crate::objects::entry::{Entries, HEADER, Header, put_group, put_header, put_object, seal};
use crate::objects::log::Log;
use crate::objects::partition::Partition;
use crate::objects::segment::SegmentId;
use crate::objects::tablet::Tablet;
use crate::recovery::Replay;
use crate::types::{HashKey, ServerId};

const TABLE: TableId = TableId(7);
const MASTER: ServerId = ServerId { index: 3, generation: 1 };

/// A segment with an object, a group of two, and an object. Each entry is sealed. Returns the ends
/// of the entries, too.
fn segment() -> (Vec<u8>, Vec<usize>) {
    let (mut out, mut ends, mut seed) = (Vec::new(), Vec::new(), 0);
    let mut add = |len: usize, write: &dyn Fn(&mut [u8])| {
        let at = out.len();
        out.resize(at + len, 0);
        write(&mut out[at..]);
        assert_eq!(seal(crc32c, seed, &mut out[at..]), Some(len));
        if at == 0 {
            seed = u32::from_be_bytes(out[4..8].try_into().unwrap());
        }
        ends.push(out.len());
    };
    let (cluster, server, segment) = (9, MASTER, SegmentId(1));
    let (capacity, safe_version) = (1 << 16, Version(1));
    let header = Header { cluster, server, segment, capacity, safe_version };
    add(HEADER, &|out| put_header(out, &header));
    let keys = [b"before", b"first!", b"second", b"behind"];
    for (n, key) in keys.into_iter().enumerate() {
        let (version, older) = (Version(5), Span::default());
        let (value, expires) = (&[1; 20], WallTime::NEVER);
        let object = Object { table: TABLE, version, older, key, value, expires };
        if n == 1 {
            add(GROUP, &|out| put_group(out, 2 * object.entry_len()));
        }
        add(object.entry_len(), &|out| put_object(out, &object, None));
    }
    (out, ends)
}

/// Returns the keys that a master has that recovers from these bytes.
fn recovered(bytes: &[u8]) -> Vec<&'static [u8]> {
    let mut memory = Memory::new(Log::new(1 << 20, 1 << 14, crc32c, false));
    let tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
    let (key, durability) = (HashKey([5; 16]), TableDurability::Cluster);
    memory.tablets.prepare(tablet, key, durability, Version(0)).unwrap();
    let since = memory.log.begin_side().unwrap();
    let tablets = vec![(tablet, SegmentId(0))];
    let mut partition = Partition::new(MASTER, bytes.len() as u64, tablets, (since, false));
    let mut entries = Entries::default();
    while entries.at() < bytes.len() {
        // A replica here is read piece by piece.
        let read = bytes.len().min(entries.at() + 150);
        let segment = (SegmentId(1), bytes.len());
        memory.replay(&mut partition, segment, &bytes[..read], &mut entries, 60).unwrap();
    }
    let mut replay = Replay::new(crc32c);
    replay.segment(bytes).unwrap();
    let keys: [&[u8]; 4] = [b"before", b"first!", b"second", b"behind"];
    let is_there = |key: &&&[u8]| {
        let hash = memory.tablets.hash(TABLE, key).unwrap();
        memory.find(TABLE, hash, key).is_some()
    };
    let found: Vec<_> = keys.iter().filter(is_there).copied().collect();
    assert_eq!(replay.objects().count(), found.len(), "as the specification says");
    found
}

/// Replicas get a group in one write, so that what is durable ends before it or behind it.
#[test]
fn no_write_to_a_replica_ends_within_a_group() {
    let mut memory = Memory::new(Log::new(1 << 20, 1 << 14, crc32c, true));
    let tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
    memory.tablets.take(tablet, HashKey([5; 16]), TableDurability::Cluster).unwrap();
    let lease = LeaseId(1);
    memory.results.extend(lease, sprat_proto::Instant::NEVER);
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    let items = keys.iter().zip(1..).map(|(&key, rpc)| Item {
        table: TABLE,
        hash: memory.tablets.hash(TABLE, key).unwrap(),
        key,
        rules: RejectRules::default(),
        once: Once { lease, rpc, ack: 0 },
        planned: Planned::Write(&[1; 50], WallTime::NEVER),
        before: None,
    });
    let items: Vec<_> = items.collect();
    memory.commit(&items[..1], Participants::default()).unwrap();
    let before = memory.log.tail();
    memory.commit(&items[1..], Participants::default()).unwrap();
    let (after, slot) = (memory.log.tail(), memory.log.slot(before.segment).unwrap());
    for most in 0..after.offset - before.offset {
        assert_eq!(memory.log.end_of_entries(slot, before.offset, most), after.offset);
    }
    assert!(after.offset - before.offset > 150);
}

#[test]
fn a_group_counts_whole_or_not_at_all() {
    let (bytes, ends) = segment();
    let all: [&[u8]; 4] = [b"before", b"first!", b"second", b"behind"];
    let mut counts = Vec::new();
    for &end in &ends {
        let keys = recovered(&bytes[..end]);
        assert_eq!(keys, all[..keys.len()]);
        counts.push(keys.len());
    }
    // The header, an object, the group's head, its first object, its second one, an object.
    assert_eq!(counts, [0, 1, 1, 1, 3, 4]);
}

/// A full memory still prepares the removals that make room, and checks.
#[test]
fn a_full_memory_prepares_removals() {
    let mut memory = Memory::new(Log::new(1 << 20, 1 << 14, crc32c, false));
    let tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
    memory.tablets.take(tablet, HashKey([5; 16]), TableDurability::Cluster).unwrap();
    let lease = LeaseId(1);
    memory.results.extend(lease, sprat_proto::Instant::NEVER);
    let first = Participant { table: TABLE, hash: KeyHash(1), rpc: 1 };
    let value = [1; 1000];
    let keys: Vec<[u8; 4]> = (0..2000_u32).map(u32::to_be_bytes).collect();
    let item = |memory: &Memory, n: usize, planned| {
        let hash = memory.tablets.hash(TABLE, &keys[n]).unwrap();
        let once = Once { lease, rpc: n as u64 + 1, ack: n as u64 };
        let before = memory.before(TABLE, hash, &keys[n]);
        let (key, rules) = (&keys[n][..], RejectRules::default());
        Item { table: TABLE, hash, key, rules, once, planned, before }
    };
    let mut n = 0;
    let full = loop {
        let write = item(&memory, n, Planned::Write(&value, WallTime::NEVER));
        match memory.commit(&[write], Participants::default()) {
            Ok(_) => n += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((full, n > 100), (Status::NoSpace, true));
    let write = item(&memory, n, Planned::Write(&value, WallTime::NEVER));
    assert_eq!(memory.prepare(&write, first), Err(Status::NoSpace));
    for (n, planned) in [(0, Planned::Remove), (1, Planned::Check)] {
        let other = Item {
            once: Once { lease, rpc: 3000 + n as u64, ack: 0 },
            ..item(&memory, n, planned)
        };
        memory.prepare(&other, first).unwrap();
    }
}
