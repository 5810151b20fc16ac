//! What a session is while nothing happens on it: 64 bytes, a cache line, at either side. Whatever
//! an RPC needs while it is under way lives in a [slot](super::slot).
//!
//! Always: a server session's channel word moves forward only, so a request number is accepted at
//! most once.

use super::limits::CHANNELS;
use super::slab::NONE;
use super::types::SessionId;
use crate::Instant;
use crate::time::MS;
use crate::wire::rpc::{SEQ_BITS, SEQ_MAX};

/// Bits of a slab index in a session's name on the wire; the generation is above.
pub(super) const INDEX_BITS: u32 = SessionId::PLACE_BITS;
/// The largest slab index.
pub(super) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;

/// How far `seq` is ahead of `base`, modulo 2²⁹.
#[inline]
pub(super) const fn ahead(seq: u32, base: u32) -> u32 {
    seq.wrapping_sub(base) & SEQ_MAX
}

/// Numbers less far ahead than this are new; the others are past.
pub(super) const HALF: u32 = 1 << (SEQ_BITS - 1);

/// Where the server is with the last request of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum State {
    /// There was none, or it was refused and will never be executed.
    Empty = 0,
    /// Some packets are here; a slot holds them.
    Recv = 1,
    /// The application has it.
    Exec = 2,
    /// A slot holds the reply.
    Reply = 3,
    /// The reply is acknowledged, or no longer kept.
    Done = 4,
}

/// A channel at the server: the last request's number and state in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ServerChannel(u32);

impl ServerChannel {
    pub(super) const fn new(seq: u32, state: State) -> Self {
        Self(seq << 3 | state as u32)
    }

    #[inline]
    pub(super) const fn seq(self) -> u32 {
        self.0 >> 3
    }

    #[inline]
    pub(super) const fn state(self) -> State {
        match self.0 & 7 {
            0 => State::Empty,
            1 => State::Recv,
            2 => State::Exec,
            3 => State::Reply,
            _ => State::Done,
        }
    }
}

/// A session at its server.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct ServerSession {
    /// The secret both sides know.
    pub(super) token: u64,
    pub(super) channels: [ServerChannel; CHANNELS],
    pub(super) peer: u32,
    /// The client's name for it.
    pub(super) client: u32,
    /// Where the slots of the channels are, while any has one.
    pub(super) block: u32,
    /// Payload bytes of a full packet.
    pub(super) mss: u16,
    /// When something last arrived: seconds, modulo 2¹⁶.
    pub(super) active_s: u16,
    pub(super) generation: u8,
    pub(super) open: bool,
    /// Which channels have a slot in the block.
    pub(super) live: u8,
}

const _: () = assert!(size_of::<ServerSession>() == 64);

impl ServerSession {
    pub(super) const fn fresh() -> Self {
        Self {
            token: 0,
            channels: [ServerChannel::new(0, State::Empty); CHANNELS],
            peer: NONE,
            client: 0,
            block: NONE,
            mss: 0,
            active_s: 0,
            generation: 0,
            open: false,
            live: 0,
        }
    }

    /// Its name on the wire and in handles.
    pub(super) const fn name(&self, index: u32) -> u32 {
        index | (self.generation as u32) << INDEX_BITS
    }
}

/// How far a client's session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nobody has it.
    Free,
    /// Waits for its turn to be opened, or for an answer to its OPEN.
    Opening,
    /// Requests flow.
    Open,
}

/// A session at its client.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct ClientSession {
    /// The secret both sides know; while opening, the nonce.
    pub(super) token: u64,
    /// The last request's number, by channel.
    pub(super) seqs: [u32; CHANNELS],
    /// The server's name for it; while opening, the number of the OPEN.
    pub(super) server: u32,
    pub(super) peer: u32,
    /// Tells apart the sessions that had this index; its low 8 bits are the generation on the wire.
    pub(super) epoch: u32,
    /// Where its [`Calls`] are, while it has any.
    pub(super) calls: u32,
    /// When it was last used, or its OPEN last sent: milliseconds, modulo 2¹⁶.
    pub(super) active_ms: u16,
    pub(super) phase: Phase,
    /// Channels with a request in progress.
    pub(super) busy: u8,
    /// Channels whose last reply the server may still keep for us.
    pub(super) unacked: u8,
    /// True while the endpoint's idle list has it.
    pub(super) listed: bool,
    /// OPENs sent.
    pub(super) tries: u8,
}

const _: () = assert!(size_of::<ClientSession>() == 64);

/// The requests of a client's session: what it needs only while it has some.
#[derive(Debug)]
pub(super) struct Calls {
    /// The slot of the request in progress, by channel.
    pub(super) slots: [u32; CHANNELS],
    /// Requests waiting for a channel, linked through their slots.
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) queued: u32,
}

impl Calls {
    pub(super) const fn none() -> Self {
        Self { slots: [NONE; CHANNELS], head: NONE, tail: NONE, queued: 0 }
    }
}

impl ClientSession {
    pub(super) const fn fresh() -> Self {
        Self {
            token: 0,
            seqs: [0; CHANNELS],
            server: 0,
            peer: NONE,
            epoch: 0,
            calls: NONE,
            active_ms: 0,
            phase: Phase::Free,
            busy: 0,
            unacked: 0,
            listed: false,
            tries: 0,
        }
    }

    /// Notes that it is used now.
    pub(super) fn touch(&mut self, now: Instant) {
        self.active_ms = (now.as_ns() / MS) as u16;
    }

    /// How long ago it was used, to a millisecond, modulo a minute.
    pub(super) fn idle_ns(&self, now: Instant) -> u64 {
        u64::from(((now.as_ns() / MS) as u16).wrapping_sub(self.active_ms)) * MS
    }

    /// Its name on the wire.
    pub(super) const fn name(&self, index: u32) -> u32 {
        index | self.epoch << INDEX_BITS
    }

    /// The caller's name for it.
    #[inline]
    pub(super) const fn id(&self, index: u32) -> SessionId {
        SessionId::new(self.epoch as u64, index)
    }
}
