//! Buffers for unexpected messages: those that arrive before a receive is posted for them.

use alloc::vec::Vec;

use crate::rdma::ids::Qp;
use crate::wire::rdmap::{Cause, Offending};

/// The memory of unexpected messages at which a queue pair stalls its stream: many small messages,
/// or the begin of a long one. The engine still buffers all of the input it has read.
pub(crate) const STALL_BYTES: usize = 256 << 10;

/// The bytes of memory that each unexpected message counts besides its payload, about the size of
/// its entry, so that empty messages have a limit too.
pub(crate) const ENTRY_BYTES: usize = 256;

/// The buffer of a message that arrived before a receive was posted for it.
#[derive(Debug)]
pub(crate) struct UnexpectedMessage {
    pub(crate) bytes: Vec<u8>,
    /// The offset in the message at which its last segment ends. Bytes of that segment may still be
    /// arriving.
    pub(crate) extent: u32,
    /// The first segment of the message, which a Terminate would describe.
    pub(crate) about: Offending,
}

impl UnexpectedMessage {
    /// Admits a segment of an unexpected message if it continues the buffered bytes.
    pub(crate) fn admit(&mut self, mo: u32, len: u32) -> Result<(), Cause> {
        // The engine buffers only segments in order. It refuses others, like a message without
        // buffering.
        if mo as usize != self.bytes.len() {
            return Err(Cause::UNTAGGED_NO_BUFFER);
        }
        self.extent = mo.checked_add(len).ok_or(Cause::UNTAGGED_MO)?;
        Ok(())
    }

    /// Appends bytes of the current segment to the unexpected message's buffer.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + ENTRY_BYTES
    }
}

/// The memory of unexpected messages of all queue pairs.
#[derive(Debug)]
pub(crate) struct UnexpectedPool {
    /// The number of unexpected messages of all queue pairs.
    pub(crate) messages: usize,
    /// The bytes of memory that the unexpected messages of all queue pairs take.
    pub(crate) bytes: usize,
    /// The limit of `bytes`. From half of it on, a queue pair that buffers anything stalls its
    /// stream.
    pub(crate) most: usize,
    /// Queue pairs whose streams stalled only because of the limit for all queue pairs together.
    pub(crate) stalled: Vec<Qp>,
}

impl UnexpectedPool {
    pub(crate) const fn new(most: usize) -> Self {
        Self { messages: 0, bytes: 0, most, stalled: Vec::new() }
    }

    /// Counts more memory of unexpected messages, and fails above the limit.
    pub(crate) const fn grow(&mut self, bytes: usize) -> Result<(), Cause> {
        self.bytes += bytes;
        if self.bytes > self.most { Err(Cause::UNTAGGED_NO_BUFFER) } else { Ok(()) }
    }

    pub(crate) const fn is_short(&self) -> bool {
        self.bytes >= self.most / 2
    }
}
