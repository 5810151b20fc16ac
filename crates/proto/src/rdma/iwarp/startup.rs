//! The start-up of a stream: takes MPA's frames and reports events.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::event::{Event, StartupError};
use crate::rdma::ids::Conn;
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::start::{FirstFpdu, PeerDepths, ReceivedReply, ReceivedRequest};
use crate::rdma::options::QpState;
use crate::rdma::rnic::Rnic;
use crate::wire::mpa::RtrKind;
use crate::wire::rdmap::Cause;

impl Rnic {
    /// Takes the peer's MPA Request and reports it to the program.
    pub(in crate::rdma) fn request(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Phase::Awaited { responder, answer } = &mut connection.phase else { return 0 };
        match responder.input(bytes) {
            ReceivedRequest::More => 0,
            ReceivedRequest::Request { peer: PeerDepths { ird, ord }, private_data, consumed } => {
                *answer = true;
                connection.deadline = Instant::NEVER;
                let private_data = private_data.to_vec();
                self.shared.events.push_back(Event::ConnectRequest {
                    conn,
                    private_data,
                    ird,
                    ord,
                });
                consumed
            }
            ReceivedRequest::Failed(why) => {
                self.fail_startup(conn, StartupError::Negotiation(why), true);
                0
            }
        }
    }

    /// Takes the peer's MPA Reply and enters full operation, or fails the start-up.
    pub(in crate::rdma) fn reply(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.conns.get_mut(conn.0) else { return 0 };
        let Phase::Requested(initiator) = &connection.phase else { return 0 };
        let Some(qp) = connection.qp else { return 0 };
        match initiator.input(bytes) {
            ReceivedReply::More => 0,
            ReceivedReply::Accepted { negotiated, private_data, consumed, .. } => {
                let private_data = private_data.to_vec();
                connection.phase = Phase::Open;
                connection.open(negotiated, &self.shared);
                let says_hello =
                    self.qps.get(qp.0).is_some_and(|qp| !qp.iwarp.acks.peer_is_plain());
                if (connection.open_with_write || says_hello) && connection.first == FirstFpdu::Free
                {
                    connection.first = FirstFpdu::Send(RtrKind::Write);
                }
                connection.deadline = Instant::NEVER;
                let hold = connection.tx_not_before.as_ns();
                let until = self.shared.now.after(hold);
                connection.tx_not_before = until;
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
            ReceivedReply::Rejected { peer: PeerDepths { ird, ord }, private_data, consumed } => {
                let private_data = private_data.to_vec();
                self.shared.events.push_back(Event::Rejected { conn, qp, private_data, ird, ord });
                self.release_qp(conn);
                self.end(conn);
                consumed
            }
            ReceivedReply::Failed { why, terminate } => {
                let Some(negotiated) = terminate else {
                    self.fail_startup(conn, StartupError::Negotiation(why), true);
                    return 0;
                };
                connection.open(negotiated, &self.shared);
                let cause = Cause { code: why.code(), ..Cause::MPA_LOCAL };
                connection.pending_terminate = Some(Box::new(StreamError::own(cause)));
                self.shared.events.push_back(Event::Failed {
                    conn,
                    qp: Some(qp),
                    why: StartupError::Negotiation(why),
                });
                self.release_qp(conn);
                self.end(conn);
                0
            }
        }
    }

    /// Lets a responder send, after it has received the initiator's first FPDU.
    #[cold]
    pub(in crate::rdma) fn receive_first_fpdu(&mut self, conn: Conn, well: bool) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        connection.first = FirstFpdu::Free;
        connection.deadline =
            if connection.established { connection.deadline } else { Instant::NEVER };
        if well && !connection.established {
            self.establish(conn, Vec::new());
        }
        self.wake(conn);
    }

    /// Reports that the stream's queue pair is connected.
    pub(in crate::rdma) fn establish(&mut self, conn: Conn, private_data: Vec<u8>) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) else { return };
        connection.established = true;
        queue_pair.state = QpState::Ready;
        let (qp, ird, ord) = (
            queue_pair.number,
            queue_pair.iwarp.responses.limit,
            queue_pair.iwarp.outstanding.limit,
        );
        self.shared.events.push_back(Event::Established { conn, qp, private_data, ird, ord });
    }

    /// Makes the stream's queue pair idle again, after a failed start-up.
    pub(in crate::rdma) fn release_qp(&mut self, conn: Conn) {
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let Some(queue_pair) = connection.qp.take().and_then(|qp| self.qps.get_mut(qp.0)) else {
            return;
        };
        queue_pair.unstart(&mut self.shared);
    }

    /// Fails the start-up of a stream.
    pub(in crate::rdma) fn fail_startup(&mut self, conn: Conn, why: StartupError, reset: bool) {
        let Some(connection) = self.conns.get(conn.0) else { return };
        let qp = connection.qp;
        self.shared.events.push_back(Event::Failed { conn, qp, why });
        self.release_qp(conn);
        self.close(conn, reset);
    }
}
