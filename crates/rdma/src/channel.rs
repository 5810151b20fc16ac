//! Connections whose fate is told in order through a channel: what rdma_cm calls ids and event channels.
//!
//! ```text
//!   ConnectionChannel ◄── news ── ConnectionId ── listens, or has one queue pair's connection
//!        └─ read ─► (key, News): a connection moved, a peer asks, the id's own words
//! ```
//!
//! Queue pairs are named by their numbers here, since programs pass those on; a number that is void is an error.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use sprat_proto::Instant;
use sprat_proto::rdma::{AcceptOptions, ConnectOptions, PostError, Qp, QpState};

use super::device::Handle;
use super::listen::ConnectRequest;
use super::pair::Connection;
use crate::engine::{self, Audience, Dial, Link, Number, SocketOptions, bound};

/// How long the end of a connection waits for the program to fetch what came before it: for who fetches and reads by turns one
/// turn is enough.
const LAST_WORDS_NS: u64 = 10_000_000;

/// An address of this machine that is taken, to listen there or to connect from there.
#[derive(Debug)]
pub struct BoundAddress {
    socket: OwnedFd,
    local: SocketAddr,
    /// Peers of other machines are not allowed.
    local_only: bool,
}

impl BoundAddress {
    pub(super) fn new(
        handle: &Handle,
        addr: SocketAddr,
        options: SocketOptions,
    ) -> io::Result<Self> {
        let (socket, local) = bound(&addr, options)?;
        Ok(Self { socket, local, local_only: !handle.insecure_network })
    }

    /// The address, with the port filled in if it is known.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Peers of other machines are not served there.
    #[must_use]
    pub fn is_local_only(&self) -> bool {
        self.local_only
    }
}

/// What is told of an id.
#[derive(Debug)]
pub enum News {
    /// Its connection stands otherwise than before.
    Connection(Connection),
    /// A peer asks at its listener.
    Request(ConnectRequest),
    /// Its own words, by [`ConnectionId::say`].
    Own([u64; 2]),
}

/// Tells what happens to ids. Its descriptor is readable exactly while there is something to be read.
#[derive(Debug)]
pub struct ConnectionChannel {
    handle: Arc<Handle>,
    number: Number,
    fd: Arc<OwnedFd>,
    /// Until when the end of a connection, which is next, is not told.
    end_held: Mutex<Option<Instant>>,
}

impl Drop for ConnectionChannel {
    fn drop(&mut self) {
        self.handle.shared.act(|core, now| {
            for conn in core.desk().parties.close(self.number) {
                let _ = core.rnic().reject(now, conn, &[]);
            }
        });
    }
}

impl ConnectionChannel {
    pub(super) fn new(handle: Arc<Handle>) -> io::Result<Self> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?);
        let number = handle.shared.look(|core| core.desk().parties.open(Arc::clone(&fd)));
        Ok(Self { handle, number, fd, end_held: Mutex::new(None) })
    }

    /// The next news and the key of the id that they are of; waits as a read of the descriptor would.
    ///
    /// The end of a connection is told behind what came before it: while a success of its queue pair waits to be fetched the
    /// end is not told, for [`LAST_WORDS_NS`] from when it was first asked for. A card's way of telling the end is so much
    /// longer than a completion's that programs rely on it (libfabric, which destroys the queue pair at once).
    ///
    /// # Errors
    /// `WouldBlock` if there are none and the descriptor was made non-blocking; `Interrupted` if a signal came.
    pub fn read(&self) -> io::Result<(u64, News)> {
        let shared = &self.handle.shared;
        let found = shared.read(&self.fd, |core| {
            let mut held = self.end_held.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(pair) = core.desk().parties.ends_next(self.number)
                && core.rnic().has_success(pair)
            {
                let now = shared.now();
                if now < *held.get_or_insert_with(|| now.after(LAST_WORDS_NS)) {
                    return None;
                }
            }
            *held = None;
            core.desk().parties.fetch(self.number)
        });
        found.map(|(key, news)| (key, self.news(news)))
    }

    fn news(&self, news: engine::News) -> News {
        match news {
            engine::News::Moved(link) => News::Connection(Connection::from(&link)),
            engine::News::Asked(asked) => News::Request(ConnectRequest {
                handle: Arc::clone(&self.handle),
                asked,
                answered: false,
            }),
            engine::News::Own(words) => News::Own(words),
        }
    }
}

impl AsFd for ConnectionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A listener, or a connection, or neither yet. Dropped, it ends whichever it is, and its news that were not read are gone.
#[derive(Debug)]
pub struct ConnectionId {
    handle: Arc<Handle>,
    number: Number,
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        self.end();
    }
}

impl ConnectionId {
    /// An id whose news come with `key` through `channel`.
    #[must_use]
    pub fn new(channel: &ConnectionChannel, key: u64) -> Self {
        let handle = Arc::clone(&channel.handle);
        let number = handle.shared.look(|core| core.desk().parties.enter(channel.number, key));
        Self { handle, number }
    }

    /// The same as dropping it; returns how many of its news were read. Nothing can be done with it afterwards.
    pub fn end(&self) -> u64 {
        self.handle.shared.act(|core, now| core.part(now, self.number))
    }

    /// Its news come through `channel` from now on, those that wait too; returns how many were read before.
    pub fn migrate(&self, channel: &ConnectionChannel) -> u64 {
        self.handle.shared.note(|core| core.desk().parties.migrate(self.number, channel.number))
    }

    /// Puts words of the caller's behind its other news.
    pub fn say(&self, words: [u64; 2]) {
        self.handle
            .shared
            .note(|core| core.desk().parties.tell(self.number, engine::News::Own(words)));
    }

    /// Listens; at most `backlog` requests wait to be read, others are refused. Returns the address, with the port.
    ///
    /// # Errors
    /// Another has come to listen there.
    pub fn listen(&self, at: BoundAddress, backlog: usize) -> io::Result<SocketAddr> {
        self.handle.start()?;
        let audience = Audience { party: Some((self.number, backlog)), local_only: at.local_only };
        self.handle.shared.act(|core, _| {
            let (listener, local) = core.listen_at(at.socket, audience)?;
            core.desk().parties.listens(self.number, listener);
            Ok(local)
        })
    }

    /// Begins to connect `pair` with who listens at `to`; the news say what comes of it. TCP may take so long as `limit`, and
    /// for `grace` who is refused tries again, since a server may be about to listen. Returns this end's address.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such pair or it is not idle, `PermissionDenied` if that peer is not allowed; or no
    /// socket, no such address.
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
            None => engine::open(&to)?,
        };
        let ns = |of: Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
        let dial = Dial { timeout_ns: ns(limit), grace_ns: ns(grace) };
        self.handle.shared.act(|core, now| {
            if core.rnic().state(pair) != Some(QpState::Idle) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            core.desk().parties.follow(self.number, pair);
            let begun = core.connect_by(now, pair, socket, to, options, dial);
            if begun.is_err() {
                core.desk().parties.unfollow(pair);
            }
            begun
        })
    }

    /// Accepts with `pair`, as [`ConnectRequest::accept`]; the news say when the peer is there.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such pair, it is not idle, or the private data is too long; `ConnectionReset` if the
    /// peer has gone. It is refused then.
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
            core.desk().parties.follow(self.number, pair);
            let accepted = core.rnic().accept(now, conn, pair, options);
            if let Err(error) = accepted {
                core.desk().parties.unfollow(pair);
                return Err(match error {
                    PostError::TooLong => io::ErrorKind::InvalidInput,
                    _ => io::ErrorKind::ConnectionReset,
                });
            }
            core.desk().links.insert(pair, Link::Opening);
            Ok(())
        })?;
        request.answered = true;
        Ok(())
    }

    /// The queue pair whose connection it has, or tries to have.
    #[must_use]
    pub fn pair(&self) -> Option<Qp> {
        self.handle.shared.look(|core| core.desk().parties.pair(self.number))
    }

    /// Ends its connection after everything that was posted has been sent, or gives it up if it is being made; the news
    /// say when. False if there is none.
    pub fn disconnect(&self) -> bool {
        self.handle.shared.act(|core, now| {
            let pair = core.desk().parties.pair(self.number);
            pair.is_some_and(|pair| core.hang_up(now, pair))
        })
    }
}
