//! The server's half: requests accepted at most once, replies kept until they are acknowledged.
//!
//! A channel's word says which request was the last and where it is; a later number begins a new request and acknowledges
//! the reply before it, an earlier one is past. The server speaks only when spoken to.
//!
//! Always: a word changes only after session, token and address agreed, and its number only goes forward. Not here:
//! the end of sessions (`sweep`).

pub(super) mod expiry;

use alloc::boxed::Box;

use zerocopy::FromBytes as _;

use super::endpoint::{Config, Endpoint};
use super::session::{HALF, INDEX_BITS, INDEX_MAX, ServerSession, State, Word, ahead};
use super::shared::tx::ControlBody;
use super::slab::{Chunks, NONE};
use super::slot::{Incoming, Missing, Outgoing, Placed, Role, claim};
use super::{CHANNELS, Event, MAX_MESSAGE, Message, Payload, ServerRpc, trace_id};
use crate::time::{SECOND, US};
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::rpc::{ASK, EXECUTING, Kind, Packet, ProbeBody, ResetReason, TO_CLIENT, TTL};
use crate::{Addr, Instant};

/// Replies sent and not acknowledged, oldest first, linked through their slots.
#[derive(Debug)]
pub(super) struct Kept {
    head: u32,
    tail: u32,
    count: u32,
    bytes: usize,
    /// Replies that are not wholly sent, and the bytes that they have here: slices are their
    /// owner's to limit.
    unsent: u32,
    unsent_bytes: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, count: 0, bytes: 0, unsent: 0, unsent_bytes: 0 }
    }
}

impl Kept {
    /// True if so many bytes of replies wait to be sent that new requests are refused.
    #[inline]
    pub(super) const fn is_full(&self, max_bytes: usize) -> bool {
        self.unsent_bytes / 4 >= max_bytes
    }

    /// True if a reply waits to be sent.
    #[inline]
    pub(super) const fn is_waiting(&self) -> bool {
        self.unsent > 0
    }

    /// True if it comes near what may be kept.
    #[inline]
    const fn is_crowded(&self, config: &Config) -> bool {
        self.count > config.max_kept / 4 * 3 || self.bytes > config.max_kept_bytes / 4 * 3
    }
}

/// Seconds of a clock, modulo 2¹⁶.
#[inline]
pub(super) fn seconds(now: Instant) -> u16 {
    (now.as_ns() / SECOND) as u16
}

#[inline]
pub(super) fn handle(name: u32, channel: u8, seq: u32) -> ServerRpc {
    ServerRpc(u64::from(name) << 32 | u64::from(seq << 3) | u64::from(channel))
}

/// Where the session of a request is that the application has, its channel, and the session, if the request is not past.
#[inline]
fn executing_request(
    sessions: &mut Chunks<ServerSession>,
    rpc: ServerRpc,
) -> Option<(u32, usize, &mut ServerSession)> {
    let (name, channel, seq) = ((rpc.0 >> 32) as u32, (rpc.0 & 7) as usize, rpc.0 as u32 >> 3);
    let s = name & INDEX_MAX;
    let session = sessions.get_mut(s)?;
    let is_current = session.open
        && session.name(s) == name
        && session.channels[channel] == Word::new(seq, State::Exec);
    is_current.then_some((s, channel, session))
}

impl<P: Probe> Endpoint<P> {
    // Input.

    #[inline]
    pub(super) fn server_input<'b>(
        &mut self,
        from: Addr,
        packet: &Packet,
        body: &'b [u8],
    ) -> Option<Event<'b>> {
        match packet.kind {
            Kind::Open => self.open_arrived(from, packet, body),
            Kind::Done => self.done_arrived(from, body),
            kind => {
                let Some(s) = self.checked_server(from, packet) else {
                    if kind == Kind::Probe {
                        self.probe_of_stranger(from, packet, body);
                    }
                    return None;
                };
                match kind {
                    Kind::Data => return self.request_arrived(s, packet, body),
                    Kind::Probe => self.probe_arrived(s, packet, body),
                    Kind::Grant | Kind::Nack => self.reply_wanted(s, packet, body),
                    Kind::Close => self.end_server_session(s),
                    _ => self.stats.drop_direction += 1,
                }
            }
        }
        None
    }

    /// The session of a packet, if its name, token and address agree.
    #[inline]
    fn checked_server(&mut self, from: Addr, packet: &Packet) -> Option<u32> {
        let (s, peer) = self.find_server(from, packet.session, packet.token)?;
        self.heard(peer, packet);
        Some(s)
    }

    /// The session of this name, if token and address agree, and its peer. It counts as active.
    #[inline]
    pub(super) fn find_server(&mut self, from: Addr, name: u32, token: u64) -> Option<(u32, u32)> {
        let s = name & INDEX_MAX;
        let session = self.sessions.get_mut(s);
        let Some(session) =
            session.filter(|s| s.open && u32::from(s.generation) == name >> INDEX_BITS)
        else {
            self.stats.drop_session += 1;
            return None;
        };
        if session.token != token {
            self.stats.drop_token += 1;
            return None;
        }
        if self.peers.slab[session.peer].addr != from {
            self.stats.drop_address += 1;
            return None;
        }
        session.active_s = seconds(self.now);
        Some((s, session.peer))
    }

    /// A packet of a request.
    #[inline]
    fn request_arrived<'b>(
        &mut self,
        s: u32,
        packet: &Packet,
        body: &'b [u8],
    ) -> Option<Event<'b>> {
        let channel = usize::from(packet.channel);
        let session = &self.sessions[s];
        let word = session.channels[channel];
        let ahead = ahead(packet.seq, word.seq());
        if ahead == 0 && word.state() == State::Recv {
            return self.request_goes_on(session.name(s), packet, body);
        }
        if ahead == 0 || ahead >= HALF {
            *if ahead == 0 {
                &mut self.stats.drop_duplicate
            } else {
                &mut self.stats.drop_stale
            } += 1;
            return None;
        }
        // A later number: whatever was on the channel is over, and its reply acknowledged.
        if session.live & 1 << channel != 0 {
            self.drop_slot(s, channel);
        }
        if word.state() == State::Exec {
            self.executing -= 1;
        }
        let whole = body.len() == packet.msg_len as usize;
        if self.is_full(packet.msg_len, whole) {
            self.sessions[s].channels[channel] = Word::new(packet.seq, State::Empty);
            self.send_refusal(s, packet.channel, packet.seq, self.config.retry_after_ns);
            return None;
        }
        let deadline = self.deadline_of(packet);
        if whole {
            return self.deliver(s, packet, Payload::Borrowed(body), deadline);
        }
        self.begin_request(s, packet, deadline);
        self.request_goes_on(self.sessions[s].name(s), packet, body)
    }

    /// True if a new request of `len` bytes finds no room. Long ones are admitted by the length they claim, though memory
    /// follows what arrives: those admitted can all be finished.
    #[inline]
    fn is_full(&mut self, len: u32, whole: bool) -> bool {
        let crowded = !whole
            && self.assembling_bytes > 0
            && self.assembling_bytes + claim(len) > self.config.max_assembling_bytes;
        if crowded {
            self.sweep.crowded(self.now);
        }
        crowded
            || self.executing >= self.config.max_executing
            || self.kept.is_full(self.config.max_kept_bytes)
    }

    #[inline]
    fn deadline_of(&self, packet: &Packet) -> Instant {
        if packet.flags & TTL == 0 {
            return Instant::NEVER;
        }
        self.now.after(u64::from(packet.ttl_us) * US)
    }

    /// Hands a whole request up, unless nobody waits for it any more.
    #[inline]
    fn deliver<'b>(
        &mut self,
        s: u32,
        packet: &Packet,
        payload: Payload<'b>,
        deadline: Instant,
    ) -> Option<Event<'b>> {
        let session = &mut self.sessions[s];
        let word = &mut session.channels[usize::from(packet.channel)];
        if deadline <= self.now {
            *word = Word::new(packet.seq, State::Empty);
            self.stats.drop_dead += 1;
            return None;
        }
        *word = Word::new(packet.seq, State::Exec);
        self.executing += 1;
        self.stats.requests += 1;
        let trace = trace_id(packet.token, packet.channel, packet.seq);
        self.probe.hit(Tracepoint::ServerReceived, trace);
        self.probe.hit(Tracepoint::ServiceStart, trace);
        Some(Event::Request {
            rpc: handle(session.name(s), packet.channel, packet.seq),
            payload,
            deadline,
        })
    }

    /// The first packet of a request of several.
    fn begin_request(&mut self, s: u32, packet: &Packet, deadline: Instant) {
        let Some(i) = self.slots.alloc(Role::Recv) else { return };
        let granted = if self.lossless { packet.msg_len } else { self.config.unscheduled_bytes };
        let session = &self.sessions[s];
        let slot = &mut self.slots[i];
        let incoming = Incoming::new(self.now, packet.msg_len, u32::from(session.mss), granted);
        self.assembling_bytes += incoming.claim();
        slot.incoming = Some(Box::new(incoming));
        slot.session = session.name(s);
        slot.peer = session.peer;
        slot.mss = session.mss;
        slot.seq = packet.seq;
        slot.channel = packet.channel;
        slot.deadline = deadline;
        slot.progress = self.now;
        self.sessions[s].channels[usize::from(packet.channel)] = Word::new(packet.seq, State::Recv);
        self.put_slot(s, usize::from(packet.channel), i);
    }

    /// A packet of a request that is being received.
    fn request_goes_on<'b>(
        &mut self,
        name: u32,
        packet: &Packet,
        body: &'b [u8],
    ) -> Option<Event<'b>> {
        let (s, channel) = (name & INDEX_MAX, usize::from(packet.channel));
        let i = self.slot_of(s, channel)?;
        let now = self.now;
        let slot = &mut self.slots[i];
        let incoming = slot.incoming.as_mut()?;
        match incoming.place(packet.msg_len, packet.offset, body) {
            Placed::New => {
                slot.progress = now;
                if !self.lossless {
                    self.more_wanted(i);
                    if packet.flags & ASK != 0 {
                        self.send_grant(i);
                    }
                }
            }
            Placed::Whole => {
                let (bytes, deadline) = (core::mem::take(&mut incoming.bytes), slot.deadline);
                self.drop_slot(s, channel);
                return self.deliver(s, packet, Payload::Owned(bytes), deadline);
            }
            Placed::Duplicate => self.stats.drop_duplicate += 1,
            Placed::Misfit => self.stats.drop_misfit += 1,
        }
        None
    }

    /// The client asks where its request is.
    fn probe_arrived(&mut self, s: u32, packet: &Packet, body: &[u8]) {
        let Ok((probe, _)) = ProbeBody::ref_from_prefix(body) else { return };
        let channel = usize::from(packet.channel);
        let word = self.sessions[s].channels[channel];
        let ahead = ahead(packet.seq, word.seq());
        if ahead >= HALF {
            self.stats.drop_stale += 1;
            return;
        }
        if ahead > 0 {
            return self.send_state(s, packet, Kind::Unknown, 0);
        }
        match word.state() {
            State::Empty => {
                self.send_refusal(s, packet.channel, packet.seq, self.config.retry_after_ns)
            }
            State::Exec => self.send_state(s, packet, Kind::Busy, EXECUTING),
            State::Done => self.send_state(s, packet, Kind::Gone, 0),
            State::Recv => {
                let Some(i) = self.slot_of(s, channel) else { return };
                self.credit.wake();
                self.nack(i, packet.offset);
                self.send_grant(i);
            }
            State::Reply => {
                let Some(i) = self.slot_of(s, channel) else { return };
                let (received, granted) = (probe.received.get(), probe.granted.get());
                let (peer, before) = (self.slots[i].peer, self.slots[i].progress);
                self.slots[i].progress = self.now;
                self.granted(i, received, granted);
                self.drained(peer);
                // What left a moment ago was on its way when the client asked.
                let way_ns = (self.pto_ns(peer) / 2).min(self.config.min_pto_ns);
                let has_arrived = self.now.since(before) >= way_ns;
                let slot = &mut self.slots[i];
                if received == 0 && !slot.ready && has_arrived {
                    slot.out.resend(u32::from(slot.mss));
                    self.make_ready(i);
                }
            }
        }
    }

    /// A PROBE for a session that is not there.
    #[cold]
    fn probe_of_stranger(&mut self, from: Addr, packet: &Packet, body: &[u8]) {
        if let Ok((probe, _)) = ProbeBody::ref_from_prefix(body) {
            self.reset(from, probe.client.get(), packet.token, ResetReason::Unknown);
        }
    }

    /// The client grants more of a reply, or misses some of it.
    fn reply_wanted(&mut self, s: u32, packet: &Packet, body: &[u8]) {
        let channel = usize::from(packet.channel);
        let word = self.sessions[s].channels[channel];
        if word.seq() != packet.seq || word.state() != State::Reply {
            self.stats.drop_stale += 1;
            return;
        }
        let Some(i) = self.slot_of(s, channel) else { return };
        self.slots[i].progress = self.now;
        if packet.kind == Kind::Grant {
            self.granted(i, packet.msg_len, packet.offset);
        } else {
            self.nacked(i, packet.msg_len, Missing::from_bytes(packet.offset, body));
        }
    }

    // Commands.

    /// The application has answered a request: where its session is, its channel and number; `None` if it is past.
    #[inline]
    pub(super) fn answered(&mut self, rpc: ServerRpc, message: &Message) -> Option<(u32, u8, u32)> {
        let len = message.len();
        assert!(len <= MAX_MESSAGE, "a reply of {len} bytes exceeds the limit of {MAX_MESSAGE}");
        let Some((s, channel, session)) = executing_request(&mut self.sessions, rpc) else {
            self.stats.drop_reply += 1;
            return None;
        };
        let seq = session.channels[channel].seq();
        session.channels[channel] = Word::new(seq, State::Reply);
        let channel = channel as u8;
        self.probe.hit(Tracepoint::ServiceEnd, trace_id(session.token, channel, seq));
        self.executing -= 1;
        self.stats.replies += 1;
        Some((s, channel, seq))
    }

    /// A slot for a reply, of which it has yet no bytes; none if there is none.
    #[inline(always)]
    pub(super) fn reply_slot(&mut self, s: u32, channel: u8, seq: u32) -> Option<u32> {
        let i = self.slots.alloc(Role::Reply)?;
        let session = &self.sessions[s];
        let slot = &mut self.slots[i];
        slot.token = session.token;
        slot.session = session.name(s);
        slot.peer = session.peer;
        slot.mss = session.mss;
        slot.seq = seq;
        slot.channel = channel;
        slot.progress = self.now;
        Some(i)
    }

    /// Gives a reply a slot, and the slot a place in the queue.
    pub(super) fn queue_reply(&mut self, s: u32, channel: u8, seq: u32, message: Message) {
        let len = message.len();
        let Some(i) = self.reply_slot(s, channel, seq) else {
            self.sessions[s].channels[usize::from(channel)] = Word::new(seq, State::Done);
            return self.release(message);
        };
        let slot = &mut self.slots[i];
        slot.deadline = self.now.after(self.config.stale_reply_ns);
        self.kept.unsent += 1;
        self.kept.unsent_bytes += message.bytes.len();
        if self.lossless {
            slot.out = Outgoing::new(message, len as u32, len as u32);
        } else {
            let granted = self.peers.slab[slot.peer].unscheduled.max(1);
            slot.out = Outgoing::new(message, len as u32, granted);
            self.put_slot(s, usize::from(channel), i);
        }
        self.make_ready(i);
    }

    pub(super) fn refuse_request(&mut self, rpc: ServerRpc, retry_after_ns: u64) {
        let Some((s, channel, session)) = executing_request(&mut self.sessions, rpc) else {
            self.stats.drop_reply += 1;
            return;
        };
        let seq = session.channels[channel].seq();
        session.channels[channel] = Word::new(seq, State::Empty);
        self.executing -= 1;
        self.send_refusal(s, channel as u8, seq, retry_after_ns);
    }

    /// Every byte of a reply was given to the driver.
    #[inline]
    pub(super) fn reply_sent(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        let (name, channel, seq) = (slot.session, usize::from(slot.channel), slot.seq);
        self.probe.hit(Tracepoint::ServerSent, slot.trace());
        if self.lossless {
            self.sessions[name & INDEX_MAX].channels[channel] = Word::new(seq, State::Done);
            return self.free_slot(i);
        }
        if slot.kept {
            return;
        }
        self.kept.unsent -= 1;
        self.kept.unsent_bytes -= slot.out.message.bytes.len();
        self.keep(i);
    }

    /// Keeps a reply that was sent until the client acknowledges it, or too many others are kept.
    #[inline]
    pub(super) fn keep(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        let len = slot.out.len as usize;
        slot.kept = true;
        slot.prev = self.kept.tail;
        slot.next = NONE;
        if self.kept.tail == NONE {
            self.kept.head = i;
        } else {
            self.slots[self.kept.tail].next = i;
        }
        self.kept.tail = i;
        self.kept.count += 1;
        self.kept.bytes += len;
        if self.kept.is_crowded(&self.config) {
            self.relieve();
        }
    }

    /// Drops the oldest replies while too many are kept; asks for an acknowledgement when it comes near that.
    #[cold]
    fn relieve(&mut self) {
        let (max, max_bytes) = (self.config.max_kept, self.config.max_kept_bytes);
        while self.kept.head != NONE && (self.kept.count > max || self.kept.bytes > max_bytes) {
            let slot = &self.slots[self.kept.head];
            let (s, channel, seq) = (slot.session & INDEX_MAX, usize::from(slot.channel), slot.seq);
            self.stats.evicted += 1;
            self.drop_slot(s, channel);
            self.sessions[s].channels[channel] = Word::new(seq, State::Done);
        }
        if !self.kept.is_crowded(&self.config) {
            return;
        }
        let head = self.kept.head;
        let Some(slot) = self.slots.get(head) else { return };
        if slot.exposed {
            return;
        }
        let mut packet = Packet::new(Kind::NeedAck);
        let session = &self.sessions[slot.session & INDEX_MAX];
        packet.flags = TO_CLIENT;
        packet.channel = slot.channel;
        packet.seq = slot.seq;
        packet.session = session.client;
        packet.token = session.token;
        let peer = slot.peer;
        self.slots[head].exposed = true;
        self.answer_with(peer, packet, ControlBody::None);
    }

    /// A reply in the send queue whose request is past.
    #[cold]
    pub(super) fn abandon_reply(&mut self, i: u32) {
        self.free_slot(i);
    }

    // Slots of channels.

    /// Gives a channel a slot.
    #[inline]
    pub(super) fn put_slot(&mut self, s: u32, channel: usize, i: u32) {
        let session = &mut self.sessions[s];
        if session.live == 0 {
            session.block = self.blocks.alloc(|_| [NONE; CHANNELS]);
        }
        session.live |= 1 << channel;
        self.blocks[session.block][channel] = i;
    }

    #[inline]
    fn slot_of(&self, s: u32, channel: usize) -> Option<u32> {
        let session = &self.sessions[s];
        (session.live & 1 << channel != 0).then(|| self.blocks[session.block][channel])
    }

    /// Takes a channel's slot away, if it has one.
    #[inline]
    pub(super) fn drop_slot(&mut self, s: u32, channel: usize) {
        let Some(i) = self.slot_of(s, channel) else { return };
        let session = &mut self.sessions[s];
        session.live &= !(1 << channel);
        if session.live == 0 {
            self.blocks.free(session.block);
            session.block = NONE;
        }
        self.free_slot(i);
    }

    /// Gives a slot of the server's back with all it holds.
    #[inline]
    pub(super) fn free_slot(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        if let Some(incoming) = slot.incoming.take() {
            self.assembling_bytes -= incoming.claim();
            if incoming.scheduled {
                self.credit.remove(i);
            }
        }
        if self.slots[i].role == Role::Reply {
            self.unkeep(i);
            self.settle_out(i);
        }
        self.slots.free(i);
    }

    #[inline]
    fn unkeep(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        let len = slot.out.len as usize;
        if !slot.kept {
            self.kept.unsent -= 1;
            self.kept.unsent_bytes -= slot.out.message.bytes.len();
            return;
        }
        slot.kept = false;
        let (prev, next) = (slot.prev, slot.next);
        self.kept.count -= 1;
        self.kept.bytes -= len;
        if prev == NONE {
            self.kept.head = next;
        } else {
            self.slots[prev].next = next;
        }
        if next == NONE {
            self.kept.tail = prev;
        } else {
            self.slots[next].prev = prev;
        }
    }

    // Answers.

    fn send_refusal(&mut self, s: u32, channel: u8, seq: u32, retry_after_ns: u64) {
        self.stats.refused += 1;
        let session = &self.sessions[s];
        let mut packet = Packet::new(Kind::Busy);
        packet.flags = TO_CLIENT;
        packet.channel = channel;
        packet.seq = seq;
        packet.session = session.client;
        packet.token = session.token;
        packet.offset = u32::try_from(retry_after_ns / US).unwrap_or(u32::MAX);
        let peer = session.peer;
        self.answer_with(peer, packet, ControlBody::None);
    }

    fn send_state(&mut self, s: u32, about: &Packet, kind: Kind, flags: u8) {
        let session = &self.sessions[s];
        let mut packet = Packet::new(kind);
        packet.flags = TO_CLIENT | flags;
        packet.channel = about.channel;
        packet.seq = about.seq;
        packet.session = session.client;
        packet.token = session.token;
        let peer = session.peer;
        self.answer_with(peer, packet, ControlBody::None);
    }
}
