//! Completes work requests of the send queue, and finds the request at fault.

use crate::Instant;
use crate::rdma::completion::{Completed, Status};
use crate::rdma::iwarp::start::{FirstFpdu, Negotiated};
use crate::rdma::memory::Span;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::send_queue::Stage;
use crate::rdma::shared::Shared;
use crate::rdma::work::{Data, SendRequest, Sge};
use crate::wire::ddp::{self, Buffer};
use crate::wire::rdmap::{Cause, Opcode, QN_REQUEST, Terminate};

impl QueuePair {
    /// Marks the current work request of the send queue as framed and moves on to the next one.
    #[inline]
    pub(crate) fn advance(&mut self, stage: Stage, now: Instant) {
        let signaled = |request: &SendRequest| request.flags.signaled || self.options.signal_all;
        if self.send.current().is_some_and(signaled) {
            self.iwarp.acks.await_framed();
        }
        self.send.advance(stage, self.iwarp.acks.framed());
        self.message_framed(now);
    }

    /// Enters full operation of the connection with the negotiated parameters.
    pub(crate) fn open(&mut self, agreed: Negotiated) {
        self.iwarp.outstanding.limit = agreed.depths.ord;
        self.iwarp.responses.limit = agreed.depths.ird;
        self.iwarp.opened_by_send = matches!(agreed.first, FirstFpdu::WaitFor(rtr) if rtr.send);
    }

    /// Completes the work requests at the front of the send queue that are done.
    #[inline]
    pub(crate) fn complete_done(&mut self, shared: &mut Shared) {
        let (taken, acked, all) =
            (self.iwarp.taken, self.iwarp.acks.acked(), self.options.signal_all);
        while let Some((request, len)) = self.send.front_done(taken, acked, all) {
            if request.flags.signaled || self.options.signal_all {
                let (id, completed) = (request.id, Completed::of(&request.op));
                self.complete_send(id, completed, Status::Success, len, shared);
            }
            self.send.drop_front();
        }
    }

    /// Sets the fault of the work request that sends `span`, whose memory is unmapped.
    pub(crate) fn set_source_fault(&mut self, span: Span, shared: &Shared) {
        let pd = self.options.pd;
        let ends = |of: &Span| (of.offset, of.offset + u64::from(of.len));
        let (from, to) = ends(&span);
        let overlaps = |sge: &Sge| match shared.mr.local(pd, *sge, false) {
            Ok(source) => {
                source.region == span.region && ends(&source).0 < to && from < ends(&source).1
            }
            // The region's registration has ended too.
            Err(_) => true,
        };
        let is = |request: &SendRequest| match &request.data {
            Data::Gather(list) => list.iter().any(overlaps),
            Data::Inline(_) => false,
        };
        if let Some(number) = self.send.under_way(self.iwarp.taken, is) {
            self.send.set_fault(number, Status::LocalProtection);
        }
    }

    /// Sets the fault of the work request that the peer's Terminate names.
    pub(crate) fn set_fault_by_terminate(&mut self, terminate: &Terminate) {
        let Some(about) = &terminate.about else { return };
        let found = ddp::parse(&about.header).ok().map(|header| (header.control, header.buffer));
        let write = Opcode::Write.control();
        if matches!(found, Some((control, Buffer::Tagged { .. })) if control == write) {
            return self.set_write_fault(terminate.cause);
        }
        let msn = match found {
            Some((_, Buffer::Untagged { qn: QN_REQUEST, msn, .. })) => Some(msn),
            _ => None,
        };
        let number =
            self.iwarp.outstanding.find(msn, about.read.map(|read| (read.sink_stag, read.sink_to)));
        if let Some(number) = number {
            self.send.set_fault(number, refusal(terminate.cause));
        }
    }

    /// Sets the fault of the Write that the peer refused: the one after the last acknowledged
    /// Write. The peer acknowledges all earlier ones before its Terminate.
    fn set_write_fault(&mut self, cause: Cause) {
        if !self.iwarp.acks.peer_acknowledges() {
            return;
        }
        let found = self.send.find_write(self.iwarp.acks.acked() + 1, self.iwarp.acks.framed());
        if let Some(number) = found {
            self.send.set_fault(number, refusal(cause));
        }
    }
}

/// The completion status of a work request that the peer refused.
const fn refusal(cause: Cause) -> Status {
    if cause.is_access() { Status::RemoteAccess } else { Status::RemoteOperation }
}
