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
    /// The limit below which the queue raises one event.
    pub(crate) limit: u32,
    pub(crate) waiting: VecDeque<RecvRequest>,
    /// The queue pairs that use the queue.
    pub(crate) users: u32,
    /// The queue pairs with messages that wait for a receive. The next receive goes to the first.
    pub(crate) unexpected: VecDeque<Qp>,
}
