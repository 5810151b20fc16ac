//! Answers the peer's Reads and atomics.

use crate::rdma::ids::Stag;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::fpdu_writer::FpduWriter;
use crate::rdma::iwarp::framer::Piece;
use crate::rdma::iwarp::responses::PendingResponse;
use crate::rdma::memory::{Memory, Span};
use crate::rdma::mr::Right;
use crate::rdma::qp::QueuePair;
use crate::rdma::shared::Shared;
use crate::wire::ddp::{self, Buffer, Header};
use crate::wire::rdmap::{
    ATOMIC_REQUEST, AtomicRequest, AtomicResponse, Cause, Offending, Opcode, QN_ATOMIC_RESPONSE,
    QN_REQUEST, READ_REQUEST, ReadRequest,
};

impl QueuePair {
    /// Checks a Read Request of the peer and queues its response.
    pub(crate) fn read_request(
        &mut self,
        request: ReadRequest,
        shared: &Shared,
    ) -> Result<(), Cause> {
        if request.size > 0 {
            self.source(&request, 0, request.size, shared)?;
        }
        self.iwarp.responses.queue.push_back(PendingResponse::Read {
            request,
            msn: self.iwarp.responses.msn,
            done: 0,
        });
        Ok(())
    }

    fn source(
        &self,
        request: &ReadRequest,
        done: u32,
        len: u32,
        shared: &Shared,
    ) -> Result<Span, Cause> {
        let to = request.source_to.wrapping_add(u64::from(done));
        let stag = Stag(request.source_stag);
        shared.mr.remote(self.tag_user(), stag, to, len, Right::Read)
    }

    /// Checks an Atomic Request of the peer and queues its response.
    pub(crate) fn atomic_request(
        &mut self,
        request: AtomicRequest,
        shared: &Shared,
    ) -> Result<(), Cause> {
        self.word(&request, shared)?;
        self.iwarp
            .responses
            .queue
            .push_back(PendingResponse::Atomic { request, msn: self.iwarp.responses.msn });
        Ok(())
    }

    fn word(&self, request: &AtomicRequest, shared: &Shared) -> Result<Span, Cause> {
        let span =
            shared.mr.remote(self.tag_user(), Stag(request.stag), request.to, 8, Right::Atomic)?;
        // The address is aligned. The memory is not if the registration begins at an odd offset.
        if span.offset.is_multiple_of(8) { Ok(span) } else { Err(Cause::STREAM) }
    }

    /// Appends an FPDU of the oldest response to the peer that is pending. Returns false if none
    /// is.
    pub(crate) fn respond<M: Memory>(
        &mut self,
        shared: &Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        let last = match self.iwarp.responses.queue.front() {
            None => return Ok(false),
            Some(&PendingResponse::Read { request, msn, done }) => {
                self.read_response(&request, msn, done, shared, out)?
            }
            Some(&PendingResponse::Atomic { request, msn }) => {
                self.atomic_response_out(&request, msn, shared, out)?
            }
        };
        if last {
            self.iwarp.responses.queue.pop_front();
            self.iwarp.responses.in_a_row = self.iwarp.responses.in_a_row.saturating_add(1);
        }
        Ok(true)
    }

    fn read_response<M: Memory>(
        &mut self,
        request: &ReadRequest,
        msn: u32,
        done: u32,
        shared: &Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        let room = (out.framer.mulpdu() - ddp::TAGGED) as u32;
        let (len, last) = ddp::next_segment(request.size, done, room);
        let to = request.sink_to.wrapping_add(u64::from(done));
        let buffer = Buffer::Tagged { stag: request.sink_stag, to };
        let header = Header { last, control: Opcode::ReadResponse.control(), buffer };
        let fault = |cause| {
            let about = about(Opcode::ReadRequest, msn, READ_REQUEST, Some(request.after(done)));
            StreamError { cause, about: Some(about) }
        };
        let framed = if len == 0 {
            out.frame(&header, &[])
        } else {
            let span = self.source(request, done, len, shared).map_err(fault)?;
            out.frame(&header, &[Piece::Memory(span)])
        };
        // The peer gets the same error for unmapped memory as for a tag that has ended.
        framed.map_err(|_| fault(Cause::INVALID_STAG))?;
        if let Some(PendingResponse::Read { done, .. }) = self.iwarp.responses.queue.front_mut() {
            *done += len;
        }
        Ok(last)
    }

    fn atomic_response_out<M: Memory>(
        &mut self,
        request: &AtomicRequest,
        msn: u32,
        shared: &Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        let fault = |cause| {
            let about = about(Opcode::AtomicRequest, msn, ATOMIC_REQUEST, None);
            StreamError { cause, about: Some(about) }
        };
        let span = self.word(request, shared).map_err(fault)?;
        self.iwarp.ahead.forget(span);
        let was = out.memory.atomic(span, &mut |old| request.op.apply(old));
        let was = was.map_err(|_| fault(Cause::INVALID_STAG))?;
        self.iwarp.responses.atomic_msn = self.iwarp.responses.atomic_msn.wrapping_add(1);
        let buffer = Buffer::Untagged {
            ulp: 0,
            qn: QN_ATOMIC_RESPONSE,
            msn: self.iwarp.responses.atomic_msn,
            mo: 0,
        };
        let header = Header { last: true, control: Opcode::AtomicResponse.control(), buffer };
        let payload = AtomicResponse { id: request.id, was }.emit();
        out.frame(&header, &[Piece::Bytes(&payload)])
            .map_err(|_| StreamError::own(Cause::LOCAL))?;
        Ok(true)
    }
}

/// Describes an earlier request of the peer as a Terminate does.
fn about(opcode: Opcode, msn: u32, payload: usize, read: Option<ReadRequest>) -> Offending {
    let buffer = Buffer::Untagged { ulp: 0, qn: QN_REQUEST, msn, mo: 0 };
    let header = Header { last: true, control: opcode.control(), buffer }.emit();
    Offending { ulpdu_len: (header.len() + payload) as u16, header, read }
}
