//! The times of streams.

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
    /// When [`Rnic::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let ride = self.shared.ack_timers.front().map(|(due, _)| *due);
        let timer = self.timers.peek().map(|Reverse((due, _))| *due);
        timer.into_iter().chain(ride).min()
    }

    /// It is `now`.
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
                // It may have got another deadline since; that its FPDUs may go now still counts.
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
                    // Whoever should have sent first has not: the patience with him is over.
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

    /// Has the stream asked for output.
    pub(in crate::rdma) fn wake(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(conn.0)
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push_back(conn);
        }
    }

    /// Looks at the stream again at `due`, and not at any other time that was said before.
    pub(in crate::rdma) fn arm_timer(&mut self, conn: u32, due: Instant) {
        let Some(connection) = self.conns.get_mut(conn) else { return };
        connection.deadline = due;
        self.push_timer(due, conn);
    }

    /// Looks at the stream at `due`, if that is still one of its times then.
    pub(in crate::rdma) fn push_timer(&mut self, due: Instant, conn: u32) {
        self.timers.push(Reverse((due, conn)));
        // Void entries go by themselves in time; not if streams come and go faster than that.
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

    /// Gives receives that have been posted to messages that came before them.
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

    /// Looks at a message without a receive again when the patience with it is over.
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

    /// Ends a stream whose first message without a receive has waited too long; true if it has.
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

    /// A peer of which nothing is known was asked: its first segment is to come.
    #[cold]
    pub(in crate::rdma) fn arm_hello_timer(&mut self, conn: Conn) {
        let due = self.shared.now.after(UNSURE_NS);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.hello_deadline = due;
        self.push_timer(due, conn.0);
    }

    /// The peer has said nothing for a while: Writes to it complete as to one that does not acknowledge.
    pub(in crate::rdma) fn expire_hello_timer(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.hello_deadline = Instant::NEVER;
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        if queue_pair.iwarp.acks.stop_waiting() {
            queue_pair.release(&mut self.shared);
            self.close_if_quiet(conn);
        }
    }

    /// The peer should have sent first, and has not: one of ours would have.
    pub(in crate::rdma) fn treat_as_plain(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.iwarp.acks.foreign();
            queue_pair.release(&mut self.shared);
        }
    }

    /// Answers that have waited long enough for an own message go by themselves.
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
