//! DCTCP (RFC 8257): the window closes by as much as the share of the bytes that were marked, for
//! networks whose switches mark packets beyond a short queue.
//!
//! ```text
//!  M     = bytes acknowledged with a report of a mark / bytes acknowledged, in a window
//!  Alpha = Alpha (1 - g) + g M        g = 1/16
//!  cwnd  = cwnd (1 - Alpha / 2)       at most once a window
//! ```
//! Names in capitals are those of the RFC.

use super::super::seq::Seq;

/// The value of [`Dctcp::alpha`] that stands for 1.
const ONE: u32 = 1 << 20;
/// The shift of the estimation gain, g (RFC 8257 4.2).
const GAIN_SHIFT: u32 = 4;

/// The state of DCTCP.
#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    /// The estimate of the share of bytes that experience congestion (DCTCP.Alpha).
    alpha: u32,
    /// The bytes acknowledged in this window, and those of them that were marked
    /// (DCTCP.BytesAcked, DCTCP.BytesMarked).
    acked: u32,
    marked: u32,
    /// The end of this window (DCTCP.WindowEnd), once something was acknowledged.
    end: Option<Seq>,
}

impl Default for Dctcp {
    /// Returns the state of a new connection: the first mark halves the window (RFC 8257 3.3).
    fn default() -> Self {
        Self { alpha: ONE, acked: 0, marked: 0, end: None }
    }
}

impl Dctcp {
    /// Takes an acknowledgement of `bytes` up to `una`. `next` is SND.NXT.
    pub(super) fn acked(&mut self, bytes: u32, is_marked: bool, una: Seq, next: Seq) {
        self.acked = self.acked.saturating_add(bytes);
        if is_marked {
            self.marked = self.marked.saturating_add(bytes);
        }
        let end = *self.end.get_or_insert(una - bytes);
        if end.reaches(una) {
            return;
        }
        let share = u64::from(self.marked) * u64::from(ONE) / u64::from(self.acked.max(1));
        // Rounded down, so that the estimate reaches 0.
        let kept = u64::from(self.alpha) * ((1 << GAIN_SHIFT) - 1);
        self.alpha = ((kept + share) >> GAIN_SHIFT) as u32;
        (self.end, self.acked, self.marked) = (Some(next), 0, 0);
    }

    /// Returns the window that shall be after a mark.
    pub(super) fn reduce(&self, window: u32) -> u32 {
        let less = u64::from(window) * u64::from(self.alpha) / u64::from(2 * ONE);
        window - less as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a window of ten segments of 1,000 bytes pass, of which some are marked.
    fn pass(dctcp: &mut Dctcp, una: &mut Seq, marked: u32) {
        let next = *una + 10_000;
        for n in 0..10 {
            *una = *una + 1000;
            // The window ends behind the first acknowledgement beyond its end.
            dctcp.acked(1000, n < marked, *una, next + 1000 * (n + 1));
        }
    }

    /// RFC 8257 3.3, steps 5 and 6, by hand.
    #[test]
    fn alpha_follows_the_equation() {
        let mut dctcp = Dctcp { alpha: ONE / 2, ..Dctcp::default() };
        let start = Seq(u32::MAX - 5000);
        dctcp.end = Some(start + 3999);
        dctcp.acked(1000, true, start + 1000, start + 9000);
        dctcp.acked(1500, false, start + 2500, start + 9000);
        assert_eq!((dctcp.alpha, dctcp.acked, dctcp.marked), (ONE / 2, 2500, 1000));
        dctcp.acked(1500, false, start + 4000, start + 9000);
        // 1/2 × 15/16 + 1/16 × 1000/4000
        assert_eq!(dctcp.alpha, ONE / 32 * 15 + ONE / 64);
        assert_eq!((dctcp.acked, dctcp.marked, dctcp.end), (0, 0, Some(start + 9000)));
    }

    /// The estimate becomes the share of marked bytes, and 0 without marks.
    #[test]
    fn alpha_approaches_the_share() {
        for marked in [0, 1, 3, 10] {
            let (mut dctcp, mut una) = (Dctcp::default(), Seq(7));
            (0..300).for_each(|_| pass(&mut dctcp, &mut una, marked));
            let wanted = ONE / 10 * marked;
            assert!(dctcp.alpha.abs_diff(wanted) <= ONE / 64, "{} of {wanted}", dctcp.alpha);
        }
        let (mut dctcp, mut una) = (Dctcp::default(), Seq(7));
        (0..300).for_each(|_| pass(&mut dctcp, &mut una, 0));
        assert_eq!(dctcp.alpha, 0);
    }

    /// RFC 8257 3.3 step 9.
    #[test]
    fn the_window_closes_by_half_of_alpha() {
        for (alpha, wanted) in [(ONE, 5000), (ONE / 2, 7500), (ONE / 10, 9501), (0, 10_000)] {
            let dctcp = Dctcp { alpha, ..Dctcp::default() };
            assert_eq!(dctcp.reduce(10_000), wanted);
        }
    }

    #[test]
    fn nothing_overflows() {
        let mut dctcp = Dctcp::default();
        (0..5).for_each(|n| dctcp.acked(u32::MAX, true, Seq(n), Seq(n)));
        assert!(dctcp.alpha <= ONE && dctcp.reduce(u32::MAX) >= u32::MAX / 2);
    }
}
