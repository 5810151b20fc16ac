//! Bytes of a stream, in and out.

use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::ids::Conn;
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::iwarp::deframer::{Deframed, FpduError};
use crate::rdma::iwarp::error::Fault;
use crate::rdma::iwarp::fpdu_writer::FpduWriter;
use crate::rdma::iwarp::framer::Piece;
use crate::rdma::iwarp::rx::Outcome;
use crate::rdma::iwarp::start::FirstFpdu;
use crate::rdma::memory::{Memory, Record, Span};
use crate::rdma::rnic::Rnic;
use crate::wire::ddp::{Buffer, Header};
use crate::wire::rdmap::{Cause, Opcode, QN_TERMINATE, Terminate};

impl Rnic {
    /// Takes what arrived: `bytes` are all bytes of the stream that were not consumed before and are there. Returns how
    /// many are consumed; the caller keeps the others in front of what comes next, at most 72 KiB. While the stream
    /// [is stalled](Rnic::is_stalled) nothing is consumed.
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
                if self.shared.unexpected.messages > 0 {
                    self.arm_rnr_timer(conn);
                }
                used
            }
            None => bytes.len(),
        }
    }

    /// The stream is to be read no further: so much has come for which no receive is posted. When there is room again it is
    /// named by [`Rnic::ready`].
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

    /// Gives receives that have been posted to messages that came before them; [`Rnic::output`] does so too, but who cannot
    /// send must not wait with it.
    pub fn place_unexpected<M: Memory>(&mut self, now: Instant, conn: Conn, memory: &mut M) {
        self.shared.now = now;
        if self.shared.unexpected.messages > 0 {
            self.place_unexpected_of(conn, memory);
            self.settle();
        }
    }

    /// The stream's next bytes, all that were there before being consumed, may be read straight to here; then say so by
    /// [`Rnic::placed_directly`], with nothing called in between. `None` if they have to come by [`Rnic::input`].
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

    /// True while answers to own Reads are awaited on a stream whose payload may be read straight to its place.
    #[must_use]
    pub fn awaits_responses(&self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get(conn.0) else { return false };
        let queue_pair = connection.qp.and_then(|qp| self.qps.get(qp.0));
        connection.deframer.in_pieces()
            && queue_pair.is_some_and(|qp| !qp.iwarp.outstanding.is_empty())
    }

    /// So many bytes were read to where [`Rnic::direct_span`] said, not more than the span's.
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

    /// A stream that has come to have something to send: call [`Rnic::output`] for it until that returns false. It is named
    /// once until then; a caller who cannot send on keeps it.
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

    /// [`Rnic::ready`] would name a stream, or one that has gone.
    #[inline]
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Appends what is next on the stream to `record`: one frame of the start-up or one FPDU. False if there is nothing.
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

    /// The stream took so many bytes of what was appended. Sends and Writes complete by this.
    pub fn sent(&mut self, conn: Conn, bytes: usize) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.taken = connection.taken.saturating_add(bytes as u64).min(connection.position);
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.iwarp.taken = connection.taken;
            queue_pair.release(&mut self.shared);
        }
        if !matches!(connection.phase, Phase::Open) {
            self.close_if_quiet(conn);
        }
        self.settle();
    }

    /// Memory that a record named cannot be read although it could be when it was named: its FPDU cannot be made whole. So
    /// the request that it is of fails, if it is of one, and the stream ends without a word.
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

    /// Takes FPDUs.
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
                    self.fail(conn, Fault::own(cause_of(fault)));
                    return used;
                }
                Deframed::Piece { header, payload, rest, consumed, last } => {
                    used += consumed;
                    queue_pair.deferral.last_received = self.shared.now;
                    (queue_pair.arrive(header, payload, rest, &mut self.shared, memory), last)
                }
            };
            // What is wrong above MPA was a valid FPDU all the same.
            if (last || arrived.is_err()) && connection.waits() {
                self.receive_first_fpdu(conn, arrived.is_ok());
            }
            match arrived {
                // What the first segment says of the peer may be all that was waited for.
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

    /// Something came that asks for more than being placed.
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

    /// The peer has ended the stream.
    pub(in crate::rdma) fn terminated(&mut self, conn: Conn, terminate: &Terminate) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.set_fault_by_terminate(terminate);
        }
        self.report(conn, terminate.or.unwrap_or(terminate.cause), false);
        self.detach(conn);
        self.close(conn, false);
    }

    /// Appends an FPDU of the queue pair.
    pub(in crate::rdma) fn frame_own<M: Memory>(
        &mut self,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> Result<bool, Fault> {
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
            return framed.map(|()| true).map_err(|_| Fault::own(Cause::LOCAL));
        }
        let framed = queue_pair.output(&mut self.shared, &mut out);
        if queue_pair.iwarp.acks.take_first_request() {
            self.arm_hello_timer(conn);
        }
        framed
    }

    /// Appends the Terminate, if one is due.
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

/// What a Terminate says of an FPDU that is not right.
const fn cause_of(fault: FpduError) -> Cause {
    match fault {
        FpduError::Crc => Cause::MPA_CRC,
        FpduError::Marker => Cause::MPA_MARKER,
        FpduError::Short => Cause::DDP_LOCAL,
    }
}
