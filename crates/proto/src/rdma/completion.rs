//! Completions of work requests.

use crate::Instant;
use crate::rdma::ids::{Qp, Stag};
use crate::rdma::work::SendOp;

/// The result of a work request, by the names of verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The work request succeeded.
    Success,
    /// An element of the work request's list is too short for the message, or longer than allowed.
    LocalLength,
    /// A local steering tag, bound or right of the work request is wrong, or the memory is
    /// unmapped.
    LocalProtection,
    /// The queue pair failed while the work request was queued.
    Flushed,
    /// The engine could not bind the window, or register or invalidate the tag.
    Bind,
    /// The peer refused the access to its memory: the steering tag, the bounds or the rights are
    /// wrong.
    RemoteAccess,
    /// The peer refused the work request for a reason other than its memory's tag, bounds or
    /// rights.
    RemoteOperation,
    /// The connection does not allow the work request: its depth for Reads and atomics is 0.
    LocalOperation,
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "a local element is too short for the message, or too long",
            Self::LocalProtection => "a local tag, bound or access right is wrong",
            Self::LocalOperation => "the connection does not allow the operation",
            Self::Flushed => "the queue pair failed before the request completed",
            Self::Bind => "the window could not be bound, or the tag not registered or invalidated",
            Self::RemoteAccess => "the peer refused access",
            Self::RemoteOperation => "the peer could not execute the operation",
        })
    }
}

impl core::error::Error for Status {}

/// The kind of the completed work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed {
    /// The completion of a Send, or of immediate data alone.
    Send,
    /// The completion of a Write, with immediate data or without.
    Write,
    /// The completion of an RDMA Read.
    Read,
    /// The completion of an atomic fetch and add.
    FetchAdd,
    /// The completion of an atomic compare and swap.
    CompareSwap,
    /// The completion of a memory window's bind.
    Bind,
    /// The completion of a fast registration of memory.
    FastRegister,
    /// The completion of an invalidation of a local steering tag.
    Invalidate,
    /// The completion of a receive that a Send consumed.
    Recv,
    /// The completion of a receive that immediate data consumed.
    RecvImmediate,
}

impl Completed {
    /// The kind of the completion that the operation `op` of a work request leaves.
    pub(crate) const fn of(op: &SendOp) -> Self {
        match op {
            SendOp::Send | SendOp::SendInvalidate(_) | SendOp::Immediate(_) => Self::Send,
            SendOp::Write(_) | SendOp::WriteImmediate(..) => Self::Write,
            SendOp::Read(_) | SendOp::ReadInvalidate(_) => Self::Read,
            SendOp::FetchAdd { .. } => Self::FetchAdd,
            SendOp::CompareSwap { .. } => Self::CompareSwap,
            SendOp::Bind { .. } => Self::Bind,
            SendOp::FastRegister { .. } => Self::FastRegister,
            SendOp::Invalidate(_) => Self::Invalidate,
        }
    }
}

impl core::fmt::Display for Completed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Send => "Send",
            Self::Write => "Write",
            Self::Read => "Read",
            Self::FetchAdd => "Fetch and Add",
            Self::CompareSwap => "Compare and Swap",
            Self::Bind => "Bind",
            Self::FastRegister => "Fast Register",
            Self::Invalidate => "Invalidate",
            Self::Recv => "Receive",
            Self::RecvImmediate => "Receive by immediate data",
        })
    }
}

/// The completion of a work request. Unless `status` is [`Status::Success`], only `id`, `status`
/// and `qp` are meaningful.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The `id` of the work request.
    pub id: u64,
    /// The result of the work request.
    pub status: Status,
    /// The kind of the work request, by its operation.
    pub completed: Completed,
    /// The bytes that the work request received or read. With immediate data, the length of the
    /// Write directly before it, if any.
    pub len: u32,
    /// The queue pair of the work request.
    pub qp: Qp,
    /// The immediate data of the received message, if it has any.
    pub immediate: Option<u64>,
    /// The local tag that the peer's Send has invalidated.
    pub invalidated: Option<Stag>,
    /// The time at which the completion entered its queue.
    pub at: Instant,
}

impl Completion {
    /// Returns the completion if it succeeded.
    ///
    /// # Errors
    /// The [`Status`] if it failed.
    pub fn result(self) -> Result<Self, Status> {
        if self.status == Status::Success { Ok(self) } else { Err(self.status) }
    }
}
