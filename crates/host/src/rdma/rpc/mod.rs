//! The transport over RDMA: requests and replies by Send, long messages by Read, on the queue pairs of software iWARP.
//!
//! A turn: `input` lets the engine take its own turn, `event` takes apart what it has completed, `output` posts what there
//! is to say on each connection, and the engine sends it all.
//!
//! ```text
//!   frames:  receive ─copy─► buffer (16 KiB, one for all) ─lent─► event
//! ```
//!
//! Always holds: `buffer[at..filled]` belongs to `current`, and is taken apart before anything else is taken; what a peer
//! does wrong ends its own connection; a slot of `links` is emptied only after all its events have been handed up; every
//! number given out (session, request) contains the slot and a counter, so that a stale one finds nothing.
//!
//! Not here: one connection's protocol (`pair`), the engine and its sockets (`super`), reconnecting (who holds the session).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};

use sprat_proto::Instant;
use sprat_proto::rdma::{Completed, Completion, Config, Cq, Qp, Status};
use sprat_proto::rpc::stream::{Arrived, Ids, Role, Stream};
use sprat_proto::rpc::{
    CloseReason, Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices,
};
use sprat_proto::time::SECOND;

use super::Copies;
use super::core::{Core, Settings};
use crate::crc::crc32c;
use crate::locator::{HostPort, Kind, Locator};
use crate::transport::Transport;

mod connect;
mod pair;
#[cfg(test)]
mod tests;

use pair::{Brought, Pair, READ, SLOT, World};

/// How long a connection may take to open.
const CONNECT_NS: u64 = 3 * SECOND;
/// How long an accepted connection may stay without a first frame.
const SILENCE_NS: u64 = 10 * SECOND;
/// The most connections: slots have 16 bits.
const MOST: usize = 1 << 16;

/// How to open a transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Allow peers that are not on loopback. Nothing is encrypted.
    pub(crate) insecure_network: bool,
    /// The most connections, accepted and opened; at most 65,536. Beyond it none is accepted.
    pub(crate) connection_limit: usize,
    /// The most requests that wait for a reply on one session.
    pub(crate) queue_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { insecure_network: false, connection_limit: 16_384, queue_limit: 4096 }
    }
}

/// What the transport has counted since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Peers refused because they speak another version, or no protocol of ours.
    pub(crate) strangers: u64,
    /// Connections ended because the peer broke a rule of notes or frames.
    pub(crate) bad: u64,
    /// Accepted connections ended because they said nothing.
    pub(crate) silent: u64,
    /// Replies that came after their request had failed.
    pub(crate) unsolicited: u64,
}

/// One connection, and where it stands.
#[derive(Debug)]
struct Link {
    pair: Pair,
    stream: Stream,
    /// Not connected yet.
    connecting: Option<Connecting>,
    /// Receives that have come and wait until replies have gone: which, and how many octets.
    held: VecDeque<(u16, u32)>,
    /// Its queue pair has ended; so will it, once nothing is held.
    gone: bool,
    /// It is in the list of those that have something to post.
    dirty: bool,
    /// It is in the list of those that have events without input.
    owing: bool,
    /// It is in the list of those that take what they held.
    resumed: bool,
    /// For one that we accepted: when its first frame must be there.
    silent_until: Instant,
}

/// A connection that is being opened.
#[derive(Debug)]
struct Connecting {
    /// The addresses to try next.
    left: VecDeque<SocketAddr>,
    /// When to give up.
    until: Instant,
    /// Ask for a CRC.
    crc: bool,
}

/// The transport.
pub(crate) struct Rdma {
    options: Options,
    /// Connections that are accepted have a CRC.
    crc: bool,
    core: Core,
    cq: Cq,
    listener: Option<(u32, SocketAddr)>,
    links: Vec<Option<Box<Link>>>,
    free: VecDeque<u16>,
    by_qp: BTreeMap<Qp, u16>,
    buffer: Box<[u8]>,
    at: usize,
    filled: usize,
    /// Whose octets are in the buffer.
    current: Option<u16>,
    /// A completion that `input` found.
    next: Option<Completion>,
    /// An event that was found and not handed up.
    found: Option<Event<'static>>,
    /// Who has something to post.
    dirty: VecDeque<u16>,
    /// Who has events without input.
    owing: VecDeque<u16>,
    /// Who takes what it held.
    resumed: VecDeque<u16>,
    released: VecDeque<Slice>,
    ids: Ids,
    sessions: u64,
    first_deadline: Instant,
    counters: Counters,
}

impl Rdma {
    /// A transport that listens at `at`, a locator of `rdma`, and may call others too.
    ///
    /// # Errors
    /// The locator is of another kind or names no address that is allowed, or the address cannot be bound.
    pub(crate) fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let (host_port, crc) = host_port(at)?;
        let mut rdma = Self::new(options, crc)?;
        let mut last = io::ErrorKind::NotFound.into();
        for addr in host_port.allowed(options.insecure_network)? {
            match rdma.core.listen(addr) {
                Ok(listener) => {
                    rdma.listener = Some(listener);
                    return Ok(rdma);
                }
                Err(e) => last = io::Error::new(e.kind(), format!("{at}: {e}")),
            }
        }
        Err(last)
    }

    /// A transport that only calls others.
    ///
    /// # Errors
    /// No descriptor, or no random numbers.
    pub(crate) fn client(options: Options) -> io::Result<Self> {
        Self::new(options, true)
    }

    /// A transport that asks those who call it for a CRC, or not.
    fn new(options: Options, crc: bool) -> io::Result<Self> {
        let connections = options.connection_limit.min(MOST);
        let config = Config { crc32c, crc, max_conns: connections, ..Config::default() };
        let mut core = Core::new(Settings { config, copies: Copies::Asked, connections })?;
        core.desk.moved = Some(VecDeque::new());
        // Each connection has a few completions at most, so it is the connections that are limited.
        let cq = core.rnic.create_cq(u32::MAX).map_err(io::Error::other)?;
        Ok(Self {
            options,
            crc,
            core,
            cq,
            listener: None,
            links: Vec::new(),
            free: VecDeque::new(),
            by_qp: BTreeMap::new(),
            buffer: vec![0; SLOT].into(),
            at: 0,
            filled: 0,
            current: None,
            next: None,
            found: None,
            dirty: VecDeque::new(),
            owing: VecDeque::new(),
            resumed: VecDeque::new(),
            released: VecDeque::new(),
            ids: Ids::default(),
            sessions: 0,
            first_deadline: Instant::NEVER,
            counters: Counters::default(),
        })
    }

    fn at_slot(&mut self, slot: u16) -> Option<&mut Link> {
        self.links.get_mut(usize::from(slot))?.as_deref_mut()
    }

    /// Attends to what a change of the stream's state brings: its slices, its events, its end.
    fn settle(&mut self, slot: u16) {
        let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut) else { return };
        while let Some(slice) = link.stream.released() {
            self.released.push_back(slice);
        }
        let owes = link.stream.has_event() || link.stream.ended().is_some();
        if owes && !link.owing {
            link.owing = true;
            self.owing.push_back(slot);
        }
    }

    /// Marks a connection as one that may have something to post.
    fn soil(&mut self, slot: u16) {
        if let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// The connection in `slot` is over.
    fn end(&mut self, slot: u16, reason: CloseReason) {
        if let Some(link) = self.at_slot(slot) {
            link.stream.end(reason);
        }
        self.settle(slot);
    }

    /// The peer in `slot` broke a rule.
    fn blame(&mut self, slot: u16) {
        if let Some(link) = self.at_slot(slot) {
            link.stream.blame();
        }
        self.settle(slot);
    }

    /// Empties the slot of a connection that has ended.
    fn remove(&mut self, slot: u16) {
        let Some(link) = self.links[usize::from(slot)].take() else { return };
        self.counters.bad += u64::from(link.stream.bad().is_some());
        self.counters.unsolicited += link.stream.unsolicited();
        self.by_qp.remove(&link.pair.qp);
        self.core.desk.links.remove(&link.pair.qp);
        let Core { rnic, regions, .. } = &mut self.core;
        link.pair.close(&mut World { rnic, regions, released: &mut self.released });
        self.free.push_back(slot);
    }

    // What comes.

    /// The next completion that is to be looked at, held ones first.
    fn completion(&mut self) -> Option<Completion> {
        while let Some(&slot) = self.resumed.front() {
            let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut) else {
                self.resumed.pop_front();
                continue;
            };
            if (link.stream.wants_input() || link.gone)
                && let Some((receive, len)) = link.held.pop_front()
            {
                let id = u64::from(slot) << 32 | u64::from(receive);
                let (status, completed, qp) = (Status::Success, Completed::Recv, link.pair.qp);
                return Some(Completion {
                    id,
                    status,
                    completed,
                    len,
                    qp,
                    immediate: None,
                    invalidated: None,
                });
            }
            link.resumed = false;
            self.resumed.pop_front();
            if link.gone && link.held.is_empty() {
                self.end(slot, CloseReason::Reset);
            }
        }
        self.next.take().or_else(|| self.core.rnic.poll(self.cq))
    }

    /// Looks at a completion.
    fn completed(&mut self, now: Instant, done: Completion) {
        let slot = (done.id >> 32) as u16;
        let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut) else { return };
        if link.pair.qp != done.qp || link.stream.ended().is_some() {
            return;
        }
        if done.status != Status::Success {
            return self.gone(slot);
        }
        let Core { rnic, regions, .. } = &mut self.core;
        let mut world = World { rnic, regions, released: &mut self.released };
        if done.id & READ != 0 {
            match link.pair.read(now, &mut link.stream, &mut self.ids, &mut world) {
                Ok(event) => self.found = event,
                Err(_) => return self.blame(slot),
            }
            self.soil(slot);
            return self.settle(slot);
        }
        let receive = done.id as u16;
        if !link.resumed && (!link.held.is_empty() || !link.stream.wants_input()) {
            return link.held.push_back((receive, done.len));
        }
        let taken =
            link.pair.take(receive, done.len as usize, &mut self.buffer, &mut link.stream, &mut world);
        match taken {
            Ok(Brought::Nothing) => self.settle(slot),
            Ok(Brought::Frames(at)) => {
                (self.current, self.at, self.filled) = (Some(slot), at, done.len as usize);
            }
            Err(_) => return self.blame(slot),
        }
        // There may be more to say now, or to read.
        self.soil(slot);
    }

    /// The queue pair of the connection in `slot` has ended.
    fn gone(&mut self, slot: u16) {
        let Some(link) = self.at_slot(slot) else { return };
        link.gone = true;
        if link.held.is_empty() {
            return self.end(slot, CloseReason::Reset);
        }
        self.resume(slot);
    }

    /// What the connection in `slot` held is taken now.
    fn resume(&mut self, slot: u16) {
        if let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
            && !link.resumed
        {
            link.resumed = true;
            self.resumed.push_back(slot);
        }
    }

    /// Takes the next event out of the buffer; `None` once all of it has been taken apart.
    fn take_apart(&mut self, now: Instant) -> Option<Arrived> {
        let slot = self.current?;
        let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut) else {
            self.current = None;
            return None;
        };
        let arrived = link.stream.input(now, &self.buffer[..self.filled], &mut self.at, &mut self.ids);
        if arrived.is_some() {
            link.silent_until = Instant::NEVER;
        } else {
            self.current = None;
            if !link.stream.is_between() {
                link.stream.blame();
            }
            self.settle(slot);
        }
        arrived
    }

    /// The next event that no input made: a failure, or the end.
    fn owed(&mut self) -> Option<Event<'static>> {
        while let Some(&slot) = self.owing.front() {
            if let Some(link) = self.at_slot(slot) {
                if let Some(event) = link.stream.event() {
                    return Some(event);
                }
                link.owing = false;
                if link.stream.ended().is_some() {
                    self.remove(slot);
                }
            }
            self.owing.pop_front();
        }
        None
    }

    /// What is late in `slot`; returns when it is to be looked at again.
    fn tick_one(&mut self, now: Instant, slot: u16) -> Instant {
        let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut) else {
            return Instant::NEVER;
        };
        link.stream.tick(now);
        if link.silent_until <= now && link.stream.ended().is_none() {
            self.counters.silent += 1;
            link.stream.end(CloseReason::Unreachable);
        }
        let (ended, next) = (link.stream.ended().is_some(), link.stream.deadline().min(link.silent_until));
        self.settle(slot);
        if ended { Instant::NEVER } else { next }
    }
}

/// The place, and whether to ask for a CRC.
fn host_port(locator: &Locator) -> io::Result<(HostPort, bool)> {
    match locator.kind()? {
        Kind::Rdma { at, crc } => Ok((at, crc)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{locator} is no locator of rdma"))),
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma")
            .field("listener", &self.listener)
            .field("connections", &self.by_qp.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Transport for Rdma {
    fn input(&mut self, now: Instant) -> usize {
        if self.current.is_some() || self.found.is_some() {
            return 1;
        }
        // Nothing is sent before `output` has the memory that messages name.
        let worked = self.core.take_in(now);
        if worked {
            self.welcome(now);
            self.core.desk.notices.clear();
        }
        if self.next.is_none() {
            self.next = self.core.rnic.poll(self.cq);
        }
        // How connections stand is looked at behind what they have completed.
        if self.next.is_none() {
            self.moved(now);
        }
        usize::from(worked || self.next.is_some()) + self.resumed.len() + self.owing.len() + self.dirty.len()
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
            match self.completion() {
                Some(done) => self.completed(now, done),
                None if self.owing.is_empty() => return None,
                None => {}
            }
        };
        Some(arrived.event(&self.buffer[..self.filled]))
    }

    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        for _ in 0..self.dirty.len() {
            let Some(slot) = self.dirty.pop_front() else { break };
            let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut) else {
                continue;
            };
            link.dirty = false;
            if link.stream.ended().is_some() {
                continue;
            }
            let Core { rnic, regions, .. } = &mut self.core;
            let mut world = World { rnic, regions, released: &mut self.released };
            if link.pair.output(now, &mut link.stream, memory, &mut world).is_err() {
                link.stream.end(CloseReason::Reset);
            }
            if !link.held.is_empty() && link.stream.wants_input() {
                self.resume(slot);
            }
            self.settle(slot);
        }
        self.core.flush_from(now, memory);
        !self.owing.is_empty() || !self.resumed.is_empty() || self.core.has_output()
    }

    fn released(&mut self) -> Option<Slice> {
        self.released.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let first = self.first_deadline.min(self.core.deadline());
        (first != Instant::NEVER).then_some(first)
    }

    fn tick(&mut self, now: Instant) {
        if self.core.deadline() <= now {
            self.core.take_in(now);
            self.moved(now);
        }
        if now < self.first_deadline {
            return;
        }
        let mut next = Instant::NEVER;
        for slot in 0..self.links.len() as u32 {
            next = next.min(self.tick_one(now, slot as u16));
        }
        self.first_deadline = next;
    }

    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        self.open(now, to)
    }

    fn close(&mut self, _: Instant, session: SessionId) {
        let slot = session.place() as u16;
        if let Some(link) = self.at_slot(slot)
            && link.stream.role() == Role::Client(session)
        {
            self.end(slot, CloseReason::Local);
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
        let slot = session.place() as u16;
        let link = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut);
        let Some(link) = link.filter(|l| l.stream.role() == Role::Client(session)) else {
            return Err(RequestError::Closed);
        };
        let id = link.stream.request(tag, message, deadline, &mut self.ids)?;
        self.first_deadline = self.first_deadline.min(deadline);
        self.soil(slot);
        Ok(id)
    }

    fn cancel(&mut self, _: Instant, rpc: RpcId) {
        let slot = Ids::stream(rpc.0);
        let Some(link) = self.at_slot(slot) else { return };
        link.stream.cancel(rpc);
        self.settle(slot);
    }

    fn reply(&mut self, _: Instant, rpc: ServerRpc, message: Message) {
        let slot = Ids::stream(rpc.0);
        match self.at_slot(slot) {
            Some(link) => link.stream.reply(rpc, message),
            None => return self.released.extend(message.slices),
        }
        self.settle(slot);
        self.soil(slot);
    }

    fn refuse(&mut self, _: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        let slot = Ids::stream(rpc.0);
        if let Some(link) = self.at_slot(slot) {
            link.stream.refuse(rpc, retry_after_ns);
            self.settle(slot);
            self.soil(slot);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.core.epoll.as_fd()
    }

    fn doze(&mut self) -> bool {
        let idle = self.current.is_none() && self.found.is_none() && self.next.is_none();
        let settled = self.dirty.is_empty() && self.owing.is_empty() && self.resumed.is_empty();
        self.core.doze() && idle && settled
    }

    fn wake(&mut self) {
        self.core.look = true;
    }

    fn locator(&self) -> Option<String> {
        let (_, at) = self.listener?;
        let crc = if self.crc { "" } else { ",crc=off" };
        Some(format!("rdma:host={},port={}{crc}", at.ip(), at.port()))
    }
}
