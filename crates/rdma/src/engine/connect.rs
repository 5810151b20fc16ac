//! Opens TCP connections to peers, and ends them.

use std::cmp::Reverse;
use std::io;
use std::net::SocketAddr;

use rustix::net::sockopt;
use sprat_proto::Instant;
use sprat_proto::rdma::{ConnectOptions, Qp, StartupError};
use sprat_proto::time::MS;

use super::cm::{CmId, Destroyed};
use super::core::Core;
use super::state::ConnectionState;
use super::stream::{self, Socket, Stage, Stream, Unconnected};

/// The time before the device tries a refused TCP connection again.
const AGAIN_NS: u64 = 5 * MS;

/// The time limits for opening a TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectLimits {
    /// The time after which the device gives up opening the connection.
    pub(crate) timeout_ns: u64,
    /// The time during which the device tries a refused connection again, since a server may be
    /// about to listen.
    pub(crate) grace_ns: u64,
}

impl Core {
    /// Begins to connect the queue pair `qp` with `to`. The state of the connection shows the
    /// result.
    ///
    /// # Errors
    /// There is no socket, no such address, or there are too many connections.
    pub fn connect(
        &mut self,
        now: Instant,
        qp: Qp,
        to: SocketAddr,
        options: ConnectOptions,
        timeout_ns: u64,
    ) -> io::Result<()> {
        let limits = ConnectLimits { timeout_ns, grace_ns: 0 };
        let socket = self.open(&to)?;
        self.connect_by(now, qp, socket, to, options, limits).map(|_| ())
    }

    /// Begins to connect the queue pair `qp` by a socket of the caller; returns this end's address.
    ///
    /// # Errors
    /// The errors of [`Core::connect`].
    pub(crate) fn connect_by(
        &mut self,
        now: Instant,
        qp: Qp,
        socket: Unconnected,
        to: SocketAddr,
        options: ConnectOptions,
        limits: ConnectLimits,
    ) -> io::Result<SocketAddr> {
        if self.live.len() >= self.settings.connections {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections"));
        }
        let (until, again) = (now.after(limits.timeout_ns), now.after(limits.grace_ns));
        let (done, refused, socket, local) = match socket {
            Unconnected::Kernel(socket) => {
                let (done, refused) = match stream::begin(&socket, &to) {
                    Ok(done) => (done, false),
                    Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && now < again => {
                        (false, true)
                    }
                    Err(e) => return Err(e),
                };
                let local = stream::address(&socket)?;
                (done, refused, Socket::Kernel(socket), local)
            }
            Unconnected::Native(from) => {
                let native = self.native.as_deref_mut().ok_or(io::ErrorKind::Unsupported)?;
                let id = native.connect(now, from.address(), to)?;
                let local = native.flow(id).map_or_else(|| from.address(), |flow| flow.local);
                (false, false, Socket::Native(id), local)
            }
        };
        let stage = Stage::Opening { qp, options: Box::new(options), until, again, refused };
        let native = if let Socket::Native(id) = &socket { Some(*id) } else { None };
        let slot = self.place(Stream::new(socket, stage, to, None));
        native.into_iter().for_each(|id| self.bind_native(id, slot));
        self.events.set_state(qp, ConnectionState::Opening);
        if done {
            self.connected(now, slot);
        } else {
            self.register(slot);
            self.schedule(slot, if refused { now.after(AGAIN_NS) } else { until });
        }
        Ok(local)
    }

    /// Tries to open a refused TCP connection again.
    pub(super) fn retry_connect(&mut self, now: Instant, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        let Stage::Opening { qp, until, again, refused, .. } = &mut stream.stage else {
            return;
        };
        let (qp, until, again) = (*qp, *until, *again);
        *refused = false;
        let begun = match (&mut stream.socket, self.native.as_deref_mut()) {
            (Socket::Kernel(socket), _) => match stream::begin(socket, &stream.peer) {
                // That is still the end of the last attempt.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {
                    stream::begin(socket, &stream.peer)
                }
                begun => begun,
            },
            (Socket::Native(id), Some(native)) => native.reconnect(now, id, stream.peer, slot),
            (Socket::Native(_), None) => Err(io::ErrorKind::Unsupported.into()),
        };
        match begun {
            Ok(true) => self.connected(now, slot),
            Ok(false) => {
                self.register(slot);
                self.schedule(slot, until);
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && now < again => {
                self.retry_later(now, slot)
            }
            Err(e) => {
                self.events.set_state(qp, ConnectionState::Unreachable(e.kind()));
                self.remove(slot);
            }
        }
    }

    fn retry_later(&mut self, now: Instant, slot: u32) {
        if let Some(stream) = self.streams[slot as usize].as_deref_mut()
            && let Stage::Opening { refused, .. } = &mut stream.stage
        {
            *refused = true;
        }
        self.register(slot);
        self.schedule(slot, now.after(AGAIN_NS));
    }

    /// Handles the end of the kernel's attempt to open a TCP connection.
    pub(super) fn connected(&mut self, now: Instant, slot: u32) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        let Socket::Kernel(socket) = &stream.socket else { return };
        let result = match sockopt::socket_error(socket) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) | Err(e) => Err(io::Error::from(e).kind()),
        };
        self.opened(now, slot, result);
    }

    /// Handles the result of opening a stream: starts MPA on it, tries again, or reports the
    /// failure.
    pub(super) fn opened(&mut self, now: Instant, slot: u32, result: Result<(), io::ErrorKind>) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else {
            return;
        };
        let Stage::Opening { qp, options, again, .. } = &mut stream.stage else {
            return;
        };
        if result == Err(io::ErrorKind::ConnectionRefused) && now < *again {
            return self.retry_later(now, slot);
        }
        let (qp, options) = (*qp, std::mem::take(&mut **options));
        let started = result.and_then(|()| {
            self.rnic.connect(now, qp, &options).map_err(|_| io::ErrorKind::InvalidInput)
        });
        match started {
            Ok(conn) => {
                stream.stage = Stage::Live(conn);
                self.set_live(slot, conn);
                self.mark_dirty(slot);
            }
            Err(kind) => {
                self.events.set_state(qp, ConnectionState::Unreachable(kind));
                self.remove(slot);
            }
        }
    }

    /// Gives up the TCP connection that the device opens for `qp`; returns false if there is none.
    pub(crate) fn cancel_connect(&mut self, qp: Qp) -> bool {
        // A connection that is being made has a deadline, so other streams need not be searched.
        if self.events.connections.get(&qp) != Some(&ConnectionState::Opening) {
            return false;
        }
        let opens = |slot: &u32| {
            let stream = self.streams[*slot as usize].as_deref();
            stream
                .is_some_and(|s| matches!(s.stage, Stage::Opening { qp: whose, .. } if whose == qp))
        };
        let Some(slot) = self.timed.iter().map(|Reverse((_, slot))| *slot).find(opens) else {
            return false;
        };
        self.events.set_state(qp, ConnectionState::Failed(StartupError::Cancelled));
        self.remove(slot);
        true
    }

    /// Ends a queue pair's connection, open or still opening; returns false if there is none.
    pub(crate) fn disconnect(&mut self, now: Instant, qp: Qp) -> bool {
        self.rnic.disconnect(now, qp).is_ok() || self.cancel_connect(qp)
    }

    /// Destroys an rdma_cm id with its listener or connection, and rejects the requests that wait
    /// for it. Returns how many of its events the program has taken.
    pub(crate) fn destroy_cm_id(&mut self, now: Instant, cm_id: CmId) -> u64 {
        let Destroyed { taken, pair, listener, asked } = self.events.cm.destroy(cm_id);
        if let Some(listener) = listener {
            self.unlisten(now, listener);
        }
        for conn in asked {
            let _ = self.rnic.reject(now, conn, &[]);
        }
        if let Some(qp) = pair {
            self.disconnect(now, qp);
        }
        taken
    }
}
