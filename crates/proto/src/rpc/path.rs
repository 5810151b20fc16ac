//! The path to one peer over a driver that loses packets: RFC 6298's round-trip estimate, and a
//! delay-based window in the manner of Swift.
//!
//! Always: only long messages count against the window. Not here: which message is sent next.

use crate::Instant;
use crate::time::US;
use crate::wire::rpc::{ECHO, Packet};

/// The path to one peer: its round-trip time and its window.
#[derive(Debug)]
pub(super) struct Path {
    /// The last timestamp of the peer's clock in microseconds, and the time when it arrived.
    peer_ts_us: u16,
    peer_ts_at: Option<Instant>,
    /// The smoothed round-trip time in nanoseconds; 0 until there is a sample.
    pub(super) srtt_ns: u64,
    rttvar_ns: u64,
    /// The shortest round trip to the peer, in nanoseconds.
    base_ns: u64,
    /// The window: the number of bytes of long messages that may be unacknowledged.
    pub(super) window: u32,
    pub(super) in_flight: u32,
    /// Number of bytes of long messages sent since the receiver was last asked to acknowledge.
    unasked: u32,
    /// The path's window is not reduced again before this time.
    reduced_until: Instant,
    /// The time when the peer last acknowledged bytes of long messages.
    acked_at: Instant,
}

const WINDOW_MIN: u32 = 32 << 10;
const WINDOW_MAX: u32 = 8 << 20;
const WINDOW_STEP: u32 = 16 << 10;
/// An echoed timestamp older than this is ambiguous, because the 16-bit clock wraps.
const ECHO_LIMIT_US: u64 = 30_000;

impl Path {
    pub(super) const fn new() -> Self {
        Self {
            peer_ts_us: 0,
            peer_ts_at: None,
            srtt_ns: 0,
            rttvar_ns: 0,
            base_ns: u64::MAX,
            window: WINDOW_MAX,
            in_flight: 0,
            unasked: 0,
            reduced_until: Instant::ZERO,
            acked_at: Instant::ZERO,
        }
    }

    /// Records the timestamp of a packet that arrived, and measures the round trip if the packet
    /// echoes a timestamp of ours.
    pub(super) fn record_timestamps(
        &mut self,
        now: Instant,
        ts_us: u16,
        echo_us: Option<u16>,
        target_ns: u64,
    ) {
        self.peer_ts_us = ts_us;
        self.peer_ts_at = Some(now);
        let Some(echo_us) = echo_us else { return };
        let rtt_us = stamp_us(now).wrapping_sub(echo_us);
        if u64::from(rtt_us) < 2 * ECHO_LIMIT_US {
            self.sample(now, u64::from(rtt_us).max(1) * US, target_ns);
        }
    }

    /// The timestamp to echo to the peer: its clock now, if its last timestamp is recent.
    #[inline]
    fn echo_us(&self, now: Instant) -> Option<u16> {
        let held_us = now.since(self.peer_ts_at?) / US;
        (held_us < ECHO_LIMIT_US).then(|| self.peer_ts_us.wrapping_add(held_us as u16))
    }

    /// The timestamps of a packet that is sent now: this side's clock, and the peer's clock to be
    /// echoed.
    #[inline]
    pub(super) fn stamps(&self, now: Instant) -> (u16, Option<u16>) {
        (stamp_us(now), self.echo_us(now))
    }

    /// Writes the timestamps of the path into a packet that is sent now.
    #[inline]
    pub(super) fn stamp(&self, now: Instant, packet: &mut Packet) {
        let (ts_us, echo_us) = self.stamps(now);
        packet.ts_us = ts_us;
        if let Some(echo_us) = echo_us {
            packet.flags |= ECHO;
            packet.ts_echo_us = echo_us;
        }
    }

    /// The probe timeout in nanoseconds: the estimate of RFC 6298, whose term for the variance is
    /// at least `floor_ns`.
    pub(super) fn pto_ns(&self, floor_ns: u64) -> u64 {
        self.srtt_ns + (4 * self.rttvar_ns).max(floor_ns)
    }

    /// True if the path's window has room for another full packet of a long message.
    pub(super) const fn has_room(&self) -> bool {
        self.in_flight < self.window
    }

    /// True if the packet with the next `len` bytes of a long message must ask for an
    /// acknowledgement: twice a window, and with the packet that fills it. Grants are too rare for
    /// a small window, and none follow once everything is granted.
    pub(super) const fn asks(&self, len: u32) -> bool {
        self.unasked.saturating_add(len) >= self.window / 2
            || self.in_flight.saturating_add(len) >= self.window
    }

    /// Records that `len` bytes of a long message were sent on the path for the first time.
    pub(super) const fn record_sent(&mut self, len: u32) {
        self.unasked = if self.asks(len) { 0 } else { self.unasked + len };
        self.in_flight = self.in_flight.saturating_add(len);
    }

    /// Records that `bytes` bytes of long messages on the path were acknowledged or given up.
    pub(super) fn record_acked(&mut self, now: Instant, bytes: u32) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if bytes > 0 {
            self.acked_at = now;
        }
    }

    /// True if no byte of a long message on the path was acknowledged for `pto_ns`. The bytes in
    /// flight have then arrived or are lost.
    pub(super) fn is_stalled(&self, now: Instant, pto_ns: u64) -> bool {
        now.since(self.acked_at) >= pto_ns
    }

    /// Reduces the path's window because packets of a long message were lost.
    pub(super) fn record_loss(&mut self, now: Instant) {
        if now >= self.reduced_until {
            self.window = (self.window / 2).max(WINDOW_MIN);
            self.reduced_until = now.after(self.srtt_ns);
        }
    }

    fn sample(&mut self, now: Instant, rtt_ns: u64, target_ns: u64) {
        self.base_ns = self.base_ns.min(rtt_ns);
        if self.srtt_ns == 0 {
            self.srtt_ns = rtt_ns;
            self.rttvar_ns = rtt_ns / 2;
            return;
        }
        // RFC 6298 2.3, with its gains of 1/4 and 1/8.
        self.rttvar_ns = (3 * self.rttvar_ns + self.srtt_ns.abs_diff(rtt_ns)) / 4;
        self.srtt_ns = (7 * self.srtt_ns + rtt_ns) / 8;
        let queued_ns = rtt_ns - self.base_ns;
        if queued_ns <= target_ns {
            self.window = (self.window + WINDOW_STEP).min(WINDOW_MAX);
        } else if now >= self.reduced_until {
            // Swift's decrease: in proportion to the excess, at most by half, once a round trip.
            let excess = (queued_ns - target_ns).saturating_mul(1000) / queued_ns;
            let keep = 1000 - (excess * 8 / 10).min(500);
            self.window = ((u64::from(self.window) * keep / 1000) as u32).max(WINDOW_MIN);
            self.reduced_until = now.after(self.srtt_ns);
        }
    }
}

/// The low 16 bits of a clock in microseconds.
#[inline]
pub(super) fn stamp_us(now: Instant) -> u16 {
    (now.as_ns() / US) as u16
}
