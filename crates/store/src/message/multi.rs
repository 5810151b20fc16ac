//! The format of multi-operations: several requests in one, and their replies in one.
//!
//! ```text
//! request   0 head | parts      reply   0 head | parts
//! part      0 length u32 | 4 the request or the reply of one operation
//! ```
//!
//! The reply has the replies to the first parts of the request, to one at least. The other parts
//! were not executed.
//!
//! Invariant: iteration never panics.

use alloc::vec::Vec;

use super::data::{Refusal, accepted, head};
use super::{Opcode, Status, VERSION};

/// The number of bytes before each part: its length.
pub const PART_HEAD: usize = 4;

/// The parts of a multi-operation's request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// Returns the parts in the bytes behind the head of a request.
    ///
    /// # Errors
    /// [`Status::BadFormat`] if there is no part, or if a part is cut off.
    pub(crate) fn of_request(bytes: &'a [u8]) -> Result<Self, Status> {
        // This walk checks all lengths, so that later iterations meet none that is wrong.
        let mut walk = Self(bytes);
        let is_whole = walk.by_ref().count() > 0 && walk.0.is_empty();
        if is_whole { Ok(Self(bytes)) } else { Err(Status::BadFormat) }
    }

    /// Returns the parts of a reply.
    ///
    /// # Errors
    /// The refusal in the reply, or [`Status::BadFormat`] as [`Parts::of_request`].
    pub fn of_reply(reply: &'a [u8]) -> Result<Self, Refusal<'a>> {
        Ok(Self::of_request(accepted(reply)?)?)
    }

    /// Returns the bytes of the parts.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        self.0 = rest;
        Some(part)
    }
}

/// Begins the request of a multi-operation in `out`, whose old contents are dropped.
pub(crate) fn begin_request(out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[VERSION, Opcode::Multi as u8, 0, 0]);
}

/// Begins the reply to a multi-operation.
pub(crate) fn begin_reply(out: &mut Vec<u8>) {
    out.extend_from_slice(&head(Status::Ok));
}

/// Appends a part to a message.
#[inline]
pub(crate) fn append(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&(part.len() as u32).to_be_bytes());
    out.extend_from_slice(part);
}

/// Begins a part of a message, whose bytes follow. Returns its place for [`end`].
#[inline]
pub(crate) fn begin(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; PART_HEAD]);
    out.len()
}

/// Ends the part that began at `at`.
#[inline]
pub(crate) fn end(out: &mut [u8], at: usize) {
    let length = (out.len() - at) as u32;
    out[at - PART_HEAD..at].copy_from_slice(&length.to_be_bytes());
}
