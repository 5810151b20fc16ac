//! The frames that a stream has queued and not written.

use arrayvec::ArrayVec;

use super::head::{Head, LONGEST};
use crate::Instant;
use crate::rpc::types::Message;

/// The next frame to be written, lent to a carrier of whole frames.
#[derive(Debug)]
pub struct Front<'s> {
    /// The bytes of the frame's header.
    pub header: &'s [u8],
    /// The message behind the frame's header.
    pub message: &'s Message,
}

/// A frame that waits to be written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) head: Head,
    /// The bytes of the frame's header. They are encoded when the frame is written, for they
    /// contain the time that is left until the deadline.
    pub(super) bytes: ArrayVec<u8, LONGEST>,
    pub(super) message: Message,
    pub(super) deadline: Instant,
}

impl Frame {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.message.len()
    }
}
