//! A slot: the state of one RPC on this side while it is in progress. It has the message that is
//! being sent, the message that is being received, and the caller's tag and deadline at the client.
//!
//! Always: a slot that was freed last is used first. Not here: what a slot's state means to a
//! session; see `client` and `server`.

use alloc::boxed::Box;
use core::ops::{Index, IndexMut};

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::slab::{NONE, Slab};
use crate::Instant;
use crate::time::US;
use crate::wire::rpc::{Kind, Packet, TO_CLIENT, TTL};

/// The length in bytes of the longest buffer that a free slot keeps for the next message.
pub(super) const BUFFER_MAX: usize = 512;

/// The greatest number of packets of a message that does not count against the window of a path.
const WINDOWED_PACKETS: u32 = 16;
/// The greatest length in bytes of a message that does not count against the window of a path,
/// however large its packets are. 16 packets of 64 KB are more than a receiver's socket has room
/// for.
const WINDOWED_BYTES: u32 = 128 << 10;

/// The use of a slot: the phase of its RPC at the client or the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// The slot has no RPC: it is free.
    Free,
    /// Client: the slot has a request that waits for a channel.
    Queued,
    /// Client: the slot has a request in progress.
    Call,
    /// Client: the slot has a request that the server refused and that waits for its next attempt.
    Backoff,
    /// Server: the slot has a request of which some packets have arrived.
    Recv,
    /// Server: the slot has a reply that waits to be sent or is retained.
    Reply,
}

/// The state of one RPC in progress.
#[derive(Debug)]
pub(super) struct Slot {
    /// The slot's index (24 bits) and, above it, a number that grows with each use: a request's
    /// [`RpcId`](super::RpcId).
    pub(super) id: u64,
    pub(super) out: Outgoing,
    pub(super) incoming: Option<Box<Incoming>>,
    /// Client: the tag that the caller gave the request.
    pub(super) tag: u64,
    pub(super) deadline: Instant,
    /// The time when a packet of this RPC was last sent or received.
    pub(super) progress: Instant,
    /// Client: the time when the timing wheel fires for this slot, or [`Instant::NEVER`]. The value
    /// outlives the use of the slot.
    pub(super) armed: Instant,
    /// The token of the RPC's session.
    pub(super) token: u64,
    /// The number of the slot's entry in a transmit queue. It is valid while `ready` is true.
    pub(super) ticket: u64,
    /// Client: the index of the RPC's session. Server: the session's name, generation included.
    pub(super) session: u32,
    /// The name of the RPC's session at the peer.
    pub(super) remote: u32,
    pub(super) peer: u32,
    pub(super) seq: u32,
    /// The next and the previous slot in the list that holds the slot: the session's queue, or the
    /// retained replies.
    pub(super) next: u32,
    pub(super) prev: u32,
    /// The number of payload bytes in a full packet of the RPC.
    pub(super) mss: u16,
    pub(super) role: Role,
    pub(super) channel: u8,
    /// The number of probes about the RPC since the last packet from the server.
    pub(super) tries: u8,
    /// The number of times that the server has refused the request.
    pub(super) refusals: u8,
    /// True while the peer's transmit queue holds the slot.
    pub(super) ready: bool,
    /// Client: the driver took every byte of the request under its present number, so the server
    /// may have executed it. Server: the client was asked to acknowledge the reply.
    pub(super) exposed: bool,
    /// True if the server said that it executes the client's request.
    pub(super) executing: bool,
    /// True if the server's list of retained replies holds the slot.
    pub(super) retained: bool,
}

const ID_BITS: u32 = 24;
const ID_MASK: u64 = (1 << ID_BITS) - 1;

impl Slot {
    fn fresh(index: u32) -> Self {
        Self {
            id: u64::from(index),
            out: Outgoing::default(),
            incoming: None,
            tag: 0,
            deadline: Instant::NEVER,
            progress: Instant::ZERO,
            armed: Instant::NEVER,
            token: 0,
            ticket: 0,
            session: NONE,
            remote: 0,
            peer: NONE,
            seq: 0,
            next: NONE,
            prev: NONE,
            mss: 0,
            role: Role::Free,
            channel: 0,
            tries: 0,
            refusals: 0,
            ready: false,
            exposed: false,
            executing: false,
            retained: false,
        }
    }

    /// True if the slot's outgoing message counts against the path's window. The receiver
    /// acknowledges such a message by itself.
    #[inline]
    pub(super) fn is_windowed(&self) -> bool {
        is_windowed(self.out.len, self.mss)
    }

    /// The number of bytes of the slot's outgoing message that count against the path's window.
    pub(super) fn window_bytes(&self) -> u32 {
        if self.is_windowed() { self.out.in_flight() } else { 0 }
    }

    /// Makes a packet of `kind` to the peer of this RPC.
    #[inline(always)]
    pub(super) fn packet(&self, kind: Kind) -> Packet {
        let mut packet = Packet::new(kind);
        packet.channel = self.channel;
        packet.session = self.remote;
        packet.seq = self.seq;
        packet.token = self.token;
        if matches!(self.role, Role::Recv | Role::Reply) {
            packet.flags = TO_CLIENT;
        }
        packet
    }

    /// Makes the header of the DATA packets of this slot's outgoing message. A request carries the
    /// time that is left until its deadline.
    #[inline(always)]
    pub(super) fn data_packet(&self, now: Instant) -> Packet {
        let mut packet = self.packet(Kind::Data);
        packet.msg_len = self.out.len;
        if self.role == Role::Call && self.deadline < Instant::NEVER {
            packet.flags |= TTL;
            let left_us = self.deadline.since(now) / US;
            packet.ttl_us = u32::try_from(left_us).unwrap_or(u32::MAX);
        }
        packet
    }

    /// The number under which both sides trace this RPC.
    #[inline]
    pub(super) const fn trace(&self) -> u64 {
        super::types::trace_id(self.token, self.channel, self.seq)
    }
}

/// True if a message of `len` bytes in packets of `mss` counts against the path's window.
#[inline]
pub(super) fn is_windowed(len: u32, mss: u16) -> bool {
    len > (WINDOWED_PACKETS * u32::from(mss)).min(WINDOWED_BYTES)
}

/// The table of all slots, each of which has an RPC.
#[derive(Debug)]
pub(super) struct Slots(Slab<Slot>);

impl Slots {
    pub(super) const fn new() -> Self {
        Self(Slab::new())
    }

    /// The number of slots ever used. All their indexes are below it.
    pub(super) const fn len(&self) -> u32 {
        self.0.len()
    }

    #[cfg(test)]
    pub(super) const fn used(&self) -> usize {
        self.0.used()
    }

    /// Allocates a slot with a role and a new id; `None` when 2²⁴ slots are in use. Fields that the
    /// role needs and that are not set here keep the values of the last use.
    #[inline]
    pub(super) fn alloc(&mut self, role: Role) -> Option<(u32, &mut Slot)> {
        let i = match self.0.take_free() {
            Some(i) => i,
            None if u64::from(self.0.len()) > ID_MASK => return None,
            None => self.0.alloc(Slot::fresh),
        };
        let slot = &mut self.0[i];
        slot.id += 1 << ID_BITS;
        slot.role = role;
        slot.tries = 0;
        slot.refusals = 0;
        slot.exposed = false;
        slot.executing = false;
        slot.deadline = Instant::NEVER;
        Some((i, slot))
    }

    /// Frees a slot. A slot whose ids are used up is never used again.
    #[inline]
    pub(super) fn free(&mut self, i: u32) {
        let slot = &mut self.0[i];
        debug_assert!(slot.role != Role::Free && !slot.ready && !slot.retained);
        slot.role = Role::Free;
        if slot.id >> ID_BITS < (1 << (64 - ID_BITS)) - 1 {
            self.0.free(i);
        }
    }

    /// The index of the slot with this id, if the id is its present one.
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        let i = (id & ID_MASK) as u32;
        self.0.get(i).filter(|s| s.id == id && s.role != Role::Free).map(|_| i)
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, i: u32) -> &Slot {
        &self.0[i]
    }
}

impl IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut Slot {
        &mut self.0[i]
    }
}
