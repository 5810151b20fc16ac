//! The record of deferred completions by which the engine decides to defer the next. `rnic::poll`
//! describes deferral.

use crate::Instant;
use crate::time::US;

/// The longest time for which the engine defers a Write's completion: twice the time of an answer
/// from a peer whose thread must be woken first.
pub(crate) const DEFER_NS: u64 = 50 * US;

/// The number of deferrals in a row without an answer of the peer after which the engine mostly
/// stops deferring completions.
pub(crate) const MISSES: u8 = 16;

/// After [`MISSES`] misses, the engine defers one completion in this many, since the program may
/// have begun to wait for answers.
pub(crate) const RETRY_EVERY: u8 = 32;

/// The record of the deferred completions of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deferral {
    /// The time at which the peer last sent a segment.
    pub(crate) last_received: Instant,
    /// The number of deferrals without an answer of the peer since the last deferral with one.
    pub(crate) misses: u8,
    /// The number of completions that were not deferred since the last miss.
    pub(crate) skipped: u8,
}

impl Deferral {
    /// True if the engine should defer the queue pair's next completion.
    pub(crate) const fn should_defer(&self) -> bool {
        self.misses < MISSES || self.skipped >= RETRY_EVERY
    }
}
