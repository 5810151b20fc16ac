//! Asynchronous events: errors and limits of objects.

use sprat_proto::rdma::{Cq, Event, Qp, Srq};
use sprat_proto::wire::rdmap::Cause;

/// An event that no completion and no state of a connection tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion found no room: the queue and the queue pairs that use it are in error.
    Overflow(Cq),
    /// An error ended a connection.
    Failed {
        /// The queue pair.
        pair: Qp,
        /// The error, as a Terminate says it.
        cause: Cause,
        /// We found it; else the peer told us.
        ours: bool,
    },
    /// A shared receive queue fell below its limit.
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
