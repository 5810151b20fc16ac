//! The short way in: of requests and of replies. It may be asked about any packet, of which it takes the usual ones.

use crate::rpc::endpoint::Endpoint;
use crate::rpc::server::{handle, seconds};
use crate::rpc::session::{HALF, INDEX_BITS, INDEX_MAX, Phase, State, Word, ahead};
use crate::rpc::slab::NONE;
use crate::rpc::slot::{BUFFER_MOST, Role};
use crate::rpc::{Event, Message, Payload, RpcId, trace_id};
use crate::time::US;
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::rpc::{Whole, is_intact};
use crate::{Addr, Datagrams, Instant};

impl<P: Probe> Endpoint<P> {
    /// What a packet that came by `driver` brings, if it is a whole message and all about it is as it should be.
    #[inline(always)]
    pub(in crate::rpc) fn event_at_once<'b, D: Datagrams>(
        &mut self,
        from: Addr,
        datagram: &'b [u8],
        driver: &D,
    ) -> Option<Event<'b>> {
        let lossless = driver.lossless();
        let (whole, body) = Whole::parse(datagram, !lossless, !driver.intact())?;
        let crc = self.config.crc32c;
        let is_intact = || driver.intact() || is_intact(datagram, crc);
        if whole.to_client {
            self.reply_arrived_whole(from, &whole, body, lossless, is_intact)
        } else {
            self.request_arrived_whole(from, &whole, body, lossless, is_intact)
        }
    }

    /// A new request, if it is one.
    #[inline(always)]
    fn request_arrived_whole<'b>(
        &mut self,
        from: Addr,
        whole: &Whole,
        body: &'b [u8],
        lossless: bool,
        is_intact: impl FnOnce() -> bool,
    ) -> Option<Event<'b>> {
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
        let has_slot = session.live & 1 << whole.channel != 0;
        if peer.addr != from
            || !is_new
            || word.state() == State::Exec
            || (has_slot && (lossless || word.state() != State::Reply))
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
        if !lossless {
            if !is_intact() {
                return None;
            }
            peer.path.arrived(self.now, whole.ts_us, whole.ts_echo_us, self.config.target_delay_ns);
        }
        peer.heard();
        *word = Word::new(whole.seq, State::Exec);
        session.active_s = seconds(self.now);
        if !lossless && has_slot {
            // The reply before it has arrived.
            self.drop_slot(s, usize::from(whole.channel));
        }
        self.executing += 1;
        self.stats.requests += 1;
        let trace = trace_id(whole.token, whole.channel, whole.seq);
        self.probe.hit(Tracepoint::ServerReceived, trace);
        self.probe.hit(Tracepoint::ServiceStart, trace);
        let rpc = handle(whole.session, whole.channel, whole.seq);
        if !lossless {
            self.last_passed = rpc;
        }
        Some(Event::Request { rpc, payload: Payload::Borrowed(body), deadline })
    }

    /// The reply to a request in progress, if it is one.
    #[inline(always)]
    fn reply_arrived_whole<'b>(
        &mut self,
        from: Addr,
        whole: &Whole,
        body: &'b [u8],
        lossless: bool,
        is_intact: impl FnOnce() -> bool,
    ) -> Option<Event<'b>> {
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
            || (!lossless && slot.is_windowed())
        {
            return None;
        }
        if !lossless {
            if !is_intact() {
                return None;
            }
            peer.path.arrived(self.now, whole.ts_us, whole.ts_echo_us, self.config.target_delay_ns);
        }
        peer.heard();
        if slot.out.message.bytes.capacity() > BUFFER_MOST {
            slot.out.message = Message::default();
        }
        let (rpc, tag) = (RpcId(slot.id), slot.tag);
        self.slots.free(i);
        session.busy &= !(1 << whole.channel);
        if session.busy == 0 {
            self.calls.free(session.calls);
            session.calls = NONE;
        }
        if !lossless {
            self.owe_done(c, whole.channel);
        }
        self.stats.responses += 1;
        let trace = trace_id(whole.token, whole.channel, whole.seq);
        self.probe.hit(Tracepoint::ClientReceived, trace);
        self.probe.hit(Tracepoint::ClientDone, trace);
        Some(Event::Response { rpc, tag, payload: Payload::Borrowed(body) })
    }
}
