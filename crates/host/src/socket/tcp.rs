//! The transport over kernel TCP: [`Stream`]s on non-blocking sockets. The reference
//! that the other transports are compared with, and the control path of a cluster.
//!
//! A turn: `input` finds out who has something (with few connections by reading each, else by asking the epoll), `event`
//! reads them one after the other and takes apart what came, `output` makes one gathering write for each connection that
//! has something to say.
//!
//! ```text
//!   small messages:  socket ─read─► buffer (64 KiB, one for all) ─lent─► event
//!   long ones:       socket ─read─► the message itself            ─owned─► event
//! ```
//!
//! Always holds: `buffer[at..filled]` belongs to `current`, and is taken apart before anything else is read; a slot of
//! `connections` is emptied only after all its events have been handed up; every number given out (session, request)
//! contains the slot and a counter, so that a stale one finds nothing.
//!
//! Not here: the frames (`proto`), reconnecting (whoever holds the session).

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::net::sockopt;
use sprat_proto::Instant;
use sprat_proto::rpc::stream::{Arrived, Bad, Ids, Role, Stream};
use sprat_proto::rpc::{
    CloseReason, Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices,
};
use sprat_proto::time::SECOND;

use crate::locator::{HostPort, Kind, Locator};
use crate::transport::Transport;

mod connection;
mod listener;
#[cfg(test)]
mod tests;

use connection::{Connecting, Connection, Read};
use listener::Listener;

/// Up to so many connections each is polled by reading it; more are polled through the epoll.
const DIRECT: usize = 8;
/// With few connections, how many turns pass between looks at the epoll (for new connections).
const EPOLL_EVERY: u32 = 32;
/// The most bytes that one connection writes in a turn while others wait to write.
const WORK: usize = 128 << 10;
/// The same while no other waits: the kernel moves a message of 1 MB in about half the time if it gets it at once.
const WORK_ALONE: usize = 1 << 20;
/// The buffer that small messages are read into, in bytes.
const BUFFER: usize = 64 << 10;
/// How long a connection may take to open.
const CONNECT_NS: u64 = 3 * SECOND;
/// How long an accepted connection may stay without a first frame.
const SILENCE_NS: u64 = 10 * SECOND;
/// The most connections: slots have 16 bits.
const MOST: usize = 1 << 16;
/// What the epoll calls the listener.
const LISTENER: u64 = u64::MAX;

/// How to open a transport.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Allow peers that are not on loopback. Nothing is encrypted.
    pub insecure_network: bool,
    /// The most connections, accepted and opened; at most 65,536. Beyond it none is accepted.
    pub connection_limit: usize,
    /// The most requests that wait for a reply on one session.
    pub queue_limit: usize,
    /// Let the kernel poll the device for so long in each read (SO_BUSY_POLL), in microseconds.
    pub busy_poll_us: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self { insecure_network: false, connection_limit: 16_384, queue_limit: 4096, busy_poll_us: None }
    }
}

/// What the transport has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Times that accepting failed or had to wait: no descriptor left, or at the limit.
    pub accept_errors: u64,
    /// Connections ended because the peer speaks another version, or no protocol of ours.
    pub bad_version: u64,
    /// Connections ended by a header with a wrong field.
    pub bad_field: u64,
    /// Accepted connections ended because they said nothing.
    pub silent: u64,
    /// Replies that came after their request had failed.
    pub unsolicited: u64,
}

/// The transport.
pub struct Tcp {
    options: Options,
    epoll: OwnedFd,
    listener: Option<Listener>,
    connections: Vec<Option<Box<Connection>>>,
    free: VecDeque<u16>,
    /// The slots in use.
    live: Vec<u16>,
    /// How many wait until their socket is writable, which only the epoll knows.
    waiting: usize,
    turn: u32,
    /// The epoll may have something.
    look: bool,
    buffer: Box<[u8]>,
    at: usize,
    filled: usize,
    /// Whose bytes are in the buffer.
    current: Option<u16>,
    /// Who may have something to read.
    ready: VecDeque<u16>,
    /// An event that `input` found and `event` hands up.
    found: Option<Event<'static>>,
    /// Who has something to write.
    dirty: VecDeque<u16>,
    /// Who has events without input.
    owing: VecDeque<u16>,
    released: VecDeque<Slice>,
    ids: Ids,
    sessions: u64,
    first_deadline: Instant,
    counters: Counters,
}

impl Tcp {
    /// A transport that listens at `at`, a locator of `tcp`, and may call others too.
    ///
    /// # Errors
    /// The locator is of another kind or names no address that is allowed, or the address cannot be bound.
    pub fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let mut tcp = Self::client(options)?;
        let mut last = io::ErrorKind::NotFound.into();
        for addr in host_port(at)?.allowed(options.insecure_network)? {
            match Listener::bind(addr) {
                Ok(listener) => {
                    let data = epoll::EventData::new_u64(LISTENER);
                    epoll::add(&tcp.epoll, &listener.socket, data, epoll::EventFlags::IN)?;
                    tcp.listener = Some(listener);
                    return Ok(tcp);
                }
                Err(e) => last = io::Error::new(e.kind(), format!("{at}: {e}")),
            }
        }
        Err(last)
    }

    /// A transport that only calls others.
    ///
    /// # Errors
    /// `epoll` failed.
    pub fn client(options: Options) -> io::Result<Self> {
        Ok(Self {
            options,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener: None,
            connections: Vec::new(),
            free: VecDeque::new(),
            live: Vec::new(),
            waiting: 0,
            turn: 0,
            look: true,
            buffer: vec![0; BUFFER].into(),
            at: 0,
            filled: 0,
            current: None,
            ready: VecDeque::new(),
            found: None,
            dirty: VecDeque::new(),
            owing: VecDeque::new(),
            released: VecDeque::new(),
            ids: Ids::default(),
            sessions: 0,
            first_deadline: Instant::NEVER,
            counters: Counters::default(),
        })
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many connections there are, opened and accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.live.len()
    }

    fn limit(&self) -> usize {
        self.options.connection_limit.min(MOST)
    }

    fn at_slot(&mut self, slot: u16) -> Option<&mut Connection> {
        self.connections.get_mut(usize::from(slot))?.as_deref_mut()
    }

    /// Gives a new connection a slot; `stream` gets the slot's number as its name.
    fn place(&mut self, socket: OwnedFd, stream: impl FnOnce(u16) -> Stream) -> u16 {
        let slot = self.free.pop_front().unwrap_or_else(|| {
            self.connections.push(None);
            (self.connections.len() - 1) as u16
        });
        self.connections[usize::from(slot)] = Some(Box::new(Connection::new(socket, stream(slot))));
        self.live.push(slot);
        slot
    }

    /// Makes the epoll report what the connection waits for.
    fn register(&mut self, slot: u16) {
        let Some(connection) = self.connections.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
        else {
            return;
        };
        let (old, wanted) = (connection.interest, connection.wanted_interest());
        if wanted == old {
            return;
        }
        let data = epoll::EventData::new_u64(u64::from(slot));
        // A socket that nothing is wanted of leaves the epoll, which would report its end again and again.
        let result = match (old.is_empty(), wanted.is_empty()) {
            (true, _) => epoll::add(&self.epoll, &connection.socket, data, wanted),
            (false, true) => epoll::delete(&self.epoll, &connection.socket),
            (false, false) => epoll::modify(&self.epoll, &connection.socket, data, wanted),
        };
        connection.interest = wanted;
        self.waiting += usize::from(wanted.contains(epoll::EventFlags::OUT));
        self.waiting -= usize::from(old.contains(epoll::EventFlags::OUT));
        if result.is_err() {
            connection.stream.end(CloseReason::Unreachable);
        }
    }

    /// Attends to what a change of the stream's state brings: its interest, its slices, its events, its end.
    fn settle(&mut self, slot: u16) {
        self.register(slot);
        let Some(connection) = self.connections.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
        else {
            return;
        };
        while let Some(slice) = connection.stream.released() {
            self.released.push_back(slice);
        }
        let owes = connection.stream.has_event() || connection.stream.ended().is_some();
        if owes && !connection.owing {
            connection.owing = true;
            self.owing.push_back(slot);
        }
    }

    /// Marks a connection as one that has something to write.
    fn soil(&mut self, slot: u16) {
        if let Some(connection) = self.at_slot(slot)
            && !connection.dirty
            && !connection.blocked
            && connection.connecting.is_none()
        {
            connection.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// Empties the slot of a connection that has ended.
    fn remove(&mut self, slot: u16) {
        let Some(connection) = self.connections[usize::from(slot)].take() else { return };
        self.waiting -= usize::from(connection.interest.contains(epoll::EventFlags::OUT));
        connection.say_farewell();
        match connection.stream.bad() {
            Some(Bad::Version) => self.counters.bad_version += 1,
            Some(_) => self.counters.bad_field += 1,
            None => {}
        }
        self.counters.unsolicited += connection.stream.unsolicited();
        self.live.retain(|s| *s != slot);
        self.free.push_back(slot);
        if self.live.len() < self.limit() {
            self.resume_accepting();
        }
    }

    /// Reads from `slot` once; returns true if anything came.
    fn receive(&mut self, now: Instant, slot: u16) -> bool {
        let Some(connection) = self.connections.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
        else {
            return false;
        };
        let stream = &connection.stream;
        if connection.connecting.is_some() || stream.ended().is_some() || !stream.wants_input() {
            return false;
        }
        match connection.read(now, &mut self.buffer, &mut self.ids) {
            Read::Nothing => return false,
            Read::Bytes(n) => {
                (self.current, self.at, self.filled) = (Some(slot), 0, n);
            }
            Read::Body(event) => {
                self.found = event;
                connection.silent_until = Instant::NEVER;
                self.settle(slot);
            }
            Read::End => {
                connection.stream.end(CloseReason::Reset);
                self.settle(slot);
            }
        }
        true
    }

    /// Takes the next event out of the buffer; `None` once all of it has been taken apart.
    fn take_apart(&mut self, now: Instant) -> Option<Arrived> {
        let slot = self.current?;
        let Some(connection) = self.connections.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
        else {
            self.current = None;
            return None;
        };
        let arrived = connection.stream.input(now, &self.buffer[..self.filled], &mut self.at, &mut self.ids);
        if arrived.is_some() {
            connection.silent_until = Instant::NEVER;
        } else {
            self.current = None;
            self.settle(slot);
        }
        arrived
    }

    /// The next event that no input made: a failure, or the end.
    fn owed(&mut self) -> Option<Event<'static>> {
        while let Some(&slot) = self.owing.front() {
            if let Some(connection) = self.at_slot(slot) {
                if let Some(event) = connection.stream.event() {
                    return Some(event);
                }
                connection.owing = false;
                if connection.stream.ended().is_some() {
                    self.remove(slot);
                }
            }
            self.owing.pop_front();
        }
        None
    }

    /// Asks the epoll who has something; returns how many.
    fn look(&mut self, now: Instant) -> usize {
        self.look = false;
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 64];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut events, Some(&none)).unwrap_or(0);
        // There may be more than fit.
        self.look = count == events.len();
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if data == LISTENER {
                self.accept(now);
                continue;
            }
            let slot = data as u16;
            let Some(connection) = self.at_slot(slot) else { continue };
            if connection.connecting.is_some() {
                self.connected(now, slot);
                continue;
            }
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            if connection.blocked && (broken || flags.contains(epoll::EventFlags::OUT)) {
                connection.blocked = false;
                self.register(slot);
                self.soil(slot);
            }
            if broken || flags.contains(epoll::EventFlags::IN) {
                self.ready.push_back(slot);
            }
        }
        count
    }

    /// A connection that was being opened is open, or this address does not work.
    fn connected(&mut self, now: Instant, slot: u16) {
        let Some(connection) = self.at_slot(slot) else { return };
        if matches!(sockopt::socket_error(&connection.socket), Ok(Ok(()))) {
            connection.connecting = None;
            self.register(slot);
            self.soil(slot);
            return;
        }
        let left = connection.connecting.take().map_or_else(VecDeque::new, |c| c.left);
        self.try_addresses(now, slot, left);
    }

    /// Goes on to the next addresses for the connection in `slot`, whose socket has failed.
    fn try_addresses(&mut self, now: Instant, slot: u16, mut left: VecDeque<SocketAddr>) {
        let begun = connection::begin(&mut left, self.options.busy_poll_us);
        let Some(connection) = self.connections.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
        else {
            return;
        };
        match begun {
            Err(_) => connection.stream.end(CloseReason::Unreachable),
            Ok((socket, done)) => {
                // The old socket leaves the epoll by being closed.
                connection.socket = socket;
                self.waiting -= usize::from(connection.interest.contains(epoll::EventFlags::OUT));
                connection.interest = epoll::EventFlags::empty();
                self.opening(now, slot, done, left);
            }
        }
        self.settle(slot);
    }

    /// The connection in `slot` has been begun.
    fn opening(&mut self, now: Instant, slot: u16, done: bool, left: VecDeque<SocketAddr>) {
        let until = now.after(CONNECT_NS);
        if let Some(connection) = self.at_slot(slot) {
            connection.connecting = (!done).then_some(Connecting { left, until });
            self.first_deadline = self.first_deadline.min(until);
            self.settle(slot);
            self.soil(slot);
        }
    }

    /// What is late in `slot`; returns when it is to be looked at again.
    fn tick_one(&mut self, now: Instant, slot: u16) -> Instant {
        let Some(connection) = self.connections.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
        else {
            return Instant::NEVER;
        };
        connection.stream.tick(now);
        if connection.silent_until <= now {
            self.counters.silent += 1;
            connection.stream.end(CloseReason::Unreachable);
        }
        let late = connection.connecting.take_if(|c| c.until <= now);
        if let Some(Connecting { left, .. }) = late {
            self.try_addresses(now, slot, left);
        }
        self.settle(slot);
        let Some(connection) = self.at_slot(slot) else { return Instant::NEVER };
        if connection.stream.ended().is_some() {
            return Instant::NEVER;
        }
        let connecting = connection.connecting.as_ref().map_or(Instant::NEVER, |c| c.until);
        connection.stream.deadline().min(connecting).min(connection.silent_until)
    }
}

fn host_port(locator: &Locator) -> io::Result<HostPort> {
    match locator.kind()? {
        Kind::Tcp(host_port) => Ok(host_port),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{locator} is no locator of tcp"))),
    }
}

/// The slot that a session's number contains.
fn slot_of(session: SessionId) -> u16 {
    session.place() as u16
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tcp")
            .field("listener", &self.listener)
            .field("connections", &self.live.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Transport for Tcp {
    fn input(&mut self, now: Instant) -> usize {
        if self.current.is_some() || self.found.is_some() {
            return 1;
        }
        self.turn = self.turn.wrapping_add(1);
        let mut count = 0;
        let waiting = self.live.len() > DIRECT || self.waiting > 0;
        if self.look || waiting || self.turn.is_multiple_of(EPOLL_EVERY) {
            count += self.look(now);
        }
        if !waiting {
            self.ready.clear();
            self.ready.extend(&self.live);
        }
        while let Some(slot) = self.ready.pop_front() {
            if self.receive(now, slot) {
                return count + 1;
            }
        }
        count + self.owing.len()
    }

    fn event(&mut self, now: Instant) -> Option<Event<'_>> {
        let arrived = loop {
            if let Some(event) = self.found.take() {
                return Some(event);
            }
            if let Some(arrived) = self.take_apart(now) {
                break arrived;
            }
            if let Some(event) = self.owed() {
                return Some(event);
            }
            let slot = self.ready.pop_front()?;
            self.receive(now, slot);
        };
        Some(arrived.event(&self.buffer[..self.filled]))
    }

    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        let work = if self.dirty.len() > 1 { WORK } else { WORK_ALONE };
        for _ in 0..self.dirty.len() {
            let Some(slot) = self.dirty.pop_front() else { break };
            let Some(connection) = self.at_slot(slot) else { continue };
            connection.dirty = false;
            if connection.stream.ended().is_some() {
                continue;
            }
            connection.write(now, memory, work);
            let more = connection.stream.has_output();
            self.settle(slot);
            if more {
                self.soil(slot);
            }
        }
        !self.dirty.is_empty() || !self.owing.is_empty()
    }

    fn released(&mut self) -> Option<Slice> {
        self.released.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        (self.first_deadline != Instant::NEVER).then_some(self.first_deadline)
    }

    fn tick(&mut self, now: Instant) {
        if now < self.first_deadline {
            return;
        }
        self.first_deadline = Instant::NEVER;
        let mut next = self.resume_if_due(now);
        for i in 0..self.live.len() {
            let slot = self.live[i];
            next = next.min(self.tick_one(now, slot));
        }
        self.first_deadline = self.first_deadline.min(next);
    }

    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        let host_port = host_port(to)?;
        if host_port.port == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{to}: no one listens at port 0"),
            ));
        }
        let addresses = host_port.allowed(self.options.insecure_network)?;
        if self.live.len() >= self.limit() {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, format!("{to}: too many connections")));
        }
        let mut addresses = addresses.into();
        let (socket, done) = connection::begin(&mut addresses, self.options.busy_poll_us)
            .map_err(|e| io::Error::new(e.kind(), format!("{to}: {e}")))?;
        self.sessions += 1;
        let (serial, queue_limit) = (self.sessions, self.options.queue_limit);
        let session = |slot| SessionId::new(serial, u32::from(slot));
        let slot = self.place(socket, |slot| Stream::new(slot, Role::Client(session(slot)), queue_limit));
        self.opening(now, slot, done, addresses);
        Ok(session(slot))
    }

    fn close(&mut self, _: Instant, session: SessionId) {
        let slot = slot_of(session);
        if let Some(connection) = self.at_slot(slot)
            && connection.stream.role() == Role::Client(session)
        {
            connection.stream.end(CloseReason::Local);
            self.settle(slot);
        }
    }

    fn channels(&self) -> usize {
        self.options.queue_limit
    }

    fn request(
        &mut self,
        _: Instant,
        session: SessionId,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        let slot = slot_of(session);
        let connection = self.connections.get_mut(usize::from(slot)).and_then(Option::as_deref_mut);
        let Some(connection) = connection.filter(|c| c.stream.role() == Role::Client(session)) else {
            return Err(RequestError::Closed);
        };
        let id = connection.stream.request(tag, message, deadline, &mut self.ids)?;
        self.first_deadline = self.first_deadline.min(deadline);
        self.soil(slot);
        Ok(id)
    }

    fn cancel(&mut self, _: Instant, rpc: RpcId) {
        let slot = Ids::stream(rpc.0);
        let Some(connection) = self.at_slot(slot) else { return };
        connection.stream.cancel(rpc);
        self.settle(slot);
    }

    fn reply(&mut self, _: Instant, rpc: ServerRpc, message: Message) {
        let slot = Ids::stream(rpc.0);
        match self.at_slot(slot) {
            Some(connection) => connection.stream.reply(rpc, message),
            None => return self.released.extend(message.slices),
        }
        self.settle(slot);
        self.soil(slot);
    }

    fn refuse(&mut self, _: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        let slot = Ids::stream(rpc.0);
        if let Some(connection) = self.at_slot(slot) {
            connection.stream.refuse(rpc, retry_after_ns);
            self.settle(slot);
            self.soil(slot);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn doze(&mut self) -> bool {
        // The descriptor reports what is still in a socket, but not what has been taken out of one.
        let idle = self.current.is_none() && self.found.is_none() && self.ready.is_empty();
        self.look = true;
        idle && self.dirty.is_empty() && self.owing.is_empty()
    }

    fn wake(&mut self) {
        self.look = true;
    }

    fn locator(&self) -> Option<String> {
        let at = self.listener.as_ref()?.local;
        Some(format!("tcp:host={},port={}", at.ip(), at.port()))
    }
}
