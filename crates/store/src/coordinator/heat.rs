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
    /// The last migration of an equal share, until a search sees its end.
    share: Option<u64>,
    /// The time before which no equal share moves.
    no_share_before: Instant,
    /// The last migration of a hot range, until a search sees its end.
    last: Option<u64>,
    /// The time before which no hot range moves.
    not_before: Instant,
    /// The number of hot ranges that began to move.
    pub(super) moves: u64,
}

impl Heat {
    /// Returns true if the time has come for a search for a hot range. After a move that failed it
    /// comes later.
    pub(super) fn is_search_due(&mut self, now: Instant, migrations: &Migrations) -> bool {
        if has_failed(&mut self.last, migrations) {
            self.not_before = now.after(PAUSE_NS);
        }
        now >= self.not_before && self.ready.is_none() && self.asked.is_none()
    }

    /// Returns true if the time has come for a search for an equal share. After a move that failed
    /// it comes later, so that hot ranges move meanwhile.
    pub(super) fn is_share_due(&mut self, now: Instant, migrations: &Migrations) -> bool {
        if has_failed(&mut self.share, migrations) {
            self.no_share_before = now.after(PAUSE_NS);
        }
        now >= self.no_share_before
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

    /// Notes a migration of an equal share.
    pub(super) fn shared(&mut self, migration: u64) {
        self.share = Some(migration);
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

/// Returns true if a migration has failed. It is forgotten.
fn has_failed(last: &mut Option<u64>, migrations: &Migrations) -> bool {
    let last = last.take().and_then(|last| migrations.all.get(&last));
    last.is_some_and(|migration| migration.state == MigrationState::Failed)
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
