//! The part of a session that exists while it is idle: 64 bytes, a cache line, at either side. The
//! state of an RPC in progress lives in a [slot](super::slot).
//!
//! Always holds: a server session's channel word moves forward only, so a request number is
//! accepted at most once; [`ServerChannel::forget`] says what an idempotent request may do.

use super::limits::CHANNELS;
use super::slab::NONE;
use super::types::SessionId;
use crate::Instant;
use crate::time::MS;
use crate::wire::rpc::{SEQ_BITS, SEQ_MAX};

/// The number of bits of a slab index in a session's name on the wire; the generation is above.
pub(super) const INDEX_BITS: u32 = SessionId::PLACE_BITS;
/// The largest slab index of a session.
pub(super) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;

/// The distance by which `seq` is ahead of `base`, modulo 2²⁹.
#[inline]
pub(super) const fn ahead(seq: u32, base: u32) -> u32 {
    seq.wrapping_sub(base) & SEQ_MAX
}

/// Sequence numbers less far ahead than this are new; the others are past.
pub(super) const HALF: u32 = 1 << (SEQ_BITS - 1);

/// The progress of the last request of a session's channel at its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum State {
    /// The channel had no request, or its last one was refused and will never be executed.
    Empty = 0,
    /// Some packets of the request have arrived; a slot has them.
    Recv = 1,
    /// The application executes the request.
    Exec = 2,
    /// The reply is sent, and a slot retains it.
    Reply = 3,
    /// The reply is acknowledged, or no longer retained.
    Done = 4,
    /// The request is idempotent, and its reply is sent and not retained. A client that asks for
    /// the reply sends the request again.
    Answered = 5,
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
            4 => State::Done,
            _ => State::Answered,
        }
    }

    /// The channel as it was before its last request, which is in the state [`State::Answered`]:
    /// the request before that is over, and the last one is new if it arrives again. This is the
    /// only step back of a channel.
    pub(super) const fn forget(self) -> Self {
        Self::new(self.seq().wrapping_sub(1) & SEQ_MAX, State::Done)
    }
}

/// A session at its server.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct ServerSession {
    /// The secret token of the session, which both sides know.
    pub(super) token: u64,
    pub(super) channels: [ServerChannel; CHANNELS],
    pub(super) peer: u32,
    /// The name that the client gave the session.
    pub(super) client: u32,
    /// The index of the block with the channels' slots, while a channel has one.
    pub(super) block: u32,
    /// The number of payload bytes in a full packet of the session.
    pub(super) mss: u16,
    /// The time when a packet of the session last arrived, in seconds modulo 2¹⁶.
    pub(super) active_s: u16,
    pub(super) generation: u8,
    pub(super) open: bool,
    /// A bit for each channel of the session that has a slot in the block.
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

    /// The session's name on the wire and in handles.
    pub(super) const fn name(&self, index: u32) -> u32 {
        index | (self.generation as u32) << INDEX_BITS
    }
}

/// The phase in the life of a client's session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The entry in the client's table is free for a new session.
    Free,
    /// The session waits for its turn to be opened, or for the answer to its OPEN.
    Opening,
    /// The session is open and carries requests.
    Open,
}

/// A session at its client.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct ClientSession {
    /// The secret token of the session, which both sides know; while the session opens, its nonce.
    pub(super) token: u64,
    /// The sequence number of each channel's last request.
    pub(super) seqs: [u32; CHANNELS],
    /// The server's name for the session; while it opens, the number of the OPEN.
    pub(super) server: u32,
    pub(super) peer: u32,
    /// A number that differs between the sessions that had this index. Its low 8 bits are the
    /// session's generation on the wire.
    pub(super) epoch: u32,
    /// The index of the session's [`Calls`], while it has requests.
    pub(super) calls: u32,
    /// The time when the session was last used, or its OPEN last sent, in milliseconds modulo 2¹⁶.
    pub(super) active_ms: u16,
    pub(super) phase: Phase,
    /// A bit for each channel with a request in progress.
    pub(super) busy: u8,
    /// A bit for each channel whose last reply the server may still retain.
    pub(super) unacked: u8,
    /// True while the client's list of idle sessions has the session.
    pub(super) listed: bool,
    /// The number of OPENs that the client sent for the session.
    pub(super) tries: u8,
}

const _: () = assert!(size_of::<ClientSession>() == 64);

/// The requests of a client's session. The session has this block only while it has requests.
#[derive(Debug)]
pub(super) struct Calls {
    /// The slot of the request in progress on each channel.
    pub(super) slots: [u32; CHANNELS],
    /// The first request of the session that waits for a channel. The others follow through their
    /// slots.
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

    /// Records that the client's session is used now.
    pub(super) fn mark_active(&mut self, now: Instant) {
        self.active_ms = (now.as_ns() / MS) as u16;
    }

    /// The time in nanoseconds since the session was last used, to a millisecond, modulo a minute.
    pub(super) fn idle_ns(&self, now: Instant) -> u64 {
        u64::from(((now.as_ns() / MS) as u16).wrapping_sub(self.active_ms)) * MS
    }

    /// The client session's name on the wire.
    pub(super) const fn name(&self, index: u32) -> u32 {
        index | self.epoch << INDEX_BITS
    }

    /// The id by which the caller names the session.
    #[inline]
    pub(super) const fn id(&self, index: u32) -> SessionId {
        SessionId::new(self.epoch as u64, index)
    }
}
