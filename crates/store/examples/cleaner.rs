//! Measures the bytes that the log's cleaner moves for each byte written, by the live share of the
//! log.
//!
//! The load is overwrites of objects with a key of 30 bytes and a value of 100 bytes. All of it is
//! seeded, so that the ratios are exact and the same on every machine. A burst is 32 writes: as
//! many as a server takes in a turn.
//!
//! ```text
//! uniform   any object                      hot       90 % of the writes go to 10 % of the objects
//! zipf      object i by 1 / i ^ 0.99        phases    the same, and others are hot after a while
//!
//! cargo run --profile test -p sprat-store --example cleaner [segment KiB] [segments]
//! ```

#![allow(clippy::print_stdout)]

use sprat_proto::wire::checksum::crc32c;
use sprat_proto::{Instant, Rng};
use sprat_store::durability::TableDurability;
use sprat_store::message::data::{Once, Target};
use sprat_store::objects::cleaner::{Cleaner, STEP};
use sprat_store::objects::entry::{OBJECT, Record};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::mutate::{Change, Mutation};
use sprat_store::objects::tablet::Tablet;
use sprat_store::types::{HashKey, LeaseId, TableId, WallTime};

const TABLE: TableId = TableId(1);
const LEASE: LeaseId = LeaseId(1);
/// The number of writes in a burst.
const BURST: u64 = 32;
const ENTRY: u64 = (OBJECT + 30 + 100) as u64;

struct Load {
    memory: Memory,
    cleaner: Cleaner,
    rpc: u64,
    retries: u64,
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
        Self { memory, cleaner: Cleaner::default(), rpc: 0, retries: 0 }
    }

    fn write(&mut self, n: u64) {
        let mut key = [0; 30];
        key[22..].copy_from_slice(&n.to_be_bytes());
        self.rpc += 1;
        let once = Once { lease: LEASE, rpc: self.rpc, ack: self.rpc.saturating_sub(BURST) };
        let Memory { results, log, .. } = &mut self.memory;
        results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let target = Target { table: TABLE, ..Target::default() };
        let hash = self.memory.tablets.locate(TABLE, &key).expect("all hashes are owned");
        let change = Change::Write(&[7; 100], None);
        let mutation = Mutation { target, once, key: &key, hash, change, wall: WallTime(0) };
        while self.memory.mutate(&mutation).is_err() {
            self.retries += 1;
            self.cleaner.step(&mut self.memory, STEP);
        }
        self.cleaner.pay(&mut self.memory);
    }

    /// Returns the number of bytes that the cleaner has moved.
    fn moved(&self) -> u64 {
        self.memory.log.appended_bytes() - self.memory.log.written_bytes()
    }
}

/// The names of the loads.
const LOADS: [&str; 4] = ["uniform", "zipf", "hot", "phases"];

/// Draws the objects of writes.
struct Draw {
    load: &'static str,
    /// The objects in the order of their rank. Those that are written often lie anywhere.
    objects: Vec<u64>,
    /// The sums of the probabilities of the objects up to each rank, not normalised.
    zipf: Vec<f64>,
    /// The number of writes after which other objects are hot.
    phase: u64,
    drawn: u64,
    rng: Rng,
}

impl Draw {
    fn new(load: &'static str, count: u64, phase: u64, seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let mut objects: Vec<u64> = (0..count).collect();
        for i in (1..objects.len()).rev() {
            objects.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let mut sum = 0.0;
        let probability = |rank| {
            sum += 1.0 / ((rank + 1) as f64).powf(0.99);
            sum
        };
        Self { load, objects, zipf: (0..count).map(probability).collect(), phase, drawn: 0, rng }
    }

    fn next(&mut self) -> u64 {
        let count = self.objects.len() as u64;
        self.drawn += 1;
        let shift = if self.load == "phases" { self.drawn / self.phase * (count / 10) } else { 0 };
        let rank = match self.load {
            "uniform" => self.rng.below(count),
            "zipf" => {
                let unit = (self.rng.u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let sum = unit * self.zipf[self.zipf.len() - 1];
                self.zipf.partition_point(|below| *below < sum) as u64
            }
            _ if self.rng.below(10) > 0 => (shift + self.rng.below(count / 10)) % count,
            _ => self.rng.below(count),
        };
        self.objects[rank as usize]
    }
}

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let segment_bytes = arguments.first().map_or(64, |kib| *kib) << 10;
    let segments = arguments.get(1).map_or(512, |n| *n);
    println!("{segments} segments of {} KiB", segment_bytes >> 10);
    println!(
        "| live | load | moved / written | entries in a burst: 50 %, 99 %, most | without room |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for (live, name) in [50, 80, 90].into_iter().flat_map(|live| LOADS.map(|load| (live, load))) {
        let mut load = Load::new(segments, segment_bytes as u32);
        let capacity = load.memory.log.capacity_bytes();
        let objects = capacity * live / 100 / ENTRY;
        let rounds = capacity / (ENTRY + Record::size(false) as u64);
        let mut draw = Draw::new(name, objects, rounds / 2, live);
        (0..objects).for_each(|n| load.write(n));
        (0..6 * rounds).for_each(|_| load.write(draw.next()));
        let (written, moved) = (load.memory.log.written_bytes(), load.moved());
        load.retries = 0;
        let mut bursts: Vec<_> = (0..6 * rounds / BURST)
            .map(|_| {
                let before = load.moved();
                (0..BURST).for_each(|_| load.write(draw.next()));
                (load.moved() - before) / ENTRY
            })
            .collect();
        bursts.sort_unstable();
        let of = |percent| bursts[(bursts.len() - 1) * percent / 100];
        let written = load.memory.log.written_bytes() - written;
        let ratio = (load.moved() - moved) as f64 / written as f64;
        let (half, most, all, retries) = (of(50), of(99), of(100), load.retries);
        println!("| {live} % | {name} | {ratio:.2} | {half}, {most}, {all} | {retries} |");
    }
}
