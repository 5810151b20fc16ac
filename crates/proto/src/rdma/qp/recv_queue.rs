//! The receive queue.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::Instant;
use crate::rdma::completion::Status;
use crate::rdma::qp::ranges::Ranges;
use crate::rdma::qp::unexpected::UnexpectedMessage;
use crate::rdma::work::RecvRequest;
use crate::wire::rdmap::Opcode;

/// Where the bytes of a message go.
#[derive(Debug)]
pub(in crate::rdma) enum Place {
    Receive(RecvRequest),
    /// No receive is there yet.
    Unexpected(Box<UnexpectedMessage>),
}

/// A message that is arriving.
#[derive(Debug)]
pub(in crate::rdma) struct IncomingMessage {
    pub(in crate::rdma) place: Place,
    pub(in crate::rdma) capacity: u32,
    pub(crate) got: Ranges,
    /// Its length, and what its last segment says.
    pub(in crate::rdma) end: Option<(u32, Opcode, u32)>,
    /// Immediate data, and the bytes of the Write directly before it.
    pub(crate) immediate: Option<(u64, u32)>,
    pub(in crate::rdma) fault: Option<Status>,
}

impl IncomingMessage {
    /// A message with this place for its bytes, none of which is there.
    pub(in crate::rdma) fn new(place: Place) -> Self {
        let capacity = match &place {
            Place::Receive(request) => request.capacity(),
            Place::Unexpected(_) => u32::MAX,
        };
        Self { place, capacity, got: Ranges::default(), end: None, immediate: None, fault: None }
    }

    /// All of it is there.
    pub(in crate::rdma) fn is_whole(&self) -> bool {
        self.end.is_some_and(|(total, ..)| self.immediate.is_some() || self.got.complete(total))
    }
}

/// See the file.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) waiting: VecDeque<RecvRequest>,
    /// The messages after `delivered` that are begun; those without a receive are at its end.
    pub(in crate::rdma) arriving: VecDeque<IncomingMessage>,
    /// How many of them have no receive,
    pub(in crate::rdma) unexpected: usize,
    /// what is kept of these,
    pub(in crate::rdma) kept: usize,
    /// and when the patience with the first one ends.
    pub(crate) until: Instant,
    /// The number of the last message that was delivered.
    pub(crate) delivered: u32,
}

impl Default for ReceiveQueue {
    fn default() -> Self {
        let (waiting, arriving) = (VecDeque::new(), VecDeque::new());
        Self { waiting, arriving, unexpected: 0, kept: 0, until: Instant::NEVER, delivered: 0 }
    }
}

impl ReceiveQueue {
    /// Receives that are posted and not completed.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.arriving.len() - self.unexpected
    }

    /// A message waits for the next receive.
    pub(crate) const fn is_awaited(&self) -> bool {
        self.unexpected > 0
    }

    pub(crate) fn post(&mut self, request: RecvRequest) {
        self.waiting.push_back(request);
    }

    /// Takes the front as the queue pair has failed.
    pub(crate) fn flush_one(&mut self) -> Option<(u64, Status)> {
        if let Some(IncomingMessage { place: Place::Receive(request), fault, .. }) =
            self.arriving.pop_front()
        {
            return Some((request.id, fault.unwrap_or(Status::Flushed)));
        }
        self.waiting.pop_front().map(|request| (request.id, Status::Flushed))
    }

    /// The first message takes no receive: it only opened the connection.
    pub(crate) const fn swallow(&mut self) {
        self.delivered = self.delivered.wrapping_add(1);
    }

    /// Where message `msn` stands in `arriving`.
    pub(crate) fn place(&self, msn: u32) -> u32 {
        msn.wrapping_sub(self.delivered.wrapping_add(1))
    }

    /// How many messages are begun from the first one on that is not whole.
    pub(crate) fn begun(&self) -> usize {
        let first = self.arriving.iter().position(|incoming| !incoming.is_whole());
        first.map_or(0, |first| self.arriving.len() - first)
    }

    pub(crate) fn incoming(&mut self, msn: u32) -> Option<&mut IncomingMessage> {
        let place = self.place(msn);
        self.arriving.get_mut(place as usize)
    }
}
