//! Migrations: parts of tables that move from one server to another while clients use them.
//!
//! ```text
//!  MoveTablet ─► Waiting ─► Running: Migrate to the target, again and again for the progress
//!    RecoveryEnded of the target ─► the map names the target (durable) ─► Done, reply
//!    a server is gone, the table is dropped, the target gives up ─► Failed
//! ```
//!
//! Invariants: a migration is in memory alone, and its number names the term in which it began.
//! Only a running migration changes the map, and it does so once. The source learns of a migration
//! that was given up from this coordinator or a later one, after which no report of the target
//! counts. A server takes part in one running migration at a time.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Output};
use sprat_proto::rpc::{Message, Payload, RpcError};
use sprat_proto::time::{MS, SECOND};

use super::durable::Stage;
use super::migrations::Migration;
use super::state::{Coordinator, Otherwise};
use crate::message::Status;
use crate::message::control::{self, MAX_PAGE};
use crate::message::migration::{
    self, Fate, FindTablet, Found, ListMigrations, Migrate, MigrationPage, MigrationState,
    MoveTablet, Moving,
};
use crate::message::recovery::{Ending, Part, Recovering, RecoveryEnded};
use crate::objects::segment::SegmentId;
use crate::types::{ServerId, TableId};

/// The time between two questions for the progress of a migration.
const POLL_NS: u64 = 100 * MS;
/// The number of calls to the target without an answer in a row after which a migration is given
/// up.
const MOST_FAILURES: u32 = 30;
/// The longest time in which a target takes over nothing, in nanoseconds.
const MOST_IDLE_NS: u64 = 30 * SECOND;
/// The most migrations that wait or run.
const MOST_OPEN: usize = 4096;

impl Coordinator {
    /// Begins to move a part of a table to another server.
    pub(super) fn move_tablet(
        &mut self,
        caller: Caller,
        request: &MoveTablet<'_>,
    ) -> Option<Message> {
        let (first, last) = (request.first, request.last);
        let found = self.found_tablet(request.name, (first, last));
        let (table, source) = match found {
            Ok(found) => found,
            Err((status, text)) => return self.fail(caller, status, text),
        };
        let target = self.servers.masters().find(|(id, _)| id.index == request.target);
        let Some((target, _)) = target else {
            let text = format!("no server {} is up that may own tablets", request.target);
            return self.fail(caller, Status::TooFewServers, &text);
        };
        let of_table = self.migrations.all.iter().filter(|(_, m)| m.is_open() && m.table == table);
        let overlaps = |m: &Migration| m.range.0 <= last && first <= m.range.1;
        let other = of_table.clone().find(|(_, migration)| overlaps(migration));
        if let Some((&migration, known)) = other {
            if (known.range, known.target) == ((first, last), target) {
                return self.answer(caller, Moving { migration }.emit());
            }
            return self.fail(caller, Status::Retry, "a part of these keys moves already");
        }
        if source == target {
            return self.answer(caller, Moving { migration: 0 }.emit());
        }
        if self.servers.up(source).is_none() {
            return self.fail(caller, Status::Retry, "the owner of these keys is not up");
        }
        if self.migrations.counts().0 >= MOST_OPEN || self.is_full_of_tablets(table, 2) {
            return self.fail(caller, Status::NoSpace, "the coordinator's limit is reached");
        }
        let number = self.open_migration(table, (first, last), (source, target));
        self.answer(caller, Moving { migration: number }.emit())
    }

    /// Lets a part of a table move. Returns the number of the migration.
    pub(super) fn open_migration(
        &mut self,
        table: u64,
        range: (u64, u64),
        (source, target): (ServerId, ServerId),
    ) -> u64 {
        let number = self.next_number();
        let migration = Migration {
            table,
            range,
            source,
            target,
            state: MigrationState::Waiting,
            order: 0,
            bytes: 0,
            grew: Instant::ZERO,
            reason: String::new(),
            failures: 0,
            changed: 0,
        };
        self.migrations.all.insert(number, migration);
        self.migrations.start();
        number
    }

    /// Returns the table with this name and the owner of a range of its hashes.
    fn found_tablet(
        &self,
        name: &str,
        (first, last): (u64, u64),
    ) -> Result<(u64, ServerId), (Status, &'static str)> {
        let (id, table) = self.ready_table(name)?;
        if first > last {
            return Err((Status::BadFormat, "the first hash is behind the last one"));
        }
        let text = "the keys are in several tablets: move these one by one";
        let tablet = table.tablet((first, last)).ok_or((Status::WrongTablets, text))?;
        Ok((id, tablet.server))
    }

    /// Lists migrations by number.
    pub(super) fn list_migrations(
        &mut self,
        caller: Caller,
        request: &ListMigrations,
    ) -> Option<Message> {
        let after = self.migrations.all.range(request.after.saturating_add(1)..);
        let more = after.clone().nth(MAX_PAGE).is_some();
        let migrations = after
            .take(MAX_PAGE)
            .map(|(&number, m)| migration::Migration {
                number,
                state: m.state,
                table: TableId(m.table),
                first: m.range.0,
                last: m.range.1,
                source: m.source,
                target: m.target,
                bytes: m.bytes,
                reason: &m.reason,
            })
            .collect();
        let reply = MigrationPage { more, migrations }.emit();
        self.answer(caller, reply)
    }

    /// Tells a server what has become of a tablet that leaves it.
    pub(super) fn find_tablet(&mut self, caller: Caller, request: &FindTablet) -> Option<Message> {
        let server = request.server;
        if request.cluster != self.cluster.id || self.servers.up(server).is_none() {
            let text = "this server is not or no more in the cluster";
            return self.fail(caller, Status::NotInCluster, text);
        }
        let fate = if self.migrations.of_order(request.migration).is_some() {
            Fate::Moving
        } else {
            let table = self.tables.by_id.get(&request.table.0);
            let table = table.filter(|table| table.stage != Stage::Dropping);
            let mut of_range = table.into_iter().flat_map(|table| {
                // The tablet may have been divided or united with others meanwhile.
                table.tablets.iter().filter(|t| t.first <= request.last && request.first <= t.last)
            });
            if of_range.any(|tablet| tablet.server == server) { Fate::Kept } else { Fate::Gone }
        };
        let term = self.cluster.incarnation;
        self.answer(caller, Found { term, fate }.emit())
    }

    // The calls to the targets.

    /// Returns the next call to the target of a migration.
    pub(super) fn next_migration_call(&mut self, now: Instant) -> Option<Output> {
        while self.calls_in_progress() < self.config.max_calls {
            let number = self.migrations.ready.pop_front()?;
            let Some((target, message)) = self.migrate_order(now, number) else { continue };
            if let Some(connect) = self.servers.connect(target) {
                self.migrations.ready.push_front(number);
                return Some(connect);
            }
            let (tag, output) = self.call(now, target, message);
            self.migrations.calls.insert(tag, number);
            return Some(output);
        }
        None
    }

    /// Returns the order to the target of a running migration. Gives the migration up if its
    /// source does not own the tablet any more.
    fn migrate_order(&mut self, now: Instant, number: u64) -> Option<(ServerId, Vec<u8>)> {
        if self.migrations.all.get(&number).is_some_and(|migration| migration.order == 0) {
            let order = self.next_number();
            if let Some(migration) = self.migrations.all.get_mut(&number) {
                (migration.order, migration.grew) = (order, now);
            }
        }
        let migration = self.migrations.all.get(&number);
        let migration = migration.filter(|m| m.state == MigrationState::Running)?;
        let &Migration { table, range: (first, last), source, target, order, .. } = migration;
        let state = self.tables.by_id.get(&table).filter(|state| state.stage == Stage::Ready);
        let tablet = state.and_then(|state| state.tablet((first, last)));
        let owner = tablet.filter(|tablet| tablet.server == source);
        let (Some(state), Some(tablet), Some(slot)) = (state, owner, self.servers.up(source))
        else {
            let reason = "the source does not own the tablet any more";
            self.migrations.end(number, MigrationState::Failed, reason);
            return None;
        };
        let part = Part {
            table: TableId(table),
            first,
            last,
            hash_key: state.hash_key,
            durability: state.durability,
            since: SegmentId(0),
            floor: tablet.floor,
        };
        let order = Migrate {
            cluster: self.cluster.id,
            term: self.cluster.incarnation,
            migration: order,
            server: target,
            source,
            data: &slot.data,
            part,
        };
        Some((target, order.emit()))
    }

    /// Handles the result of a call to the target of a migration. Returns false if the call was
    /// none.
    pub(super) fn migration_called(
        &mut self,
        now: Instant,
        tag: u64,
        result: &Result<Payload<'_>, RpcError>,
    ) -> bool {
        let Some(number) = self.migrations.calls.remove(&tag) else { return false };
        let migration = self.migrations.all.get_mut(&number);
        let Some(migration) = migration.filter(|m| m.state == MigrationState::Running) else {
            return true;
        };
        let reply = result.as_ref().map_err(|_| Status::Retry);
        let pause_ns = match reply.and_then(|reply| Recovering::parse(reply)) {
            Ok(Recovering { replayed })
                if replayed > migration.bytes || now.since(migration.grew) < MOST_IDLE_NS =>
            {
                if replayed > migration.bytes {
                    migration.grew = now;
                }
                (migration.bytes, migration.failures) = (replayed, 0);
                POLL_NS
            }
            Ok(_) => {
                let reason = "the target has taken over nothing for half a minute";
                self.migrations.end(number, MigrationState::Failed, reason);
                return true;
            }
            Err(Status::Retry | Status::NotServing | Status::TooFewServers)
                if migration.failures < MOST_FAILURES =>
            {
                let failures = migration.failures;
                migration.failures += 1;
                self.retry_ns(failures)
            }
            Err(status) => {
                let text = result.as_ref().map_or("", |reply| control::failure_text(reply));
                let reason = format!("the target refuses it: {status}; {text}");
                self.migrations.end(number, MigrationState::Failed, &reason);
                return true;
            }
        };
        self.migrations.later.insert((now.after(pause_ns), number));
        true
    }

    /// Queues the calls to targets that are due.
    pub(super) fn repeat_migrations(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.migrations.later.first()
            && at <= now
        {
            self.migrations.later.pop_first();
            self.migrations.ready.push_back(number);
        }
    }

    /// Handles the end of a migration by its target. Returns `None` if the report is of no running
    /// migration, else the reply.
    pub(super) fn migration_ended(
        &mut self,
        caller: Caller,
        request: &RecoveryEnded,
    ) -> Option<Option<Message>> {
        let number = self.migrations.of_order(request.recovery)?;
        let migration = self.migrations.all.get(&number)?;
        if (migration.source, migration.target) != (request.crashed, request.server) {
            return None;
        }
        let failed = match request.ending {
            Ending::Done => None,
            Ending::Lacking => Some("the target cannot read the tablet from the source"),
            Ending::Full => Some("the memory of the target is full"),
        };
        if let Some(reason) = failed {
            self.migrations.end(number, MigrationState::Failed, reason);
            return Some(self.answer(caller, control::done()));
        }
        let (table, range) = (TableId(migration.table), migration.range);
        let [told] = &request.tablets[..] else { return None };
        let is_it = (told.table, (told.first, told.last)) == (table, range);
        let is_owned = self.servers.up(request.crashed).is_some()
            && self.are_owned(request.crashed, &[(table, range.0, range.1)].into());
        if self.is_full_of_tablets(table.0, 2) {
            let reason = "the limit of tablets is reached";
            self.migrations.end(number, MigrationState::Failed, reason);
            return Some(self.fail(caller, Status::NoRecovery, reason));
        }
        if !is_it || !is_owned {
            let reason = "the source does not own the tablet any more";
            self.migrations.end(number, MigrationState::Failed, reason);
            return Some(self.fail(caller, Status::NoRecovery, reason));
        }
        // The requests that wait limit the changes.
        if let Some(reply) = self.full().or_else(|| self.unwritable(Otherwise::Refused)) {
            return Some(Some(reply.into()));
        }
        self.give(request);
        if let Some(migration) = self.migrations.all.get_mut(&number) {
            (migration.changed, migration.bytes) = (self.journal.issued, request.replayed);
        }
        self.migrations.end(number, MigrationState::Done, "");
        Some(self.answer_or(caller, control::done(), Otherwise::Refused))
    }
}
