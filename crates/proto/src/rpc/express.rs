//! The short way out. On a driver that loses nothing, a short message that nothing waits before goes from the caller's hand
//! into the driver: past the queues of `output`, and a reply without a slot.
//!
//! ```text
//!   request ─► slot ─┐  nothing waits, one packet, no slices   ┌─► driver
//!                    ├─────────────────────────────────────────┤  full
//!   reply ───────────┘  else                                   └─► slot, queue ─► output
//! ```
//!
//! Always: messages to one peer leave in the order in which they were handed in, whichever way they take. Not here: lossy
//! drivers, whose replies are kept and whose packets go out many at a time.

use super::endpoint::Endpoint;
use super::session::{State, Word};
use super::{Message, RequestError, RpcId, ServerRpc, SessionId};
use crate::datagrams::Sent;
use crate::probe::{Point, Probe};
use crate::wire::rpc::{HEAD_MAX, Kind, Packet, TO_CLIENT};
use crate::{Addr, Datagrams, Instant};

/// The longest message that goes the short way, in bytes. Longer ones have their turns in `output`, so that nobody waits
/// behind a burst of them.
const SHORT: usize = 4096;

impl<P: Probe> Endpoint<P> {
    /// As [`Endpoint::request`], and if it can, the request goes out before this returns.
    ///
    /// # Errors
    /// As [`Endpoint::request`].
    #[inline]
    pub fn request_over<D: Datagrams>(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: Message,
        deadline: Instant,
        driver: &mut D,
    ) -> Result<RpcId, RequestError> {
        self.now = now;
        self.know(driver);
        let (rpc, begun) = self.call(session, tag, message, deadline)?;
        if let Some(i) = begun
            && !self.call_at_once(i, driver)
        {
            self.make_ready(i);
        }
        Ok(rpc)
    }

    /// As [`Endpoint::reply`], and if it can, the reply goes out before this returns.
    ///
    /// # Panics
    /// As [`Endpoint::reply`].
    #[inline]
    pub fn reply_over<D: Datagrams>(
        &mut self,
        now: Instant,
        rpc: ServerRpc,
        message: Message,
        driver: &mut D,
    ) {
        self.now = now;
        self.know(driver);
        let Some((s, channel, seq)) = self.answered(rpc, &message) else {
            return self.release(message);
        };
        if !self.reply_at_once(s, channel, seq, &message, driver) {
            self.queue_reply(s, channel, seq, message);
        }
    }

    /// Gives the driver the request in this slot, if it may go the short way and the driver takes it.
    #[inline]
    fn call_at_once<D: Datagrams>(&mut self, i: u32, driver: &mut D) -> bool {
        let slot = &self.slots[i];
        let peer = &self.peers.slab[slot.peer];
        if !self.lossless || peer.active || !is_short(&slot.out.message, slot.mss) {
            return false;
        }
        let Some(packet) = self.packet_of(i) else { return false };
        if send(peer.addr, &packet, &slot.out.message, driver) != Sent::Yes {
            return false;
        }
        let out = &mut self.slots[i].out;
        out.next = out.len;
        out.sent = true;
        self.stats.sent += 1;
        self.call_sent(i);
        true
    }

    /// The same for the reply to a request.
    #[inline]
    fn reply_at_once<D: Datagrams>(
        &mut self,
        s: u32,
        channel: u8,
        seq: u32,
        message: &Message,
        driver: &mut D,
    ) -> bool {
        let session = &mut self.sessions[s];
        let peer = &self.peers.slab[session.peer];
        if !self.lossless || peer.active || !is_short(message, session.mss) {
            return false;
        }
        let mut packet = Packet::new(Kind::Data);
        packet.flags = TO_CLIENT;
        packet.channel = channel;
        packet.seq = seq;
        packet.msg_len = message.len() as u32;
        packet.session = session.client;
        packet.token = session.token;
        if send(peer.addr, &packet, message, driver) != Sent::Yes {
            return false;
        }
        session.channels[usize::from(channel)] = Word::new(seq, State::Done);
        self.stats.sent += 1;
        self.probe.mark(Point::ServerSent, super::trace_id(packet.token, channel, seq));
        true
    }
}

/// True if a message is one packet, and all of it is here.
#[inline]
fn is_short(message: &Message, mss: u16) -> bool {
    message.slices.is_empty() && message.bytes.len() <= SHORT.min(usize::from(mss))
}

/// Gives the driver a message of one packet.
#[inline]
fn send<D: Datagrams>(to: Addr, packet: &Packet, message: &Message, driver: &mut D) -> Sent {
    let mut head = [0; HEAD_MAX];
    let n = packet.head(&mut head);
    let sent = driver.send(to, &[&head[..n], &message.bytes]);
    driver.flush();
    sent
}
