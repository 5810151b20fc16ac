//! The tests `readInterference` and `writeInterference`: operations on objects of several sizes,
//! first of each size alone and then of all sizes at the same time, from one client. They show
//! whether small operations wait behind large ones.

use std::time::Duration;

use sprat::kv::OperationId;
use sprat_proto::Instant;
use sprat_sys::clock::Clock;

use super::super::bench::Bench;
use super::super::measure::{Figures, Sample};
use super::super::report::Row;
use super::tables::{Filled, Shape, key};
use crate::fail::Fail;
use crate::store::Store;

/// Bytes of the values, if the options name none.
const SIZES: [usize; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
/// Objects of each size.
const OBJECTS: u64 = 10;
/// Bytes of a key.
const KEY: usize = 30;

/// Runs one of the tests over all transports.
pub(super) fn run(bench: &mut Bench, name: &str, reads: bool) -> Result<(), Fail> {
    let sizes = bench.sizes(&SIZES);
    let what = if reads { "reads" } else { "overwrites" };
    bench.report.begin(format!(
        "{name}: {what} of several sizes, of each alone and of all at the same time from one client"
    ));
    let mut tables = Vec::new();
    for (number, &size) in sizes.iter().enumerate() {
        tables.push(Filled::fill(bench, number, Shape { objects: OBJECTS, size, key: KEY })?);
    }
    for transport in bench.transports.clone() {
        let store = bench.store(std::slice::from_ref(&transport))?;
        let each = bench.time / u32::from(bench.rounds.max(1));
        let all: Vec<usize> = (0..sizes.len()).collect();
        let alone = all.iter().map(|&at| vec![at]);
        let groups: Vec<Vec<usize>> = alone.chain([all.clone()]).collect();
        // The groups take turns. The first round warms up.
        let mut rounds = vec![Vec::new(); groups.len()];
        for round in 0..=bench.rounds {
            for (group, rounds) in groups.iter().zip(&mut rounds) {
                let samples = at_once(&store, &tables, group, reads, each)?;
                if round > 0 {
                    rounds.push(samples);
                }
            }
        }
        for (group, rounds) in groups.iter().zip(&rounds) {
            let kind = if group.len() == 1 { "alone" } else { "together" };
            for (place, &at) in group.iter().enumerate() {
                let of: Vec<Sample> = rounds.iter().map(|round| round[place].clone()).collect();
                let test = format!("{name}.{kind}");
                let row = Row::new(test, &transport, Some(sizes[at]), &Figures::of(&of));
                bench.report.row(row)?;
            }
        }
    }
    bench.report.end()?;
    tables.into_iter().try_for_each(Filled::end)
}

/// Keeps one operation on each table of `group` in progress for `time`, from one client, and
/// completes at least one on each. Returns a sample of each table of the group.
fn at_once(
    store: &Store,
    tables: &[Filled],
    group: &[usize],
    reads: bool,
    time: Duration,
) -> Result<Vec<Sample>, Fail> {
    let clock = Clock::new();
    let mut samples = vec![Sample::new(); group.len()];
    let mut running: Vec<Option<(OperationId, Instant)>> = vec![None; group.len()];
    let values: Vec<Vec<u8>> = group.iter().map(|&at| vec![b'w'; tables[at].shape.size]).collect();
    let begin = clock.now();
    let end = begin.after(time.as_nanos() as u64);
    let mut now = begin;
    loop {
        for (place, &at) in group.iter().enumerate() {
            let done = samples[place].operations;
            if running[place].is_none() && (now < end || done == 0) {
                let key = key(done % OBJECTS, KEY);
                let table = store.raw().table_by_id(tables[at].table);
                let id = match reads {
                    true => table.start_get(&key).queue(),
                    false => table.start_put(&key, &values[place]).queue(),
                };
                running[place] = Some((id, clock.now()));
            }
        }
        if running.iter().all(Option::is_none) {
            break;
        }
        store.raw().turn_and_rest();
        now = clock.now();
        while let Some((id, outcome)) = store.raw().next_completed() {
            outcome.map_err(|error| store.explain(error, "an operation"))?;
            let of = running.iter().position(|one| one.is_some_and(|(other, _)| other == id));
            let Some(place) = of else { continue };
            if let Some((_, since)) = running[place].take() {
                samples[place].record(now.since(since), values[place].len() as u64);
            }
        }
    }
    for sample in &mut samples {
        sample.elapsed = Duration::from_nanos(now.since(begin));
    }
    Ok(samples)
}
