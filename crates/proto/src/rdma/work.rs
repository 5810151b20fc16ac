//! Work requests: the operations of the send queue, receives, and lists of memory elements.

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use crate::rdma::error::PostError;
use crate::rdma::ids::Stag;
use crate::rdma::memory::Access;

/// The most scatter/gather elements of one work request.
pub const MAX_SGE: usize = 8;

/// The most bytes of inline data in one work request.
pub const MAX_INLINE: usize = 256;

/// One element of a scatter/gather list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// The steering tag of the element's memory region.
    pub stag: Stag,
    /// The address of the element's first byte. The region's registration gives its first byte the
    /// address `base`.
    pub addr: u64,
    /// The length of the element in bytes.
    pub len: u32,
}

/// An address in the peer's memory, under a steering tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// The steering tag of the peer's memory.
    pub stag: Stag,
    /// The tagged offset: an address of the peer.
    pub addr: u64,
}

/// The operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Sends a message to the peer's next receive.
    Send,
    /// Sends a message to the peer's next receive and invalidates a tag of the peer.
    SendInvalidate(Stag),
    /// Writes into the peer's memory.
    Write(Remote),
    /// Writes into the peer's memory, then sends 8 bytes of immediate data, which consume the
    /// peer's next receive (RFC 7306).
    WriteImmediate(Remote, u64),
    /// Sends 8 bytes of immediate data, which consume the peer's next receive (RFC 7306).
    Immediate(u64),
    /// Reads the peer's memory into the one element of the list.
    Read(Remote),
    /// Reads the peer's memory into the one element of the list, then invalidates the tag of that
    /// element.
    ReadInvalidate(Remote),
    /// Adds to a 64-bit word of the peer and stores the old value in the one element of the list
    /// (RFC 7306 section 5.2).
    FetchAdd {
        /// The address of the 64-bit word in the peer's memory.
        to: Remote,
        /// The value to add to the peer's word.
        add: u64,
        /// The mask of the fields to add. Each set bit is the highest bit of a field, and its carry
        /// is dropped. 0 means one field of 64 bits.
        mask: u64,
    },
    /// Compares and swaps a 64-bit word of the peer and stores the old value in the one element of
    /// the list.
    CompareSwap {
        /// The address of the 64-bit word in the peer's memory.
        to: Remote,
        /// The value that the peer's word must have for the swap.
        compare: u64,
        /// The mask of the word's bits that are compared.
        compare_mask: u64,
        /// The value that replaces the peer's word if the comparison succeeds.
        swap: u64,
        /// The mask of the word's bits that are replaced.
        swap_mask: u64,
    },
    /// Binds a memory window to a part of a region. A `len` of 0 unbinds it.
    Bind {
        /// The steering tag of the window with its new key.
        window: Stag,
        /// The steering tag of the region to bind the window to.
        region: Stag,
        /// The address of the first byte that the window covers.
        addr: u64,
        /// The number of bytes that the window covers.
        len: u64,
        /// The rights of the peer through the window.
        access: Access,
    },
    /// Registers memory under a tag that was allocated for fast registration.
    FastRegister {
        /// The steering tag to register memory under, with its new key.
        stag: Stag,
        /// The caller's name for the memory region.
        region: u64,
        /// The first registered byte, counted from the start of the caller's region.
        offset: u64,
        /// The address that the first registered byte gets.
        base: u64,
        /// The number of bytes to register.
        len: u64,
        /// The access rights to the registered memory.
        access: Access,
    },
    /// Invalidates a local steering tag.
    Invalidate(Stag),
}

/// Flags of a work request of the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// True if the work request leaves a completion even if it succeeds.
    pub signaled: bool,
    /// True if the work request starts only after all earlier Reads and atomics have completed.
    pub fence: bool,
    /// True if the completion of the peer's receive counts as solicited.
    pub solicited: bool,
}

/// The source or the sink of a work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// The data lies in registered memory. The program must not change it before the completion.
    Gather(ArrayVec<Sge, MAX_SGE>),
    /// The data was copied by the engine when the request was posted.
    Inline(Vec<u8>),
}

/// A work request of the send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// The program's name for the request. Its completion has the same `id`.
    pub id: u64,
    /// The operation of the work request.
    pub op: SendOp,
    /// The source of a Send or Write, or the sink of a Read or atomic.
    pub data: Data,
    /// The flags of the work request: signaled, fenced, solicited.
    pub flags: SendFlags,
}

/// A work request of a receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecvRequest {
    /// The program's name for the request. Its completion has the same `id`.
    pub id: u64,
    /// The scatter/gather elements that receive the message.
    pub list: ArrayVec<Sge, MAX_SGE>,
}

impl From<Sge> for Data {
    fn from(sge: Sge) -> Self {
        Self::Gather(core::iter::once(sge).collect())
    }
}

impl TryFrom<&[Sge]> for Data {
    type Error = PostError;

    /// Fails with [`PostError::TooManyElements`] if the list has more than [`MAX_SGE`] elements.
    fn try_from(list: &[Sge]) -> Result<Self, PostError> {
        list.try_into().map(Self::Gather).map_err(|_| PostError::TooManyElements)
    }
}

/// Converts bytes to the inline data of a work request.
impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Inline(bytes)
    }
}

impl SendRequest {
    /// Creates a work request of the send queue that leaves a completion.
    #[inline]
    #[must_use]
    pub fn new(id: u64, op: SendOp, data: impl Into<Data>) -> Self {
        let flags = SendFlags { signaled: true, fence: false, solicited: false };
        Self { id, op, data: data.into(), flags }
    }

    /// Creates a work request without data: immediate data alone, a bind, a registration or an
    /// invalidation.
    #[inline]
    #[must_use]
    pub fn bare(id: u64, op: SendOp) -> Self {
        Self::new(id, op, Data::Inline(Vec::new()))
    }

    /// Makes the work request leave no completion if it succeeds.
    #[inline]
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags.signaled = false;
        self
    }

    /// Makes the work request start only after all earlier Reads and atomics have completed.
    #[inline]
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.flags.fence = true;
        self
    }

    /// Makes the completion of the peer's receive count as solicited.
    #[inline]
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.flags.solicited = true;
        self
    }
}

impl RecvRequest {
    /// Creates a receive of one scatter/gather element.
    #[inline]
    #[must_use]
    pub fn new(id: u64, into: Sge) -> Self {
        Self { id, list: core::iter::once(into).collect() }
    }

    /// The most bytes that the receive's elements hold.
    pub(in crate::rdma) fn capacity(&self) -> u32 {
        self.list.iter().fold(0u32, |sum, sge| sum.saturating_add(sge.len))
    }
}

/// The length of a work request's data in bytes.
pub(crate) fn data_len(data: &Data) -> u64 {
    match data {
        Data::Gather(list) => list.iter().map(|sge| u64::from(sge.len)).sum(),
        Data::Inline(bytes) => bytes.len() as u64,
    }
}

/// True if the engine executes the work request's operation without the peer.
pub(crate) const fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::Bind { .. } | SendOp::FastRegister { .. } | SendOp::Invalidate(_))
}

/// Calls `each` with the parts of the scatter/gather list's elements that hold its bytes
/// `from..from + len`.
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
