//! The coordinator's part for servers that join, renew and stop, for leases of clients, and for
//! queries about tables and servers.

use alloc::format;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::rpc::Message;

use super::durable::{Batch, Key, Place, Stage};
use super::rate::Rate;
use super::servers::{Reach, Slot};
use super::state::{Coordinator, Otherwise};
use super::table::Tablet;
use super::watch::FIRST_PING_NS;
use crate::message::Status;
use crate::message::control::{
    self, CheckLease, Enlist, Enlisted, GetLeader, GetTable, GetTablets, Hint, HintCrashed, Leader,
    LeaseTimes, Leased, ListServers, ListTables, RenewClient, RenewServer, Renewed, ServerPage,
    ServerState, SetHead, TablePage, TabletState, Tablets, Usage,
};
use crate::objects::segment::SegmentId;
use crate::site::MAX_RACK;
use crate::types::{LeaseId, ServerId, TableId};
use sprat_proto::node::machine::{Caller, Link, Output};

// Servers.
impl Coordinator {
    pub(super) fn enlist(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &Enlist<'_>,
    ) -> Option<Message> {
        let usable = |locators: &str| (1..=control::MAX_LOCATORS).contains(&locators.len());
        if !usable(request.control) || !usable(request.data) || request.site.rack.len() > MAX_RACK {
            return self.fail(
                caller,
                Status::BadFormat,
                "a server names 1 to 2048 bytes of locators, and a rack of at most 255",
            );
        }
        if request.cluster != 0 && request.cluster != self.cluster.id {
            return self.fail(
                caller,
                Status::NotInCluster,
                &format!(
                    "its directory belongs to the cluster {:016x}, and this is \
                     another; name another directory or coordinator",
                    request.cluster
                ),
            );
        }
        let until = now.after(self.patience_ns(request.replicas));
        let server = if let Some(server) = self.servers.by_nonce(request.nonce) {
            // It repeats the request because it did not get the reply.
            if let Some(slot) = self.servers.up_mut(server) {
                (slot.until, slot.heard) = (until, true);
            }
            server
        } else {
            if let Some((replicas, durability)) = self.servers.unlike(request) {
                let text = format!(
                    "the cluster's servers have {replicas} replicas and durability {durability}; \
                     start with --replicas {replicas} --durability {durability}, or end them first"
                );
                return self.fail(caller, Status::NotInCluster, &text);
            }
            if let Some(reply) = self.unwritable(Otherwise::Refused) {
                return Some(reply.into());
            }
            // Its process is dead, whatever becomes of the new one. A server id names a server
            // within its cluster only.
            if request.cluster != 0 && self.servers.up(request.replaces).is_some() {
                self.server_gone(request.replaces);
            }
            let Some(place) = self.servers.vacancy(self.config.max_servers) else {
                return self.fail(
                    caller,
                    Status::NoSpace,
                    "the coordinator's limit of servers is reached",
                );
            };
            self.next_check = self.next_check.min(now.after(FIRST_PING_NS));
            self.add_server(place, request, until)
        };
        let reply = Enlisted {
            cluster: self.cluster.id,
            server,
            list_version: self.servers.version(),
            lease_ns: self.config.server_term_ns,
            term: self.cluster.incarnation,
        };
        self.answer_or(caller, reply.emit(), Otherwise::Refused)
    }

    /// Adds a new server to the list, and returns its id.
    fn add_server(&mut self, place: usize, request: &Enlist<'_>, until: Instant) -> ServerId {
        self.servers.superseded(request.control);
        let generation = self.servers.slots.get(place).map_or(0, |slot| slot.generation) + 1;
        let usage = Usage { capacity_bytes: request.capacity_bytes, ..Usage::default() };
        let slot = Slot {
            generation,
            place: Place::Up,
            nonce: request.nonce,
            control: request.control.into(),
            data: request.data.into(),
            usage,
            rate: Rate::default(),
            replicas: request.replicas,
            durability: request.durability,
            site: request.site.to_owned(),
            head: (SegmentId(0), 0),
            loss: (0, Vec::new()),
            until,
            heard: true,
            tablets: 0,
            linked: false,
            reach: Reach::Unknown,
        };
        let mut batch = Batch::default();
        batch.put(Key::Server(place as u32), &slot.record());
        let server = self.servers.join(place, slot);
        self.persist(batch);
        self.recoveries.notice();
        for id in self.unsettled_tables() {
            self.without_server(id);
        }
        server
    }

    /// Renews a server's lease. Replies at once, apart from the start of the coordinator: a server
    /// that knows its id has a durable enlistment.
    pub(super) fn renew_server(
        &mut self,
        now: Instant,
        caller: Caller,
        request: RenewServer,
    ) -> Option<Message> {
        let slot = self.servers.up(request.server).filter(|_| request.cluster == self.cluster.id);
        let until = slot.map(|slot| now.after(self.patience_ns(slot.replicas)));
        let (Some(slot), Some(until)) = (self.servers.up_mut(request.server), until) else {
            return self.fail(
                caller,
                Status::NotInCluster,
                "this server is not or no more in the cluster",
            );
        };
        (slot.until, slot.heard) = (until, true);
        slot.rate.renewed(now, request.usage.accesses);
        slot.usage = request.usage;
        let list_version = self.servers.version();
        let (lease_ns, term) = (self.config.server_term_ns, self.cluster.incarnation);
        let reply = Renewed { list_version, lease_ns, term }.emit();
        if self.journal.safe == 0 {
            // If this start of the coordinator does not become durable, the next one has the same
            // number, and its versions may name other lists.
            return self.answer(caller, reply);
        }
        Some(reply.into())
    }

    pub(super) fn hint_crashed(
        &mut self,
        caller: Caller,
        request: &HintCrashed,
    ) -> Option<Message> {
        let known = request.cluster == self.cluster.id && self.servers.up(request.server).is_some();
        // A server that does not answer a client may still hold its lease, which ends unless it is
        // renewed.
        if known && request.hint == Hint::Leaving {
            if let Some(reply) = self.unwritable(Otherwise::Refused) {
                return Some(reply.into());
            }
            self.server_gone(request.server);
        }
        self.answer_or(caller, control::done(), Otherwise::Refused)
    }

    /// Raises the lowest segment and epoch of a replica of a server's log that is valid although it
    /// is not closed. A recovery of the log ignores the replicas below, so that a replica that the
    /// master gave up never ends the log too early.
    pub(super) fn set_head(&mut self, caller: Caller, request: &SetHead) -> Option<Message> {
        let head = (request.segment, request.epoch);
        let slot = self.servers.up(request.server);
        let Some(slot) = slot.filter(|_| request.cluster == self.cluster.id) else {
            return self.fail(
                caller,
                Status::NotInCluster,
                "this server is not or no more in the cluster",
            );
        };
        if head > slot.head {
            // A server can raise its head without end: the requests that wait limit the changes.
            if let Some(reply) = self.full().or_else(|| self.unwritable(Otherwise::Refused)) {
                return Some(reply.into());
            }
            let mut batch = Batch::default();
            if let Some(slot) = self.servers.up_mut(request.server) {
                slot.head = head;
                batch.put(Key::Server(request.server.index), &slot.record());
            }
            self.persist(batch);
        }
        self.answer_or(caller, control::done(), Otherwise::Refused)
    }

    /// Marks a server as gone. From now on no server serves its tablets.
    pub(super) fn server_gone(&mut self, server: ServerId) {
        let Some(slot) = self.servers.leave(server) else { return };
        if core::mem::take(&mut slot.linked) {
            self.out.push_back(Output::Disconnect { link: Link(server.index) });
        }
        let mut batch = Batch::default();
        batch.put(Key::Server(server.index), &slot.record());
        let seq = self.persist(batch);
        self.recoveries.notice();
        self.migrations.without_server(server);
        if self.servers.is_recovering(server) {
            self.recoveries.begin(server, seq);
        }
        for id in self.unsettled_tables() {
            self.without_server(id);
        }
    }

    pub(super) fn expire_servers(&mut self, now: Instant) {
        for server in self.servers.expired(now) {
            self.server_gone(server);
        }
    }
}

// Clients' leases.
impl Coordinator {
    pub(super) fn renew_client(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &RenewClient,
    ) -> Option<Message> {
        let term_ns = self.config.client_term_ns;
        let cluster = self.cluster.id;
        let lease = request.lease;
        if lease == LeaseId(0) {
            if let Some(reply) = self.unwritable(Otherwise::Refused) {
                return Some(reply.into());
            }
            if self.leases.len() >= self.config.max_leases {
                return self.fail(
                    caller,
                    Status::NoSpace,
                    "the coordinator's limit of clients is reached",
                );
            }
            let id = self.cluster.next_lease;
            self.cluster.next_lease += 1;
            self.leases.set(id, now.after(term_ns));
            let mut batch = Batch::default();
            batch.put_empty(Key::Lease(id));
            batch.put(Key::Cluster, &self.cluster);
            self.persist(batch);
            let reply = Leased { cluster, lease: LeaseId(id), term_ns };
            return self.answer_or(caller, reply.emit(), Otherwise::Refused);
        }
        let valid_ns = match self.leases.valid_ns(now, lease.0) {
            _ if request.cluster != cluster => None,
            Some(1..) if !request.release => {
                self.leases.set(lease.0, now.after(term_ns));
                return Some(Leased { cluster, lease, term_ns }.emit().into());
            }
            valid_ns => valid_ns,
        };
        if valid_ns.is_some() {
            if let Some(reply) = self.unwritable(Otherwise::Refused) {
                return Some(reply.into());
            }
            self.end_lease(lease.0);
        }
        let reply = if request.release {
            control::done()
        } else {
            control::failure(Status::ExpiredLease, "the lease has expired")
        };
        self.answer_or(caller, reply, Otherwise::Refused)
    }

    pub(super) fn check_lease(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &CheckLease,
    ) -> Option<Message> {
        if request.cluster != self.cluster.id {
            return self.fail(caller, Status::NotInCluster, "this is another cluster");
        }
        if request.leases.len() > control::MAX_CHECKED_LEASES {
            return self.fail(
                caller,
                Status::BadFormat,
                "at most 512 leases can be checked at once",
            );
        }
        let mut valid_ns = Vec::with_capacity(request.leases.len());
        for &LeaseId(id) in &request.leases {
            let valid = self.leases.valid_ns(now, id);
            if valid == Some(0) {
                self.end_lease(id);
            }
            valid_ns.push(valid.unwrap_or(0));
        }
        let reply = LeaseTimes { valid_ns }.emit();
        // Only an end must be durable before the reply: no request names a lease whose grant is not
        // durable.
        if LeaseTimes::parse(&reply).is_ok_and(|times| times.valid_ns.iter().all(|&ns| ns > 0)) {
            return Some(reply.into());
        }
        self.answer(caller, reply)
    }

    fn end_lease(&mut self, id: u64) {
        if self.leases.remove(id) {
            let mut batch = Batch::default();
            batch.delete(Key::Lease(id));
            self.persist(batch);
        }
    }

    /// Ends expired leases of clients, a bounded number at a time. Returns true if there may be
    /// more.
    pub(super) fn expire_leases(&mut self, now: Instant) -> bool {
        let mut batch = Batch::default();
        while batch.deletes.len() < LEASES_A_TURN
            && let Some(id) = self.leases.expired(now)
        {
            self.leases.remove(id);
            batch.delete(Key::Lease(id));
        }
        let more = batch.deletes.len() == LEASES_A_TURN;
        if !batch.deletes.is_empty() {
            self.persist(batch);
        }
        more
    }
}

// Questions.
impl Coordinator {
    pub(super) fn leader(&mut self, caller: Caller, _: &GetLeader) -> Option<Message> {
        let leader = Leader { term: self.cluster.incarnation, locators: &self.config.locators };
        let reply = leader.emit();
        self.answer(caller, reply)
    }

    pub(super) fn get_table(&mut self, caller: Caller, request: &GetTable<'_>) -> Option<Message> {
        let table = self.tables.by_name.get(request.name).map(|id| (*id, &self.tables.by_id[id]));
        match table {
            Some((id, table)) if table.stage == Stage::Ready => {
                self.answer(caller, table.key(self.cluster.id, id).emit())
            }
            Some(_) => self.fail(caller, Status::Retry, "the table is being created"),
            None => self.fail(caller, Status::TableDoesntExist, "there is no table of that name"),
        }
    }

    pub(super) fn tablets(&mut self, caller: Caller, request: &GetTablets) -> Option<Message> {
        let Some(table) = self.tables.by_id.get(&request.table.0) else {
            return self.fail(caller, Status::TableDoesntExist, "there is no such table");
        };
        match table.stage {
            Stage::Creating => {
                return self.fail(caller, Status::Retry, "the table is being created");
            }
            Stage::Dropping => {
                return self.fail(caller, Status::TableDoesntExist, "the table was dropped");
            }
            Stage::Ready => {}
        }
        let tablets = table.tablets.iter().map(|tablet| {
            let slot = self.servers.up(tablet.server);
            let state = match slot {
                Some(_) => TabletState::Normal,
                None if self.servers.is_recovering(tablet.server) => TabletState::Recovering,
                None => TabletState::Lost,
            };
            let data = slot.map_or("", |slot| slot.data.as_str());
            let &Tablet { first, last, server, .. } = tablet;
            control::Tablet { first, last, server, state, data }
        });
        let reply = Tablets {
            cluster: self.cluster.id,
            hash_key: table.hash_key,
            tablets: tablets.collect(),
        }
        .emit();
        self.answer(caller, reply)
    }

    pub(super) fn list_tables(&mut self, caller: Caller, request: &ListTables) -> Option<Message> {
        let Some(first) = request.after.0.checked_add(1) else {
            return self.answer(caller, TablePage { more: false, tables: Vec::new() }.emit());
        };
        let mut ready =
            self.tables.by_id.range(first..).filter(|(_, table)| table.stage == Stage::Ready).map(
                |(&id, table)| {
                    let servers =
                        || table.tablets.iter().map(|tablet| self.servers.up(tablet.server));
                    let is_recovering = |t: &&Tablet| self.servers.is_recovering(t.server);
                    let recovering = table.tablets.iter().filter(is_recovering).count();
                    let down = servers().filter(Option::is_none).count();
                    control::Table {
                        table: TableId(id),
                        tablets: table.tablets.len() as u16,
                        lost: (down - recovering) as u16,
                        recovering: recovering as u16,
                        unheard: servers().flatten().filter(|slot| !slot.heard).count() as u16,
                        durability: table.durability,
                        name: &table.name,
                    }
                },
            );
        let tables: Vec<_> = ready.by_ref().take(control::MAX_PAGE).collect();
        let reply = TablePage { more: ready.next().is_some(), tables }.emit();
        self.answer(caller, reply)
    }

    pub(super) fn list_servers(
        &mut self,
        caller: Caller,
        request: &ListServers,
    ) -> Option<Message> {
        let slots = self.servers.slots.iter().enumerate().skip(request.from as usize);
        let mut known = slots.filter(|(_, slot)| slot.place != Place::Free).map(|(index, slot)| {
            let server = ServerId { index: index as u32, generation: slot.generation };
            let state = match slot.place {
                Place::Up => ServerState::Up,
                _ if slot.replicas == 0 => ServerState::Crashed,
                _ if self.recoveries.blocked(server).is_empty() => ServerState::Recovering,
                _ => ServerState::Blocked,
            };
            control::Server {
                server,
                state,
                tablets: slot.tablets,
                usage: slot.usage.clone(),
                rate: slot.rate.latest(),
                replicas: slot.replicas,
                durability: slot.durability,
                site: slot.site.as_site(),
                control: &slot.control,
                data: &slot.data,
                blocked: self.recoveries.blocked(server),
            }
        });
        let servers: Vec<_> = known.by_ref().take(control::MAX_PAGE).collect();
        let next = known.next().map_or(0, |server| server.server.index);
        let reply = ServerPage { next, servers }.emit();
        self.answer(caller, reply)
    }
}

/// The most client leases that end in one turn.
const LEASES_A_TURN: usize = 256;
