//! The clocks of simulated hosts, which differ from true time.

use sprat_proto::Instant;

/// The clock of a simulated host: it started at another time than those of other hosts, and runs at
/// a slightly different speed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) ahead_ns: u64,
    /// The speed of the clock in millionths of true time.
    pub(crate) ppm: u64,
}

impl Clock {
    /// Returns the time that the clock shows at the true time `truth`.
    pub(crate) fn local(self, truth: Instant) -> Instant {
        let ns = u128::from(truth.as_ns()) * u128::from(self.ppm) / 1_000_000;
        Instant::from_ns(self.ahead_ns + ns as u64)
    }

    /// Returns the first true time at which the clock shows `local` or more.
    pub(crate) fn truth(self, local: Instant) -> Instant {
        if local == Instant::NEVER {
            return local;
        }
        let ns = u128::from(local.as_ns().saturating_sub(self.ahead_ns)) * 1_000_000;
        Instant::from_ns(u64::try_from(ns.div_ceil(u128::from(self.ppm))).unwrap_or(u64::MAX))
    }
}
