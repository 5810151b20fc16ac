//! The RPC transport: requests and replies of up to 16 MiB, at most once, over any [`Datagrams`](crate::Datagrams)
//! ([`Endpoint`]), over a reliable byte stream ([`stream`]), or over the Sends and Reads of a queue pair ([`notes`]).
//!
//! A *session* joins a client to a server and has eight *channels*; a channel carries one RPC at a time, and the next
//! request on it acknowledges the last reply. The client drives: it alone has timers, it probes when an answer is
//! overdue, and the server keeps no timer per session or RPC. Receivers grant the packets of long messages, shortest
//! remaining first, and ask for lost ones by bitmap.
//!
//! At most once is what the transport promises, within the life of both processes: a request runs once or not at all,
//! and if the client cannot know which, it says [`RpcError::MaybeExecuted`]. Exactly once across crashes is the store's
//! business (RIFL).

use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::ops::Deref;

use arrayvec::ArrayVec;

use crate::Instant;

pub mod budget;
pub mod endpoint;
pub mod notes;
pub mod stream;

mod client;

mod express;

mod shared;

mod peer;
mod server;
mod session;
mod slab;
mod slot;
mod stats;

mod wheel;

#[cfg(test)]
mod tests;

pub use endpoint::{Config, Endpoint};
pub use stats::Stats;

/// Channels of a session: RPCs that it can have in progress. Further requests wait in the session's queue.
pub const CHANNELS: usize = 8;
/// The longest request or reply, in bytes.
pub const MAX_MESSAGE: usize = 16 << 20;
/// The most slices in one message.
pub const MAX_SLICES: usize = 3;

/// A piece of the caller's own memory (of a log segment, say), named rather than copied.
///
/// Whoever hands one in keeps the memory unchanged and in place until the endpoint gives the slice back by
/// [`Endpoint::released`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slice {
    /// Which block of memory; means something to the [`Slices`] only.
    pub segment: u32,
    /// Where in it, in bytes.
    pub offset: u32,
    /// How long, in bytes.
    pub len: u32,
}

/// The memory that slices point into.
pub trait Slices {
    /// The bytes of `slice`, exactly `slice.len` of them.
    fn bytes(&self, slice: Slice) -> &[u8];
}

/// No memory: for endpoints whose messages have no slices.
impl Slices for () {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

/// A request or reply on its way out: `bytes`, then the slices in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What comes first.
    pub bytes: Vec<u8>,
    /// What follows.
    pub slices: ArrayVec<Slice, MAX_SLICES>,
}

impl Message {
    /// The whole length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.slices.iter().map(|s| s.len as usize).sum::<usize>()
    }

    /// True if it has no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, slices: ArrayVec::new() }
    }
}

impl From<&[u8]> for Message {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

/// A request or reply as it arrived: lent from the driver's burst if one packet held it all, owned if it was put
/// together from several.
#[derive(Debug)]
pub enum Payload<'b> {
    /// Valid until the driver's next burst.
    Borrowed(&'b [u8]),
    /// The receiver's own.
    Owned(Vec<u8>),
}

impl Payload<'_> {
    /// The bytes to keep; copies only what was lent.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Borrowed(bytes) => bytes.to_vec(),
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A session that this side opened. Never used again for another one while the endpoint lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId(NonZeroU64);

impl SessionId {
    /// How many of its low bits are the place.
    pub const PLACE_BITS: u32 = 24;
    /// The session at `place`, below 2²⁴, that `serial`, below 2³⁹, tells apart from others there.
    #[must_use]
    #[inline]
    pub const fn new(serial: u64, place: u32) -> Self {
        // The highest bit is always set, so that no session at all takes no more room than one.
        match NonZeroU64::new(1 << 63 | serial << Self::PLACE_BITS | place as u64) {
            Some(id) => Self(id),
            None => unreachable!(),
        }
    }

    /// Its place: a small number that no other session has while this one is open, and later ones have again.
    #[must_use]
    #[inline]
    pub const fn place(self) -> u32 {
        self.0.get() as u32 & ((1 << Self::PLACE_BITS) - 1)
    }
}

/// A request that this side sent. Never used again for another one while the endpoint lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RpcId(pub u64);

/// A request that arrived here and waits for its reply: hand it back with [`Endpoint::reply`], now or later. A stale one
/// (the session is gone) is ignored there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServerRpc(pub u64);

/// Why a request could not be taken. Nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The message exceeds [`MAX_MESSAGE`].
    #[error("the message has {0} bytes, the limit is {MAX_MESSAGE}")]
    TooLong(usize),
    /// The session was closed or has failed: connect again.
    #[error("the session is closed")]
    Closed,
    /// The session's queue is full (`Config::queue_limit`).
    #[error("too many requests wait on this session")]
    QueueFull,
}

/// How a request that was taken failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The deadline passed. If `maybe_executed`, the server may have executed the request or may do so yet.
    #[error("the deadline passed{}", if *maybe_executed { ", and the request may have been executed" } else { "" })]
    Deadline {
        /// False if no byte of the request can have reached the server's application.
        maybe_executed: bool,
    },
    /// The session failed (server restarted, unreachable or closed it) before the request can have been executed: it is
    /// safe to send it again.
    #[error("the session failed before the request was executed")]
    NotExecuted,
    /// The session failed after the request had been sent: the server executed it once or not at all.
    #[error("the session failed, and the request may have been executed")]
    MaybeExecuted,
    /// The server has too much to do and did not execute the request; it names a time to wait.
    #[error("the server is overloaded, try again in {retry_after_ns} ns")]
    Busy {
        /// How long to wait, in nanoseconds.
        retry_after_ns: u64,
    },
    /// The caller cancelled it. It may have been executed.
    #[error("cancelled")]
    Cancelled,
}

impl RpcError {
    /// True if the request may have been executed, so that sending it again is safe only if executing it twice is.
    #[must_use]
    pub fn maybe_executed(self) -> bool {
        match self {
            Self::Deadline { maybe_executed } => maybe_executed,
            Self::MaybeExecuted | Self::Cancelled => true,
            Self::NotExecuted | Self::Busy { .. } => false,
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event<'b> {
    /// A request arrived, whole and for the first time.
    Request {
        /// What to hand back with the reply.
        rpc: ServerRpc,
        /// The request.
        payload: Payload<'b>,
        /// When its client stops waiting; [`Instant::NEVER`] if it did not say.
        deadline: Instant,
    },
    /// The reply to a request of ours arrived.
    Response {
        /// The request.
        rpc: RpcId,
        /// The number that the caller gave it.
        tag: u64,
        /// The reply.
        payload: Payload<'b>,
    },
    /// A request of ours failed.
    Failed {
        /// The request.
        rpc: RpcId,
        /// The number that the caller gave it.
        tag: u64,
        /// Why.
        error: RpcError,
    },
    /// A session of ours is gone; all its requests have failed by events before this one. Connect again.
    Closed {
        /// The session.
        session: SessionId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The server closed it or does not know it any more (it restarted).
    Reset,
    /// No answer to several probes, or to the attempts to open it.
    Unreachable,
    /// The driver says that the peer is gone.
    PeerGone,
    /// The server speaks no version that we do.
    Version,
}

/// The number under which both sides of an RPC mark its points.
const fn trace_id(token: u64, channel: u8, seq: u32) -> u64 {
    token ^ ((seq as u64) << 3 | channel as u64)
}
