//! Listening for RDMA connections: requests, and their answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use sprat_proto::rdma::{AcceptOptions, PostError, StartupError};

use super::handle::Handle;
use super::pair::QueuePair;
use crate::engine::{ConnectionState, Patience, PendingRequest};

/// A listener: an address at which peers may request RDMA connections.
#[derive(Debug)]
pub struct Listener {
    handle: Arc<Handle>,
    number: u32,
    local: SocketAddr,
    /// The epoch of the last poll that found no request.
    empty_at: AtomicU64,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.shared.act(|core, now| core.unlisten(now, self.number));
    }
}

impl Listener {
    pub(super) fn new(handle: Arc<Handle>, addr: SocketAddr) -> io::Result<Self> {
        let (number, local) = handle.shared.act(|core, _| core.listen(addr))?;
        Ok(Self { handle, number, local, empty_at: AtomicU64::new(0) })
    }

    /// The address at which the listener listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Takes the listener's next connection request; waits for one, at most for `limit`.
    #[must_use]
    pub fn next(&self, limit: Option<Duration>) -> Option<ConnectRequest> {
        let shared = &self.handle.shared;
        let asked = shared.wait(limit, Patience::Spin, |core| core.next_request(self.number))?;
        Some(ConnectRequest { handle: Arc::clone(&self.handle), asked, answered: false })
    }

    /// Takes the listener's next connection request, if there is one.
    #[must_use]
    pub fn poll(&self) -> Option<ConnectRequest> {
        let asked =
            self.handle.shared.poll_since(&self.empty_at, |core| core.next_request(self.number))?;
        Some(ConnectRequest { handle: Arc::clone(&self.handle), asked, answered: false })
    }

    /// Takes the oldest start-up that failed at this listener: the peer's address, and the reason.
    /// The listener keeps the newest 64.
    #[must_use]
    pub fn failed(&self) -> Option<(SocketAddr, StartupError)> {
        self.handle.shared.with(|core| core.next_failed(self.number))
    }
}

/// A peer's request for a connection. Dropping it without an answer rejects it.
#[derive(Debug)]
pub struct ConnectRequest {
    pub(super) handle: Arc<Handle>,
    pub(super) asked: PendingRequest,
    pub(super) answered: bool,
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if !self.answered {
            let _ =
                self.handle.shared.act(|core, now| core.rnic().reject(now, self.asked.conn, &[]));
        }
    }
}

impl ConnectRequest {
    /// The private data of the peer's program.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.asked.private_data
    }

    /// The number of Reads and atomics that the peer serves at once, if its request states it.
    #[must_use]
    pub fn ird(&self) -> Option<u16> {
        self.asked.ird
    }

    /// The number of Reads and atomics that the peer requests at once, if its request states it.
    #[must_use]
    pub fn ord(&self) -> Option<u16> {
        self.asked.ord
    }

    /// The address of the client that requests the connection.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.asked.peer
    }

    /// The local address that the client connects to.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.asked.local
    }

    /// Accepts the connection request with the queue pair `pair`. The program may post to it at
    /// once; [`QueuePair::connected`] reports when the peer is connected. Post receives for the
    /// peer's first messages before this call.
    ///
    /// # Errors
    /// The pair is of another device or has a connection, the private data is too long, or the peer
    /// has gone. The request is rejected then.
    pub fn accept(mut self, pair: &QueuePair, options: AcceptOptions) -> Result<(), PostError> {
        if !Arc::ptr_eq(&self.handle, &pair.domain.handle) {
            return Err(PostError::Invalid);
        }
        let (conn, qp) = (self.asked.conn, pair.qp);
        self.handle.shared.act(|core, now| {
            core.rnic().accept(now, conn, qp, &options)?;
            core.events().connections.insert(qp, ConnectionState::Opening);
            Ok::<_, PostError>(())
        })?;
        self.answered = true;
        Ok(())
    }

    /// Rejects the connection request, with private data for the peer's program (at most 508
    /// bytes).
    ///
    /// # Errors
    /// The private data is too long, or the peer has gone.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), PostError> {
        self.answered = true;
        self.handle.shared.act(|core, now| core.rnic().reject(now, self.asked.conn, private_data))
    }
}
