//! The times in which processes answered requests, from their counters.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sprat_proto::node::{ANSWERED, ANSWERED_MOST_NS};

/// The number of requests that were answered, by time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Answers {
    /// The number of requests by the longest time in nanoseconds that their counter counts.
    /// `u64::MAX`: longer than by all other counters.
    counts: BTreeMap<u64, u64>,
    ns: u64,
}

impl Answers {
    /// Returns the answers that the counters of a process count.
    pub(crate) fn of(counters: &Map<String, Value>) -> Self {
        let mut answers = Self::default();
        for (name, value) in counters {
            let Some(time) = name.strip_prefix(ANSWERED) else { continue };
            let Some(value) = value.as_u64() else { continue };
            match (time, time.strip_suffix("ns").and_then(|ns| ns.parse().ok())) {
                ("ns", _) => answers.ns = value,
                ("longer", _) => _ = answers.counts.insert(u64::MAX, value),
                (_, Some(ns)) => _ = answers.counts.insert(ns, value),
                _ => {}
            }
        }
        answers
    }

    /// Returns the answers without those of an earlier time.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let count = |ns: &u64| earlier.counts.get(ns).copied().unwrap_or(0);
        let counts = self.counts.iter().map(|(ns, n)| (*ns, n.saturating_sub(count(ns))));
        Self { counts: counts.collect(), ns: self.ns.saturating_sub(earlier.ns) }
    }

    /// Adds the answers of another process.
    pub(crate) fn add(&mut self, other: &Self) {
        for (ns, count) in &other.counts {
            *self.counts.entry(*ns).or_default() += count;
        }
        self.ns += other.ns;
    }

    /// Returns the time in nanoseconds that a share of the requests from 0 to 1 took at most, or
    /// none if there are no requests. Within the times of one counter, requests count as evenly
    /// spread.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let total: u64 = self.counts.values().sum();
        let mut left = share * total as f64;
        let mut longest = None;
        for (&ns, &count) in self.counts.iter().filter(|(_, count)| **count > 0) {
            // Where no counter ends, the time is at least that of the last one.
            let (from, to) = match ns {
                u64::MAX => (ANSWERED_MOST_NS as f64, ANSWERED_MOST_NS as f64),
                _ => (ns as f64 / 2.0, ns as f64),
            };
            longest = Some(to);
            if left <= count as f64 {
                return Some(from + (to - from) * left / count as f64);
            }
            left -= count as f64;
        }
        longest
    }

    /// Returns true if nothing was answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the lines of a Prometheus histogram after its name: each line's suffix, the bound of
    /// its bucket in seconds, and its value.
    pub(crate) fn histogram(&self) -> Vec<(&'static str, Option<String>, String)> {
        let mut lines = Vec::new();
        let mut total = 0;
        for (ns, count) in &self.counts {
            total += count;
            if *ns < u64::MAX {
                let bound = (*ns as f64 / 1e9).to_string();
                lines.push(("_bucket", Some(bound), total.to_string()));
            }
        }
        lines.push(("_bucket", Some("+Inf".to_owned()), total.to_string()));
        lines.push(("_sum", None, (self.ns as f64 / 1e9).to_string()));
        lines.push(("_count", None, total.to_string()));
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answers(value: &Value) -> Answers {
        Answers::of(value.as_object().expect("an object"))
    }

    #[test]
    fn quantiles_are_between_the_bounds_of_a_counter() {
        let some = answers(&json!({
            "reads": 9, "answered_1024ns": 50, "answered_4096ns": 40, "answered_longer": 10,
            "answered_ns": 7,
        }));
        let of = |share| some.quantile(share);
        assert_eq!(of(0.25), Some(768.0));
        assert_eq!(of(0.5), Some(1_024.0));
        assert_eq!(of(0.7), Some(3_072.0));
        assert_eq!(of(0.99), Some(f64::from(1 << 30)));
        assert_eq!(Answers::default().quantile(0.5), None);
    }

    #[test]
    fn answers_of_a_time_and_of_several_processes() {
        let before = answers(&json!({ "answered_1024ns": 50, "answered_ns": 7 }));
        let mut after = answers(&json!({
            "answered_1024ns": 60, "answered_2048ns": 5, "answered_ns": 9,
        }));
        let passed = json!({ "answered_1024ns": 10, "answered_2048ns": 5, "answered_ns": 2 });
        assert_eq!(after.since(&before), answers(&passed));
        after.add(&before);
        let sum = json!({ "answered_1024ns": 110, "answered_2048ns": 5, "answered_ns": 16 });
        assert_eq!(after, answers(&sum));
    }
}
