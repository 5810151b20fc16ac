//! Replies from the caller: a reply is sent directly if it can be, or waits; on a driver that loses
//! packets it is retained until the client acknowledges it.

use super::{Server, executing_request};
use crate::rpc::control::ControlBody;
use crate::rpc::limits::MAX_MESSAGE;
use crate::rpc::outgoing::Outgoing;
use crate::rpc::session::{INDEX_MAX, ServerChannel, State};
use crate::rpc::shared::Shared;
use crate::rpc::shared::tx::Emit;
use crate::rpc::slot::Role;
use crate::rpc::types::{Message, ServerRpc, trace_id};
use crate::time::US;
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::rpc::{Kind, NO_ACK, Packet, TO_CLIENT};

impl Server {
    /// Answers a request. The reply is offered to `emit`, which returns true if the driver took it;
    /// else it is queued. A reply to a request that is over is dropped.
    ///
    /// The reply to an idempotent request is not retained, if one packet carries it whole: the
    /// request is executed again if the packet is lost. Packets of two executions may differ, and a
    /// client would join them to one reply.
    ///
    /// # Panics
    /// If the message exceeds [`MAX_MESSAGE`].
    #[inline(always)]
    pub(in crate::rpc) fn reply<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        rpc: ServerRpc,
        message: &mut Message,
        idempotent: bool,
        emit: impl Emit<P>,
    ) {
        let Some((s, channel, session)) = executing_request(&mut self.sessions, rpc) else {
            return drop_reply(shared, message);
        };
        let len = message.len();
        assert!(len <= MAX_MESSAGE, "a reply of {len} bytes exceeds the limit of {MAX_MESSAGE}");
        let seq = session.channels[channel].seq();
        let trace = trace_id(session.token, channel as u8, seq);
        shared.probe.hit(Tracepoint::ServiceEnd, trace);
        self.executing -= 1;
        shared.stats.replies += 1;
        if message.slices.is_empty() && len <= usize::from(session.mss) {
            let mut packet = Packet::new(Kind::Data);
            packet.flags = TO_CLIENT;
            packet.channel = channel as u8;
            packet.session = session.client;
            packet.seq = seq;
            packet.msg_len = len as u32;
            packet.token = session.token;
            let forgets = idempotent && !shared.lossless;
            let state = if forgets { State::Answered } else { State::Done };
            packet.flags |= if forgets { NO_ACK } else { 0 };
            session.channels[channel] = ServerChannel::new(seq, state);
            if emit.emit(shared, session.peer, &packet, &message.bytes) {
                shared.probe.hit(Tracepoint::ServerSent, trace);
                if !shared.lossless && !forgets {
                    self.retain_copy(shared, s, channel, seq, &message.bytes);
                }
                return;
            }
        }
        self.queue_reply(shared, s, channel, seq, core::mem::take(message));
    }

    /// Gives a channel of a server session a slot for its reply; `None` if no slot is free.
    #[inline(always)]
    fn add_reply<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        s: u32,
        channel: usize,
        seq: u32,
    ) -> Option<u32> {
        let (i, slot) = shared.slots.alloc(Role::Reply)?;
        let session = &mut self.sessions[s];
        session.channels[channel] = ServerChannel::new(seq, State::Reply);
        slot.token = session.token;
        slot.session = session.name(s);
        slot.remote = session.client;
        slot.peer = session.peer;
        slot.mss = session.mss;
        slot.seq = seq;
        slot.channel = channel as u8;
        slot.progress = shared.now;
        self.put_slot(s, channel, i);
        Some(i)
    }

    /// Retains a copy of a single-packet reply that the driver has taken. If no slot is free, a
    /// client that asks for the reply learns that it is gone.
    #[inline(always)]
    fn retain_copy<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        s: u32,
        channel: usize,
        seq: u32,
        bytes: &[u8],
    ) {
        let Some(i) = self.add_reply(shared, s, channel, seq) else { return };
        shared.slots[i].out.set_sent(bytes);
        self.retain(shared, i);
    }

    /// Queues the caller's reply to a request of the session's `channel`.
    #[inline(never)]
    fn queue_reply<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        s: u32,
        channel: usize,
        seq: u32,
        message: Message,
    ) {
        let len = message.len() as u32;
        let Some(i) = self.add_reply(shared, s, channel, seq) else {
            self.sessions[s].channels[channel] = ServerChannel::new(seq, State::Done);
            return shared.release(message);
        };
        self.retained.add_unsent(message.bytes.len());
        let granted = shared.unscheduled(shared.slots[i].peer, len);
        let slot = &mut shared.slots[i];
        slot.deadline = shared.now.after(shared.config.stale_reply_ns);
        slot.out = Outgoing::new(message, len, granted);
        shared.queue_tx(i);
    }

    /// Records that the driver has taken every byte of a queued reply: the reply is retained, or on
    /// a lossless driver freed.
    pub(in crate::rpc) fn reply_sent<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        let slot = &shared.slots[i];
        shared.probe.hit(Tracepoint::ServerSent, slot.trace());
        if shared.lossless {
            return self.drop_rpc(shared, i, State::Done);
        }
        let slot = &shared.slots[i];
        if !slot.retained {
            self.retained.remove_unsent(slot.out.message.bytes.len());
            self.retain(shared, i);
        }
    }

    /// Frees a queued reply because its peer is gone.
    #[cold]
    pub(in crate::rpc) fn reply_undeliverable<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        self.drop_rpc(shared, i, State::Done);
    }

    /// Retains a reply that was sent until the client acknowledges it, or the limits are exceeded.
    #[inline]
    fn retain<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        self.retained.add(&mut shared.slots, i);
        if self.retained.is_near_limit(&shared.config) {
            self.evict(shared);
        }
    }

    /// Drops the oldest retained replies while the limits are exceeded. Asks the client of the
    /// oldest one for an acknowledgement if the limits are nearly reached.
    #[cold]
    fn evict<P: Probe>(&mut self, shared: &mut Shared<P>) {
        while let Some(i) = self.retained.oldest()
            && self.retained.exceeds_limit(&shared.config)
        {
            shared.stats.evicted += 1;
            self.drop_rpc(shared, i, State::Done);
        }
        if !self.retained.is_near_limit(&shared.config) {
            return;
        }
        let Some(i) = self.retained.oldest() else { return };
        let slot = &mut shared.slots[i];
        if slot.exposed {
            return;
        }
        slot.exposed = true;
        let (peer, packet) = (slot.peer, slot.packet(Kind::NeedAck));
        shared.queue_control(peer, packet, ControlBody::None);
    }

    /// Refuses a request because the caller does not want to execute it.
    pub(in crate::rpc) fn refuse<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        rpc: ServerRpc,
        retry_after_ns: u64,
    ) {
        let Some((s, channel, session)) = executing_request(&mut self.sessions, rpc) else {
            shared.stats.drop_reply += 1;
            return;
        };
        let seq = session.channels[channel].seq();
        session.channels[channel] = ServerChannel::new(seq, State::Empty);
        self.executing -= 1;
        self.send_refusal(shared, s, channel as u8, seq, retry_after_ns);
    }

    /// Sends a BUSY to the client: its request was not executed and never will be under its number.
    pub(super) fn send_refusal<P: Probe>(
        &self,
        shared: &mut Shared<P>,
        s: u32,
        channel: u8,
        seq: u32,
        retry_after_ns: u64,
    ) {
        shared.stats.refused += 1;
        let session = &self.sessions[s & INDEX_MAX];
        let mut packet = Packet::new(Kind::Busy);
        packet.flags = TO_CLIENT;
        packet.channel = channel;
        packet.seq = seq;
        packet.session = session.client;
        packet.token = session.token;
        packet.offset = u32::try_from(retry_after_ns / US).unwrap_or(u32::MAX);
        shared.queue_control(session.peer, packet, ControlBody::None);
    }
}

/// Drops the caller's reply to a request that is over.
#[cold]
fn drop_reply<P: Probe>(shared: &mut Shared<P>, message: &mut Message) {
    shared.stats.drop_reply += 1;
    shared.release(core::mem::take(message));
}
