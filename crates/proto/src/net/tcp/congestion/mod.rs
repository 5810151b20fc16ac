//! Congestion control: the congestion window of a connection, and the slow start threshold
//! (RFC 5681).
//!
//! | file | algorithm |
//! | --- | --- |
//! | this one | slow start, Reno, the initial window (RFC 6928), the window after idleness |
//! | `cubic` | CUBIC (RFC 9438) |
//! | `dctcp` | DCTCP (RFC 8257) |
//!
//! Elsewhere: which segments are lost, and how many to send during a recovery (`recovery`).

mod cubic;
mod dctcp;

use super::seq::Seq;
use crate::Instant;
use cubic::Cubic;
use dctcp::Dctcp;

/// The segments of full size that a connection may send before the first acknowledgement
/// (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
/// The bytes that the initial window has at least, if that is not less than two segments.
const INITIAL_BYTES: u32 = 14_600;
/// The segments by which one acknowledgement opens the window in slow start at most. RFC 5681 has 1
/// and RFC 3465 has 2, for receivers that acknowledge every second segment; those that take
/// segments of 64 KB together acknowledge all of them at once. RFC 9406 has 8.
const MOST_SLOW_START: u32 = 8;
/// The segments that the window has at least after a loss (RFC 5681 equation 4).
const LEAST_SEGMENTS: u32 = 2;

/// The algorithm by which a connection opens and closes its congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum CongestionControl {
    /// Reno: a segment a round trip more, half after a loss (RFC 5681).
    Reno,
    /// CUBIC: a cubic function of the time since the last loss (RFC 9438).
    #[default]
    Cubic,
    /// DCTCP: Reno, but closed by the share of packets that the network has marked (RFC 8257). It
    /// is for networks within which both ends have it, and whose switches mark packets beyond a
    /// short queue. A connection that does not agree on ECN has Reno instead.
    Dctcp,
}

#[derive(Clone, Debug)]
enum Algorithm {
    /// The bytes acknowledged since the window was opened last.
    Reno(u32),
    Cubic(Cubic),
    /// Reno's bytes too.
    Dctcp(u32, Dctcp),
}

/// The congestion window of a connection.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u32,
    threshold: u32,
    mss: u32,
    algorithm: Algorithm,
}

/// New data that a peer has acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    pub(super) now: Instant,
    pub(super) bytes: u32,
    /// The smoothed round-trip time in nanoseconds.
    pub(super) rtt_ns: u64,
}

impl Congestion {
    pub(super) fn new(control: CongestionControl, mss: u32) -> Self {
        let algorithm = match control {
            CongestionControl::Reno => Algorithm::Reno(0),
            CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionControl::Dctcp => Algorithm::Dctcp(0, Dctcp::default()),
        };
        Self { window: initial(mss), threshold: u32::MAX, mss, algorithm }
    }

    /// Returns the congestion window in bytes.
    pub(super) const fn window(&self) -> u32 {
        self.window
    }

    /// Returns the slow start threshold in bytes.
    pub(super) const fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Sets the length of segments, which has changed. Shorter segments are as many as the long
    /// ones were, so that they are no burst (RFC 5681 3.1).
    pub(super) fn set_mss(&mut self, mss: u32) {
        if mss < self.mss {
            let window = u64::from(self.window) * u64::from(mss) / u64::from(self.mss.max(1));
            self.window = window as u32;
        }
        self.mss = mss;
        self.window = self.window.max(mss);
    }

    /// Sets the window while a recovery decides about it.
    pub(super) fn set_window(&mut self, bytes: u32) {
        self.window = bytes.max(self.mss);
    }

    /// Begins with a window of one segment: the SYN or its answer was lost (RFC 5681 3.1).
    pub(super) fn syn_was_lost(&mut self) {
        self.window = self.mss;
    }

    /// Opens the window after an acknowledgement of new data. Call it only while the window, and
    /// not the program, limits what is sent.
    pub(super) fn acked(&mut self, acked: Acked) {
        let mut acked = acked;
        if self.window < self.threshold {
            let room = self.threshold - self.window;
            let grown = acked.bytes.min(MOST_SLOW_START * self.mss).min(room);
            self.window = self.window.saturating_add(grown);
            if self.window < self.threshold {
                return;
            }
            acked.bytes -= grown;
        }
        match &mut self.algorithm {
            Algorithm::Reno(counted) | Algorithm::Dctcp(counted, _) => {
                *counted = counted.saturating_add(acked.bytes);
                if *counted >= self.window {
                    *counted -= self.window;
                    self.window = self.window.saturating_add(self.mss);
                }
            }
            Algorithm::Cubic(cubic) => {
                self.window =
                    cubic.acked(acked.now, acked.bytes, acked.rtt_ns, self.window, self.mss);
            }
        }
    }

    /// Takes an acknowledgement of `bytes` up to `una`, for the share of marked bytes. `next` is
    /// SND.NXT.
    pub(super) fn observe(&mut self, bytes: u32, is_marked: bool, una: Seq, next: Seq) {
        if let Algorithm::Dctcp(_, dctcp) = &mut self.algorithm {
            dctcp.acked(bytes, is_marked, una, next);
        }
    }

    /// Closes the window after a report of congestion, while `flight` bytes were in flight.
    pub(super) fn reduce_marked(&mut self, flight: u32) {
        if let Algorithm::Dctcp(counted, dctcp) = &mut self.algorithm {
            *counted = 0;
            self.threshold = dctcp.reduce(self.window).max(LEAST_SEGMENTS * self.mss);
        } else {
            self.reduce(flight);
        }
        self.set_window(self.threshold);
    }

    /// Closes the window after a loss while `flight` bytes were in
    /// flight: the threshold is what the window shall be. The window itself is the recovery's.
    pub(super) fn reduce(&mut self, flight: u32) {
        let target = match &mut self.algorithm {
            Algorithm::Reno(counted) | Algorithm::Dctcp(counted, _) => {
                *counted = 0;
                flight / 2
            }
            Algorithm::Cubic(cubic) => cubic.reduce(self.window, flight),
        };
        self.threshold = target.max(LEAST_SEGMENTS * self.mss);
    }

    /// Closes the window to one segment after the retransmission timeout. `is_first` is false if
    /// the timeout expires again without progress between (RFC 5681 3.1).
    pub(super) fn timeout(&mut self, flight: u32, is_first: bool) {
        if is_first {
            self.reduce(flight);
        }
        self.window = self.mss;
    }

    /// Closes the window to the initial one after an idle time longer than the retransmission
    /// timeout (RFC 5681 4.1).
    pub(super) fn idle(&mut self) {
        self.window = self.window.min(initial(self.mss));
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.idle();
        }
    }
}

/// Returns the initial window for segments of `mss` bytes.
fn initial(mss: u32) -> u32 {
    (INITIAL_SEGMENTS * mss).min(INITIAL_BYTES.max(LEAST_SEGMENTS * mss))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MS;

    const MSS: u32 = 1000;

    fn ack(bytes: u32) -> Acked {
        Acked { now: Instant::ZERO, bytes, rtt_ns: 100 * MS }
    }

    #[test]
    fn the_initial_window_is_that_of_rfc_6928() {
        assert_eq!(
            [536, 1460, 7300, 9000, 65_000].map(initial),
            [5360, 14_600, 14_600, 18_000, 130_000]
        );
    }

    #[test]
    fn slow_start_doubles_and_reno_adds_a_segment_a_round_trip() {
        let mut c = Congestion::new(CongestionControl::Reno, MSS);
        for wanted in [20, 40, 80] {
            for _ in 0..c.window() / (2 * MSS) {
                c.acked(ack(2 * MSS));
            }
            assert_eq!(c.window(), wanted * MSS);
        }
        c.reduce(60 * MSS);
        assert_eq!(c.threshold(), 30 * MSS);
        c.set_window(c.threshold());
        for wanted in 31..40 {
            for _ in 0..c.window() / MSS {
                c.acked(ack(MSS));
            }
            assert_eq!(c.window(), wanted * MSS);
        }
    }

    #[test]
    fn slow_start_ends_at_the_threshold() {
        let mut c = Congestion::new(CongestionControl::Reno, MSS);
        c.reduce(25 * MSS);
        c.set_window(10 * MSS);
        c.acked(ack(8 * MSS));
        assert_eq!(c.window(), 12_500, "the rest counts as congestion avoidance");
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_halves_once() {
        let mut c = Congestion::new(CongestionControl::Reno, MSS);
        c.timeout(8 * MSS, true);
        assert_eq!((c.window(), c.threshold()), (MSS, 4 * MSS));
        c.timeout(MSS, false);
        assert_eq!((c.window(), c.threshold()), (MSS, 4 * MSS));
        c.timeout(MSS, true);
        assert_eq!(c.threshold(), 2 * MSS, "at least two segments");
    }

    #[test]
    fn idleness_takes_a_large_window_away_and_opens_none() {
        let mut c = Congestion::new(CongestionControl::Cubic, MSS);
        c.set_window(100 * MSS);
        c.idle();
        assert_eq!(c.window(), initial(MSS));
        c.set_window(MSS);
        c.idle();
        assert_eq!(c.window(), MSS);
    }
}
