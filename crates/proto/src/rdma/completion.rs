//! Completions.

use crate::Instant;
use crate::rdma::ids::{Qp, Stag};
use crate::rdma::work::SendOp;

/// How a work request ended (the names of verbs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Well.
    Success,
    /// An own element is shorter than what came, or longer than is allowed.
    LocalLength,
    /// An own tag, bound or right is wrong, or the memory is gone.
    LocalProtection,
    /// It was in the queue when the queue pair failed.
    Flushed,
    /// A window could not be bound, or a tag not registered or invalidated.
    Bind,
    /// The peer refused: rights, bounds or tag.
    RemoteAccess,
    /// The peer refused for another reason.
    RemoteOperation,
    /// The connection cannot do this: a Read or an atomic where none may be outstanding.
    LocalOperation,
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "an own element is too short for what came, or too long",
            Self::LocalProtection => "an own tag, bound or right is wrong",
            Self::LocalOperation => "the request could not be done here",
            Self::Flushed => "the queue pair failed before",
            Self::Bind => "a window could not be bound, or a tag not registered or invalidated",
            Self::RemoteAccess => "the peer refused access",
            Self::RemoteOperation => "the peer could not do it",
        })
    }
}

impl core::error::Error for Status {}

/// What a completion is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed {
    /// A Send.
    Send,
    /// A Write, with immediate data or without.
    Write,
    /// A Read.
    Read,
    /// A fetch and add.
    FetchAdd,
    /// A compare and swap.
    CompareSwap,
    /// A bind.
    Bind,
    /// A fast registration.
    FastRegister,
    /// An invalidation of one's own.
    Invalidate,
    /// A receive.
    Recv,
    /// A receive taken by immediate data.
    RecvImmediate,
}

impl Completed {
    /// The name of what an operation's completion is of.
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

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The work request's name.
    pub id: u64,
    /// How it ended. If not well, only `id` and `qp` mean something besides.
    pub status: Status,
    /// What ended.
    pub completed: Completed,
    /// Bytes received or read; with immediate data those of the Write directly before it, if there was one.
    pub len: u32,
    /// Its queue pair.
    pub qp: Qp,
    /// Immediate data.
    pub immediate: Option<u64>,
    /// The tag that the peer's Send has invalidated.
    pub invalidated: Option<Stag>,
    /// When it came into its queue.
    pub at: Instant,
}

impl Completion {
    /// The completion if it ended well.
    ///
    /// # Errors
    /// How it ended else.
    pub fn result(self) -> Result<Self, Status> {
        if self.status == Status::Success { Ok(self) } else { Err(self.status) }
    }
}
