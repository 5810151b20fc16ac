//! Measures the two ends of a migration in one thread, without a network: the owner that makes
//! pages, and the target that replays them.
//!
//! ```text
//! cargo run --release -p sprat-bench --example migrate [MB]
//! ```

#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant as Clock};

use sprat_store::durability::TableDurability;
use sprat_store::message::migration::{PAGE, Page, Progress};
use sprat_store::objects::entry::Entries;
use sprat_store::objects::leaving::{Asked, Leaving};
use sprat_store::objects::memory::Memory;
use sprat_store::objects::partition::Partition;
use sprat_store::objects::segment::SegmentId;
use sprat_store::types::Version;
use sprat_sys::memory::huge;

mod objects;

use objects::{ALL, KEY, OWNER, filled, memory};

/// Servers have huge pages too, without which nearly every read of an object misses the
/// translation cache.
#[global_allocator]
static ALLOCATOR: huge::Allocator = huge::Allocator;

const ROUNDS: usize = 5;

/// Moves all objects to a new memory. Returns it, the times of both ends, and the bytes of the
/// pages.
fn relocate(source: &mut Memory, bytes: u64) -> (Memory, [Duration; 2], usize) {
    let mut target = memory(bytes);
    target.tablets.prepare(ALL, KEY, TableDurability::Cluster, Version(0)).expect("no tablet");
    let since = target.log.begin_side().expect("room");
    let tablets = vec![(ALL, SegmentId(0))];
    let mut partition = Partition::new(OWNER, 0, tablets, (since, false)).in_order();
    source.leaving = Some(Box::new(Leaving::new(1, ALL)));
    let (mut times, mut moved) = ([Duration::ZERO; 2], 0);
    for page in 1.. {
        let from = Clock::now();
        let asked = Asked { page, attempt: 1, from: 1 };
        let bytes = source.page((1, OWNER), asked).expect("a page");
        times[0] += from.elapsed();
        moved += bytes.len();
        let from = Clock::now();
        let Page { progress, entries: page } = Page::parse(&bytes).expect("a page");
        let mut entries = Entries::default();
        while entries.at() < page.len() {
            target
                .replay(&mut partition, (PAGE, page.len()), page, &mut entries, 64 << 10)
                .expect("room");
            target.grow(16);
        }
        times[1] += from.elapsed();
        match progress {
            Progress::Behind => {}
            Progress::Near => source.close_leaving(),
            Progress::Complete => break,
        }
    }
    source.end_leaving(true);
    (target, times, moved)
}

fn main() {
    huge::keep_freed();
    let megabytes = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(256);
    println!("| object | owner, ns each | ns/B | target, ns each | ns/B |");
    println!("| ---: | ---: | ---: | ---: | ---: |");
    for size in [100, 1000] {
        let (mut source, objects) = filled(size, megabytes << 20);
        for _ in 0..ROUNDS {
            let (target, times, moved) = relocate(&mut source, 2 * (megabytes << 20));
            assert_eq!(target.table.len(), objects);
            let [[owner, a], [replay, b]] = times.map(|time| {
                let ns = time.as_nanos() as f64;
                [ns / objects as f64, ns / moved as f64]
            });
            println!("| {size} B | {owner:.0} | {a:.2} | {replay:.0} | {b:.2} |");
        }
    }
}
