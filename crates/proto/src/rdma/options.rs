//! What is said at the engine's doors: options going in, events coming out.
//!
//! Times are nanoseconds, depths are counts of work requests or messages. Not here: work requests and completions, which
//! are in the module's root.

use alloc::vec::Vec;

use crate::rdma::ids::{Cq, Pd, Srq};
use crate::rdma::work::{MAX_INLINE, MAX_SGE};
use crate::time::SECOND;
use crate::wire::checksum::{Crc32c, crc32c};
use crate::wire::mpa::RtrKind;

/// Most Reads and Atomics outstanding in one direction of a queue pair.
pub const MAX_READ_DEPTH: u16 = 128;

/// What is set for the whole engine.
#[derive(Clone, Debug)]
pub struct RnicOptions {
    /// Continues a CRC32C; `wire::checksum::crc32c` is the portable one.
    pub crc32c: Crc32c,
    /// Ask for CRC. False only by an administrator's explicit setting (RFC 5044 section 4.4); a peer that asks gets it.
    pub crc: bool,
    /// Ask for markers in what we receive. A peer that asks gets them in what we send.
    pub markers: bool,
    /// The highest MPA revision we speak: 1 or 2.
    pub revision: u8,
    /// How long the peer's engine may take in a start-up: to send a Request, and the first FPDU where one is agreed upon.
    pub start_timeout_ns: u64,
    /// How long the peer's program may take to answer a Request.
    pub reply_timeout_ns: u64,
    /// How long an end may take: sending what is left and the peer's answers.
    pub close_timeout_ns: u64,
    /// Most streams.
    pub max_conns: usize,
    /// Most queue pairs.
    pub max_qps: usize,
    /// Most completion queues.
    pub max_cqs: usize,
    /// Most shared receive queues.
    pub max_srqs: usize,
    /// Most protection domains.
    pub max_pds: usize,
    /// Most steering tags: regions, windows and tags for fast registration. Nobody guesses one as long as they are few among
    /// 2²⁴.
    pub max_tags: usize,
    /// Most work requests of one queue.
    pub max_depth: u32,
    /// Most completions of one queue.
    pub max_cqe: u32,
    /// Most bytes of messages that came before their receives, of all queue pairs together.
    pub max_unexpected: usize,
    /// Peers of ours are told when their Writes are placed, and tell us.
    pub acknowledge_writes: bool,
}

/// How much an engine allows: what is beyond any of these is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Shared receive queues.
    pub shared_receive_queues: usize,
    /// Protection domains.
    pub protection_domains: usize,
    /// Regions and windows together.
    pub tags: usize,
    /// Work requests of one queue, shared or not.
    pub requests: u32,
    /// Completions of one queue.
    pub completions: u32,
    /// Elements of one work request.
    pub elements: usize,
    /// Bytes inline in one work request.
    pub inline: usize,
    /// Reads and atomics under way in one direction of a queue pair.
    pub read_depth: u16,
}

impl RnicOptions {
    /// What an engine with this configuration allows.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        Limits {
            connections: self.max_conns,
            queue_pairs: self.max_qps,
            completion_queues: self.max_cqs,
            shared_receive_queues: self.max_srqs,
            protection_domains: self.max_pds,
            tags: self.max_tags,
            requests: self.max_depth,
            completions: self.max_cqe,
            elements: MAX_SGE,
            inline: MAX_INLINE,
            read_depth: MAX_READ_DEPTH,
        }
    }
}

impl Default for RnicOptions {
    fn default() -> Self {
        Self {
            crc32c,
            crc: true,
            markers: false,
            revision: 2,
            start_timeout_ns: 5 * SECOND,
            // Programs allocate between the request and their answer. Linux's siw waits for 10 s, Chelsio's cards for 60,
            // InfiniBand's connection manager for 69 (16 times 4.3).
            reply_timeout_ns: 60 * SECOND,
            close_timeout_ns: 5 * SECOND,
            max_conns: 1 << 17,
            max_qps: 1 << 17,
            max_cqs: 1 << 17,
            max_srqs: 1 << 16,
            max_pds: 1 << 16,
            // With one index of sixteen taken, a free one is found at the first draw most times.
            max_tags: 1 << 20,
            max_depth: 1 << 15,
            max_cqe: 1 << 20,
            // Two hundred queue pairs with as much as each may keep.
            max_unexpected: 64 << 20,
            acknowledge_writes: true,
        }
    }
}

/// What a queue pair is made for.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions {
    /// Its protection domain.
    pub pd: Pd,
    /// Where the send queue completes.
    pub send_cq: Cq,
    /// Where the receive queue completes.
    pub recv_cq: Cq,
    /// Take receives from here instead of an own queue.
    pub srq: Option<Srq>,
    /// Most work requests in the send queue.
    pub send_depth: u32,
    /// Most work requests in the receive queue.
    pub recv_depth: u32,
    /// Most elements of one send request, at most [`crate::rdma::MAX_SGE`].
    pub max_send_sge: usize,
    /// Most elements of one receive request, at most [`crate::rdma::MAX_SGE`].
    pub max_recv_sge: usize,
    /// Most bytes of inline data, at most [`crate::rdma::MAX_INLINE`].
    pub max_inline: usize,
    /// Every send request leaves a completion.
    pub signal_all: bool,
}

/// Where a queue pair stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Made, not connected. Receives may be posted.
    Idle,
    /// A connection is being made. Sends may be posted; they wait.
    Starting,
    /// Connected.
    Ready,
    /// Being disconnected: what was posted is sent, nothing more is taken.
    Closing,
    /// At its end. What is posted is flushed.
    Error,
}

/// How to make a connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Reads and atomics that we serve at once, at most [`crate::rdma::MAX_READ_DEPTH`].
    pub ird: u16,
    /// Reads and atomics that we ask at once, at most [`crate::rdma::MAX_READ_DEPTH`].
    pub ord: u16,
    /// For the peer's program, at most 508 bytes (512 with revision 1).
    pub private_data: Vec<u8>,
    /// Ask for CRC; as the engine's configuration says if `None`.
    pub crc: Option<bool>,
    /// Ask for markers; as the engine's configuration says if `None`.
    pub markers: Option<bool>,
    /// The MPA revision; as the engine's configuration says if `None`.
    pub revision: Option<u8>,
    /// The peer may send first, after this frame of ours without bytes (RFC 6581 section 4.3; revision 2 only).
    pub peer_to_peer: Option<RtrKind>,
    /// How long our first FPDU waits after the peer's reply: Linux's siw overlooks one that arrives at its heels.
    pub first_fpdu_delay_ns: u64,
    /// Our first FPDU is a Write without bytes, at once, so that a peer whose program is the first to send may do so
    /// (the effect of `peer_to_peer` without its negotiation, which older peers do not know).
    pub open_with_write: bool,
    /// How long a message of the peer's waits for its receive, before the connection ends with Terminate 1/2/02; for ever if
    /// `None`. What comes meanwhile is kept, up to a limit, behind which the stream is read no further.
    pub rnr_timeout_ns: Option<u64>,
}

/// How to accept one.
#[derive(Clone, Debug, Default)]
pub struct AcceptOptions {
    /// Reads and atomics that we serve at once.
    pub ird: u16,
    /// Reads and atomics that we ask at once.
    pub ord: u16,
    /// For the peer's program, at most 508 bytes (512 with revision 1).
    pub private_data: Vec<u8>,
    /// How long own FPDUs wait for the peer's first; forever if `None`, as RFC 5044 section 7.1.2 wants it. Linux's siw does
    /// not wait, and as an initiator does not send first, so that programs that do it the other way round need an end of it.
    pub first_fpdu_timeout_ns: Option<u64>,
    /// As [`ConnectOptions::rnr_timeout_ns`].
    pub rnr_timeout_ns: Option<u64>,
}
