//! The test `echo_workload`: echoes whose sizes follow a distribution, offered at a rate of bytes a
//! second, whether the server keeps up or not.
//!
//! The file of the distribution is ClusterPerf's: a first number, the average, which is not used;
//! then pairs of a size in bytes and the share of messages that are not longer, both ascending.
//! Arrivals are a Poisson process, and a time counts from the arrival, as in `loaded`.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use sprat_proto::{Instant, Rng};
use sprat_sys::clock::Clock;

use super::super::bench::Bench;
use super::super::echo::{EchoClient, failure};
use super::super::loaded::Arrivals;
use super::super::measure::{Figures, Sample};
use super::super::row::{Distribution, Row};
use crate::fail::{Fail, Named as _};
use crate::ycsb::zipf::uniform;

/// Most echoes in progress. Further ones wait, and their time counts on.
const MOST: usize = 256;
/// Bytes up to which messages share a row of results. The last row has all longer ones.
const CLASSES: [usize; 5] = [100, 1000, 10_000, 100_000, usize::MAX];
/// Longest message of a distribution in bytes.
const LONGEST: usize = 10_000_000;

/// A distribution of sizes: bytes, and the share of messages that are not longer.
#[derive(Clone, PartialEq, Debug)]
struct Sizes(Vec<(usize, f64)>);

impl Sizes {
    /// Reads the distribution from the text of a file.
    fn read(text: &str) -> Result<Self, &'static str> {
        let numbers: Option<Vec<f64>> =
            text.split_whitespace().map(|word| word.parse().ok()).collect();
        let numbers = numbers.ok_or("a word is not a number")?;
        let Some((_average, pairs)) = numbers.split_first() else { return Err("it is empty") };
        if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
            return Err("behind the first number there are no pairs of size and share");
        }
        let points: Vec<(usize, f64)> =
            pairs.chunks_exact(2).map(|pair| (pair[0] as usize, pair[1])).collect();
        if points.iter().any(|(size, share)| *size > LONGEST || !(0.0..=1.0).contains(share)) {
            return Err("a size is above 10 MB, or a share is not between 0 and 1");
        }
        if points.windows(2).any(|two| two[0].0 >= two[1].0 || two[0].1 > two[1].1) {
            return Err("sizes and shares do not ascend");
        }
        Ok(Self(points))
    }

    /// Returns the size at `share`, a number in 0..1.
    fn at(&self, share: f64) -> usize {
        let found = self.0.iter().find(|(_, up_to)| share < *up_to).or_else(|| self.0.last());
        found.map_or(0, |(size, _)| *size)
    }

    fn longest(&self) -> usize {
        self.0.last().map_or(0, |(size, _)| *size)
    }

    /// Returns the mean size in bytes.
    fn mean(&self) -> f64 {
        let mut before = 0.0;
        let weigh = |(size, share): &(usize, f64)| {
            let weight = share - before;
            before = *share;
            weight * *size as f64
        };
        self.0.iter().map(weigh).sum()
    }
}

/// Runs the test over all transports.
pub(super) fn run(bench: &mut Bench, file: Option<&Path>, gbps: f64) -> Result<(), Fail> {
    let Some(file) = file else {
        return Err(Fail::usage("echo-workload needs a distribution of sizes")
            .next("name its file with --message-sizes"));
    };
    let text =
        std::fs::read_to_string(file).named(format_args!("cannot read {}", file.display()))?;
    let sizes =
        Sizes::read(&text).map_err(|what| Fail::usage(format!("{}: {what}", file.display())))?;
    let rate = gbps * 1e9 / 8.0 / sizes.mean().max(1.0);
    bench.report.begin(format!(
        "echo_workload: echoes of {:.0} B on average at {gbps} Gbit/s each way, by their size",
        sizes.mean()
    ));
    for transport in bench.transports.clone() {
        let at = bench.echo_at(&transport)?;
        let mut echo = EchoClient::open(&at, bench.local.own()?, sizes.longest(), MOST)?;
        let each = bench.time / u32::from(bench.rounds.max(1));
        let mut rounds = Vec::new();
        // The first round warms up.
        for round in 0..=bench.rounds {
            let samples = offer(&mut echo, &sizes, rate, each, u64::from(round))?;
            if round > 0 {
                rounds.push(samples);
            }
        }
        for (class, bytes) in CLASSES.iter().enumerate() {
            let of: Vec<Sample> = rounds.iter().map(|round| round[class].clone()).collect();
            if of.iter().all(|sample| sample.operations == 0) {
                continue;
            }
            let (size, figures) = ((*bytes).min(sizes.longest()), Figures::of(&of));
            let row = Row::new("echo_workload", &transport, Some(size), &figures).offered(rate);
            bench.report.row_with(row, &Distribution::of(&figures))?;
        }
    }
    bench.report.end()
}

/// Offers echoes for `time`, and at least one. Returns a sample of each of [`CLASSES`].
fn offer(
    echo: &mut EchoClient,
    sizes: &Sizes,
    per_second: f64,
    time: Duration,
    seed: u64,
) -> Result<Vec<Sample>, Fail> {
    let (clock, mut rng) = (Clock::new(), Rng::seeded(seed));
    let mut samples = vec![Sample::new(); CLASSES.len()];
    let mut running = HashMap::<_, (usize, Instant)>::new();
    let begin = clock.now();
    let end = begin.after(time.as_nanos() as u64);
    let mut arrivals = Arrivals::new(per_second, begin, &mut rng);
    let (mut now, mut started) = (begin, 0);
    while arrivals.next < end || started == 0 || !running.is_empty() {
        while arrivals.next <= now && (arrivals.next < end || started == 0) && running.len() < MOST
        {
            let size = sizes.at(uniform(&mut rng));
            running.insert(echo.start(started, size), (size, arrivals.next));
            started += 1;
            arrivals.step(&mut rng);
        }
        echo.turn();
        now = clock.now();
        while let Some((rpc, outcome)) = echo.completed() {
            outcome.map_err(failure)?;
            let Some((size, since)) = running.remove(&rpc) else { continue };
            let class = CLASSES.iter().position(|most| size <= *most).unwrap_or_default();
            samples[class].record(now.since(since), size as u64);
        }
    }
    for sample in &mut samples {
        sample.elapsed = Duration::from_nanos(now.since(begin));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_read_and_drawn() {
        let sizes = Sizes::read("275.0\n50 0.5\n100 0.75\n1000 1.0\n").expect("a distribution");
        assert!((sizes.mean() - 300.0).abs() < 1e-9, "{}", sizes.mean());
        let drawn = [0.0, 0.49, 0.5, 0.74, 0.75, 0.999].map(|share| sizes.at(share));
        assert_eq!(drawn, [50, 50, 100, 100, 1000, 1000]);
        assert_eq!(sizes.longest(), 1000);
    }

    #[test]
    fn other_files_are_refused() {
        for text in ["", "5", "5 1", "5 x 1", "5 10 0.5 9 1", "5 10 0.5 11 0.4", "5 10 2"] {
            assert!(Sizes::read(text).is_err(), "{text:?}");
        }
    }
}
