//! Measures the bytes that the log's cleaner moves for each byte written, by the live share of the
//! log.
//!
//! The load is uniform or skewed overwrites of objects with a key of 30 bytes and a value of 100
//! bytes. Everything is seeded, so that the ratios are exact and the same on every machine.
//!
//! ```text
//! cargo run --profile test -p sprat-store --example cleaner [segment KiB] [segments]
//! ```

#![allow(clippy::print_stdout)]

use sprat_proto::wire::checksum::crc32c;
use sprat_proto::{Instant, Rng};
use sprat_store::durability::TableDurability;
use sprat_store::message::data::{Once, RejectRules, Target};
use sprat_store::objects::cleaner::{Cleaner, STEP};
use sprat_store::objects::entry::{OBJECT, Record};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::mutate::{Change, Mutation};
use sprat_store::objects::tablet::Tablet;
use sprat_store::types::{HashKey, LeaseId, TableId, WallTime};

const TABLE: TableId = TableId(1);
const LEASE: LeaseId = LeaseId(1);
const ENTRY: u64 = (OBJECT + 30 + 100) as u64;

struct Load {
    memory: Memory,
    cleaner: Cleaner,
    rpc: u64,
    written: u64,
    retries: u64,
    longest: u64,
}

impl Load {
    fn new(segments: u64, segment_bytes: u32) -> Self {
        let log = Log::new(segments * u64::from(segment_bytes), segment_bytes, crc32c, false);
        let mut memory = Memory::new(log);
        let all = Tablet { table: TABLE, first: 0, last: u64::MAX };
        memory
            .tablets
            .take(all, HashKey([1; 16]), TableDurability::Cluster)
            .expect("the only tablet");
        memory.results.extend(LEASE, Instant::NEVER);
        Self { memory, cleaner: Cleaner::default(), rpc: 0, written: 0, retries: 0, longest: 0 }
    }

    fn write(&mut self, n: u64) {
        let mut key = [0; 30];
        key[22..].copy_from_slice(&n.to_be_bytes());
        self.rpc += 1;
        let once = Once { lease: LEASE, rpc: self.rpc, ack: self.rpc - 1 };
        let Memory { results, log, .. } = &mut self.memory;
        results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let target = Target { cluster: 0, table: TABLE, rules: RejectRules::default() };
        let hash = self.memory.tablets.locate(TABLE, &key).expect("all hashes are owned");
        let change = Change::Write(&[7; 100], None);
        let mutation = Mutation { target, once, key: &key, hash, change, wall: WallTime(0) };
        while self.memory.mutate(&mutation).is_err() {
            self.retries += 1;
            self.cleaner.step(&mut self.memory, STEP);
        }
        self.written += ENTRY + Record::size(false) as u64;
        let appended = self.memory.log.appended_bytes();
        self.cleaner.pay(&mut self.memory);
        let moved = self.memory.log.appended_bytes() - appended;
        self.longest = self.longest.max(moved);
    }
}

/// Draws the object of a write: any object, or nine times out of ten one of the first tenth.
fn draw(rng: &mut Rng, objects: u64, skewed: bool) -> u64 {
    let hot = skewed && rng.below(10) > 0;
    rng.below(if hot { objects / 10 } else { objects })
}

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let segment_bytes = arguments.first().map_or(256, |kib| *kib) << 10;
    let segments = arguments.get(1).map_or(384, |n| *n);
    println!("{segments} segments of {} KiB", segment_bytes >> 10);
    println!("| live | load | appended / written | most moved in a step | writes without room |");
    println!("| --- | --- | --- | --- | --- |");
    for (live, skewed) in
        [25, 50, 70, 80, 85, 90].map(|live| (live, false)).into_iter().chain([(80, true)])
    {
        let mut load = Load::new(segments, segment_bytes as u32);
        let objects = load.memory.log.capacity_bytes() * live / 100 / ENTRY;
        (0..objects).for_each(|n| load.write(n));
        let mut rng = Rng::seeded(live);
        let rounds = 3 * load.memory.log.capacity_bytes() / (ENTRY + Record::size(false) as u64);
        (0..rounds).for_each(|_| load.write(draw(&mut rng, objects, skewed)));
        let (appended, written) = (load.memory.log.appended_bytes(), load.written);
        (load.retries, load.longest) = (0, 0);
        (0..rounds).for_each(|_| load.write(draw(&mut rng, objects, skewed)));
        let appended = load.memory.log.appended_bytes() - appended;
        let ratio = appended as f64 / (load.written - written) as f64;
        let name = if skewed { "90 % of writes to 10 %" } else { "uniform" };
        let Load { longest, retries, .. } = load;
        println!("| {live} % | {name} | {ratio:.2} | {longest} | {retries} |");
    }
}
