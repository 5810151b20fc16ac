//! Measures what the growth of a master's memory costs single writes: the longest ones while the
//! number of objects of 100 B grows, in the processor time of the thread.
//!
//! Interrupts and the hypervisor take such time too. So the same writes run several times: each
//! counts with its shortest time, for an interrupt rarely hits the same write twice. The floor is
//! as many readings of the clock with nothing between them.
//!
//! ```text
//! cargo run --release -p sprat-bench --example growth [millions of objects] [GiB of log]
//! ```

#![allow(clippy::print_stdout)]

use rustix::time::{ClockId, clock_gettime};
use sprat_proto::Instant;
use sprat_store::durability::TableDurability;
use sprat_store::message::data::{Once, Target};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::mutate::{Change, Mutation};
use sprat_store::objects::segment::SEGMENT_BYTES;
use sprat_store::objects::tablet::Tablet;
use sprat_store::types::{HashKey, LeaseId, TableId, WallTime};
use sprat_sys::crc::crc32c;

const TABLE: TableId = TableId(1);
const ALL: Tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };

/// The number of times that the same writes run.
const RUNS: usize = 3;

/// Returns the processor time of the thread, in nanoseconds.
fn used() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The shortest time of each write so far, in nanoseconds.
struct Shortest(Vec<u32>);

impl Shortest {
    fn add(&mut self, n: u64, ns: u64) {
        let shortest = &mut self.0[n as usize - 1];
        *shortest = (*shortest).min(u32::try_from(ns).unwrap_or(u32::MAX));
    }
}

/// Writes the objects into new memory and times each write. Returns the size of the hash table
/// after each tenth of them, in bytes.
fn run(bytes: u64, shortest: &mut Shortest) -> Vec<u64> {
    let mut memory = Memory::new(Log::new(bytes, SEGMENT_BYTES, crc32c, false));
    let key = HashKey([1; 16]);
    memory.tablets.take(ALL, key, TableDurability::Cluster).expect("the only tablet");
    memory.results.extend(LeaseId(1), Instant::NEVER);
    let target = Target { table: TABLE, ..Target::default() };
    let objects = shortest.0.len() as u64;
    let mut tables = Vec::new();
    for n in 1..=objects {
        let mut key = [0; 30];
        key[22..].copy_from_slice(&n.to_be_bytes());
        let once = Once { lease: LeaseId(1), rpc: n, ack: n - 1 };
        let before = used();
        let Memory { results, log, .. } = &mut memory;
        results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let hash = memory.tablets.locate(TABLE, &key).expect("all hashes are owned");
        let change = Change::Write(&[7; 100], None);
        let mutation = Mutation { target, once, key: &key, hash, change, wall: WallTime(0) };
        memory.mutate(&mutation).expect("room");
        shortest.add(n, used() - before);
        if n % (objects / 10) == 0 {
            tables.push(memory.table.memory_bytes());
        }
    }
    tables
}

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let objects = arguments.first().map_or(10, |millions| *millions) * 1_000_000;
    let bytes = arguments.get(1).map_or(4, |gib| *gib) << 30;
    let none = || Shortest(vec![u32::MAX; objects as usize]);
    let (mut writes, mut floor, mut tables) = (none(), none(), Vec::new());
    for _ in 0..RUNS {
        tables = run(bytes, &mut writes);
        for n in 1..=objects {
            let before = used();
            floor.add(n, used() - before);
        }
    }
    println!("| objects | table | median write | longest | over 20 µs | longest of the floor |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let tenth = writes.0.len() / 10;
    let parts = writes.0.chunks_mut(tenth).zip(floor.0.chunks(tenth)).zip(tables);
    for (part, ((writes, floor), table)) in parts.enumerate() {
        writes.sort_unstable();
        let us = |ns: u32| f64::from(ns) / 1000.0;
        let slow = writes.iter().filter(|ns| **ns > 20_000).count();
        let longest = floor.iter().max().map_or(0.0, |ns| us(*ns));
        println!(
            "| {} | {} MiB | {:.2} µs | {:.1} µs | {slow} | {longest:.1} µs |",
            (part + 1) * tenth,
            table >> 20,
            us(writes[writes.len() / 2]),
            us(writes[writes.len() - 1]),
        );
    }
}
