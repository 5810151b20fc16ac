//! This end's Reads and atomics that wait for their responses, oldest first.
//!
//! Invariant: at most `limit` (ORD) wait at once, plus the Read that opens a peer-to-peer
//! connection. A response belongs to the oldest request, and one that does not fit it ends the
//! stream.

use alloc::collections::VecDeque;

use crate::rdma::qp::ranges::Ranges;
use crate::rdma::work::Sge;

/// The kind of an outstanding request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestKind {
    Read,
    /// The outstanding request is an atomic with this request identifier.
    Atomic(u32),
}

/// A Read or an atomic of this end that waits for its response.
#[derive(Debug)]
pub(crate) struct OutstandingRequest {
    /// The number of the outstanding request's work request; none for the frame that opens a
    /// connection.
    pub(crate) number: Option<u64>,
    pub(crate) sink: Sge,
    pub(crate) kind: RequestKind,
    pub(crate) got: Ranges,
    /// True if the last segment of the request's response has arrived.
    pub(crate) ended: bool,
    /// The number of Writes that were framed before the request.
    pub(crate) writes: u64,
}

impl OutstandingRequest {
    pub(crate) fn new(number: Option<u64>, sink: Sge, kind: RequestKind, writes: u64) -> Self {
        Self { number, sink, kind, got: Ranges::default(), ended: false, writes }
    }
}

/// The outstanding requests of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct OutstandingRequests {
    pub(crate) queue: VecDeque<OutstandingRequest>,
    /// The most Reads and atomics that may be outstanding: the outbound depth (ORD).
    pub(crate) limit: u16,
    /// The message number (MSN) of the last Read or atomic that was requested.
    pub(crate) msn: u32,
    /// The number of Atomic Responses that this end has received.
    pub(crate) atomic_msn: u32,
    pub(crate) id: u32,
}

impl OutstandingRequests {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= usize::from(self.limit)
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(crate) fn push(&mut self, asked: OutstandingRequest) {
        self.queue.push_back(asked);
    }

    pub(crate) fn next_msn(&mut self) -> u32 {
        self.msn = self.msn.wrapping_add(1);
        self.msn
    }

    pub(crate) fn next_id(&mut self) -> u32 {
        self.id = self.id.wrapping_add(1);
        self.id
    }

    /// Returns the work request that belongs to the Read or atomic with this message number and,
    /// for a Read, this sink. Linux's siw sends another value as the message number, so the sink
    /// alone decides if the number does not fit.
    pub(crate) fn find(&self, msn: Option<u32>, sink: Option<(u32, u64)>) -> Option<u64> {
        let numbered = msn.and_then(|msn| {
            let back = self.msn.wrapping_sub(msn) as usize;
            self.queue.get(self.queue.len().checked_sub(back.checked_add(1)?)?)
        });
        let asked = match sink {
            None => numbered,
            Some((stag, to)) => {
                let covers = |asked: &&OutstandingRequest| {
                    let from = to.wrapping_sub(asked.sink.addr);
                    asked.sink.stag.0 == stag && from < u64::from(asked.sink.len.max(1))
                };
                numbered.filter(covers).or_else(|| self.queue.iter().find(covers))
            }
        };
        asked.and_then(|asked| asked.number)
    }

    /// True if `msn` is the message number of the next Atomic Response.
    pub(crate) const fn atomic_response_due(&mut self, msn: u32) -> bool {
        let due = self.atomic_msn.wrapping_add(1) == msn;
        if due {
            self.atomic_msn = msn;
        }
        due
    }

    /// The number of the oldest work request that waits for its response.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.queue.iter().find_map(|asked| asked.number)
    }
}
