//! The pace of the cleaner: how much cleaning a write pays for.
//!
//! ```text
//!  price of a written byte, in bytes of segments to clean
//!    = size / yield of the present segment × (1 + (reserve - free) / 2 segments)
//! ```
//!
//! To free one byte of memory, the cleaner works through size / yield bytes of a segment. Free
//! memory is counted in bytes: free segments, the room of open ones, and what the cleaner has
//! passed of the present segment. So the price changes little from write to write, and a burst of
//! requests has no more cleaning to do than another one. Counted in whole segments, free memory
//! let the price jump to twice as much.
//!
//! What a write owes is paid by the next ones, but not much of it: what stays away lowers free
//! memory, which raises the price.

use super::reserve::free_bytes;
use super::{Cleaner, LEAST_GAIN, LEAST_PAYMENT, Memory, Phase, SMALL_STEP};

/// The number of bytes to be cleaned that writes may owe.
const MOST_OWED: u64 = 4 * LEAST_PAYMENT;
/// A write pays for cleaning at most this number of times its own length, unless a small step is
/// more.
const MOST_PAYMENT: u64 = 8;
/// The least haste while the table has to point to the copies of a helper, whose next job waits for
/// that. It takes a third of the time of cleaning without help.
const HELPED: u64 = 3 * PRICE_UNIT;
/// The denominator of the cleaner's prices.
const PRICE_UNIT: u64 = 64;

impl Cleaner {
    /// Cleans as much as the bytes written since the last call make necessary, and returns true if
    /// there is more to do. Call it after each write.
    #[inline]
    pub fn pay(&mut self, memory: &mut Memory) -> bool {
        let written = memory.log.written_bytes();
        let new = written - core::mem::replace(&mut self.charged, written);
        self.look(memory, written);
        if !self.wanted(memory) {
            self.owed = 0;
            return false;
        }
        self.charge(memory, new);
        if self.owed < LEAST_PAYMENT {
            return true;
        }
        let work = (MOST_PAYMENT * new).max(SMALL_STEP as u64);
        self.run(memory, work as usize, true)
    }

    /// Adds the cleaning that `new` written bytes make necessary to the bytes owed.
    fn charge(&mut self, memory: &Memory, new: u64) {
        let (gain, size) = self.yields;
        // Before the first segment is chosen, one byte costs one.
        let price = u64::from(size.max(1)) * self.haste(memory) / u64::from(gain.max(1));
        let price = price.min(PRICE_UNIT * u64::from(LEAST_GAIN));
        let owes = new * price / PRICE_UNIT;
        self.owed = (self.owed + owes).min(MOST_OWED.max(owes));
    }

    /// Returns how much faster than at the pace of writes the cleaner has to work, in
    /// 1 / [`PRICE_UNIT`].
    fn haste(&self, memory: &Memory) -> u64 {
        let segment = u64::from(memory.log.segment_bytes());
        let passed = match self.phase {
            Phase::Clean { offset, .. } => offset as u64,
            Phase::Rest | Phase::Choose { .. } => 0,
        };
        let free = free_bytes(memory) + passed + self.help.passed();
        let reserve = self.reserve(memory);
        let haste = if free >= reserve + segment {
            // The cleaner limits the log's size.
            PRICE_UNIT
        } else {
            (reserve + 2 * segment - free) * (PRICE_UNIT / 2) / segment
        };
        let is_helped = self.help.has_copies() && !matches!(self.phase, Phase::Clean { .. });
        if is_helped { haste.max(HELPED) } else { haste }
    }
}
