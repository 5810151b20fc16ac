//! Measures what the growth of a master's memory costs single writes: the longest ones while the
//! number of objects of 100 B grows, in the processor time of the thread and by the clock.
//!
//! ```text
//! cargo run --release -p sprat-bench --example growth [millions of objects] [GiB of log]
//! ```

#![allow(clippy::print_stdout)]

use rustix::time::{ClockId, clock_gettime};
use sprat_proto::Instant;
use sprat_store::durability::TableDurability;
use sprat_store::message::data::{Once, RejectRules, Target};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::mutate::{Change, Mutation};
use sprat_store::objects::segment::SEGMENT_BYTES;
use sprat_store::objects::tablet::Tablet;
use sprat_store::types::{HashKey, LeaseId, TableId, WallTime};
use sprat_sys::crc::crc32c;

const TABLE: TableId = TableId(1);
const ALL: Tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };

fn nanoseconds(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let objects = arguments.first().map_or(10, |millions| *millions) * 1_000_000;
    let bytes = arguments.get(1).map_or(4, |gib| *gib) << 30;
    let mut memory = Memory::new(Log::new(bytes, SEGMENT_BYTES, crc32c, false));
    let key = HashKey([1; 16]);
    memory.tablets.take(ALL, key, TableDurability::Cluster).expect("the only tablet");
    memory.results.extend(LeaseId(1), Instant::NEVER);
    let target = Target { cluster: 0, table: TABLE, rules: RejectRules::default() };
    println!("| objects | table | longest write, processor | by the clock | over 50 µs |");
    println!("| --- | --- | --- | --- | --- |");
    let (mut longest, mut by_clock, mut slow) = (0, 0, 0);
    for n in 1..=objects {
        let mut key = [0; 30];
        key[22..].copy_from_slice(&n.to_be_bytes());
        let once = Once { lease: LeaseId(1), rpc: n, ack: n - 1 };
        let ids = [ClockId::ThreadCPUTime, ClockId::Monotonic];
        let before = ids.map(nanoseconds);
        let Memory { results, log, .. } = &mut memory;
        results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let hash = memory.tablets.locate(TABLE, &key).expect("all hashes are owned");
        let change = Change::Write(&[7; 100], None);
        let mutation = Mutation { target, once, key: &key, hash, change, wall: WallTime(0) };
        memory.mutate(&mutation).expect("room");
        let after = ids.map(nanoseconds);
        longest = longest.max(after[0] - before[0]);
        by_clock = by_clock.max(after[1] - before[1]);
        slow += u64::from(after[0] - before[0] > 50_000);
        if n % (objects / 10) == 0 {
            let table = memory.table.memory_bytes() >> 20;
            let us = |ns| ns as f64 / 1000.0;
            println!(
                "| {n} | {table} MiB | {:.1} µs | {:.1} µs | {slow} |",
                us(longest),
                us(by_clock)
            );
            (longest, by_clock, slow) = (0, 0, 0);
        }
    }
}
