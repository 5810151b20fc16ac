//! Reads and atomics of the peer: taken when their Requests come, done and answered in turn.
//!
//! Always: answers leave in the order of their Requests, none before its Request was delivered, hence behind every earlier
//! Write and Send; at most `limit` wait (IRD), one more is the peer's error. What a Read may reach is looked at when its
//! Request comes and again for each segment, so that nothing leaves a region that was taken back.

use alloc::collections::VecDeque;

use crate::rdma::iwarp::fpdu::Piece;
use crate::rdma::iwarp::tx::Out;
use crate::rdma::mr::Right;
use crate::rdma::qp::{Fault, QueuePair};
use crate::rdma::rnic::Shared;
use crate::rdma::{Memory, Span, Stag};
use crate::wire::ddp::{self, Buffer, Header};
use crate::wire::rdmap::{
    AtomicRequest, AtomicResponse, Cause, Offending, Opcode, QN_ATOMIC_RESPONSE, QN_REQUEST,
    READ_REQUEST, ReadRequest,
};

#[derive(Debug)]
enum Owed {
    Read { request: ReadRequest, msn: u32, done: u32 },
    Atomic { request: AtomicRequest, msn: u32 },
}

/// See the file.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    queue: VecDeque<Owed>,
    /// IRD.
    pub(crate) limit: u16,
    /// Of the last Request that came.
    msn: u32,
    /// Of the last Atomic Response.
    atomic_msn: u32,
    /// Answers since the send queue had its turn.
    pub(crate) in_a_row: u8,
}

impl Answers {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// An answer is sent in part.
    pub(crate) fn is_begun(&self) -> bool {
        matches!(self.queue.front(), Some(&Owed::Read { done: 1.., .. }))
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

impl QueuePair {
    /// Takes a Read Request that was delivered.
    pub(crate) fn read_request(
        &mut self,
        request: ReadRequest,
        shared: &Shared,
    ) -> Result<(), Cause> {
        if request.size > 0 {
            self.source(&request, 0, request.size, shared)?;
        }
        self.answers.queue.push_back(Owed::Read { request, msn: self.answers.msn, done: 0 });
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
        shared.mr.remote(self.stream(), stag, to, len, Right::Read)
    }

    /// Takes an Atomic Request that was delivered.
    pub(crate) fn atomic_request(
        &mut self,
        request: AtomicRequest,
        shared: &Shared,
    ) -> Result<(), Cause> {
        self.word(&request, shared)?;
        self.answers.queue.push_back(Owed::Atomic { request, msn: self.answers.msn });
        Ok(())
    }

    fn word(&self, request: &AtomicRequest, shared: &Shared) -> Result<Span, Cause> {
        let span =
            shared.mr.remote(self.stream(), Stag(request.stag), request.to, 8, Right::Atomic)?;
        // The address is aligned; the memory is not if its registration began at an odd place.
        if span.offset.is_multiple_of(8) { Ok(span) } else { Err(Cause::STREAM) }
    }

    /// Appends an FPDU of the oldest answer that is owed; false if there is none.
    pub(crate) fn respond<M: Memory>(
        &mut self,
        shared: &Shared,
        out: &mut Out<'_, M>,
    ) -> Result<bool, Fault> {
        let last = match self.answers.queue.front() {
            None => return Ok(false),
            Some(&Owed::Read { request, msn, done }) => {
                self.read_response(&request, msn, done, shared, out)?
            }
            Some(&Owed::Atomic { request, msn }) => {
                self.atomic_response_out(&request, msn, shared, out)?
            }
        };
        if last {
            self.answers.queue.pop_front();
            self.answers.in_a_row = self.answers.in_a_row.saturating_add(1);
        }
        Ok(true)
    }

    fn read_response<M: Memory>(
        &mut self,
        request: &ReadRequest,
        msn: u32,
        done: u32,
        shared: &Shared,
        out: &mut Out<'_, M>,
    ) -> Result<bool, Fault> {
        let room = (out.framer.mulpdu() - ddp::TAGGED) as u32;
        let (len, last) = ddp::next_segment(request.size, done, room);
        let to = request.sink_to.wrapping_add(u64::from(done));
        let buffer = Buffer::Tagged { stag: request.sink_stag, to };
        let header = Header { last, control: Opcode::ReadResponse.control(), buffer };
        let fault = |cause| {
            let about = about(Opcode::ReadRequest, msn, READ_REQUEST, Some(request.after(done)));
            Fault { cause, about: Some(about) }
        };
        let framed = if len == 0 {
            out.frame(&header, &[])
        } else {
            let span = self.source(request, done, len, shared).map_err(fault)?;
            out.frame(&header, &[Piece::Memory(span)])
        };
        // To the peer memory that is gone is as a tag that is gone.
        framed.map_err(|_| fault(Cause::INVALID_STAG))?;
        if let Some(Owed::Read { done, .. }) = self.answers.queue.front_mut() {
            *done += len;
        }
        Ok(last)
    }

    fn atomic_response_out<M: Memory>(
        &mut self,
        request: &AtomicRequest,
        msn: u32,
        shared: &Shared,
        out: &mut Out<'_, M>,
    ) -> Result<bool, Fault> {
        let fault = |cause| {
            let about = about(Opcode::AtomicRequest, msn, crate::wire::rdmap::ATOMIC_REQUEST, None);
            Fault { cause, about: Some(about) }
        };
        let span = self.word(request, shared).map_err(fault)?;
        let was = out.memory.atomic(span, &mut |old| request.op.apply(old));
        let was = was.map_err(|_| fault(Cause::INVALID_STAG))?;
        self.answers.atomic_msn = self.answers.atomic_msn.wrapping_add(1);
        let buffer = Buffer::Untagged {
            ulp: 0,
            qn: QN_ATOMIC_RESPONSE,
            msn: self.answers.atomic_msn,
            mo: 0,
        };
        let header = Header { last: true, control: Opcode::AtomicResponse.control(), buffer };
        let payload = AtomicResponse { id: request.id, was }.emit();
        out.frame(&header, &[Piece::Bytes(&payload)]).map_err(|_| Fault::own(Cause::LOCAL))?;
        Ok(true)
    }
}

/// What a Terminate tells of a Request that came earlier.
fn about(opcode: Opcode, msn: u32, payload: usize, read: Option<ReadRequest>) -> Offending {
    let buffer = Buffer::Untagged { ulp: 0, qn: QN_REQUEST, msn, mo: 0 };
    let header = Header { last: true, control: opcode.control(), buffer }.emit();
    Offending { ulpdu_len: (header.len() + payload) as u16, header, read }
}
