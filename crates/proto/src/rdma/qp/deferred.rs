//! Completions that are deferred: what a queue pair remembers.

use crate::Instant;
use crate::time::US;

/// The longest hold: what an answer takes from a peer whose thread has to be woken for it, and twice that.
pub(crate) const DEFER_NS: u64 = 50 * US;

/// In vain so many times one after the other, and the program does not seem to wait for answers:
pub(crate) const MISSES: u8 = 16;

/// one in so many is held all the same, since it may have begun to.
pub(crate) const RETRY_EVERY: u8 = 32;

/// What a queue pair remembers about it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deferral {
    /// When the peer last said anything.
    pub(crate) last_received: Instant,
    /// Holds in vain since the last one that was not.
    pub(crate) misses: u8,
    /// Completions that were not held since.
    pub(crate) skipped: u8,
}

impl Deferral {
    /// Whether the next one should be held.
    pub(crate) const fn should_defer(&self) -> bool {
        self.misses < MISSES || self.skipped >= RETRY_EVERY
    }
}
