//! The peer's Reads and atomics, from their requests to their responses.
//!
//! Invariant: responses leave in the order of their requests. A response leaves after its request
//! was delivered, and so after every earlier Write and Send. At most `limit` (IRD) wait; one more
//! is an error of the peer. The engine checks the source of a Read when the request arrives and
//! again for each segment, so nothing leaves a region after its end.

use alloc::collections::VecDeque;

use crate::wire::rdmap::{AtomicRequest, Cause, ReadRequest};

#[derive(Debug)]
pub(crate) enum PendingResponse {
    Read { request: ReadRequest, msn: u32, done: u32 },
    Atomic { request: AtomicRequest, msn: u32 },
}

/// The pending responses to the peer's Reads and atomics on a queue pair.
#[derive(Debug, Default)]
pub(crate) struct PendingResponses {
    pub(crate) queue: VecDeque<PendingResponse>,
    /// The most responses that may be pending: the inbound depth (IRD).
    pub(crate) limit: u16,
    /// The message number (MSN) of the peer's last Read or Atomic Request.
    pub(crate) msn: u32,
    /// The message number (MSN) of the last Atomic Response that this end sent.
    pub(crate) atomic_msn: u32,
    /// The number of responses sent since the send queue last had its turn.
    pub(crate) in_a_row: u8,
}

impl PendingResponses {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// True if some segments of a Read Response are sent and others are not.
    pub(crate) fn is_begun(&self) -> bool {
        matches!(self.queue.front(), Some(&PendingResponse::Read { done: 1.., .. }))
    }

    /// Admits a Read or Atomic Request of the peer with this message number.
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
