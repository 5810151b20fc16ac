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
    /// Fewer than this raise an event, once.
    pub(crate) limit: u32,
    pub(crate) waiting: VecDeque<RecvRequest>,
    /// Queue pairs that use it.
    pub(crate) users: u32,
    /// Those of them that have messages without a receive; the first one is asked when there is one.
    pub(crate) unexpected: VecDeque<Qp>,
}
