//! The times in which a node answers requests.
//!
//! A time begins with the turn that received the request. It ends with the turn, or with a later
//! one that gives the reply to its transport. So it has the replicas, the disk and the other
//! requests of the turn, but neither the network nor the wait before the turn.

use alloc::string::String;
use alloc::vec::Vec;

/// The prefix of the names of a node's counters of answers. The longest time in nanoseconds that
/// the counter counts follows, or `longer`.
pub const ANSWERED: &str = "answered_";
/// The longest time in nanoseconds that the first counter counts. Each further one counts times up
/// to twice as long.
const FIRST_NS: u64 = 512;
/// The number of counters with a longest time.
const BOUNDED: usize = 22;
/// The longest time in nanoseconds that a counter counts which is not `longer`: 1.07 s.
pub const ANSWERED_MOST_NS: u64 = FIRST_NS << (BOUNDED - 1);

/// The number of requests that a node answered, by time.
#[derive(Debug, Default)]
pub(super) struct Answers {
    counts: [u64; BOUNDED + 1],
    ns: u64,
}

impl Answers {
    /// Counts `count` requests that were answered in `ns` nanoseconds each.
    #[inline]
    pub(super) fn count(&mut self, ns: u64, count: u32) {
        let above = ns.saturating_sub(1) / FIRST_NS;
        let place = (u64::BITS - above.leading_zeros()) as usize;
        self.counts[place.min(BOUNDED)] += u64::from(count);
        self.ns += ns * u64::from(count);
    }

    /// Returns the names and values of the counters that are not zero.
    pub(super) fn counters(&self) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        for (place, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let name = match place {
                BOUNDED => alloc::format!("{ANSWERED}longer"),
                _ => alloc::format!("{ANSWERED}{}ns", FIRST_NS << place),
            };
            counters.push((name, count));
        }
        if self.ns > 0 {
            counters.push((alloc::format!("{ANSWERED}ns"), self.ns));
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_up_to_powers_of_two() {
        let mut answers = Answers::default();
        for ns in [0, 1, 512, 513, 1_024, 1_025, 1 << 30, (1 << 30) + 1, 3 << 40] {
            answers.count(ns, 1);
        }
        answers.count(2_000, 7);
        let counters = answers.counters();
        let names: Vec<_> = counters.iter().map(|(name, count)| (&**name, *count)).collect();
        let ns: u64 = 512 + 513 + 1_024 + 1_025 + (1 << 31) + (3 << 40) + 14_000 + 2;
        let expected = [
            ("answered_512ns", 3),
            ("answered_1024ns", 2),
            ("answered_2048ns", 8),
            ("answered_1073741824ns", 1),
            ("answered_longer", 2),
            ("answered_ns", ns),
        ];
        assert_eq!(names, expected);
    }
}
