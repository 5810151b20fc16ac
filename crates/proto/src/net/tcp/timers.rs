//! The timers of a connection, and what it counts by time.

use crate::Instant;

/// The times at which a connection has something to do. [`Instant::NEVER`] stops a timer.
#[derive(Clone, Debug)]
pub(super) struct Timers {
    /// The retransmission timeout (RFC 6298).
    pub(super) retransmit: Instant,
    /// The tail loss probe (PTO in RFC 8985).
    pub(super) probe: Instant,
    /// The end of RACK's reordering window for the segments that wait for it.
    pub(super) reorder: Instant,
    /// The probe of a window that is closed (RFC 9293 3.8.6.1).
    pub(super) persist: Instant,
    pub(super) delayed_ack: Instant,
    /// The end of TIME-WAIT.
    pub(super) life: Instant,
    pub(super) keep_alive: Instant,
    /// The last time at which the peer has acknowledged something new, or had nothing to.
    pub(super) progress: Instant,
    /// The second in which challenge acknowledgements are counted, and their number (RFC 5961 7).
    pub(super) challenge_second: u32,
    pub(super) challenges: u8,
    /// The number of expiries of the retransmission timeout, or of probes of a closed window, in a
    /// row.
    pub(super) retries: u8,
    /// The timer that has expired, whose segment the next transmission sends.
    pub(super) wants: Wanted,
}

/// A segment that a timer wants to be sent whatever the congestion window is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    Nothing,
    /// A tail loss probe.
    TailProbe,
    /// A probe of the closed window, or of a silent peer.
    WindowProbe,
    KeepAlive,
}

impl Timers {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            retransmit: Instant::NEVER,
            probe: Instant::NEVER,
            reorder: Instant::NEVER,
            persist: Instant::NEVER,
            delayed_ack: Instant::NEVER,
            life: Instant::NEVER,
            keep_alive: Instant::NEVER,
            progress: now,
            challenge_second: 0,
            challenges: 0,
            retries: 0,
            wants: Wanted::Nothing,
        }
    }

    /// Stops all timers.
    pub(super) fn stop(&mut self) {
        *self = Self::new(self.progress);
    }

    /// Returns the time at which the next timer expires.
    pub(super) fn next(&self) -> Instant {
        let loss = self.retransmit.min(self.probe).min(self.reorder).min(self.persist);
        loss.min(self.delayed_ack).min(self.life).min(self.keep_alive)
    }
}
