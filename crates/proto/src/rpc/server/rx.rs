//! Packets that arrive from clients at the server: requests, and control packets about requests and
//! replies.

use alloc::boxed::Box;

use zerocopy::FromBytes as _;

use super::{Server, seconds, server_rpc};
use crate::rpc::body::Body;
use crate::rpc::control::ControlBody;
use crate::rpc::incoming::{Incoming, Inserted, claim};
use crate::rpc::limits::CHANNELS;
use crate::rpc::missing::Missing;
use crate::rpc::session::{
    HALF, INDEX_BITS, INDEX_MAX, ServerChannel, ServerSession, State, ahead,
};
use crate::rpc::shared::Shared;
use crate::rpc::slab::Chunks;
use crate::rpc::slot::Role;
use crate::rpc::types::{Event, Payload, ServerRpc, trace_id};
use crate::time::US;
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::rpc::{
    ASK, DoneEntry, EXECUTING, Kind, Packet, ProbeBody, ResetReason, RxPacket, SEQ_MAX, TO_CLIENT,
};
use crate::{Addr, Instant};

impl Server {
    /// Handles a packet that arrives at the server; `left` is its body if the packet has only the
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
        let (s, mut session) = session_of(&mut self.sessions, shared, from, packet, lossless)?;
        let channel = usize::from(packet.channel() & 7);
        let last = session.channels[channel];
        let ahead = ahead(packet.seq(), last.seq());
        if ahead == 0 || ahead >= HALF {
            return self.repeated_packet(shared, s, packet.bytes(), left);
        }
        // A later number ends the last request on the channel and acknowledges its reply.
        if session.live & 1 << channel != 0 {
            self.drop_slot(shared, s, channel);
            session = &mut self.sessions[s];
        }
        if last.state() == State::Exec {
            self.executing -= 1;
        }
        let deadline = match packet.ttl_us() {
            None => Instant::NEVER,
            Some(us) => shared.now.after(u64::from(us) * US),
        };
        if left.is_some() || !packet.is_whole_message() {
            return self.begin_request(shared, s, packet.bytes(), left, deadline);
        }
        let is_full = self.executing >= shared.config.max_executing
            || self.retained.is_full(shared.config.max_kept_bytes);
        if is_full {
            self.refuse_packet(shared, s, packet.bytes());
            return None;
        }
        let rpc = begin_execution(shared, session, packet, deadline)?;
        self.executing += 1;
        if !lossless {
            shared.last_request = rpc;
        }
        Some(Event::Request { rpc, payload: Payload::Borrowed(packet.body()), deadline })
    }

    /// Handles a control packet from a client, which carries no bytes of a request.
    #[cold]
    fn control_packet<P: Probe>(&mut self, shared: &mut Shared<P>, from: Addr, bytes: &[u8]) {
        let Ok(rx) = RxPacket::parse(bytes, None) else { return };
        let (packet, body) = (rx.packet(), rx.body());
        match packet.kind {
            Kind::Open => return self.open_arrived(shared, from, &packet, body),
            Kind::Done => return self.done_arrived(shared, from, body),
            _ => {}
        }
        let lossless = shared.lossless;
        let session = session_of(&mut self.sessions, shared, from, rx, lossless);
        let Some((s, _)) = session else {
            if packet.kind == Kind::Probe
                && let Ok((probe, _)) = ProbeBody::ref_from_prefix(body)
            {
                let client = probe.client.get();
                self.send_reset(shared, from, client, packet.token, ResetReason::Unknown);
            }
            return;
        };
        match packet.kind {
            Kind::Probe => self.probe_arrived(shared, s, &packet, body),
            Kind::Grant | Kind::Nack => self.reply_wanted(shared, s, &packet, body),
            Kind::Close => self.end_session(shared, s),
            _ => shared.stats.drop_direction += 1,
        }
    }

    /// Handles a packet whose request number is not later than the last one of its channel.
    #[inline(never)]
    fn repeated_packet<'b, P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        s: u32,
        bytes: &[u8],
        left: Option<Body<'_>>,
    ) -> Option<Event<'b>> {
        let packet = RxPacket::parse(bytes, None).ok()?;
        let last = self.sessions[s].channels[usize::from(packet.channel())];
        if packet.seq() != last.seq() {
            shared.stats.drop_stale += 1;
        } else if last.state() == State::Recv {
            return self.request_packet(shared, s, packet, left);
        } else {
            shared.stats.drop_duplicate += 1;
        }
        None
    }

    /// True if the server lacks room for a new request of several packets and `len` bytes. The
    /// server admits requests by the length that they claim, so that those admitted can all be
    /// completed, though memory follows the bytes that arrive.
    fn lacks_room<P: Probe>(&mut self, shared: &Shared<P>, len: u32) -> bool {
        let lacks_room = self.assembling_bytes > 0
            && self.assembling_bytes + claim(len) > shared.config.max_assembling_bytes;
        if lacks_room {
            self.begin_pressure(shared.now);
        }
        lacks_room
            || self.executing >= shared.config.max_executing
            || self.retained.is_full(shared.config.max_kept_bytes)
    }

    /// Refuses a new request for lack of room.
    #[cold]
    fn refuse_packet<P: Probe>(&mut self, shared: &mut Shared<P>, s: u32, bytes: &[u8]) {
        let Ok(packet) = RxPacket::parse(bytes, None) else { return };
        self.sessions[s].channels[usize::from(packet.channel())] =
            ServerChannel::new(packet.seq(), State::Empty);
        let retry_after_ns = shared.config.retry_after_ns;
        self.send_refusal(shared, s, packet.channel(), packet.seq(), retry_after_ns);
    }

    /// Handles the first packet of a request that has several packets.
    #[inline(never)]
    fn begin_request<'b, P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        s: u32,
        bytes: &[u8],
        left: Option<Body<'_>>,
        deadline: Instant,
    ) -> Option<Event<'b>> {
        let rx = RxPacket::parse(bytes, None).ok()?;
        let packet = rx.packet();
        if self.lacks_room(shared, packet.msg_len) {
            self.refuse_packet(shared, s, bytes);
            return None;
        }
        let granted = shared.first_grant(packet.msg_len);
        let (i, slot) = shared.slots.alloc(Role::Recv)?;
        let session = &mut self.sessions[s];
        let mss = u32::from(session.mss);
        let incoming = Incoming::new(shared.now, packet.msg_len, mss, granted);
        self.assembling_bytes += incoming.claim();
        slot.incoming = Some(Box::new(incoming));
        slot.token = session.token;
        slot.session = session.name(s);
        slot.remote = session.client;
        slot.peer = session.peer;
        slot.mss = session.mss;
        slot.seq = packet.seq;
        slot.channel = packet.channel;
        slot.deadline = deadline;
        slot.progress = shared.now;
        let channel = usize::from(packet.channel);
        session.channels[channel] = ServerChannel::new(packet.seq, State::Recv);
        self.put_slot(s, channel, i);
        self.request_packet(shared, s, rx, left)
    }

    /// Handles a packet of an incomplete request.
    fn request_packet<'b, P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        s: u32,
        rx: RxPacket<'_>,
        left: Option<Body<'_>>,
    ) -> Option<Event<'b>> {
        let packet = rx.packet();
        let channel = usize::from(packet.channel);
        let i = self.slot_of(s, channel)?;
        let slot = &mut shared.slots[i];
        let incoming = slot.incoming.as_mut()?;
        let body = left.unwrap_or_else(|| Body::Burst(rx.body()));
        match incoming.insert(packet.msg_len, packet.offset, body) {
            Inserted::New => {
                slot.progress = shared.now;
                if !shared.lossless {
                    shared.schedule_grants(i);
                    if packet.flags & ASK != 0 {
                        shared.send_grant(i);
                    }
                }
            }
            Inserted::Complete => {
                let (bytes, deadline) = (core::mem::take(&mut incoming.bytes), slot.deadline);
                self.drop_slot(shared, s, channel);
                let rpc = begin_execution(shared, &mut self.sessions[s], rx, deadline)?;
                self.executing += 1;
                return Some(Event::Request { rpc, payload: Payload::Owned(bytes), deadline });
            }
            Inserted::Duplicate => shared.stats.drop_duplicate += 1,
            Inserted::Misfit => shared.stats.drop_misfit += 1,
        }
        None
    }

    /// Handles a PROBE, by which a client asks for the state of a request.
    fn probe_arrived<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        s: u32,
        packet: &Packet,
        body: &[u8],
    ) {
        let Ok((probe, _)) = ProbeBody::ref_from_prefix(body) else { return };
        let channel = usize::from(packet.channel);
        let last = self.sessions[s].channels[channel];
        let ahead = ahead(packet.seq, last.seq());
        if ahead >= HALF {
            shared.stats.drop_stale += 1;
            return;
        }
        if ahead > 0 {
            return self.send_state(shared, s, packet, Kind::Unknown, 0);
        }
        match last.state() {
            State::Empty => {
                let retry_after_ns = shared.config.retry_after_ns;
                self.send_refusal(shared, s, packet.channel, packet.seq, retry_after_ns);
            }
            State::Exec => self.send_state(shared, s, packet, Kind::Busy, EXECUTING),
            State::Done => self.send_state(shared, s, packet, Kind::Gone, 0),
            State::Answered => {
                shared.stats.forgotten += 1;
                self.sessions[s].channels[channel] = last.forget();
                self.send_state(shared, s, packet, Kind::Unknown, 0);
            }
            State::Recv => {
                let Some(i) = self.slot_of(s, channel) else { return };
                shared.credit.mark_dirty();
                shared.send_nack(i, packet.offset);
                shared.send_grant(i);
            }
            State::Reply => {
                let Some(i) = self.slot_of(s, channel) else { return };
                reply_probed(shared, i, probe.received.get(), probe.granted.get());
            }
        }
    }

    /// Handles a GRANT or a NACK: the client grants more of a reply, or misses packets of it.
    fn reply_wanted<P: Probe>(&self, shared: &mut Shared<P>, s: u32, packet: &Packet, body: &[u8]) {
        let channel = usize::from(packet.channel);
        let last = self.sessions[s].channels[channel];
        if last.seq() != packet.seq || last.state() != State::Reply {
            shared.stats.drop_stale += 1;
            return;
        }
        let Some(i) = self.slot_of(s, channel) else { return };
        shared.slots[i].progress = shared.now;
        if packet.kind == Kind::Grant {
            shared.granted(i, packet.msg_len, packet.offset);
        } else {
            let missing = Missing::from_bytes(packet.offset, body);
            shared.nacked(i, packet.msg_len, missing);
        }
    }

    /// Handles a DONE, by which a client acknowledges replies.
    fn done_arrived<P: Probe>(&mut self, shared: &mut Shared<P>, from: Addr, mut body: &[u8]) {
        while let Ok((entry, rest)) = DoneEntry::ref_from_prefix(body) {
            let numbers = 4 * entry.channels.count_ones() as usize;
            let Some((numbers, rest)) = rest.split_at_checked(numbers) else {
                shared.stats.drop_short += 1;
                return;
            };
            body = rest;
            let (name, token) = (entry.session.get(), entry.token.get());
            let session = named(&mut self.sessions, shared, name, token);
            let Some((s, session)) = session else { continue };
            if shared.peers.slab[session.peer].addr != from {
                shared.stats.drop_address += 1;
                continue;
            }
            session.active_s = seconds(shared.now);
            let channels = (0..CHANNELS).filter(|channel| entry.channels & 1 << channel != 0);
            for (channel, seq) in channels.zip(numbers.as_chunks::<4>().0) {
                let last = self.sessions[s].channels[channel];
                let is_retained = last.state() == State::Reply
                    && last.seq() == u32::from_be_bytes(*seq) & SEQ_MAX;
                if is_retained {
                    shared.stats.done += 1;
                    self.drop_slot(shared, s, channel);
                    self.sessions[s].channels[channel] =
                        ServerChannel::new(last.seq(), State::Done);
                }
            }
        }
    }

    /// Sends the client a control packet with the state of the request that its packet is about.
    fn send_state<P: Probe>(
        &self,
        shared: &mut Shared<P>,
        s: u32,
        about: &Packet,
        kind: Kind,
        flags: u8,
    ) {
        let session = &self.sessions[s];
        let mut packet = Packet::new(kind);
        packet.flags = TO_CLIENT | flags;
        packet.channel = about.channel;
        packet.seq = about.seq;
        packet.session = session.client;
        packet.token = session.token;
        shared.queue_control(session.peer, packet, ControlBody::None);
    }
}

/// The server session of an arrived packet and its index, if its name, token and address agree. The
/// session counts as active.
#[inline(always)]
fn session_of<'s, P: Probe>(
    sessions: &'s mut Chunks<ServerSession>,
    shared: &mut Shared<P>,
    from: Addr,
    packet: RxPacket<'_>,
    lossless: bool,
) -> Option<(u32, &'s mut ServerSession)> {
    let (s, session) = named(sessions, shared, packet.session(), packet.token())?;
    if !shared.record_activity(session.peer, from, packet, lossless) {
        return None;
    }
    session.active_s = seconds(shared.now);
    Some((s, session))
}

/// The server session with the name `name` and its index, if the token agrees.
#[inline(always)]
fn named<'s, P: Probe>(
    sessions: &'s mut Chunks<ServerSession>,
    shared: &mut Shared<P>,
    name: u32,
    token: u64,
) -> Option<(u32, &'s mut ServerSession)> {
    let s = name & INDEX_MAX;
    let session =
        sessions.get_mut(s).filter(|s| s.open && u32::from(s.generation) == name >> INDEX_BITS);
    let Some(session) = session else {
        shared.stats.drop_session += 1;
        return None;
    };
    if session.token != token {
        shared.stats.drop_token += 1;
        return None;
    }
    Some((s, session))
}

/// Delivers a complete request to the caller unless the request's deadline has passed.
#[inline(always)]
fn begin_execution<P: Probe>(
    shared: &mut Shared<P>,
    session: &mut ServerSession,
    packet: RxPacket<'_>,
    deadline: Instant,
) -> Option<ServerRpc> {
    let (channel, seq) = (packet.channel() & 7, packet.seq());
    let last = &mut session.channels[usize::from(channel)];
    if deadline <= shared.now {
        *last = ServerChannel::new(seq, State::Empty);
        shared.stats.drop_dead += 1;
        return None;
    }
    *last = ServerChannel::new(seq, State::Exec);
    shared.stats.requests += 1;
    let trace = trace_id(packet.token(), channel, seq);
    shared.probe.hit(Tracepoint::ServerReceived, trace);
    shared.probe.hit(Tracepoint::ServiceStart, trace);
    Some(server_rpc(packet.session(), channel, seq))
}

/// Handles a PROBE about a reply: the client has received every byte of it before `received`.
fn reply_probed<P: Probe>(shared: &mut Shared<P>, i: u32, received: u32, granted: u32) {
    let slot = &mut shared.slots[i];
    let (peer, before) = (slot.peer, slot.progress);
    slot.progress = shared.now;
    shared.granted(i, received, granted);
    shared.expire_in_flight(peer);
    // A packet that was sent a moment ago was in flight when the client asked.
    let transit_ns = (shared.pto_ns(peer) / 2).min(shared.config.min_pto_ns);
    let has_arrived = shared.now.since(before) >= transit_ns;
    let slot = &mut shared.slots[i];
    if received == 0 && !slot.ready && has_arrived {
        slot.out.resend(u32::from(slot.mss));
        shared.queue_tx(i);
    }
}
