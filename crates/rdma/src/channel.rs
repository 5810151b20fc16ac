//! Ids and event channels of rdma_cm, which report the events of connections in order.
//!
//! ```text
//!   ConnectionChannel ◄── events ── ConnectionId ── listens, or has one queue pair's connection
//!        └─ read ─► (key, CmEvent): a state changed, a peer requests, the program's own event
//! ```
//!
//! Queue pairs are named by their numbers here, since programs pass those on. A number without a
//! queue pair is an error.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use sprat_proto::Instant;
use sprat_proto::rdma::{AcceptOptions, ConnectOptions, PostError, Qp, QpState};

use super::handle::Handle;
use super::listen::ConnectRequest;
use super::pair::Connection;
use crate::engine::{
    self, AcceptPolicy, CmId, ConnectLimits, ConnectionState, SocketOptions, Unconnected,
};

/// The time for which the end of a connection waits until the program takes the completions before
/// it. One turn is enough for a program that takes events and completions in turns.
const LAST_WORDS_NS: u64 = 10_000_000;

/// An address of this machine that a socket is bound to, to listen there or to connect from there.
#[derive(Debug)]
pub struct BoundAddress {
    socket: Unconnected,
    local: SocketAddr,
    /// True if peers of other machines are not allowed at this address.
    local_only: bool,
}

impl BoundAddress {
    pub(super) fn new(
        handle: &Handle,
        addr: SocketAddr,
        options: SocketOptions,
    ) -> io::Result<Self> {
        let (socket, local) = handle.shared.with(|core| core.bind(&addr, options))?;
        Ok(Self { socket, local, local_only: !handle.insecure_network })
    }

    /// The bound address, with the port filled in if it is known.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// True if peers of other machines are not served at this address.
    #[must_use]
    pub fn is_local_only(&self) -> bool {
        self.local_only
    }
}

/// An event of an rdma_cm id.
#[derive(Debug)]
pub enum CmEvent {
    /// The state of the id's connection has changed.
    Connection(Connection),
    /// A connection request has arrived at the id's listener.
    Request(ConnectRequest),
    /// An event that the program posted by [`ConnectionId::post`].
    Own([u64; 2]),
}

/// An event channel of rdma_cm, which reports the events of its ids. Its descriptor is readable
/// exactly while an event waits to be read.
#[derive(Debug)]
pub struct ConnectionChannel {
    handle: Arc<Handle>,
    number: CmId,
    fd: Arc<OwnedFd>,
    /// The time until which the channel does not report the end of a connection, which is its next
    /// event.
    end_held: Mutex<Option<Instant>>,
    is_closing: AtomicBool,
}

impl Drop for ConnectionChannel {
    fn drop(&mut self) {
        self.handle.shared.act(|core, now| {
            for conn in core.events().cm.close_channel(self.number) {
                let _ = core.rnic().reject(now, conn, &[]);
            }
        });
    }
}

impl ConnectionChannel {
    pub(super) fn new(handle: Arc<Handle>) -> io::Result<Self> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?);
        let number = handle.shared.with(|core| core.events().cm.open_channel(Arc::clone(&fd)));
        Ok(Self {
            handle,
            number,
            fd,
            end_held: Mutex::new(None),
            is_closing: AtomicBool::new(false),
        })
    }

    /// Takes the channel's next event with the key of its id; waits as a read of the descriptor
    /// would.
    ///
    /// While a successful completion of a queue pair waits to be taken, the end of its connection
    /// is held back, for [`LAST_WORDS_NS`] from the first read. A card reports the end so much
    /// later than a completion that programs rely on the order (libfabric destroys the queue pair
    /// at once).
    ///
    /// # Errors
    /// `WouldBlock` if there is no event and the descriptor was made non-blocking; `Interrupted` if
    /// a signal came; `TimedOut` after an interval without events.
    pub fn read(&self) -> io::Result<(u64, CmEvent)> {
        let shared = &self.handle.shared;
        let found = shared.read(&self.fd, |core| {
            if self.is_closing.load(Ordering::Relaxed) {
                return Some(None);
            }
            let mut held = self.end_held.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(pair) = core.events().cm.disconnects_next(self.number)
                && core.rnic().has_success(pair)
            {
                let now = shared.now();
                if now < *held.get_or_insert_with(|| now.after(LAST_WORDS_NS)) {
                    return None;
                }
            }
            *held = None;
            core.events().cm.take(self.number).map(Some)
        });
        let (key, event) = found?.ok_or(io::ErrorKind::TimedOut)?;
        Ok((key, self.cm_event(event)))
    }

    /// Ends all waits in [`ConnectionChannel::read`], by `TimedOut`. The channel reports no event
    /// any more.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        // Wakes the threads that sleep on the descriptor. Any number does.
        let _ = rustix::io::write(&self.fd, &1_u64.to_le_bytes());
    }

    fn cm_event(&self, event: engine::CmEvent) -> CmEvent {
        match event {
            engine::CmEvent::Connection(link) => CmEvent::Connection(Connection::from(&link)),
            engine::CmEvent::Request(asked) => CmEvent::Request(ConnectRequest {
                handle: Arc::clone(&self.handle),
                asked,
                answered: false,
            }),
            engine::CmEvent::Own(words) => CmEvent::Own(words),
        }
    }
}

impl AsFd for ConnectionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An id of rdma_cm: a listener, or a connection, or neither yet. Dropping it ends the listener or
/// connection and drops its waiting events.
#[derive(Debug)]
pub struct ConnectionId {
    handle: Arc<Handle>,
    number: CmId,
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        self.end();
    }
}

impl ConnectionId {
    /// Creates an id of rdma_cm whose events arrive with `key` through `channel`.
    #[must_use]
    pub fn new(channel: &ConnectionChannel, key: u64) -> Self {
        let handle = Arc::clone(&channel.handle);
        let number = handle.shared.with(|core| core.events().cm.create(channel.number, key));
        Self { handle, number }
    }

    /// Ends the rdma_cm id as dropping it would; returns how many of its events the program has
    /// taken. The program can do nothing with the id afterwards.
    pub fn end(&self) -> u64 {
        self.handle.shared.act(|core, now| core.destroy_cm_id(now, self.number))
    }

    /// Moves the id and its waiting events to `channel`; returns how many of its events the program
    /// has taken.
    pub fn migrate(&self, channel: &ConnectionChannel) -> u64 {
        self.handle.shared.change(|core| core.events().cm.migrate(self.number, channel.number))
    }

    /// Posts an event of the program behind the id's other events.
    pub fn post(&self, words: [u64; 2]) {
        self.handle
            .shared
            .change(|core| core.events().cm.put(self.number, engine::CmEvent::Own(words)));
    }

    /// Listens at a bound address. At most `backlog` requests wait to be read, and further ones are
    /// refused. Returns the address with the port.
    ///
    /// # Errors
    /// Another socket already listens at the address.
    pub fn listen(&self, at: BoundAddress, backlog: usize) -> io::Result<SocketAddr> {
        self.handle.start()?;
        let audience =
            AcceptPolicy { cm_id: Some((self.number, backlog)), local_only: at.local_only };
        self.handle.shared.act(|core, _| {
            let (listener, local) = core.listen_at(at.socket, audience)?;
            core.events().cm.set_listener(self.number, listener);
            Ok(local)
        })
    }

    /// Begins to connect the queue pair `pair` with the listener at `to`; an event reports the
    /// result. TCP may take as long as `limit`. For `grace` the device tries a refused connection
    /// again, since a server may be about to listen. Returns this end's address.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such pair or it is not idle, `PermissionDenied` if that peer
    /// is not allowed; or no socket, no such address.
    pub fn connect(
        &self,
        pair: Qp,
        from: Option<BoundAddress>,
        to: SocketAddr,
        options: ConnectOptions,
        limit: Duration,
        grace: Duration,
    ) -> io::Result<SocketAddr> {
        self.handle.allow_peer(to)?;
        self.handle.start()?;
        let socket = match from {
            Some(from) => from.socket,
            None => self.handle.shared.with(|core| core.open(&to))?,
        };
        let ns = |of: Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
        let dial = ConnectLimits { timeout_ns: ns(limit), grace_ns: ns(grace) };
        self.handle.shared.act(|core, now| {
            if core.rnic().state(pair) != Some(QpState::Idle) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            core.events().cm.set_pair(self.number, pair);
            let begun = core.connect_by(now, pair, socket, to, options, dial);
            if begun.is_err() {
                core.events().cm.clear_pair(pair);
            }
            begun
        })
    }

    /// Accepts a connection request with the queue pair `pair`, as [`ConnectRequest::accept`]; an
    /// event reports when the peer is connected.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such pair, it is not idle, or the private data is too long;
    /// `ConnectionReset` if the peer is gone. The request is rejected then.
    pub fn accept(
        &self,
        mut request: ConnectRequest,
        pair: Qp,
        options: &AcceptOptions,
    ) -> io::Result<()> {
        let conn = request.asked.conn;
        self.handle.shared.act(|core, now| {
            if core.rnic().state(pair) != Some(QpState::Idle) {
                return Err(io::ErrorKind::InvalidInput);
            }
            core.events().cm.set_pair(self.number, pair);
            let accepted = core.rnic().accept(now, conn, pair, options);
            if let Err(error) = accepted {
                core.events().cm.clear_pair(pair);
                return Err(match error {
                    PostError::TooLong => io::ErrorKind::InvalidInput,
                    _ => io::ErrorKind::ConnectionReset,
                });
            }
            core.events().connections.insert(pair, ConnectionState::Opening);
            Ok(())
        })?;
        request.answered = true;
        Ok(())
    }

    /// The queue pair whose connection the id has, or tries to open.
    #[must_use]
    pub fn pair(&self) -> Option<Qp> {
        self.handle.shared.with(|core| core.events().cm.pair(self.number))
    }

    /// Ends the id's connection after all posted requests were sent, or gives up the attempt to
    /// open it; an event reports the end. Returns false if the id has no connection.
    pub fn disconnect(&self) -> bool {
        self.handle.shared.act(|core, now| {
            let pair = core.events().cm.pair(self.number);
            pair.is_some_and(|pair| core.disconnect(now, pair))
        })
    }
}
