//! The migrations that the coordinator knows, and their states.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;

use crate::message::migration::MigrationState;
use crate::types::ServerId;

/// The number of migrations that are remembered after their ends.
const MOST_ENDED: usize = 256;

/// A migration of a part of a table.
#[derive(Debug)]
pub(super) struct Migration {
    pub(super) table: u64,
    pub(super) range: (u64, u64),
    pub(super) source: ServerId,
    pub(super) target: ServerId,
    pub(super) state: MigrationState,
    /// The number of the order to the target, 0 before it. Orders of recoveries and migrations are
    /// counted together, and a master takes them in their order.
    pub(super) order: u64,
    pub(super) bytes: u64,
    /// The time at which the target had taken over more bytes than before.
    pub(super) grew: Instant,
    pub(super) reason: String,
    /// The number of calls to the target that failed in a row.
    pub(super) failures: u32,
    /// The change that made the target the owner.
    pub(super) changed: u64,
}

impl Migration {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, MigrationState::Waiting | MigrationState::Running)
    }

    fn involves(&self, server: ServerId) -> bool {
        self.source == server || self.target == server
    }
}

/// The migrations that are in progress or have ended a short while ago.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    pub(super) all: BTreeMap<u64, Migration>,
    /// The running migrations whose targets are to be called.
    pub(super) ready: VecDeque<u64>,
    pub(super) later: BTreeSet<(Instant, u64)>,
    /// The calls in progress by tag.
    pub(super) calls: BTreeMap<u64, u64>,
    /// The numbers of migrations that were completed, and that were given up.
    done: u64,
    failed: u64,
}

impl Migrations {
    /// Returns the number of the migration that has this number of an order.
    pub(super) fn of_order(&self, order: u64) -> Option<u64> {
        let is_it = |m: &Migration| order > 0 && m.order == order && m.is_open();
        let found = self.all.iter().find(|(_, migration)| is_it(migration));
        found.map(|(&number, _)| number)
    }

    /// Returns the number of calls in progress.
    pub(super) fn calls(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn has_output(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the time of the next call that waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.later.first().map(|&(at, _)| at)
    }

    /// Returns the numbers of migrations that wait or run, and of those that were completed and
    /// failed.
    pub(super) fn counts(&self) -> (usize, u64, u64) {
        let open = self.all.values().filter(|migration| migration.is_open()).count();
        (open, self.done, self.failed)
    }

    /// Starts the migrations whose servers take part in no other one.
    pub(super) fn start(&mut self) {
        let running = self.all.values().filter(|m| m.state == MigrationState::Running);
        let mut busy: BTreeSet<_> = running.flat_map(|m| [m.source, m.target]).collect();
        for (&number, migration) in &mut self.all {
            let servers = [migration.source, migration.target];
            if migration.state == MigrationState::Waiting
                && servers.iter().all(|server| !busy.contains(server))
            {
                migration.state = MigrationState::Running;
                self.ready.push_back(number);
            }
            if migration.is_open() {
                busy.extend(servers);
            }
        }
    }

    /// Ends a migration that waits or runs.
    pub(super) fn end(&mut self, number: u64, state: MigrationState, reason: &str) {
        self.mark(number, state, reason);
        self.go_on();
    }

    fn mark(&mut self, number: u64, state: MigrationState, reason: &str) {
        if let Some(migration) = self.all.get_mut(&number).filter(|m| m.is_open()) {
            (migration.state, migration.reason) = (state, reason.into());
            let count = match state {
                MigrationState::Done => &mut self.done,
                _ => &mut self.failed,
            };
            *count += 1;
        }
    }

    /// Forgets the oldest migrations that have ended, and starts those that can run now.
    fn go_on(&mut self) {
        let ended = self.all.iter().filter(|(_, migration)| !migration.is_open());
        let ended: Vec<_> = ended.map(|(&number, _)| number).collect();
        for number in &ended[..ended.len().saturating_sub(MOST_ENDED)] {
            self.all.remove(number);
        }
        self.start();
    }

    /// Gives up all open migrations for which `is_over` returns true.
    fn give_up(&mut self, is_over: impl Fn(&Migration) -> bool, reason: &str) {
        let over = self.all.iter().filter(|(_, m)| m.is_open() && is_over(m));
        let over: Vec<_> = over.map(|(&number, _)| number).collect();
        if !over.is_empty() {
            over.iter().for_each(|&number| self.mark(number, MigrationState::Failed, reason));
            self.go_on();
        }
    }

    /// Returns true if a hash is in a part of a table that moves, behind the first one.
    pub(super) fn cuts(&self, table: u64, at: u64) -> bool {
        self.all.values().any(|migration| {
            let (first, last) = migration.range;
            migration.is_open() && migration.table == table && first < at && at <= last
        })
    }

    /// Gives up the migrations of a server that is gone.
    pub(super) fn without_server(&mut self, server: ServerId) {
        let reason = format!("server {}.{} is gone", server.index, server.generation);
        self.give_up(|migration| migration.involves(server), &reason);
    }

    /// Gives up the migrations of a table that is dropped.
    pub(super) fn without_table(&mut self, table: u64) {
        self.give_up(|migration| migration.table == table, "the table was dropped");
    }

    /// Returns to the durable state up to the change `safe`.
    pub(super) fn roll_back(&mut self, safe: u64) {
        for migration in self.all.values_mut() {
            if migration.state == MigrationState::Done && migration.changed > safe {
                (self.done, self.failed) = (self.done - 1, self.failed + 1);
                migration.state = MigrationState::Failed;
                migration.reason = "the coordinator could not write the change".into();
            }
        }
    }
}
