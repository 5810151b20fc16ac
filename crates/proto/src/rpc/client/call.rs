//! Requests from the caller at the client: a request gets a channel and is sent directly if it can
//! be, or waits.

use super::{Client, free_channel};
use crate::Instant;
use crate::rpc::control::ControlBody;
use crate::rpc::limits::MAX_MESSAGE;
use crate::rpc::outgoing::Outgoing;
use crate::rpc::session::{Calls, ClientSession, Phase};
use crate::rpc::shared::Shared;
use crate::rpc::shared::tx::Emit;
use crate::rpc::slab::{NONE, Slab};
use crate::rpc::slot::Role;
use crate::rpc::types::{CloseReason, Message, RequestError, RpcId, SessionId};
use crate::rpc::wheel::Wheel;
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::rpc::{Kind, Packet, SEQ_MAX};

impl Client {
    /// Accepts a request of bytes that stay the caller's, if a channel of its session is free, and
    /// offers it to `emit`, which returns true if the driver took it. Returns `None` if no channel
    /// is free, or if [`Client::begin_message`] would refuse the request.
    #[inline(always)]
    pub(in crate::rpc) fn begin_bytes<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        id: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
        emit: impl Emit<P>,
    ) -> Option<RpcId> {
        let (i, rpc) = self.begin(shared, id, tag, bytes.len(), deadline)?;
        if !send_single(shared, i, bytes, emit) {
            queue_call(shared, i, bytes.into());
        }
        Some(rpc)
    }

    /// Accepts a request from the caller. If a channel is free, the request gets it and is offered
    /// to `emit`, which returns true if the driver took it; else it waits in its session's queue.
    #[inline(always)]
    pub(in crate::rpc) fn begin_message<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        id: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
        emit: impl Emit<P>,
    ) -> Result<RpcId, RequestError> {
        let Some((i, rpc)) = self.begin(shared, id, tag, message.len(), deadline) else {
            return self.enqueue_call(shared, id, tag, message, deadline);
        };
        if !message.slices.is_empty() || !send_single(shared, i, &message.bytes, emit) {
            queue_call(shared, i, core::mem::take(message));
        }
        Ok(rpc)
    }

    /// Gives a new request of `len` bytes a slot and a channel, if a channel is free.
    #[inline(always)]
    fn begin<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        id: SessionId,
        tag: u64,
        len: usize,
        deadline: Instant,
    ) -> Option<(u32, RpcId)> {
        let c = id.place();
        let Self { sessions, calls, wheel, .. } = self;
        let session = sessions.get_mut(c).filter(|session| {
            session.phase == Phase::Open && session.id(c) == id && session.busy != u8::MAX
        })?;
        if len > MAX_MESSAGE || calls.get(session.calls).is_some_and(|calls| calls.queued > 0) {
            return None;
        }
        let (i, slot) = shared.slots.alloc(Role::Call)?;
        slot.tag = tag;
        slot.deadline = deadline;
        slot.session = c;
        slot.out.len = len as u32;
        let rpc = RpcId(slot.id);
        shared.stats.calls += 1;
        assign_channel(calls, wheel, session, shared, i);
        Some((i, rpc))
    }

    /// Queues a request that finds no free channel, or returns the reason why the endpoint does not
    /// accept it.
    #[inline(never)]
    fn enqueue_call<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        id: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        let len = message.len();
        if len > MAX_MESSAGE {
            return Err(RequestError::TooLong(len));
        }
        let Some(c) = self.find(id) else { return Err(RequestError::Closed) };
        let queued = self.calls.get(self.sessions[c].calls).map_or(0, |calls| calls.queued);
        if queued as usize >= shared.config.queue_limit {
            return Err(RequestError::QueueFull);
        }
        let Some((i, slot)) = shared.slots.alloc(Role::Queued) else {
            return Err(RequestError::QueueFull);
        };
        slot.out = Outgoing::new(core::mem::take(message), len as u32, 0);
        slot.tag = tag;
        slot.deadline = deadline;
        slot.session = c;
        let rpc = RpcId(slot.id);
        shared.stats.calls += 1;
        self.enqueue(shared, c, i);
        self.arm(shared, i, deadline);
        Ok(rpc)
    }

    /// The block of calls of a session, which is allocated if the session has none.
    fn calls_of(&mut self, c: u32) -> &mut Calls {
        let session = &mut self.sessions[c];
        if session.calls == NONE {
            session.calls = self.calls.alloc(|_| Calls::none());
        }
        &mut self.calls[session.calls]
    }

    /// Adds the request in slot `i` to its session's queue.
    fn enqueue<P: Probe>(&mut self, shared: &mut Shared<P>, c: u32, i: u32) {
        let calls = self.calls_of(c);
        let tail = calls.tail;
        calls.tail = i;
        calls.queued += 1;
        if tail == NONE {
            calls.head = i;
        } else {
            shared.slots[tail].next = i;
        }
        shared.slots[i].prev = tail;
        shared.slots[i].next = NONE;
    }

    /// Removes the request in slot `i` from its session's queue.
    fn dequeue<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        let slot = &shared.slots[i];
        let (c, prev, next) = (slot.session, slot.prev, slot.next);
        let calls = self.calls_of(c);
        calls.queued -= 1;
        if prev == NONE {
            calls.head = next;
        }
        if next == NONE {
            calls.tail = prev;
        }
        if prev != NONE {
            shared.slots[prev].next = next;
        }
        if next != NONE {
            shared.slots[next].prev = prev;
        }
    }

    /// The slot of the first request that waits for a channel of a session.
    pub(super) fn first_queued(&self, c: u32) -> Option<u32> {
        self.calls.get(self.sessions[c].calls).map(|calls| calls.head).filter(|&i| i != NONE)
    }

    /// Begins the next waiting request of a session, if there is one and a channel is free.
    #[inline(never)]
    pub(super) fn start_next<P: Probe>(&mut self, shared: &mut Shared<P>, c: u32) {
        let session = &self.sessions[c];
        if session.busy == u8::MAX || session.phase != Phase::Open {
            return;
        }
        if let Some(i) = self.first_queued(c) {
            self.dequeue(shared, i);
            shared.slots[i].role = Role::Call;
            let Self { sessions, calls, wheel, .. } = self;
            assign_channel(calls, wheel, &mut sessions[c], shared, i);
            let (peer, len) = (shared.slots[i].peer, shared.slots[i].out.len);
            shared.slots[i].out.granted = shared.unscheduled(peer, len);
            shared.queue_tx(i);
        }
    }

    /// Ends the request in slot `i`: releases its messages, its slot and its channel, and begins
    /// the session's next one. Returns the request's id and tag.
    pub(super) fn finish<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) -> (RpcId, u64) {
        let (slot, lossless) = (&shared.slots[i], shared.lossless);
        let (rpc, c, channel) = ((RpcId(slot.id), slot.tag), slot.session, slot.channel & 7);
        if slot.role == Role::Queued {
            self.finish_queued(shared, i);
            return rpc;
        }
        shared.release_slot(i, lossless);
        let Self { sessions, calls, idle, .. } = self;
        if free_channel(calls, idle, &mut sessions[c], shared, c, channel, !lossless) {
            self.start_next(shared, c);
        }
        rpc
    }

    /// Ends the request in slot `i`, which waits for a channel.
    #[inline(never)]
    fn finish_queued<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        self.dequeue(shared, i);
        self.free_calls(shared.slots[i].session);
        let lossless = shared.lossless;
        shared.release_slot(i, lossless);
    }

    /// Frees a session's block of calls if the session has no requests.
    fn free_calls(&mut self, c: u32) {
        let session = &mut self.sessions[c];
        if session.busy == 0 && self.calls.get(session.calls).is_some_and(|calls| calls.queued == 0)
        {
            self.calls.free(session.calls);
            session.calls = NONE;
        }
    }

    /// Closes a session at the caller's request.
    pub(in crate::rpc) fn close<P: Probe>(&mut self, shared: &mut Shared<P>, id: SessionId) {
        let Some(c) = self.find(id) else { return };
        let session = &self.sessions[c];
        if session.phase == Phase::Open {
            let mut packet = Packet::new(Kind::Close);
            packet.session = session.server;
            packet.token = session.token;
            shared.queue_control(session.peer, packet, ControlBody::None);
        }
        self.end_session(shared, c, CloseReason::Local);
    }
}

/// Offers a request that has a channel to `emit`, if it fits one packet. Returns true if the driver
/// took the request.
#[inline(always)]
fn send_single<P: Probe>(shared: &mut Shared<P>, i: u32, bytes: &[u8], emit: impl Emit<P>) -> bool {
    let slot = &shared.slots[i];
    if bytes.len() > usize::from(slot.mss) {
        return false;
    }
    let packet = slot.data_packet(shared.now);
    let sent = emit.emit(shared, slot.peer, &packet, bytes);
    if sent {
        shared.call_sent_single(i, bytes);
    }
    sent
}

/// Queues a request that has a channel and that the driver has not taken, to be sent later.
#[inline(never)]
fn queue_call<P: Probe>(shared: &mut Shared<P>, i: u32, message: Message) {
    let (peer, len) = (shared.slots[i].peer, shared.slots[i].out.len);
    shared.slots[i].out = Outgoing::new(message, len, shared.unscheduled(peer, len));
    shared.queue_tx(i);
}

/// Gives the request, whose slot has [`Role::Call`], a channel of its session. One of the channels
/// must be free.
#[inline(always)]
fn assign_channel<P: Probe>(
    calls: &mut Slab<Calls>,
    wheel: &mut Wheel,
    session: &mut ClientSession,
    shared: &mut Shared<P>,
    i: u32,
) {
    if session.calls == NONE {
        session.calls = calls.alloc(|_| Calls::none());
    }
    let channel = session.busy.trailing_ones() as usize & 7;
    calls[session.calls].slots[channel] = i;
    session.busy |= 1 << channel;
    let seq = session.seqs[channel].wrapping_add(1) & SEQ_MAX;
    session.seqs[channel] = seq;
    let peer = &shared.peers.slab[session.peer];
    let pto_ns = shared.pto_of(peer);
    let slot = &mut shared.slots[i];
    slot.channel = channel as u8;
    slot.seq = seq;
    slot.peer = session.peer;
    slot.remote = session.server;
    slot.token = session.token;
    slot.mss = peer.mss;
    slot.progress = shared.now;
    shared.probe.hit(Tracepoint::ClientRequest, slot.trace());
    let due = shared.now.after(pto_ns).min(slot.deadline);
    if due < slot.armed {
        slot.armed = due;
        wheel.insert(due, i);
    }
}
