//! Options of an RDMA engine, of queue pairs and of connections.
//!
//! Times are in nanoseconds, depths in work requests or messages. Not here: work requests and
//! events.

use alloc::vec::Vec;

use crate::rdma::ids::{Cq, Pd, Srq};
use crate::rdma::work::{MAX_INLINE, MAX_SGE};
use crate::time::SECOND;
use crate::wire::checksum::{Crc32c, crc32c};
use crate::wire::mpa::RtrKind;

/// The most Reads and atomics in progress in one direction of a queue pair.
pub const MAX_READ_DEPTH: u16 = 128;

/// Options of an RDMA engine.
#[derive(Clone, Debug)]
pub struct RnicOptions {
    /// The function that extends a CRC32C. `wire::checksum::crc32c` is the portable implementation.
    pub crc32c: Crc32c,
    /// True to request CRC from the peer. Set this to false only at an administrator's explicit
    /// wish (RFC 5044 section 4.4). The engine uses CRC if the peer requests it.
    pub crc: bool,
    /// True to request markers in received streams. The engine sends markers if the peer requests
    /// them.
    pub markers: bool,
    /// The highest MPA revision to speak: 1 or 2.
    pub revision: u8,
    /// The time that the peer's engine has in a start-up: to send a Request, and to send the first
    /// FPDU if one was agreed.
    pub start_timeout_ns: u64,
    /// The time that the peer's program has to answer a connection request.
    pub reply_timeout_ns: u64,
    /// The time that an orderly end of a connection may take: to send the remaining bytes and to
    /// receive the peer's responses.
    pub close_timeout_ns: u64,
    /// The most streams of an engine.
    pub max_conns: usize,
    /// The most queue pairs of an engine.
    pub max_qps: usize,
    /// The most completion queues of an engine.
    pub max_cqs: usize,
    /// The most shared receive queues of an engine.
    pub max_srqs: usize,
    /// The most protection domains of an engine.
    pub max_pds: usize,
    /// The most steering tags of an engine: regions, windows and tags for fast registration. A peer
    /// cannot guess a tag as long as tags are few among 2²⁴.
    pub max_tags: usize,
    /// The most work requests of one send or receive queue.
    pub max_depth: u32,
    /// The most completions of one completion queue.
    pub max_cqe: u32,
    /// The most bytes of messages that arrived before their receives, over all queue pairs of an
    /// engine.
    pub max_unexpected: usize,
    /// True to acknowledge placed Writes to peers that run this engine, and to request
    /// acknowledgements from them.
    pub acknowledge_writes: bool,
}

/// The limits of an RDMA engine. A call beyond a limit fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most simultaneous connections of an engine.
    pub connections: usize,
    /// The most queue pairs of an engine.
    pub queue_pairs: usize,
    /// The most completion queues of an engine.
    pub completion_queues: usize,
    /// The most shared receive queues of an engine.
    pub shared_receive_queues: usize,
    /// The most protection domains of an engine.
    pub protection_domains: usize,
    /// The most memory regions and windows of an engine together.
    pub tags: usize,
    /// The most work requests of one send or receive queue, shared or not.
    pub requests: u32,
    /// The most completions of one completion queue.
    pub completions: u32,
    /// The most scatter/gather elements of one work request.
    pub elements: usize,
    /// The most inline bytes of one work request.
    pub inline: usize,
    /// The most Reads and atomics in progress in one direction of a queue pair.
    pub read_depth: u16,
}

impl RnicOptions {
    /// The limits of an RDMA engine with these options.
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
            // Programs allocate memory between the Request and their answer. Linux's siw waits for
            // 10 s, Chelsio's cards wait for 60 s, and InfiniBand's connection manager waits for 69
            // s (16 times 4.3 s).
            reply_timeout_ns: 60 * SECOND,
            close_timeout_ns: 5 * SECOND,
            max_conns: 1 << 17,
            max_qps: 1 << 17,
            max_cqs: 1 << 17,
            max_srqs: 1 << 16,
            max_pds: 1 << 16,
            // With one index in sixteen taken, the first random draw mostly finds a free one.
            max_tags: 1 << 20,
            max_depth: 1 << 15,
            max_cqe: 1 << 20,
            // Room for two hundred queue pairs that each buffer as much as one may.
            max_unexpected: 64 << 20,
            acknowledge_writes: true,
        }
    }
}

/// Options of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions {
    /// The protection domain of the queue pair.
    pub pd: Pd,
    /// The completion queue of the send queue.
    pub send_cq: Cq,
    /// The completion queue of the receive queue.
    pub recv_cq: Cq,
    /// The shared receive queue to take receives from. With `None` the queue pair has a receive
    /// queue of its own.
    pub srq: Option<Srq>,
    /// The most work requests in the send queue.
    pub send_depth: u32,
    /// The most work requests in the receive queue.
    pub recv_depth: u32,
    /// The most scatter/gather elements of one send request, at most [`MAX_SGE`].
    pub max_send_sge: usize,
    /// The most scatter/gather elements of one receive request, at most [`MAX_SGE`].
    pub max_recv_sge: usize,
    /// The most bytes of inline data in one send request, at most [`MAX_INLINE`].
    pub max_inline: usize,
    /// True if every send request leaves a completion.
    pub signal_all: bool,
}

/// The state of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// The queue pair is created and not connected. Receives may be posted.
    Idle,
    /// The start-up of the queue pair's connection is in progress. Posted sends wait.
    Starting,
    /// The queue pair is connected.
    Ready,
    /// The queue pair is disconnecting: the engine sends the posted requests and accepts no more.
    Closing,
    /// An error or a disconnect has ended the queue pair. Posted requests are flushed.
    Error,
}

/// Options of an outgoing RDMA connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The number of Reads and atomics that this end serves at once, at most [`MAX_READ_DEPTH`].
    pub ird: u16,
    /// The number of Reads and atomics that this end requests at once, at most [`MAX_READ_DEPTH`].
    pub ord: u16,
    /// Private data for the peer's program, at most 508 bytes (512 with revision 1).
    pub private_data: Vec<u8>,
    /// True to request CRC from the peer. `None` takes the engine's option.
    pub crc: Option<bool>,
    /// True to request markers from the peer. `None` takes the engine's option.
    pub markers: Option<bool>,
    /// The MPA revision of the connection's Request. `None` takes the engine's option.
    pub revision: Option<u8>,
    /// The kind of the empty first frame after which the peer may send first (RFC 6581 section 4.3;
    /// revision 2 only). `None` uses no such frame.
    pub peer_to_peer: Option<RtrKind>,
    /// The delay of the first FPDU after the peer's Reply. Linux's siw misses an FPDU that arrives
    /// directly behind the Reply.
    pub first_fpdu_delay_ns: u64,
    /// True to send an empty Write as the first FPDU at once, so that a peer whose program sends
    /// first may send. This has the effect of `peer_to_peer` without its negotiation, which older
    /// peers do not know.
    pub open_with_write: bool,
    /// The longest time for which a message of the peer waits for a receive; `None` means no limit.
    /// After this time the connection ends with Terminate 1/2/02. The engine buffers such messages
    /// until they take too much memory, and then stalls the stream.
    pub rnr_timeout_ns: Option<u64>,
}

/// Options of an accepted RDMA connection.
#[derive(Clone, Debug, Default)]
pub struct AcceptOptions {
    /// The number of Reads and atomics that this end serves at once.
    pub ird: u16,
    /// The number of Reads and atomics that this end requests at once.
    pub ord: u16,
    /// Private data for the peer's program, at most 508 bytes (512 with revision 1).
    pub private_data: Vec<u8>,
    /// The longest time for which own FPDUs wait for the peer's first. `None` means no limit, as
    /// RFC 5044 section 7.1.2 requires. Linux's siw as a responder does not wait and as an
    /// initiator does not send first, so programs whose responder sends first need a limit.
    pub first_fpdu_timeout_ns: Option<u64>,
    /// The longest time for which a message of the peer waits for a receive, like
    /// [`ConnectOptions::rnr_timeout_ns`].
    pub rnr_timeout_ns: Option<u64>,
}
