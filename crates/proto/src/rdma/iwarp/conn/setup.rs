//! What the doors to streams are made of: the start-up's frames, FPDUs in and out, and the ends.
//!
//! Always: whatever ends a stream goes through [`Rnic::close`], once; its queue pair was told before, by [`Rnic::detach`] if
//! it was in operation or [`Rnic::release_qp`] if it never was.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Phase;
use crate::Instant;
use crate::rdma::iwarp::fpdu::{self, Piece, Step};
use crate::rdma::iwarp::rx::Outcome;
use crate::rdma::iwarp::start::{Answer, Asked, First, PeerDepths};
use crate::rdma::iwarp::tx::Out;
use crate::rdma::options::{Event, QpState, Why};
use crate::rdma::qp::{Fault, QueuePair};
use crate::rdma::rnic::Rnic;
use crate::rdma::{Conn, Memory, Qp, Record};
use crate::wire::ddp::{Buffer, Header};
use crate::wire::mpa::RtrKind;
use crate::wire::rdmap::{Cause, Opcode, QN_TERMINATE, Terminate};
use crate::wire::write_ack::Placed;

/// What the doors are made of.
impl Rnic {
    /// Has the stream asked for output.
    pub(in crate::rdma) fn wake(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(conn);
        }
    }

    /// Looks at the stream again at `due`, and not at any other time that was said before.
    pub(super) fn arm_timer(&mut self, conn: u32, due: Instant) {
        let Some(connection) = self.conns.get_mut(conn) else { return };
        connection.due = due;
        self.push_timer(due, conn);
    }

    /// Looks at the stream at `due`, if that is still one of its times then.
    pub(super) fn push_timer(&mut self, due: Instant, conn: u32) {
        self.timers.push(Reverse((due, conn)));
        // Void entries go by themselves in time; not if streams come and go faster than that.
        if self.timers.len() > 2 * self.conns.used() + 1024 {
            let conns = &self.conns;
            self.timers.retain(|Reverse((due, conn))| {
                conns.get(*conn).is_some_and(|c| {
                    c.due == *due || c.hold == *due || c.rnr_due == *due || c.unsure_due == *due
                })
            });
        }
    }

    /// Looks for the Request.
    pub(super) fn request(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Phase::Awaited { responder, answer } = &mut connection.phase else { return 0 };
        match responder.input(bytes) {
            Asked::More => 0,
            Asked::Request { peer: PeerDepths { ird, ord }, private_data, consumed } => {
                *answer = true;
                connection.due = Instant::NEVER;
                let private_data = private_data.to_vec();
                self.shared.events.push_back(Event::Request { conn, private_data, ird, ord });
                consumed
            }
            Asked::Failed(why) => {
                self.give_up(conn, Why::Start(why), true);
                0
            }
        }
    }

    /// Looks for the Reply.
    pub(super) fn reply(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Phase::Requested(initiator) = &connection.phase else { return 0 };
        let Some(qp) = connection.qp else { return 0 };
        match initiator.input(bytes) {
            Answer::More => 0,
            Answer::Accepted { negotiated, private_data, consumed, .. } => {
                let private_data = private_data.to_vec();
                connection.phase = Phase::Open;
                connection.open(negotiated, &self.shared);
                let says_hello = self.qps.get(qp.0).is_some_and(|qp| !qp.placement.is_foreign());
                if (connection.opens || says_hello) && connection.first == First::Free {
                    connection.first = First::Send(RtrKind::Write);
                }
                connection.due = Instant::NEVER;
                let hold = connection.hold.as_ns();
                let until = self.shared.now.after(hold);
                connection.hold = until;
                if let Some(queue_pair) = self.qps.get_mut(qp.0) {
                    queue_pair.open(negotiated);
                }
                if hold > 0 {
                    self.arm_timer(conn.0, until);
                }
                self.establish(conn, private_data);
                self.wake(conn);
                consumed
            }
            Answer::Rejected { peer: PeerDepths { ird, ord }, private_data, consumed } => {
                let private_data = private_data.to_vec();
                self.shared.events.push_back(Event::Rejected { conn, qp, private_data, ird, ord });
                self.release_qp(conn);
                self.end(conn);
                consumed
            }
            Answer::Failed { why, terminate } => {
                let Some(negotiated) = terminate else {
                    self.give_up(conn, Why::Start(why), true);
                    return 0;
                };
                connection.open(negotiated, &self.shared);
                let cause = Cause { code: why.code(), ..Cause::MPA_LOCAL };
                connection.last_words = Some(Box::new(Fault::own(cause)));
                self.shared.events.push_back(Event::Failed {
                    conn,
                    qp: Some(qp),
                    why: Why::Start(why),
                });
                self.release_qp(conn);
                self.end(conn);
                0
            }
        }
    }

    /// Takes FPDUs.
    pub(super) fn fpdus<M: Memory>(&mut self, conn: Conn, bytes: &[u8], memory: &mut M) -> usize {
        let mut used = 0;
        loop {
            let Some(connection) = self.conns.get_mut(conn.0) else { return used };
            let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else {
                return used;
            };
            let first = !queue_pair.met;
            let (arrived, last) = match connection.deframer.next(&bytes[used..], &mut self.scratch)
            {
                Step::More => return used,
                Step::Bad(fault) => {
                    self.fail(conn, Fault::own(cause_of(fault)));
                    return used;
                }
                Step::Piece { header, payload, rest, consumed, last } => {
                    used += consumed;
                    queue_pair.hold.heard = self.shared.now;
                    (queue_pair.arrive(header, payload, rest, &mut self.shared, memory), last)
                }
            };
            // What is wrong above MPA was a valid FPDU all the same.
            if (last || arrived.is_err()) && connection.waits() {
                self.heard(conn, arrived.is_ok());
            }
            match arrived {
                // What the first segment says of the peer may be all that was waited for.
                Ok(Outcome::Placed) if first => self.close_if_quiet(conn),
                Ok(Outcome::Placed) => {}
                Ok(outcome) => {
                    self.came(conn, outcome);
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

    /// A responder has its first FPDU, and may send.
    #[cold]
    pub(super) fn heard(&mut self, conn: Conn, well: bool) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.first = First::Free;
        connection.due = if connection.established { connection.due } else { Instant::NEVER };
        if well && !connection.established {
            self.establish(conn, Vec::new());
        }
        self.wake(conn);
    }

    /// Something came that asks for more than being placed.
    pub(super) fn came(&mut self, conn: Conn, outcome: Outcome) {
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
    pub(super) fn terminated(&mut self, conn: Conn, terminate: &Terminate) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.blame_by(terminate);
        }
        self.report(conn, terminate.or.unwrap_or(terminate.cause), false);
        self.detach(conn);
        self.close(conn, false);
    }

    /// Appends an FPDU of the queue pair.
    pub(super) fn own_fpdu<M: Memory>(
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
        let mut out = Out { framer: &mut connection.framer, record, memory, position };
        if let First::Send(kind) = connection.first {
            connection.first = First::Free;
            let framed = queue_pair.ready_to_receive(kind, &mut out);
            return framed.map(|()| true).map_err(|_| Fault::own(Cause::LOCAL));
        }
        let framed = queue_pair.output(&mut self.shared, &mut out);
        if queue_pair.placement.begins_to_wonder() {
            self.await_hello(conn);
        }
        framed
    }

    /// Appends the Terminate, if one is due.
    pub(super) fn terminate<M: Memory>(
        &mut self,
        conn: Conn,
        record: &mut Record,
        memory: &mut M,
    ) -> bool {
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        if let Some(said) = connection.parting.take() {
            let position = &mut connection.position;
            let mut out = Out { framer: &mut connection.framer, record, memory, position };
            return out.frame(&said.header(), &[]).is_ok();
        }
        let Some(fault) = connection.last_words.take() else {
            self.close_if_quiet(conn);
            return false;
        };
        let buffer = Buffer::Untagged { ulp: 0, qn: QN_TERMINATE, msn: 1, mo: 0 };
        let header = Header { last: true, control: Opcode::Terminate.control(), buffer };
        let payload = Terminate::emit(fault.cause, fault.about.as_ref());
        let position = &mut connection.position;
        let mut out = Out { framer: &mut connection.framer, record, memory, position };
        out.frame(&header, &[Piece::Bytes(&payload)]).is_ok()
    }

    /// Tells the program that it is connected.
    pub(super) fn establish(&mut self, conn: Conn, private_data: Vec<u8>) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        connection.established = true;
        queue_pair.state = QpState::Ready;
        let (qp, ird, ord) =
            (queue_pair.number, queue_pair.answers.limit, queue_pair.requests.limit);
        self.shared.events.push_back(Event::Established { conn, qp, private_data, ird, ord });
    }

    /// Tells the program of an error of an established connection.
    pub(super) fn report(&mut self, conn: Conn, cause: Cause, ours: bool) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let Some(qp) = connection.qp else { return };
        let event = if connection.established {
            Event::QpFailed { qp, cause, ours }
        } else {
            Event::Failed { conn, qp: Some(qp), why: Why::Fault(cause) }
        };
        self.shared.events.push_back(event);
    }

    /// An error ends the stream: a Terminate tells the peer, if FPDUs may be sent.
    pub(super) fn fail(&mut self, conn: Conn, fault: Fault) {
        self.report(conn, fault.cause, true);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let silent = connection.waits();
        if !silent && connection.last_words.is_none() {
            connection.last_words = Some(Box::new(fault));
        }
        self.detach(conn);
        if silent {
            self.close(conn, true);
        } else {
            self.end(conn);
        }
    }

    /// An error that no segment caused ends a queue pair's connection.
    pub(in crate::rdma) fn abort(&mut self, qp: Qp, fault: &Fault) {
        let Some(queue_pair) = self.qps.get_mut(qp.0) else { return };
        match queue_pair.conn {
            Some(conn) => {
                self.fail(conn, fault.clone());
            }
            None => queue_pair.fail(&mut self.shared),
        }
    }

    /// The queue pair of the stream is at its end.
    pub(super) fn detach(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(qp) = connection.qp.take() else { return };
        let Some(queue_pair) = self.qps.get_mut(qp.0) else { return };
        connection.parting = queue_pair.placement.last_words(connection.last_words.is_none());
        queue_pair.fail(&mut self.shared);
        if connection.established {
            self.shared.events.push_back(Event::Disconnected { qp });
        }
    }

    /// The queue pair of the stream is idle again: there is no connection.
    pub(super) fn release_qp(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.take().and_then(|qp| self.qps.get_mut(qp.0)) else {
            return;
        };
        queue_pair.unstart(&mut self.shared);
    }

    /// There will be no connection.
    pub(super) fn give_up(&mut self, conn: Conn, why: Why, reset: bool) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let qp = connection.qp;
        self.shared.events.push_back(Event::Failed { conn, qp, why });
        self.release_qp(conn);
        self.close(conn, reset);
    }

    /// The queue pair is destroyed.
    pub(in crate::rdma) fn orphan(&mut self, conn: Conn, parting: Option<Placed>) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let reset = !connection.established || connection.position != connection.taken;
        if reset || parting.is_none() {
            return self.close(conn, reset);
        }
        (connection.qp, connection.parting) = (None, parting);
        self.end(conn);
    }

    /// The queue pair is put in error: what was framed is sent, nothing more.
    pub(in crate::rdma) fn cut_off(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        if !connection.established {
            return self.give_up(conn, Why::Cancelled, true);
        }
        self.detach(conn);
        self.end(conn);
    }

    /// What is left is sent, and then the stream closed.
    pub(super) fn end(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.phase = Phase::Ending;
        }
        let due = self.shared.now.after(self.shared.config.close_timeout_ns);
        self.arm_timer(conn.0, due);
        self.wake(conn);
        self.close_if_quiet(conn);
    }

    /// Closes the stream if it is ending and nothing is left.
    pub(super) fn close_if_quiet(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0).filter(|c| c.is_drained()) else { return };
        let quiet = |qp: Qp| self.qps.get(qp.0).is_none_or(QueuePair::is_quiet);
        match connection.phase {
            Phase::Ending => self.close(conn, false),
            Phase::Closing
                if !matches!(connection.first, First::Send(_))
                    && connection.qp.is_none_or(quiet) =>
            {
                self.detach(conn);
                self.close(conn, false);
            }
            _ => {}
        }
    }

    /// The end.
    pub(super) fn close(&mut self, conn: Conn, reset: bool) {
        if self.conns.remove(conn.0).is_some() {
            self.shared.events.push_back(Event::Close { conn, reset });
        }
    }
}

/// What a Terminate says of an FPDU that is not right.
const fn cause_of(fault: fpdu::Fault) -> Cause {
    match fault {
        fpdu::Fault::Crc => Cause::MPA_CRC,
        fpdu::Fault::Marker => Cause::MPA_MARKER,
        fpdu::Fault::Short => Cause::DDP_LOCAL,
    }
}
