//! The receive queue: posted receives, and messages that are arriving.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::Instant;
use crate::rdma::completion::Status;
use crate::rdma::qp::ranges::Ranges;
use crate::rdma::qp::unexpected::UnexpectedMessage;
use crate::rdma::work::RecvRequest;
use crate::wire::rdmap::Opcode;

/// The place for the bytes of an arriving message.
#[derive(Debug)]
pub(in crate::rdma) enum Place {
    Receive(RecvRequest),
    /// The message goes into a buffer of the engine, since no receive is posted yet.
    Unexpected(Box<UnexpectedMessage>),
}

/// A message that is arriving.
#[derive(Debug)]
pub(in crate::rdma) struct IncomingMessage {
    pub(in crate::rdma) place: Place,
    pub(in crate::rdma) capacity: u32,
    pub(crate) got: Ranges,
    /// The length, opcode and ULP word of the message, known from its last segment.
    pub(in crate::rdma) end: Option<(u32, Opcode, u32)>,
    /// The message's immediate data, and the length of the Write directly before it.
    pub(crate) immediate: Option<(u64, u32)>,
    pub(in crate::rdma) fault: Option<Status>,
}

impl IncomingMessage {
    /// Creates a message of which no byte has arrived.
    pub(in crate::rdma) fn new(place: Place) -> Self {
        let capacity = match &place {
            Place::Receive(request) => request.capacity(),
            Place::Unexpected(_) => u32::MAX,
        };
        Self { place, capacity, got: Ranges::default(), end: None, immediate: None, fault: None }
    }

    /// True if the whole message has arrived, so that it can be delivered.
    pub(in crate::rdma) fn is_whole(&self) -> bool {
        self.end.is_some_and(|(total, ..)| self.immediate.is_some() || self.got.complete(total))
    }
}

/// A receive queue and its arriving messages.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) waiting: VecDeque<RecvRequest>,
    /// The messages after `delivered` that have begun. Unexpected ones are at the end.
    pub(in crate::rdma) arriving: VecDeque<IncomingMessage>,
    /// The number of unexpected messages in `arriving`.
    pub(in crate::rdma) unexpected: usize,
    /// The bytes of memory that the queue pair's unexpected messages take.
    pub(in crate::rdma) unexpected_bytes: usize,
    /// The time at which the first message without a receive ends the connection.
    pub(crate) rnr_deadline: Instant,
    /// The message number (MSN) of the last delivered message.
    pub(crate) delivered: u32,
}

impl Default for ReceiveQueue {
    fn default() -> Self {
        let (waiting, arriving) = (VecDeque::new(), VecDeque::new());
        Self {
            waiting,
            arriving,
            unexpected: 0,
            unexpected_bytes: 0,
            rnr_deadline: Instant::NEVER,
            delivered: 0,
        }
    }
}

impl ReceiveQueue {
    /// The number of posted receives that have not completed.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.arriving.len() - self.unexpected
    }

    /// True if a message waits for the next receive to be posted.
    pub(crate) const fn is_awaited(&self) -> bool {
        self.unexpected > 0
    }

    pub(crate) fn post(&mut self, request: RecvRequest) {
        self.waiting.push_back(request);
    }

    /// Takes the front receive of a failed queue pair, to complete it.
    pub(crate) fn flush_one(&mut self) -> Option<(u64, Status)> {
        if let Some(IncomingMessage { place: Place::Receive(request), fault, .. }) =
            self.arriving.pop_front()
        {
            return Some((request.id, fault.unwrap_or(Status::Flushed)));
        }
        self.waiting.pop_front().map(|request| (request.id, Status::Flushed))
    }

    /// Counts the peer's first message as delivered without a receive, since it only opened the
    /// connection.
    pub(crate) const fn skip_first(&mut self) {
        self.delivered = self.delivered.wrapping_add(1);
    }

    /// The index of message `msn` in `arriving`.
    pub(crate) fn place(&self, msn: u32) -> u32 {
        msn.wrapping_sub(self.delivered.wrapping_add(1))
    }

    /// The number of messages from the first incomplete one on.
    pub(crate) fn begun(&self) -> usize {
        let first = self.arriving.iter().position(|incoming| !incoming.is_whole());
        first.map_or(0, |first| self.arriving.len() - first)
    }

    pub(crate) fn incoming(&mut self, msn: u32) -> Option<&mut IncomingMessage> {
        let place = self.place(msn);
        self.arriving.get_mut(place as usize)
    }
}
