//! Calls for streams: to connect, accept, reject, disconnect, and to report their end.
//!
//! ```text
//!  connect ─► Requested ─┐                 ┌─ disconnect ─► Closing ─┐
//!                        ├─► Open ─────────┤                         ├─► Close
//!  incoming ─► Awaited ──┘                 └─ error, Terminate ──────┴─► Ending ─► Close
//! ```
//!
//! Invariant: bytes that [`Rnic::output`] appended go out before the end, and nothing follows a
//! Terminate. The last event of each stream is its [`crate::rdma::Event::Close`]. A responder sends
//! no FPDU before it has received one.
//!
//! Not here: sockets, and the owners of streams.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::error::PostError;
use crate::rdma::event::{StartupError, StreamEnd};
use crate::rdma::ids::{Conn, Qp};
use crate::rdma::iwarp::connection::{Connection, Phase};
use crate::rdma::iwarp::start::{Depths, FirstFpdu, Initiator, Responder, StartOptions};
use crate::rdma::options::{AcceptOptions, ConnectOptions, QpState};
use crate::rdma::rnic::Rnic;
use crate::wire::mpa::{Rtr, RtrKind};
use crate::wire::rdmap::Cause;

impl Rnic {
    /// Connects an idle queue pair on a stream that is up, as the initiator.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such queue pair, if it is not idle, or if the revision
    /// does not exist; [`PostError::TooLong`] for private data; [`PostError::NoRoom`].
    pub fn connect(
        &mut self,
        now: Instant,
        qp: Qp,
        options: &ConnectOptions,
    ) -> Result<Conn, PostError> {
        self.shared.now = now;
        let queue_pair = self.qps.get_mut(qp.0).filter(|qp| qp.state == QpState::Idle);
        let queue_pair = queue_pair.ok_or(PostError::Invalid)?;
        let config = &self.shared.config;
        if self.conns.used() >= config.max_conns {
            return Err(PostError::NoRoom);
        }
        let start = StartOptions {
            crc: options.crc.unwrap_or(config.crc),
            markers: options.markers.unwrap_or(config.markers),
            revision: options.revision.unwrap_or(config.revision),
            rtr: options.peer_to_peer.map(Rtr::only),
        };
        let depths = Depths { ird: options.ird, ord: options.ord };
        let mut frame = Vec::new();
        let initiator = Initiator::new(start, depths, &options.private_data, &mut frame)?;
        let phase = Phase::Requested(Box::new(initiator));
        let conn = self.conns.insert(|_| Connection::new(phase)).ok_or(PostError::NoRoom)?;
        let due = now.after(config.reply_timeout_ns);
        queue_pair.start(Conn(conn), options.rnr_timeout_ns);
        queue_pair.iwarp.initiator = true;
        // A Read or a Send that opens a peer-to-peer connection goes before any hello.
        if !config.acknowledge_writes
            || options.peer_to_peer.is_some_and(|kind| kind != RtrKind::Write)
        {
            queue_pair.iwarp.acks.set_plain();
        }
        if let Some(connection) = self.conns.get_mut(conn) {
            (connection.qp, connection.frame) = (Some(qp), frame);
            connection.tx_not_before = Instant::from_ns(options.first_fpdu_delay_ns);
            connection.open_with_write = options.open_with_write;
        }
        self.arm_timer(conn, due);
        self.wake(Conn(conn));
        Ok(Conn(conn))
    }

    /// Takes a stream that is up, as the responder.
    ///
    /// # Errors
    /// [`PostError::NoRoom`].
    pub fn incoming(&mut self, now: Instant) -> Result<Conn, PostError> {
        self.shared.now = now;
        let config = &self.shared.config;
        if self.conns.used() >= config.max_conns {
            return Err(PostError::NoRoom);
        }
        let (crc, markers, revision) = (config.crc, config.markers, config.revision);
        let start = StartOptions { crc, markers, revision, rtr: None };
        let phase = Phase::Awaited { responder: Box::new(Responder::new(start)), answer: false };
        let due = now.after(config.start_timeout_ns);
        let conn = self.conns.insert(|_| Connection::new(phase)).ok_or(PostError::NoRoom)?;
        self.arm_timer(conn, due);
        Ok(Conn(conn))
    }

    /// Accepts a [`crate::rdma::Event::ConnectRequest`] with an idle queue pair.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such request or queue pair, or if the queue pair is
    /// not idle; [`PostError::TooLong`] for private data. The request then stays open.
    pub fn accept(
        &mut self,
        now: Instant,
        conn: Conn,
        qp: Qp,
        options: &AcceptOptions,
    ) -> Result<(), PostError> {
        self.shared.now = now;
        let queue_pair = self.qps.get_mut(qp.0).filter(|qp| qp.state == QpState::Idle);
        let queue_pair = queue_pair.ok_or(PostError::Invalid)?;
        let connection = self.conns.get_mut(conn.0).ok_or(PostError::Invalid)?;
        let Phase::Awaited { responder, answer: true } = &mut connection.phase else {
            return Err(PostError::Invalid);
        };
        let depths = Depths { ird: options.ird, ord: options.ord };
        let agreed = responder.accept(depths, &options.private_data, &mut connection.frame)?;
        connection.qp = Some(qp);
        connection.phase = Phase::Open;
        connection.open(agreed, &self.shared);
        queue_pair.start(conn, options.rnr_timeout_ns);
        if !self.shared.config.acknowledge_writes {
            queue_pair.iwarp.acks.set_plain();
        }
        queue_pair.open(agreed);
        if let FirstFpdu::WaitFor(_) = agreed.first {
            let due = now.after(self.shared.config.start_timeout_ns);
            self.arm_timer(conn.0, due);
        } else {
            self.establish(conn, Vec::new());
            if let Some(first_fpdu_timeout_ns) = options.first_fpdu_timeout_ns {
                self.arm_timer(conn.0, now.after(first_fpdu_timeout_ns));
            }
        }
        self.wake(conn);
        Ok(())
    }

    /// Rejects a [`crate::rdma::Event::ConnectRequest`].
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such request; [`PostError::TooLong`] for private data.
    /// The request then stays open.
    pub fn reject(
        &mut self,
        now: Instant,
        conn: Conn,
        private_data: &[u8],
    ) -> Result<(), PostError> {
        self.shared.now = now;
        let connection = self.conns.get_mut(conn.0).ok_or(PostError::Invalid)?;
        let Phase::Awaited { responder, answer: true } = &mut connection.phase else {
            return Err(PostError::Invalid);
        };
        responder.reject(Depths::default(), private_data, &mut connection.frame)?;
        self.end(conn);
        Ok(())
    }

    /// Ends a queue pair's connection after all posted requests are sent and answered, or after a
    /// time-out.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if it has no connection.
    pub fn disconnect(&mut self, now: Instant, qp: Qp) -> Result<(), PostError> {
        self.shared.now = now;
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        let conn = queue_pair.conn.ok_or(PostError::Invalid)?;
        let connection = self.conns.get_mut(conn.0).ok_or(PostError::Invalid)?;
        match connection.phase {
            Phase::Open if connection.established => {
                connection.phase = Phase::Closing;
                queue_pair.state = QpState::Closing;
                queue_pair.send.close();
                let due = now.after(self.shared.config.close_timeout_ns);
                self.arm_timer(conn.0, due);
                self.wake(conn);
                self.close_if_quiet(conn);
            }
            Phase::Closing | Phase::Ending => {}
            _ => self.fail_startup(conn, StartupError::Cancelled, true),
        }
        Ok(())
    }

    /// Sets the number of bytes that fit into a segment of the stream, for the FPDUs that follow.
    pub fn set_emss(&mut self, conn: Conn, bytes: usize) {
        if let Some(connection) = self.conns.get_mut(conn.0) {
            connection.emss = bytes;
            connection.framer.set_emss(bytes);
        }
    }

    /// Reports to the engine that a stream has ended. The caller has handed in all bytes before the
    /// end, unless it is [`StreamEnd::Unread`].
    pub fn ended(&mut self, now: Instant, conn: Conn, end: StreamEnd) {
        self.shared.now = now;
        if end == StreamEnd::Unread {
            return self.end_while_stalled(conn);
        }
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        let whole = end == StreamEnd::Finished
            && connection.deframer.between()
            && !connection.has_partial_input;
        if whole && matches!(connection.phase, Phase::Open) && self.awaits_receives(conn) {
            return;
        }
        let Some(connection) = self.conns.get_mut(conn.0) else { return };
        match connection.phase {
            Phase::Requested(_) | Phase::Awaited { .. } => {
                self.fail_startup(conn, StartupError::Ended(end), end == StreamEnd::Reset)
            }
            Phase::Open | Phase::Closing if !connection.established => {
                self.fail_startup(conn, StartupError::Ended(end), end == StreamEnd::Reset);
            }
            Phase::Open | Phase::Closing => {
                if !whole {
                    connection.pending_terminate = None;
                    self.report(conn, Cause::MPA_LOST, true);
                }
                self.detach(conn);
                self.close(conn, end == StreamEnd::Reset);
            }
            Phase::Ending => self.close(conn, end == StreamEnd::Reset),
        }
        self.settle();
    }
}
