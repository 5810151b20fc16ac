//! Measuring: samples of one round, turns between the lanes that are compared, medians over the
//! rounds.
//!
//! The machine is shared and its speed drifts. So all figures of a row take turns (floor, kernel
//! TCP, product, floor, …), a fraction of the time each, and each figure is the median of its
//! rounds: a disturbance spoils a round, not the result. Minimum and maximum are those of all
//! rounds.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::fail::Fail;

/// The longest time that a sample records, in nanoseconds. A longer time counts as this one.
const LONGEST_NS: u64 = 100_000_000_000;

/// The measurements of one lane in one round, or in a part of it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    latencies: Histogram<u64>,
    /// Number of operations that the lane completed.
    pub(crate) operations: u64,
    /// Payload bytes that the lane moved in one direction.
    pub(crate) bytes: u64,
    /// The time that the sample's operations took.
    pub(crate) elapsed: Duration,
}

impl Sample {
    /// Makes a sample without operations.
    pub(crate) fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .expect("the bounds are constant and valid");
        Self { latencies, operations: 0, bytes: 0, elapsed: Duration::ZERO }
    }

    /// Returns the operations of all samples, which ran at the same time.
    pub(crate) fn of_all<'s>(samples: impl IntoIterator<Item = &'s Self>) -> Self {
        let mut all = Self::new();
        samples.into_iter().for_each(|sample| all.add(sample));
        all
    }

    /// Adds one operation that took `ns` and moved `bytes`.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64, bytes: u64) {
        self.latencies.saturating_record(ns.max(1));
        self.operations += 1;
        self.bytes += bytes;
    }

    /// Adds the operations of `other`, which ran at the same time as those of this sample.
    pub(crate) fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies).expect("all samples have the same bounds");
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.elapsed = self.elapsed.max(other.elapsed);
    }

    /// Returns the median of the sample's times in µs. `None` if it has no times.
    pub(crate) fn p50_us(&self) -> Option<f64> {
        (!self.latencies.is_empty()).then(|| self.quantile_us(0.5))
    }

    /// Returns the sample's payload bytes a second. `None` if it moved none.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        (self.bytes > 0 && !self.elapsed.is_zero())
            .then(|| self.bytes as f64 / self.elapsed.as_secs_f64())
    }

    fn us(ns: f64) -> f64 {
        ns / 1e3
    }

    fn quantile_us(&self, q: f64) -> f64 {
        Self::us(self.latencies.value_at_quantile(q) as f64)
    }
}

/// The figures of a lane over its rounds. A time is `None` if the lane timed no operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Number of operations in all rounds.
    pub(crate) count: u64,
    /// Mean time of an operation in µs: the median over the rounds.
    pub(crate) avg_us: Option<f64>,
    /// The shortest time of an operation in all rounds, in µs.
    pub(crate) min_us: Option<f64>,
    /// Median time of an operation in µs: the median over the rounds.
    pub(crate) p50_us: Option<f64>,
    /// 90th percentile of an operation's time in µs: the median over the rounds.
    pub(crate) p90_us: Option<f64>,
    /// 99th percentile of an operation's time in µs: the median over the rounds.
    pub(crate) p99_us: Option<f64>,
    /// 99.9th percentile of an operation's time in µs: the median over the rounds.
    pub(crate) p999_us: Option<f64>,
    /// The longest time of an operation in all rounds, in µs.
    pub(crate) max_us: Option<f64>,
    /// Payload bytes a second: the median over the rounds.
    pub(crate) bytes_per_s: Option<f64>,
    /// Operations a second: the median over the rounds.
    pub(crate) ops_per_s: Option<f64>,
    /// The distribution of the times of all rounds: a time in µs, and the share of operations that
    /// took no longer. The points lie closer to each other towards the end.
    pub(crate) times: Vec<(f64, f64)>,
}

impl Figures {
    /// Divides every time of the figures by `n`.
    pub(crate) fn times_by(mut self, n: f64) -> Self {
        for us in [
            &mut self.avg_us,
            &mut self.min_us,
            &mut self.p50_us,
            &mut self.p90_us,
            &mut self.p99_us,
            &mut self.p999_us,
            &mut self.max_us,
        ] {
            *us = us.map(|us| us / n);
        }
        self.times.iter_mut().for_each(|(us, _)| *us /= n);
        self
    }

    /// Computes the figures of a lane from its rounds.
    pub(crate) fn of(rounds: &[Sample]) -> Self {
        let timed: Vec<&Sample> = rounds.iter().filter(|s| !s.latencies.is_empty()).collect();
        let middle = |f: &dyn Fn(&Sample) -> f64| median(timed.iter().map(|s| f(s)));
        let rate = |f: &dyn Fn(&Sample) -> u64| {
            let ran = rounds.iter().filter(|s| !s.elapsed.is_zero());
            median(ran.map(|s| f(s) as f64 / s.elapsed.as_secs_f64()))
        };
        Self {
            count: rounds.iter().map(|s| s.operations).sum(),
            avg_us: middle(&|s| Sample::us(s.latencies.mean())),
            min_us: timed.iter().map(|s| Sample::us(s.latencies.min() as f64)).reduce(f64::min),
            p50_us: middle(&|s| s.quantile_us(0.5)),
            p90_us: middle(&|s| s.quantile_us(0.9)),
            p99_us: middle(&|s| s.quantile_us(0.99)),
            p999_us: middle(&|s| s.quantile_us(0.999)),
            max_us: timed.iter().map(|s| Sample::us(s.latencies.max() as f64)).reduce(f64::max),
            bytes_per_s: rate(&|s| s.bytes),
            ops_per_s: rate(&|s| s.operations),
            times: distribution(&timed),
        }
    }
}

/// Points of a distribution in each half of what is left of it.
const POINTS: u32 = 12;

/// Returns the distribution of the times of all samples.
fn distribution(samples: &[&Sample]) -> Vec<(f64, f64)> {
    let Some((first, rest)) = samples.split_first() else { return Vec::new() };
    let mut all = first.latencies.clone();
    for sample in rest {
        all.add(&sample.latencies).expect("all samples have the same bounds");
    }
    let points = all.iter_quantiles(POINTS);
    points.map(|at| (Sample::us(at.value_iterated_to() as f64), at.quantile())).collect()
}

/// Returns the median of the values; with an even number of values, the mean of the two middle
/// ones. `None` if there are no values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// A lane: a function that measures for about the given time.
pub(crate) type Lane<'l> = Box<dyn FnMut(Duration) -> Result<Sample, Fail> + 'l>;

/// Measures the lanes in turns, `rounds` times each. `total` is the time of one lane over all
/// rounds. A short first round of each lane does not count.
pub(crate) fn in_turns(
    lanes: &mut [Lane<'_>],
    rounds: u16,
    total: Duration,
) -> Result<Vec<Figures>, Fail> {
    Ok(samples_in_turns(lanes, rounds, total)?.iter().map(|s| Figures::of(s)).collect())
}

/// Measures the lanes as [`in_turns`] does, and returns each lane's samples, one a round.
pub(crate) fn samples_in_turns(
    lanes: &mut [Lane<'_>],
    rounds: u16,
    total: Duration,
) -> Result<Vec<Vec<Sample>>, Fail> {
    let each = total / u32::from(rounds.max(1));
    for lane in lanes.iter_mut() {
        lane(each / 5)?;
    }
    let mut samples = vec![Vec::new(); lanes.len()];
    for _ in 0..rounds {
        for (lane, samples) in lanes.iter_mut().zip(&mut samples) {
            samples.push(lane(each)?);
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ns: &[u64], elapsed_ms: u64) -> Sample {
        let mut sample = Sample::new();
        ns.iter().for_each(|&ns| sample.record(ns, 100));
        sample.elapsed = Duration::from_millis(elapsed_ms);
        sample
    }

    #[test]
    fn a_disturbed_round_does_not_count() {
        let rounds =
            [sample(&[1000, 1000], 1), sample(&[90_000, 100_000], 50), sample(&[1200, 1200], 1)];
        let figures = Figures::of(&rounds);
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < b * 0.002);
        assert!(close(figures.p50_us, 1.2), "{figures:?}");
        assert!(close(figures.min_us, 1.0) && close(figures.max_us, 100.0), "{figures:?}");
        assert!(
            close(figures.ops_per_s, 2000.0) && close(figures.bytes_per_s, 200_000.0),
            "{figures:?}"
        );
        assert_eq!(figures.count, 6);
        let (first, last) = (figures.times[0], figures.times[figures.times.len() - 1]);
        assert!(close(Some(first.0), 1.0) && close(Some(last.0), 100.0), "{figures:?}");
        assert!(figures.times.windows(2).all(|pair| pair[0] <= pair[1]) && last.1 == 1.0);
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        let figures = Figures::of(&[]);
        assert_eq!((figures.count, figures.p50_us, figures.ops_per_s), (0, None, None));
        assert_eq!(median([3.0, 1.0]), Some(2.0));
    }

    #[test]
    fn lanes_take_turns() {
        let order = std::cell::RefCell::new(String::new());
        let lane = |name: char| -> Lane<'_> {
            let order = &order;
            Box::new(move |for_how_long| {
                order.borrow_mut().push(name);
                let mut sample = Sample::new();
                sample.record(for_how_long.as_nanos() as u64, 0);
                Ok(sample)
            })
        };
        let figures = in_turns(&mut [lane('a'), lane('b')], 3, Duration::from_millis(3))
            .expect("nothing fails");
        assert_eq!(*order.borrow(), "abababab");
        assert_eq!(figures.iter().map(|f| f.count).collect::<Vec<_>>(), [3, 3]);
        assert!(figures[0].p50_us.is_some_and(|us| (us - 1000.0).abs() < 2.0));
    }
}
