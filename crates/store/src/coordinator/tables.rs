//! Creating and dropping tables, and the calls to masters for that.
//!
//! ```text
//! CreateTable ─► Creating (durable) ─► TakeTablet to each owner ─► Ready (durable) ─► reply
//! DropTable   ─► Dropping (durable) ─► DropTablet to each owner ─► gone  (durable) ─► reply
//! ```
//! Invariants: while its table is `Creating`, before any reply has named its id, a tablet goes to
//! another server if its own is gone. From then on it belongs to one life of one server, until a
//! recovery or a migration gives it to another one.
//! The reply to a drop waits until no server can answer for the table any more.

use alloc::format;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::rpc::{Message, Payload, RpcError};

use super::durable::{self, Batch, Key, Stage};
use super::state::{Coordinator, Effect, Otherwise};
use super::table::{Call, Table, Tablet, Work};
use crate::durability::TableDurability;
use crate::message::Status;
use crate::message::control::{self, CreateTable, DropTable, DropTablet, TakeTablet};
use crate::objects::segment::SegmentId;
use crate::types::{HashKey, ServerId, TableId};
use sprat_proto::node::machine::{Caller, Output};

impl Coordinator {
    pub(super) fn create_table(
        &mut self,
        caller: Caller,
        request: &CreateTable<'_>,
    ) -> Option<Message> {
        if let Err((status, text)) = Self::check_request(request) {
            return self.fail(caller, status, text);
        }
        if let Some(&id) = self.tables.by_name.get(request.name) {
            let table = &self.tables.by_id[&id];
            // Clients wait at tablets that other servers recover.
            let lost = table.tablets.iter().any(|tablet| self.servers.is_lost(tablet.server));
            return match table.stage {
                Stage::Ready if lost => self.fail(
                    caller,
                    Status::TabletLost,
                    "the table exists, and data of it is lost",
                ),
                Stage::Ready => self.answer(caller, table.key(self.cluster.id, id).emit()),
                _ => self.wait_for_table(caller, id),
            };
        }
        if let Some(reply) = self.unwritable(Otherwise::Refused) {
            return Some(reply.into());
        }
        let owners = self.servers.owners(request.span as usize);
        if let Err((status, text)) = self.check_limits(request, owners.len()) {
            return self.fail(caller, status, text);
        }
        let id = self.cluster.next_table;
        self.cluster.next_table += 1;
        let mut hash_key = HashKey::default();
        self.rng.fill(&mut hash_key.0);
        let count = owners.len() as u32;
        let tablets = (0..)
            .zip(owners)
            .map(|(i, server)| Tablet::new(share(i, count), server, SegmentId(0), Work::Idle));
        let tablets: Vec<_> = tablets.collect();
        tablets.iter().for_each(|tablet| self.servers.count(tablet.server, 1));
        let table = Table {
            name: request.name.into(),
            hash_key,
            durability: request.durability,
            stage: Stage::Creating,
            tablets,
            waiters: Vec::new(),
            changed: 0,
        };
        let mut batch = Batch::default();
        batch.put(Key::Table(id), &table.record());
        batch.put(Key::Cluster, &self.cluster);
        self.tables.insert(id, table);
        self.persist_and_begin(id, batch);
        self.wait_for_table(caller, id)
    }

    /// Checks that a request names a table that can be.
    fn check_request(request: &CreateTable<'_>) -> Result<(), (Status, &'static str)> {
        if request.name.is_empty() || request.name.len() > control::MAX_NAME {
            return Err((Status::BadName, "a table's name has 1 to 255 bytes"));
        }
        if request.span == 0 || request.span > control::MAX_SPAN {
            return Err((Status::BadFormat, "a table's span is 1 to 256 servers"));
        }
        Ok(())
    }

    /// Checks that the cluster can have the new table.
    fn check_limits(
        &self,
        request: &CreateTable<'_>,
        tablets: usize,
    ) -> Result<(), (Status, &'static str)> {
        let limit = &self.config;
        if self.tables.by_id.len() >= limit.max_tables
            || self.tables.tablets + tablets > limit.max_tablets
            || self.cluster.next_table > TableId::MAX.0
        {
            return Err((Status::NoSpace, "the coordinator's limit of tables is reached"));
        }
        let mut servers = self.servers.masters().map(|(_, slot)| slot.replicas).peekable();
        if servers.peek().is_none() {
            return Err((Status::TooFewServers, "no server has joined the cluster"));
        }
        if request.durability == TableDurability::Async && servers.all(|replicas| replicas == 0) {
            let text = "durability async needs replicas, and the cluster has none (--replicas)";
            return Err((Status::BadFormat, text));
        }
        Ok(())
    }

    /// Makes a change of a table durable, then calls its servers.
    fn persist_and_begin(&mut self, id: u64, batch: Batch) {
        let seq = self.persist(batch);
        if let Some(table) = self.tables.by_id.get_mut(&id) {
            table.changed = seq;
        }
        self.journal.after(seq, Effect::Begin(id));
    }

    pub(super) fn drop_table(
        &mut self,
        caller: Caller,
        request: &DropTable<'_>,
    ) -> Option<Message> {
        let wanted = |id: u64| request.table.0 == 0 || request.table.0 == id;
        if let Some(&id) = self.tables.by_name.get(request.name).filter(|id| wanted(**id)) {
            if let Some(reply) = self.unwritable(Otherwise::Refused) {
                return Some(reply.into());
            }
            self.begin_drop(id);
            return self.wait_for_table(caller, id);
        }
        // If the table is being dropped already, this request gets the same reply at the same time.
        let dropping =
            |(_, t): &(&u64, &Table)| t.stage == Stage::Dropping && t.name == request.name;
        let id = match request.table.0 {
            0 => self.tables.by_id.iter().filter(dropping).map(|(id, _)| *id).next_back(),
            id => self.tables.by_id.get(&id).filter(|table| dropping(&(&id, table))).map(|_| id),
        };
        match id {
            Some(id) => self.wait_for_table(caller, id),
            None => self.answer(caller, control::done()),
        }
    }

    /// Begins to drop a table: frees its name, and fails the requests that wait for its creation.
    fn begin_drop(&mut self, id: u64) {
        self.migrations.without_table(id);
        let Some(table) = self.tables.by_id.get_mut(&id) else { return };
        table.stage = Stage::Dropping;
        for tablet in &mut table.tablets {
            tablet.failures = 0;
            // A call in progress must end first, so that a late TakeTablet cannot follow the
            // DropTablet.
            if tablet.work != Work::Calling {
                tablet.work = Work::Idle;
            }
        }
        let waiters = core::mem::take(&mut table.waiters);
        self.tables.by_name.remove(&table.name);
        let mut batch = Batch::default();
        batch.put(Key::Table(id), &table.record());
        self.persist_and_begin(id, batch);
        let gone = control::failure(
            Status::TableDoesntExist,
            "the table was dropped while it was created",
        );
        self.release(waiters, &gone, Otherwise::Retry);
    }

    /// Replies to the requests that waited for a table, as soon as the state that the reply reports
    /// is durable.
    fn release(&mut self, waiters: Vec<Caller>, reply: &[u8], otherwise: Otherwise) {
        self.tables.waiting -= waiters.len();
        for caller in waiters {
            if let Some(message) = self.answer_or(caller, reply.to_vec(), otherwise) {
                self.out.push_back(Output::Reply { caller, message });
            }
        }
    }

    /// Lets a request wait for the end of the table's stage.
    fn wait_for_table(&mut self, caller: Caller, id: u64) -> Option<Message> {
        if let Some(reply) = self.unwritable(Otherwise::Unfinished) {
            return Some(reply.into());
        }
        if self.tables.waiting >= self.config.max_waiting {
            return Some(control::failure(Status::Retry, "too many requests wait").into());
        }
        if let Some(table) = self.tables.by_id.get_mut(&id) {
            table.waiters.push(caller);
            self.tables.waiting += 1;
        }
        None
    }

    /// Begins to call the servers of a table whose stage is durable.
    pub(super) fn begin(&mut self, id: u64) {
        let safe = self.journal.safe;
        let table = self.tables.by_id.get_mut(&id).filter(|table| table.changed <= safe);
        let Some(table) = table else { return };
        for (i, tablet) in table.tablets.iter_mut().enumerate() {
            if tablet.work == Work::Idle {
                tablet.work = Work::Queued;
                self.tables.ready.push_back((id, i));
            }
        }
    }

    /// Returns the next call to a master that the coordinator has to make.
    pub(super) fn next_call(&mut self, now: Instant) -> Option<Output> {
        while self.calls_in_progress() < self.config.max_calls {
            let (id, i) = self.tables.ready.pop_front()?;
            let Some(table) = self.tables.by_id.get_mut(&id) else { continue };
            let (stage, hash_key, durability) = (table.stage, table.hash_key, table.durability);
            let Some(tablet) =
                table.tablets.get_mut(i).filter(|tablet| tablet.work == Work::Queued)
            else {
                continue;
            };
            let (server, first, last) = (tablet.server, tablet.first, tablet.last);
            if self.servers.up(server).is_none() {
                tablet.work = Work::Idle;
                self.without_server(id);
                continue;
            }
            if let Some(connect) = self.servers.connect(server) {
                self.tables.ready.push_front((id, i));
                return Some(connect);
            }
            tablet.work = Work::Calling;
            let table = TableId(id);
            let (cluster, term) = (self.cluster.id, self.cluster.incarnation);
            let message = if stage == Stage::Dropping {
                DropTablet { cluster, term, server, table, first, last }.emit()
            } else {
                TakeTablet { cluster, term, server, table, first, last, hash_key, durability }
                    .emit()
            };
            let (tag, output) = self.call(now, server, message);
            self.tables.calls.insert(tag, Call { table: id, tablet: i, first, server, stage });
            return Some(output);
        }
        None
    }

    /// Handles the result of a call to a master.
    pub(super) fn called(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        let Some(call) = self.tables.calls.remove(&tag) else { return };
        let Some(table) = self.tables.by_id.get_mut(&call.table) else { return };
        let Some(tablet) = table.tablets.get_mut(call.tablet) else { return };
        if tablet.work != Work::Calling || !call.is_of(tablet) {
            return;
        }
        let stage_is_over = table.stage != call.stage;
        let up = self.servers.up(call.server).is_some();
        if up
            && !stage_is_over
            && result.is_ok_and(|reply| control::outcome(&reply) == Ok((Status::Ok, &[][..])))
        {
            tablet.work = Work::Settled;
            return self.settled(call.table);
        }
        if !up {
            tablet.work = Work::Idle;
            return self.without_server(call.table);
        }
        if stage_is_over {
            tablet.work = Work::Queued;
            self.tables.ready.push_back((call.table, call.tablet));
        } else {
            // There is no reply, or a refusal (for example of a server that is starting). Repeat
            // the call at growing intervals until the server obeys or is gone.
            tablet.work = Work::Waiting;
            let failures = tablet.failures;
            tablet.failures = failures.saturating_add(1);
            let at = now.after(self.retry_ns(failures));
            self.tables.later.insert((at, call.table, call.tablet));
        }
    }

    /// Queues the failed calls to masters that are due again.
    pub(super) fn repeat_calls(&mut self, now: Instant) {
        while let Some(&(at, id, i)) = self.tables.later.first()
            && at <= now
        {
            self.tables.later.pop_first();
            let tablet = self.tables.by_id.get_mut(&id).and_then(|table| table.tablets.get_mut(i));
            if let Some(tablet) = tablet.filter(|tablet| tablet.work == Work::Waiting) {
                tablet.work = Work::Queued;
                self.tables.ready.push_back((id, i));
            }
        }
    }

    /// Ends the stage of a table if all of its servers have done their part.
    fn settled(&mut self, id: u64) {
        let Some(table) = self.tables.by_id.get_mut(&id) else { return };
        if table.tablets.iter().any(|tablet| tablet.work != Work::Settled) {
            return;
        }
        let mut batch = Batch::default();
        let reply = match table.stage {
            Stage::Ready => return,
            Stage::Creating => {
                table.stage = Stage::Ready;
                self.recoveries.replan();
                batch.put(Key::Table(id), &table.record());
                table.key(self.cluster.id, id).emit()
            }
            Stage::Dropping => {
                batch.delete(Key::Table(id));
                control::done()
            }
        };
        let waiters = core::mem::take(&mut table.waiters);
        if table.stage == Stage::Dropping
            && let Some(table) = self.tables.by_id.remove(&id)
        {
            self.tables.tablets -= table.tablets.len();
            self.heat.settled = self.seen;
            for tablet in &table.tablets {
                self.forget_tablet(tablet.server, &mut batch);
            }
        }
        self.persist(batch);
        self.release(waiters, &reply, Otherwise::Unfinished);
    }

    /// Removes a tablet from the count of its server. The place of a crashed server becomes free
    /// with its last tablet.
    fn forget_tablet(&mut self, server: ServerId, batch: &mut Batch) {
        self.servers.count(server, -1);
        self.recoveries.notice();
        if let Some(slot) = self.servers.release(server) {
            batch.put(Key::Server(server.index), &slot.record());
        }
    }

    /// Handles the loss of a server of this table. If the table is being created, other servers get
    /// its tablets. If it is being dropped, those tablets need no more work.
    pub(super) fn without_server(&mut self, id: u64) {
        let Some(mut table) = self.tables.by_id.remove(&id) else { return };
        let mut batch = Batch::default();
        let (mut moved, mut stranded) = (false, false);
        for tablet in &mut table.tablets {
            if tablet.work == Work::Calling || self.servers.up(tablet.server).is_some() {
                continue;
            }
            match (table.stage, self.servers.by_load().first()) {
                (Stage::Ready, _) => {}
                (Stage::Dropping, _) => tablet.work = Work::Settled,
                (Stage::Creating, None) => {
                    tablet.work = Work::Idle;
                    stranded = true;
                }
                (Stage::Creating, Some(&server)) => {
                    self.forget_tablet(tablet.server, &mut batch);
                    self.servers.count(server, 1);
                    (tablet.server, tablet.work, tablet.failures) = (server, Work::Idle, 0);
                    moved = true;
                }
            }
        }
        if stranded {
            // The table stays in its stage. A repeated request continues it when servers have
            // joined.
            let text = format!("table {:?} waits for a server to join the cluster", table.name);
            let waiters = core::mem::take(&mut table.waiters);
            self.release(
                waiters,
                &control::failure(Status::TooFewServers, &text),
                Otherwise::Retry,
            );
        }
        let record = moved.then(|| durable::encode(&table.record()));
        self.tables.by_id.insert(id, table);
        if let Some(record) = record {
            batch.puts.push((Key::Table(id).emit(), record));
            self.persist_and_begin(id, batch);
        }
        self.settled(id);
    }

    /// Returns the tables that are being created or dropped.
    pub(super) fn unsettled_tables(&self) -> Vec<u64> {
        let tables = self.tables.by_id.iter();
        tables.filter(|(_, table)| table.stage != Stage::Ready).map(|(id, _)| *id).collect()
    }
}

/// Returns the first and the last key hash of the `i`th of `span` equal parts of all hashes.
fn share(i: u32, span: u32) -> (u64, u64) {
    let start = |i: u32| (u128::from(i) << 64) / u128::from(span);
    (start(i) as u64, (start(i + 1) - 1) as u64)
}
