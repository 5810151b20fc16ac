//! The record of deferred completions by which the engine decides to defer the next. `rnic::poll`
//! describes deferral.

use crate::Instant;
use crate::time::US;

/// The longest deferral: twice the time of an answer from a peer whose thread must be woken first.
pub(crate) const DEFER_NS: u64 = 50 * US;

/// The misses in a row after which the engine mostly stops deferring.
pub(crate) const MISSES: u8 = 16;

/// After that many misses, the engine defers one completion in this many, since the program may
/// have begun to wait for answers.
pub(crate) const RETRY_EVERY: u8 = 32;

/// The record of deferrals of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deferral {
    /// The time at which the peer last sent a segment.
    pub(crate) last_received: Instant,
    /// The misses since the last hit.
    pub(crate) misses: u8,
    /// The completions that were not deferred since the last miss.
    pub(crate) skipped: u8,
}

impl Deferral {
    /// True if the next completion should be deferred.
    pub(crate) const fn should_defer(&self) -> bool {
        self.misses < MISSES || self.skipped >= RETRY_EVERY
    }
}
