//! Bytes of a stream: input, output, and payload that the caller reads directly into its place.

use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::ids::Conn;
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::iwarp::deframer::{Deframed, FpduError};
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::fpdu_writer::FpduWriter;
use crate::rdma::iwarp::framer::Piece;
use crate::rdma::iwarp::rx::Outcome;
use crate::rdma::iwarp::start::FirstFpdu;
use crate::rdma::memory::{Memory, Record, Span};
use crate::rdma::rnic::Rnic;
use crate::wire::ddp::{Buffer, Header};
use crate::wire::rdmap::{Cause, Opcode, QN_TERMINATE, Terminate};

impl Rnic {
    /// Takes input of a stream: `bytes` are all bytes of the stream that were not consumed before.
    /// Returns how many are consumed. The caller keeps the others in front of the next input, at
    /// most 72 KiB. A [stalled](Rnic::is_stalled) stream consumes nothing.
    pub fn input<M: Memory>(
        &mut self,
        now: Instant,
        conn: Conn,
        bytes: &[u8],
        memory: &mut M,
    ) -> usize {
        self.shared.now = now;
        let mut used = 0;
        if self.is_stalled(conn) {
            return 0;
        }
        while let Some(connection) = self.conns.get(conn.0) {
            let step = match &connection.phase {
                Phase::Requested(_) => self.reply(conn, &bytes[used..]),
                Phase::Awaited { .. } => self.request(conn, &bytes[used..]),
                Phase::Open | Phase::Closing => self.fpdus(conn, &bytes[used..], memory),
                Phase::Ending => break,
            };
            used += step;
            if step == 0 || used == bytes.len() {
                break;
            }
        }
        self.settle();
        match self.conns.get_mut(conn.0).filter(|c| !matches!(c.phase, Phase::Ending)) {
            Some(connection) => {
                connection.has_partial_input = used < bytes.len();
                connection.consumed = connection.consumed.wrapping_add(used as u32);
                if self.shared.unexpected.messages > 0 {
                    self.arm_rnr_timer(conn);
                }
                used
            }
            None => bytes.len(),
        }
    }

    /// True if the caller must stop reading the stream, since unexpected messages have taken all
    /// memory that they may take. [`Rnic::ready`] names the stream when there is room again.
    #[inline]
    pub fn is_stalled(&mut self, conn: Conn) -> bool {
        self.shared.unexpected.messages > 0 && self.stalls_its_stream(conn)
    }

    #[cold]
    fn stalls_its_stream(&mut self, conn: Conn) -> bool {
        let queue_pair =
            self.conns.get(conn.0).and_then(|c| c.qp).and_then(|qp| self.qps.get(qp.0));
        queue_pair.is_some_and(|queue_pair| queue_pair.is_stalled(&mut self.shared))
    }

    /// Places unexpected messages of a stream into receives that were posted since they arrived.
    /// [`Rnic::output`] does this too, but a caller whose stream cannot take output must not wait
    /// for it.
    pub fn place_unexpected<M: Memory>(&mut self, now: Instant, conn: Conn, memory: &mut M) {
        self.shared.now = now;
        if self.shared.unexpected.messages > 0 {
            self.place_unexpected_of(conn, memory);
            self.settle();
        }
    }

    /// Returns the place of the next bytes of the stream, if all earlier bytes are consumed. The
    /// caller may read them from the stream directly to there, and must then call
    /// [`Rnic::placed_directly`] before any other call. `None` if the bytes must go through
    /// [`Rnic::input`].
    pub fn direct_span(&mut self, conn: Conn) -> Option<Span> {
        let connection = self.conns.get_mut(conn.0)?;
        let rest = connection.deframer.rest();
        if rest == 0
            || connection.has_partial_input
            || !matches!(connection.phase, Phase::Open | Phase::Closing)
        {
            return None;
        }
        let span = self.qps.get_mut(connection.qp?.0)?.direct_span(&self.shared)?;
        Some(Span { len: span.len.min(rest as u32), ..span })
    }

    /// True while Reads of this end wait for responses whose payload the caller may read directly
    /// into its place.
    #[must_use]
    pub fn awaits_responses(&self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get(conn.0) else { return false };
        let queue_pair = connection.qp.and_then(|qp| self.qps.get(qp.0));
        connection.deframer.in_pieces()
            && queue_pair.is_some_and(|qp| !qp.iwarp.outstanding.is_empty())
    }

    /// Reports that the caller has read this many bytes to the span of [`Rnic::direct_span`].
    pub fn placed_directly<M: Memory>(
        &mut self,
        now: Instant,
        conn: Conn,
        bytes: u32,
        memory: &mut M,
    ) {
        self.shared.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        connection.deframer.skip(bytes as usize);
        match queue_pair.placed_directly(bytes, &mut self.shared, memory) {
            Ok(outcome) => self.handle_outcome(conn, outcome),
            Err(fault) => self.fail(conn, fault),
        }
        self.settle();
    }

    /// Returns a stream with something to send. Call [`Rnic::output`] for it until that returns
    /// false; the stream is named only once until then. A caller whose stream cannot take more
    /// keeps the number.
    pub fn ready(&mut self) -> Option<Conn> {
        if self.shared.ack_timers.front().is_some_and(|(due, _)| *due <= self.shared.now) {
            self.expire_ack_timers();
        }
        loop {
            let conn = self.ready.pop_front()?;
            if self.conns.get(conn.0).is_some() {
                return Some(conn);
            }
        }
    }

    /// True if [`Rnic::ready`] would name a stream. It may be true for a stream that has gone.
    #[inline]
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Appends the next start-up frame or FPDU of the stream to `record`. Returns false if there is
    /// none.
    pub fn output<M: Memory>(
        &mut self,
        now: Instant,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> bool {
        self.shared.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        if !connection.frame.is_empty() {
            record.append(&connection.frame);
            connection.position += connection.frame.len() as u64;
            connection.frame = Vec::new();
            return true;
        }
        if self.shared.unexpected.messages > 0 {
            self.place_unexpected_of(conn, memory);
        }
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        if matches!(connection.phase, Phase::Open | Phase::Closing) {
            match self.frame_own(conn, record, memory) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(fault) => self.fail(conn, fault),
            }
        }
        let terminated = self.terminate(conn, record, memory);
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.is_ready = terminated;
        }
        self.settle();
        terminated
    }

    /// Reports that the stream took this many bytes of its records. Sends and Writes complete by
    /// this.
    pub fn sent(&mut self, conn: Conn, bytes: usize) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.taken = connection.taken.saturating_add(bytes as u64).min(connection.position);
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.iwarp.taken = connection.taken;
            queue_pair.complete_done(&mut self.shared);
        }
        if !matches!(connection.phase, Phase::Open) {
            self.close_if_quiet(conn);
        }
        self.settle();
    }

    /// Reports that memory which a record named is unmapped, so an FPDU cannot be sent as a whole.
    /// The request that sends the memory fails, and the stream is reset.
    pub fn source_unmapped(&mut self, now: Instant, conn: Conn, span: Span) {
        self.shared.now = now;
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.pending_terminate = None;
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.set_source_fault(span, &self.shared);
        }
        self.report(conn, Cause::LOCAL, true);
        self.detach(conn);
        self.close(conn, true);
        self.settle();
    }

    /// Takes the FPDUs of a stream in full operation out of its input.
    pub(in crate::rdma) fn fpdus<M: Memory>(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        memory: &mut M,
    ) -> usize {
        let mut used = 0;
        loop {
            let Some(connection) = self.conns.get_mut(conn.0) else { return used };
            let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else {
                return used;
            };
            let first = !queue_pair.iwarp.peer_seen;
            let (arrived, last) = match connection.deframer.next(&bytes[used..], &mut self.scratch)
            {
                Deframed::More => return used,
                Deframed::Error(fault) => {
                    self.fail(conn, StreamError::own(cause_of(fault)));
                    return used;
                }
                Deframed::Piece { header, payload, rest, consumed, last } => {
                    used += consumed;
                    queue_pair.deferral.last_received = self.shared.now;
                    (queue_pair.arrive(header, payload, rest, &mut self.shared, memory), last)
                }
            };
            // An error above MPA comes in a valid FPDU, which opens the connection all the same.
            if (last || arrived.is_err()) && connection.waits() {
                self.receive_first_fpdu(conn, arrived.is_ok());
            }
            match arrived {
                // The first segment tells the kind of the peer, and a closing stream may have
                // waited only for that.
                Ok(Outcome::Placed) if first => self.close_if_quiet(conn),
                Ok(Outcome::Placed) => {}
                Ok(outcome) => {
                    self.handle_outcome(conn, outcome);
                    if self.conns.get(conn.0).is_none_or(|c| matches!(c.phase, Phase::Ending)) {
                        return used;
                    }
                }
                Err(fault) => {
                    self.fail(conn, fault);
                    return used;
                }
            }
        }
    }

    /// Handles the outcome of a received segment: wakes the stream, or ends it after an error or
    /// Terminate.
    pub(in crate::rdma) fn handle_outcome(&mut self, conn: Conn, outcome: Outcome) {
        match outcome {
            Outcome::Placed => {}
            Outcome::Wake => {
                self.wake(conn);
                self.close_if_quiet(conn);
            }
            Outcome::Terminated(terminate) => self.terminated(conn, &terminate),
        }
    }

    /// Ends a stream that the peer has terminated.
    pub(in crate::rdma) fn terminated(&mut self, conn: Conn, terminate: &Terminate) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.set_fault_by_terminate(terminate);
        }
        self.report(conn, terminate.or.unwrap_or(terminate.cause), false);
        self.detach(conn);
        self.close(conn, false);
    }

    /// Appends the next FPDU of the stream's queue pair to the record.
    pub(in crate::rdma) fn frame_own<M: Memory>(
        &mut self,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> Result<bool, StreamError> {
        let Some(connection) = self.conns.get_mut(conn.0) else { return Ok(false) };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else {
            return Ok(false);
        };
        if !connection.may_send(self.shared.now) {
            return queue_pair.local(&mut self.shared).map(|()| false);
        }
        let position = &mut connection.position;
        let mut out = FpduWriter { framer: &mut connection.framer, record, memory, position };
        if let FirstFpdu::Send(kind) = connection.first {
            connection.first = FirstFpdu::Free;
            let framed = queue_pair.ready_to_receive(kind, &mut out);
            return framed.map(|()| true).map_err(|_| StreamError::own(Cause::LOCAL));
        }
        let framed = queue_pair.output(&mut self.shared, &mut out);
        if queue_pair.iwarp.acks.take_first_request() {
            self.arm_hello_timer(conn);
        }
        framed
    }

    /// Appends the stream's last acknowledgement or its Terminate to the record, if one is due.
    pub(in crate::rdma) fn terminate<M: Memory>(
        &mut self,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> bool {
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        if let Some(said) = connection.final_ack.take() {
            let position = &mut connection.position;
            let mut out = FpduWriter { framer: &mut connection.framer, record, memory, position };
            return out.frame(&said.header(), &[]).is_ok();
        }
        let Some(fault) = connection.pending_terminate.take() else {
            self.close_if_quiet(conn);
            return false;
        };
        let buffer = Buffer::Untagged { ulp: 0, qn: QN_TERMINATE, msn: 1, mo: 0 };
        let header = Header { last: true, control: Opcode::Terminate.control(), buffer };
        let payload = Terminate::emit(fault.cause, fault.about.as_ref());
        let position = &mut connection.position;
        let mut out = FpduWriter { framer: &mut connection.framer, record, memory, position };
        out.frame(&header, &[Piece::Bytes(&payload)]).is_ok()
    }
}

/// The cause in the Terminate for an error of FPDUs.
const fn cause_of(fault: FpduError) -> Cause {
    match fault {
        FpduError::Crc => Cause::MPA_CRC,
        FpduError::Marker => Cause::MPA_MARKER,
        FpduError::Short => Cause::DDP_LOCAL,
    }
}
