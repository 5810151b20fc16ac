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

/// The accesses to objects in a second from which on a server counts as hot, by default. A server
/// of one core can have some fifty times as many, so that one with fewer gains nothing. Its sample
/// has enough of them within half a second.
pub(super) const HOT_RATE: u64 = 20_000;
/// The pause after a move that failed: the cause, such as too little memory, often lasts.
const PAUSE_NS: u64 = 30 * SECOND;

/// The progress of the balance by load.
#[derive(Debug, Default)]
pub(super) struct Heat {
    /// The server that was clearly the hottest at the last searches, and the first of them.
    suspect: Option<(ServerId, Instant)>,
    /// The gap between the loads of two servers, for which a question is to be sent.
    ready: Option<Gap>,
    /// The tag of the question in progress, its gap, and the time since which the servers had
    /// their tablets then.
    asked: Option<(u64, Gap, Instant)>,
    /// The time since which the servers have their tablets.
    pub(super) settled: Instant,
    /// The moves of hot ranges.
    ranges: Moves,
    /// The number of hot ranges that began to move.
    pub(super) moves: u64,
}

/// Moves of one kind, with a pause after one that failed.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The last migration, until a search sees its end.
    last: Option<u64>,
    /// The time before which nothing moves.
    not_before: Instant,
}

impl Moves {
    /// Returns true if the time has come for the next move. After one that failed it comes later,
    /// so that moves of the other kind go on meanwhile.
    pub(super) fn are_due(&mut self, now: Instant, migrations: &Migrations) -> bool {
        let last = self.last.take().and_then(|last| migrations.all.get(&last));
        if last.is_some_and(|migration| migration.state == MigrationState::Failed) {
            self.not_before = now.after(PAUSE_NS);
        }
        now >= self.not_before
    }

    /// Notes the migration that begins.
    pub(super) fn begin(&mut self, migration: u64) {
        self.last = Some(migration);
    }
}

impl Heat {
    /// Returns true if the time has come for a search for a hot range.
    pub(super) fn is_search_due(&mut self, now: Instant, migrations: &Migrations) -> bool {
        self.ranges.are_due(now, migrations) && self.ready.is_none() && self.asked.is_none()
    }

    /// Takes the gap that a search has found, and the time at which the interval of the rate of its
    /// hottest server began. The question for a range is ready if that was after another search
    /// with the same hottest server: a short burst of requests moves nothing.
    pub(super) fn found(&mut self, now: Instant, gap: Option<(Gap, Instant)>) {
        let Some((gap, began)) = gap else {
            self.suspect = None;
            return;
        };
        match self.suspect {
            Some((server, at)) if server == gap.hot.server => {
                self.ready = Some(gap).filter(|_| began >= at);
            }
            _ => self.suspect = Some((gap.hot.server, now)),
        }
    }

    /// Returns the gap for which a question is to be sent.
    pub(super) fn ready(&self) -> Option<Gap> {
        self.ready
    }

    /// Notes the call with the question that was ready, or that it cannot be sent.
    pub(super) fn sent(&mut self, tag: Option<u64>) {
        let settled = self.settled;
        self.asked = tag.zip(self.ready.take()).map(|(tag, gap)| (tag, gap, settled));
    }

    /// Returns the gap whose question has this tag, and true if the servers still have the same
    /// tablets. The question is over.
    pub(super) fn answered(&mut self, tag: u64) -> Option<(Gap, bool)> {
        let asked = self.asked.take_if(|(asked, ..)| *asked == tag);
        asked.map(|(_, gap, settled)| (gap, settled == self.settled))
    }

    /// Notes a migration of a hot range.
    pub(super) fn moved(&mut self, migration: u64) {
        self.ranges.begin(migration);
        self.moves += 1;
    }

    /// Returns the number of questions in progress.
    pub(super) fn calls(&self) -> usize {
        self.asked.iter().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::Load;

    fn gap(hot: u32) -> Gap {
        let load = |index, rate| {
            let server = ServerId { index, generation: 1 };
            Load { server, rate, has_room: true }
        };
        Gap { hot: load(hot, 90_000), cold: load(9, 0) }
    }

    /// Searches follow each other faster than renewals: the second one sees the same rate.
    #[test]
    fn a_server_is_hot_in_two_intervals() {
        let at = |second: u64| Instant::from_ns(second * SECOND);
        let mut heat = Heat::default();
        heat.found(at(10), Some((gap(1), at(9))));
        assert_eq!(heat.ready(), None, "one interval");
        heat.found(at(11), Some((gap(1), at(9))));
        assert_eq!(heat.ready(), None, "the same one");
        heat.found(at(12), Some((gap(2), at(11))));
        heat.found(at(13), Some((gap(2), at(12))));
        assert_eq!(heat.ready(), Some(gap(2)), "another server since 12");
        heat.sent(Some(7));
        assert_eq!(heat.answered(8), None);
        heat.settled = at(14);
        assert_eq!(heat.answered(7), Some((gap(2), false)), "tablets have moved meanwhile");
        heat.found(at(15), None);
        heat.found(at(16), Some((gap(2), at(15))));
        assert_eq!(heat.ready(), None, "it was cool once");
    }
}
