//! Pauses between the tries of a transaction that meets conflicts.
//!
//! A pause is an entry of the client without an operation of the store. It ends by the client's
//! clock, and wakes the client as any deadline does.

use sprat_proto::time::US;
use sprat_proto::{Instant, Rng};

use crate::completions::EntryId;

/// The most time before the second try, in nanoseconds: about a round trip over a network.
const FIRST_NS: u64 = 50 * US;
/// The number of tries up to which the most time doubles: to 12.8 ms.
const DOUBLED: u32 = 8;

/// The pauses of a client that are in progress.
#[derive(Debug)]
pub(super) struct Pauses {
    rng: Rng,
    /// The ends of the pauses, with their entries. There are few: one for each task that waits.
    waiting: Vec<(Instant, EntryId)>,
}

impl Pauses {
    pub(super) fn new(rng: Rng) -> Self {
        Self { rng, waiting: Vec::new() }
    }

    /// Returns another source of random numbers.
    pub(super) fn fork_rng(&mut self) -> Rng {
        self.rng.fork()
    }

    /// Returns the end of a pause behind this number of tries: a random time that grows, so that
    /// transactions which met each other do not meet again. `None`: it is past the deadline.
    pub(super) fn after(&mut self, now: Instant, tries: u32, deadline: Instant) -> Option<Instant> {
        let most = FIRST_NS << tries.saturating_sub(1).min(DOUBLED);
        let end = now.after(self.rng.below(most));
        (end < deadline).then_some(end)
    }

    /// Keeps an entry until the end of its pause.
    pub(super) fn wait(&mut self, end: Instant, id: EntryId) {
        self.waiting.push((end, id));
    }

    /// Returns the next end of a pause.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|(end, _)| *end).min()
    }

    /// Returns an entry whose pause has ended.
    pub(super) fn ended(&mut self, now: Instant) -> Option<EntryId> {
        let place = self.waiting.iter().position(|(end, _)| *end <= now)?;
        Some(self.waiting.swap_remove(place).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_end_before_the_deadline() {
        let mut pauses = Pauses::new(Rng::seeded(1));
        let at = Instant::from_ns;
        let mut longest = |tries| {
            let ends = (0..1000).filter_map(|_| pauses.after(at(0), tries, Instant::NEVER));
            ends.max().map_or(0, Instant::as_ns)
        };
        let (first, third, last) = (longest(1), longest(3), longest(1000));
        assert!(first > 40 * US && first < 50 * US, "{first}");
        assert!(third > 150 * US && third < 200 * US, "{third}");
        assert!(last > 12_000 * US && last < 12_800 * US, "{last}");
        assert_eq!(pauses.after(at(5), 1, at(5)), None);
    }

    #[test]
    fn each_pause_ends_once() {
        let mut pauses = Pauses::new(Rng::seeded(1));
        let (a, b) = (EntryId::of_tag(1), EntryId::of_tag(2));
        let at = Instant::from_ns;
        pauses.wait(at(20), a);
        pauses.wait(at(10), b);
        assert_eq!((pauses.deadline(), pauses.ended(at(9))), (Some(at(10)), None));
        assert_eq!((pauses.ended(at(30)), pauses.ended(at(30))), (Some(a), Some(b)));
        assert_eq!((pauses.ended(at(30)), pauses.deadline()), (None, None));
    }
}
