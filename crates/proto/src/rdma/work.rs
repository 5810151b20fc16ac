//! Work requests written down shortly, and what a completion says as a `Result`.

use alloc::vec::Vec;

use super::{Access, PostError};
use super::{
    Completed, Completion, Conn, Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status,
};

impl Access {
    /// Receives and the answers to Reads may be placed here; no peer reaches it.
    pub const LOCAL: Self = Self {
        local_write: true,
        remote_write: false,
        remote_read: false,
        remote_atomic: false,
        bind: false,
    };
    /// Everything.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        bind: true,
    };
}

impl Conn {
    /// A small number that no other stream has at the same time: a place in a table of the caller's own.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 % super::table::MOST as u32) as usize
    }
}

impl From<Sge> for Data {
    fn from(sge: Sge) -> Self {
        Self::Gather(core::iter::once(sge).collect())
    }
}

impl TryFrom<&[Sge]> for Data {
    type Error = PostError;

    /// [`PostError::TooManyElements`] beyond [`super::MAX_SGE`].
    fn try_from(list: &[Sge]) -> Result<Self, PostError> {
        list.try_into().map(Self::Gather).map_err(|_| PostError::TooManyElements)
    }
}

/// Inline data.
impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Inline(bytes)
    }
}

impl SendRequest {
    /// A request that leaves a completion.
    #[inline]
    #[must_use]
    pub fn new(id: u64, op: SendOp, data: impl Into<Data>) -> Self {
        let flags = SendFlags { signaled: true, fence: false, solicited: false };
        Self { id, op, data: data.into(), flags }
    }

    /// A request without data: immediate data alone, binds, registrations, invalidations.
    #[inline]
    #[must_use]
    pub fn bare(id: u64, op: SendOp) -> Self {
        Self::new(id, op, Data::Inline(Vec::new()))
    }

    /// The same without a completion if it ends well.
    #[inline]
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags.signaled = false;
        self
    }

    /// The same, but beginning only after all earlier Reads and Atomics have completed.
    #[inline]
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.flags.fence = true;
        self
    }

    /// The same, but the peer's completion counts as solicited.
    #[inline]
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.flags.solicited = true;
        self
    }
}

impl RecvRequest {
    /// A receive into one element.
    #[inline]
    #[must_use]
    pub fn new(id: u64, into: Sge) -> Self {
        Self { id, list: core::iter::once(into).collect() }
    }
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

#[cfg(test)]
mod tests {
    use super::super::MAX_SGE;
    use super::*;

    #[test]
    fn lists_have_a_limit() {
        let list = [Sge::default(); MAX_SGE + 1];
        assert!(
            matches!(Data::try_from(&list[..MAX_SGE]), Ok(Data::Gather(l)) if l.len() == MAX_SGE)
        );
        assert_eq!(Data::try_from(&list[..]), Err(PostError::TooManyElements));
    }
}
