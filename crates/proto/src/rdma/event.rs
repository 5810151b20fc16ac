//! What an engine reports.

use alloc::vec::Vec;
use core::fmt;

use crate::rdma::ids::{Conn, Cq, Qp, Srq};
use crate::rdma::iwarp::start::NegotiationError;
use crate::wire::rdmap::Cause;

/// How the stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// The peer has sent its last byte (FIN); all before it were handed in.
    Finished,
    /// The peer has sent its last byte, and bytes before it are unread since the stream
    /// [is stalled](super::rnic::Rnic::is_stalled). Say so once for each stall.
    Unread,
    /// It is gone (RST, time-out, any other error).
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

/// Why a start-up failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartupError {
    /// It took too long.
    #[error("it took too long")]
    Timeout,
    /// The stream ended.
    #[error("{0}")]
    Ended(StreamEnd),
    /// The peer's frame does not fit the rules or our options.
    #[error("{0}")]
    Negotiation(NegotiationError),
    /// The first FPDU was not right, or a Terminate.
    #[error("{0}")]
    Fault(Cause),
    /// The program gave it up.
    #[error("it was given up")]
    Cancelled,
}

/// What happened. Every [`Conn`] ends with exactly one [`Event::Close`], which is the last that is heard of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a connection: answer by [`crate::rdma::Rnic::accept`] or [`crate::rdma::Rnic::reject`].
    ConnectRequest {
        /// Its stream.
        conn: Conn,
        /// From the peer's program.
        private_data: Vec<u8>,
        /// What the peer serves at once, if it says so.
        ird: Option<u16>,
        /// What the peer asks at once, if it says so.
        ord: Option<u16>,
    },
    /// A queue pair is connected.
    Established {
        /// Its stream.
        conn: Conn,
        /// The queue pair.
        qp: Qp,
        /// From the peer's program, if we asked.
        private_data: Vec<u8>,
        /// Reads and atomics that we serve at once.
        ird: u16,
        /// Reads and atomics that we ask at once.
        ord: u16,
    },
    /// The peer's program refused. The queue pair is idle again.
    Rejected {
        /// Its stream.
        conn: Conn,
        /// The queue pair.
        qp: Qp,
        /// From the peer's program.
        private_data: Vec<u8>,
        /// What the peer would serve, if it says so.
        ird: Option<u16>,
        /// What the peer would ask, if it says so.
        ord: Option<u16>,
    },
    /// There will be no connection. The queue pair, if there was one yet, is idle again, but in error if an error of its
    /// own ended the start-up.
    Failed {
        /// Its stream.
        conn: Conn,
        /// The queue pair.
        qp: Option<Qp>,
        /// Why.
        why: StartupError,
    },
    /// An established connection is at its end; the queue pair is in error and everything is flushed.
    Disconnected {
        /// The queue pair.
        qp: Qp,
    },
    /// Close the stream. If not `reset`, send the end (FIN) behind what was taken, then read and drop what comes until the
    /// peer's end or a while has passed: closing at once with unread bytes may destroy what we sent last.
    Close {
        /// The stream, whose number is void now.
        conn: Conn,
        /// Abort it.
        reset: bool,
    },
    /// A completion came into an armed queue, which is unarmed now.
    CqReady(Cq),
    /// A completion found no room: the queue and all queue pairs that use it are in error.
    CqOverflow(Cq),
    /// An error ended the connection; `Disconnected` follows.
    QpFailed {
        /// The queue pair.
        qp: Qp,
        /// The error, as a Terminate says it.
        cause: Cause,
        /// We found it (and told the peer); else the peer told us.
        ours: bool,
    },
    /// A shared receive queue fell below its limit, which is unset now.
    SrqLimit(Srq),
    /// A queue pair in error takes nothing more from its shared receive queue.
    LastWqe(Qp),
}
