//! Asynchronous events of verbs objects: their errors and limits.

use sprat_proto::rdma::{Cq, Event, Qp, Srq};
use sprat_proto::wire::rdmap::Cause;

/// An event of a verbs object that neither a completion nor the state of a connection reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion found no room in its completion queue: the queue and the queue pairs that use
    /// it are in error.
    Overflow(Cq),
    /// An error ended a queue pair's connection.
    Failed {
        /// The queue pair whose connection failed.
        pair: Qp,
        /// The error of the connection, as a Terminate encodes it.
        cause: Cause,
        /// True if this end found the error; false if the peer reported it.
        ours: bool,
    },
    /// A shared receive queue has fewer receives than its limit.
    Limit(Srq),
    /// A queue pair in error takes nothing more from its shared receive queue.
    LastWorkRequest(Qp),
}

impl AsyncEvent {
    pub(super) const fn of(event: &Event) -> Option<Self> {
        match *event {
            Event::CqOverflow(cq) => Some(Self::Overflow(cq)),
            Event::QpFailed { qp, cause, ours } => Some(Self::Failed { pair: qp, cause, ours }),
            Event::SrqLimit(srq) => Some(Self::Limit(srq)),
            Event::LastWqe(qp) => Some(Self::LastWorkRequest(qp)),
            _ => None,
        }
    }
}
