//! Turns work requests of the send queue into FPDUs of the stream, one at a time.
//!
//! Invariant: the messages of a queue pair leave one after another, in the order posted. Responses
//! to the peer's Reads and atomics go between them, at most [`RESPONSES_IN_A_ROW`] while own work
//! waits. The engine checks all memory against its registration when it frames it.

use arrayvec::ArrayVec;

use crate::rdma::completion::Status;
use crate::rdma::ids::{Pd, Stag};
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::fpdu_writer::FpduWriter;
use crate::rdma::iwarp::framer::Piece;
use crate::rdma::iwarp::outstanding::{OutstandingRequest, RequestKind};
use crate::rdma::memory::{Memory, Unmapped};
use crate::rdma::mr::{Extent, TagUser};
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::send_queue::Stage;
use crate::rdma::shared::Shared;
use crate::rdma::work::{
    Data, MAX_SGE, Remote, SendOp, SendRequest, Sge, data_len, is_local, scatter,
};
use crate::wire::ddp::{self, Buffer, Header};
use crate::wire::mpa::RtrKind;
use crate::wire::rdmap::{
    AtomicOp, AtomicRequest, Cause, Opcode, QN_REQUEST, QN_SEND, ReadRequest,
};
use crate::wire::write_ack as wire_ack;

/// The most responses to the peer in a row while this end's send queue has work.
const RESPONSES_IN_A_ROW: u8 = 4;

/// The steering tag in a frame whose tag does not matter. Some hardware refuses 0 even there.
const ANY_STAG: u32 = 1;

impl QueuePair {
    /// Appends one FPDU of the queue pair to the record. Returns false if there is nothing to send
    /// now.
    pub(crate) fn output<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        if self.iwarp.responses.is_begun() {
            return self.respond(shared, out);
        }
        if !self.send.begun
            && self.ack_before_message(shared, out).map_err(|_| StreamError::own(Cause::LOCAL))?
        {
            return Ok(true);
        }
        let tired = self.iwarp.responses.in_a_row >= RESPONSES_IN_A_ROW && self.send.has_work();
        if !self.send.begun && !tired && self.respond(shared, out)? {
            return Ok(true);
        }
        if self.transmit(shared, out)? {
            self.iwarp.responses.in_a_row = 0;
            return Ok(true);
        }
        if self.respond(shared, out)? {
            return Ok(true);
        }
        self.ack_when_idle(shared, out).map_err(|_| StreamError::own(Cause::LOCAL))
    }

    /// Appends the next FPDU of the send queue, after the local operations before it.
    fn transmit<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        if self.send.begun {
            return self.segment(shared, out);
        }
        self.local(shared)?;
        let Some(request) = self.send.current().filter(|request| !self.is_fenced(request)) else {
            return Ok(false);
        };
        match request.op {
            SendOp::Read(_)
            | SendOp::ReadInvalidate(_)
            | SendOp::FetchAdd { .. }
            | SendOp::CompareSwap { .. } => self.ask(shared, out),
            _ => {
                self.begin(shared)?;
                self.segment(shared, out)
            }
        }
    }

    fn is_fenced(&self, request: &SendRequest) -> bool {
        request.flags.fence && !self.iwarp.outstanding.is_empty()
    }

    /// Sets the fault of the current work request and returns a local error.
    fn fail_current<T>(&mut self, status: Status) -> Result<T, StreamError> {
        self.send.set_fault(self.send.current_number(), status);
        Err(StreamError::own(Cause::LOCAL))
    }

    /// Executes local operations of the send queue up to the next work request that needs the peer.
    pub(crate) fn local(&mut self, shared: &mut Shared) -> Result<(), StreamError> {
        while let Some(request) = self.send.current() {
            if !is_local(&request.op) || self.is_fenced(request) {
                break;
            }
            if let Err(status) = local_operation(self.tag_user(), &request.op, shared) {
                return self.fail_current(status);
            }
            self.advance(Stage::Done(0), shared.now);
            self.complete_done(shared);
        }
        Ok(())
    }

    /// Begins a message. This checks all of its memory, so that no part of a bad message is sent.
    fn begin(&mut self, shared: &Shared) -> Result<(), StreamError> {
        let Some(request) = self.send.current() else { return Ok(()) };
        let total = data_len(&request.data) as u32;
        let untagged = matches!(request.op, SendOp::Send | SendOp::SendInvalidate(_));
        let immediate_left = matches!(request.op, SendOp::Immediate(_));
        if let Data::Gather(list) = &request.data
            && list.len() > 1
            && let Err(status) = gather(list, 0, total, self.options.pd, shared)
        {
            return self.fail_current(status);
        }
        let send = &mut self.send;
        (send.begun, send.total, send.done, send.immediate_left) = (true, total, 0, immediate_left);
        if untagged || immediate_left {
            send.msn = send.msn.wrapping_add(1);
        }
        Ok(())
    }

    /// Appends the next segment of the current message.
    fn segment<M: Memory>(
        &mut self,
        shared: &Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        let Some(request) = self.send.current() else { return Ok(false) };
        if self.send.immediate_left {
            return self.immediate(shared, out);
        }
        let send = &self.send;
        let tagged = matches!(request.op, SendOp::Write(_) | SendOp::WriteImmediate(..));
        let room = out.room(if tagged { ddp::TAGGED } else { ddp::UNTAGGED });
        let (len, last) = ddp::next_segment(send.total, send.done, room);
        let header = header_of(request, send.done, send.msn, last);
        let framed = match &request.data {
            Data::Inline(bytes) => out.frame(
                &header,
                &[Piece::Bytes(&bytes[send.done as usize..(send.done + len) as usize])],
            ),
            Data::Gather(list) => match gather(list, send.done, len, self.options.pd, shared) {
                Ok(pieces) => out.frame(&header, &pieces),
                Err(status) => return self.fail_current(status),
            },
        };
        let has_immediate = matches!(request.op, SendOp::WriteImmediate(..));
        if framed.is_err() {
            return self.fail_current(Status::LocalProtection);
        }
        self.send.done += len;
        if last && tagged {
            self.iwarp.acks.write_framed(self.send.total);
        }
        if last && has_immediate {
            self.send.immediate_left = true;
            self.send.msn = self.send.msn.wrapping_add(1);
        } else if last {
            self.advance(Stage::Framed(*out.position), shared.now);
        }
        Ok(true)
    }

    /// Appends the segment with the current work request's immediate data.
    fn immediate<M: Memory>(
        &mut self,
        shared: &Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        let Some(request) = self.send.current() else { return Ok(false) };
        let (SendOp::Immediate(value) | SendOp::WriteImmediate(_, value)) = request.op else {
            return Ok(false);
        };
        let opcode =
            if request.flags.solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        let buffer = Buffer::Untagged { ulp: 0, qn: QN_SEND, msn: self.send.msn, mo: 0 };
        let header = Header { last: true, control: opcode.control(), buffer };
        if out.frame(&header, &[Piece::Bytes(&value.to_be_bytes())]).is_err() {
            return self.fail_current(Status::LocalProtection);
        }
        self.advance(Stage::Framed(*out.position), shared.now);
        Ok(true)
    }

    /// Appends the request of a Read or an atomic, if one more may be outstanding.
    fn ask<M: Memory>(
        &mut self,
        shared: &Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, StreamError> {
        let Some(request) = self.send.current() else { return Ok(false) };
        if self.iwarp.outstanding.limit == 0 {
            return self.fail_current(Status::LocalOperation);
        }
        if self.iwarp.outstanding.is_full() {
            return Ok(false);
        }
        let sink = match &request.data {
            Data::Gather(list) => list.first().copied(),
            Data::Inline(_) => None,
        };
        let sink = sink.unwrap_or(Sge { stag: Stag(ANY_STAG), addr: 0, len: 0 });
        let id = self.iwarp.outstanding.next_id();
        let (kind, op) = match request.op {
            SendOp::FetchAdd { add, mask, .. } => {
                (RequestKind::Atomic(id), Some(AtomicOp::FetchAdd { add, mask }))
            }
            SendOp::CompareSwap { compare, compare_mask, swap, swap_mask, .. } => {
                let op = AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask };
                (RequestKind::Atomic(id), Some(op))
            }
            _ => (RequestKind::Read, None),
        };
        let from = match request.op {
            SendOp::Read(from) | SendOp::ReadInvalidate(from) => from,
            SendOp::FetchAdd { to, .. } | SendOp::CompareSwap { to, .. } => to,
            _ => return Ok(false),
        };
        if sink.len > 0 && shared.mr.local(self.options.pd, sink, true).is_err() {
            return self.fail_current(Status::LocalProtection);
        }
        let asked = OutstandingRequest::new(
            Some(self.send.current_number()),
            sink,
            kind,
            self.iwarp.acks.framed(),
        );
        let framed = if let Some(op) = op {
            let payload = AtomicRequest { id, stag: from.stag.0, to: from.addr, op }.emit();
            self.frame_request(Opcode::AtomicRequest, &payload, asked, out)
        } else {
            self.frame_request(
                Opcode::ReadRequest,
                &read_request(sink, from.stag.0, from.addr),
                asked,
                out,
            )
        };
        if framed.is_err() {
            return self.fail_current(Status::LocalProtection);
        }
        self.advance(Stage::AwaitingResponse, shared.now);
        Ok(true)
    }

    fn frame_request<M: Memory>(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        asked: OutstandingRequest,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<(), Unmapped> {
        let msn = self.iwarp.outstanding.next_msn();
        let buffer = Buffer::Untagged { ulp: 0, qn: QN_REQUEST, msn, mo: 0 };
        let header = Header { last: true, control: opcode.control(), buffer };
        out.frame(&header, &[Piece::Bytes(payload)])?;
        self.iwarp.outstanding.push(asked);
        Ok(())
    }

    /// Appends the ready-to-receive frame, after which the responder may send (RFC 6581 section
    /// 4.3).
    pub(crate) fn ready_to_receive<M: Memory>(
        &mut self,
        kind: RtrKind,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<(), Unmapped> {
        let sink = Sge { stag: Stag(ANY_STAG), addr: 0, len: 0 };
        match kind {
            RtrKind::Write if !self.iwarp.acks.peer_is_plain() => self.hello(out),
            RtrKind::Write => {
                let buffer = Buffer::Tagged { stag: ANY_STAG, to: 0 };
                out.frame(&Header { last: true, control: Opcode::Write.control(), buffer }, &[])
            }
            RtrKind::Read => {
                let asked = OutstandingRequest::new(None, sink, RequestKind::Read, 0);
                self.frame_request(
                    Opcode::ReadRequest,
                    &read_request(sink, ANY_STAG, 0),
                    asked,
                    out,
                )
            }
            RtrKind::Send => {
                self.send.msn = self.send.msn.wrapping_add(1);
                let buffer = Buffer::Untagged { ulp: 0, qn: QN_SEND, msn: self.send.msn, mo: 0 };
                out.frame(&Header { last: true, control: Opcode::Send.control(), buffer }, &[])
            }
        }
    }
}

/// Executes a work request on local steering tags: a bind, a fast registration or an invalidation.
fn local_operation(by: TagUser, op: &SendOp, shared: &mut Shared) -> Result<(), Status> {
    match *op {
        SendOp::Bind { window, region, addr, len, access } => {
            shared.mr.bind(by, window, region, addr, len, access)
        }
        SendOp::FastRegister { stag, region, offset, base, len, access } => {
            shared.mr.fast_register(by, stag, Extent { region, offset, base, len }, access)
        }
        SendOp::Invalidate(stag) => shared.mr.invalidate(by, stag),
        _ => Ok(()),
    }
}

fn read_request(sink: Sge, source_stag: u32, source_to: u64) -> [u8; 28] {
    ReadRequest {
        sink_stag: sink.stag.0,
        sink_to: sink.addr,
        size: sink.len,
        source_stag,
        source_to,
    }
    .emit()
}

/// The header of the segment at offset `done` of a Send or a Write.
fn header_of(request: &SendRequest, done: u32, msn: u32, last: bool) -> Header {
    let solicited = request.flags.solicited;
    let (opcode, buffer) = match request.op {
        SendOp::Write(to) | SendOp::WriteImmediate(to, _) => {
            // An empty Write of a program must not look like an acknowledgement.
            let to = if to.stag.0 == wire_ack::STAG && data_len(&request.data) == 0 {
                Remote { stag: Stag(ANY_STAG), ..to }
            } else {
                to
            };
            (
                Opcode::Write,
                Buffer::Tagged { stag: to.stag.0, to: to.addr.wrapping_add(u64::from(done)) },
            )
        }
        SendOp::SendInvalidate(stag) => {
            let opcode =
                if solicited { Opcode::SendSolicitedInvalidate } else { Opcode::SendInvalidate };
            (opcode, Buffer::Untagged { ulp: stag.0, qn: QN_SEND, msn, mo: done })
        }
        _ => {
            let opcode = if solicited { Opcode::SendSolicited } else { Opcode::Send };
            (opcode, Buffer::Untagged { ulp: 0, qn: QN_SEND, msn, mo: done })
        }
    };
    Header { last, control: opcode.control(), buffer }
}

/// Returns the memory of `len` bytes at offset `from` of the scatter/gather list.
fn gather(
    list: &ArrayVec<Sge, MAX_SGE>,
    from: u32,
    len: u32,
    pd: Pd,
    shared: &Shared,
) -> Result<ArrayVec<Piece<'static>, MAX_SGE>, Status> {
    let mut pieces = ArrayVec::new();
    scatter(list, from, len, |sge| {
        pieces.push(Piece::Memory(
            shared.mr.local(pd, sge, false).map_err(|_| Status::LocalProtection)?,
        ));
        Ok(())
    })?;
    Ok(pieces)
}
