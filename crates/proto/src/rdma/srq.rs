//! Shared receive queues.

use alloc::collections::VecDeque;

use crate::rdma::ids::{Pd, Qp};
use crate::rdma::work::RecvRequest;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) pd: Pd,
    pub(crate) depth: u32,
    pub(crate) max_sge: usize,
    /// The number of receives below which the shared receive queue raises one event.
    pub(crate) limit: u32,
    pub(crate) waiting: VecDeque<RecvRequest>,
    /// The number of queue pairs that use the shared receive queue.
    pub(crate) users: u32,
    /// The queue pairs with messages that wait for a receive of the shared receive queue. The next
    /// receive goes to the first.
    pub(crate) unexpected: VecDeque<Qp>,
}
