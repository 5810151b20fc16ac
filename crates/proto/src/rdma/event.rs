//! Events that an RDMA engine reports, and the ways a stream or its start-up ends.

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
    /// The stream's connection was lost (RST, time-out or another error).
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

/// The reason for a failed MPA start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartupError {
    /// The start-up's deadline passed.
    #[error("the peer did not answer in time")]
    Timeout,
    /// The stream ended during the start-up.
    #[error("{0}")]
    Ended(StreamEnd),
    /// The peer's start-up frame breaks a rule or does not fit the local options.
    #[error("{0}")]
    Negotiation(NegotiationError),
    /// The peer's first FPDU is wrong, or is a Terminate.
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
        /// The stream of the peer's connection request.
        conn: Conn,
        /// The private data of the peer's program.
        private_data: Vec<u8>,
        /// The number of Reads and atomics that the peer serves at once, if its request states it.
        ird: Option<u16>,
        /// The number of Reads and atomics that the peer requests at once, if its request states
        /// it.
        ord: Option<u16>,
    },
    /// A queue pair is connected.
    Established {
        /// The stream of the new connection.
        conn: Conn,
        /// The queue pair that is connected.
        qp: Qp,
        /// The private data of the peer's program, if this end is the initiator.
        private_data: Vec<u8>,
        /// The number of Reads and atomics that this end serves at once.
        ird: u16,
        /// The number of Reads and atomics that this end requests at once.
        ord: u16,
    },
    /// The peer's program rejected the connection. The queue pair is idle again.
    Rejected {
        /// The stream that the peer rejected.
        conn: Conn,
        /// The queue pair whose connection the peer rejected.
        qp: Qp,
        /// The private data with which the peer's program rejected the connection.
        private_data: Vec<u8>,
        /// The number of Reads and atomics that the rejecting peer would serve, if its Reply states
        /// it.
        ird: Option<u16>,
        /// The number of Reads and atomics that the rejecting peer would request, if its Reply
        /// states it.
        ord: Option<u16>,
    },
    /// The start-up of a connection failed. The queue pair, if there is one, is idle again, or in
    /// error if its own error ended the start-up.
    Failed {
        /// The stream whose start-up failed.
        conn: Conn,
        /// The queue pair whose start-up failed, if the stream has one.
        qp: Option<Qp>,
        /// The reason for the failed start-up.
        why: StartupError,
    },
    /// An established connection has ended. The queue pair is in error, and all its work is
    /// flushed.
    Disconnected {
        /// The queue pair whose connection ended.
        qp: Qp,
    },
    /// The caller must close the stream. Unless `reset` is set, it sends FIN after the bytes that
    /// the stream took, then reads and drops the peer's bytes until the peer's end or a time-out. A
    /// close with unread bytes can make TCP destroy the last bytes that were sent.
    Close {
        /// The stream to close. Its number is void from now on.
        conn: Conn,
        /// True to abort the stream (RST).
        reset: bool,
    },
    /// A completion entered an armed completion queue. The queue is no longer armed.
    CqReady(Cq),
    /// A completion queue overflowed. The queue and all queue pairs that use it are in error.
    CqOverflow(Cq),
    /// An error ended a queue pair's connection. [`Event::Disconnected`] follows.
    QpFailed {
        /// The queue pair whose connection failed.
        qp: Qp,
        /// The error of the connection, as a Terminate encodes it.
        cause: Cause,
        /// True if this end found the error and reported it to the peer; false if the peer reported
        /// the error.
        ours: bool,
    },
    /// A shared receive queue fell below its limit. The limit is unset.
    SrqLimit(Srq),
    /// A queue pair in error has taken its last receive from its shared receive queue.
    LastWqe(Qp),
}
