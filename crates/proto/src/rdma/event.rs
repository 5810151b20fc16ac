//! Events that an engine reports, and the ways a stream or its start-up ends.

use alloc::vec::Vec;
use core::fmt;

use crate::rdma::ids::{Conn, Cq, Qp, Srq};
use crate::rdma::iwarp::start::NegotiationError;
use crate::wire::rdmap::Cause;

/// The end of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// The peer has sent its last byte (FIN), and the caller has handed in all bytes before it.
    Finished,
    /// The peer has sent its last byte, but the stream [is stalled](crate::rdma::Rnic::is_stalled)
    /// and bytes before the end are unread. Report this once for each stall.
    Unread,
    /// The connection was lost (RST, time-out or another error).
    Reset,
}

impl fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finished | Self::Unread => "the peer closed the connection",
            Self::Reset => "the connection was reset",
        })
    }
}

/// The reason for a failed start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartupError {
    /// The deadline passed.
    #[error("the peer did not answer in time")]
    Timeout,
    /// The stream ended.
    #[error("{0}")]
    Ended(StreamEnd),
    /// The peer's frame breaks a rule or does not fit the local options.
    #[error("{0}")]
    Negotiation(NegotiationError),
    /// The first FPDU is wrong, or is a Terminate.
    #[error("{0}")]
    Fault(Cause),
    /// The program cancelled the start-up.
    #[error("the program cancelled it")]
    Cancelled,
}

/// An event of an engine. The last event of every [`Conn`] is its only [`Event::Close`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a connection. Answer with [`Rnic::accept`](crate::rdma::Rnic::accept) or
    /// [`Rnic::reject`](crate::rdma::Rnic::reject).
    ConnectRequest {
        /// The stream.
        conn: Conn,
        /// The private data of the peer's program.
        private_data: Vec<u8>,
        /// The Reads and atomics that the peer serves at once, if it says so.
        ird: Option<u16>,
        /// The Reads and atomics that the peer requests at once, if it says so.
        ord: Option<u16>,
    },
    /// A queue pair is connected.
    Established {
        /// The stream.
        conn: Conn,
        /// The queue pair.
        qp: Qp,
        /// The private data of the peer's program, if this end is the initiator.
        private_data: Vec<u8>,
        /// The Reads and atomics that this end serves at once.
        ird: u16,
        /// The Reads and atomics that this end requests at once.
        ord: u16,
    },
    /// The peer's program rejected the connection. The queue pair is idle again.
    Rejected {
        /// The stream.
        conn: Conn,
        /// The queue pair.
        qp: Qp,
        /// The private data of the peer's program.
        private_data: Vec<u8>,
        /// The Reads and atomics that the peer would serve, if it says so.
        ird: Option<u16>,
        /// The Reads and atomics that the peer would request, if it says so.
        ord: Option<u16>,
    },
    /// The start-up failed. The queue pair, if there is one, is idle again, or in error if its own
    /// error ended the start-up.
    Failed {
        /// The stream.
        conn: Conn,
        /// The queue pair.
        qp: Option<Qp>,
        /// The reason.
        why: StartupError,
    },
    /// An established connection has ended. The queue pair is in error, and all its work is
    /// flushed.
    Disconnected {
        /// The queue pair.
        qp: Qp,
    },
    /// Close the stream. Unless `reset` is set, send FIN after the bytes that the stream took, then
    /// read and drop the peer's bytes until the peer's end or a time-out. A close with unread bytes
    /// can make TCP destroy the last bytes that were sent.
    Close {
        /// The stream. Its number is void from now on.
        conn: Conn,
        /// True to abort the stream (RST).
        reset: bool,
    },
    /// A completion entered an armed queue. The queue is no longer armed.
    CqReady(Cq),
    /// A completion queue overflowed. The queue and all queue pairs that use it are in error.
    CqOverflow(Cq),
    /// An error ended the connection. [`Event::Disconnected`] follows.
    QpFailed {
        /// The queue pair.
        qp: Qp,
        /// The error as a Terminate encodes it.
        cause: Cause,
        /// True if this end found the error and reported it to the peer; false if the peer reported
        /// it.
        ours: bool,
    },
    /// A shared receive queue fell below its limit. The limit is unset.
    SrqLimit(Srq),
    /// A queue pair in error has taken its last receive from its shared receive queue.
    LastWqe(Qp),
}
