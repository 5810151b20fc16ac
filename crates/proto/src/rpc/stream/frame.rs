//! A frame that waits to be written.

use arrayvec::ArrayVec;

use super::head::{Head, LONGEST};
use crate::Instant;
use crate::rpc::types::Message;

/// The next frame to be written.
#[derive(Debug)]
pub struct Front<'s> {
    /// Its header.
    pub header: &'s [u8],
    /// Its message.
    pub message: &'s Message,
}

/// A frame that waits to be written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) head: Head,
    /// The header's bytes once it is the frame's turn: it tells how much time is left then.
    pub(super) bytes: ArrayVec<u8, LONGEST>,
    pub(super) message: Message,
    pub(super) deadline: Instant,
    /// The request that it carries.
    pub(super) request: Option<u64>,
}

impl Frame {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.message.len()
    }
}
