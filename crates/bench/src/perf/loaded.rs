//! The test `loaded`: an open-loop generator offers reads at a rate, whether the server keeps up or
//! not.
//!
//! Arrivals are a Poisson process. The latency of a read counts from its arrival, not from the
//! moment at which the busy client sends it, so that time in a queue counts (no coordinated
//! omission). The rates are fractions of the rate of a closed loop. A second series has reads of 1
//! MB beside.

use std::time::Duration;

use sprat::kv::{OperationId, TableId};
use sprat_proto::{Instant, Rng};

use super::basic::{Objects, Set, key};
use super::bench::Bench;
use super::measure::{Lane, Sample, in_turns};
use super::report::Row;
use crate::fail::Fail;

/// Offered rates in percent of the closed loop's rate.
const LEVELS: [u32; 7] = [10, 30, 50, 70, 80, 90, 100];
/// Bytes of a small object, and of a large one.
const SIZES: [usize; 2] = [100, 1_000_000];
/// Number of large objects in their table.
const LARGE: u64 = 20;
/// Rate of the large reads, in percent of their rate in a closed loop.
const LARGE_LEVEL: u32 = 20;
/// Most reads in progress. Further reads wait, and their latency counts on.
const MOST: usize = 1024;

/// Runs the test `loaded` over all transports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let small = Set::fill(bench, SIZES[0], bench.objects(SIZES[0]))?;
    let large = Set::fill(bench, SIZES[1], LARGE)?;
    for transport in bench.transports.clone() {
        bench.report.begin(format!("loaded: reads of 100 B against offered load, {transport}"));
        let mut objects = small.over(bench, &transport)?;
        let big = large.over(bench, &transport)?.table;
        let peak = rate(objects.read_many(bench.outstanding, bench.time / 2)?);
        let mut others = large.over(bench, &transport)?;
        let big_peak = rate(others.read(bench.time / 2)?);
        drop(others);
        let streams = [None, Some((big, big_peak * f64::from(LARGE_LEVEL) / 100.0))];
        for (name, beside) in ["loaded", "loaded.mixed"].into_iter().zip(streams) {
            levels(bench, &mut objects, &transport, name, peak, beside)?;
        }
        bench.report.end()?;
    }
    small.end()?;
    large.end()
}

fn rate(sample: Sample) -> f64 {
    sample.operations as f64 / sample.elapsed.as_secs_f64().max(1e-9)
}

/// Measures reads at each of [`LEVELS`], in turns.
fn levels(
    bench: &mut Bench,
    objects: &mut Objects,
    transport: &str,
    name: &str,
    peak: f64,
    beside: Option<(TableId, f64)>,
) -> Result<(), Fail> {
    let objects = std::cell::RefCell::new(objects);
    let objects = &objects;
    let offered = |level: u32| peak * f64::from(level) / 100.0;
    let lane = |level: u32| -> Lane<'_> {
        Box::new(move |time| offer(&mut objects.borrow_mut(), offered(level), beside, time))
    };
    let mut lanes: Vec<Lane<'_>> = LEVELS.iter().map(|&level| lane(level)).collect();
    let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
    for (level, figures) in LEVELS.iter().zip(&figures) {
        let row = Row::new(format!("{name}.{level}"), transport, Some(SIZES[0]), figures);
        bench.report.row(row.under_load().offered(offered(*level)))?;
    }
    Ok(())
}

/// The times at which reads arrive, a Poisson process.
pub(super) struct Arrivals {
    mean_ns: f64,
    /// The next arrival.
    pub(super) next: Instant,
}

impl Arrivals {
    /// Begins the process at `from`.
    pub(super) fn new(per_second: f64, from: Instant, rng: &mut Rng) -> Self {
        let mut arrivals = Self { mean_ns: 1e9 / per_second.max(1e-3), next: from };
        arrivals.step(rng);
        arrivals
    }

    /// Goes on to the next arrival.
    pub(super) fn step(&mut self, rng: &mut Rng) {
        // In (0, 1], so that the logarithm is finite.
        let uniform = (rng.u32() as f64 + 1.0) / (f64::from(u32::MAX) + 1.0);
        self.next = self.next.after((-uniform.ln() * self.mean_ns) as u64);
    }
}

/// Least number of reads that a level offers on average. Without it, a tenth of a busy machine's
/// rate could be one read in 10 ms, and a level without reads has no figures.
const LEAST: f64 = 20.0;
/// Longest time that a level is extended to, in seconds, to reach [`LEAST`] reads.
const LONGEST_S: f64 = 5.0;

/// Offers reads of small objects at a rate, and reads of large ones too if `beside` is given. The
/// sample has the times of the small reads.
fn offer(
    objects: &mut Objects,
    per_second: f64,
    beside: Option<(TableId, f64)>,
    time: Duration,
) -> Result<Sample, Fail> {
    let mut sample = Sample::new();
    let begin = objects.clock.now();
    let least = Duration::from_secs_f64((LEAST / per_second.max(1.0)).min(LONGEST_S));
    let end = begin.after(time.max(least).as_nanos() as u64);
    let mut small = Arrivals::new(per_second, begin, &mut objects.rng);
    let mut large =
        beside.map(|(table, rate)| (table, Arrivals::new(rate, begin, &mut objects.rng)));
    let mut since: Vec<Option<(OperationId, Instant)>> = vec![None; MOST + 1];
    let mut in_flight = 0;
    let mut now = begin;
    loop {
        while small.next <= now && small.next < end && in_flight < MOST {
            let key = key(objects.rng.below(objects.count));
            let op = objects.table().start_get(&key).queue();
            if op.index() >= since.len() {
                since.resize(op.index() + 1, None);
            }
            since[op.index()] = Some((op, small.next));
            in_flight += 1;
            small.step(&mut objects.rng);
        }
        if let Some((table, arrivals)) = &mut large
            && arrivals.next <= now
            && arrivals.next < end
            && in_flight < MOST
        {
            let key = key(objects.rng.below(LARGE));
            objects.store.raw().table_by_id(*table).start_get(&key).queue();
            in_flight += 1;
            arrivals.step(&mut objects.rng);
        }
        objects.store.raw().turn();
        now = objects.clock.now();
        while let Some((op, outcome)) = objects.store.raw().next_completed() {
            outcome.map_err(|error| objects.store.explain(error, "a read"))?;
            in_flight -= 1;
            if let Some((_, since)) =
                since.get_mut(op.index()).and_then(|at| at.take_if(|at| at.0 == op))
            {
                sample.record(now.since(since), SIZES[0] as u64);
            }
        }
        if in_flight == 0 && small.next >= end {
            break;
        }
    }
    sample.elapsed = Duration::from_nanos(now.since(begin));
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_at_the_rate_and_at_random() {
        let mut rng = Rng::seeded(3);
        let mut arrivals = Arrivals::new(1000.0, Instant::ZERO, &mut rng);
        let (mut gaps, mut last) = (Vec::new(), Instant::ZERO);
        for _ in 0..20_000 {
            gaps.push(arrivals.next.since(last) as f64);
            last = arrivals.next;
            arrivals.step(&mut rng);
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let spread =
            (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean - 1e6).abs() < 3e4, "{mean}");
        assert!(
            (spread / mean - 1.0).abs() < 0.05,
            "the spread of an exponential is its mean: {}",
            spread / mean
        );
    }
}
