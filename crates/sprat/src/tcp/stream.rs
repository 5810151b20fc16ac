//! Streams: connections with calls that wait.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpError, TcpFlow, TcpId, TcpInfo, TcpState};
use sprat_sys::clock;

use super::core::{Core, Key};
use super::error;
use super::handle::Handle;
use super::shared::Shared;

/// The value of a timeout that is none.
const NO_TIMEOUT: u64 = u64::MAX;

/// A connection of a TCP stack. It reads and writes as a socket does, also by `&Stream`, so that
/// one thread can read while another one writes.
///
/// The drop of the last clone closes the connection in order: the stack still sends what was
/// written, and then the end of the stream. Data that arrives later resets the connection
/// (RFC 9293 3.6.1). The program has to keep the stack, or a part of it, until that is done, or
/// waits for it when it drops the stack.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Arc<Handle>,
    id: TcpId,
    flow: TcpFlow,
    read_timeout_ns: AtomicU64,
    write_timeout_ns: AtomicU64,
    is_nonblocking: AtomicBool,
    is_read_shut: AtomicBool,
    is_error_taken: AtomicBool,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("flow", &self.inner.flow).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let id = self.id;
        self.handle.shared.act(|core| {
            core.remove(id);
            let host = core.interface.host();
            host.close(id);
            host.release(id);
        });
    }
}

impl Stream {
    pub(super) fn new(handle: &Arc<Handle>, id: TcpId) -> io::Result<Self> {
        let flow = handle.shared.with(|core| core.interface.host().flow(id));
        let inner = Inner {
            handle: Arc::clone(handle),
            id,
            flow: flow.ok_or(io::ErrorKind::NotConnected)?,
            read_timeout_ns: AtomicU64::new(NO_TIMEOUT),
            write_timeout_ns: AtomicU64::new(NO_TIMEOUT),
            is_nonblocking: AtomicBool::new(false),
            is_read_shut: AtomicBool::new(false),
            is_error_taken: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.handle.shared
    }

    pub(super) fn id(&self) -> TcpId {
        self.inner.id
    }

    /// Returns the address and port of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.flow.peer
    }

    /// Returns the address and port of this end.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.flow.local
    }

    /// Ends a direction of the connection. The peer gets all that was written, and then the end of
    /// the stream. After `Read` this end reads nothing more; the peer may still send until the
    /// receive buffer is full.
    pub fn shutdown(&self, how: Shutdown) {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.inner.is_read_shut.store(true, Ordering::Relaxed);
        }
        let writes = matches!(how, Shutdown::Write | Shutdown::Both);
        let id = self.inner.id;
        self.inner.handle.shared.act(|core| {
            if writes {
                core.interface.host().close(id);
            }
            core.wake(Key::Connection(id));
        });
    }

    /// Sets the longest time that a read waits; `None` waits for ever. A read that has waited so
    /// long fails with `WouldBlock`, as that of a socket.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.inner.read_timeout_ns.store(ns(timeout), Ordering::Relaxed);
    }

    /// Sets the longest time that a write waits for room in the send buffer; `None` waits for ever.
    /// A write that has waited so long fails with `WouldBlock`, as that of a socket.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.inner.write_timeout_ns.store(ns(timeout), Ordering::Relaxed);
    }

    /// Lets reads and writes fail with `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.inner.is_nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Ends the connection at once, and resets the peer's end.
    pub fn abort(&self) {
        let id = self.inner.id;
        self.inner.handle.shared.act(|core| {
            core.interface.host().abort(id);
            core.wake(Key::Connection(id));
        });
    }

    /// Returns the reason why the connection has ended early, once.
    #[must_use]
    pub fn take_error(&self) -> Option<TcpError> {
        let id = self.inner.id;
        let error = self.inner.handle.shared.with(|core| core.interface.host().error(id))?;
        let was_taken = self.inner.is_error_taken.swap(true, Ordering::Relaxed);
        (!was_taken).then_some(error)
    }

    /// Returns what the connection has measured, or `None` if it has ended and the stack has
    /// forgotten it.
    #[must_use]
    pub fn info(&self) -> Option<TcpInfo> {
        let id = self.inner.id;
        let shared = &self.inner.handle.shared;
        shared.with(|core| core.interface.host().info(id))
    }

    /// Waits until the peer has acknowledged all that was written, and the end of the stream if
    /// this end has sent it. A program that measures calls it.
    ///
    /// # Errors
    /// The connection has ended early, or the write timeout has passed.
    pub fn wait_acknowledged(&self) -> io::Result<()> {
        let id = self.inner.id;
        self.wait("flush", &self.inner.write_timeout_ns, |core| {
            let host = core.interface.host();
            let Some(connection) = host.connection(id) else { return Some(Ok(())) };
            if let Some(error) = error::ended("flush", self.peer_addr(), connection) {
                return Some(Err(error));
            }
            let info = host.info(id)?;
            host.want_room(id);
            (info.unacknowledged_segments == 0 && info.unsent_bytes == 0).then_some(Ok(()))
        })
    }

    fn wait<T>(
        &self,
        operation: &'static str,
        timeout: &AtomicU64,
        attempt: impl FnMut(&mut Core) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let timeout_ns = timeout.load(Ordering::Relaxed);
        let is_nonblocking = self.inner.is_nonblocking.load(Ordering::Relaxed);
        let until = match timeout_ns {
            _ if is_nonblocking => Some(Instant::ZERO),
            NO_TIMEOUT => None,
            ns => Some(clock::now().after(ns)),
        };
        match self.inner.handle.shared.wait(Key::Connection(self.inner.id), until, attempt) {
            Some(result) => result,
            None if is_nonblocking => Err(io::ErrorKind::WouldBlock.into()),
            None => {
                let id = self.inner.id;
                let report = self.shared().with(|core| core.interface.host().soft_error(id));
                let late = error::late(operation, self.peer_addr(), report);
                Err(io::Error::new(io::ErrorKind::WouldBlock, late))
            }
        }
    }
}

fn ns(timeout: Option<Duration>) -> u64 {
    timeout.map_or(NO_TIMEOUT, super::options::ns)
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() || self.inner.is_read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let (id, peer) = (self.inner.id, self.peer_addr());
        self.wait("read from", &self.inner.read_timeout_ns, |core| {
            let host = core.interface.host();
            let count = host.read(id, into);
            if count > 0 {
                return Some(Ok(count));
            }
            let Some(connection) = host.connection(id) else {
                return Some(Err(error::aborted("read from", peer)));
            };
            if let Some(error) = error::ended("read from", peer, connection) {
                return Some(Err(error));
            }
            if connection.is_finished() || self.inner.is_read_shut.load(Ordering::Relaxed) {
                return Some(Ok(0));
            }
            let has_ended = connection.state() == TcpState::Closed;
            has_ended.then(|| Err(error::aborted("read from", peer)))
        })
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (id, peer) = (self.inner.id, self.peer_addr());
        self.wait("write to", &self.inner.write_timeout_ns, |core| {
            let host = core.interface.host();
            let count = host.write(id, bytes);
            if count > 0 {
                return Some(Ok(count));
            }
            let Some(connection) = host.connection(id) else {
                return Some(Err(error::aborted("write to", peer)));
            };
            if let Some(error) = error::ended("write to", peer, connection) {
                return Some(Err(error));
            }
            if connection.may_send() {
                return None;
            }
            Some(Err(match connection.state() {
                TcpState::Closed => error::aborted("write to", peer),
                _ => error::shut("write to", peer),
            }))
        })
    }

    /// Returns at once: the stack sends what was written as soon as the peer and the network have
    /// room.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
