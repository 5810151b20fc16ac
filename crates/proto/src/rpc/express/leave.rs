//! The short way out: of requests and of replies.

use crate::datagrams::{MAX_SHORT_BODY, Sent};
use crate::rpc::endpoint::Endpoint;
use crate::rpc::session::{Calls, INDEX_BITS, INDEX_MAX, Phase, State, Word};
use crate::rpc::shared::tx::PASS_MOST;
use crate::rpc::slab::NONE;
use crate::rpc::slot::Role;
use crate::rpc::{Message, RequestError, RpcId, ServerRpc, SessionId, trace_id};
use crate::time::US;
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::checksum::Crc32c;
use crate::wire::rpc::{SEQ_MAX, Whole, trailer};
use crate::{Addr, Datagrams, Instant};

impl<P: Probe> Endpoint<P> {
    /// As [`Endpoint::request`], and if it can, the request goes out before this returns, or with the next
    /// [`Endpoint::output`] where the driver has several sent together. It takes of `message` what it has to keep: if a buffer
    /// is left in it, that is the caller's again.
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
            && let Some(rpc) =
                self.call_at_once(now, session, tag, &message.bytes, deadline, driver)
        {
            return Ok(rpc);
        }
        self.request(now, session, tag, core::mem::take(message), deadline)
    }

    /// As [`Endpoint::request_over`] for bytes that stay the caller's, who waits for the answer: nothing is to be sent together
    /// with it, so that no driver waits for that.
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
            Some(rpc) => {
                self.flush_passed(driver);
                Ok(rpc)
            }
            None => self.request(now, session, tag, bytes.into(), deadline),
        }
    }

    /// As [`Endpoint::reply`], and if it can, the reply goes out as a request does by [`Endpoint::request_over`]. It takes of
    /// `message` what it has to keep: if a buffer is left in it, that is the caller's again.
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
        if !message.slices.is_empty() || !self.reply_at_once(now, rpc, &message.bytes, driver) {
            self.reply(now, rpc, core::mem::take(message));
        } else if !driver.lossless() && self.is_last_of_burst(rpc) {
            // Few others follow in this turn, if any: none is waited for.
            self.flush_passed(driver);
        }
    }

    /// Has the driver send what it took past the queues.
    #[inline(always)]
    pub(in crate::rpc) fn flush_passed<D: Datagrams>(&mut self, driver: &mut D) {
        if !driver.lossless() && core::mem::take(&mut self.unflushed) > 0 {
            driver.flush();
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
        if session.phase != Phase::Open || session.id(c) != id || session.busy == u8::MAX {
            return None;
        }
        let peer = self.peers.slab.get(session.peer)?;
        let waits = !driver.lossless() && self.unflushed >= PASS_MOST;
        let queued = session.calls != NONE && self.calls[session.calls].queued > 0;
        if waits || queued || peer.active || bytes.len() > MAX_SHORT_BODY.min(usize::from(peer.mss))
        {
            return None;
        }
        let channel = session.busy.trailing_ones() as u8;
        let seq = (session.seqs[usize::from(channel)] + 1) & SEQ_MAX;
        let i = self.slots.alloc(Role::Call)?;
        let (ts_us, ts_echo_us) = if driver.lossless() { (0, None) } else { peer.path.stamps(now) };
        let whole = Whole {
            to_client: false,
            channel,
            session: session.server,
            seq,
            token: session.token,
            ttl_us: (deadline < Instant::NEVER).then(|| ttl_us(deadline, now)),
            ts_us,
            ts_echo_us,
        };
        let trace = trace_id(session.token, channel, seq);
        self.probe.hit(Tracepoint::ClientRequest, trace);
        if !pass(peer.addr, &whole, bytes, self.config.crc32c, driver) {
            self.slots.free(i);
            return None;
        }
        self.unflushed += u32::from(!driver.lossless());
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
        // It may have to go out again: it is lost, or a server that is too busy refuses it.
        slot.out.put(bytes);
        self.probe.hit(Tracepoint::ClientSent, trace);
        let (id, peer) = (slot.id, slot.peer);
        self.stats.calls += 1;
        self.stats.sent += 1;
        let due = now.after(self.pto_ns(peer)).min(deadline);
        self.arm(i, due);
        Some(RpcId(id))
    }

    /// The same for the reply to a request.
    #[inline(always)]
    fn reply_at_once<D: Datagrams>(
        &mut self,
        now: Instant,
        rpc: ServerRpc,
        bytes: &[u8],
        driver: &mut D,
    ) -> bool {
        let (name, channel, seq) = ((rpc.0 >> 32) as u32, rpc.0 as u8 & 7, rpc.0 as u32 >> 3);
        let s = name & INDEX_MAX;
        let Some(session) = self.sessions.get_mut(s) else { return false };
        let word = &mut session.channels[usize::from(channel)];
        if !session.open
            || u32::from(session.generation) != name >> INDEX_BITS
            || *word != Word::new(seq, State::Exec)
        {
            return false;
        }
        let Some(peer) = self.peers.slab.get(session.peer) else { return false };
        let waits = !driver.lossless() && self.unflushed >= PASS_MOST;
        if waits || peer.active || bytes.len() > MAX_SHORT_BODY.min(usize::from(session.mss)) {
            return false;
        }
        let trace = trace_id(session.token, channel, seq);
        self.probe.hit(Tracepoint::ServiceEnd, trace);
        let (ts_us, ts_echo_us) = if driver.lossless() { (0, None) } else { peer.path.stamps(now) };
        let whole = Whole {
            to_client: true,
            channel,
            session: session.client,
            seq,
            token: session.token,
            ttl_us: None,
            ts_us,
            ts_echo_us,
        };
        if !pass(peer.addr, &whole, bytes, self.config.crc32c, driver) {
            return false;
        }
        *word = Word::new(seq, State::Done);
        if !driver.lossless() {
            self.unflushed += 1;
            self.now = now;
            self.keep_copy(s, channel, seq, bytes);
        }
        self.executing -= 1;
        self.stats.replies += 1;
        self.stats.sent += 1;
        self.probe.hit(Tracepoint::ServerSent, trace);
        true
    }

    /// Keeps a copy of a reply that went out, as the last one on its channel. Where there is no slot for it, none is kept.
    #[inline(always)]
    fn keep_copy(&mut self, s: u32, channel: u8, seq: u32, bytes: &[u8]) {
        let Some(i) = self.reply_slot(s, channel, seq) else { return };
        self.sessions[s].channels[usize::from(channel)] = Word::new(seq, State::Reply);
        self.slots[i].out.put(bytes);
        self.put_slot(s, usize::from(channel), i);
        self.keep(i);
    }
}

/// Gives the driver a packet; true if it took it. One that loses nothing sends it now.
#[inline(always)]
fn pass<D: Datagrams>(to: Addr, whole: &Whole, bytes: &[u8], crc: Crc32c, driver: &mut D) -> bool {
    let head = whole.head(bytes.len() as u32);
    if !driver.intact() {
        let checksum = trailer(crc, &[&head, bytes]);
        return driver.send(to, &[&head, bytes, &checksum]) == Sent::Yes;
    }
    let taken = driver.send_short(to, &head, bytes) == Sent::Yes;
    if taken && driver.lossless() {
        driver.flush();
    }
    taken
}

/// The time that a request has left, in microseconds as the wire has them.
#[inline]
fn ttl_us(deadline: Instant, now: Instant) -> u32 {
    u32::try_from(deadline.since(now) / US).unwrap_or(u32::MAX)
}
