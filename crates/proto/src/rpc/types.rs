//! The types that an RPC endpoint and its caller exchange: messages, names, errors and events.

use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::ops::Deref;

use arrayvec::ArrayVec;

use super::limits::{MAX_MESSAGE, MAX_SLICES};
use crate::Instant;

/// A piece of the caller's own memory, such as a log segment, that a message names instead of
/// copying it.
///
/// The caller keeps the memory in place and unchanged until the endpoint returns the slice by
/// [`Endpoint::released`](super::Endpoint::released).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slice {
    /// The number of the block of memory that the slice lies in; only [`Slices`] interprets it.
    pub segment: u32,
    /// The offset of the slice in the block of memory, in bytes.
    pub offset: u32,
    /// The length of the slice in bytes.
    pub len: u32,
}

impl Slice {
    /// The number of the block that the caller of a node lends to it for a turn at a time
    /// ([`Node::turn`](crate::node::Node::turn)). If nothing is lent, the machine has the bytes.
    pub const LENT: u32 = u32::MAX;
}

/// The memory that slices point into.
pub trait Slices {
    /// The bytes of `slice`, exactly `slice.len` of them.
    fn bytes(&self, slice: Slice) -> &[u8];
}

/// Without memory: for endpoints whose messages have no slices.
impl Slices for () {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

/// The length in bytes of the longest buffer that is kept for another message.
const SPARE_MOST: usize = 64 << 10;

/// A request or reply to be sent: `bytes`, then the slices in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The first part of the message.
    pub bytes: Vec<u8>,
    /// The parts of the message that follow `bytes`.
    pub slices: ArrayVec<Slice, MAX_SLICES>,
}

impl Message {
    /// The length of all parts of the message in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.slices.iter().map(|s| s.len as usize).sum::<usize>()
    }

    /// Removes all parts of the message. A buffer that is longer than a short message needs is
    /// freed.
    #[inline]
    pub(crate) fn empty(&mut self) {
        if self.bytes.capacity() > SPARE_MOST {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.slices.clear();
    }

    /// True if the message has no bytes.
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

/// A request or reply that has arrived. A message of one packet is lent from the driver's burst; a
/// message of several packets is owned.
#[derive(Debug)]
pub enum Payload<'b> {
    /// Bytes of the message that the driver lends until its next burst.
    Borrowed(&'b [u8]),
    /// Bytes of the message that the receiver owns.
    Owned(Vec<u8>),
}

impl Payload<'_> {
    /// Returns the message as a vector; copies it only if it is lent.
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

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A session that this side opened. An endpoint never uses a `SessionId` twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId(NonZeroU64);

impl SessionId {
    /// The number of low bits of a session id that hold the session's index.
    pub const PLACE_BITS: u32 = 24;
    /// Makes the id of the session at index `place`, below 2²⁴. `serial`, below 2³⁹, differs from
    /// the numbers of other sessions at the index.
    #[must_use]
    #[inline]
    pub const fn new(serial: u64, place: u32) -> Self {
        // The highest bit is always set, so `Option<SessionId>` takes no more room.
        match NonZeroU64::new(1 << 63 | serial << Self::PLACE_BITS | place as u64) {
            Some(id) => Self(id),
            None => unreachable!(),
        }
    }

    /// The session's index: a small number that is unique among open sessions and that later
    /// sessions use again.
    #[must_use]
    #[inline]
    pub const fn place(self) -> u32 {
        self.0.get() as u32 & ((1 << Self::PLACE_BITS) - 1)
    }
}

/// A request that this side sent. An endpoint never uses an `RpcId` twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RpcId(pub u64);

/// A request that arrived here and waits for its reply; see
/// [`Endpoint::reply`](super::Endpoint::reply). The endpoint ignores a `ServerRpc` whose session
/// has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServerRpc(pub u64);

/// The reason why the endpoint did not accept a request. The endpoint sent nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request's message exceeds [`MAX_MESSAGE`].
    #[error("the message has {0} bytes, the limit is {MAX_MESSAGE}")]
    TooLong(usize),
    /// The session of the request was closed or has failed: connect again.
    #[error("the session is closed")]
    Closed,
    /// The session's queue of requests is full (`Config::queue_limit`).
    #[error("too many requests wait on this session")]
    QueueFull,
}

/// The reason why a request that the endpoint had accepted failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The deadline of the request passed. If `maybe_executed`, the server may have executed the
    /// request or may still execute it.
    #[error(
        "the deadline passed{}",
        if *maybe_executed { ", and the request may have been executed" } else { "" }
    )]
    Deadline {
        /// False if no byte of the request can have reached the server's application.
        maybe_executed: bool,
    },
    /// The session failed (the server restarted, is unreachable or closed it) before the server can
    /// have executed the request: it is safe to send the request again.
    #[error("the session failed before the request was executed")]
    NotExecuted,
    /// The session failed after the request had been sent: the server executed it once or not at
    /// all.
    #[error("the session failed, and the request may have been executed")]
    MaybeExecuted,
    /// The server is overloaded and did not execute the request; it names a time to wait before the
    /// next attempt.
    #[error("the server is overloaded, try again in {retry_after_ns} ns")]
    Busy {
        /// The time in nanoseconds to wait before the next attempt of the refused request.
        retry_after_ns: u64,
    },
    /// The caller cancelled the request. The server may have executed it.
    #[error("cancelled")]
    Cancelled,
}

impl RpcError {
    /// True if the server may have executed the failed request, so that sending it again is safe
    /// only if executing it twice is safe.
    #[must_use]
    pub fn maybe_executed(self) -> bool {
        match self {
            Self::Deadline { maybe_executed } => maybe_executed,
            Self::MaybeExecuted | Self::Cancelled => true,
            Self::NotExecuted | Self::Busy { .. } => false,
        }
    }
}

/// An event that an RPC endpoint reports to its caller.
#[derive(Debug)]
pub enum Event<'b> {
    /// A complete request arrived for the first time.
    Request {
        /// The handle of the received request, by which the caller replies.
        rpc: ServerRpc,
        /// The message of the received request.
        payload: Payload<'b>,
        /// The time when its client stops waiting; [`Instant::NEVER`] if the client did not say.
        deadline: Instant,
    },
    /// The reply to a request of this side arrived.
    Response {
        /// The id of the request that the reply answers.
        rpc: RpcId,
        /// The tag that the caller gave the request.
        tag: u64,
        /// The message of the reply.
        payload: Payload<'b>,
    },
    /// A request of this side failed.
    Failed {
        /// The id of the failed request.
        rpc: RpcId,
        /// The tag that the caller gave the failed request.
        tag: u64,
        /// The cause why the request failed.
        error: RpcError,
    },
    /// A session of this side ended; earlier events have reported the failure of its requests.
    /// Connect again.
    Closed {
        /// The session that ended.
        session: SessionId,
        /// The cause why the session ended.
        reason: CloseReason,
    },
}

/// The reason why a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side's caller closed the session.
    Local,
    /// The server closed the session or does not know it because the server restarted.
    Reset,
    /// The server answered neither several probes nor the attempts to open the session.
    Unreachable,
    /// The driver reported that the session's peer is gone.
    PeerGone,
    /// The server speaks no version of the protocol that this side speaks.
    Version,
}

/// The number under which both sides trace an RPC.
#[inline]
pub(super) const fn trace_id(token: u64, channel: u8, seq: u32) -> u64 {
    token ^ ((seq as u64) << 3 | channel as u64)
}
