//! The work of a turn, in bytes: those of requests, and those that the cleaner works through.
//!
//! A turn ends early once it is full, so that the last request of a burst does not wait for the
//! cleaning that all others pay for, and timers are never late by much.

/// The work after which a turn is full, in bytes: 30 µs of cleaning, about.
pub(super) const TURN_WORK: u64 = 32 << 10;

/// The work that a master has done, and where its next turn is full.
#[derive(Debug)]
pub(super) struct Work {
    requested: u64,
    full_at: u64,
    turn: u64,
}

impl Work {
    /// Returns a count of turns that are full after `turn` bytes.
    pub(super) fn new(turn: u64) -> Self {
        Self { requested: 0, full_at: turn, turn }
    }

    /// Counts a request of `bytes`.
    #[inline]
    pub(super) fn request(&mut self, bytes: usize) {
        self.requested += bytes as u64;
    }

    /// Returns true if the turn is full, now that the cleaner has worked through `cleaned` bytes
    /// since the start. The next turn begins then.
    #[inline]
    pub(super) fn is_full(&mut self, cleaned: u64) -> bool {
        let worked = self.requested + cleaned;
        let is_full = worked >= self.full_at;
        if is_full {
            self.full_at = worked + self.turn;
        }
        is_full
    }
}
