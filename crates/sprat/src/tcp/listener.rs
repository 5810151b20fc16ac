//! Listeners: connections that peers open.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sprat_sys::clock;

use super::core::{Key, Queue, Waiters};
use super::error;
use super::handle::Handle;
use super::shared::Shared;
use super::stream::Stream;

/// A listener at a port of a stack. Its drop resets the connections that the program has not
/// accepted; the others stay.
pub struct Listener {
    handle: Arc<Handle>,
    local: SocketAddr,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local).finish_non_exhaustive()
    }
}

impl Listener {
    pub(super) fn new(handle: &Arc<Handle>, port: u16, backlog: u16) -> io::Result<Self> {
        handle.shared.act(|core| {
            let own = core.interface.local_addr();
            let at = SocketAddr::new(own.ip(), port);
            let port = core.interface.host().listen(port, backlog.into());
            let port = port.map_err(|e| error::not_listening(at, e))?;
            let (accepted, waiters) = (VecDeque::new(), Waiters::default());
            core.listeners.insert(port, Queue { accepted, backlog: backlog.into(), waiters });
            let handle = Arc::clone(handle);
            Ok(Self { handle, local: SocketAddr::new(own.ip(), port) })
        })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Returns the address and the port of the listener.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the locator by which others connect to the listener.
    #[must_use]
    pub fn locator(&self) -> String {
        self.handle.shared.with(|core| core.interface.locator(self.local.port()))
    }

    /// Waits for a connection that a peer opens. Returns it with the peer's address.
    ///
    /// # Errors
    /// No file descriptor or memory is left.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            if let Some(accepted) = self.accept_timeout(Duration::MAX)? {
                return Ok(accepted);
            }
        }
    }

    /// Waits for a connection at most for `timeout`. Returns `None` if no peer has opened one.
    ///
    /// # Errors
    /// The errors of [`Listener::accept`].
    pub fn accept_timeout(&self, timeout: Duration) -> io::Result<Option<(Stream, SocketAddr)>> {
        let port = self.local.port();
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until = clock::now().after(ns);
        let shared = &self.handle.shared;
        let id = shared.wait(Key::Listener(port), Some(until), |core| core.accept(port));
        let Some(id) = id else { return Ok(None) };
        let stream = Stream::new(&self.handle, id)?;
        let peer = stream.peer_addr();
        Ok(Some((stream, peer)))
    }

    /// Returns a connection that a peer has opened, or `None` if there is none now.
    ///
    /// # Errors
    /// The errors of [`Listener::accept`].
    pub fn try_accept(&self) -> io::Result<Option<(Stream, SocketAddr)>> {
        self.accept_timeout(Duration::ZERO)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let port = self.local.port();
        self.handle.shared.act(|core| {
            let queue = core.listeners.remove(&port);
            let host = core.interface.host();
            host.unlisten(port);
            queue.into_iter().flat_map(|queue| queue.accepted).for_each(|id| host.abort(id));
        });
    }
}
