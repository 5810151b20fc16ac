//! Measures the replay of a crashed master's log from memory: objects and bytes a second, beside
//! the floor (each checksum verified, each entry copied once, no table).
//!
//! ```text
//! cargo run --release -p sprat-bench --example replay [MB]
//! ```

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant as Clock;

use sprat_proto::Instant;
use sprat_store::durability::TableDurability;
use sprat_store::message::data::{Once, RejectRules, Target};
use sprat_store::objects::entry::{Entries, Entry};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::mutate::{Change, Mutation};
use sprat_store::objects::partition::Partition;
use sprat_store::objects::segment::{SEGMENT_BYTES, SegmentId};
use sprat_store::objects::tablet::Tablet;
use sprat_store::types::{HashKey, LeaseId, ServerId, TableId, Version, WallTime};
use sprat_sys::crc::crc32c;

const TABLE: TableId = TableId(1);
const ALL: Tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
const CRASHED: ServerId = ServerId { index: 1, generation: 1 };
const KEY: HashKey = HashKey([1; 16]);

fn memory(bytes: u64) -> Memory {
    let mut log = Log::new(bytes, SEGMENT_BYTES, crc32c, false);
    log.set_server(1, CRASHED);
    Memory::new(log)
}

/// Returns the segments of a log of about `bytes` bytes with objects of `size`, and their number.
fn log_of(size: usize, bytes: u64) -> (Vec<(SegmentId, Vec<u8>)>, u64) {
    let mut memory = memory(2 * bytes);
    memory.tablets.take(ALL, KEY, TableDurability::Cluster).expect("the only tablet");
    memory.results.extend(LeaseId(1), Instant::NEVER);
    let target = Target { cluster: 0, table: TABLE, rules: RejectRules::default() };
    let value = vec![7; size];
    let mut objects = 0;
    while memory.log.appended_bytes() < bytes {
        objects += 1;
        let once = Once { lease: LeaseId(1), rpc: objects, ack: objects - 1 };
        let Memory { results, log, .. } = &mut memory;
        results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let mut key = [0; 30];
        key[22..].copy_from_slice(&objects.to_be_bytes());
        let hash = memory.tablets.locate(TABLE, &key).expect("all hashes are owned");
        let change = Change::Write(&value, None);
        memory
            .mutate(&Mutation { target, once, key: &key, hash, change, wall: WallTime(0) })
            .expect("room");
    }
    let ids: Vec<_> = memory.log.segments().map(|(id, _)| id).collect();
    let segment = |id| {
        let slot = memory.log.slot(id).expect("a segment of the log");
        memory.log.seal(slot);
        let segment = &memory.log.slots()[slot as usize];
        (id, segment.bytes[..segment.written as usize].to_vec())
    };
    (ids.into_iter().map(segment).collect(), objects)
}

fn replay(log: &[(SegmentId, Vec<u8>)], memory: &mut Memory) {
    memory.tablets.prepare(ALL, KEY, TableDurability::Cluster, Version(0)).expect("no tablet");
    let since = memory.log.begin_side().expect("room");
    let bytes: usize = log.iter().map(|(_, bytes)| bytes.len()).sum();
    let mut partition =
        Partition::new(CRASHED, bytes as u64, vec![(ALL, SegmentId(0))], (since, false));
    for (id, bytes) in log.iter().rev() {
        let mut entries = Entries::default();
        while entries.at() < bytes.len() {
            memory
                .replay(&mut partition, (*id, bytes.len()), bytes, &mut entries, 256 << 10)
                .expect("room");
            memory.grow(16);
        }
    }
}

fn floor(log: &[(SegmentId, Vec<u8>)], copy: &mut [u8]) {
    for (_, bytes) in log {
        let mut entries = Entries::default();
        let mut from = 0;
        while let Some((at, entry)) = entries.next(crc32c, bytes) {
            copy[at..entries.at()].copy_from_slice(&bytes[at..entries.at()]);
            from += usize::from(matches!(entry, Entry::Object(..)));
        }
        black_box((from, &copy));
    }
}

fn main() {
    let megabytes = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(256);
    println!("| object | what | M objects/s | GB/s |\n| ---: | --- | ---: | ---: |");
    for size in [100, 1000] {
        let (log, objects) = log_of(size, megabytes << 20);
        let bytes: usize = log.iter().map(|(_, bytes)| bytes.len()).sum();
        let print = |what: &str, from: Clock| {
            let seconds = from.elapsed().as_secs_f64();
            let (rate, volume) = (objects as f64 / seconds / 1e6, bytes as f64 / seconds / 1e9);
            println!("| {size} B | {what} | {rate:.2} | {volume:.2} |");
        };
        let mut copy = vec![0; SEGMENT_BYTES as usize];
        for _ in 0..3 {
            let from = Clock::now();
            floor(&log, &mut copy);
            print("floor", from);
            let mut memory = memory(2 * (megabytes << 20));
            let from = Clock::now();
            replay(&log, &mut memory);
            print("replay", from);
            assert_eq!(memory.table.len(), objects);
        }
    }
}
