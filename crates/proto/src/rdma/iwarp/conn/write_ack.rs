//! Streams whose peers acknowledge Writes, or may: the times of that.
//!
//! Always: a peer that has said nothing is waited for once, for a while; an answer waits for an own message of its queue pair
//! for a moment only.

use crate::Instant;
use crate::rdma::Conn;
use crate::rdma::iwarp::write_ack::UNSURE_NS;
use crate::rdma::rnic::Rnic;

impl Rnic {
    /// A peer of which nothing is known was asked: its first segment is to come.
    #[cold]
    pub(super) fn await_hello(&mut self, conn: Conn) {
        let due = self.shared.now.after(UNSURE_NS);
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.unsure_due = due;
        self.push_timer(due, conn.0);
    }

    /// The peer has said nothing for a while: Writes to it complete as to one that does not acknowledge.
    pub(super) fn give_up_on_hello(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.unsure_due = Instant::NEVER;
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        if queue_pair.placement.gives_up() {
            queue_pair.release(&mut self.shared);
            self.close_if_quiet(conn);
        }
    }

    /// The peer should have sent first, and has not: one of ours would have.
    pub(super) fn takes_for_foreign(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        if let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
            queue_pair.placement.foreign();
            queue_pair.release(&mut self.shared);
        }
    }

    /// Answers that have waited long enough for an own message go by themselves.
    #[cold]
    pub(super) fn end_rides(&mut self) {
        while let Some(&(due, qp)) = self.shared.rides.front() {
            if due > self.shared.now {
                break;
            }
            self.shared.rides.pop_front();
            if let Some(conn) = self.qps.get(qp.0).and_then(|queue_pair| queue_pair.conn) {
                self.wake(conn);
            }
        }
    }
}
