//! CUBIC (RFC 9438): the window is a cubic function of the time since the last loss, which is flat
//! near the window at which that loss came.
//!
//! ```text
//!  W_cubic(t) = C (t - K)³ + W_max    C = 0.4 segments / s³, K = ∛((W_max - W_epoch) / C)
//!  W_est      = what Reno would have, with its mean window at the same loss rate
//! ```
//! Windows are in bytes, times in microseconds.

use crate::Instant;
use crate::time::US;

/// C is this number over 10 (RFC 9438 5).
const C_TENTHS: u128 = 4;
/// The factor by which a loss closes the window, beta_cubic, is this number over 10.
const BETA_TENTHS: u64 = 7;
/// The segments that Reno gains a round trip by its estimate, alpha_cubic, are this number over 17:
/// 3 (1 - beta) / (1 + beta).
const ALPHA_17THS: u64 = 9;
/// The cube of the microseconds in a second.
const CUBIC_SECOND: u128 = 1_000_000_000_000_000_000;
/// The longest time since a loss that counts, in microseconds, so that no cube overflows.
const LONGEST_US: u64 = 1 << 36;

/// The state of CUBIC.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// W_max: the window before the last loss, less if the one before that was larger.
    max: u32,
    /// The window before the last loss, cwnd_prior.
    prior: u32,
    /// The current period of congestion avoidance, if there is one.
    epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// K in microseconds.
    k_us: u64,
    /// W_max, or the window at the start if that is larger.
    origin: u32,
    /// W_est in bytes, and the fraction of a byte beyond, over the window.
    reno: u32,
    fraction: u64,
}

impl Cubic {
    /// Returns the window in congestion avoidance after an acknowledgement of `bytes`.
    pub(super) fn acked(
        &mut self,
        now: Instant,
        bytes: u32,
        rtt_ns: u64,
        window: u32,
        mss: u32,
    ) -> u32 {
        let (max, prior) = (self.max, self.prior);
        let epoch = self.epoch.get_or_insert_with(|| {
            let below = max.saturating_sub(window);
            let cube = u128::from(below) * 10 * CUBIC_SECOND / (C_TENTHS * u128::from(mss));
            let (k_us, origin) = (cube_root(cube), max.max(window));
            Epoch { start: now, k_us, origin, reno: window, fraction: 0 }
        });
        epoch.reno(bytes, window, prior, mss);
        let t_us = (now.since(epoch.start) / US).min(LONGEST_US);
        if epoch.cubic(t_us, mss) < u64::from(epoch.reno) {
            return window.max(epoch.reno);
        }
        // What the window shall be after a round trip, at most half more.
        let later = epoch.cubic(t_us + (rtt_ns / US).min(LONGEST_US), mss);
        let target = later.clamp(window.into(), u64::from(window) * 3 / 2);
        let gain = (target - u64::from(window)) * u64::from(bytes) / u64::from(window.max(1));
        u64::from(window).saturating_add(gain).min(target).min(u32::MAX.into()) as u32
    }

    /// Ends the period after a loss. Returns the window that shall be.
    pub(super) fn reduce(&mut self, window: u32, flight: u32) -> u32 {
        self.epoch = None;
        // Fast convergence: make room for new flows (RFC 9438 4.7).
        self.max = if window < self.max {
            (u64::from(window) * (10 + BETA_TENTHS) / 20) as u32
        } else {
            window
        };
        self.prior = window;
        (u64::from(flight) * BETA_TENTHS / 10) as u32
    }

    /// Ends the period: time without data to send is no time of congestion avoidance.
    pub(super) fn idle(&mut self) {
        self.epoch = None;
    }
}

impl Epoch {
    /// Returns W_cubic in bytes, `t_us` microseconds after the start.
    fn cubic(&self, t_us: u64, mss: u32) -> u64 {
        let distance = u128::from(t_us.abs_diff(self.k_us));
        let cube = distance * distance * distance;
        let bytes =
            (cube / 10 * C_TENTHS / 1_000_000 * u128::from(mss)) / (CUBIC_SECOND / 1_000_000);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let origin = u64::from(self.origin);
        if t_us < self.k_us { origin.saturating_sub(bytes) } else { origin.saturating_add(bytes) }
    }

    /// Lets W_est gain for `bytes` that were acknowledged (RFC 9438 4.3).
    fn reno(&mut self, bytes: u32, window: u32, prior: u32, mss: u32) {
        // From the window before the loss on, Reno itself would gain a segment a round trip.
        let (by, of) = if self.reno >= prior { (1, 1) } else { (ALPHA_17THS, 17) };
        let window = u64::from(window.max(1)) * of;
        self.fraction += by * u64::from(bytes) * u64::from(mss);
        let gain = self.fraction / window;
        self.fraction %= window;
        self.reno = self.reno.saturating_add(u32::try_from(gain).unwrap_or(u32::MAX));
    }
}

/// Returns the largest number whose cube is at most `cube`.
fn cube_root(cube: u128) -> u64 {
    let mut root = 0_u64;
    for bit in (0..42).rev() {
        let next = root | 1 << bit;
        if u128::from(next) * u128::from(next) * u128::from(next) <= cube {
            root = next;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{MS, SECOND};

    const MSS: u32 = 1000;

    /// Lets `seconds` pass in round trips of `rtt_ns`, each of which acknowledges a window.
    fn pass(cubic: &mut Cubic, now: &mut Instant, mut window: u32, ns: u64, rtt_ns: u64) -> u32 {
        let end = now.after(ns);
        while *now < end {
            *now = now.after(rtt_ns);
            let mut left = window;
            while left > 0 {
                let bytes = left.min(2 * MSS);
                left -= bytes;
                window = cubic.acked(*now, bytes, rtt_ns, window, MSS);
            }
        }
        window
    }

    #[test]
    fn the_cube_root_is_exact() {
        for n in [0_u128, 1, 2, 99, 4217, 1 << 40] {
            let cube = n * n * n;
            assert_eq!(u128::from(cube_root(cube)), n);
            assert!(cube == 0 || u128::from(cube_root(cube - 1)) == n - 1);
        }
    }

    /// RFC 9438 4.2: K seconds after a loss the window is W_max again, and it grew slowest there.
    #[test]
    fn the_window_returns_to_that_of_the_loss_after_k() {
        let (mut cubic, mut now) = (Cubic::default(), Instant::from_ns(SECOND));
        let after = cubic.reduce(1000 * MSS, 1000 * MSS);
        assert_eq!(after, 700 * MSS);
        // K = ∛(300 / 0.4) = 9.086 s.
        let near = pass(&mut cubic, &mut now, after, 8 * SECOND, 100 * MS);
        assert_eq!(cubic.epoch.unwrap().k_us / 1000, 9085);
        let at = pass(&mut cubic, &mut now, near, SECOND + 86 * MS, 100 * MS);
        assert!((995..1005).contains(&(at / MSS)), "{at}");
        assert!(at - near < 3 * MSS, "flat: {near} to {at}");
        let beyond = pass(&mut cubic, &mut now, at, 9 * SECOND, 100 * MS);
        // 1000 + 0.4 × 9³
        assert!((1270..1310).contains(&(beyond / MSS)), "{beyond}");
    }

    /// RFC 9438 4.3: where Reno is faster, as on short paths, the window is Reno's.
    #[test]
    fn the_window_is_never_below_that_of_reno() {
        let (mut cubic, mut now) = (Cubic::default(), Instant::from_ns(SECOND));
        let after = cubic.reduce(20 * MSS, 20 * MSS);
        let trips = 100;
        let window = pass(&mut cubic, &mut now, after, trips * MS, MS);
        // 14 + 9/17 a round trip until 20, then 1 a round trip.
        let wanted = 20 + (trips as u32 - 12);
        assert!((wanted - 3..=wanted + 1).contains(&(window / MSS)), "{window}, {wanted}");
    }

    #[test]
    fn a_flow_that_loses_below_its_last_maximum_makes_room() {
        let mut cubic = Cubic::default();
        cubic.reduce(100 * MSS, 100 * MSS);
        assert_eq!(cubic.max, 100 * MSS);
        cubic.reduce(80 * MSS, 80 * MSS);
        assert_eq!(cubic.max, 68 * MSS, "80 × (1 + 0.7) / 2");
        cubic.reduce(90 * MSS, 90 * MSS);
        assert_eq!(cubic.max, 90 * MSS);
    }

    #[test]
    fn nothing_overflows() {
        let mut cubic = Cubic::default();
        cubic.reduce(u32::MAX, u32::MAX);
        assert!(cubic.acked(Instant::ZERO, u32::MAX, u64::MAX, 1, 65_535) > 0);
        for now in [1, SECOND, u64::MAX - 1] {
            cubic.acked(Instant::from_ns(now), u32::MAX, u64::MAX, u32::MAX, 65_535);
        }
    }
}
