//! The end of a stream.

use alloc::boxed::Box;

use crate::rdma::event::{Event, StartupError};
use crate::rdma::ids::{Conn, Qp};
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::iwarp::error::Fault;
use crate::rdma::iwarp::start::FirstFpdu;
use crate::rdma::qp::QueuePair;
use crate::rdma::rnic::Rnic;
use crate::time::SECOND;
use crate::wire::rdmap::Cause;
use crate::wire::write_ack::WriteAck;

/// How long messages wait for receives behind the peer's end. A program that still receives posts
/// one by then; a program that waits for the end instead gives up after some seconds (qperf: 5).
const AFTER_END_NS: u64 = 2 * SECOND;

impl Rnic {
    /// Tells the program of an error of an established connection.
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

    /// An error ends the stream: a Terminate tells the peer, if FPDUs may be sent.
    pub(in crate::rdma) fn fail(&mut self, conn: Conn, fault: Fault) {
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
    pub(in crate::rdma) fn detach(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(qp) = connection.qp.take() else { return };
        let Some(queue_pair) = self.qps.get_mut(qp.0) else { return };
        connection.final_ack =
            queue_pair.iwarp.acks.last_words(connection.pending_terminate.is_none());
        queue_pair.fail(&mut self.shared);
        if connection.established {
            self.shared.events.push_back(Event::Disconnected { qp });
        }
    }

    /// The queue pair is destroyed.
    pub(in crate::rdma) fn release_destroyed(&mut self, conn: Conn, final_ack: Option<WriteAck>) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let reset = !connection.established || connection.position != connection.taken;
        if reset || final_ack.is_none() {
            return self.close(conn, reset);
        }
        (connection.qp, connection.final_ack) = (None, final_ack);
        self.end(conn);
    }

    /// The queue pair is put in error: what was framed is sent, nothing more.
    pub(in crate::rdma) fn end_after_framed(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        if !connection.established {
            return self.fail_startup(conn, StartupError::Cancelled, true);
        }
        self.detach(conn);
        self.end(conn);
    }

    /// What is left is sent, and then the stream closed.
    pub(in crate::rdma) fn end(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.phase = Phase::Ending;
        }
        let due = self.shared.now.after(self.shared.config.close_timeout_ns);
        self.arm_timer(conn.0, due);
        self.wake(conn);
        self.close_if_quiet(conn);
    }

    /// Closes the stream if it is ending and nothing is left.
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

    /// The end.
    pub(in crate::rdma) fn close(&mut self, conn: Conn, reset: bool) {
        if self.conns.remove(conn.0).is_some() {
            self.shared.events.push_back(Event::Close { conn, reset });
        }
    }

    /// The peer has ended its stream in order. True if messages that came before wait for receives, which they may for
    /// [`AFTER_END_NS`].
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

    /// The peer has ended a stream that is stalled: its end can be read only once there is room.
    pub(in crate::rdma) fn end_while_stalled(&mut self, conn: Conn) {
        let due = self.shared.now.after(AFTER_END_NS);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        if matches!(connection.phase, Phase::Open) {
            connection.end_unread = true;
            self.arm_timer(conn.0, due);
        }
    }

    /// Ends a stream whose peer is gone, if no receive has made room for what is unread.
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

    /// The peer has ended its stream, and nothing of it waits any more.
    pub(in crate::rdma) fn finish(&mut self, conn: Conn) {
        self.detach(conn);
        self.close(conn, false);
    }
}
