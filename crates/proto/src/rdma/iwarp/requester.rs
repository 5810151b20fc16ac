//! Handles the responses to Reads and atomics of this end.

use crate::rdma::completion::Status;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::outstanding::{OutstandingRequest, RequestKind};
use crate::rdma::memory::{Memory, Span};
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::send_queue::Stage;
use crate::rdma::shared::Shared;
use crate::rdma::work::{SendOp, Sge};
use crate::wire::rdmap::{AtomicResponse, Cause};

impl QueuePair {
    /// Returns the place of `len` bytes of a Read Response to `stag` and `to`.
    pub(crate) fn response_sink(
        &mut self,
        stag: u32,
        to: u64,
        len: u32,
        shared: &Shared,
    ) -> Result<Option<Span>, Cause> {
        let asked =
            self.iwarp.outstanding.queue.front().filter(|asked| asked.kind == RequestKind::Read);
        let asked = asked.ok_or(Cause::OPCODE)?;
        if asked.sink.stag.0 != stag {
            return Err(Cause::TAGGED_STAG);
        }
        let from = to.wrapping_sub(asked.sink.addr);
        if from.checked_add(u64::from(len)).is_none_or(|end| end > u64::from(asked.sink.len)) {
            return Err(Cause::TAGGED_BOUNDS);
        }
        if len == 0 {
            return Ok(None);
        }
        let number = asked.number;
        match shared.mr.local(self.options.pd, Sge { stag: asked.sink.stag, addr: to, len }, true) {
            Ok(span) => Ok(Some(span)),
            Err(_) => {
                self.set_request_fault(number, Status::LocalProtection);
                Err(Cause::LOCAL)
            }
        }
    }

    fn set_request_fault(&mut self, number: Option<u64>, status: Status) {
        if let Some(number) = number {
            self.send.set_fault(number, status);
        }
    }

    /// Sets the fault of the oldest outstanding request, whose sink is unmapped.
    pub(crate) fn set_oldest_fault(&mut self) {
        let number = self.iwarp.outstanding.oldest();
        self.set_request_fault(number, Status::LocalProtection);
    }

    /// Handles a placed segment of a Read Response.
    pub(crate) fn response_placed(
        &mut self,
        to: u64,
        len: u32,
        last: bool,
        shared: &mut Shared,
    ) -> Result<(), Cause> {
        let Some(asked) = self.iwarp.outstanding.queue.front_mut() else { return Ok(()) };
        let from = to.wrapping_sub(asked.sink.addr) as u32;
        if !asked.got.add(from, from + len) {
            return Err(Cause::OPERATION);
        }
        if last && from + len != asked.sink.len {
            return Err(Cause::OPERATION);
        }
        asked.ended |= last;
        let total = asked.sink.len;
        if asked.ended && asked.got.complete(total) {
            return self.answered(total, shared);
        }
        Ok(())
    }

    /// Stores the old value of an Atomic Response and completes the oldest outstanding request.
    pub(crate) fn atomic_response<M: Memory>(
        &mut self,
        response: AtomicResponse,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let Some(&OutstandingRequest { kind: RequestKind::Atomic(id), sink, .. }) =
            self.iwarp.outstanding.queue.front()
        else {
            return Err(Cause::OPCODE);
        };
        if id != response.id {
            return Err(Cause::OPERATION);
        }
        let span = shared.mr.local(self.options.pd, sink, true).ok();
        #[expect(clippy::host_endian_bytes, reason = "the program reads it as a number of its own")]
        let was = response.was.to_ne_bytes();
        span.iter().for_each(|span| self.iwarp.ahead.forget(*span));
        if span.is_none_or(|span| memory.write(span, &was).is_err()) {
            self.set_oldest_fault();
            return Err(Cause::LOCAL);
        }
        self.answered(8, shared)
    }

    /// Completes the oldest outstanding request, whose response has arrived.
    fn answered(&mut self, len: u32, shared: &mut Shared) -> Result<(), Cause> {
        let Some(asked) = self.iwarp.outstanding.queue.pop_front() else { return Ok(()) };
        // A Read completes after all Writes before it are placed (RFC 5040 section 5.5, rule 12).
        self.iwarp.acks.ack_up_to(asked.writes);
        let Some(number) = asked.number else { return Ok(()) };
        let Some(work) = self.send.work(number) else { return Ok(()) };
        if matches!(work.request.op, SendOp::ReadInvalidate(_))
            && let Err(status) = shared.mr.invalidate(self.tag_user(), asked.sink.stag)
        {
            self.send.set_fault(number, status);
            return Err(Cause::LOCAL);
        }
        if let Some(work) = self.send.work(number) {
            work.stage = Stage::Done(len);
        }
        self.complete_done(shared);
        Ok(())
    }

    /// Creates an error of the stream with this cause. The current segment is at fault.
    pub(crate) fn error(&self, cause: Cause) -> StreamError {
        self.iwarp.segment.error(cause)
    }
}
