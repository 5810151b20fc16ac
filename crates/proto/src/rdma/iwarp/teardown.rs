//! The end of an iWARP stream.
//!
//! Invariant: every end goes through [`Rnic::close`], once. Before it, `detach` ends a queue pair
//! in operation, or `release_qp` makes one idle that never was. After the peer's end, messages wait
//! for receives at most [`AFTER_END_NS`].

use alloc::boxed::Box;

use crate::rdma::event::{Event, StartupError};
use crate::rdma::ids::{Conn, Qp};
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::start::FirstFpdu;
use crate::rdma::qp::QueuePair;
use crate::rdma::rnic::Rnic;
use crate::time::SECOND;
use crate::wire::rdmap::Cause;
use crate::wire::write_ack::WriteAck;

/// The longest time in which messages wait for receives after the peer's end. A program that still
/// receives posts receives by then. A program that waits for the end gives up after some seconds
/// (qperf: 5 s).
const AFTER_END_NS: u64 = 2 * SECOND;

impl Rnic {
    /// Reports an error of a stream to the program.
    pub(in crate::rdma) fn report(&mut self, conn: Conn, cause: Cause, ours: bool) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let Some(qp) = connection.qp else { return };
        let event = if connection.established {
            Event::QpFailed { qp, cause, ours }
        } else {
            Event::Failed { conn, qp: Some(qp), why: StartupError::Fault(cause) }
        };
        self.shared.events.push_back(event);
    }

    /// Ends a stream with an error. If this end may send, it sends the peer a Terminate.
    pub(in crate::rdma) fn fail(&mut self, conn: Conn, fault: StreamError) {
        self.report(conn, fault.cause, true);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let silent = connection.waits();
        if !silent && connection.pending_terminate.is_none() {
            connection.pending_terminate = Some(Box::new(fault));
        }
        self.detach(conn);
        if silent {
            self.close(conn, true);
        } else {
            self.end(conn);
        }
    }

    /// Ends a queue pair with an error that no segment caused.
    pub(in crate::rdma) fn abort(&mut self, qp: Qp, fault: &StreamError) {
        let Some(queue_pair) = self.qps.get_mut(qp.0) else { return };
        match queue_pair.conn {
            Some(conn) => {
                self.fail(conn, fault.clone());
            }
            None => queue_pair.fail(&mut self.shared),
        }
    }

    /// Puts the queue pair of a stream in error and takes it off the stream.
    pub(in crate::rdma) fn detach(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(qp) = connection.qp.take() else { return };
        let Some(queue_pair) = self.qps.get_mut(qp.0) else { return };
        connection.final_ack =
            queue_pair.iwarp.acks.final_ack(connection.pending_terminate.is_none());
        queue_pair.fail(&mut self.shared);
        if connection.established {
            self.shared.events.push_back(Event::Disconnected { qp });
        }
    }

    /// Ends the stream of a destroyed queue pair.
    pub(in crate::rdma) fn release_destroyed(&mut self, conn: Conn, final_ack: Option<WriteAck>) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let reset = !connection.established || connection.position != connection.taken;
        if reset || final_ack.is_none() {
            return self.close(conn, reset);
        }
        (connection.qp, connection.final_ack) = (None, final_ack);
        self.end(conn);
    }

    /// Ends a stream after the framed bytes, since its queue pair was put in error.
    pub(in crate::rdma) fn end_after_framed(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        if !connection.established {
            return self.fail_startup(conn, StartupError::Cancelled, true);
        }
        self.detach(conn);
        self.end(conn);
    }

    /// Ends a stream: closes it after its remaining bytes are sent.
    pub(in crate::rdma) fn end(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.phase = Phase::Ending;
        }
        let due = self.shared.now.after(self.shared.config.close_timeout_ns);
        self.arm_timer(conn.0, due);
        self.wake(conn);
        self.close_if_quiet(conn);
    }

    /// Closes a stream that is ending if nothing is left to send.
    pub(in crate::rdma) fn close_if_quiet(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0).filter(|c| c.is_drained()) else { return };
        let quiet = |qp: Qp| self.qps.get(qp.0).is_none_or(QueuePair::is_quiet);
        match connection.phase {
            Phase::Ending => self.close(conn, false),
            Phase::Closing
                if !matches!(connection.first, FirstFpdu::Send(_))
                    && connection.qp.is_none_or(quiet) =>
            {
                self.detach(conn);
                self.close(conn, false);
            }
            _ => {}
        }
    }

    /// Removes a stream and reports its end.
    pub(in crate::rdma) fn close(&mut self, conn: Conn, reset: bool) {
        if self.conns.remove(conn.0).is_some() {
            self.shared.events.push_back(Event::Close { conn, reset });
        }
    }

    /// Handles an orderly end of the peer's stream. Returns true if unexpected messages still wait
    /// for receives; they may wait for [`AFTER_END_NS`].
    pub(in crate::rdma) fn awaits_receives(&mut self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        let queue_pair = connection.qp.and_then(|qp| self.qps.get(qp.0));
        if connection.peer_finished
            || !connection.established
            || !queue_pair.is_some_and(|queue_pair| queue_pair.has_whole_unexpected())
        {
            return false;
        }
        connection.peer_finished = true;
        let due = self.shared.now.after(AFTER_END_NS);
        self.arm_timer(conn.0, due);
        true
    }

    /// Handles the peer's end on a stalled stream. The end is read only after there is room.
    pub(in crate::rdma) fn end_while_stalled(&mut self, conn: Conn) {
        let due = self.shared.now.after(AFTER_END_NS);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        if matches!(connection.phase, Phase::Open) {
            connection.end_unread = true;
            self.arm_timer(conn.0, due);
        }
    }

    /// Ends a stream after the peer's end if it is still stalled.
    pub(in crate::rdma) fn expire_stalled_end(&mut self, conn: Conn) {
        let stalled = self.is_stalled(conn);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.end_unread = false;
        if stalled {
            self.report(conn, Cause::MPA_LOST, true);
            self.detach(conn);
            self.close(conn, true);
        }
    }

    /// Ends a stream after the peer has closed it in order.
    pub(in crate::rdma) fn finish(&mut self, conn: Conn) {
        self.detach(conn);
        self.close(conn, false);
    }
}
