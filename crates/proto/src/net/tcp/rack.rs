//! Loss detection by time (RACK) and the tail loss probe (TLP): RFC 8985. Names in capitals are
//! those of the RFC.
//!
//! A segment is lost if one that was sent sufficiently later has been delivered.

use super::rtt::Rtt;
use super::scoreboard::{Scoreboard, Sent};
use super::seq::Seq;
use crate::Instant;

/// The number of SACKed segments that proves a loss while no reordering was seen (DupThresh).
const DUP_THRESHOLD: u32 = 3;
/// The recoveries after which the reordering window is the initial one again.
const PERSIST: u8 = 16;

/// The state of RACK.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// The time of transmission and the end of the segment sent last among those delivered, or
    /// [`Instant::NEVER`] if there is none
    /// (RACK.xmit_ts, RACK.end_seq).
    newest_at: Instant,
    newest_end: Seq,
    /// The round-trip time of that segment in nanoseconds (RACK.rtt).
    rtt_ns: u64,
    /// The highest end of a segment delivered (RACK.fack), unless nothing was.
    highest: Seq,
    order: Order,
    /// The factor of the reordering window (RACK.reo_wnd_mult), and the recoveries for which it
    /// holds.
    factor: u8,
    persist: u8,
    /// The end of the round trip in which a duplicate was reported (RACK.dsack_round), if one was.
    duplicate_round: Seq,
    is_duplicate_round: bool,
}

/// The order in which segments were delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// Nothing was delivered.
    Unknown,
    Kept,
    /// A segment that was sent once was delivered after one with a higher number.
    Broken,
}

impl Default for Rack {
    fn default() -> Self {
        Self {
            newest_at: Instant::NEVER,
            newest_end: Seq(0),
            rtt_ns: 0,
            highest: Seq(0),
            order: Order::Unknown,
            factor: 1,
            persist: PERSIST,
            duplicate_round: Seq(0),
            is_duplicate_round: false,
        }
    }
}

impl Rack {
    /// Takes a segment that was delivered now (RFC 8985 6.2 steps 2 and 3). `echoed` is true if the
    /// acknowledgement echoes a time of before the segment's last transmission, so that an earlier
    /// transmission was delivered.
    pub(super) fn delivered(&mut self, now: Instant, sent: &Sent, echoed: bool, rtt: &Rtt) {
        let end = sent.end();
        if self.order != Order::Unknown && end.is_before(self.highest) {
            if !sent.is_again {
                self.order = Order::Broken;
            }
        } else {
            self.highest = end;
            if self.order == Order::Unknown {
                self.order = Order::Kept;
            }
        }
        let took_ns = now.since(sent.at);
        if sent.is_again && (echoed || rtt.least_ns().is_some_and(|least| took_ns < least)) {
            return;
        }
        self.rtt_ns = took_ns;
        if self.newest().is_none_or(|newest| is_later((sent.at, end), newest)) {
            (self.newest_at, self.newest_end) = (sent.at, end);
        }
    }

    fn newest(&self) -> Option<(Instant, Seq)> {
        (self.newest_at < Instant::NEVER).then_some((self.newest_at, self.newest_end))
    }

    /// Takes the reports of duplicates (RFC 8985 6.2 step 4).
    pub(super) fn duplicates(&mut self, una: Seq, next: Seq, has_duplicate: bool) {
        self.is_duplicate_round &= una.is_before(self.duplicate_round);
        if has_duplicate && !self.is_duplicate_round {
            (self.duplicate_round, self.is_duplicate_round) = (next, true);
            self.factor = self.factor.saturating_add(1);
            self.persist = PERSIST;
        }
    }

    /// Records the end of a recovery.
    pub(super) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            (self.factor, self.persist) = (1, PERSIST);
        }
    }

    /// Declares segments lost (RFC 8985 6.2 step 5). Returns the number of their bytes, and the
    /// time at which more will be unless they are delivered before.
    pub(super) fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        rtt: &Rtt,
        is_recovering: bool,
    ) -> (u32, Option<Instant>) {
        let Some(newest) = self.newest() else { return (0, None) };
        let wait_ns = self.rtt_ns.saturating_add(self.window_ns(board, rtt, is_recovering));
        let mut next: Option<Instant> = None;
        let bytes = board.declare(|sent| {
            if !is_later(newest, (sent.at, sent.end())) {
                // Those behind it that were sent once were sent later still.
                return sent.is_again.then_some(false);
            }
            let at = sent.at.after(wait_ns);
            if at > now && !sent.is_lost {
                next = next.max(Some(at));
            }
            Some(at <= now)
        });
        (bytes, next)
    }

    /// Declares lost what the expiry of the retransmission timeout proves lost: the first segment,
    /// and those sent long enough ago (RFC 8985 6.3).
    pub(super) fn timeout(&self, now: Instant, board: &mut Scoreboard, rtt: &Rtt, una: Seq) -> u32 {
        let wait_ns = self.rtt_ns.saturating_add(self.window_ns(board, rtt, true));
        board.declare(|sent| Some(sent.seq == una || sent.at.after(wait_ns) <= now))
    }

    /// Returns the time by which segments may overtake each other, RACK.reo_wnd.
    fn window_ns(&self, board: &Scoreboard, rtt: &Rtt, is_recovering: bool) -> u64 {
        if self.order != Order::Broken
            && (is_recovering || board.sacked_segments() >= DUP_THRESHOLD)
        {
            return 0;
        }
        let least = rtt.least_ns().unwrap_or(0);
        (u64::from(self.factor) * (least / 4)).min(rtt.smoothed_ns().unwrap_or(0))
    }
}

/// Returns true if `a` was sent after `b`: times and ends of segments (RACK_sent_after).
fn is_later(a: (Instant, Seq), b: (Instant, Seq)) -> bool {
    a.0 > b.0 || a.0 == b.0 && b.1.is_before(a.1)
}

/// A probe whose fate is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    /// The probe sent new data.
    New,
    /// The probe sent a segment again (TLP.is_retrans).
    Again,
}

/// The state of the tail loss probe.
#[derive(Clone, Debug, Default)]
pub(super) struct TailProbe {
    outstanding: Option<Probe>,
    /// SND.NXT after the last probe (TLP.end_seq).
    end: Seq,
    /// True until a round trip is measured after a probe.
    needs_measurement: bool,
}

impl TailProbe {
    /// Returns true if a probe may be sent: the fate of the last one is known, and a round trip was
    /// measured since (RFC 8985 7.3).
    pub(super) const fn may_be_sent(&self) -> bool {
        self.outstanding.is_none() && !self.needs_measurement
    }

    /// Records that a round trip was measured.
    pub(super) const fn measured(&mut self) {
        self.needs_measurement = false;
    }

    /// Records that a probe was sent. `next` is SND.NXT after it.
    pub(super) fn sent(&mut self, next: Seq, is_again: bool) {
        self.outstanding = Some(if is_again { Probe::Again } else { Probe::New });
        (self.end, self.needs_measurement) = (next, true);
    }

    /// Forgets the probe: the retransmission timeout or a recovery takes over.
    pub(super) fn forget(&mut self) {
        self.outstanding = None;
    }

    /// Takes an acknowledgement up to `ack` (RFC 8985 7.4.2). Returns true if the probe repaired a
    /// loss that nothing else has shown, so that the congestion window has to close.
    pub(super) fn acknowledged(
        &mut self,
        ack: Seq,
        duplicate: Option<Seq>,
        is_plain_duplicate: bool,
    ) -> bool {
        let Some(probe) = self.outstanding else { return false };
        if !ack.reaches(self.end) {
            return false;
        }
        let was_repaired = if probe == Probe::New || duplicate == Some(self.end) {
            false
        } else if self.end.is_before(ack) {
            true
        } else if is_plain_duplicate {
            false
        } else {
            // The probe is acknowledged. Whether the original arrived too shows later, if at all.
            return false;
        };
        self.outstanding = None;
        was_repaired
    }
}

#[cfg(test)]
mod tests;
