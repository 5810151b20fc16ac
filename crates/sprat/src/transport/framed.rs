//! Requests and replies as frames on connections, whatever carries them: kernel TCP
//! ([`crate::transport::tcp`]) or queue pairs ([`crate::transport::qp`]).
//!
//! ```text
//!   Framed ─┬─ links     slot ─► Link { Stream: the frames, Wire: the carrier's own }
//!           ├─ buffer    what came on one of them and is taken apart
//!           └─ carrier   who asks the kernel: finds what came, sends what is to go, opens, accepts, ends
//! ```
//! A turn: `input` lets the carrier find out who has something, `event` takes apart what it brings,
//! one thing after the other, `output` lets it send for each link that has something to say.
//!
//! Always holds: `buffer[at..filled]` belongs to `current`, and is taken apart before anything else
//! is taken; a slot of `links` is emptied only after all its events have been handed up; every
//! number given out (session, request) contains the slot and a counter, so that a stale one finds
//! nothing.
//!
//! Memory: what has come in part is limited in sum for the connections that were accepted
//! ([`Budget`]). One that waits for room is not read, and keeps what one read brought: 64 KiB, or 4
//! KiB while another waits already.
//!
//! Not here: the frames (`proto`), reconnecting (whoever holds the session).

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::node::Transport;
use sprat_proto::rpc::budget::{self, Budget};
use sprat_proto::rpc::stream::{Arrived, Bad, Ids, Role, Stream};
use sprat_proto::rpc::{
    CloseReason, Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices,
};
use sprat_proto::time::SECOND;

use crate::count::counters;
use crate::locator::Locator;
use crate::transport::SystemTransport;

mod carrier;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use carrier::{Around, Carrier, Connecting, Link};

/// How long a connection may take to open.
pub(crate) const CONNECT_NS: u64 = 3 * SECOND;
/// How long an accepted connection may stay without a first frame.
pub(crate) const SILENCE_NS: u64 = 10 * SECOND;
/// Bytes of replies that wait to be written, on all connections together, from which on those with
/// much of it are not read. The datagram transport refuses requests from as many on.
const UNSENT_MOST: usize = 256 << 20;
/// A connection whose peer finishes none of its replies for so long ends, and what the replies hold
/// is released. The datagram transport gives up a reply that is as old.
const UNTAKEN_NS: u64 = 30 * SECOND;
/// What is much for one connection then.
const UNSENT_MUCH: usize = 64 << 10;
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
    /// Kernel TCP alone: let the kernel poll the device for so long in each read (SO_BUSY_POLL), in
    /// microseconds.
    pub(crate) busy_poll_us: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            insecure_network: false,
            connection_limit: 16_384,
            queue_limit: 4096,
            busy_poll_us: None,
        }
    }
}

counters! {
    /// What a transport has counted since it was opened.
    pub(crate) struct Counters {
        /// Connections opened,
        opened,
        /// accepted,
        accepted,
        /// and ended, of both.
        ended,
        /// Client: requests taken from the caller,
        calls,
        /// replies handed up,
        responses,
        /// requests that failed.
        failures,
        /// Server: requests handed up,
        requests,
        /// replies taken,
        replies,
        /// requests refused.
        refused,
        /// Connections ended because the peer speaks another version, or no protocol of ours.
        bad_version,
        /// Connections ended because the peer broke another rule of frames, or of what carries
        /// them.
        bad_field,
        /// Accepted connections ended because they said nothing,
        silent,
        /// or because a message stood still in the middle, or was the slowest while others waited
        /// for room, or because the peer took no reply.
        stalled,
        /// Replies that came after their request had failed.
        unsolicited,
    }
}

impl Counters {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Request { .. } => self.requests += 1,
            Event::Response { .. } => self.responses += 1,
            Event::Failed { .. } => self.failures += 1,
            Event::Closed { .. } => {}
        }
    }
}

/// The transport.
pub(crate) struct Framed<C: Carrier> {
    pub(crate) options: Options,
    pub(crate) carrier: C,
    links: Vec<Option<Box<Link<C::Wire>>>>,
    free: VecDeque<u16>,
    /// The slots in use.
    pub(crate) live: Vec<u16>,
    buffer: Box<[u8]>,
    at: usize,
    filled: usize,
    /// Whose bytes are in the buffer.
    current: Option<u16>,
    /// An event that was found and not handed up.
    pub(crate) found: Option<Event<'static>>,
    /// Who has something to send.
    dirty: VecDeque<u16>,
    /// Who has events without input.
    owing: VecDeque<u16>,
    /// Slots with a backlog whose streams want input again.
    resumed: VecDeque<u16>,
    /// Bytes that wait to be written on the connections that were accepted.
    unsent: usize,
    released: VecDeque<Slice>,
    ids: Ids,
    /// Room for what has come in part on the connections that were accepted.
    budget: Budget,
    /// The last time handed in.
    now: Instant,
    sessions: u64,
    pub(crate) first_deadline: Instant,
    pub(crate) counters: Counters,
}

impl<C: Carrier> Framed<C> {
    /// No connections yet.
    pub(crate) fn over(carrier: C, options: Options) -> Self {
        Self {
            options,
            carrier,
            links: Vec::new(),
            free: VecDeque::new(),
            live: Vec::new(),
            buffer: vec![0; C::BUFFER].into(),
            at: 0,
            filled: 0,
            current: None,
            found: None,
            dirty: VecDeque::new(),
            owing: VecDeque::new(),
            resumed: VecDeque::new(),
            unsent: 0,
            released: VecDeque::new(),
            ids: Ids::default(),
            budget: Budget::new(budget::MOST),
            now: Instant::ZERO,
            sessions: 0,
            first_deadline: Instant::NEVER,
            counters: Counters::default(),
        }
    }

    /// True if there may be no more connections.
    pub(crate) fn is_full(&self) -> bool {
        self.live.len() >= self.options.connection_limit.min(MOST)
    }

    /// The link in `slot`.
    #[inline]
    pub(crate) fn at_slot(&mut self, slot: u16) -> Option<&mut Link<C::Wire>> {
        self.links.get_mut(usize::from(slot))?.as_deref_mut()
    }

    /// The link of a session of ours.
    fn own(&self, session: SessionId) -> Option<&Link<C::Wire>> {
        let link = self.links.get(usize::from(slot_of(session)))?.as_deref()?;
        (link.stream.role() == Role::Client(session)).then_some(link)
    }

    /// The link in `slot`, and what surrounds it.
    #[inline]
    pub(crate) fn around(&mut self, slot: u16) -> Option<(&mut Link<C::Wire>, Around<'_, C>)> {
        let link = self.links.get_mut(usize::from(slot))?.as_deref_mut()?;
        let (carrier, buffer) = (&mut self.carrier, &mut self.buffer[..]);
        let (ids, released, budget) = (&mut self.ids, &mut self.released, &mut self.budget);
        Some((link, Around { carrier, buffer, ids, released, budget }))
    }

    /// The carrier, and where slices go that are no longer needed.
    pub(crate) fn carrier_and_released(&mut self) -> (&mut C, &mut VecDeque<Slice>) {
        (&mut self.carrier, &mut self.released)
    }

    /// The slot that the next link gets.
    pub(crate) fn next_slot(&self) -> u16 {
        self.free.front().copied().unwrap_or(self.links.len() as u16)
    }

    /// Gives a connection that we open a slot.
    pub(crate) fn place_opened(&mut self, wire: C::Wire) -> u16 {
        self.sessions += 1;
        self.counters.opened += 1;
        let session = SessionId::new(self.sessions, u32::from(self.next_slot()));
        self.place(wire, Role::Client(session), self.options.queue_limit)
    }

    /// Gives one that we accept a slot.
    pub(crate) fn place_accepted(&mut self, now: Instant, wire: C::Wire) -> u16 {
        self.counters.accepted += 1;
        let slot = self.place(wire, Role::Server, 0);
        let silent_until = now.after(SILENCE_NS);
        if let Some(link) = self.at_slot(slot) {
            link.silent_until = silent_until;
        }
        self.first_deadline = self.first_deadline.min(silent_until);
        slot
    }

    fn place(&mut self, wire: C::Wire, role: Role, queue_limit: usize) -> u16 {
        let slot = self.next_slot();
        if self.free.pop_front().is_none() {
            self.links.push(None);
        }
        self.links[usize::from(slot)] = Some(Box::new(Link {
            stream: Stream::new(slot, role, queue_limit),
            wire,
            connecting: None,
            cause: None,
            room: 0,
            unsent: 0,
            backlog: Vec::new(),
            resumed: false,
            dirty: false,
            owing: false,
            silent_until: Instant::NEVER,
            taken_until: Instant::NEVER,
        }));
        self.live.push(slot);
        slot
    }

    /// Frames are in the buffer, from `at` to `filled`.
    #[inline]
    pub(crate) fn brought(&mut self, slot: u16, at: usize, filled: usize) {
        (self.current, self.at, self.filled) = (Some(slot), at, filled);
    }

    /// Attends to what a change of the stream's state brings: its slices, its events, its end.
    #[inline]
    pub(crate) fn settle(&mut self, slot: u16) {
        let Some((link, _)) = self.around(slot) else { return };
        if link.stream.assembling() != link.room {
            self.make_room(slot);
        }
        self.count_unsent(slot);
        let Some((link, around)) = self.around(slot) else { return };
        around.carrier.settled(slot, link);
        while let Some(slice) = link.stream.released() {
            around.released.push_back(slice);
        }
        let owes = link.stream.has_event() || link.stream.ended().is_some();
        let goes_on = !link.backlog.is_empty() && !link.resumed && link.stream.wants_input();
        link.resumed |= goes_on;
        if owes && !link.owing {
            link.owing = true;
            self.owing.push_back(slot);
        }
        if goes_on {
            self.resumed.push_back(slot);
        }
    }

    /// Counts what waits to be written, and lets one that has much of it wait while that is too
    /// much in sum.
    #[inline]
    fn count_unsent(&mut self, slot: u16) {
        let (all, until) = (self.unsent, self.now.after(UNTAKEN_NS));
        let Some(link) = self.at_slot(slot).filter(|link| link.stream.role() == Role::Server)
        else {
            return;
        };
        let (before, now) = (link.unsent, link.stream.unsent() + C::untaken(&link.wire));
        if before == now {
            return;
        }
        link.unsent = now;
        if now == 0 {
            link.taken_until = Instant::NEVER;
        } else if now < before || before == 0 {
            link.taken_until = until;
        }
        let all = all - before + now;
        link.stream.set_paused(now >= UNSENT_MUCH && all >= UNSENT_MOST);
        self.unsent = all;
        self.first_deadline = self.first_deadline.min(until);
    }

    /// Puts the backlog of a connection that may go on with it into the buffer; false if there is
    /// none.
    fn resume(&mut self) -> bool {
        while let Some(slot) = self.resumed.pop_front() {
            let Some((link, around)) = self.around(slot) else { continue };
            link.resumed = false;
            if !link.stream.wants_input() || link.backlog.is_empty() {
                continue;
            }
            let n = link.backlog.len().min(around.buffer.len());
            around.buffer[..n].copy_from_slice(&link.backlog[..n]);
            link.backlog.drain(..n);
            self.brought(slot, 0, n);
            return true;
        }
        false
    }

    /// Takes room for the request that has come in part, after giving back that of the one before.
    #[cold]
    fn make_room(&mut self, slot: u16) {
        let (now, name) = (self.now, u32::from(slot));
        let Some((link, around)) = self.around(slot) else { return };
        if link.room > 0 {
            around.budget.leave(now, name);
        }
        link.room = link.stream.assembling();
        let waits = link.room > 0 && !around.budget.take(now, name, link.room);
        link.stream.set_waiting(waits);
        self.admit();
    }

    /// Goes on with connections that have waited for room.
    pub(crate) fn admit(&mut self) {
        while let Some(name) = self.budget.granted() {
            let slot = name as u16;
            let Some(link) = self.at_slot(slot) else { continue };
            link.stream.set_waiting(false);
            C::admitted(link);
            self.settle(slot);
            self.soil(slot);
        }
    }

    /// Ends the connections whose messages stand still.
    fn end_stalled(&mut self, now: Instant) {
        self.budget.tick(now);
        while let Some(name) = self.budget.late() {
            self.counters.stalled += 1;
            self.end(name as u16, CloseReason::Unreachable);
        }
    }

    /// Marks a connection as one that has something to send.
    #[inline]
    pub(crate) fn soil(&mut self, slot: u16) {
        if let Some(link) = self.at_slot(slot)
            && !link.dirty
            && link.connecting.is_none()
            && C::may_send(&link.wire)
        {
            link.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// The connection in `slot` is over.
    pub(crate) fn end(&mut self, slot: u16, reason: CloseReason) {
        if let Some(link) = self.at_slot(slot) {
            link.stream.end(reason);
        }
        self.settle(slot);
    }

    /// The connection in `slot` cannot be opened.
    pub(crate) fn unreachable(&mut self, slot: u16, cause: io::Error) {
        if let Some(link) = self.at_slot(slot) {
            link.cause = Some(cause);
        }
        self.end(slot, CloseReason::Unreachable);
    }

    /// Empties the slot of a connection that has ended.
    pub(crate) fn remove(&mut self, slot: u16) {
        let Some(link) = self.links[usize::from(slot)].take() else { return };
        match link.stream.bad() {
            Some(Bad::Version) => self.counters.bad_version += 1,
            Some(_) => self.counters.bad_field += 1,
            None => {}
        }
        self.counters.ended += 1;
        self.unsent -= link.unsent;
        self.counters.unsolicited += link.stream.unsolicited();
        self.live.retain(|s| *s != slot);
        self.free.push_back(slot);
        C::removed(self, *link);
        self.budget.leave(self.now, u32::from(slot));
        self.admit();
    }

    /// Takes the next event out of the buffer; `None` once all of it has been taken apart.
    #[inline]
    fn take_apart(&mut self, now: Instant) -> Option<Arrived> {
        let slot = self.current?;
        let Some(link) = self.links.get_mut(usize::from(slot)).and_then(Option::as_deref_mut)
        else {
            self.current = None;
            return None;
        };
        let waits = !link.stream.wants_input() && link.stream.role() == Role::Server;
        if waits && link.stream.ended().is_none() && self.at < self.filled {
            link.backlog.extend_from_slice(&self.buffer[self.at..self.filled]);
            self.current = None;
            self.settle(slot);
            return None;
        }
        let arrived =
            link.stream.input(now, &self.buffer[..self.filled], &mut self.at, &mut self.ids);
        if arrived.is_some() {
            link.silent_until = Instant::NEVER;
        } else {
            self.current = None;
            C::taken(link);
            self.settle(slot);
        }
        arrived
    }

    /// The next event that no input made: a failure, or the end.
    #[inline]
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
        let Some(link) = self.at_slot(slot) else { return Instant::NEVER };
        link.stream.tick(now);
        if link.silent_until <= now && link.stream.ended().is_none() {
            link.stream.end(CloseReason::Unreachable);
            self.counters.silent += 1;
        } else if link.taken_until <= now && link.stream.ended().is_none() {
            link.stream.end(CloseReason::Unreachable);
            self.counters.stalled += 1;
        } else if link.connecting.as_ref().is_some_and(|c| c.until <= now) {
            C::late(self, now, slot);
        }
        self.settle(slot);
        let Some(link) = self.at_slot(slot).filter(|link| link.stream.ended().is_none()) else {
            return Instant::NEVER;
        };
        let connecting = link.connecting.as_ref().map_or(Instant::NEVER, |c| c.until);
        // What is late and stays so is somebody else's to end.
        let connecting = if connecting > now { connecting } else { Instant::NEVER };
        link.stream.deadline().min(connecting).min(link.silent_until).min(link.taken_until)
    }
}

/// The slot that a session's number contains.
fn slot_of(session: SessionId) -> u16 {
    session.place() as u16
}

impl<C: Carrier> fmt::Debug for Framed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framed")
            .field("carrier", &self.carrier)
            .field("links", &self.live.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl<C: Carrier> Transport for Framed<C> {
    fn input(&mut self, now: Instant) -> usize {
        self.now = now;
        if self.current.is_some() || self.found.is_some() {
            return 1;
        }
        C::input(self, now) + self.owing.len() + self.resumed.len()
    }

    fn event(&mut self, now: Instant) -> Option<Event<'_>> {
        let arrived = loop {
            if let Some(event) = self.found.take() {
                self.counters.event(&event);
                return Some(event);
            }
            if let Some(arrived) = self.take_apart(now) {
                break arrived;
            }
            if let Some(event) = self.owed() {
                self.counters.event(&event);
                return Some(event);
            }
            if self.resume() {
                continue;
            }
            if !C::receive(self, now) && self.owing.is_empty() {
                return None;
            }
        };
        let event = arrived.event(&self.buffer[..self.filled]);
        self.counters.event(&event);
        Some(event)
    }

    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        let alone = self.dirty.len() <= 1;
        for _ in 0..self.dirty.len() {
            let Some(slot) = self.dirty.pop_front() else { break };
            let Some((link, around)) = self.around(slot) else { continue };
            link.dirty = false;
            if link.stream.ended().is_some() {
                continue;
            }
            let more = C::send(now, slot, link, around, memory, alone);
            self.settle(slot);
            if more {
                self.soil(slot);
            }
        }
        let more = self.carrier.flush(now, memory);
        more || !self.dirty.is_empty() || !self.owing.is_empty() || !self.resumed.is_empty()
    }

    fn released(&mut self) -> Option<Slice> {
        self.released.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let first = self.first_deadline.min(self.carrier.deadline()).min(self.budget.deadline());
        (first != Instant::NEVER).then_some(first)
    }

    fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.budget.deadline() <= now {
            self.end_stalled(now);
        }
        if self.carrier.deadline() <= now {
            C::tick(self, now);
        }
        if now < self.first_deadline {
            return;
        }
        self.first_deadline = Instant::NEVER;
        let mut next = Instant::NEVER;
        for i in 0..self.live.len() {
            let slot = self.live[i];
            next = next.min(self.tick_one(now, slot));
        }
        self.first_deadline = self.first_deadline.min(next);
    }

    fn is_open(&self, session: SessionId) -> bool {
        self.own(session)
            .is_some_and(|link| link.connecting.is_none() && link.stream.ended().is_none())
    }

    fn cause(&self, session: SessionId) -> Option<String> {
        self.own(session)?.cause.as_ref().map(io::Error::to_string)
    }

    fn close(&mut self, _: Instant, session: SessionId) {
        if self.own(session).is_some() {
            self.end(slot_of(session), CloseReason::Local);
        }
    }

    fn has_idle_channel(&self, session: SessionId) -> bool {
        // A stream carries any number of requests.
        self.own(session).is_some()
    }

    fn prefetch(&mut self, _: &[SessionId]) {}

    fn request(
        &mut self,
        _: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        let slot = slot_of(session);
        let found =
            self.around(slot).filter(|(link, _)| link.stream.role() == Role::Client(session));
        let Some((link, around)) = found else { return Err(RequestError::Closed) };
        let id = link.stream.request(tag, mem::take(message), deadline, around.ids)?;
        self.counters.calls += 1;
        self.first_deadline = self.first_deadline.min(deadline);
        self.soil(slot);
        Ok(id)
    }

    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.request(now, session, tag, &mut bytes.into(), deadline)
    }

    fn cancel(&mut self, _: Instant, rpc: RpcId) {
        let slot = Ids::stream(rpc.0);
        if let Some(link) = self.at_slot(slot) {
            link.stream.cancel(rpc);
            self.settle(slot);
        }
    }

    fn reply(&mut self, _: Instant, rpc: ServerRpc, message: &mut Message) {
        let message = mem::take(message);
        let slot = Ids::stream(rpc.0);
        match self.at_slot(slot) {
            Some(link) => link.stream.reply(rpc, message),
            None => return self.released.extend(message.slices),
        }
        self.counters.replies += 1;
        self.settle(slot);
        self.soil(slot);
    }

    fn refuse(&mut self, _: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        let slot = Ids::stream(rpc.0);
        if let Some(link) = self.at_slot(slot) {
            link.stream.refuse(rpc, retry_after_ns);
            self.counters.refused += 1;
            self.settle(slot);
            self.soil(slot);
        }
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(each);
        self.carrier.counters(each);
    }
}

impl<C: Carrier> SystemTransport for Framed<C> {
    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{to}: {e}"));
        let at = C::place(to)?;
        if at.port == 0 {
            return Err(named(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no one listens at port 0",
            )));
        }
        let addresses = at.allowed(self.options.insecure_network)?.into();
        if self.is_full() {
            return Err(named(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "too many connections",
            )));
        }
        let slot = C::open(self, now, to, addresses).map_err(named)?;
        match self.at_slot(slot).map(|link| link.stream.role()) {
            Some(Role::Client(session)) => Ok(session),
            _ => Err(named(io::ErrorKind::NotConnected.into())),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.carrier.fd()
    }

    fn arm(&mut self) -> bool {
        let idle = self.current.is_none() && self.found.is_none();
        let settled = self.dirty.is_empty() && self.owing.is_empty() && self.resumed.is_empty();
        self.carrier.arm() && idle && settled
    }

    fn disarm(&mut self) {
        self.carrier.disarm();
    }

    fn locator(&self) -> Option<String> {
        self.carrier.locator()
    }
}
