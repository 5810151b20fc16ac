//! The short way out. On a driver that loses nothing, a short message that nothing waits before goes to the driver as soon
//! as the caller lets the endpoint send: past the queues of `output`, and a reply without a slot.
//!
//! ```text
//!   request ─► slot ─► express ─┐            ┌─► sent
//!                               ├─► output ──┤
//!   reply ───────────► express ─┘            └─► the driver is full: slot and queue, as any other message
//! ```
//!
//! Always: what is here goes before everything that was queued after it, so that the order of messages to a peer does not
//! depend on the way that they take.

use arrayvec::ArrayVec;

use super::endpoint::Endpoint;
use super::session::{INDEX_BITS, INDEX_MAX, State, Word};
use super::{MAX_SLICES, Message, Slices};
use crate::datagrams::Sent;
use crate::probe::{Point, Probe};
use crate::time::US;
use crate::wire::rpc::{HEAD_MAX, Kind, Packet, TO_CLIENT, TTL};
use crate::{Addr, Datagrams, Instant};

/// The longest message that goes the short way, in bytes. Longer ones have their turns in `output`.
const SHORT: usize = 1024;
/// The most messages that wait here: with [`SHORT`] it bounds the work of a turn.
const LIMIT: usize = 64;

/// A message that goes out with the next output.
#[derive(Debug)]
pub(super) enum Express {
    /// The request in this slot.
    Call(u32),
    /// A reply.
    Reply {
        /// Name of the session, generation included.
        session: u32,
        channel: u8,
        seq: u32,
        message: Message,
    },
}

impl<P: Probe> Endpoint<P> {
    /// True if a message of `len` bytes to `peer` may go the short way.
    #[inline]
    pub(super) fn is_express(&self, peer: u32, len: usize) -> bool {
        self.lossless && len <= SHORT && self.express.len() < LIMIT && !self.peers.slab[peer].active
    }

    /// Sends what waits here.
    #[inline]
    pub(super) fn send_express<D: Datagrams>(&mut self, memory: &(impl Slices + ?Sized), driver: &mut D) {
        while let Some(next) = self.express.pop_front() {
            match next {
                Express::Call(i) => self.send_call(i, memory, driver),
                Express::Reply { session, channel, seq, message } => {
                    self.send_reply(session, channel, seq, message, memory, driver);
                }
            }
        }
    }

    #[inline]
    fn send_call<D: Datagrams>(&mut self, i: u32, memory: &(impl Slices + ?Sized), driver: &mut D) {
        let slot = &mut self.slots[i];
        slot.ready = false;
        let session = &self.clients[slot.session];
        let peer = &self.peers.slab[slot.peer];
        let mut packet = Packet::new(Kind::Data);
        packet.channel = slot.channel;
        packet.seq = slot.seq;
        packet.msg_len = slot.out.len;
        packet.session = session.server;
        packet.token = session.token;
        if slot.deadline < Instant::NEVER {
            packet.flags = TTL;
            packet.ttl_us = u32::try_from(slot.deadline.since(self.now) / US).unwrap_or(u32::MAX);
        }
        let sent = if peer.active {
            Sent::Full
        } else {
            send_whole(&packet, &slot.out.message, memory, peer.addr, driver)
        };
        match sent {
            Sent::Yes => {
                slot.out.next = slot.out.len;
                slot.out.sent = true;
                self.stats.sent += 1;
                self.call_sent(i);
            }
            Sent::Full => self.queue(i),
            // It ends with its session.
            Sent::Gone => {}
        }
    }

    #[inline]
    fn send_reply<D: Datagrams>(
        &mut self,
        name: u32,
        channel: u8,
        seq: u32,
        message: Message,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) {
        let s = name & INDEX_MAX;
        let session = &mut self.sessions[s];
        let word = &mut session.channels[usize::from(channel)];
        if u32::from(session.generation) != name >> INDEX_BITS || *word != Word::new(seq, State::Reply) {
            // The request is past.
            return self.release(message);
        }
        let peer = &self.peers.slab[session.peer];
        let mut packet = Packet::new(Kind::Data);
        packet.flags = TO_CLIENT;
        packet.channel = channel;
        packet.seq = seq;
        packet.msg_len = message.len() as u32;
        packet.session = session.client;
        packet.token = session.token;
        let sent =
            if peer.active { Sent::Full } else { send_whole(&packet, &message, memory, peer.addr, driver) };
        if sent == Sent::Full {
            return self.queue_reply(s, channel, seq, message);
        }
        *word = Word::new(seq, State::Done);
        self.stats.sent += u64::from(sent == Sent::Yes);
        self.probe.mark(Point::ServerSent, super::trace_id(packet.token, channel, seq));
        self.release(message);
    }

    /// A request that waits here is not to be sent.
    #[cold]
    pub(super) fn stop_express(&mut self, i: u32) {
        self.express.retain(|waiting| !matches!(waiting, Express::Call(other) if *other == i));
    }
}

/// Gives the driver a message of one packet.
#[inline]
fn send_whole<D: Datagrams>(
    packet: &Packet,
    message: &Message,
    memory: &(impl Slices + ?Sized),
    to: Addr,
    driver: &mut D,
) -> Sent {
    let mut head = [0; HEAD_MAX];
    let n = packet.head(&mut head);
    if message.slices.is_empty() {
        return driver.send(to, &[&head[..n], &message.bytes]);
    }
    let mut parts = ArrayVec::<&[u8], { 2 + MAX_SLICES }>::new();
    parts.push(&head[..n]);
    parts.push(&message.bytes);
    parts.extend(message.slices.iter().map(|&slice| memory.bytes(slice)));
    driver.send(to, &parts)
}
