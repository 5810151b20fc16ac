//! The rate at which requests access the objects of a server, from its renewals.
//!
//! Invariant: a rate is that of a whole interval between two renewals, whose begin is known. So a
//! rate from before a tablet moved is not taken for one of the present tablets.

use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

/// The shortest interval between two renewals of which there is a rate. A renewal that is repeated
/// after a lost reply follows the first one at once.
const SHORTEST_NS: u64 = 20 * MS;

/// The rate of accesses to the objects of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    /// The time of the last renewal that ends an interval, and the accesses up to then.
    last: Option<(Instant, u64)>,
    /// The begin of the last whole interval, and the accesses in a second of it.
    known: Option<(Instant, u64)>,
}

impl Rate {
    /// Takes the number of accesses up to a renewal.
    pub(super) fn renewed(&mut self, now: Instant, accesses: u64) {
        if let Some((begin, before)) = self.last {
            let ns = now.since(begin);
            if ns < SHORTEST_NS {
                return;
            }
            let count = u128::from(accesses.saturating_sub(before));
            let rate = count * u128::from(SECOND) / u128::from(ns);
            self.known = Some((begin, u64::try_from(rate).unwrap_or(u64::MAX)));
        }
        self.last = Some((now, accesses));
    }

    /// Returns the accesses in a second between the last two renewals, 0 if there were none.
    pub(super) fn latest(&self) -> u64 {
        self.known.map_or(0, |(_, rate)| rate)
    }

    /// Returns the begin of the interval of the latest rate.
    pub(super) fn began(&self) -> Option<Instant> {
        self.known.map(|(began, _)| began)
    }

    /// Returns the latest rate, if its interval has begun at the time `at` or later.
    pub(super) fn since(&self, at: Instant) -> Option<u64> {
        self.known.filter(|(begin, _)| *begin >= at).map(|(_, rate)| rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_interval_between_two_renewals() {
        let at = |ms: u64| Instant::from_ns(ms * MS);
        let mut rate = Rate::default();
        rate.renewed(at(1000), 500);
        assert_eq!((rate.latest(), rate.since(at(0))), (0, None), "the begin alone");
        rate.renewed(at(1500), 1500);
        assert_eq!((rate.latest(), rate.since(at(1000))), (2000, Some(2000)));
        assert_eq!(rate.since(at(1001)), None, "it has begun before");
        rate.renewed(at(1510), 1520);
        assert_eq!(rate.latest(), 2000, "the renewal is repeated");
        rate.renewed(at(2500), 1500);
        assert_eq!(rate.latest(), 0);
        rate.renewed(at(2600), 0);
        rate.renewed(at(2700), u64::MAX);
        assert_eq!(rate.latest(), u64::MAX, "whatever a server says");
    }
}
