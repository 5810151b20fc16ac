//! The state of the balance by load: the question to the hottest server, and the ranges that move.
//!
//! ```text
//!  a gap, at two searches ─► ready ─► asked ─► a range ─► a migration ─► rates of the new tablets
//! ```
//!
//! Invariant: there is one question or migration at a time.

use sprat_proto::Instant;
use sprat_proto::time::SECOND;

use super::migrations::Migrations;
use crate::balance::Gap;
use crate::message::migration::MigrationState;
use crate::types::ServerId;

/// The accesses to objects in a second from which on a server counts as hot, unless the options say
/// otherwise. A server of one core can have some fifty times as many, so that one with fewer gains
/// nothing. Its sample has enough of them within half a second.
pub(super) const HOT_RATE: u64 = 20_000;
/// The pause after a move that failed: the cause, such as too little memory, often lasts.
const PAUSE_NS: u64 = 30 * SECOND;

/// The progress of the balance by load.
#[derive(Debug, Default)]
pub(super) struct Heat {
    /// The server that was clearly the hottest at the last search.
    suspect: Option<ServerId>,
    /// The gap between the loads of two servers, for which a question is to be sent.
    ready: Option<Gap>,
    /// The tag of the question in progress, and its gap.
    asked: Option<(u64, Gap)>,
    /// The time since which the servers have their tablets.
    pub(super) settled: Instant,
    /// The last migration of a hot range, until a search sees its end.
    last: Option<u64>,
    /// The time before which no hot range moves.
    not_before: Instant,
    /// The number of hot ranges that began to move.
    pub(super) moves: u64,
}

impl Heat {
    /// Returns true if a search for a hot range makes sense now.
    pub(super) fn may_search(&mut self, now: Instant, migrations: &Migrations) -> bool {
        let last = self.last.take().and_then(|last| migrations.all.get(&last));
        if last.is_some_and(|migration| migration.state == MigrationState::Failed) {
            self.not_before = now.after(PAUSE_NS);
        }
        now >= self.not_before && self.ready.is_none() && self.asked.is_none()
    }

    /// Takes the gap that a search has found. The question for a range is ready if the hottest
    /// server was so at the search before: a short burst of requests moves nothing.
    pub(super) fn found(&mut self, gap: Option<Gap>) {
        let hottest = gap.map(|gap| gap.hot.server);
        if core::mem::replace(&mut self.suspect, hottest) == hottest {
            self.ready = gap;
        }
    }

    /// Returns the gap for which a question is to be sent.
    pub(super) fn ready(&self) -> Option<Gap> {
        self.ready
    }

    /// Notes the call with the question that was ready, or that it cannot be sent.
    pub(super) fn sent(&mut self, tag: Option<u64>) {
        self.asked = tag.zip(self.ready.take());
    }

    /// Returns the gap whose question has this tag. The question is over.
    pub(super) fn answered(&mut self, tag: u64) -> Option<Gap> {
        self.asked.take_if(|(asked, _)| *asked == tag).map(|(_, gap)| gap)
    }

    /// Notes a migration of a hot range.
    pub(super) fn moved(&mut self, migration: u64) {
        self.last = Some(migration);
        self.moves += 1;
    }

    /// Returns the number of questions in progress.
    pub(super) fn calls(&self) -> usize {
        self.asked.iter().len()
    }
}
