//! The client's half: the sessions that this side opened, and their requests.
//!
//! A request waits in its session's queue for a channel, is sent, and waits for its reply. When that is overdue the client
//! asks (PROBE), and the answer says what to do: send it again, some packets again, wait, try later, or give up.
//!
//! Always: a request whose bytes were never all given to the driver under its present number fails as not executed; any
//! other failure but a refusal says "maybe". Not here: opening (`open`), sending (`output`),
//! time (`overdue`).

pub(super) mod ack;
pub(super) mod handshake;
pub(super) mod timers;

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::endpoint::Endpoint;
use super::session::{Calls, INDEX_MAX, Phase};
use super::shared::tx::ControlBody;
use super::slab::NONE;
use super::slot::{BUFFER_MOST, Incoming, Missing, Outgoing, Placed, Role, WINDOWED_PACKETS};
use super::{
    CloseReason, Event, MAX_MESSAGE, Message, Payload, RequestError, RpcError, RpcId, SessionId,
    trace_id,
};
use crate::time::US;
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::rpc::{ASK, EXECUTING, Kind, Packet, ResetReason, SEQ_MAX};
use crate::{Addr, Instant};

impl<P: Probe> Endpoint<P> {
    // Commands.

    /// Takes a request; its slot too, if it may be sent at once. Who sends it is the caller's business.
    #[inline]
    pub(super) fn call(
        &mut self,
        id: SessionId,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) -> Result<(RpcId, Option<u32>), RequestError> {
        let len = message.len();
        if len > MAX_MESSAGE {
            return Err(RequestError::TooLong(len));
        }
        let Some(c) = self.own_session(id) else { return Err(RequestError::Closed) };
        let session = &self.clients[c];
        let queued = self.calls.get(session.calls).map_or(0, |calls| calls.queued);
        let may_start = session.phase == Phase::Open && session.busy != u8::MAX && queued == 0;
        if !may_start && queued as usize >= self.config.queue_limit {
            return Err(RequestError::QueueFull);
        }
        let Some(i) = self.slots.alloc(Role::Queued) else { return Err(RequestError::QueueFull) };
        let slot = &mut self.slots[i];
        slot.out = Outgoing::new(message, len as u32, 0);
        slot.tag = tag;
        slot.deadline = deadline;
        slot.session = c;
        let rpc = RpcId(slot.id);
        self.stats.calls += 1;
        if may_start {
            self.begin(c, i);
        } else {
            self.enqueue(c, i);
            self.arm(i, deadline);
        }
        Ok((rpc, may_start.then_some(i)))
    }

    pub(super) fn cancel_call(&mut self, rpc: RpcId) {
        let Some(i) = self.slots.find(rpc.0) else { return };
        if matches!(self.slots[i].role, Role::Queued | Role::Call | Role::Backoff) {
            self.fail(i, RpcError::Cancelled);
        }
    }

    pub(super) fn close_local(&mut self, id: SessionId) {
        let Some(c) = self.own_session(id) else { return };
        let session = &self.clients[c];
        if session.phase == Phase::Open {
            let mut packet = Packet::new(Kind::Close);
            packet.session = session.server;
            packet.token = session.token;
            self.answer_with(session.peer, packet, ControlBody::None);
        }
        self.end_session(c, CloseReason::Local);
    }

    // Requests.

    /// Gives a request a channel, of which one must be free. Then it may be sent.
    #[inline]
    fn begin(&mut self, c: u32, i: u32) {
        let session = &mut self.clients[c];
        if session.calls == NONE {
            session.calls = self.calls.alloc(|_| Calls::none());
        }
        let channel = session.busy.trailing_ones() as usize;
        self.calls[session.calls].slots[channel] = i;
        session.busy |= 1 << channel;
        session.seqs[channel] = (session.seqs[channel] + 1) & SEQ_MAX;
        let peer = &self.peers.slab[session.peer];
        let slot = &mut self.slots[i];
        slot.role = Role::Call;
        slot.channel = channel as u8;
        slot.seq = session.seqs[channel];
        slot.peer = session.peer;
        slot.progress = self.now;
        slot.mss = peer.mss;
        slot.out.granted =
            if self.lossless { slot.out.len } else { peer.unscheduled.max(1).min(slot.out.len) };
        slot.token = session.token;
        self.probe.hit(Tracepoint::ClientRequest, slot.trace());
        let (peer, deadline) = (slot.peer, slot.deadline);
        let due = self.now.after(self.pto_ns(peer)).min(deadline);
        self.arm(i, due);
    }

    /// The calls of a session, which has some from now on.
    #[inline]
    fn calls_of(&mut self, c: u32) -> &mut Calls {
        let session = &mut self.clients[c];
        if session.calls == NONE {
            session.calls = self.calls.alloc(|_| Calls::none());
        }
        &mut self.calls[session.calls]
    }

    /// Gives the calls of a session back, if it has none any more.
    #[inline]
    fn fold_calls(&mut self, c: u32) {
        let session = &mut self.clients[c];
        if session.busy == 0 && self.calls.get(session.calls).is_some_and(|calls| calls.queued == 0)
        {
            self.calls.free(session.calls);
            session.calls = NONE;
        }
    }

    fn enqueue(&mut self, c: u32, i: u32) {
        let calls = self.calls_of(c);
        let tail = calls.tail;
        calls.tail = i;
        calls.queued += 1;
        if tail == NONE {
            calls.head = i;
        } else {
            self.slots[tail].next = i;
        }
        self.slots[i].prev = tail;
        self.slots[i].next = NONE;
    }

    fn dequeue(&mut self, i: u32) {
        let (c, prev, next) = (self.slots[i].session, self.slots[i].prev, self.slots[i].next);
        let calls = self.calls_of(c);
        calls.queued -= 1;
        if prev == NONE {
            calls.head = next;
        }
        if next == NONE {
            calls.tail = prev;
        }
        if prev != NONE {
            self.slots[prev].next = next;
        }
        if next != NONE {
            self.slots[next].prev = prev;
        }
    }

    /// The first request that waits for a channel.
    #[inline]
    fn first_queued(&self, c: u32) -> Option<u32> {
        self.calls.get(self.clients[c].calls).map(|calls| calls.head).filter(|&i| i != NONE)
    }

    /// Lets the next waiting request begin, if there is one and a channel is free.
    #[inline]
    pub(super) fn start_next(&mut self, c: u32) {
        let session = &self.clients[c];
        if session.busy == u8::MAX || session.phase != Phase::Open {
            return;
        }
        if let Some(i) = self.first_queued(c) {
            self.dequeue(i);
            self.begin(c, i);
            self.make_ready(i);
        }
    }

    /// Every byte of a request was given to the driver.
    #[inline]
    pub(super) fn call_sent(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        slot.exposed = true;
        self.probe.hit(Tracepoint::ClientSent, slot.trace());
    }

    /// Ends a request: gives its slices and its slot back, and its channel to the next one.
    #[inline]
    fn finish(&mut self, i: u32) -> (RpcId, u64) {
        self.settle_out(i);
        let slot = &mut self.slots[i];
        let (rpc, c, role, channel) =
            ((RpcId(slot.id), slot.tag), slot.session, slot.role, slot.channel);
        if slot.incoming.take().is_some_and(|incoming| incoming.scheduled) {
            self.credit.remove(i);
        }
        if role == Role::Queued {
            self.dequeue(i);
            self.fold_calls(c);
            self.slots.free(i);
            return rpc;
        }
        self.slots.free(i);
        let session = &mut self.clients[c];
        session.busy &= !(1 << channel);
        if !self.lossless {
            self.owe_done(c, channel);
        }
        let session = &mut self.clients[c];
        if self.calls[session.calls].queued > 0 {
            self.start_next(c);
        } else if session.busy == 0 {
            self.calls.free(session.calls);
            session.calls = NONE;
        }
        rpc
    }

    /// The server keeps the last reply on a channel until it is told that it has arrived: by the next request, or by DONE once
    /// the session is idle.
    #[inline]
    pub(super) fn owe_done(&mut self, c: u32, channel: u8) {
        let session = &mut self.clients[c];
        session.unacked |= 1 << channel;
        session.touch(self.now);
        if !session.listed {
            session.listed = true;
            let (epoch, active_ms) = (session.epoch, session.active_ms);
            self.idle.push_back((c, epoch, active_ms));
            self.idle_check = self.idle_check.min(self.now.after(self.config.done_after_ns));
        }
    }

    /// The message of a slot need not be sent any more. A short one's buffer is the slot's own from now on.
    #[inline]
    pub(super) fn settle_out(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        if slot.ready {
            self.unready(i);
        }
        let slot = &mut self.slots[i];
        let message = &mut slot.out.message;
        if !message.slices.is_empty() {
            self.released.extend(message.slices.drain(..));
        }
        if message.bytes.capacity() > BUFFER_MOST {
            message.bytes = Vec::new();
        }
        if !self.lossless && slot.role != Role::Queued && slot.is_windowed() {
            let bytes = slot.window_bytes();
            slot.out.acked = slot.out.next;
            let peer = slot.peer;
            self.landed(peer, bytes);
        }
    }

    /// Bytes of long messages to a peer are no longer in flight.
    pub(super) fn landed(&mut self, peer: u32, bytes: u32) {
        let entry = &mut self.peers.slab[peer];
        entry.path.landed(self.now, bytes);
        if !entry.long.is_empty() {
            self.activate(peer);
        }
    }

    /// A message makes no headway. If none does towards this peer, nothing is on the way any more, whether it was acknowledged
    /// or not; if others do, it only waits for its turn.
    pub(super) fn drained(&mut self, peer: u32) {
        let pto_ns = self.pto_ns(peer);
        if self.peers.slab[peer].path.stands_still(self.now, pto_ns) {
            self.landed(peer, u32::MAX);
        }
    }

    pub(super) fn fail(&mut self, i: u32, error: RpcError) {
        self.stats.failures += 1;
        let (rpc, tag) = self.finish(i);
        self.events.push_back(Event::Failed { rpc, tag, error });
    }

    /// Ends a session: its requests fail, its name is never used again.
    pub(super) fn end_session(&mut self, c: u32, reason: CloseReason) {
        let session = &mut self.clients[c];
        let id = session.id(c);
        let (peer, busy) = (session.peer, session.busy);
        // Nothing may begin while the requests are failed.
        session.phase = Phase::Opening;
        for channel in (0..8).filter(|channel| busy & 1 << channel != 0) {
            let i = self.calls[self.clients[c].calls].slots[channel];
            let maybe = self.slots[i].exposed;
            self.fail(i, if maybe { RpcError::MaybeExecuted } else { RpcError::NotExecuted });
        }
        while let Some(i) = self.first_queued(c) {
            self.fail(i, RpcError::NotExecuted);
        }
        let session = &mut self.clients[c];
        session.phase = Phase::Free;
        session.listed = false;
        self.opened(peer);
        self.clients[c].epoch = self.clients[c].epoch.wrapping_add(1);
        if self.clients[c].epoch != u32::MAX {
            self.clients.free(c);
        }
        self.peers.leave(peer);
        self.events.push_back(Event::Closed { session: id, reason });
    }

    /// The driver lost a peer: every session with it ends.
    pub(super) fn lose_peer(&mut self, peer: u32) {
        self.forget_sessions_of(peer);
        for c in 0..self.clients.len() {
            if self.clients[c].phase != Phase::Free && self.clients[c].peer == peer {
                self.end_session(c, CloseReason::PeerGone);
            }
        }
    }

    // Input.

    #[inline]
    pub(super) fn client_input<'b>(
        &mut self,
        from: Addr,
        packet: &Packet,
        body: &'b [u8],
    ) -> Option<Event<'b>> {
        match packet.kind {
            Kind::Cookie => self.cookie_arrived(from, packet, body),
            Kind::Accept => self.accept_arrived(from, packet, body),
            Kind::Reset => self.reset_arrived(from, packet),
            kind => {
                let c = self.checked_client(from, packet)?;
                let call = self.call_of(c, packet);
                if kind == Kind::NeedAck {
                    // If it is still in progress, the reply has not arrived: the server must keep it.
                    if call.is_none() {
                        self.ack(c, packet);
                    }
                } else if let Some(i) = call {
                    if kind == Kind::Data {
                        return self.reply_arrived(i, packet, body);
                    }
                    self.answer_arrived(i, packet, body);
                } else {
                    self.stats.drop_stale += 1;
                }
            }
        }
        None
    }

    /// The request in progress that a packet is about.
    #[inline]
    fn call_of(&self, c: u32, packet: &Packet) -> Option<u32> {
        let session = &self.clients[c];
        if session.busy & 1 << packet.channel == 0 {
            return None;
        }
        let i = self.calls[session.calls].slots[usize::from(packet.channel)];
        (self.slots[i].seq == packet.seq).then_some(i)
    }

    /// The session of a packet, if its name, token and address agree.
    #[inline]
    fn checked_client(&mut self, from: Addr, packet: &Packet) -> Option<u32> {
        let c = packet.session & INDEX_MAX;
        let Some(session) = self.clients.get(c) else {
            self.stats.drop_session += 1;
            return None;
        };
        if session.phase != Phase::Open || session.name(c) != packet.session {
            self.stats.drop_session += 1;
            return None;
        }
        if session.token != packet.token {
            self.stats.drop_token += 1;
            return None;
        }
        let peer = session.peer;
        if self.peers.slab[peer].addr != from {
            self.stats.drop_address += 1;
            return None;
        }
        self.heard(peer, packet);
        Some(c)
    }

    /// A peer gave a sign of life that only it can give.
    #[inline]
    pub(super) fn heard(&mut self, peer: u32, packet: &Packet) {
        let entry = &mut self.peers.slab[peer];
        entry.heard();
        if !self.lossless {
            let echo = (packet.flags & crate::wire::rpc::ECHO != 0).then_some(packet.ts_echo_us);
            entry.path.arrived(self.now, packet.ts_us, echo, self.config.target_delay_ns);
        }
    }

    /// A packet of the reply to a request in progress.
    #[inline]
    fn reply_arrived<'b>(&mut self, i: u32, packet: &Packet, body: &'b [u8]) -> Option<Event<'b>> {
        if self.slots[i].role != Role::Call {
            self.stats.drop_stale += 1;
            return None;
        }
        if body.len() == packet.msg_len as usize {
            return Some(self.respond(i, packet, Payload::Borrowed(body)));
        }
        let slot = &mut self.slots[i];
        if slot.incoming.is_none() {
            // The reply acknowledges the request.
            let granted =
                if self.lossless { packet.msg_len } else { self.config.unscheduled_bytes };
            let incoming = Incoming::new(self.now, packet.msg_len, u32::from(slot.mss), granted);
            slot.incoming = Some(Box::new(incoming));
            slot.executing = false;
            self.settle_out(i);
        }
        let slot = &mut self.slots[i];
        let incoming = slot.incoming.as_mut()?;
        match incoming.place(packet.msg_len, packet.offset, body) {
            Placed::New => {
                slot.progress = self.now;
                slot.tries = 0;
                if !self.lossless {
                    self.more_wanted(i);
                    if packet.flags & ASK != 0 {
                        self.send_grant(i);
                    }
                }
                None
            }
            Placed::Whole => {
                let bytes = core::mem::take(&mut incoming.bytes);
                if !self.lossless
                    && packet.msg_len > WINDOWED_PACKETS * u32::from(self.slots[i].mss)
                {
                    // What a long reply takes up of the server's window is given back now.
                    self.send_grant(i);
                }
                Some(self.respond(i, packet, Payload::Owned(bytes)))
            }
            Placed::Duplicate => {
                self.stats.drop_duplicate += 1;
                None
            }
            Placed::Misfit => {
                self.stats.drop_misfit += 1;
                None
            }
        }
    }

    #[inline]
    fn respond<'b>(&mut self, i: u32, packet: &Packet, payload: Payload<'b>) -> Event<'b> {
        let trace = trace_id(packet.token, packet.channel, packet.seq);
        self.probe.hit(Tracepoint::ClientReceived, trace);
        self.stats.responses += 1;
        let (rpc, tag) = self.finish(i);
        self.probe.hit(Tracepoint::ClientDone, trace);
        Event::Response { rpc, tag, payload }
    }

    /// Anything but a reply about a request in progress.
    fn answer_arrived(&mut self, i: u32, packet: &Packet, body: &[u8]) {
        let slot = &mut self.slots[i];
        if slot.role != Role::Call || slot.incoming.is_some() && packet.kind != Kind::Gone {
            self.stats.drop_stale += 1;
            return;
        }
        slot.tries = 0;
        slot.progress = self.now;
        match packet.kind {
            Kind::Grant => self.granted(i, packet.msg_len, packet.offset),
            Kind::Nack => {
                let missing = Missing::from_bytes(packet.offset, body);
                self.nacked(i, packet.msg_len, missing);
            }
            Kind::Busy if packet.flags & EXECUTING != 0 => {
                slot.executing = true;
                self.arm_pto(i);
            }
            Kind::Busy => self.refused(i, u64::from(packet.offset) * US),
            Kind::Unknown => {
                let (peer, in_flight) = (slot.peer, slot.window_bytes());
                let granted = if self.lossless {
                    slot.out.len
                } else {
                    self.peers.slab[peer].unscheduled.max(1)
                };
                slot.out.restart(granted);
                self.landed(peer, in_flight);
                self.make_ready(i);
            }
            Kind::Gone => self.fail(i, RpcError::MaybeExecuted),
            _ => self.stats.drop_direction += 1,
        }
    }

    /// The receiver has everything before `contig` of the slot's message and takes it up to `granted`.
    pub(super) fn granted(&mut self, i: u32, contig: u32, granted: u32) {
        let slot = &mut self.slots[i];
        let newly = slot.out.acknowledge(contig, granted);
        let (peer, windowed) = (slot.peer, slot.is_windowed());
        if slot.out.next < slot.out.granted {
            self.make_ready(i);
        }
        if windowed {
            self.landed(peer, newly);
        }
    }

    /// The receiver misses some packets of the slot's message.
    pub(super) fn nacked(&mut self, i: u32, granted: u32, missing: Missing) {
        self.granted(i, missing.base, granted);
        if missing.is_empty() {
            return;
        }
        let slot = &mut self.slots[i];
        slot.out.missing = Some(Box::new(missing));
        let peer = slot.peer;
        self.peers.slab[peer].path.lost(self.now);
        self.make_ready(i);
    }

    /// The server refused the request: it has not executed it and never will under this number, so that it gets another
    /// one and its next try.
    fn refused(&mut self, i: u32, retry_after_ns: u64) {
        self.unready(i);
        let slot = &mut self.slots[i];
        slot.refusals += 1;
        if slot.refusals > self.config.max_refusals {
            slot.exposed = false;
            self.fail(i, RpcError::Busy { retry_after_ns });
            return;
        }
        let in_flight = slot.window_bytes();
        slot.out.restart(0);
        slot.role = Role::Backoff;
        slot.exposed = false;
        slot.executing = false;
        let jitter_ns = self.rng.below(retry_after_ns / 4 + 1);
        slot.progress = self.now.after(retry_after_ns + jitter_ns);
        let (c, channel, peer) = (slot.session, usize::from(slot.channel), slot.peer);
        let due = slot.progress.min(slot.deadline);
        let session = &mut self.clients[c];
        session.seqs[channel] = (session.seqs[channel] + 1) & SEQ_MAX;
        slot.seq = session.seqs[channel];
        self.landed(peer, in_flight);
        self.arm(i, due);
    }

    fn reset_arrived(&mut self, from: Addr, packet: &Packet) {
        let c = packet.session & INDEX_MAX;
        let Some(session) = self.clients.get(c) else {
            self.stats.drop_session += 1;
            return;
        };
        if session.phase == Phase::Free || session.name(c) != packet.session {
            self.stats.drop_session += 1;
        } else if session.token != packet.token {
            self.stats.drop_token += 1;
        } else if self.peers.slab[session.peer].addr != from {
            self.stats.drop_address += 1;
        } else {
            let version = packet.offset == ResetReason::Version as u32;
            self.end_session(c, if version { CloseReason::Version } else { CloseReason::Reset });
        }
    }
}
