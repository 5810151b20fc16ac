//! The connections of an IP stack: listeners, the connection that a segment is for, timers, and
//! events for programs.
//!
//! ```text
//!  input ─► flow (keyed hash) ─► connection ─┐
//!        └► listener ─► new connection       ├─► dirty ─► output ─► segments
//!  tick ──► timers ─► connection ────────────┤
//!                                            └─► ready ─► event
//! ```
//!
//! Always: each connection is in `dirty` and in `ready` at most once, so that neither grows beyond
//! the number of connections.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::hash::BuildHasher as _;
use core::net::SocketAddr;
use core::ops::Range;

use super::config::TcpConfig;
use super::connection::{Connection, TcpError, TcpState};
use super::input::{Segment, refusal};
use super::output::{Outgoing, PathLimits};
use crate::rand::KeyedHash;
use crate::time::US;
use crate::wire::tcp::Tcp;
use crate::{Instant, Rng};

/// The first port that the stack chooses for a connection of its own (RFC 6335).
const FIRST_DYNAMIC: u16 = 49_152;
/// The most segments of refusal that wait to be sent.
const MOST_REFUSALS: usize = 64;
/// The time in which the clock of initial sequence numbers advances by one (RFC 6528).
const CLOCK_NS: u64 = 4 * US;

/// The name of a connection of a [`TcpHost`]. It is never used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TcpId {
    index: u32,
    generation: u32,
}

impl TcpId {
    /// Returns a small number that no other connection has at the same time, for tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// The addresses and ports of both ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpFlow {
    /// The address and port of this end.
    pub local: SocketAddr,
    /// The address and port of the peer.
    pub peer: SocketAddr,
}

/// The changes at a connection since its last event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpChanges {
    /// The handshake is over.
    pub opened: bool,
    /// Bytes can be read, or the peer's direction has ended.
    pub readable: bool,
    /// The peer has acknowledged data, so that more can be written.
    pub writable: bool,
    /// The connection has ended. [`TcpHost::release`] forgets it.
    pub ended: bool,
}

/// The reason why there is no new connection or listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TcpOpenError {
    /// A listener, or a connection to the same peer, has the port.
    #[error("the port is in use")]
    InUse,
    /// Connections to that peer use all dynamic ports.
    #[error("no port is free")]
    NoPort,
    /// There is no route to the peer.
    #[error("no route to the peer")]
    NoRoute,
    /// The host has as many connections as it may have.
    #[error("too many connections")]
    TooMany,
}

/// Sends the segments of a [`TcpHost`].
pub trait TcpOutput {
    /// Returns the sizes of the segments that the way to a peer carries.
    fn limits(&mut self, flow: &TcpFlow) -> PathLimits;

    /// Sends a segment. Returns false if there is no room for it.
    fn emit(&mut self, flow: &TcpFlow, outgoing: &Outgoing<'_>) -> bool;
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    flow: TcpFlow,
    connection: Connection,
    changes: TcpChanges,
    /// The time under which the connection is in the timers.
    timer: Option<Instant>,
    is_dirty: bool,
    is_ready: bool,
    /// True once the program needs the connection no more.
    is_released: bool,
    /// True if the end of the connection was reported.
    is_reported: bool,
    /// The listener that counts the connection until its handshake is over.
    half_open: Option<u16>,
}

#[derive(Debug)]
struct Listener {
    backlog: u32,
    half_open: u32,
}

/// The TCP connections of an IP stack.
#[derive(Debug)]
pub struct TcpHost {
    pub(super) config: TcpConfig,
    most: usize,
    /// Boxed, so that the table of the slots stays small while it grows.
    entries: Vec<Option<Box<Entry>>>,
    free: Vec<u32>,
    generation: u32,
    flows: hashbrown::HashMap<TcpFlow, u32, KeyedHash>,
    listeners: BTreeMap<u16, Listener>,
    timers: BTreeSet<(Instant, u32)>,
    dirty: VecDeque<u32>,
    ready: VecDeque<u32>,
    refusals: VecDeque<(TcpFlow, Tcp)>,
    /// The key of the initial sequence numbers.
    secret: KeyedHash,
    rng: Rng,
}

impl TcpHost {
    /// Returns a host without connections that has at most `most` at a time.
    #[must_use]
    pub fn new(config: TcpConfig, most: usize, mut rng: Rng) -> Self {
        let hash = KeyedHash::new(&mut rng);
        let secret = KeyedHash::new(&mut rng);
        Self {
            config,
            most,
            entries: Vec::new(),
            free: Vec::new(),
            generation: 0,
            flows: hashbrown::HashMap::with_hasher(hash),
            listeners: BTreeMap::new(),
            timers: BTreeSet::new(),
            dirty: VecDeque::new(),
            ready: VecDeque::new(),
            refusals: VecDeque::new(),
            secret,
            rng,
        }
    }

    /// Returns the number of connections that there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    /// Accepts connections to a port, or to a free dynamic port if it is 0, of which at most
    /// `backlog` may be in their handshakes. Returns the port.
    ///
    /// # Errors
    /// [`TcpOpenError`] if the port is in use, or no port is free.
    pub fn listen(&mut self, port: u16, backlog: u32) -> Result<u16, TcpOpenError> {
        let port = match port {
            0 => {
                let mut ports = self.rng_ports();
                let free = ports.find(|port| !self.listeners.contains_key(port));
                free.ok_or(TcpOpenError::NoPort)?
            }
            port if self.listeners.contains_key(&port) => return Err(TcpOpenError::InUse),
            port => port,
        };
        self.listeners.insert(port, Listener { backlog, half_open: 0 });
        Ok(port)
    }

    /// Returns all dynamic ports, from a random one on.
    fn rng_ports(&mut self) -> impl Iterator<Item = u16> + use<> {
        let ports = u32::from(u16::MAX - FIRST_DYNAMIC) + 1;
        let first = self.rng.below(ports.into()) as u32;
        (0..ports).map(move |n| FIRST_DYNAMIC + ((first + n) % ports) as u16)
    }

    /// Accepts no more connections to a port. Those that there are stay.
    pub fn unlisten(&mut self, port: u16) {
        self.listeners.remove(&port);
    }

    /// Begins a connection from the address `from` to a peer. The port 0 stands for any free
    /// dynamic port.
    ///
    /// # Errors
    /// [`TcpOpenError`].
    pub fn connect(
        &mut self,
        now: Instant,
        from: SocketAddr,
        peer: SocketAddr,
    ) -> Result<TcpId, TcpOpenError> {
        let flow = |port| TcpFlow { local: SocketAddr::new(from.ip(), port), peer };
        let flow = if from.port() == 0 {
            let mut flows = self.rng_ports().map(flow);
            flows.find(|flow| !self.flows.contains_key(flow)).ok_or(TcpOpenError::NoPort)?
        } else {
            flow(from.port())
        };
        if self.flows.contains_key(&flow) {
            return Err(TcpOpenError::InUse);
        }
        let initial = self.initial(now, &flow);
        let ports = (flow.local.port(), peer.port());
        let connection = Connection::connect(now, &self.config, ports, initial, &mut self.rng);
        self.insert(flow, connection, None).ok_or(TcpOpenError::TooMany)
    }

    /// Returns the addresses and ports of a connection.
    #[must_use]
    pub fn flow(&self, id: TcpId) -> Option<TcpFlow> {
        self.entry(id).map(|entry| entry.flow)
    }

    /// Returns a connection.
    #[must_use]
    pub fn connection(&self, id: TcpId) -> Option<&Connection> {
        self.entry(id).map(|entry| &entry.connection)
    }

    /// Returns the reason why a connection has ended early, if it has.
    #[must_use]
    pub fn error(&self, id: TcpId) -> Option<TcpError> {
        self.entry(id).and_then(|entry| entry.connection.error())
    }

    /// Takes as many of `bytes` to send as there is room for. Returns their number: 0 if there is
    /// no such connection.
    pub fn write(&mut self, id: TcpId, bytes: &[u8]) -> usize {
        let Some(entry) = entry_mut(&mut self.entries, id) else { return 0 };
        let count = entry.connection.write(&self.config, bytes);
        self.touch(id.index);
        count
    }

    /// Takes the concatenation of `parts` to send as a record, which begins a segment and ends with
    /// it. Returns false if there is no room for it, or no such connection.
    pub fn write_record(&mut self, id: TcpId, parts: &[&[u8]]) -> bool {
        let Some(entry) = entry_mut(&mut self.entries, id) else { return false };
        let is_taken = entry.connection.write_record(&self.config, parts);
        self.touch(id.index);
        is_taken
    }

    /// Copies received bytes to `into`, and removes them. Returns their number.
    pub fn read(&mut self, id: TcpId, into: &mut [u8]) -> usize {
        let Some(entry) = entry_mut(&mut self.entries, id) else { return 0 };
        let count = entry.connection.readable().min(into.len());
        let (a, b) = entry.connection.peek(0..count);
        into[..a.len()].copy_from_slice(a);
        into[a.len()..count].copy_from_slice(b);
        entry.connection.consume(count);
        self.touch(id.index);
        count
    }

    /// Closes this end's direction of a connection, when all that was written is sent.
    pub fn close(&mut self, id: TcpId) {
        if let Some(entry) = entry_mut(&mut self.entries, id) {
            entry.connection.close();
            self.touch(id.index);
        }
    }

    /// Ends a connection at once, resets the peer's end, and forgets it.
    pub fn abort(&mut self, id: TcpId) {
        let Some(entry) = entry_mut(&mut self.entries, id) else { return };
        entry.is_released = true;
        let (flow, reset) = (entry.flow, entry.connection.abort());
        if let Some(reset) = reset {
            self.refuse(flow, reset);
        }
        self.touch(id.index);
    }

    /// Forgets a connection as soon as it has ended. It has no more events.
    pub fn release(&mut self, id: TcpId) {
        if let Some(entry) = entry_mut(&mut self.entries, id) {
            entry.is_released = true;
            self.touch(id.index);
        }
    }

    /// Returns a connection at which something has changed, and what. Call it until it returns
    /// none.
    pub fn event(&mut self) -> Option<(TcpId, TcpChanges)> {
        while let Some(index) = self.ready.pop_front() {
            let Some(entry) = self.entries[index as usize].as_mut() else { continue };
            entry.is_ready = false;
            let changes = core::mem::take(&mut entry.changes);
            if !entry.is_released && changes != TcpChanges::default() {
                return Some((TcpId { index, generation: entry.generation }, changes));
            }
        }
        None
    }

    /// Returns true if [`TcpHost::event`] may have an event.
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes a segment that arrived for this host. Call [`TcpHost::output`] after it, or after a
    /// burst of segments. Returns the bytes of its data that are lent, if any are: end that by
    /// [`TcpHost::take_lent`] or [`TcpHost::keep_lent`] before.
    pub fn input(
        &mut self,
        now: Instant,
        flow: TcpFlow,
        segment: &Segment<'_>,
    ) -> Option<(TcpId, Range<usize>)> {
        let Some(&index) = self.flows.get(&flow) else {
            self.input_new(now, flow, segment);
            return None;
        };
        let entry = self.entries[index as usize].as_mut()?;
        let before = entry.connection.state();
        let had = entry.connection.writable(&self.config);
        let was_finished = entry.connection.is_finished();
        let received = entry.connection.input(now, &self.config, segment);
        let state = entry.connection.state();
        let is_opening = matches!(before, TcpState::SynSent | TcpState::SynReceived);
        let changes = &mut entry.changes;
        if is_opening && !matches!(state, TcpState::SynSent | TcpState::SynReceived) {
            changes.opened = state != TcpState::Closed;
            if let Some(port) = entry.half_open.take()
                && let Some(listener) = self.listeners.get_mut(&port)
            {
                listener.half_open -= 1;
            }
        }
        changes.readable |= received.bytes > 0 || entry.connection.is_finished() && !was_finished;
        changes.writable |= entry.connection.writable(&self.config) > had;
        let (start, end) = received.lent;
        let lent = (start < end).then(|| {
            let id = TcpId { index, generation: entry.generation };
            (id, start..end)
        });
        let is_unwanted = entry.is_released && (received.bytes > 0 || lent.is_some());
        // RFC 9293 3.6.1: data that no program will read is lost, and the peer is reset: by the
        // number that it expects, since it may not have what this end has sent last.
        let reset = if is_unwanted { entry.connection.abort() } else { None };
        let reset = reset.and_then(|_| refusal(segment));
        if let Some(tcp) = received.refusal.or(reset) {
            self.refuse(flow, tcp);
        }
        self.touch(index);
        self.report(index);
        lent.filter(|_| !is_unwanted)
    }

    /// Lets received data of a connection be lent instead of copied. The bytes that
    /// [`TcpHost::input`] returns are lent.
    pub fn lend(&mut self, id: TcpId, lends: bool) {
        if let Some(entry) = entry_mut(&mut self.entries, id) {
            entry.connection.lend(lends);
        }
    }

    /// Ends the lending of the next `count` bytes of a connection, which the program has taken.
    pub fn take_lent(&mut self, id: TcpId, count: usize) {
        let Some(entry) = entry_mut(&mut self.entries, id) else { return };
        entry.connection.take_lent(count);
        entry.changes.readable |= entry.connection.is_finished();
        self.touch(id.index);
    }

    /// Ends the lending of the next bytes of a connection, which the program has not taken, and
    /// copies them. The connection is readable then.
    pub fn keep_lent(&mut self, id: TcpId, bytes: &[u8]) {
        let Some(entry) = entry_mut(&mut self.entries, id) else { return };
        entry.connection.keep_lent(bytes);
        entry.changes.readable = true;
        self.touch(id.index);
    }

    /// Takes a segment for which there is no connection.
    fn input_new(&mut self, now: Instant, flow: TcpFlow, segment: &Segment<'_>) {
        let port = flow.local.port();
        let has_room = self.flows.len() < self.most;
        if let Some(listener) = self.listeners.get_mut(&port) {
            let is_full = !has_room || listener.half_open >= listener.backlog;
            let initial = self.initial(now, &flow);
            let syn = &segment.tcp;
            if let Some(connection) =
                Connection::accept(now, &self.config, syn, initial, &mut self.rng)
            {
                if is_full {
                    // The peer sends its SYN again.
                    return;
                }
                if let Some(listener) = self.listeners.get_mut(&port) {
                    listener.half_open += 1;
                }
                self.insert(flow, connection, Some(port));
                return;
            }
        }
        if let Some(tcp) = refusal(segment) {
            self.refuse(flow, tcp);
        }
    }

    /// Returns the time at which to call [`TcpHost::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Returns true if [`TcpHost::output`] may have something to send.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.dirty.is_empty() || !self.refusals.is_empty()
    }

    /// Handles expired timers. Call [`TcpHost::output`] after it.
    pub fn tick(&mut self, now: Instant) {
        while let Some(&(at, index)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            let Some(entry) = self.entries[index as usize].as_mut() else { continue };
            entry.timer = None;
            entry.connection.tick(now, &self.config);
            self.touch(index);
        }
    }

    /// Sends what can be sent now. Returns false if `out` had no room for all: then call it again
    /// later.
    pub fn output<O: TcpOutput>(&mut self, now: Instant, out: &mut O) -> bool {
        while let Some((flow, tcp)) = self.refusals.front() {
            if !out.emit(flow, &Outgoing { tcp: *tcp, data: (&[], &[]), mss: 0, is_ect: false }) {
                return false;
            }
            self.refusals.pop_front();
        }
        // A connection whose peer has no room goes behind the others.
        for _ in 0..self.dirty.len() {
            let Some(index) = self.dirty.pop_front() else { break };
            let Some(entry) = self.entries[index as usize].as_mut() else { continue };
            let flow = entry.flow;
            let limits = out.limits(&flow);
            let mut send = |outgoing: &Outgoing<'_>| out.emit(&flow, outgoing);
            if entry.connection.output(now, &self.config, &limits, &mut send) {
                entry.is_dirty = false;
                self.settle(index);
            } else {
                self.dirty.push_back(index);
            }
        }
        self.dirty.is_empty()
    }

    /// Returns true if the sequence number is one that a connection has sent and that its peer has
    /// not acknowledged.
    #[must_use]
    pub fn is_in_flight(&self, flow: &TcpFlow, seq: Option<u32>) -> bool {
        let entry = self.flows.get(flow).and_then(|&i| self.entries[i as usize].as_ref());
        entry.zip(seq).is_some_and(|(entry, seq)| entry.connection.is_in_flight(seq))
    }

    /// Takes the news that the host of a peer reports a port without listener. That ends a
    /// connection in its handshake, and no other (RFC 5927 6).
    pub fn unreachable(&mut self, flow: &TcpFlow) {
        let Some(&index) = self.flows.get(flow) else { return };
        if let Some(entry) = self.entries[index as usize].as_mut() {
            entry.connection.unreachable();
            self.touch(index);
        }
    }

    /// Takes the news that the path to the peer of a connection has changed.
    pub fn path_changed(&mut self, flow: &TcpFlow) {
        if let Some(&index) = self.flows.get(flow) {
            self.touch(index);
        }
    }

    /// Sets the timer of a connection, and forgets it if it has ended and the program has
    /// released it.
    fn settle(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        let timer = entry.connection.deadline();
        if timer != entry.timer {
            if let Some(old) = entry.timer {
                self.timers.remove(&(old, index));
            }
            self.timers.extend(timer.map(|at| (at, index)));
            entry.timer = timer;
        }
        let has_ended = entry.connection.state() == TcpState::Closed;
        if has_ended && (entry.is_released || entry.half_open.is_some()) {
            self.remove(index);
        } else {
            self.report(index);
        }
    }

    /// Puts a connection at which something has changed into the queue of events. One that lends
    /// data comes later, so that the program reads no byte before those that are lent.
    fn report(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        if entry.connection.receive.lent() > 0 || entry.half_open.is_some() {
            return;
        }
        let has_ended = entry.connection.state() == TcpState::Closed;
        entry.changes.ended |= has_ended && !core::mem::replace(&mut entry.is_reported, has_ended);
        if entry.changes != TcpChanges::default() && !entry.is_ready {
            entry.is_ready = true;
            self.ready.push_back(index);
        }
    }

    fn remove(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].take() else { return };
        self.flows.remove(&entry.flow);
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, index));
        }
        if let Some(port) = entry.half_open
            && let Some(listener) = self.listeners.get_mut(&port)
        {
            listener.half_open -= 1;
        }
        self.free.push(index);
    }

    fn insert(
        &mut self,
        flow: TcpFlow,
        connection: Connection,
        half_open: Option<u16>,
    ) -> Option<TcpId> {
        if self.flows.len() >= self.most {
            return None;
        }
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let entry = Entry {
            generation,
            flow,
            connection,
            changes: TcpChanges::default(),
            timer: None,
            is_dirty: false,
            is_ready: false,
            is_released: false,
            is_reported: false,
            half_open,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[index as usize] = Some(Box::new(entry));
        self.flows.insert(flow, index);
        self.touch(index);
        Some(TcpId { index, generation })
    }

    /// Puts a connection into the queue of those that may have something to send.
    fn touch(&mut self, index: u32) {
        if let Some(entry) = self.entries[index as usize].as_mut()
            && !entry.is_dirty
        {
            entry.is_dirty = true;
            self.dirty.push_back(index);
        }
    }

    fn refuse(&mut self, flow: TcpFlow, tcp: Tcp) {
        if self.refusals.len() < MOST_REFUSALS {
            self.refusals.push_back((flow, tcp));
        }
    }

    fn entry(&self, id: TcpId) -> Option<&Entry> {
        let entry = self.entries.get(id.index as usize)?.as_deref()?;
        (entry.generation == id.generation).then_some(entry)
    }

    /// Returns the initial sequence number of a connection: a clock, and a hash of its addresses
    /// and ports (RFC 6528).
    fn initial(&self, now: Instant, flow: &TcpFlow) -> u32 {
        let hash = self.secret.hash_one(flow) as u32;
        hash.wrapping_add((now.as_ns() / CLOCK_NS) as u32)
    }
}

fn entry_mut(entries: &mut [Option<Box<Entry>>], id: TcpId) -> Option<&mut Entry> {
    let entry = entries.get_mut(id.index as usize)?.as_deref_mut()?;
    (entry.generation == id.generation).then_some(entry)
}
