//! The client's side of the store: operations go in, requests to the right servers come out, and every operation ends
//! exactly once.
//!
//! ```text
//!  read, write … ─► slot ─► table ─► tablet ─► link ─► output ─► … ─► response ─► Done
//!                    ▲        └ not known: ask the coordinator ┘               └ retry: after a pause ┐
//!                    └────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! What always holds:
//! - An operation ends once: by what [`Client::response`] returns or by [`Client::event`], at the latest soon after its
//!   deadline.
//! - A mutation is executed at most once however often it is sent, and exactly once if it ends well (RIFL, [`WINDOW`]).
//!   If its lease ends before its answer comes it ends with [`Error::Unknown`] and is never sent again.
//! - Each operation has at most one call under way, so that an answer cannot be taken for that of another try.
//! - Servers that move, restart or are slow are the client's business; what a program sees as an [`Error`] is final.
//!
//! Not here: transports and time (the caller drives [`Client::output`], [`Client::response`] and [`Client::tick`]).

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Instant, Rng};

use self::rifl::Rifl;
use self::routes::Routes;
use crate::hash::KeyHasher;
use crate::message::control::MAX_NAME;
use crate::message::data::{Amount, RejectRules};
use crate::types::{KeyHash, LeaseId, MAX_KEY, MAX_VALUE, TableId};
use sprat_proto::node::machine::{Link, Output};

mod answer;
mod failures;
mod rifl;
mod routes;
mod rules;
mod steps;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Done, Error, Page, ServerInfo, TableInfo, Value, WaitedFor};
pub use rifl::WINDOW;

/// What can be set.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the coordinator is: locators with `;` between them.
    pub coordinator: String,
    /// Which transports to use towards servers, the best first ("fast+shm", "tcp"); if there are none, all that a server
    /// names, in its order.
    pub transports: Vec<String>,
    /// How long one try may take before the operation is sent again, in nanoseconds.
    pub try_timeout_ns: u64,
    /// The first pause before an operation is sent again; each further one is twice as long.
    pub pause_ns: u64,
    /// The longest pause.
    pub max_pause_ns: u64,
    /// Most operations in progress.
    pub max_ops: u32,
    /// About how many bytes of objects to ask for at once in an enumeration.
    pub page_bytes: u32,
}

impl Config {
    /// The defaults for the cluster of the coordinator at these locators.
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

/// An operation. Never used again for another one while the client lives (or rather: not before 2³² others).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Op(pub u64);

impl Op {
    /// A small number that no other operation in progress has, to find what a program keeps beside it.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

/// Where an enumeration of a table goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The tablet that has this hash,
    hash: u64,
    /// and what its master said.
    within: u64,
}

/// A server as such, for echo and statistics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerId(u32);

impl PeerId {
    /// The coordinator.
    pub const COORDINATOR: Self = Self(0);
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Read,
    Write,
    Remove,
    Increment(Amount),
    /// Where it goes on, and the bounds of the tablet that it was sent to.
    Enumerate {
        cursor: Cursor,
        first: u64,
        last: u64,
    },
    Echo,
    Stats,
    Create {
        span: u32,
    },
    Lookup,
    /// The table's id once it is known: the name alone could mean another one by then.
    Drop(TableId),
    ListTables,
    ListServers,
    /// The client's own question for a table's tablets.
    Tablets,
    /// The client's own question for a lease.
    Lease,
}

impl Kind {
    /// Mutations of objects, which carry a number.
    #[inline]
    fn is_numbered(self) -> bool {
        matches!(self, Self::Write | Self::Remove | Self::Increment(_))
    }

    /// Whatever goes to the master of a tablet.
    #[inline]
    fn is_object(self) -> bool {
        self.is_numbered() || matches!(self, Self::Read | Self::Enumerate { .. })
    }

    fn is_own(self) -> bool {
        matches!(self, Self::Tablets | Self::Lease)
    }

    /// What is changed if it is executed without the program knowing.
    fn changes_something(self) -> bool {
        self.is_numbered() || matches!(self, Self::Create { .. } | Self::Drop(_))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// In `ready`.
    Ready,
    /// A call is under way.
    Calling,
    /// Something must come first.
    Parked(WaitedFor),
    /// It is sent again later.
    Pausing,
}

/// All there is about one operation.
#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    kind: Kind,
    /// Index of its table, or of its peer.
    place: u32,
    rules: RejectRules,
    key_len: usize,
    /// The key (or name), then the value.
    body: Vec<u8>,
    deadline: Instant,
    /// Its number under its lease; 0 if it has none yet.
    rpc: u64,
    lease: LeaseId,
    /// Whether an earlier try may have been executed.
    maybe: bool,
    failures: u32,
    /// Its entry in `timers`.
    timer: Option<Instant>,
    /// What a listing has collected.
    rows: Option<Box<Rows>>,
}

impl Slot {
    /// The hash whose tablet the operation goes to.
    #[inline]
    fn hash(&self, hasher: &KeyHasher) -> KeyHash {
        match self.kind {
            Kind::Enumerate { cursor, .. } => KeyHash(cursor.hash),
            _ => hasher.hash(&self.body[..self.key_len]),
        }
    }
}

#[derive(Debug, Default)]
struct Rows {
    tables: Vec<TableInfo>,
    servers: Vec<ServerInfo>,
}

/// One program's client of one cluster.
#[derive(Debug)]
pub struct Client {
    config: Config,
    rng: Rng,
    /// The cluster; 0 until the coordinator has named it.
    cluster: u64,
    /// The coordinator has named another one since: nothing works any more.
    replaced: bool,
    routes: Routes,
    /// Some server could not be reached and has not answered since.
    doubts: bool,
    rifl: Rifl,
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
    timers: BTreeSet<(Instant, u32)>,
    out: VecDeque<Output>,
    events: VecDeque<Done<'static>>,
    /// What the next request may be made in.
    spare: Vec<u8>,
}

// Operations. Each ends as the class comment says; none fails here.
impl Client {
    /// A client that has not asked anything yet. `rng` spreads the pauses of many clients.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let routes = Routes::new(config.coordinator.clone(), config.transports.clone());
        Self {
            config,
            rng,
            cluster: 0,
            replaced: false,
            routes,
            doubts: false,
            rifl: Rifl::new(),
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Reads an object. Answered by [`Answer::Object`].
    pub fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Kind::Read, table, key, &[], rules, deadline)
    }

    /// Writes an object. Answered by [`Answer::Version`].
    pub fn write(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Kind::Write, table, key, value, rules, deadline)
    }

    /// Removes an object. Answered by [`Answer::Version`].
    pub fn remove(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Kind::Remove, table, key, &[], rules, deadline)
    }

    /// Adds to an object that is an integer of 64 bits; a missing one counts as 0. Answered by [`Answer::Integer`].
    pub fn increment_integer(
        &mut self,
        table: TableId,
        key: &[u8],
        amount: i64,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Kind::Increment(Amount::Integer(amount)), table, key, &[], rules, deadline)
    }

    /// Adds to an object that is a double; a missing one counts as 0. Answered by [`Answer::Double`].
    pub fn increment_double(
        &mut self,
        table: TableId,
        key: &[u8],
        amount: f64,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Kind::Increment(Amount::Double(amount)), table, key, &[], rules, deadline)
    }

    /// Some objects of a table, from `cursor` on (the default one at the start). Answered by [`Answer::Page`], which says
    /// where to go on. Each object that is not changed meanwhile comes once.
    pub fn enumerate(&mut self, table: TableId, cursor: Cursor, deadline: Instant) -> Op {
        let kind = Kind::Enumerate { cursor, first: 0, last: 0 };
        self.object(kind, table, &[], &[], RejectRules::default(), deadline)
    }

    /// Creates a table of `span` tablets (1 to 256) unless there is one of that name. Answered by [`Answer::Table`];
    /// by [`Error::TabletLost`] if there is one and a part of it is lost.
    pub fn create_table(&mut self, name: &str, span: u32, deadline: Instant) -> Op {
        self.named(Kind::Create { span }, name, deadline)
    }

    /// Drops a table with all its objects. Answered by [`Answer::Dropped`] as soon as no server has it any more.
    pub fn drop_table(&mut self, name: &str, deadline: Instant) -> Op {
        self.named(Kind::Drop(TableId(0)), name, deadline)
    }

    /// Looks a table up. Answered by [`Answer::Table`].
    pub fn table(&mut self, name: &str, deadline: Instant) -> Op {
        self.named(Kind::Lookup, name, deadline)
    }

    /// All tables. Answered by [`Answer::Tables`].
    pub fn list_tables(&mut self, deadline: Instant) -> Op {
        self.plain(Kind::ListTables, PeerId::COORDINATOR, &[], deadline)
    }

    /// All servers. Answered by [`Answer::Servers`].
    pub fn list_servers(&mut self, deadline: Instant) -> Op {
        self.plain(Kind::ListServers, PeerId::COORDINATOR, &[], deadline)
    }

    /// Sends `bytes` (up to 1 MiB) to a server and back. Answered by [`Answer::Bytes`].
    pub fn echo(&mut self, peer: PeerId, bytes: &[u8], deadline: Instant) -> Op {
        self.plain(Kind::Echo, peer, bytes, deadline)
    }

    /// What a server has counted. Answered by [`Answer::Bytes`], a JSON object.
    pub fn stats(&mut self, peer: PeerId, deadline: Instant) -> Op {
        self.plain(Kind::Stats, peer, &[], deadline)
    }

    /// The server at `locators` (as [`ServerInfo::data`] has them), by the transports of this client.
    ///
    /// # Errors
    /// [`Error::NoTransport`].
    pub fn peer(&mut self, locators: &str) -> Result<PeerId, Error> {
        self.routes.peer(locators).map(PeerId)
    }

    /// True if the operation is in progress, or has ended and [`Client::event`] has still to say so.
    #[must_use]
    pub fn is_in_progress(&self, op: Op) -> bool {
        self.live(op.0).is_some() || self.events.iter().any(|done| done.op == op)
    }

    /// Gives an operation up: it does not end any more. It may have been executed. True if it was in progress.
    pub fn cancel(&mut self, op: Op) -> bool {
        match self.live(op.0) {
            Some(index) if !self.slots[index as usize].kind.is_own() => {
                self.end(index);
                true
            }
            _ => false,
        }
    }
}

// The world's side.
impl Client {
    /// What to do: call until `None` after every operation, `response` and `tick`.
    #[inline]
    pub fn output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        while let Some(index) = self.ready.pop_front() {
            if self.slots[index as usize].state == State::Ready
                && let Some(output) = self.send(now, index)
            {
                return Some(output);
            }
        }
        None
    }

    /// A call ended; perhaps an operation with it.
    #[inline]
    pub fn response<'b>(
        &mut self,
        now: Instant,
        tag: u64,
        result: Result<Payload<'b>, RpcError>,
    ) -> Option<Done<'b>> {
        let index = self.live(tag)?;
        if self.slots[index as usize].state != State::Calling {
            return None;
        }
        if self.doubts && result.is_ok() {
            self.reached(index);
        }
        match result {
            Ok(reply) => self.answered(now, index, reply),
            Err(error) => self.failed(now, index, error),
        }
    }

    /// See [`sprat_proto::node::machine::Machine::unreachable`].
    pub fn unreachable(&mut self, link: Link, why: &str) {
        if let Some(peer) = self.routes.peers.get_mut(link.0 as usize) {
            peer.why = Some(why.into());
            self.doubts = true;
        }
    }

    /// An operation that ended otherwise than by [`Client::response`]: call until `None` after every other verb.
    #[inline]
    pub fn event(&mut self) -> Option<Done<'static>> {
        self.events.pop_front()
    }

    /// The buffer of a request that went out, for the next one.
    #[inline]
    pub fn spare(&mut self, buffer: Vec<u8>) {
        self.spare = buffer;
    }

    /// When `tick` wants to be called, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.rifl.renew_at()).min()
    }

    /// It is `now`.
    pub fn tick(&mut self, now: Instant) {
        while let Some(&(at, index)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let slot = &mut self.slots[index as usize];
            slot.timer = None;
            if slot.deadline <= now {
                self.end_late(index);
            } else {
                slot.state = State::Ready;
                self.ready.push_back(index);
            }
        }
        if self.rifl.renew_at().is_some_and(|at| at <= now) {
            self.ask_for_lease();
        }
    }

    /// How many operations are in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        let own = self
            .slots
            .iter()
            .filter(|slot| slot.state != State::Free && slot.kind.is_own())
            .count();
        self.slots.len() - self.free.len() - own
    }
}

impl Client {
    #[inline]
    fn object(
        &mut self,
        kind: Kind,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        let place = self.routes.table(table);
        let index = self.begin(kind, place, deadline);
        let slot = &mut self.slots[index as usize];
        slot.rules = rules;
        slot.key_len = key.len();
        let op = op(index, slot);
        if key.len() > MAX_KEY {
            self.refuse(index, Error::KeyTooLong(key.len()));
        } else if value.len() > MAX_VALUE {
            self.refuse(index, Error::ValueTooLong(value.len()));
        } else {
            let slot = &mut self.slots[index as usize];
            slot.body.reserve_exact(key.len() + value.len());
            slot.body.extend_from_slice(key);
            slot.body.extend_from_slice(value);
            self.start(index);
        }
        op
    }

    fn named(&mut self, kind: Kind, name: &str, deadline: Instant) -> Op {
        let valid = (1..=MAX_NAME).contains(&name.len());
        let index = self.begin(kind, 0, deadline);
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        if valid {
            slot.body.extend_from_slice(name.as_bytes());
            self.start(index);
        } else {
            self.refuse(index, Error::BadName);
        }
        op
    }

    fn plain(&mut self, kind: Kind, peer: PeerId, bytes: &[u8], deadline: Instant) -> Op {
        let index = self.begin(kind, peer.0, deadline);
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        if bytes.len() > MAX_VALUE {
            self.refuse(index, Error::ValueTooLong(bytes.len()));
        } else {
            slot.body.extend_from_slice(bytes);
            self.start(index);
        }
        op
    }

    /// A slot for an operation.
    #[inline]
    fn begin(&mut self, kind: Kind, place: u32, deadline: Instant) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[index as usize];
        slot.kind = kind;
        slot.place = place;
        slot.deadline = deadline;
        slot.state = State::Parked(WaitedFor::Server);
        index
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(Slot {
            generation: 0,
            state: State::Free,
            kind: Kind::Read,
            place: 0,
            rules: RejectRules::default(),
            key_len: 0,
            body: Vec::new(),
            deadline: Instant::NEVER,
            rpc: 0,
            lease: LeaseId(0),
            maybe: false,
            failures: 0,
            timer: None,
            rows: None,
        });
        self.slots.len() as u32 - 1
    }

    /// The operation is complete and can be sent.
    #[inline]
    fn start(&mut self, index: u32) {
        if self.replaced {
            return self.refuse(index, Error::ClusterReplaced);
        }
        if self.slots.len() - self.free.len() > self.config.max_ops as usize
            && !self.slots[index as usize].kind.is_own()
        {
            return self.refuse(index, Error::TooManyOps);
        }
        self.slots[index as usize].state = State::Ready;
        self.ready.push_back(index);
    }

    /// The operation ends before it was sent, or without an answer.
    #[cold]
    fn refuse(&mut self, index: u32, error: Error) {
        let op = self.end(index);
        self.events.push_back(Done { op, outcome: Err(error) });
    }

    /// Frees the slot of an operation that has ended.
    #[inline]
    fn end(&mut self, index: u32) -> Op {
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        if let Some(at) = slot.timer.take() {
            self.timers.remove(&(at, index));
        }
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Free;
        slot.body.clear();
        if slot.body.capacity() > KEPT_BYTES {
            slot.body = Vec::new();
        }
        slot.maybe = false;
        slot.failures = 0;
        slot.rows = None;
        let (lease, rpc) = (slot.lease, core::mem::take(&mut slot.rpc));
        self.free.push(index);
        if rpc != 0 {
            self.rifl.answered(lease, rpc);
            if !self.rifl.queued.is_empty() {
                self.open_window();
            }
        }
        op
    }

    /// The slot that an operation's id (also the tag of its call) names, if the operation is in progress.
    #[inline]
    fn live(&self, op: u64) -> Option<u32> {
        live(&self.slots, op)
    }

    /// The slot of an operation that waits for this. The lists of those who wait name operations, not slots: one that
    /// ended at its deadline stays in its list, and its slot is another one's by then.
    fn parked(&self, op: Op, what: WaitedFor) -> Option<u32> {
        self.live(op.0).filter(|&index| self.slots[index as usize].state == State::Parked(what))
    }
}

#[inline]
fn live(slots: &[Slot], op: u64) -> Option<u32> {
    let slot = slots.get(op as u32 as usize)?;
    (slot.generation == (op >> 32) as u32 && slot.state != State::Free).then_some(op as u32)
}

/// Puts an operation at the end of those that wait. Those that have ended stay only while they are not too many: a list
/// has at most twice as many entries as there are slots.
fn enqueue(queue: &mut VecDeque<Op>, slots: &[Slot], op: Op) {
    if queue.len() >= 2 * slots.len() {
        queue.retain(|op| live(slots, op.0).is_some());
    }
    queue.push_back(op);
}

#[inline]
fn op(index: u32, slot: &Slot) -> Op {
    Op((u64::from(slot.generation) << 32) | u64::from(index))
}

/// The memory that a free slot keeps for the next operation's key and value.
const KEPT_BYTES: usize = 4096;
