//! Requests and replies as frames on connections, over any carrier: kernel TCP
//! ([`crate::transport::tcp`]) or queue pairs ([`crate::transport::qp`]).
//!
//! ```text
//!   Framed ─┬─ links     slot ─► Link { Stream: the frames, Wire: the carrier's part }
//!           ├─ buffer    bytes that arrived on the current link, parsed frame by frame
//!           └─ carrier   makes the system calls: finds input, sends, opens, accepts, closes
//! ```
//! A turn: `input` lets the carrier find links with input, `event` takes it apart into one event at
//! a time, `output` lets the carrier send for each link with output.
//!
//! Always holds: `buffer[at..filled]` belongs to `current`, and is parsed before any other input is
//! taken; a slot of `links` is emptied only after all events of its link were handed up; every
//! number given out (session, request) contains the slot and a counter, so that a stale number
//! finds nothing.
//!
//! Not here: the frames (`proto`), the limits on memory (`memory`), and reconnecting, which the
//! owner of the session does.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::iter;
use std::mem;

use sprat_proto::Instant;
use sprat_proto::node::Transport;
use sprat_proto::rpc::budget::{self, Budget};
use sprat_proto::rpc::stream::{Arrived, BadFrame, Ids, Role};
use sprat_proto::rpc::{
    CloseReason, Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices,
};
use sprat_proto::time::SECOND;

mod carrier;
mod counters;
mod links;
mod memory;
mod system;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use carrier::{Carrier, Shared};
use counters::Counters;
use links::Links;
pub(crate) use links::{Connecting, Link};

/// The time in which a connection must open, in nanoseconds.
pub(crate) const CONNECT_NS: u64 = 3 * SECOND;
/// The time in which the first frame must arrive on an accepted connection, in nanoseconds.
pub(crate) const SILENCE_NS: u64 = 10 * SECOND;
/// The most connections of a transport of frames: slots have 16 bits.
const MAX_CONNECTIONS: usize = 1 << 16;

/// The options of a transport of frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Allow peers that are not on loopback. Nothing is encrypted.
    pub(crate) insecure_network: bool,
    /// The most connections, accepted and opened; at most 65,536. A full transport accepts none.
    pub(crate) connection_limit: usize,
    /// The most requests that wait for a reply on one session.
    pub(crate) queue_limit: usize,
    /// For kernel TCP only: the microseconds for which the kernel polls the device in each read
    /// (SO_BUSY_POLL).
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

/// A transport that carries requests and replies as frames on connections of the carrier `C`.
pub(crate) struct Framed<C: Carrier> {
    pub(crate) options: Options,
    pub(crate) carrier: C,
    pub(super) links: Links<C::Wire>,
    buffer: Box<[u8]>,
    at: usize,
    filled: usize,
    /// The slot of the connection whose bytes are in the buffer.
    current: Option<u16>,
    /// An event that was found and has not been handed up yet.
    pub(crate) found: Option<Event<'static>>,
    /// Slots of the connections with output.
    dirty: VecDeque<u16>,
    /// Slots of the connections that have failed requests or have ended. Their events wait for the
    /// caller.
    owing: VecDeque<u16>,
    /// Slots of the connections with a backlog whose streams want input again.
    resumed: VecDeque<u16>,
    /// Bytes of replies that wait to be written on the accepted connections.
    unsent: usize,
    released: VecDeque<Slice>,
    ids: Ids,
    /// The budget of memory for requests of which a part has arrived on the accepted connections.
    budget: Budget,
    /// The present time, as the last caller gave it.
    now: Instant,
    sessions: u64,
    pub(crate) counters: Counters,
}

impl<C: Carrier> Framed<C> {
    /// Makes a transport of frames without connections.
    pub(crate) fn with_carrier(carrier: C, options: Options) -> Self {
        Self {
            options,
            carrier,
            links: Links::new(),
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
            budget: Budget::new(budget::BUDGET_BYTES),
            now: Instant::ZERO,
            sessions: 0,
            counters: Counters::default(),
        }
    }

    /// Returns the slots of the links that are in use.
    pub(crate) fn live(&self) -> &[u16] {
        self.links.live()
    }

    /// True if the transport has its most connections.
    pub(crate) fn is_full(&self) -> bool {
        self.live().len() >= self.options.connection_limit.min(MAX_CONNECTIONS)
    }

    /// Returns the link in `slot`.
    #[inline]
    pub(crate) fn link(&mut self, slot: u16) -> Option<&mut Link<C::Wire>> {
        self.links.get_mut(slot)
    }

    /// Returns the link of a session that this side has opened.
    fn own(&self, session: SessionId) -> Option<&Link<C::Wire>> {
        let link = self.links.get(slot_of(session))?;
        (link.stream.role() == Role::Client(session)).then_some(link)
    }

    /// Returns the link in `slot`, and the parts of the transport that all links share.
    #[inline]
    pub(crate) fn link_and_shared(
        &mut self,
        slot: u16,
    ) -> Option<(&mut Link<C::Wire>, Shared<'_, C>)> {
        let link = self.links.get_mut(slot)?;
        let (carrier, buffer) = (&mut self.carrier, &mut self.buffer[..]);
        let (ids, released, budget) = (&mut self.ids, &mut self.released, &mut self.budget);
        Some((link, Shared { carrier, buffer, ids, released, budget }))
    }

    /// Returns the carrier, and the list for slices that are no longer needed.
    pub(crate) fn carrier_and_released(&mut self) -> (&mut C, &mut VecDeque<Slice>) {
        (&mut self.carrier, &mut self.released)
    }

    /// Returns the slot that the next link gets.
    pub(crate) fn next_slot(&self) -> u16 {
        self.links.next_slot()
    }

    /// Adds the link of a connection that this side opens. Returns its slot.
    pub(crate) fn insert_opened(&mut self, wire: C::Wire) -> u16 {
        self.sessions += 1;
        self.counters.opened += 1;
        let session = SessionId::new(self.sessions, u32::from(self.next_slot()));
        self.links.insert(wire, Role::Client(session), self.options.queue_limit)
    }

    /// Adds the link of an accepted connection. Returns its slot.
    pub(crate) fn insert_accepted(&mut self, now: Instant, wire: C::Wire) -> u16 {
        self.counters.accepted += 1;
        let slot = self.links.insert(wire, Role::Server, 0);
        let silent_until = now.after(SILENCE_NS);
        if let Some(link) = self.link(slot) {
            link.silent_until = silent_until;
        }
        self.due_by(slot, silent_until);
        slot
    }

    /// Records that the buffer has bytes of the connection in `slot`, from `at` to `filled`.
    #[inline]
    pub(crate) fn buffer_filled(&mut self, slot: u16, at: usize, filled: usize) {
        (self.current, self.at, self.filled) = (Some(slot), at, filled);
    }

    /// Handles a change of the stream in `slot`: takes its released slices, and queues the slot if
    /// it has events, has ended or goes on with its backlog.
    #[inline]
    pub(crate) fn stream_changed(&mut self, slot: u16) {
        let Some((link, _)) = self.link_and_shared(slot) else { return };
        if link.stream.assembling() != link.room {
            self.request_room(slot);
        }
        self.count_unsent(slot);
        let Some((link, shared)) = self.link_and_shared(slot) else { return };
        shared.carrier.stream_changed(slot, link);
        while let Some(slice) = link.stream.released() {
            shared.released.push_back(slice);
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

    /// Fills the buffer with the backlog of a connection whose stream wants input again. False if
    /// there is none.
    fn resume(&mut self) -> bool {
        while let Some(slot) = self.resumed.pop_front() {
            let Some((link, shared)) = self.link_and_shared(slot) else { continue };
            link.resumed = false;
            if !link.stream.wants_input() || link.backlog.is_empty() {
                continue;
            }
            let n = link.backlog.len().min(shared.buffer.len());
            shared.buffer[..n].copy_from_slice(&link.backlog[..n]);
            link.backlog.drain(..n);
            self.buffer_filled(slot, 0, n);
            return true;
        }
        false
    }

    /// Has [`Transport::tick`] check the deadlines of the connection in `slot` at the time `at` or
    /// earlier.
    #[inline]
    pub(crate) fn due_by(&mut self, slot: u16, at: Instant) {
        self.links.due_by(slot, at);
    }

    /// Adds the connection in `slot` to the list of connections with output.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, slot: u16) {
        if let Some(link) = self.link(slot)
            && !link.dirty
            && link.connecting.is_none()
            && C::may_send(&link.wire)
        {
            link.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// Ends the connection in `slot`.
    pub(crate) fn end(&mut self, slot: u16, reason: CloseReason) {
        if let Some(link) = self.link(slot) {
            link.stream.end(reason);
        }
        self.stream_changed(slot);
    }

    /// Ends the connection in `slot`, which could not be opened.
    pub(crate) fn open_failed(&mut self, slot: u16, cause: io::Error) {
        if let Some(link) = self.link(slot) {
            link.cause = Some(cause);
        }
        self.end(slot, CloseReason::Unreachable);
    }

    /// Removes the link of a connection that has ended.
    pub(crate) fn remove(&mut self, slot: u16) {
        let Some(link) = self.links.remove(slot) else { return };
        match link.stream.bad() {
            Some(BadFrame::Version) => self.counters.bad_version += 1,
            Some(_) => self.counters.bad_field += 1,
            None => {}
        }
        self.counters.ended += 1;
        self.unsent -= link.unsent;
        self.counters.unsolicited += link.stream.unsolicited();
        C::removed(self, link);
        self.budget.leave(self.now, u32::from(slot));
        self.resume_granted();
    }

    /// Parses the buffer up to the next event. `None` once all of it is parsed.
    #[inline]
    fn next_arrived(&mut self, now: Instant) -> Option<Arrived> {
        let slot = self.current?;
        let Some(link) = self.links.get_mut(slot) else {
            self.current = None;
            return None;
        };
        let waits = !link.stream.wants_input() && link.stream.role() == Role::Server;
        if waits && link.stream.ended().is_none() && self.at < self.filled {
            link.backlog.extend_from_slice(&self.buffer[self.at..self.filled]);
            self.current = None;
            self.stream_changed(slot);
            return None;
        }
        let arrived =
            link.stream.input(now, &self.buffer[..self.filled], &mut self.at, &mut self.ids);
        if arrived.is_some() {
            link.silent_until = Instant::NEVER;
        } else {
            self.current = None;
            C::buffer_consumed(link);
            self.stream_changed(slot);
        }
        arrived
    }

    /// Returns the next event of the connections in `owing`: a failed request, or the end of a
    /// connection.
    #[inline]
    fn next_owed(&mut self) -> Option<Event<'static>> {
        while let Some(&slot) = self.owing.front() {
            if let Some(link) = self.link(slot) {
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

    /// Handles the deadlines of `slot` that have passed, and returns the next one.
    fn tick_one(&mut self, now: Instant, slot: u16) -> Instant {
        let Some(link) = self.link(slot) else { return Instant::NEVER };
        link.stream.tick(now);
        if link.silent_until <= now && link.stream.ended().is_none() {
            link.stream.end(CloseReason::Unreachable);
            self.counters.silent += 1;
        } else if link.progress_until <= now && link.stream.ended().is_none() {
            link.stream.end(CloseReason::Unreachable);
            self.counters.stalled += 1;
        } else if link.connecting.as_ref().is_some_and(|c| c.until <= now) {
            C::connect_timed_out(self, now, slot);
        }
        self.stream_changed(slot);
        let Some(link) = self.link(slot).filter(|link| link.stream.ended().is_none()) else {
            return Instant::NEVER;
        };
        let connecting = link.connecting.as_ref().map_or(Instant::NEVER, |c| c.until);
        // A carrier that keeps a late connection ends it by a deadline of its own.
        let connecting = if connecting > now { connecting } else { Instant::NEVER };
        link.stream.deadline().min(connecting).min(link.silent_until).min(link.progress_until)
    }
}

/// Returns the slot that a session's number contains.
fn slot_of(session: SessionId) -> u16 {
    session.place() as u16
}

impl<C: Carrier> fmt::Debug for Framed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framed")
            .field("carrier", &self.carrier)
            .field("links", &self.live().len())
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
                self.counters.count(&event);
                return Some(event);
            }
            if let Some(arrived) = self.next_arrived(now) {
                break arrived;
            }
            if let Some(event) = self.next_owed() {
                self.counters.count(&event);
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
        self.counters.count(&event);
        Some(event)
    }

    fn peek_requests(&self, _: &mut dyn FnMut(&[u8])) {
        // A request is taken apart when its turn comes.
    }

    fn has_output(&self) -> bool {
        // The carrier may hold something.
        true
    }

    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        let alone = self.dirty.len() <= 1;
        for _ in 0..self.dirty.len() {
            let Some(slot) = self.dirty.pop_front() else { break };
            let Some((link, shared)) = self.link_and_shared(slot) else { continue };
            link.dirty = false;
            if link.stream.ended().is_some() {
                continue;
            }
            let more = C::send(now, slot, link, shared, memory, alone);
            self.stream_changed(slot);
            if more {
                self.mark_dirty(slot);
            }
        }
        let more = self.carrier.flush(now, memory);
        more || !self.dirty.is_empty() || !self.owing.is_empty() || !self.resumed.is_empty()
    }

    fn released(&mut self) -> Option<Slice> {
        self.released.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let first =
            self.links.first_deadline().min(self.carrier.deadline()).min(self.budget.deadline());
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
        if now < self.links.first_deadline() {
            return;
        }
        let due: Vec<u16> = iter::from_fn(|| self.links.take_due(now)).collect();
        for slot in due {
            let next = self.tick_one(now, slot);
            self.due_by(slot, next);
        }
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
        let found = self
            .link_and_shared(slot)
            .filter(|(link, _)| link.stream.role() == Role::Client(session));
        let Some((link, shared)) = found else { return Err(RequestError::Closed) };
        let slices = message.slices.clone();
        let sent = link.stream.request(tag, mem::take(message), deadline, shared.ids);
        // The slices of a refused message count as never handed in.
        let id = sent.inspect_err(|_| message.slices = slices)?;
        self.counters.calls += 1;
        self.due_by(slot, deadline);
        self.mark_dirty(slot);
        Ok(id)
    }

    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Option<RpcId> {
        self.request(now, session, tag, &mut bytes.into(), deadline).ok()
    }

    fn cancel(&mut self, _: Instant, rpc: RpcId) {
        let slot = Ids::stream(rpc.0);
        if let Some(link) = self.link(slot) {
            link.stream.cancel(rpc);
            self.stream_changed(slot);
        }
    }

    fn reply(&mut self, _: Instant, rpc: ServerRpc, message: &mut Message, _: bool) {
        let message = mem::take(message);
        let slot = Ids::stream(rpc.0);
        match self.link(slot) {
            Some(link) => link.stream.reply(rpc, message),
            None => return self.released.extend(message.slices),
        }
        self.counters.replies += 1;
        self.stream_changed(slot);
        self.mark_dirty(slot);
    }

    fn refuse(&mut self, _: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        let slot = Ids::stream(rpc.0);
        if let Some(link) = self.link(slot) {
            link.stream.refuse(rpc, retry_after_ns);
            self.counters.refused += 1;
            self.stream_changed(slot);
            self.mark_dirty(slot);
        }
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(each);
        self.carrier.counters(each);
    }
}
