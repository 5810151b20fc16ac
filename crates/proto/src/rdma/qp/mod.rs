//! A queue pair: what was posted, what has come, and the order of both. This file has its state, posting and its end; the
//! ways are in files of their own.
//!
//! ```text
//!  post_send ─► send (ring) ─► transmit ─► FPDU          FPDU ─► arrive ─┬► receive ─► completion
//!                   ▲                                                   ├► respond (Reads and atomics of the peer) ─► FPDU
//!                   └────────── request (own Reads and atomics) ◄───────┘
//! ```
//!
//! Always: work requests of one queue complete in the order posted, each once; after an error nothing completes well any
//! more. An idle queue pair holds no buffers: the rings grow with what is posted, up to the depth agreed upon.
//! Not here: the stream, its start-up and its end.

pub(crate) mod ranges;
pub(crate) mod send_queue;

use core::mem;

use crate::rdma::iwarp::{requester, responder, rx, rx_message, write_ack};

use crate::Instant;
use crate::rdma::iwarp::start::{First, Negotiated};
use crate::rdma::mr::{Rights, Stream};
use crate::rdma::rnic::Shared;
use crate::rdma::rnic::poll::Hold;
use crate::rdma::{
    Completed, Completion, Conn, Data, Event, PostError, Qp, QpOptions, QpState, RecvRequest,
    SendOp, SendRequest, Status,
};
use crate::wire::ddp::{self, Buffer, HeaderBytes};
use crate::wire::rdmap::{Cause, Offending, Opcode, QN_REQUEST, Terminate};

/// Most octets of a message.
const MESSAGE_MAX: u64 = 1 << 31;

/// An error that ends the stream.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// What the Terminate says,
    pub(crate) cause: Cause,
    /// and of which segment.
    pub(crate) about: Option<Offending>,
}

impl Fault {
    /// An error of our own, or one that no segment caused.
    pub(crate) const fn own(cause: Cause) -> Self {
        Self { cause, about: None }
    }
}

impl From<Cause> for Fault {
    fn from(cause: Cause) -> Self {
        Self::own(cause)
    }
}

/// See the file.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: Qp,
    pub(crate) options: QpOptions,
    pub(crate) state: QpState,
    pub(crate) conn: Option<Conn>,
    pub(crate) send: send_queue::SendQueue,
    pub(crate) receive: rx_message::ReceiveQueue,
    pub(crate) requests: requester::Requests,
    pub(crate) answers: responder::Answers,
    pub(crate) arrival: rx::Arrival,
    /// The peer's first message may be a Send that only opens the connection.
    pub(crate) opened_by_send: bool,
    /// Octets that the stream has taken since it was up.
    pub(crate) taken: u64,
    pub(crate) hold: Hold,
    pub(crate) placement: write_ack::Placement,
    /// We have asked for the connection; and the peer has sent a segment.
    pub(crate) asked: bool,
    pub(crate) met: bool,
    /// How long a message waits for its receive; for ever if none.
    pub(crate) rnr_timeout_ns: Option<u64>,
    /// What the peer may do with memory.
    pub(crate) rights: Rights,
}

impl QueuePair {
    pub(crate) fn new(number: Qp, options: QpOptions) -> Self {
        Self {
            number,
            options,
            state: QpState::Idle,
            conn: None,
            send: send_queue::SendQueue::default(),
            receive: rx_message::ReceiveQueue::default(),
            requests: requester::Requests::default(),
            answers: responder::Answers::default(),
            arrival: rx::Arrival::default(),
            opened_by_send: false,
            taken: 0,
            hold: Hold::default(),
            placement: write_ack::Placement::default(),
            asked: false,
            met: false,
            rnr_timeout_ns: None,
            rights: Rights::ALL,
        }
    }

    /// A connection is being made.
    pub(crate) fn start(&mut self, conn: Conn, rnr_timeout_ns: Option<u64>) {
        self.conn = Some(conn);
        self.rnr_timeout_ns = rnr_timeout_ns;
        self.state = QpState::Starting;
    }

    /// Full operation begins as agreed.
    pub(crate) fn open(&mut self, agreed: Negotiated) {
        self.requests.limit = agreed.depths.ord;
        self.answers.limit = agreed.depths.ird;
        self.opened_by_send = matches!(agreed.first, First::WaitFor(rtr) if rtr.send);
    }

    /// There will be no connection: what was posted for it is flushed, receives stay.
    pub(crate) fn unstart(&mut self, shared: &mut Shared) {
        while let Some((id, op, status)) = self.send.flush_one() {
            self.complete_send(id, op, status, 0, shared);
        }
        self.forget_unready(shared);
        let receive = mem::take(&mut self.receive);
        *self = Self { receive, rights: self.rights, ..Self::new(self.number, self.options) };
    }

    /// The peer has ended the stream: the request it complains of is at fault.
    pub(crate) fn blame_by(&mut self, terminate: &Terminate) {
        let Some(about) = &terminate.about else { return };
        let found = ddp::parse(&about.header).ok().map(|header| (header.control, header.buffer));
        if matches!(found, Some((control, Buffer::Tagged { .. })) if control == Opcode::Write.control())
        {
            return self.blame_write(terminate.cause);
        }
        let msn = match found {
            Some((_, Buffer::Untagged { qn: QN_REQUEST, msn, .. })) => Some(msn),
            _ => None,
        };
        let number = self.requests.find(msn, about.read.map(|read| (read.sink_stag, read.sink_to)));
        if let Some(number) = number {
            self.send.blame(number, refusal(terminate.cause));
        }
    }

    /// The peer has refused a Write: the one behind those that it has acknowledged, all of which it has.
    fn blame_write(&mut self, cause: Cause) {
        if !self.placement.is_ours() {
            return;
        }
        let found = self.send.find_write(self.placement.acked() + 1, self.placement.framed());
        if let Some(number) = found {
            self.send.blame(number, refusal(cause));
        }
    }

    /// As whom it uses tags.
    pub(crate) const fn stream(&self) -> Stream {
        Stream { pd: self.options.pd, qp: self.number, rights: self.rights }
    }

    /// Takes a work request for the send queue. In error it completes as flushed; while the connection is being closed it
    /// waits for that.
    pub(crate) fn post_send(
        &mut self,
        request: SendRequest,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        if self.state == QpState::Idle {
            return Err(PostError::Invalid);
        }
        self.check_send(&request)?;
        if self.send.len() >= self.options.send_depth as usize {
            return Err(PostError::Full);
        }
        if self.state == QpState::Error {
            self.complete_send(request.id, completed(&request.op), Status::Flushed, 0, shared);
        } else {
            self.send.push(request);
        }
        Ok(())
    }

    /// Whether all of these would be taken.
    pub(crate) fn check_sends(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        if self.state == QpState::Idle {
            return Err(PostError::Invalid);
        }
        requests.iter().try_for_each(|request| self.check_send(request))?;
        let room = (self.options.send_depth as usize).saturating_sub(self.send.len());
        if requests.len() > room { Err(PostError::Full) } else { Ok(()) }
    }

    /// What can be said of a request before its turn comes.
    fn check_send(&self, request: &SendRequest) -> Result<(), PostError> {
        let carries = matches!(
            request.op,
            SendOp::Send
                | SendOp::SendInvalidate(_)
                | SendOp::Write(_)
                | SendOp::WriteImmediate(..)
        );
        let reads = matches!(request.op, SendOp::Read(_) | SendOp::ReadInvalidate(_));
        let atomic = matches!(request.op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        let wrong = match &request.data {
            Data::Gather(list) if carries => {
                (list.len() > self.options.max_send_sge).then_some(PostError::TooManyElements)
            }
            Data::Inline(bytes) if carries => {
                (bytes.len() > self.options.max_inline).then_some(PostError::Inline)
            }
            Data::Gather(list) if reads => (list.len() > 1).then_some(PostError::TooManyElements),
            Data::Gather(list) if atomic && list.len() != 1 => Some(PostError::TooManyElements),
            Data::Gather(list) if atomic => (list[0].len != 8).then_some(PostError::Rights),
            Data::Inline(_) if reads || atomic => Some(PostError::Inline),
            data => (send_queue::octets(data) > 0).then_some(PostError::Inline),
        };
        if let Some(error) = wrong {
            return Err(error);
        }
        if send_queue::octets(&request.data) > MESSAGE_MAX {
            Err(PostError::TooLong)
        } else {
            Ok(())
        }
    }

    /// Takes a receive. In error it completes as flushed.
    pub(crate) fn post_recv(
        &mut self,
        request: RecvRequest,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        if self.options.srq.is_some() {
            return Err(PostError::Invalid);
        }
        if request.list.len() > self.options.max_recv_sge {
            return Err(PostError::TooManyElements);
        }
        if self.receive.len() >= self.options.recv_depth as usize {
            return Err(PostError::Full);
        }
        if self.state == QpState::Error {
            self.complete_recv(request.id, Status::Flushed, shared);
        } else {
            self.receive.post(request);
            // One that waited for it has it, even if it is placed later.
            self.receive.until = Instant::NEVER;
        }
        Ok(())
    }

    /// Ends all work: what is left completes as flushed, but the request that is at fault with its own status.
    pub(crate) fn fail(&mut self, shared: &mut Shared) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        self.conn = None;
        while let Some((id, op, status)) = self.send.flush_one() {
            self.complete_send(id, op, status, 0, shared);
        }
        self.forget_unready(shared);
        while let Some((id, status)) = self.receive.flush_one() {
            self.complete_recv(id, status, shared);
        }
        self.requests.clear();
        self.answers.clear();
        self.arrival = rx::Arrival::default();
        if self.options.srq.is_some() {
            shared.events.push_back(Event::LastWqe(self.number));
        }
    }

    /// Nothing is left to send or to wait for.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.placement.is_owed()
            && self.send.is_quiet()
            && self.answers.is_empty()
            && self.requests.is_empty()
    }

    pub(crate) fn complete_send(
        &self,
        id: u64,
        completed: Completed,
        status: Status,
        len: u32,
        shared: &mut Shared,
    ) {
        let (qp, at) = (self.number, shared.now);
        let c =
            Completion { id, status, completed, len, qp, immediate: None, invalidated: None, at };
        shared.complete(self.options.send_cq, c, false);
    }

    pub(crate) fn complete_recv(&self, id: u64, status: Status, shared: &mut Shared) {
        let (completed, qp, at) = (Completed::Recv, self.number, shared.now);
        let c = Completion {
            id,
            status,
            completed,
            len: 0,
            qp,
            immediate: None,
            invalidated: None,
            at,
        };
        shared.complete(self.options.recv_cq, c, false);
    }
}

/// The name of what an operation's completion is of.
pub(crate) const fn completed(op: &SendOp) -> Completed {
    match op {
        SendOp::Send | SendOp::SendInvalidate(_) | SendOp::Immediate(_) => Completed::Send,
        SendOp::Write(_) | SendOp::WriteImmediate(..) => Completed::Write,
        SendOp::Read(_) | SendOp::ReadInvalidate(_) => Completed::Read,
        SendOp::FetchAdd { .. } => Completed::FetchAdd,
        SendOp::CompareSwap { .. } => Completed::CompareSwap,
        SendOp::Bind { .. } => Completed::Bind,
        SendOp::FastRegister { .. } => Completed::FastRegister,
        SendOp::Invalidate(_) => Completed::Invalidate,
    }
}

/// How a request ends that the peer refuses.
const fn refusal(cause: Cause) -> Status {
    if cause.is_access() { Status::RemoteAccess } else { Status::RemoteOperation }
}

/// What a Terminate tells of a segment.
pub(crate) fn offending(header: &HeaderBytes, payload: usize) -> Offending {
    let ulpdu_len = u16::try_from(header.len() + payload).unwrap_or(u16::MAX);
    Offending { ulpdu_len, header: header.clone(), read: None }
}
