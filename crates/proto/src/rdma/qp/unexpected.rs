//! Messages without a receive.

use alloc::vec::Vec;

use crate::rdma::ids::Qp;
use crate::wire::rdmap::{Cause, Offending};

/// What a queue pair keeps before its stream is read no further: many small messages, or the begin of a long one. What is
/// read in one piece is kept as a whole all the same.
pub(crate) const STALL_BYTES: usize = 256 << 10;

/// What a message counts besides its bytes, about what its entry takes, so that empty ones do not come without end.
pub(crate) const ENTRY_BYTES: usize = 256;

/// What is kept of a message without a receive.
#[derive(Debug)]
pub(crate) struct UnexpectedMessage {
    pub(crate) bytes: Vec<u8>,
    /// The end of the segment that came last: its bytes may still be coming.
    pub(crate) extent: u32,
    /// Its first segment, for a Terminate.
    pub(crate) about: Offending,
}

impl UnexpectedMessage {
    /// A segment of it comes.
    pub(crate) fn admit(&mut self, mo: u32, len: u32) -> Result<(), Cause> {
        // Only what comes in order is kept; the rest is as it would be without patience.
        if mo as usize != self.bytes.len() {
            return Err(Cause::UNTAGGED_NO_BUFFER);
        }
        self.extent = mo.checked_add(len).ok_or(Cause::UNTAGGED_MO)?;
        Ok(())
    }

    /// Bytes of it come.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + ENTRY_BYTES
    }
}

/// What all queue pairs of an engine keep.
#[derive(Debug)]
pub(crate) struct UnexpectedPool {
    /// Messages without a receive.
    pub(crate) messages: usize,
    /// What they count.
    pub(crate) bytes: usize,
    /// The most that they may count; from half of it on a queue pair keeps one piece of its stream and is then read no further.
    pub(crate) most: usize,
    /// Queue pairs that are read no further although they have kept little.
    pub(crate) stalled: Vec<Qp>,
}

impl UnexpectedPool {
    pub(crate) const fn new(most: usize) -> Self {
        Self { messages: 0, bytes: 0, most, stalled: Vec::new() }
    }

    /// So many bytes more are kept.
    pub(crate) const fn grow(&mut self, bytes: usize) -> Result<(), Cause> {
        self.bytes += bytes;
        if self.bytes > self.most { Err(Cause::UNTAGGED_NO_BUFFER) } else { Ok(()) }
    }

    pub(crate) const fn is_short(&self) -> bool {
        self.bytes >= self.most / 2
    }
}
