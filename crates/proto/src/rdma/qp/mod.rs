//! A queue pair: its state, posting and completion. The wire's part is one field.
//!
//! ```text
//!  post_send ─► send queue ─► iwarp::tx ─► FPDU
//!  FPDU ─► iwarp::rx ─┬► rx_message ─► receive queue ─► completion
//!                     ├► responder (Reads and atomics of the peer) ─► iwarp::tx
//!                     └► requester (responses to own Reads and atomics) ─► completion
//! ```
//!
//! Invariant: work requests of one queue complete in the order posted, each once; after an error
//! none succeeds. An idle queue pair has no buffers: the rings grow with posted requests, up to the
//! depths in its options.
//!
//! Not here: the stream, its start-up and its end.

pub(crate) mod deferred;
pub(crate) mod ranges;
pub(crate) mod recv_queue;
pub(crate) mod send_queue;
pub(crate) mod unexpected;

use core::mem;

use crate::Instant;
use crate::rdma::completion::{Completed, Completion, Status};
use crate::rdma::error::PostError;
use crate::rdma::event::Event;
use crate::rdma::ids::{Conn, Qp};
use crate::rdma::iwarp::state::IwarpState;
use crate::rdma::mr::{Rights, TagUser};
use crate::rdma::options::{QpOptions, QpState};
use crate::rdma::qp::deferred::Deferral;
use crate::rdma::qp::recv_queue::ReceiveQueue;
use crate::rdma::qp::send_queue::SendQueue;
use crate::rdma::shared::Shared;
use crate::rdma::work::{Data, RecvRequest, SendOp, SendRequest, data_len};

/// The most bytes of a message.
const MESSAGE_MAX: u64 = 1 << 31;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: Qp,
    pub(crate) options: QpOptions,
    pub(crate) state: QpState,
    pub(crate) conn: Option<Conn>,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    pub(crate) iwarp: IwarpState,
    pub(crate) deferral: Deferral,
    /// The longest time for which a message of the peer waits for a receive; `None` means no limit.
    pub(crate) rnr_timeout_ns: Option<u64>,
    /// The accesses to this end's memory that the queue pair allows its peer.
    pub(crate) rights: Rights,
}

impl QueuePair {
    pub(crate) fn new(number: Qp, options: QpOptions) -> Self {
        Self {
            number,
            options,
            state: QpState::Idle,
            conn: None,
            send: SendQueue::default(),
            receive: ReceiveQueue::default(),
            iwarp: IwarpState::default(),
            deferral: Deferral::default(),
            rnr_timeout_ns: None,
            rights: Rights::ALL,
        }
    }

    /// Starts a connection of the queue pair.
    pub(crate) fn start(&mut self, conn: Conn, rnr_timeout_ns: Option<u64>) {
        self.conn = Some(conn);
        self.rnr_timeout_ns = rnr_timeout_ns;
        self.state = QpState::Starting;
    }

    /// Ends a start-up without a connection: flushes the send queue and keeps the receives.
    pub(crate) fn unstart(&mut self, shared: &mut Shared) {
        while let Some((id, op, status)) = self.send.flush_one() {
            self.complete_send(id, op, status, 0, shared);
        }
        self.drop_unexpected(shared);
        let receive = mem::take(&mut self.receive);
        *self = Self { receive, rights: self.rights, ..Self::new(self.number, self.options) };
    }

    /// The queue pair as the user of a steering tag.
    pub(crate) const fn tag_user(&self) -> TagUser {
        TagUser { pd: self.options.pd, qp: self.number, rights: self.rights }
    }

    /// Posts a request to the send queue. If the queue pair is in error, the request completes as
    /// flushed. While the connection closes, the request waits for the end.
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
            self.complete_send(request.id, Completed::of(&request.op), Status::Flushed, 0, shared);
        } else {
            self.send.push(request);
        }
        Ok(())
    }

    /// Checks that all of these send requests can be posted.
    pub(crate) fn check_sends(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        if self.state == QpState::Idle {
            return Err(PostError::Invalid);
        }
        requests.iter().try_for_each(|request| self.check_send(request))?;
        let room = (self.options.send_depth as usize).saturating_sub(self.send.len());
        if requests.len() > room { Err(PostError::Full) } else { Ok(()) }
    }

    /// Checks a send request by itself, without regard to the room in the queue.
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
            data => (data_len(data) > 0).then_some(PostError::Inline),
        };
        if let Some(error) = wrong {
            return Err(error);
        }
        if data_len(&request.data) > MESSAGE_MAX { Err(PostError::TooLong) } else { Ok(()) }
    }

    /// Posts a receive. If the queue pair is in error, the receive completes as flushed.
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
            // The first unexpected message has its receive, even if the engine places it later.
            self.receive.rnr_deadline = Instant::NEVER;
        }
        Ok(())
    }

    /// Puts the queue pair in error. The request at fault completes with its own status, all others
    /// complete as flushed.
    pub(crate) fn fail(&mut self, shared: &mut Shared) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        self.conn = None;
        while let Some((id, op, status)) = self.send.flush_one() {
            self.complete_send(id, op, status, 0, shared);
        }
        self.drop_unexpected(shared);
        while let Some((id, status)) = self.receive.flush_one() {
            self.complete_recv(id, status, shared);
        }
        self.iwarp.clear();
        if self.options.srq.is_some() {
            shared.events.push_back(Event::LastWqe(self.number));
        }
    }

    /// True if the queue pair has nothing to send and no response to wait for.
    pub(crate) fn is_quiet(&self) -> bool {
        self.iwarp.is_quiet() && self.send.is_quiet()
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
