//! Reads and atomics of the peer: taken when their Requests come, done and answered in turn.
//!
//! Always: answers leave in the order of their Requests, none before its Request was delivered, hence behind every earlier
//! Write and Send; at most `limit` wait (IRD), one more is the peer's error. What a Read may reach is looked at when its
//! Request comes and again for each segment, so that nothing leaves a region that was taken back.

use alloc::collections::VecDeque;

use crate::wire::rdmap::{AtomicRequest, Cause, ReadRequest};

#[derive(Debug)]
pub(crate) enum PendingResponse {
    Read { request: ReadRequest, msn: u32, done: u32 },
    Atomic { request: AtomicRequest, msn: u32 },
}

/// See the file.
#[derive(Debug, Default)]
pub(crate) struct PendingResponses {
    pub(crate) queue: VecDeque<PendingResponse>,
    /// IRD.
    pub(crate) limit: u16,
    /// Of the last Request that came.
    pub(crate) msn: u32,
    /// Of the last Atomic Response.
    pub(crate) atomic_msn: u32,
    /// Answers since the send queue had its turn.
    pub(crate) in_a_row: u8,
}

impl PendingResponses {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// An answer is sent in part.
    pub(crate) fn is_begun(&self) -> bool {
        matches!(self.queue.front(), Some(&PendingResponse::Read { done: 1.., .. }))
    }

    /// A Request with this number comes.
    pub(crate) fn admit(&mut self, msn: u32) -> Result<(), Cause> {
        if msn != self.msn.wrapping_add(1) {
            return Err(Cause::UNTAGGED_MSN);
        }
        if self.queue.len() >= usize::from(self.limit) {
            return Err(Cause::UNTAGGED_NO_BUFFER);
        }
        self.msn = msn;
        Ok(())
    }
}
