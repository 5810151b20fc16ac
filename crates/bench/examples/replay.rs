//! Measures the replay of a crashed master's log from memory: objects and bytes a second, beside
//! the floor (each checksum verified, each entry copied once, no table).
//!
//! ```text
//! cargo run --release -p sprat-bench --example replay [MB]
//! ```

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant as Clock;

use sprat_store::durability::TableDurability;
use sprat_store::objects::entry::{Entries, Entry};
use sprat_store::objects::memory::Memory;
use sprat_store::objects::partition::Partition;
use sprat_store::objects::segment::{SEGMENT_BYTES, SegmentId};
use sprat_store::types::Version;
use sprat_sys::crc::crc32c;

mod objects;

use objects::{ALL, KEY, OWNER, filled, memory};

/// Returns the segments of a log of about `bytes` bytes with objects of `size`, and their number.
fn log_of(size: usize, bytes: u64) -> (Vec<(SegmentId, Vec<u8>)>, u64) {
    let (mut memory, objects) = filled(size, bytes);
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
        Partition::new(OWNER, bytes as u64, vec![(ALL, SegmentId(0))], (since, false));
    for (id, bytes) in log.iter().rev() {
        let mut entries = Entries::default();
        while entries.at() < bytes.len() {
            memory
                .replay(&mut partition, (*id, bytes.len()), bytes, &mut entries, 64 << 10)
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
