//! The short way, out and in. On a driver that loses nothing, a message that is whole in one packet goes from the caller's hand
//! into the driver, past the queues of `output`, and from the driver into the caller's hand, past all that long messages,
//! losses and repetitions need.
//!
//! ```text
//!   request ─► nothing waits, one packet, no slices ─► driver, then slot      else: slot, queue ─► output
//!   reply ───► the same ─────────────────────────────► driver, no slot        else: slot, queue ─► output
//!   packet ──► whole message, all as expected ───────► event                  else: `client_input`, `server_input`
//! ```
//!
//! Always: each of these looks at everything first and changes something only if it is certain that it can do all of it; else
//! the ordinary way begins anew and says what is wrong. Messages to one peer leave in the order in which they were handed
//! in, whichever way they take. Not here: lossy drivers, whose replies are kept and whose packets go out many at a time.

use super::endpoint::Endpoint;
use super::server::{handle, seconds};
use super::session::{Calls, HALF, INDEX_BITS, INDEX_MAX, Phase, State, Word, ahead};
use super::slab::NONE;
use super::slot::Role;
use super::{Event, Message, Payload, RequestError, RpcId, ServerRpc, SessionId, trace_id};
use crate::datagrams::{SHORT, Sent};
use crate::probe::{Point, Probe};
use crate::time::US;
use crate::wire::rpc::{SEQ_MAX, Whole};
use crate::{Addr, Datagrams, Instant};

/// The longest buffer, in bytes, that a slot keeps for the request that uses it next.
const KEPT: usize = 512;

impl<P: Probe> Endpoint<P> {
    /// As [`Endpoint::request`], and if it can, the request goes out before this returns. It takes of `message` what it has
    /// to keep: if a buffer is left in it, that is the caller's again.
    ///
    /// # Errors
    /// As [`Endpoint::request`].
    #[inline]
    pub fn request_over<D: Datagrams>(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
        driver: &mut D,
    ) -> Result<RpcId, RequestError> {
        if message.slices.is_empty()
            && let Some(rpc) = self.call_at_once(now, session, tag, &message.bytes, deadline, driver)
        {
            return Ok(rpc);
        }
        self.request(now, session, tag, core::mem::take(message), deadline)
    }

    /// As [`Endpoint::request_over`] for bytes that stay the caller's.
    ///
    /// # Errors
    /// As [`Endpoint::request`].
    #[inline]
    pub fn request_bytes_over<D: Datagrams>(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
        driver: &mut D,
    ) -> Result<RpcId, RequestError> {
        match self.call_at_once(now, session, tag, bytes, deadline, driver) {
            Some(rpc) => Ok(rpc),
            None => self.request(now, session, tag, bytes.into(), deadline),
        }
    }

    /// As [`Endpoint::reply`], and if it can, the reply goes out before this returns. It takes of `message` what it has to
    /// keep: if a buffer is left in it, that is the caller's again.
    ///
    /// # Panics
    /// As [`Endpoint::reply`].
    #[inline]
    pub fn reply_over<D: Datagrams>(
        &mut self,
        now: Instant,
        rpc: ServerRpc,
        message: &mut Message,
        driver: &mut D,
    ) {
        if !message.slices.is_empty() || !self.reply_at_once(rpc, &message.bytes, driver) {
            self.reply(now, rpc, core::mem::take(message));
        }
    }

    /// Gives the driver a request, if it may go the short way and the driver takes it.
    #[inline(always)]
    fn call_at_once<D: Datagrams>(
        &mut self,
        now: Instant,
        id: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
        driver: &mut D,
    ) -> Option<RpcId> {
        let c = id.place();
        let session = self.clients.get_mut(c)?;
        if !self.lossless || session.phase != Phase::Open || session.id(c) != id || session.busy == u8::MAX {
            return None;
        }
        let peer = self.peers.slab.get(session.peer)?;
        if peer.active || bytes.len() > SHORT.min(usize::from(peer.mss)) {
            return None;
        }
        if session.calls != NONE && self.calls[session.calls].queued > 0 {
            return None;
        }
        let channel = session.busy.trailing_ones() as u8;
        let seq = (session.seqs[usize::from(channel)] + 1) & SEQ_MAX;
        let i = self.slots.alloc(Role::Call)?;
        let whole = Whole {
            to_client: false,
            channel,
            session: session.server,
            seq,
            token: session.token,
            ttl_us: (deadline < Instant::NEVER).then(|| ttl_us(deadline, now)),
        };
        let trace = trace_id(session.token, channel, seq);
        self.probe.mark(Point::ClientRequest, trace);
        if driver.send_short(peer.addr, &whole.head(bytes.len() as u32), bytes) != Sent::Yes {
            self.slots.free(i);
            return None;
        }
        driver.flush();
        session.busy |= 1 << channel;
        session.seqs[usize::from(channel)] = seq;
        if session.calls == NONE {
            session.calls = self.calls.alloc(|_| Calls::none());
        }
        self.calls[session.calls].slots[usize::from(channel)] = i;
        self.now = now;
        let slot = &mut self.slots[i];
        slot.session = c;
        slot.peer = session.peer;
        slot.mss = peer.mss;
        slot.token = session.token;
        slot.channel = channel;
        slot.seq = seq;
        slot.tag = tag;
        slot.deadline = deadline;
        slot.progress = now;
        slot.exposed = true;
        // It may have to go out again: a server that is too busy refuses it.
        slot.out.message.bytes.clear();
        slot.out.message.bytes.extend_from_slice(bytes);
        slot.out.put(bytes.len() as u32);
        self.probe.mark(Point::ClientSent, trace);
        let (id, peer) = (slot.id, slot.peer);
        self.stats.calls += 1;
        self.stats.sent += 1;
        let due = now.after(self.pto_ns(peer)).min(deadline);
        self.arm(i, due);
        Some(RpcId(id))
    }

    /// The same for the reply to a request.
    #[inline(always)]
    fn reply_at_once<D: Datagrams>(&mut self, rpc: ServerRpc, bytes: &[u8], driver: &mut D) -> bool {
        let (name, channel, seq) = ((rpc.0 >> 32) as u32, rpc.0 as u8 & 7, rpc.0 as u32 >> 3);
        let s = name & INDEX_MAX;
        let Some(session) = self.sessions.get_mut(s) else { return false };
        let word = &mut session.channels[usize::from(channel)];
        if !self.lossless
            || !session.open
            || u32::from(session.generation) != name >> INDEX_BITS
            || *word != Word::new(seq, State::Exec)
        {
            return false;
        }
        let Some(peer) = self.peers.slab.get(session.peer) else { return false };
        if peer.active || bytes.len() > SHORT.min(usize::from(session.mss)) {
            return false;
        }
        let trace = trace_id(session.token, channel, seq);
        self.probe.mark(Point::ServiceEnd, trace);
        let whole = Whole {
            to_client: true,
            channel,
            session: session.client,
            seq,
            token: session.token,
            ttl_us: None,
        };
        if driver.send_short(peer.addr, &whole.head(bytes.len() as u32), bytes) != Sent::Yes {
            return false;
        }
        driver.flush();
        *word = Word::new(seq, State::Done);
        self.executing -= 1;
        self.stats.replies += 1;
        self.stats.sent += 1;
        self.probe.mark(Point::ServerSent, trace);
        true
    }

    /// What a packet brings, if it is a whole message and all about it is as it should be.
    #[inline(always)]
    pub(super) fn event_at_once<'b>(&mut self, from: Addr, datagram: &'b [u8]) -> Option<Event<'b>> {
        let (whole, body) = Whole::parse(datagram)?;
        if whole.to_client {
            self.reply_arrived_whole(from, &whole, body)
        } else {
            self.request_arrived_whole(from, &whole, body)
        }
    }

    /// A new request, if it is one.
    #[inline(always)]
    fn request_arrived_whole<'b>(&mut self, from: Addr, whole: &Whole, body: &'b [u8]) -> Option<Event<'b>> {
        let s = whole.session & INDEX_MAX;
        let session = self.sessions.get_mut(s)?;
        if !session.open
            || u32::from(session.generation) != whole.session >> INDEX_BITS
            || session.token != whole.token
        {
            return None;
        }
        let peer = self.peers.slab.get_mut(session.peer)?;
        let word = &mut session.channels[usize::from(whole.channel)];
        let ahead = ahead(whole.seq, word.seq());
        let is_new = ahead > 0 && ahead < HALF;
        if peer.addr != from
            || !is_new
            || word.state() == State::Exec
            || session.live & 1 << whole.channel != 0
            || self.executing >= self.config.max_executing
            || self.kept.is_full(self.config.max_kept_bytes)
        {
            return None;
        }
        let deadline = match whole.ttl_us {
            Some(0) => return None,
            Some(us) => self.now.after(u64::from(us) * US),
            None => Instant::NEVER,
        };
        peer.heard();
        *word = Word::new(whole.seq, State::Exec);
        session.active_s = seconds(self.now);
        self.executing += 1;
        self.stats.requests += 1;
        let trace = trace_id(whole.token, whole.channel, whole.seq);
        self.probe.mark(Point::ServerReceived, trace);
        self.probe.mark(Point::ServiceStart, trace);
        let rpc = handle(whole.session, whole.channel, whole.seq);
        Some(Event::Request { rpc, payload: Payload::Borrowed(body), deadline })
    }

    /// The reply to a request in progress, if it is one.
    #[inline(always)]
    fn reply_arrived_whole<'b>(&mut self, from: Addr, whole: &Whole, body: &'b [u8]) -> Option<Event<'b>> {
        let c = whole.session & INDEX_MAX;
        let session = self.clients.get_mut(c)?;
        if session.phase != Phase::Open
            || session.name(c) != whole.session
            || session.token != whole.token
            || session.busy & 1 << whole.channel == 0
        {
            return None;
        }
        let peer = self.peers.slab.get_mut(session.peer)?;
        let calls = &self.calls[session.calls];
        let i = calls.slots[usize::from(whole.channel)];
        let slot = &mut self.slots[i];
        if peer.addr != from
            || calls.queued > 0
            || slot.seq != whole.seq
            || slot.role != Role::Call
            || slot.ready
            || slot.incoming.is_some()
            || !slot.out.message.slices.is_empty()
        {
            return None;
        }
        peer.heard();
        if slot.out.message.bytes.capacity() > KEPT {
            slot.out.message = Message::default();
        }
        let (rpc, tag) = (RpcId(slot.id), slot.tag);
        self.slots.free(i);
        session.busy &= !(1 << whole.channel);
        if session.busy == 0 {
            self.calls.free(session.calls);
            session.calls = NONE;
        }
        self.stats.responses += 1;
        let trace = trace_id(whole.token, whole.channel, whole.seq);
        self.probe.mark(Point::ClientReceived, trace);
        self.probe.mark(Point::ClientDone, trace);
        Some(Event::Response { rpc, tag, payload: Payload::Borrowed(body) })
    }
}

/// The time that a request has left, in microseconds as the wire has them.
#[inline]
fn ttl_us(deadline: Instant, now: Instant) -> u32 {
    u32::try_from(deadline.since(now) / US).unwrap_or(u32::MAX)
}
