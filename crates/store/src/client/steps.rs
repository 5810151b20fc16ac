//! What happens to an operation between its start and its end: it is sent, waits, pauses, is sent again.

use alloc::string::ToString;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::rpc::Payload;

use super::answer::{Answer, Done, Error, Page, ServerInfo, TableInfo, Value, WaitedFor};
use super::routes::Owner;
use super::{Client, Cursor, Kind, Op, State, enqueue, op};
use crate::message::Status;
use crate::message::control::{
    self, CreateTable, DropTable, GetTable, GetTablets, Leased, ListServers, ListTables,
    RenewClient, ServerPage, TableKey, TablePage, Tablets,
};
use crate::message::data::{
    self, Amount, Enumerate, Increment, Once, Read, Refusal, Remove, Target, Write,
};
use crate::types::{LeaseId, TableId};
use sprat_proto::node::machine::{Link, Output};

// Sending.
impl Client {
    /// Sends an operation, or parks or ends it if that cannot be.
    #[inline]
    pub(super) fn send(&mut self, now: Instant, index: u32) -> Option<Output> {
        let slot = &self.slots[index as usize];
        if slot.deadline <= now {
            self.end_late(index);
            return None;
        }
        match slot.kind {
            Kind::Read
            | Kind::Write
            | Kind::Remove
            | Kind::Increment(_)
            | Kind::Enumerate { .. } => self.send_object(now, index),
            Kind::Echo => {
                let (peer, message) = (slot.place, data::echo(&slot.body));
                Some(self.call(now, index, peer, message))
            }
            Kind::Stats => {
                let peer = slot.place;
                Some(self.call(now, index, peer, data::stats()))
            }
            _ => {
                let message = self.control_message(now, index);
                Some(self.call(now, index, 0, message))
            }
        }
    }

    #[inline]
    fn send_object(&mut self, now: Instant, index: u32) -> Option<Output> {
        let slot = &mut self.slots[index as usize];
        let table = &self.routes.tables[slot.place as usize];
        let tablet = table.tablet(|hasher| slot.hash(hasher));
        // After a failure the map may be wrong: if it is being asked for anew, the answer is worth waiting for.
        let known = tablet.filter(|_| slot.failures == 0 || table.asking.is_none());
        let Some(tablet) = known else {
            self.park_for_tablets(index);
            return None;
        };
        let &Owner::Peer(peer) = &tablet.owner else {
            let owner = tablet.owner.clone();
            self.without_owner(now, index, owner);
            return None;
        };
        let target = Target { cluster: self.cluster, table: table.id, rules: slot.rules };
        let bounds = (tablet.first, tablet.last);
        let once = if slot.kind.is_numbered() { self.once(now, index)? } else { Once::default() };
        let slot = &mut self.slots[index as usize];
        let (key, value) = slot.body.split_at(slot.key_len);
        let room = core::mem::take(&mut self.spare);
        let message = match &mut slot.kind {
            Kind::Read => Read { target, key }.emit_in(room),
            Kind::Write => Write { target, once, key, value }.emit_in(room),
            Kind::Remove => Remove { target, once, key }.emit_in(room),
            Kind::Increment(amount) => {
                Increment { target, once, amount: *amount, key }.emit_in(room)
            }
            Kind::Enumerate { cursor, first, last } => {
                (*first, *last) = bounds;
                let (cursor, limit_bytes) = (cursor.within, self.config.page_bytes);
                let Target { cluster, table, .. } = target;
                Enumerate { cluster, table, first: *first, last: *last, cursor, limit_bytes }.emit()
            }
            _ => Vec::new(),
        };
        Some(self.call(now, index, peer, message))
    }

    /// The request for anything that the coordinator answers.
    fn control_message(&mut self, now: Instant, index: u32) -> Vec<u8> {
        let slot = &self.slots[index as usize];
        let name = core::str::from_utf8(&slot.body).unwrap_or_default();
        let rows = slot.rows.as_ref();
        match slot.kind {
            Kind::Create { span } => CreateTable { span, name }.emit(),
            Kind::Drop(table) if table != TableId(0) => DropTable { table, name }.emit(),
            Kind::ListTables => {
                let after =
                    rows.and_then(|rows| rows.tables.last()).map_or(TableId(0), |row| row.table);
                ListTables { after }.emit()
            }
            Kind::ListServers => {
                let from =
                    rows.and_then(|rows| rows.servers.last()).map_or(0, |row| row.server.index + 1);
                ListServers { from }.emit()
            }
            Kind::Tablets => {
                GetTablets { table: self.routes.tables[slot.place as usize].id }.emit()
            }
            Kind::Lease => {
                self.rifl.asked_at = now;
                let lease = self.rifl.lease;
                let cluster = if lease == LeaseId(0) { 0 } else { self.cluster };
                RenewClient { cluster, lease, release: false }.emit()
            }
            _ => GetTable { name }.emit(),
        }
    }

    #[inline]
    fn call(&mut self, now: Instant, index: u32, peer: u32, message: Vec<u8>) -> Output {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Calling;
        let deadline = slot.deadline.min(now.after(self.config.try_timeout_ns));
        let link = Link(peer);
        let call = Output::Call { link, tag: op(index, slot).0, message: message.into(), deadline };
        let peer = &mut self.routes.peers[peer as usize];
        if peer.bound {
            return call;
        }
        peer.bound = true;
        self.out.push_back(call);
        Output::Connect { link, locator: peer.locators().into() }
    }

    /// What makes a mutation happen once; `None` if it had to be parked or ended.
    #[inline]
    fn once(&mut self, now: Instant, index: u32) -> Option<Once> {
        let slot = &mut self.slots[index as usize];
        if slot.rpc != 0 && slot.lease != self.rifl.lease {
            // Its lease has ended. Under another one it could happen a second time.
            if slot.maybe {
                self.refuse(index, Error::Unknown);
                return None;
            }
            slot.rpc = 0;
        }
        if !self.rifl.valid(now) {
            let op = op(index, slot);
            enqueue(&mut self.rifl.parked, &self.slots, op);
            self.park(index, WaitedFor::Lease);
            self.ask_for_lease();
            return None;
        }
        if slot.rpc == 0 {
            let Some(rpc) = self.rifl.assign() else {
                let op = op(index, slot);
                enqueue(&mut self.rifl.queued, &self.slots, op);
                self.park(index, WaitedFor::Window);
                return None;
            };
            slot.rpc = rpc;
            slot.lease = self.rifl.lease;
        }
        Some(self.rifl.once(slot.rpc))
    }
}

// Waiting.
impl Client {
    /// The operation goes on when something else has happened, or ends at its deadline.
    fn park(&mut self, index: u32, for_what: WaitedFor) {
        let deadline = self.slots[index as usize].deadline;
        self.slots[index as usize].state = State::Parked(for_what);
        self.set_timer(index, deadline);
    }

    fn set_timer(&mut self, index: u32, at: Instant) {
        if at == Instant::NEVER {
            return;
        }
        self.slots[index as usize].timer = Some(at);
        self.timers.insert((at, index));
    }

    /// A parked operation goes on.
    pub(super) fn unpark(&mut self, op: Op, from: WaitedFor) -> bool {
        let Some(index) = self.parked(op, from) else { return false };
        let slot = &mut self.slots[index as usize];
        if let Some(at) = slot.timer.take() {
            self.timers.remove(&(at, index));
        }
        slot.state = State::Ready;
        self.ready.push_back(index);
        true
    }

    /// The operation is sent again after a pause.
    #[cold]
    pub(super) fn pause(&mut self, now: Instant, index: u32, at_least_ns: u64) {
        let slot = &mut self.slots[index as usize];
        let pause_ns =
            (self.config.pause_ns << slot.failures.min(16)).min(self.config.max_pause_ns);
        slot.failures = slot.failures.saturating_add(1);
        slot.state = State::Pausing;
        // Half of it is drawn, so that the clients of a server that comes back do not come all at once.
        let pause_ns = pause_ns / 2 + self.rng.below(pause_ns / 2 + 1);
        let at = now.after(pause_ns.max(at_least_ns)).min(slot.deadline);
        self.set_timer(index, at);
    }

    #[cold]
    fn park_for_tablets(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let (op, table) = (op(index, slot), slot.place);
        enqueue(&mut self.routes.tables[table as usize].parked, &self.slots, op);
        self.park(index, WaitedFor::Coordinator);
        self.ask_for_tablets(table);
    }

    /// The coordinator is asked for a table's tablets, unless it is already.
    pub(super) fn ask_for_tablets(&mut self, table: u32) {
        if self.routes.tables[table as usize].asking.is_none() {
            let index = self.begin(Kind::Tablets, table, Instant::NEVER);
            self.routes.tables[table as usize].asking = Some(index);
            self.start(index);
        }
    }

    /// The same for this client's lease.
    pub(super) fn ask_for_lease(&mut self) {
        if self.rifl.asking.is_none() {
            let index = self.begin(Kind::Lease, 0, Instant::NEVER);
            self.rifl.asking = Some(index);
            self.start(index);
        }
    }

    /// Numbers of the window have become free.
    #[cold]
    pub(super) fn open_window(&mut self) {
        for _ in 0..self.rifl.room() {
            while let Some(op) = self.rifl.queued.pop_front()
                && !self.unpark(op, WaitedFor::Window)
            {}
        }
    }

    #[cold]
    fn without_owner(&mut self, now: Instant, index: u32, owner: Owner) {
        match owner {
            Owner::Lost => self.refuse(index, Error::TabletLost),
            Owner::Unreachable(text) => self.refuse(index, Error::NoTransport(text)),
            Owner::Nobody | Owner::Peer(_) => {
                self.ask_for_tablets(self.slots[index as usize].place);
                self.pause(now, index, 0);
            }
        }
    }

    /// The operation's deadline has passed.
    #[cold]
    pub(super) fn end_late(&mut self, index: u32) {
        let error = self.lateness(index);
        self.refuse(index, error);
    }

    pub(super) fn lateness(&self, index: u32) -> Error {
        let slot = &self.slots[index as usize];
        let waited_for = match (slot.state, slot.kind) {
            (State::Parked(what), _) => what,
            (_, Kind::Echo | Kind::Stats) if slot.place != 0 => WaitedFor::Server,
            (_, kind) if kind.is_object() => WaitedFor::Server,
            _ => WaitedFor::Coordinator,
        };
        let peer = if waited_for == WaitedFor::Server { self.peer_of(index) } else { Some(0) };
        let why = peer.and_then(|peer| self.routes.peers[peer as usize].why.clone());
        Error::Deadline { maybe_executed: slot.maybe, waited_for, why }
    }

    /// The server that an operation's calls go to, if it is known.
    pub(super) fn peer_of(&self, index: u32) -> Option<u32> {
        let slot = &self.slots[index as usize];
        if !slot.kind.is_object() {
            return Some(if matches!(slot.kind, Kind::Echo | Kind::Stats) {
                slot.place
            } else {
                0
            });
        }
        let table = &self.routes.tables[slot.place as usize];
        let owner = &table.tablet(|hasher| slot.hash(hasher))?.owner;
        if let Owner::Peer(peer) = owner { Some(*peer) } else { None }
    }
}

// Answers.
impl Client {
    #[inline]
    pub(super) fn answered<'b>(
        &mut self,
        now: Instant,
        index: u32,
        reply: Payload<'b>,
    ) -> Option<Done<'b>> {
        let kind = self.slots[index as usize].kind;
        let verdict = match kind {
            Kind::Read => data::read_reply(&reply).map(|(version, value)| {
                let skip = reply.len() - value.len();
                (version, skip)
            }),
            Kind::Write | Kind::Remove => data::mutation_reply(&reply).map(|version| (version, 0)),
            _ => return self.answered_otherwise(now, index, kind, reply),
        };
        match verdict {
            Ok((version, skip)) => {
                let op = self.end(index);
                let answer = if kind == Kind::Read {
                    Answer::Object { version, value: Value { payload: reply, skip } }
                } else {
                    Answer::Version(version)
                };
                Some(Done { op, outcome: Ok(answer) })
            }
            Err(refusal) => self.refused(now, index, &refusal),
        }
    }

    fn answered_otherwise<'b>(
        &mut self,
        now: Instant,
        index: u32,
        kind: Kind,
        reply: Payload<'b>,
    ) -> Option<Done<'b>> {
        let answer = match kind {
            Kind::Increment(amount) => match data::increment_reply(&reply) {
                Ok((version, sum)) => match amount {
                    Amount::Integer(_) => Answer::Integer { version, sum: i64::from_be_bytes(sum) },
                    Amount::Double(_) => Answer::Double { version, sum: f64::from_be_bytes(sum) },
                },
                Err(refusal) => return self.refused(now, index, &refusal),
            },
            Kind::Enumerate { first, last, .. } => match data::objects_reply(&reply) {
                Ok(objects) => {
                    let next = match objects.next {
                        Some(within) => Some(Cursor { hash: first, within }),
                        None => last.checked_add(1).map(|hash| Cursor { hash, within: 0 }),
                    };
                    Answer::Page(Page { payload: reply, next })
                }
                Err(refusal) => return self.refused(now, index, &refusal),
            },
            Kind::Echo | Kind::Stats => match data::echo_reply(&reply) {
                Ok(bytes) => {
                    let skip = reply.len() - bytes.len();
                    Answer::Bytes(Value { payload: reply, skip })
                }
                Err(refusal) => return self.refused(now, index, &refusal),
            },
            _ => return self.coordinator_answered(now, index, kind, &reply),
        };
        let op = self.end(index);
        Some(Done { op, outcome: Ok(answer) })
    }

    fn coordinator_answered(
        &mut self,
        now: Instant,
        index: u32,
        kind: Kind,
        reply: &[u8],
    ) -> Option<Done<'static>> {
        match self.coordinator_said(now, index, kind, reply) {
            Ok(answer) => {
                let op = answer.is_some().then(|| self.end(index))?;
                Some(Done { op, outcome: Ok(answer?) })
            }
            Err(status) => {
                let text = control::failure_text(reply);
                self.refused(now, index, &Refusal { status, version: Default::default(), text })
            }
        }
    }

    /// `None` if there is more to ask, or if it was the client's own question.
    fn coordinator_said(
        &mut self,
        now: Instant,
        index: u32,
        kind: Kind,
        reply: &[u8],
    ) -> Result<Option<Answer<'static>>, Status> {
        match kind {
            Kind::Create { .. } | Kind::Lookup => {
                let key = TableKey::parse(reply)?;
                return Ok(self.learn_cluster(key.cluster).then_some(Answer::Table(key.table)));
            }
            Kind::Drop(TableId(0)) => {
                let key = TableKey::parse(reply)?;
                if self.learn_cluster(key.cluster) {
                    self.slots[index as usize].kind = Kind::Drop(key.table);
                    self.go_on(index);
                }
            }
            Kind::Drop(table) => {
                let (status, _) = control::outcome(reply)?;
                if status != Status::Ok {
                    return Err(status);
                }
                let table = self.routes.table(table);
                self.routes.tables[table as usize].tablets.clear();
                return Ok(Some(Answer::Dropped));
            }
            Kind::ListTables => return self.add_tables(index, &TablePage::parse(reply)?),
            Kind::ListServers => return self.add_servers(index, &ServerPage::parse(reply)?),
            Kind::Tablets => {
                let tablets = Tablets::parse(reply)?;
                if self.learn_cluster(tablets.cluster) {
                    let table = self.slots[index as usize].place;
                    self.routes.learn(table, &tablets)?;
                    self.question_answered(index, WaitedFor::Coordinator);
                }
            }
            Kind::Lease => {
                let leased = Leased::parse(reply)?;
                if leased.lease == LeaseId(0) {
                    return Err(Status::BadFormat);
                }
                if self.learn_cluster(leased.cluster) {
                    self.rifl.granted(leased.lease, leased.term_ns);
                    // A term so short that it is over already must not be asked for again and again at once.
                    if !self.rifl.valid(now) {
                        self.pause(now, index, 0);
                        return Ok(None);
                    }
                    self.question_answered(index, WaitedFor::Lease);
                }
            }
            _ => {}
        }
        Ok(None)
    }

    fn add_tables(
        &mut self,
        index: u32,
        page: &TablePage<'_>,
    ) -> Result<Option<Answer<'static>>, Status> {
        let rows = self.slots[index as usize].rows.get_or_insert_default();
        rows.tables.extend(page.tables.iter().map(|row| TableInfo {
            table: row.table,
            name: row.name.to_string(),
            tablets: row.tablets,
            lost: row.lost,
            unheard: row.unheard,
        }));
        if !page.more || page.tables.is_empty() {
            return Ok(Some(Answer::Tables(core::mem::take(&mut rows.tables))));
        }
        self.go_on(index);
        Ok(None)
    }

    fn add_servers(
        &mut self,
        index: u32,
        page: &ServerPage<'_>,
    ) -> Result<Option<Answer<'static>>, Status> {
        let rows = self.slots[index as usize].rows.get_or_insert_default();
        rows.servers.extend(page.servers.iter().map(|row| ServerInfo {
            server: row.server,
            state: row.state,
            tablets: row.tablets,
            usage: row.usage.clone(),
            control: row.control.to_string(),
            data: row.data.to_string(),
        }));
        if page.next == 0 || page.servers.is_empty() {
            return Ok(Some(Answer::Servers(core::mem::take(&mut rows.servers))));
        }
        self.go_on(index);
        Ok(None)
    }

    /// An operation of several steps takes the next one.
    pub(super) fn go_on(&mut self, index: u32) {
        self.slots[index as usize].state = State::Ready;
        self.slots[index as usize].failures = 0;
        self.ready.push_back(index);
    }

    /// False if the coordinator belongs to another cluster than before: then everything has ended.
    fn learn_cluster(&mut self, cluster: u64) -> bool {
        if self.cluster == 0 {
            self.cluster = cluster;
        }
        if cluster == self.cluster {
            return true;
        }
        self.replaced = true;
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            if slot.state != State::Free {
                let own = slot.kind.is_own();
                let op = self.end(index);
                if !own {
                    self.events.push_back(Done { op, outcome: Err(Error::ClusterReplaced) });
                }
            }
        }
        self.rifl = super::rifl::Rifl::new();
        false
    }

    /// One of the client's own questions is answered; those who waited go on.
    fn question_answered(&mut self, index: u32, what: WaitedFor) {
        for waiting in self.close_question(index) {
            self.unpark(waiting, what);
        }
    }
}
