//! Streams with messages that came before their receives: the times, and the peer's end behind them.
//!
//! Always: a message waits no longer than the queue pair's connection was made to have it wait; behind the peer's end not
//! longer than [`AFTER_END_NS`].

use super::Phase;
use crate::Instant;
use crate::rdma::rnic::Rnic;
use crate::rdma::{Conn, Memory};
use crate::time::SECOND;
use crate::wire::rdmap::Cause;

/// How long messages wait for receives behind the peer's end. A program that still receives posts
/// one by then; a program that waits for the end instead gives up after some seconds (qperf: 5).
const AFTER_END_NS: u64 = 2 * SECOND;

impl Rnic {
    /// Gives receives that have been posted to messages that came before them.
    #[cold]
    pub(super) fn take_up_unready<M: Memory>(&mut self, conn: Conn, memory: &mut M) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        if !queue_pair.receive.is_awaited()
            || !matches!(connection.phase, Phase::Open | Phase::Closing)
        {
            return;
        }
        if let Err(fault) = queue_pair.take_up(&mut self.shared, memory) {
            return self.fail(conn, fault);
        }
        if connection.finished && !queue_pair.has_whole_unready() {
            return self.finish(conn);
        }
        self.mind_unready(conn);
    }

    /// Looks at a message without a receive again when the patience with it is over.
    #[cold]
    pub(super) fn mind_unready(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get(qp.0)) else { return };
        let until = queue_pair.receive.until;
        if connection.rnr_due != until {
            connection.rnr_due = until;
            if until != Instant::NEVER {
                self.push_timer(until, conn.0);
            }
        }
    }

    /// Ends a stream whose first message without a receive has waited too long; true if it has.
    pub(super) fn is_out_of_patience(&mut self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        let due = core::mem::replace(&mut connection.rnr_due, Instant::NEVER);
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get(qp.0)) else {
            return false;
        };
        if queue_pair.receive.until != due {
            return false;
        }
        let fault = queue_pair.not_ready();
        self.fail(conn, fault);
        true
    }

    /// The peer has ended its stream in order. True if messages that came before wait for receives, which they may for
    /// [`AFTER_END_NS`].
    pub(super) fn outlives_peer(&mut self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        let queue_pair = connection.qp.and_then(|qp| self.qps.get(qp.0));
        if connection.finished
            || !connection.established
            || !queue_pair.is_some_and(|queue_pair| queue_pair.has_whole_unready())
        {
            return false;
        }
        connection.finished = true;
        let due = self.shared.now.after(AFTER_END_NS);
        self.arm_timer(conn.0, due);
        true
    }

    /// The peer has ended a stream that is stalled: its end can be read only once there is room.
    pub(super) fn leaves_unread(&mut self, conn: Conn) {
        let due = self.shared.now.after(AFTER_END_NS);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        if matches!(connection.phase, Phase::Open) {
            connection.unread = true;
            self.arm_timer(conn.0, due);
        }
    }

    /// Ends a stream whose peer is gone, if no receive has made room for what is unread.
    pub(super) fn end_unread(&mut self, conn: Conn) {
        let stalled = self.is_stalled(conn);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.unread = false;
        if stalled {
            self.report(conn, Cause::MPA_LOST, true);
            self.detach(conn);
            self.close(conn, true);
        }
    }

    /// The peer has ended its stream, and nothing of it waits any more.
    pub(super) fn finish(&mut self, conn: Conn) {
        self.detach(conn);
        self.close(conn, false);
    }
}
