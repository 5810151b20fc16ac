//! Packets that arrive from servers at the client: replies, and control packets about requests in
//! progress.

use alloc::boxed::Box;

use super::{Client, free_channel};
use crate::Addr;
use crate::rpc::body::Body;
use crate::rpc::incoming::{Incoming, Inserted};
use crate::rpc::missing::Missing;
use crate::rpc::session::{Calls, ClientSession, INDEX_MAX, Phase};
use crate::rpc::shared::Shared;
use crate::rpc::slab::{Chunks, Slab};
use crate::rpc::slot::{Role, is_windowed};
use crate::rpc::types::{CloseReason, Event, Payload, RpcError, RpcId};
use crate::time::US;
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::rpc::{ASK, EXECUTING, Kind, NO_ACK, Packet, ResetReason, RxPacket, SEQ_MAX};

impl Client {
    /// Handles a packet that arrives at the client; `left` is its body if the packet has only the
    /// beginning of it. `lossless` is the driver's property, known when this is compiled.
    #[inline(always)]
    pub(in crate::rpc) fn packet<'b, P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        from: Addr,
        packet: RxPacket<'b>,
        left: Option<Body<'_>>,
        lossless: bool,
    ) -> Option<Event<'b>> {
        if !packet.is_data() {
            self.control_packet(shared, from, packet.bytes());
            return None;
        }
        let Self { sessions, calls, idle, .. } = self;
        let (c, session) = open_session(sessions, shared, from, packet, lossless)?;
        let Some(i) = slot_of_channel(calls, session, packet) else { return drop_stale(shared) };
        let slot = &shared.slots[i];
        if slot.seq != packet.seq() || slot.role != Role::Call {
            return drop_stale(shared);
        }
        if left.is_some() || !packet.is_whole_message() {
            return self.reply_packet(shared, i, packet.bytes(), left);
        }
        let (rpc, tag, trace) = (RpcId(slot.id), slot.tag, slot.trace());
        shared.probe.hit(Tracepoint::ClientReceived, trace);
        shared.stats.responses += 1;
        shared.release_slot(i, lossless);
        let owes_ack = !lossless && packet.flags() & NO_ACK == 0;
        if free_channel(calls, idle, session, shared, c, packet.channel() & 7, owes_ack) {
            self.start_next(shared, c);
        }
        shared.probe.hit(Tracepoint::ClientDone, trace);
        Some(Event::Response { rpc, tag, payload: Payload::Borrowed(packet.body()) })
    }

    /// Handles a control packet from a server, which carries no bytes of a reply.
    #[cold]
    fn control_packet<P: Probe>(&mut self, shared: &mut Shared<P>, from: Addr, bytes: &[u8]) {
        let Ok(rx) = RxPacket::parse(bytes, None) else { return };
        let (packet, body) = (rx.packet(), rx.body());
        match packet.kind {
            Kind::Cookie => return self.cookie_arrived(shared, from, &packet, body),
            Kind::Accept => return self.accept_arrived(shared, from, &packet, body),
            Kind::Reset => return self.reset_arrived(shared, from, &packet),
            _ => {}
        }
        let lossless = shared.lossless;
        let open = open_session(&mut self.sessions, shared, from, rx, lossless);
        let Some((c, session)) = open else { return };
        let call = slot_of_channel(&self.calls, session, rx);
        let call = call.filter(|&i| shared.slots[i].seq == packet.seq);
        if packet.kind == Kind::NeedAck {
            // While the request is in progress, its reply has not arrived.
            if call.is_none() {
                self.send_ack(shared, c, &packet);
            }
        } else if let Some(i) = call {
            self.call_answered(shared, i, &packet, body);
        } else {
            shared.stats.drop_stale += 1;
        }
    }

    /// Handles a packet of a reply that has several packets.
    #[inline(never)]
    fn reply_packet<'b, P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        i: u32,
        bytes: &[u8],
        left: Option<Body<'_>>,
    ) -> Option<Event<'b>> {
        let rx = RxPacket::parse(bytes, None).ok()?;
        let (packet, lossless) = (rx.packet(), shared.lossless);
        if shared.slots[i].incoming.is_none() {
            // The reply acknowledges the request.
            let granted = shared.first_grant(packet.msg_len);
            let slot = &mut shared.slots[i];
            let mss = u32::from(slot.mss);
            let incoming = Incoming::new(shared.now, packet.msg_len, mss, granted);
            slot.incoming = Some(Box::new(incoming));
            slot.executing = false;
            shared.release_outgoing(i, lossless);
        }
        let slot = &mut shared.slots[i];
        let incoming = slot.incoming.as_mut()?;
        let body = left.unwrap_or_else(|| Body::Burst(rx.body()));
        match incoming.insert(packet.msg_len, packet.offset, body) {
            Inserted::New => {
                slot.progress = shared.now;
                slot.tries = 0;
                if !lossless {
                    shared.schedule_grants(i);
                    if packet.flags & ASK != 0 {
                        shared.send_grant(i);
                    }
                }
            }
            Inserted::Complete => {
                let bytes = core::mem::take(&mut incoming.bytes);
                if !lossless && is_windowed(packet.msg_len, slot.mss) {
                    // The grant acknowledges the last bytes and opens the server's window.
                    shared.send_grant(i);
                }
                let trace = shared.slots[i].trace();
                shared.probe.hit(Tracepoint::ClientReceived, trace);
                shared.stats.responses += 1;
                let (rpc, tag) = self.finish(shared, i);
                shared.probe.hit(Tracepoint::ClientDone, trace);
                return Some(Event::Response { rpc, tag, payload: Payload::Owned(bytes) });
            }
            Inserted::Duplicate => shared.stats.drop_duplicate += 1,
            Inserted::Misfit => shared.stats.drop_misfit += 1,
        }
        None
    }

    /// Handles a server's control packet about a request in progress.
    fn call_answered<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        i: u32,
        packet: &Packet,
        body: &[u8],
    ) {
        let slot = &mut shared.slots[i];
        if slot.role != Role::Call || slot.incoming.is_some() && packet.kind != Kind::Gone {
            shared.stats.drop_stale += 1;
            return;
        }
        slot.tries = 0;
        slot.progress = shared.now;
        match packet.kind {
            Kind::Grant => shared.granted(i, packet.msg_len, packet.offset),
            Kind::Nack => {
                let missing = Missing::from_bytes(packet.offset, body);
                shared.nacked(i, packet.msg_len, missing);
            }
            Kind::Busy if packet.flags & EXECUTING != 0 => {
                slot.executing = true;
                self.arm_pto(shared, i);
            }
            Kind::Busy => self.call_refused(shared, i, u64::from(packet.offset) * US),
            Kind::Unknown => {
                let (peer, in_flight, len) = (slot.peer, slot.window_bytes(), slot.out.len);
                // A server that executed the request before may have forgotten it since.
                slot.executing = false;
                let granted = shared.unscheduled(peer, len);
                shared.slots[i].out.restart(granted);
                shared.acked(peer, in_flight);
                shared.queue_tx(i);
            }
            Kind::Gone => self.fail(shared, i, RpcError::MaybeExecuted),
            _ => shared.stats.drop_direction += 1,
        }
    }

    /// Handles the server's refusal of a request: it has not executed the request and never will
    /// under this number. The request waits for its next attempt under another number.
    fn call_refused<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32, retry_after_ns: u64) {
        shared.dequeue_tx(i);
        let slot = &mut shared.slots[i];
        slot.refusals += 1;
        if slot.refusals > shared.config.max_refusals {
            slot.exposed = false;
            self.fail(shared, i, RpcError::Busy { retry_after_ns });
            return;
        }
        let in_flight = slot.window_bytes();
        slot.out.restart(0);
        slot.role = Role::Backoff;
        slot.exposed = false;
        slot.executing = false;
        let jitter_ns = shared.rng.below(retry_after_ns / 4 + 1);
        slot.progress = shared.now.after(retry_after_ns + jitter_ns);
        let (c, channel, peer) = (slot.session, usize::from(slot.channel), slot.peer);
        let due = slot.progress.min(slot.deadline);
        let session = &mut self.sessions[c];
        session.seqs[channel] = (session.seqs[channel] + 1) & SEQ_MAX;
        slot.seq = session.seqs[channel];
        shared.acked(peer, in_flight);
        self.arm(shared, i, due);
    }

    fn reset_arrived<P: Probe>(&mut self, shared: &mut Shared<P>, from: Addr, packet: &Packet) {
        let c = packet.session & INDEX_MAX;
        let session =
            self.sessions.get(c).filter(|s| s.phase != Phase::Free && s.name(c) == packet.session);
        let Some(session) = session else {
            shared.stats.drop_session += 1;
            return;
        };
        if session.token != packet.token {
            shared.stats.drop_token += 1;
        } else if shared.peers.slab[session.peer].addr != from {
            shared.stats.drop_address += 1;
        } else {
            let is_version = packet.offset == ResetReason::Version as u32;
            let reason = if is_version { CloseReason::Version } else { CloseReason::Reset };
            self.end_session(shared, c, reason);
        }
    }
}

/// The client session of an arrived packet and its index, if its name, token and address agree.
#[inline(always)]
fn open_session<'s, P: Probe>(
    sessions: &'s mut Chunks<ClientSession>,
    shared: &mut Shared<P>,
    from: Addr,
    packet: RxPacket<'_>,
    lossless: bool,
) -> Option<(u32, &'s mut ClientSession)> {
    let c = packet.session() & INDEX_MAX;
    let session =
        sessions.get_mut(c).filter(|s| s.phase == Phase::Open && s.name(c) == packet.session());
    let Some(session) = session else {
        shared.stats.drop_session += 1;
        return None;
    };
    if session.token != packet.token() {
        shared.stats.drop_token += 1;
        return None;
    }
    shared.record_activity(session.peer, from, packet, lossless).then_some((c, session))
}

/// The slot of the request in progress on the channel that an arrived packet names.
#[inline(always)]
fn slot_of_channel(
    calls: &Slab<Calls>,
    session: &ClientSession,
    packet: RxPacket<'_>,
) -> Option<u32> {
    let channel = packet.channel() & 7;
    let is_busy = session.busy & 1 << channel != 0;
    is_busy.then(|| calls[session.calls].slots[usize::from(channel)])
}

#[cold]
fn drop_stale<'b, P: Probe>(shared: &mut Shared<P>) -> Option<Event<'b>> {
    shared.stats.drop_stale += 1;
    None
}
