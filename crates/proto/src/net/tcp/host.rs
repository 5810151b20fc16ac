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
//! Always: each connection is in `dirty` and in `ready` at most once.

mod ahead;
mod all;
mod entries;
mod lend;
mod one;

use alloc::collections::{BTreeSet, VecDeque};

use super::config::TcpConfig;
use super::connection::{Connection, Spare, TcpError, TcpState, clock};
use super::cookies::Cookies;
use super::counters::TcpCounters;
use super::flow::{Ends, Flows, Recent, TcpFlow};
use super::id::{TcpChanges, TcpId};
use super::input::{Segment, refusal};
use super::listeners::{Claim, Listeners};
use super::output::{Outgoing, PathLimits};
use super::time_wait::TimeWaits;
use crate::net::ip::fields::IpFields;
use crate::rand::KeyedHash;
use crate::wire::tcp::{Flags, Tcp};
use crate::{Instant, Rng};

use entries::{Entries, Entry};
pub use lend::TcpData;

/// The most answers to segments without a connection that wait to be sent.
const MOST_ANSWERS: usize = 256;
/// The retransmissions in a row after which the program is warned (R1 in RFC 9293 3.8.3).
const WARN_RETRIES: u8 = 3;
/// Half-open connections leave one of this many places free.
const RESERVED: usize = 8;
/// Sends the segments of a [`TcpHost`].
pub trait TcpOutput {
    /// Returns the sizes of the segments that the way to a peer carries. The segments that follow
    /// are of this flow.
    fn limits(&mut self, flow: &TcpFlow) -> PathLimits;

    /// Sends a segment of the flow of the last call of [`TcpOutput::limits`], in an IP packet with
    /// these fields (RFC 9293 SHLD-22). Returns false if there is no room for it.
    fn emit(&mut self, flow: &TcpFlow, fields: IpFields, outgoing: &Outgoing<'_>) -> bool;
}

/// The place for one more connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    Enough,
    /// The last places are for connections whose handshakes are over.
    Little,
    Nothing,
}

/// A segment that no connection remembers, on its way.
#[derive(Debug)]
struct Answer {
    flow: TcpFlow,
    tcp: Tcp,
    fields: IpFields,
    /// The offset of the clock whose time the segment has when it is sent, if it has one.
    clock_offset: Option<u32>,
}

/// The TCP connections of an IP stack.
#[derive(Debug)]
pub struct TcpHost {
    pub(super) config: TcpConfig,
    most: usize,
    entries: Entries,
    generation: u32,
    flows: Flows,
    recent: Recent,
    /// Memory that connections give back if there are many.
    spare: Spare,
    pub(super) listeners: Listeners,
    timers: BTreeSet<(Instant, u32)>,
    dirty: VecDeque<u32>,
    ready: VecDeque<u32>,
    answers: VecDeque<Answer>,
    pub(super) time_waits: TimeWaits,
    /// The key of the initial sequence numbers and clocks.
    pub(super) secret: KeyedHash,
    pub(super) cookies: Cookies,
    pub(super) rng: Rng,
    pub(super) counters: TcpCounters,
}

impl TcpHost {
    /// Returns a host without connections that has at most `most` at a time, and remembers as many
    /// in TIME-WAIT that its program has released.
    #[must_use]
    pub fn new(config: TcpConfig, most: usize, mut rng: Rng) -> Self {
        let hash = KeyedHash::new(&mut rng);
        let secret = KeyedHash::new(&mut rng);
        Self {
            config,
            most,
            entries: Entries::default(),
            generation: 0,
            flows: Flows::new(hash),
            recent: Recent::default(),
            spare: Spare::default(),
            listeners: Listeners::default(),
            timers: BTreeSet::new(),
            dirty: VecDeque::new(),
            ready: VecDeque::new(),
            answers: VecDeque::new(),
            time_waits: TimeWaits::new(most, &mut rng),
            secret,
            cookies: Cookies::new(&mut rng),
            rng,
            counters: TcpCounters::default(),
        }
    }

    /// Returns the number of connections that there are, without those in TIME-WAIT that their
    /// programs have released.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of connections in TIME-WAIT that their programs have released.
    #[must_use]
    pub fn time_waits(&self) -> usize {
        self.time_waits.len()
    }

    /// Returns the memory of the connections in bytes, without their buffers.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let kept = self.entries.iter().map(|(_, entry)| entry.connection.kept_bytes());
        self.entries.bytes() + kept.sum::<usize>() + self.flows.bytes() + self.timers.len() * 32
    }

    /// Returns the counters of the host.
    #[must_use]
    pub const fn counters(&self) -> &TcpCounters {
        &self.counters
    }

    /// Returns the addresses and ports of a connection.
    #[must_use]
    pub fn flow(&self, id: TcpId) -> Option<TcpFlow> {
        self.entries.of(id).map(|entry| entry.ends.flow())
    }

    /// Returns a connection.
    #[must_use]
    pub fn connection(&self, id: TcpId) -> Option<&Connection> {
        self.entries.of(id).map(|entry| &entry.connection)
    }

    /// Returns the reason why a connection has ended early, if it has.
    #[must_use]
    pub fn error(&self, id: TcpId) -> Option<TcpError> {
        self.entries.of(id).and_then(|entry| entry.connection.error())
    }

    /// Takes as many of `bytes` to send as there is room for. Returns their number: 0 if there is
    /// no such connection.
    pub fn write(&mut self, id: TcpId, bytes: &[u8]) -> usize {
        let has_many = self.has_many();
        let Some(entry) = self.entries.of_mut(id) else { return 0 };
        if has_many {
            entry.prepare_to_send(&mut self.spare);
        }
        let count = entry.connection.write(&self.config, bytes);
        entry.wants_room |= count < bytes.len();
        self.touch(id.index);
        count
    }

    /// Takes the concatenation of `parts` to send as a record, which begins a segment and ends with
    /// it. Returns false if there is no room for it, or no such connection.
    pub fn write_record(&mut self, id: TcpId, parts: &[&[u8]]) -> bool {
        let has_many = self.has_many();
        let Some(entry) = self.entries.of_mut(id) else { return false };
        if has_many {
            entry.prepare_to_send(&mut self.spare);
        }
        let is_taken = entry.connection.write_record(&self.config, parts);
        entry.wants_room |= !is_taken;
        self.touch(id.index);
        is_taken
    }

    /// Copies received bytes to `into`, and removes them. Returns their number.
    pub fn read(&mut self, id: TcpId, into: &mut [u8]) -> usize {
        let Some(entry) = self.entries.of_mut(id) else { return 0 };
        let count = entry.connection.readable().min(into.len());
        let (a, b) = entry.connection.peek(0..count);
        into[..a.len()].copy_from_slice(a);
        into[a.len()..count].copy_from_slice(b);
        entry.connection.consume(count);
        self.changed(id.index);
        count
    }

    /// Closes this end's direction of a connection, when all that was written is sent.
    pub fn close(&mut self, id: TcpId) {
        if let Some(entry) = self.entries.of_mut(id) {
            entry.connection.close();
            self.touch(id.index);
        }
    }

    /// Ends a connection at once, resets the peer's end, and forgets it.
    pub fn abort(&mut self, id: TcpId) {
        let Some(entry) = self.entries.of_mut(id) else { return };
        entry.is_released = true;
        let (flow, fields) = (entry.ends.flow(), entry.fields);
        let clock_offset = Some(entry.connection.clock_offset);
        if let Some(tcp) = entry.connection.abort() {
            self.push_answer(Answer { flow, tcp, fields, clock_offset });
        }
        self.touch(id.index);
    }

    /// Closes a connection, and forgets it as soon as it has ended. It has no more events. Data
    /// that the program has not read, or that still comes, is lost, of which a reset informs the
    /// peer (RFC 9293 3.6.1).
    pub fn release(&mut self, id: TcpId) {
        let Some(entry) = self.entries.of_mut(id) else { return };
        if entry.connection.readable() > 0 && entry.connection.state() != TcpState::TimeWait {
            return self.abort(id);
        }
        entry.is_released = true;
        entry.connection.close();
        self.touch(id.index);
    }

    /// Returns a connection at which something has changed, and what. Call it until it returns
    /// none.
    pub fn event(&mut self) -> Option<(TcpId, TcpChanges)> {
        while let Some(index) = self.ready.pop_front() {
            let Some(entry) = self.entries.get_mut(index) else { continue };
            entry.is_ready = false;
            let changes = core::mem::take(&mut entry.changes);
            entry.wants_room &= !changes.writable;
            if changes.opened
                && let Some(claim) = entry.claim.take()
            {
                self.listeners.release(claim);
            }
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
    /// burst of segments. Returns the bytes of its data that the program may use where they lie, if
    /// there are any. Those in order are lent: end that by [`TcpHost::take_lent`] or
    /// [`TcpHost::keep_lent`] before.
    pub fn input(&mut self, now: Instant, flow: TcpFlow, segment: &Segment<'_>) -> Option<TcpData> {
        let Some(index) = self.find_again(&flow) else {
            self.input_unknown(now, flow, segment);
            return None;
        };
        let entry = self.entries.get_mut(index)?;
        if entry.claim.is_some_and(|claim| self.listeners.holds_back(claim))
            && !segment.tcp.flags.has(Flags::RST)
        {
            // The timer of the SYN's answer asks the peer again.
            self.counters.drop_accept += 1;
            return None;
        }
        let before = entry.connection.state();
        let had = entry.connection.writable(&self.config);
        let was_finished = entry.connection.is_finished();
        if !segment.data.is_empty() {
            entry.connection.receive.take_spare(&mut self.spare.rings);
        }
        let received = entry.connection.input(now, &self.config, segment);
        let state = entry.connection.state();
        let is_half_open = |state| matches!(state, TcpState::SynSent | TcpState::SynReceived);
        let changes = &mut entry.changes;
        // A connection that a peer takes back before it is open goes as it came: the program was
        // not told of it.
        if is_half_open(before) && !is_half_open(state) && state != TcpState::Closed {
            changes.opened = true;
            if let Some(claim) = &mut entry.claim {
                self.listeners.opened(claim);
                self.time_waits.remove(&flow);
            }
        }
        changes.readable |= received.bytes > 0 || entry.connection.is_finished() && !was_finished;
        let waits = entry.wants_room || had == 0;
        changes.writable |= waits && entry.connection.writable(&self.config) > had;
        let (start, end) = received.lent;
        let id = TcpId { index, generation: entry.generation };
        let is_lent = start < end;
        let data = if is_lent {
            Some(TcpData { id, range: start..end, ahead: None })
        } else {
            lend::ahead(id, &entry.connection, segment, received.ahead)
        };
        let is_unwanted = entry.is_released && (received.bytes > 0 || is_lent);
        // RFC 9293 3.6.1: data that no program will read is lost, and the peer is reset: by the
        // number that it expects, since it may not have what this end has sent last.
        let reset = if is_unwanted { entry.connection.abort() } else { None };
        let reset = reset.and_then(|_| refusal(segment));
        let fields = entry.fields;
        if let Some(tcp) = reset.or(received.answer) {
            self.answer(flow, tcp, fields);
        }
        let entry = self.entries.get_mut(index)?;
        if entry.is_released || entry.connection.may_output() {
            entry.touch(index, &mut self.dirty);
            entry.report(index, &mut self.ready);
        } else {
            self.settle(now, index);
        }
        data.filter(|_| !is_unwanted)
    }

    /// Returns the time at which to call [`TcpHost::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let timers = self.timers.first().map(|&(at, _)| at);
        timers.into_iter().chain(self.time_waits.deadline()).min()
    }

    /// Returns true if [`TcpHost::output`] may have something to send.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.dirty.is_empty() || !self.answers.is_empty()
    }

    /// Handles expired timers. Call [`TcpHost::output`] after it.
    pub fn tick(&mut self, now: Instant) {
        self.time_waits.tick(now);
        for n in 0.. {
            let Some(&(at, index)) = self.timers.first() else { return };
            if at > now {
                return;
            }
            self.timers_ahead(now, n);
            self.timers.pop_first();
            let Some(entry) = self.entries.get_mut(index) else { continue };
            entry.timer = Instant::NEVER;
            if entry.connection.deadline().is_some_and(|deadline| deadline <= now) {
                let before = entry.connection.timers.retries;
                entry.connection.tick(now, &self.config);
                let retries = entry.connection.timers.retries;
                entry.changes.warned |= before < WARN_RETRIES && retries >= WARN_RETRIES;
                entry.touch(index, &mut self.dirty);
            } else {
                entry.set_timer(index, true, &mut self.timers);
            }
        }
    }

    /// Sends what can be sent now. Returns false if `out` had no room for all: then call it again
    /// later.
    pub fn output<O: TcpOutput>(&mut self, now: Instant, out: &mut O) -> bool {
        // What goes to a peer that has no room goes behind the others.
        for _ in 0..self.answers.len() {
            let Some(answer) = self.answers.pop_front() else { break };
            let Answer { flow, mut tcp, fields, clock_offset } = answer;
            let link_mss = out.limits(&flow).link_mss;
            if let Some(mss) = &mut tcp.options.mss {
                *mss = (*mss).min(link_mss);
            }
            if let Some(((time, _), offset)) = tcp.options.timestamps.as_mut().zip(clock_offset) {
                *time = clock(now, offset);
            }
            let outgoing = Outgoing { tcp, data: (&[], &[]), mss: 0, is_ect: false };
            if !out.emit(&flow, fields, &outgoing) {
                self.answers.push_back(answer);
            }
        }
        for _ in 0..self.dirty.len() {
            let Some(index) = self.dirty.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(index) else { continue };
            let (flow, fields) = (entry.ends.flow(), entry.fields);
            let limits = out.limits(&flow);
            let mut send = |outgoing: &Outgoing<'_>| out.emit(&flow, fields, outgoing);
            if entry.connection.output(now, &self.config, &limits, &mut send) {
                entry.is_dirty = false;
                self.settle(now, index);
            } else {
                self.dirty.push_back(index);
            }
        }
        self.dirty.is_empty() && self.answers.is_empty()
    }

    /// Reports what has changed at a connection, sets its timer, and forgets it if it has ended and
    /// the program has released it.
    fn settle(&mut self, now: Instant, index: u32) {
        let has_many = self.has_many();
        let Some(entry) = self.entries.get_mut(index) else { return };
        if entry.is_released {
            entry.connection.linger(now, &self.config);
        }
        if entry.has_ended() && (entry.is_released || entry.is_unknown()) {
            if entry.connection.state() == TcpState::TimeWait {
                let (flow, (remains, until)) =
                    (entry.ends.flow(), entry.connection.remains(entry.fields));
                let is_dropped = !self.time_waits.insert(now, until, flow, remains);
                self.counters.time_waits_dropped += u64::from(is_dropped);
            }
            return self.remove(index);
        }
        entry.report(index, &mut self.ready);
        if has_many {
            entry.connection.give_back(&mut self.spare);
        }
        // The timer of an idle connection would expire when its memory is in no cache any more.
        entry.set_timer(index, has_many, &mut self.timers);
    }

    /// Returns the index of the connection of a flow.
    pub(super) fn find(&self, flow: &TcpFlow) -> Option<u32> {
        self.find_ends(&Ends::from(flow))
    }

    fn find_ends(&self, ends: &Ends) -> Option<u32> {
        self.flows.get(ends, |index| self.is_at(ends, index))
    }

    /// Returns true if the connection of a flow has this index.
    #[inline]
    fn is_at(&self, ends: &Ends, index: u32) -> bool {
        let entry = self.entries.get(index);
        entry.is_some_and(|entry| entry.ends == *ends)
    }

    fn remove(&mut self, index: u32) {
        let Some(entry) = self.entries.remove(index) else { return };
        self.flows.remove(&entry.ends, index);
        self.timers.remove(&(entry.timer, index));
        if let Some(claim) = entry.claim {
            self.listeners.release(claim);
        }
    }

    /// Adds a connection, unless there are as many as there may be.
    pub(super) fn insert(
        &mut self,
        flow: TcpFlow,
        connection: Connection,
        claim: Option<Claim>,
    ) -> Option<TcpId> {
        if self.flows.len() >= self.most {
            return None;
        }
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let opened = connection.state() == TcpState::Established;
        let entry = Entry {
            generation,
            ends: Ends::from(&flow),
            changes: TcpChanges { opened, ..TcpChanges::default() },
            fields: connection.settings().fields(&self.config),
            connection,
            timer: Instant::NEVER,
            is_dirty: false,
            is_ready: false,
            is_released: false,
            wants_room: false,
            is_reported: false,
            claim,
        };
        let index = self.entries.insert(entry);
        self.flows.insert(&Ends::from(&flow), index);
        self.touch(index);
        Some(TcpId { index, generation })
    }

    /// Handles a change by the program after which a connection may have something to send or to
    /// report.
    fn changed(&mut self, index: u32) {
        let has_many = self.has_many();
        let Some(entry) = self.entries.get_mut(index) else { return };
        // A connection of many gives back the buffer that the program has emptied.
        if has_many || entry.is_released || entry.connection.may_output() {
            entry.touch(index, &mut self.dirty);
        } else {
            entry.report(index, &mut self.ready);
        }
    }

    /// Puts a connection into the queue of those that may have something to send.
    fn touch(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.touch(index, &mut self.dirty);
        }
    }

    /// Sends a segment that no connection remembers.
    pub(super) fn answer(&mut self, flow: TcpFlow, tcp: Tcp, fields: IpFields) {
        self.push_answer(Answer { flow, tcp, fields, clock_offset: None });
    }

    fn push_answer(&mut self, answer: Answer) {
        if self.answers.len() >= MOST_ANSWERS {
            self.counters.drop_answer += 1;
            return;
        }
        self.answers.push_back(answer);
    }

    /// Returns the place that the host has for one more connection of a peer.
    pub(super) fn room(&self) -> Room {
        let count = self.flows.len();
        if count >= self.most {
            Room::Nothing
        } else if count >= self.most - self.most / RESERVED {
            Room::Little
        } else {
            Room::Enough
        }
    }
}
