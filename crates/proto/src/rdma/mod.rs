//! Software iWARP: verbs over RDMAP (RFC 5040, 7306) over DDP (RFC 5041) over MPA (RFC 5044, 6581) over any reliable stream.
//!
//! ```text
//!  post_send ─► send queue ─► DDP segments ─► FPDUs ─► output ─► stream ─► input ─► FPDUs ─► checks ─► placement ─► completion
//! ```
//!
//! One [`Rnic`] owns everything: protection domains, regions, completion queues, queue pairs, connections. It is one state
//! machine with the five verbs of this crate, driven by one thread at a time. The stream below is the caller's: a kernel
//! socket, which takes any octets, or a stream of records, which promises to send what one [`Rnic::output`] appended as one
//! segment of its own ("loose" and "tight" coupling of MPA and TCP). The engine does not care which.
//!
//! Registered memory is the caller's as well, and others write it at any time: it is reached by copies only, through
//! [`Memory`], after an STag was checked.
//!
//! What always holds:
//! - An octet is placed only after the FPDU's CRC (if there is one), STag, rights and bounds were checked, and never after
//!   the STag was revoked.
//! - Work requests complete in the order posted, each exactly once; when a queue pair fails, what is left completes as
//!   flushed.
//! - The first error of a stream is answered by a Terminate, and nothing follows it.
//!
//! Not here: sockets, threads, addresses, the C interface.

pub mod cq;
pub mod iwarp;
pub mod mr;
mod options;
mod qp;
mod rnic;
mod table;
#[cfg(test)]
mod tests;
mod work;

pub use options::{
    AcceptOptions, Config, ConnectOptions, End, Event, Limits, QpOptions, QpState, Why,
};
pub use rnic::Rnic;
pub use rnic::poll::Polled;

use alloc::vec::Vec;
use core::ops::Range;

use arrayvec::ArrayVec;

use crate::Instant;

/// Most scatter/gather elements of one work request.
pub const MAX_SGE: usize = 8;
/// Most octets of inline data.
pub const MAX_INLINE: usize = 256;
/// Most Reads and Atomics outstanding in one direction of a queue pair.
pub const MAX_READ_DEPTH: u16 = 128;

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pd(pub u32);
/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cq(pub u32);
/// A shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Srq(pub u32);
/// A queue pair (reliable connected, the only kind iWARP has). Its number is what programs know as `qp_num`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Qp(pub u32);
/// One stream (a TCP connection), from before its MPA start-up until its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conn(pub u32);

/// A steering tag: names a region or a window on the wire, local and remote key in one (RFC 5041 section 1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Stag(pub u32);

/// What may be done with a region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Receives and the answers to Reads may be placed here.
    pub local_write: bool,
    /// A peer may write.
    pub remote_write: bool,
    /// A peer may read.
    pub remote_read: bool,
    /// A peer may do atomics.
    pub remote_atomic: bool,
    /// Windows may be bound to it.
    pub bind: bool,
}

/// Octets of registered memory, after all checks: `offset` counts from the start of the caller's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The caller's own name for the region, as given at registration.
    pub region: u64,
    /// Where in it.
    pub offset: u64,
    /// How many octets.
    pub len: u32,
}

/// The memory is not there (any more): the caller unmapped it under a registration that still stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped;

/// Registered memory, reached by copies. The engine has checked every span against its registration.
pub trait Memory {
    /// Copies `bytes` to the start of `span`, which is as long.
    ///
    /// # Errors
    /// [`Unmapped`]; some octets may have been written.
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped>;

    /// Copies `span` into `bytes`, which is as long.
    ///
    /// # Errors
    /// [`Unmapped`].
    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped>;

    /// Appends a copy of `span` to `bytes`.
    ///
    /// # Errors
    /// [`Unmapped`]; some octets may have been appended.
    fn append(&mut self, span: Span, bytes: &mut Vec<u8>) -> Result<(), Unmapped> {
        let start = bytes.len();
        bytes.resize(start + span.len as usize, 0);
        self.read(span, &mut bytes[start..])
    }

    /// Replaces the aligned 64-bit word at `span` (8 octets, host byte order) by what `change` makes of it, as one step
    /// for all who use this memory through the engine; returns what was there.
    ///
    /// # Errors
    /// [`Unmapped`].
    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped>;
}

/// Part of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// These of [`Record::bytes`].
    Bytes(Range<usize>),
    /// Octets of registered memory, sent from where they lie (only without CRC and markers).
    Memory(Span),
}

/// What goes onto a stream, in order: the caller sends the parts as they stand (an `iovec`) and reports by [`Rnic::sent`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Headers, trailers, and whatever had to be copied.
    pub bytes: Vec<u8>,
    /// What to send.
    pub parts: Vec<Part>,
    /// The last part asks the peer, which can answer while more is framed: send the record as it is (TCP's PSH).
    pub push: bool,
}

impl Record {
    /// How many octets it is on the stream.
    #[must_use]
    pub fn len(&self) -> usize {
        let len = |part: &Part| match part {
            Part::Bytes(range) => range.len(),
            Part::Memory(span) => span.len as usize,
        };
        self.parts.iter().map(len).sum()
    }

    /// True if there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Empties it, its memory kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.push = false;
    }
}

/// One element of a scatter/gather list: `len` octets at address `addr` of the region `stag`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// The region.
    pub stag: Stag,
    /// The address, as the region's registration counts (its `base` is the first octet's).
    pub addr: u64,
    /// Octets.
    pub len: u32,
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// The peer's tag.
    pub stag: Stag,
    /// The tagged offset: an address as the peer counts.
    pub addr: u64,
}

/// What a work request of the send queue does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Sends to the peer's next receive.
    Send,
    /// The same, and the peer's tag is invalid afterwards.
    SendInvalidate(Stag),
    /// Writes into the peer's memory.
    Write(Remote),
    /// The same, then 8 octets of immediate data, which take the peer's next receive (RFC 7306).
    WriteImmediate(Remote, u64),
    /// 8 octets of immediate data alone, which take the peer's next receive (RFC 7306).
    Immediate(u64),
    /// Reads the peer's memory into the list's one element.
    Read(Remote),
    /// The same, and the sink's own tag is invalid afterwards.
    ReadInvalidate(Remote),
    /// Adds (RFC 7306 section 5.2: fields by mask, 0 for a plain 64-bit sum); the old value goes to the list's one element.
    FetchAdd {
        /// The word.
        to: Remote,
        /// The summand.
        add: u64,
        /// A set bit is the highest of a field, whose carry is dropped.
        mask: u64,
    },
    /// Compares and swaps; the old value goes to the list's one element.
    CompareSwap {
        /// The word.
        to: Remote,
        /// Expected, where `compare_mask` has a set bit.
        compare: u64,
        /// See there.
        compare_mask: u64,
        /// The new value, where `swap_mask` has a set bit.
        swap: u64,
        /// See there.
        swap_mask: u64,
    },
    /// Binds a window to part of a region, or unbinds it (`len` 0).
    Bind {
        /// The window, which gets a new key.
        window: Stag,
        /// The region.
        region: Stag,
        /// First octet.
        addr: u64,
        /// Octets.
        len: u64,
        /// What a peer may do.
        access: Access,
    },
    /// Makes a tag that was allocated for it a region (fast registration).
    FastRegister {
        /// The tag, with the key it gets.
        stag: Stag,
        /// The caller's region,
        region: u64,
        /// where in it,
        offset: u64,
        /// the address of its first octet,
        base: u64,
        /// its octets,
        len: u64,
        /// and what may be done.
        access: Access,
    },
    /// Makes a tag of one's own invalid.
    Invalidate(Stag),
}

/// How a work request of the send queue is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// It leaves a completion even if it ends well.
    pub signaled: bool,
    /// It begins only after all earlier Reads and Atomics have completed.
    pub fence: bool,
    /// The peer's completion counts as solicited.
    pub solicited: bool,
}

/// Where the octets come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// Registered memory, unchanged until the completion.
    Gather(ArrayVec<Sge, MAX_SGE>),
    /// Copied at the call.
    Inline(Vec<u8>),
}

/// A work request of the send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// The program's own name for it.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// With what: the source of Sends and Writes, the sink of Reads and Atomics.
    pub data: Data,
    /// How.
    pub flags: SendFlags,
}

/// A work request of a receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecvRequest {
    /// The program's own name for it.
    pub id: u64,
    /// Where to.
    pub list: ArrayVec<Sge, MAX_SGE>,
}

/// How a work request ended (the names of verbs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Well.
    Success,
    /// An own element is shorter than what came, or longer than is allowed.
    LocalLength,
    /// An own tag, bound or right is wrong, or the memory is gone.
    LocalProtection,
    /// It was in the queue when the queue pair failed.
    Flushed,
    /// A window could not be bound, or a tag not registered or invalidated.
    Bind,
    /// The peer refused: rights, bounds or tag.
    RemoteAccess,
    /// The peer refused for another reason.
    RemoteOperation,
    /// The connection cannot do this: a Read or an atomic where none may be outstanding.
    LocalOperation,
}

/// What a completion is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed {
    /// A Send.
    Send,
    /// A Write, with immediate data or without.
    Write,
    /// A Read.
    Read,
    /// A fetch and add.
    FetchAdd,
    /// A compare and swap.
    CompareSwap,
    /// A bind.
    Bind,
    /// A fast registration.
    FastRegister,
    /// An invalidation of one's own.
    Invalidate,
    /// A receive.
    Recv,
    /// A receive taken by immediate data.
    RecvImmediate,
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The work request's name.
    pub id: u64,
    /// How it ended. If not well, only `id` and `qp` mean something besides.
    pub status: Status,
    /// What ended.
    pub completed: Completed,
    /// Octets received or read; with immediate data those of the Write directly before it, if there was one.
    pub len: u32,
    /// Its queue pair.
    pub qp: Qp,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// The tag that the peer's Send has invalidated.
    pub invalidated: Option<Stag>,
    /// When it came into its queue.
    pub at: Instant,
}

/// Why a request was not taken. Nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The queue is full.
    #[error("the queue is full")]
    Full,
    /// No such object, or it is in a state that does not allow this.
    #[error("no such object, or not in its present state")]
    Invalid,
    /// More elements than the queue was made for.
    #[error("too many scatter/gather elements")]
    TooManyElements,
    /// More inline data than the queue was made for, or inline data for an operation that takes none.
    #[error("inline data is too long or not allowed")]
    Inline,
    /// More than 2³¹ octets.
    #[error("the message is longer than 2 GiB")]
    TooLong,
    /// The object is still in use by others.
    #[error("the object is still in use")]
    Busy,
    /// Access rights that exclude each other, or a range that wraps.
    #[error("the rights or the range are not valid")]
    Rights,
    /// There are too many objects of this kind.
    #[error("too many objects of this kind")]
    NoRoom,
}
