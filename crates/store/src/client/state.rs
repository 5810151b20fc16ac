//! The state of a client: one slot for each operation, and the state that operations share.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::node::machine::{Link, Output};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Instant, Rng};

use super::answer::{Answer, Done, MigrationInfo, ServerInfo, TableInfo};
use super::counters::Counters;
use super::cursor::Cursor;
use super::error::{Error, WaitedFor};
use super::op::Op;
use super::parts::{PartOf, Results};
use super::rifl::Rifl;
use super::routes::Routes;
use super::transaction::{Step, Transaction};
use super::values::{LongValue, Values};
use crate::durability::TableDurability;
use crate::hash::KeyHasher;
use crate::leading::{Binding, Coordinators};
use crate::ops::Request;
use crate::types::{KeyHash, LeaseId, ServerId, TableId};

/// The length in bytes of the buffer that a free slot keeps for the request of the next operation.
pub(super) const KEPT_BYTES: usize = 4096;

/// A client's link to the coordinators.
const COORDINATOR: Link = Link(0);
/// The number that stands for no slot.
pub(super) const NONE: u32 = u32::MAX;

/// The options of a client of the store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The locators of the coordinators, of which one leads, with `;` between them.
    pub coordinator: String,
    /// The transports to use towards servers, the best first ("fast+shm", "tcp"). If empty, the
    /// client uses all transports that a server lists, in the server's order.
    pub transports: Vec<String>,
    /// The time in nanoseconds that one try of an operation may take before the client sends it
    /// again.
    pub try_timeout_ns: u64,
    /// The first pause in nanoseconds before an operation is sent again. Each further pause is
    /// twice as long.
    pub pause_ns: u64,
    /// The longest pause before an operation is sent again, in nanoseconds.
    pub max_pause_ns: u64,
    /// The maximum of operations that the client has in progress.
    pub max_ops: u32,
    /// The approximate size of a page of an enumeration, in bytes.
    pub page_bytes: u32,
}

impl Config {
    /// Returns the default options for the cluster whose coordinator has these locators.
    #[must_use]
    pub fn new(coordinator: &str) -> Self {
        Self {
            coordinator: coordinator.into(),
            transports: Vec::new(),
            try_timeout_ns: 2 * SECOND,
            pause_ns: 100 * US,
            max_pause_ns: 50 * MS,
            max_ops: 1 << 20,
            page_bytes: 256 << 10,
        }
    }
}

/// The options of a new table. A number stands for a span: `3.into()`.
///
/// ```
/// use sprat_store::client::TableOptions;
/// use sprat_store::durability::TableDurability;
/// let options = TableOptions { durability: TableDurability::Async, ..3.into() };
/// assert_eq!(options.span, 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableOptions {
    /// The number of servers that share the table, 1 to 256. The table has a tablet on each of
    /// their shards. With fewer servers it has this number of tablets, and one on each shard at
    /// least. 1 by default.
    pub span: u32,
    /// The time at which a change of the table's objects is acknowledged.
    pub durability: TableDurability,
}

impl Default for TableOptions {
    fn default() -> Self {
        1.into()
    }
}

impl From<u32> for TableOptions {
    fn from(span: u32) -> Self {
        Self { span, durability: TableDurability::default() }
    }
}

/// The kind of a client's operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    /// An operation that a master or another server executes.
    Server(Request),
    Create(TableOptions),
    Lookup,
    /// A drop of a table, with the table's id, 0 until it is known. The name alone could mean
    /// another table later.
    Drop(TableId),
    ListTables,
    ListServers,
    Leader,
    /// A question what a blocked recovery loses, or its acceptance.
    AcceptLoss {
        server: ServerId,
        accept: bool,
    },
    /// A split of the tablet of a table that contains this hash.
    Split {
        at: u64,
    },
    /// A merge of the tablet that begins with this hash and the one before it.
    Merge {
        at: u64,
    },
    /// A migration of a part of a table to the server with this index.
    Move {
        first: u64,
        last: u64,
        target: u32,
    },
    /// A listing of a table's tablets.
    ListTablets(TableId),
    ListMigrations,
    /// The client itself asks the coordinator for the tablets of a table.
    Tablets,
    /// The client itself asks the coordinator for a lease.
    Lease,
    /// A multi-operation, whose parts have slots of their own.
    Multi,
    /// The client itself sends several parts of multi-operations to one master.
    Bundle,
    Transaction,
    /// The client itself makes the decision on a transaction known.
    Decide,
    /// The client itself sends some objects of a transaction to one master.
    Step,
}

impl Kind {
    /// Returns true for mutations of objects, which carry a number.
    #[inline]
    pub(super) fn is_numbered(self) -> bool {
        matches!(self, Self::Server(request) if request.changes())
    }

    /// Returns true if the operation goes to the master of a tablet.
    #[inline]
    pub(super) fn is_object(self) -> bool {
        matches!(self, Self::Server(request) if request.has_tablet())
    }

    /// Returns true if the client started the operation for itself.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Self::Tablets | Self::Lease | Self::Bundle | Self::Step | Self::Decide)
    }

    /// Returns true if the operation consists of the phases of a transaction.
    pub(super) fn is_transaction(self) -> bool {
        matches!(self, Self::Transaction | Self::Decide)
    }

    /// Returns true if an operation of this kind can leave a change behind though its reply is
    /// lost.
    pub(super) fn changes_something(self) -> bool {
        let is_order = matches!(
            self,
            Self::Create(_)
                | Self::Drop(_)
                | Self::AcceptLoss { accept: true, .. }
                | Self::Split { .. }
                | Self::Merge { .. }
                | Self::Move { .. }
        );
        self.is_numbered() || is_order
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// The operation is ready to be sent: its slot is in `ready`, or is `newest`.
    Ready,
    /// The operation has a call in progress.
    Calling,
    /// The operation waits for the answer of this party before it can be sent.
    Parked(WaitedFor),
    /// The operation pauses before it is sent again.
    Pausing,
}

/// A slot: the state of one operation of the client.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) state: State,
    pub(super) kind: Kind,
    /// The index of the operation's table, or of its peer.
    pub(super) place: u32,
    /// The request to a server, without the bytes of a long value. [`Client::send`] sets the fields
    /// that can change between two tries. For a request to the coordinator: the name of its table.
    pub(super) bytes: Vec<u8>,
    /// The place of the operation's key in `bytes`.
    pub(super) key_at: usize,
    pub(super) key_len: usize,
    pub(super) deadline: Instant,
    /// The number of the mutation under the client's lease, 0 if none is assigned.
    pub(super) rpc: u64,
    pub(super) lease: LeaseId,
    /// The multi-operation that the operation is a part of, if it is one.
    pub(super) part_of: Option<PartOf>,
    /// True if the operation on an object is a whole transaction for the program.
    pub(super) is_commit: bool,
    pub(super) extra: Option<Box<Extra>>,
}

/// The part of an operation's state that few operations need.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// The value of a write operation, if it is long.
    pub(super) long: Option<LongValue>,
    /// True if an earlier try of the operation may have been executed.
    pub(super) maybe: bool,
    pub(super) failures: u32,
    /// The time of the operation's entry in `timers`.
    pub(super) timer: Option<Instant>,
    /// The binding of the link to the coordinators under which the last call there went out.
    pub(super) binding: Binding,
    /// The rows that a listing of tables or servers has collected.
    pub(super) rows: Rows,
    /// The position of an enumeration.
    pub(super) cursor: Cursor,
    /// The results of a multi-operation's parts.
    pub(super) results: Results,
    /// The parts of multi-operations that a bundle has.
    pub(super) bundled: Vec<Op>,
    /// The transaction, and for a request of one to a master the objects there.
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) step: Option<Step>,
}

impl Slot {
    /// Returns the part of the operation's state that few need, which it has from now on.
    pub(super) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Returns the number of tries of the operation that failed in a row.
    #[inline]
    pub(super) fn failures(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.failures)
    }

    /// Returns true if an earlier try of the operation may have been executed.
    pub(super) fn maybe(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.maybe)
    }

    /// Returns the value of a write operation, if it is long.
    pub(super) fn long(&self) -> Option<LongValue> {
        self.extra.as_ref().and_then(|extra| extra.long)
    }

    /// Returns the key of the operation.
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        &self.bytes[self.key_at..][..self.key_len]
    }

    /// Returns the length of the operation's value in bytes.
    pub(super) fn value_len(&self) -> usize {
        let short = self.bytes.len() - self.key_at - self.key_len;
        self.long().map_or(short, |value| value.len as usize)
    }

    /// Returns the hash whose tablet the operation goes to.
    #[inline]
    pub(super) fn hash(&self, hasher: &KeyHasher) -> KeyHash {
        match self.kind {
            Kind::Server(Request::Enumerate(scan)) => KeyHash(scan.first),
            _ => hasher.hash(self.key()),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) tables: Vec<TableInfo>,
    pub(super) servers: Vec<ServerInfo>,
    pub(super) migrations: Vec<MigrationInfo>,
}

/// The client of the store by which a program uses one cluster.
///
/// The [module](crate::client) describes its invariants.
#[derive(Debug)]
pub struct Client {
    pub(super) config: Config,
    pub(super) rng: Rng,
    /// The number of the cluster, 0 until the coordinator has named it.
    pub(super) cluster: u64,
    /// True if the coordinator has named another cluster since. All operations fail.
    pub(super) replaced: bool,
    pub(super) routes: Routes,
    /// The link of peer 0.
    pub(super) coordinators: Coordinators,
    /// True if the transport reported a server as unreachable that has not replied since.
    pub(super) any_unreachable: bool,
    pub(super) rifl: Rifl,
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u32>,
    /// The number of slots that the client's own operations have.
    pub(super) own: usize,
    /// The number of transactions whose decision is on its way.
    pub(super) deciding: usize,
    pub(super) ready: VecDeque<u32>,
    /// The slot of the operation that started last, which goes behind those in `ready`, or
    /// [`NONE`].
    pub(super) newest: u32,
    pub(super) timers: BTreeSet<(Instant, u32)>,
    pub(super) out: VecDeque<Output>,
    pub(super) events: VecDeque<Done<'static>>,
    /// The buffer for the client's next request.
    pub(super) spare: Vec<u8>,
    pub(super) values: Values,
    /// The multi-operation whose parts start now.
    pub(super) starting: Option<PartOf>,
    /// The bundles that can take more parts: the slot of each.
    pub(super) bundles: Vec<u32>,
    /// The counters, of which `completed` is made from others when a program asks for it.
    pub(super) counters: Counters,
}

impl Client {
    /// Returns a client that has not sent anything yet. `rng` spreads the pauses of many clients.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let routes = Routes::new(config.transports.clone());
        let coordinators = Coordinators::new(COORDINATOR, &config.coordinator);
        Self {
            config,
            rng,
            cluster: 0,
            replaced: false,
            routes,
            coordinators,
            any_unreachable: false,
            rifl: Rifl::new(),
            slots: Vec::new(),
            free: Vec::new(),
            own: 0,
            deciding: 0,
            ready: VecDeque::new(),
            newest: NONE,
            timers: BTreeSet::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            spare: Vec::new(),
            values: Values::default(),
            starting: None,
            bundles: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the index of the first of `among` that is on the server of an object, as far as the
    /// client knows the servers now.
    pub fn nearest(&mut self, of: (TableId, &[u8]), among: &[(TableId, &[u8])]) -> Option<usize> {
        self.routes.nearest(of, among)
    }

    /// Returns the number of operations that the client has in progress. Each part of a
    /// multi-operation counts as one more.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.slots.len() - self.free.len() - self.own
    }

    /// Returns the counters of the client.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let counters = self.counters;
        let ended = counters.started - self.in_progress() as u64;
        Counters { completed: ended - counters.cancelled, ..counters }
    }

    /// Allocates a slot for an operation, and returns its index.
    #[inline]
    pub(super) fn begin(&mut self, kind: Kind, place: u32, deadline: Instant) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[index as usize];
        slot.kind = kind;
        slot.place = place;
        slot.deadline = deadline;
        slot.state = State::Parked(WaitedFor::Server);
        slot.part_of = self.starting.filter(|_| !kind.is_own());
        (slot.key_at, slot.key_len) = (0, 0);
        slot.is_commit = false;
        self.own += usize::from(kind.is_own());
        self.counters.started += u64::from(!kind.is_own());
        index
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(Slot {
            generation: 0,
            state: State::Free,
            kind: Kind::Lookup,
            place: 0,
            bytes: Vec::new(),
            key_at: 0,
            key_len: 0,
            deadline: Instant::NEVER,
            rpc: 0,
            lease: LeaseId(0),
            part_of: None,
            is_commit: false,
            extra: None,
        });
        self.slots.len() as u32 - 1
    }

    /// Queues an operation for sending once its slot is complete.
    #[inline]
    pub(super) fn start(&mut self, index: u32) {
        if self.replaced {
            return self.refuse(index, Error::ClusterReplaced);
        }
        if self.in_progress() > self.config.max_ops as usize
            && !self.slots[index as usize].kind.is_own()
        {
            return self.refuse(index, Error::TooManyOps);
        }
        self.slots[index as usize].state = State::Ready;
        let before = core::mem::replace(&mut self.newest, index);
        if before != NONE {
            self.ready.push_back(before);
        }
    }

    /// Ends an operation that was not sent or got no reply.
    #[cold]
    pub(super) fn refuse(&mut self, index: u32, error: Error) {
        if self.slots[index as usize].kind == Kind::Decide {
            // No program waits for it. The masters ask for the decision.
            self.end(index);
            return;
        }
        let outcome = self.outcome(index, error);
        let done = self.close(index, outcome);
        self.events.extend(done);
    }

    /// Ends an operation with its outcome. Returns what has ended for the program: the operation,
    /// or a multi-operation whose last part it was.
    #[inline(always)]
    pub(super) fn close<'b>(
        &mut self,
        index: u32,
        outcome: Result<Answer<'b>, Error>,
    ) -> Option<Done<'b>> {
        let slot = &self.slots[index as usize];
        if slot.is_commit {
            return self.close_commit(index, outcome);
        }
        let part_of = slot.part_of;
        let op = self.end(index);
        match part_of {
            None => Some(Done { op, outcome }),
            Some(part) => self.part_ended(part, outcome),
        }
    }

    /// Frees the slot of an operation that has ended.
    #[inline(always)]
    pub(super) fn end(&mut self, index: u32) -> Op {
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        self.own -= usize::from(slot.kind.is_own());
        self.deciding -= usize::from(slot.kind == Kind::Decide);
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Free;
        if slot.bytes.capacity() > KEPT_BYTES {
            slot.bytes = Vec::new();
        }
        let (lease, rpc) = (slot.lease, core::mem::take(&mut slot.rpc));
        if let Some(extra) = slot.extra.take() {
            self.end_extra(index, &extra);
        }
        self.free.push(index);
        if rpc != 0 {
            self.rifl.answered(lease, rpc);
            if !self.rifl.queued.is_empty() {
                self.open_window();
            }
        }
        op
    }

    /// Ends the timer and the long value of an operation that has ended.
    #[cold]
    fn end_extra(&mut self, index: u32, extra: &Extra) {
        if let Some(at) = extra.timer {
            self.timers.remove(&(at, index));
        }
        if let Some(value) = extra.long {
            self.values.release(value.place);
        }
        if let Some(transaction) = &extra.transaction {
            self.end_numbers(transaction);
        }
    }

    /// Ends the timer of an operation.
    pub(super) fn stop_timer(&mut self, index: u32) {
        let extra = self.slots[index as usize].extra.as_mut();
        if let Some(at) = extra.and_then(|extra| extra.timer.take()) {
            self.timers.remove(&(at, index));
        }
    }

    /// Sends operations that wait for numbers, as far as the window has room.
    #[cold]
    pub(super) fn open_window(&mut self) {
        for _ in 0..self.rifl.room() {
            while let Some(op) = self.rifl.queued.pop_front()
                && !self.unpark(op, WaitedFor::Window)
            {}
        }
    }

    /// Queues a parked operation for sending. Returns false if it no longer waits for `from`.
    pub(super) fn unpark(&mut self, op: Op, from: WaitedFor) -> bool {
        let Some(index) = self.parked(op, from) else { return false };
        self.stop_timer(index);
        self.slots[index as usize].state = State::Ready;
        self.ready.push_back(index);
        true
    }

    /// Returns the slot of an operation in progress. `op` is also the tag of its call.
    #[inline]
    pub(super) fn live(&self, op: u64) -> Option<u32> {
        live(&self.slots, op)
    }

    /// Returns the slot of an operation that waits for `what`.
    ///
    /// Lists of waiting operations have their ids, not their slots: an operation that ended at its
    /// deadline stays in its list, and another operation may have its slot by then.
    pub(super) fn parked(&self, op: Op, what: WaitedFor) -> Option<u32> {
        self.live(op.0).filter(|&index| self.slots[index as usize].state == State::Parked(what))
    }
}

#[inline]
fn live(slots: &[Slot], op: u64) -> Option<u32> {
    let slot = slots.get(op as u32 as usize)?;
    (slot.generation == (op >> 32) as u32 && slot.state != State::Free).then_some(op as u32)
}

/// Appends an operation to a list of waiting ones.
///
/// Drops ended operations from a long list, so that it has at most twice as many entries as there
/// are slots.
pub(super) fn enqueue(queue: &mut VecDeque<Op>, slots: &[Slot], op: Op) {
    if queue.len() >= 2 * slots.len() {
        queue.retain(|op| live(slots, op.0).is_some());
    }
    queue.push_back(op);
}

#[inline]
pub(super) fn op(index: u32, slot: &Slot) -> Op {
    Op((u64::from(slot.generation) << 32) | u64::from(index))
}
