//! Work requests written down shortly, and what a completion says as a `Result`.

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use crate::rdma::error::PostError;
use crate::rdma::ids::Stag;
use crate::rdma::memory::Access;

/// Most scatter/gather elements of one work request.
pub const MAX_SGE: usize = 8;

/// Most bytes of inline data.
pub const MAX_INLINE: usize = 256;

/// One element of a scatter/gather list: `len` bytes at address `addr` of the region `stag`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// The region.
    pub stag: Stag,
    /// The address, as the region's registration counts (its `base` is the first byte's).
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// The peer's tag.
    pub stag: Stag,
    /// The tagged offset: an address as the peer counts.
    pub addr: u64,
}

/// What a work request of the send queue does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Sends to the peer's next receive.
    Send,
    /// The same, and the peer's tag is invalid afterwards.
    SendInvalidate(Stag),
    /// Writes into the peer's memory.
    Write(Remote),
    /// The same, then 8 bytes of immediate data, which take the peer's next receive (RFC 7306).
    WriteImmediate(Remote, u64),
    /// 8 bytes of immediate data alone, which take the peer's next receive (RFC 7306).
    Immediate(u64),
    /// Reads the peer's memory into the list's one element.
    Read(Remote),
    /// The same, and the sink's own tag is invalid afterwards.
    ReadInvalidate(Remote),
    /// Adds (RFC 7306 section 5.2: fields by mask, 0 for a plain 64-bit sum); the old value goes to the list's one element.
    FetchAdd {
        /// The word.
        to: Remote,
        /// The summand.
        add: u64,
        /// A set bit is the highest of a field, whose carry is dropped.
        mask: u64,
    },
    /// Compares and swaps; the old value goes to the list's one element.
    CompareSwap {
        /// The word.
        to: Remote,
        /// Expected, where `compare_mask` has a set bit.
        compare: u64,
        /// See there.
        compare_mask: u64,
        /// The new value, where `swap_mask` has a set bit.
        swap: u64,
        /// See there.
        swap_mask: u64,
    },
    /// Binds a window to part of a region, or unbinds it (`len` 0).
    Bind {
        /// The window, which gets a new key.
        window: Stag,
        /// The region.
        region: Stag,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// What a peer may do.
        access: Access,
    },
    /// Makes a tag that was allocated for it a region (fast registration).
    FastRegister {
        /// The tag, with the key it gets.
        stag: Stag,
        /// The caller's region,
        region: u64,
        /// where in it,
        offset: u64,
        /// the address of its first byte,
        base: u64,
        /// its bytes,
        len: u64,
        /// and what may be done.
        access: Access,
    },
    /// Makes a tag of one's own invalid.
    Invalidate(Stag),
}

/// How a work request of the send queue is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// It leaves a completion even if it ends well.
    pub signaled: bool,
    /// It begins only after all earlier Reads and Atomics have completed.
    pub fence: bool,
    /// The peer's completion counts as solicited.
    pub solicited: bool,
}

/// Where the bytes come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// Registered memory, unchanged until the completion.
    Gather(ArrayVec<Sge, MAX_SGE>),
    /// Copied at the call.
    Inline(Vec<u8>),
}

/// A work request of the send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// The program's own name for it.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// With what: the source of Sends and Writes, the sink of Reads and Atomics.
    pub data: Data,
    /// How.
    pub flags: SendFlags,
}

/// A work request of a receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecvRequest {
    /// The program's own name for it.
    pub id: u64,
    /// Where to.
    pub list: ArrayVec<Sge, MAX_SGE>,
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

    /// How many bytes fit into a receive.
    pub(in crate::rdma) fn capacity(&self) -> u32 {
        self.list.iter().fold(0u32, |sum, sge| sum.saturating_add(sge.len))
    }
}

/// How many bytes it is.
pub(crate) fn data_len(data: &Data) -> u64 {
    match data {
        Data::Gather(list) => list.iter().map(|sge| u64::from(sge.len)).sum(),
        Data::Inline(bytes) => bytes.len() as u64,
    }
}

/// True for what the engine does without the peer.
pub(crate) const fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::Bind { .. } | SendOp::FastRegister { .. } | SendOp::Invalidate(_))
}

/// Calls `each` with the parts of the list's elements that hold its bytes `from..from + len`.
pub(crate) fn scatter<E>(
    list: &[Sge],
    from: u32,
    len: u32,
    mut each: impl FnMut(Sge) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut left) = (from, len);
    for sge in list {
        if left == 0 {
            break;
        }
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let here = left.min(sge.len - skip);
        each(Sge { stag: sge.stag, addr: sge.addr.wrapping_add(u64::from(skip)), len: here })?;
        (skip, left) = (0, left - here);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
