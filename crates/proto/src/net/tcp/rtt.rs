//! The round-trip time of a connection, and its retransmission timeout (RFC 6298).
//!
//! The letters R, SRTT, RTTVAR, G and K are those of the RFC. Times are in nanoseconds.

use core::num::NonZeroU64;

use crate::Instant;
use crate::time::{MS, SECOND, US};

/// The timeout before the first measurement (RFC 6298 2.1).
pub(super) const INITIAL_NS: u64 = SECOND;
/// The timeout for data after a SYN had to be sent again (RFC 6298 5.7).
const AFTER_SYN_NS: u64 = 3 * SECOND;
/// The granularity of the clock, G.
const GRANULARITY_NS: u64 = US;
/// The factor of RTTVAR in the timeout, K.
const K: u64 = 4;
/// The longest timeout. RFC 6298 2.5 wants at least 60 seconds.
const MAX_NS: u64 = 120 * SECOND;
/// The shortest timeout if the options name none. RFC 6298 2.4 has a second, which is more than
/// links of today need; Linux has 200 ms, and so have we.
pub(super) const MIN_NS: u64 = 200 * MS;
/// The time for which a measurement counts for the least round-trip time (RFC 8985 6.2 step 1).
const LEAST_NS: u64 = 10 * SECOND;

/// The estimate of a connection's round-trip time.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    /// SRTT and RTTVAR, once there was a measurement.
    smoothed: Option<(NonZeroU64, u64)>,
    /// The number of timeouts in a row, each of which doubled the timeout.
    backoff: u8,
    /// True if the SYN was sent again, and no round trip was measured since.
    was_syn_lost: bool,
    /// The least measurement of this period, and of the one before. More than four seconds count as
    /// four.
    least_ns: [u32; 2],
    /// The end of this period.
    period_end: Instant,
}

impl Default for Rtt {
    fn default() -> Self {
        Self {
            smoothed: None,
            backoff: 0,
            was_syn_lost: false,
            least_ns: [u32::MAX; 2],
            period_end: Instant::ZERO,
        }
    }
}

impl Rtt {
    /// Takes a measurement, R, of a segment that was sent once (Karn's algorithm, RFC 6298 3).
    pub(super) fn measure(&mut self, now: Instant, r: u64) {
        let (srtt, rttvar) = match self.smoothed_and_variance() {
            None => (r, r / 2),
            Some((srtt, rttvar)) => {
                let rttvar = (3 * rttvar + srtt.abs_diff(r)) / 4;
                ((7 * srtt + r) / 8, rttvar)
            }
        };
        self.smoothed = Some((NonZeroU64::new(srtt).unwrap_or(NonZeroU64::MIN), rttvar));
        self.backoff = 0;
        self.was_syn_lost = false;
        if now >= self.period_end {
            let is_old = now.since(self.period_end) >= LEAST_NS;
            self.least_ns = [u32::MAX, if is_old { u32::MAX } else { self.least_ns[0] }];
            self.period_end = now.after(LEAST_NS);
        }
        self.least_ns[0] = self.least_ns[0].min(r.min(u64::from(u32::MAX - 1)) as u32);
    }

    fn smoothed_and_variance(&self) -> Option<(u64, u64)> {
        self.smoothed.map(|(srtt, rttvar)| (srtt.get(), rttvar))
    }

    /// Returns SRTT, or `None` before the first measurement.
    pub(super) fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed.map(|(srtt, _)| srtt.get())
    }

    /// Returns RTTVAR, or `None` before the first measurement.
    pub(super) fn variation_ns(&self) -> Option<u64> {
        self.smoothed.map(|(_, rttvar)| rttvar)
    }

    /// Returns the least measurement of the last 10 to 20 seconds, or `None`.
    pub(super) fn least_ns(&self) -> Option<u64> {
        let least = self.least_ns[0].min(self.least_ns[1]);
        (least < u32::MAX).then_some(least.into())
    }

    /// Returns the retransmission timeout, at least `min_ns` once a round trip was measured.
    pub(super) fn timeout_ns(&self, min_ns: u64) -> u64 {
        let base = match self.smoothed_and_variance() {
            None if self.was_syn_lost => AFTER_SYN_NS,
            None => INITIAL_NS,
            Some((srtt, rttvar)) => (srtt + (K * rttvar).max(GRANULARITY_NS)).max(min_ns),
        };
        base.saturating_mul(1 << self.backoff.min(20)).min(MAX_NS)
    }

    /// Doubles the timeout after it expired (RFC 6298 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Takes back all doublings: the peer has acknowledged something new.
    pub(super) fn forget_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Records that the SYN had to be sent again, and that the handshake is over now.
    pub(super) fn syn_was_lost(&mut self) {
        (self.was_syn_lost, self.backoff) = (true, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(measurements: &[u64]) -> Rtt {
        let mut rtt = Rtt::default();
        measurements.iter().for_each(|&r| rtt.measure(Instant::ZERO, r));
        rtt
    }

    #[test]
    fn the_timeout_follows_the_formulas_of_rfc_6298() {
        assert_eq!(after(&[]).timeout_ns(MIN_NS), SECOND, "2.1");
        // 2.2: SRTT = R, RTTVAR = R / 2, RTO = SRTT + K × RTTVAR.
        assert_eq!(after(&[800 * MS]).timeout_ns(0), 2400 * MS);
        // 2.3: RTTVAR = 3/4 × 400 + 1/4 × |800 - 1600|, SRTT = 7/8 × 800 + 1/8 × 1600.
        assert_eq!(after(&[800 * MS, 1600 * MS]).timeout_ns(0), (900 + 4 * 500) * MS);
        assert_eq!(after(&[10 * US]).timeout_ns(MIN_NS), MIN_NS, "2.4");
        // A variance of 0 counts as the granularity of the clock.
        assert_eq!(after(&[8000; 200]).timeout_ns(0), 8000 + GRANULARITY_NS);
    }

    #[test]
    fn the_timeout_doubles_up_to_two_minutes_until_a_measurement() {
        let mut rtt = after(&[800 * MS]);
        rtt.back_off();
        assert_eq!(rtt.timeout_ns(0), 4800 * MS);
        (0..255).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout_ns(0), MAX_NS);
        rtt.measure(Instant::ZERO, 800 * MS);
        assert_eq!(rtt.timeout_ns(0), (800 + 4 * 300) * MS);
    }

    #[test]
    fn a_lost_syn_makes_the_first_timeout_of_data_three_seconds() {
        let mut rtt = Rtt::default();
        rtt.back_off();
        assert_eq!(rtt.timeout_ns(MIN_NS), 2 * SECOND);
        rtt.syn_was_lost();
        assert_eq!(rtt.timeout_ns(MIN_NS), 3 * SECOND);
        rtt.measure(Instant::ZERO, MS);
        assert_eq!(rtt.timeout_ns(MIN_NS), MIN_NS);
    }

    #[test]
    fn the_least_round_trip_is_forgotten_after_a_while() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.least_ns(), None);
        let at = |seconds| Instant::from_ns(seconds * SECOND);
        for (second, r, least) in
            [(1, 50, 50), (2, 40, 40), (3, 70, 40), (12, 60, 40), (15, 55, 40), (23, 58, 55)]
        {
            rtt.measure(at(second), r);
            assert_eq!(rtt.least_ns(), Some(least), "{second} s");
        }
        rtt.measure(at(90), 99);
        assert_eq!(rtt.least_ns(), Some(99));
    }
}
