//! The steps by which a client sends an operation, or lets it wait until it can be sent.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::Message;
use sprat_proto::time::MS;

use super::error::{Error, WaitedFor};
use super::routes::Owner;
use super::state::{Client, Kind, State, TableOptions, enqueue, op};
use crate::message::control::{
    CreateTable, DropTable, GetLeader, GetTable, GetTablets, ListServers, ListTables, RenewClient,
};
use crate::message::data::{Once, Target};
use crate::message::migration::{ListMigrations, MergeTablets, MoveTablet, SplitTablet};
use crate::message::recovery::AcceptLoss;
use crate::ops::{Parts, Request, Scan};
use crate::types::{LeaseId, TableId};

/// The longest time in nanoseconds that a client waits for one of several coordinators before it
/// tries another one. One that is stopped keeps its connections open.
const LEADER_TRY_NS: u64 = 500 * MS;

/// A call: a request of a client on its way to a server.
#[derive(Debug)]
pub struct Call {
    /// The link of the server that the call goes to.
    pub link: Link,
    /// The tag that the call's response has.
    pub tag: u64,
    /// The request of the call.
    pub bytes: Vec<u8>,
    /// The time at which the client gives up this try of the operation.
    pub deadline: Instant,
}

impl Client {
    /// Queues the call of an operation, or parks or ends the operation if it cannot be sent.
    pub(super) fn send(&mut self, now: Instant, index: u32) {
        if self.slots[index as usize].kind.is_transaction() {
            self.advance(now, index);
        } else if let Some(peer) = self.prepare(now, index) {
            let slot = &self.slots[index as usize];
            if slot.part_of.is_some() && slot.long().is_none() {
                self.bundle(now, index, peer);
            } else {
                self.queue_call(now, index, peer);
            }
        }
    }

    /// Returns the call of an operation whose request is short, with the buffer of the request. If
    /// the call must wait for a link, queues it. Parks or ends an operation that cannot be sent.
    #[inline(always)]
    pub(super) fn call_directly(&mut self, now: Instant, index: u32) -> Option<Call> {
        let peer = self.prepare(now, index)?;
        if !self.routes.peers[peer as usize].bound {
            self.queue_call(now, index, peer);
            return None;
        }
        let (tag, deadline) = self.begin_call(now, index);
        let bytes = core::mem::take(&mut self.slots[index as usize].bytes);
        Some(Call { link: Link(peer), tag, bytes, deadline })
    }

    /// Completes the request of an operation for its next try, and returns the peer that it goes
    /// to. Parks or ends an operation that cannot be sent.
    #[inline(always)]
    fn prepare(&mut self, now: Instant, index: u32) -> Option<u32> {
        let slot = &self.slots[index as usize];
        if slot.deadline <= now {
            self.end_late(index);
            return None;
        }
        match slot.kind {
            Kind::Server(request) if request.has_tablet() => {
                self.prepare_object(now, index, request)
            }
            Kind::Server(_) | Kind::Step => Some(slot.place),
            _ => Some(0),
        }
    }

    #[inline(always)]
    fn prepare_object(&mut self, now: Instant, index: u32, request: Request) -> Option<u32> {
        let slot = &mut self.slots[index as usize];
        let table = &self.routes.tables[slot.place as usize];
        let tablet = table.tablet(|hasher| slot.hash(hasher));
        // After a failure the tablets may have moved. While the client asks for them, it waits.
        let known = tablet.filter(|_| slot.failures() == 0 || table.asking.is_none());
        let Some(tablet) = known else {
            self.park_for_tablets(index);
            return None;
        };
        let &Owner::Peer(peer) = &tablet.owner else {
            let owner = tablet.owner.clone();
            self.without_owner(now, index, owner);
            return None;
        };
        match request {
            Request::Enumerate(scan) => {
                let last = scan.limit.min(tablet.last);
                let request = Request::Enumerate(Scan { last, ..scan });
                let target = Target { cluster: self.cluster, table: table.id, ..Target::default() };
                let page_bytes = self.config.page_bytes;
                let parts = Parts { target, page_bytes, ..Parts::default() };
                slot.bytes = request.emit_in(parts, core::mem::take(&mut slot.bytes));
                slot.kind = Kind::Server(request);
            }
            _ => Target::set_cluster(&mut slot.bytes, self.cluster),
        }
        if request.changes() {
            let once = self.once(now, index)?;
            once.set_in(&mut self.slots[index as usize].bytes);
        }
        Some(peer)
    }

    /// Queues the call of an operation whose request is complete, behind the binding of its link if
    /// the link is not bound yet.
    pub(super) fn queue_call(&mut self, now: Instant, index: u32, peer: u32) {
        let slot = &self.slots[index as usize];
        let mut message = match slot.kind {
            Kind::Server(_) => {
                let mut bytes = core::mem::take(&mut self.spare);
                bytes.clear();
                bytes.extend_from_slice(&slot.bytes);
                Message::from(bytes)
            }
            Kind::Bundle | Kind::Step => {
                core::mem::take(&mut self.slots[index as usize].bytes).into()
            }
            _ => self.control_message(now, index).into(),
        };
        if let Some(value) = self.slots[index as usize].long() {
            message.slices.push(self.values.slice(value));
        }
        let (tag, mut deadline) = self.begin_call(now, index);
        if peer == 0 {
            self.slots[index as usize].extra().binding = self.coordinators.binding();
            if self.coordinators.are_several() {
                deadline = deadline.min(now.after(LEADER_TRY_NS));
            }
        }
        self.connect(peer);
        let link = Link(peer);
        self.out.push_back(Output::Call { link, tag, message, deadline });
    }

    /// Binds the link of a peer unless it is bound.
    fn connect(&mut self, peer: u32) {
        let link = Link(peer);
        let state = &mut self.routes.peers[peer as usize];
        if core::mem::replace(&mut state.bound, true) {
            return;
        }
        self.out.push_back(match peer {
            0 => self.coordinators.connect(),
            _ => Output::Connect { link, locator: state.locators().into() },
        });
    }

    /// Records that an operation has a call in progress, and returns the call's tag and deadline.
    #[inline(always)]
    fn begin_call(&mut self, now: Instant, index: u32) -> (u64, Instant) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Calling;
        (op(index, slot).0, slot.deadline.min(now.after(self.config.try_timeout_ns)))
    }

    /// Returns the request of an operation that the coordinator answers.
    fn control_message(&mut self, now: Instant, index: u32) -> Vec<u8> {
        let slot = &self.slots[index as usize];
        let name = core::str::from_utf8(&slot.bytes).unwrap_or_default();
        let rows = slot.extra.as_ref().map(|extra| &extra.rows);
        match slot.kind {
            Kind::Create(TableOptions { span, durability }) => {
                CreateTable { span, durability, name }.emit()
            }
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
            Kind::Leader => GetLeader {}.emit(),
            Kind::AcceptLoss { server, accept } => AcceptLoss { server, accept }.emit(),
            Kind::Split { at } => SplitTablet { name, at }.emit(),
            Kind::Merge { at } => MergeTablets { name, at }.emit(),
            Kind::Move { first, last, target } => MoveTablet { name, first, last, target }.emit(),
            Kind::ListTablets(table) => GetTablets { table }.emit(),
            Kind::ListMigrations => {
                let after =
                    rows.and_then(|rows| rows.migrations.last()).map_or(0, |row| row.number);
                ListMigrations { after }.emit()
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

    /// Returns the identity of a mutation, or `None` if the mutation had to be parked or ended.
    #[inline]
    fn once(&mut self, now: Instant, index: u32) -> Option<Once> {
        let slot = &mut self.slots[index as usize];
        if slot.rpc != 0 && slot.lease != self.rifl.lease {
            // Its lease has ended. Under another lease it could be executed a second time.
            if slot.maybe() {
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

impl Client {
    /// Parks an operation until `for_what` has answered, or until its deadline.
    pub(super) fn park(&mut self, index: u32, for_what: WaitedFor) {
        let deadline = self.slots[index as usize].deadline;
        self.slots[index as usize].state = State::Parked(for_what);
        self.set_timer(index, deadline);
    }

    fn set_timer(&mut self, index: u32, at: Instant) {
        if at == Instant::NEVER {
            return;
        }
        self.slots[index as usize].extra().timer = Some(at);
        self.timers.insert((at, index));
    }

    /// Sends an operation again after a pause.
    #[cold]
    pub(super) fn pause(&mut self, now: Instant, index: u32, at_least_ns: u64) {
        let slot = &mut self.slots[index as usize];
        self.counters.retried += u64::from(!slot.kind.is_own());
        let pause_ns =
            (self.config.pause_ns << slot.failures().min(16)).min(self.config.max_pause_ns);
        slot.extra().failures = slot.failures().saturating_add(1);
        slot.state = State::Pausing;
        // Half of the pause is random, so that the clients of a restarted server spread their
        // requests.
        let pause_ns = pause_ns / 2 + self.rng.below(pause_ns / 2 + 1);
        let at = now.after(pause_ns.max(at_least_ns)).min(slot.deadline);
        self.set_timer(index, at);
    }

    #[cold]
    pub(super) fn park_for_tablets(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let (op, table) = (op(index, slot), slot.place);
        enqueue(&mut self.routes.tables[table as usize].parked, &self.slots, op);
        self.park(index, WaitedFor::Coordinator);
        self.ask_for_tablets(table);
    }

    /// Asks the coordinator for the tablets of a table, unless a request is in progress.
    pub(super) fn ask_for_tablets(&mut self, table: u32) {
        if self.routes.tables[table as usize].asking.is_none() {
            let index = self.begin(Kind::Tablets, table, Instant::NEVER);
            self.routes.tables[table as usize].asking = Some(index);
            self.counters.route_refreshes += 1;
            self.start(index);
        }
    }

    /// Asks the coordinator for this client's lease, unless a request is in progress.
    pub(super) fn ask_for_lease(&mut self) {
        if self.rifl.asking.is_none() {
            let index = self.begin(Kind::Lease, 0, Instant::NEVER);
            self.rifl.asking = Some(index);
            self.start(index);
        }
    }

    #[cold]
    pub(super) fn without_owner(&mut self, now: Instant, index: u32, owner: Owner) {
        match owner {
            Owner::Lost => self.refuse(index, Error::TabletLost),
            Owner::Unreachable(text) => self.refuse(index, Error::NoTransport(text)),
            Owner::Recovering => self.await_recovery(now, index),
            Owner::Pending | Owner::Peer(_) => {
                self.ask_for_tablets(self.slots[index as usize].place);
                self.pause(now, index, 0);
            }
        }
    }

    /// Lets an operation wait until the coordinator knows the next owner of a tablet that servers
    /// recover.
    fn await_recovery(&mut self, now: Instant, index: u32) {
        let slot = &mut self.slots[index as usize];
        let refresh_at = self.routes.tables[slot.place as usize].refresh_at;
        if refresh_at <= now {
            return self.park_for_tablets(index);
        }
        slot.state = State::Pausing;
        let at = refresh_at.min(slot.deadline);
        self.set_timer(index, at);
    }

    /// Ends an operation whose deadline has passed.
    #[cold]
    pub(super) fn end_late(&mut self, index: u32) {
        let error = self.lateness(index);
        self.refuse(index, error);
    }

    /// Counts an operation whose deadline has passed, and returns its error.
    pub(super) fn lateness(&mut self, index: u32) -> Error {
        self.counters.late += 1;
        let slot = &self.slots[index as usize];
        let waited_for = match (slot.state, slot.kind) {
            _ if self.owner_of(index) == Some(&Owner::Recovering) => WaitedFor::Recovery,
            (State::Parked(what), _) => what,
            (_, kind) if kind.is_object() || kind == Kind::Transaction => WaitedFor::Server,
            (_, Kind::Server(_)) if slot.place != 0 => WaitedFor::Server,
            _ => WaitedFor::Coordinator,
        };
        let waited_for = match waited_for {
            WaitedFor::Coordinator | WaitedFor::Lease if self.routes.peers[0].leaderless => {
                WaitedFor::Leader
            }
            waited_for => waited_for,
        };
        let peer = if waited_for == WaitedFor::Server { self.peer_of(index) } else { Some(0) };
        let why = peer.and_then(|peer| self.routes.peers[peer as usize].why.clone());
        Error::Deadline { maybe_executed: slot.maybe(), waited_for, why }
    }

    /// Returns the peer that the calls of an operation go to, if it is known.
    pub(super) fn peer_of(&self, index: u32) -> Option<u32> {
        let slot = &self.slots[index as usize];
        if !slot.kind.is_object() {
            let has_peer = matches!(slot.kind, Kind::Server(_) | Kind::Bundle | Kind::Step);
            return Some(if has_peer { slot.place } else { 0 });
        }
        if let Some(Owner::Peer(peer)) = self.owner_of(index) { Some(*peer) } else { None }
    }

    /// Returns the owner of the tablet that an operation goes to, if both are known.
    fn owner_of(&self, index: u32) -> Option<&Owner> {
        let slot = &self.slots[index as usize];
        let table = slot.kind.is_object().then(|| &self.routes.tables[slot.place as usize])?;
        Some(&table.tablet(|hasher| slot.hash(hasher))?.owner)
    }
}
