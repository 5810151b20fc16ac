//! The deadlines of iWARP streams: start-up, end, unexpected messages, the peer's hello, and held
//! acknowledgements.
//!
//! Invariant: the engine waits for a silent peer's hello once, and holds an acknowledgement only
//! for a moment. A message waits for its receive no longer than the connection's options allow.

use core::cmp::Reverse;

use crate::Instant;
use crate::rdma::event::StartupError;
use crate::rdma::ids::Conn;
use crate::rdma::iwarp::acks::UNSURE_NS;
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::iwarp::start::FirstFpdu;
use crate::rdma::memory::Memory;
use crate::rdma::rnic::Rnic;

impl Rnic {
    /// The time of the next [`Rnic::tick`] call that the engine needs, if there is one.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let ride = self.shared.ack_timers.front().map(|(due, _)| *due);
        let timer = self.timers.peek().map(|Reverse((due, _))| *due);
        timer.into_iter().chain(ride).min()
    }

    /// Handles the deadlines of streams up to `now`.
    pub fn tick(&mut self, now: Instant) {
        self.shared.now = now;
        self.expire_ack_timers();
        while let Some(&Reverse((due, conn))) = self.timers.peek() {
            if due > now {
                break;
            }
            self.timers.pop();
            let Some(connection) = self.conns.get_mut(conn) else { continue };
            if connection.rnr_deadline == due && self.expire_rnr_timer(Conn(conn)) {
                continue;
            }
            let Some(connection) = self.conns.get_mut(conn) else { continue };
            if connection.hello_deadline == due {
                self.expire_hello_timer(Conn(conn));
            }
            let Some(connection) = self.conns.get_mut(conn) else { continue };
            if connection.deadline != due {
                // A later deadline may have replaced this one, but the delay of the first FPDU is
                // over.
                if connection.tx_not_before == due {
                    self.wake(Conn(conn));
                }
                continue;
            }
            connection.deadline = Instant::NEVER;
            match connection.phase {
                Phase::Requested(_) | Phase::Awaited { .. } => {
                    self.fail_startup(Conn(conn), StartupError::Timeout, true)
                }
                Phase::Open if !connection.established => {
                    self.fail_startup(Conn(conn), StartupError::Timeout, true)
                }
                Phase::Open if connection.peer_finished => self.finish(Conn(conn)),
                Phase::Open if connection.end_unread => self.expire_stalled_end(Conn(conn)),
                Phase::Open => {
                    // The peer did not send first in time, so this end sends.
                    if connection.first == FirstFpdu::Wait {
                        connection.first = FirstFpdu::Free;
                        self.treat_as_plain(Conn(conn));
                    }
                    self.wake(Conn(conn));
                }
                Phase::Closing | Phase::Ending => {
                    self.detach(Conn(conn));
                    self.close(Conn(conn), true);
                }
            }
        }
        self.settle();
    }

    /// Puts a stream on the list of ready streams.
    pub(in crate::rdma) fn wake(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0)
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push_back(conn);
        }
    }

    /// Sets the deadline of the stream's current phase.
    pub(in crate::rdma) fn arm_timer(&mut self, conn: u32, due: Instant) {
        let Some(connection) = self.conns.get_mut(conn) else { return };
        connection.deadline = due;
        self.push_timer(due, conn);
    }

    /// Adds an entry for one of the stream's deadlines to the timers.
    pub(in crate::rdma) fn push_timer(&mut self, due: Instant, conn: u32) {
        self.timers.push(Reverse((due, conn)));
        // Outdated entries expire by themselves, but not as fast as streams can come and go.
        if self.timers.len() > 2 * self.conns.used() + 1024 {
            let conns = &self.conns;
            self.timers.retain(|Reverse((due, conn))| {
                conns.get(*conn).is_some_and(|c| {
                    c.deadline == *due
                        || c.tx_not_before == *due
                        || c.rnr_deadline == *due
                        || c.hello_deadline == *due
                })
            });
        }
    }

    /// Places unexpected messages of a stream into receives that were posted since they arrived.
    #[cold]
    pub(in crate::rdma) fn place_unexpected_of<M: Memory>(&mut self, conn: Conn, memory: &mut M) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        if !queue_pair.receive.is_awaited()
            || !matches!(connection.phase, Phase::Open | Phase::Closing)
        {
            return;
        }
        if let Err(fault) = queue_pair.place_unexpected(&mut self.shared, memory) {
            return self.fail(conn, fault);
        }
        if connection.peer_finished && !queue_pair.has_whole_unexpected() {
            return self.finish(conn);
        }
        self.arm_rnr_timer(conn);
    }

    /// Adds a timer for the deadline of a stream's first unexpected message.
    #[cold]
    pub(in crate::rdma) fn arm_rnr_timer(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get(qp.0)) else { return };
        let until = queue_pair.receive.rnr_deadline;
        if connection.rnr_deadline != until {
            connection.rnr_deadline = until;
            if until != Instant::NEVER {
                self.push_timer(until, conn.0);
            }
        }
    }

    /// Ends a stream whose first unexpected message has waited too long. Returns true if it has.
    pub(in crate::rdma) fn expire_rnr_timer(&mut self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get_mut(conn.0) else { return false };
        let due = core::mem::replace(&mut connection.rnr_deadline, Instant::NEVER);
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get(qp.0)) else {
            return false;
        };
        if queue_pair.receive.rnr_deadline != due {
            return false;
        }
        let fault = queue_pair.rnr_error();
        self.fail(conn, fault);
        true
    }

    /// Sets the deadline for the hello of an unknown peer, after the first request for an
    /// acknowledgement to it.
    #[cold]
    pub(in crate::rdma) fn arm_hello_timer(&mut self, conn: Conn) {
        let due = self.shared.now.after(UNSURE_NS);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.hello_deadline = due;
        self.push_timer(due, conn.0);
    }

    /// Completes the Writes to a peer that has sent nothing, without acknowledgements.
    pub(in crate::rdma) fn expire_hello_timer(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.hello_deadline = Instant::NEVER;
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        if queue_pair.iwarp.acks.stop_waiting() {
            queue_pair.complete_done(&mut self.shared);
            self.close_if_quiet(conn);
        }
    }

    /// Treats a stream's peer as one that does not acknowledge Writes, since it has not sent first.
    pub(in crate::rdma) fn treat_as_plain(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.iwarp.acks.set_plain();
            queue_pair.complete_done(&mut self.shared);
        }
    }

    /// Wakes the streams whose held acknowledgements of Writes are due.
    #[cold]
    pub(in crate::rdma) fn expire_ack_timers(&mut self) {
        while let Some(&(due, qp)) = self.shared.ack_timers.front() {
            if due > self.shared.now {
                break;
            }
            self.shared.ack_timers.pop_front();
            if let Some(conn) = self.qps.get(qp.0).and_then(|queue_pair| queue_pair.conn) {
                self.wake(conn);
            }
        }
    }
}
