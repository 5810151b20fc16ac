//! The state of sockets.

use std::collections::VecDeque;
use std::net::SocketAddr;

use sprat_proto::net::tcp::{TcpError, TcpHost, TcpId, TcpState};

/// The kind of a socket, with what only that kind has.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Neither connected nor listening.
    New,
    /// A listener, with the connections that wait to be accepted.
    Listener(VecDeque<TcpId>),
    /// A connection. True once its program knows that the handshake is over.
    Connection(TcpId, bool),
    /// A set of sockets that `epoll_wait` watches.
    Set(Vec<Watched>),
}

/// A socket that a set watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The number of changes of the socket that were reported, for EPOLLET.
    pub(crate) seen: u64,
}

/// A socket, or a set of them.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) kind: Kind,
    /// True if addresses of the socket are IPv6.
    pub(crate) is_v6: bool,
    pub(crate) port: u16,
    pub(crate) flags: i32,
    pub(crate) is_read_shut: bool,
    pub(crate) is_write_shut: bool,
    /// The error that the next call reports.
    pub(crate) error: Option<i32>,
    /// True if `close` resets the connection: SO_LINGER with a time of 0.
    pub(crate) resets: bool,
    pub(crate) keeps_alive: bool,
    pub(crate) keep_idle_s: u64,
    pub(crate) send_bytes: Option<i32>,
    pub(crate) receive_bytes: Option<i32>,
    pub(crate) segment: i32,
    /// The number of changes so far, from 1 on.
    pub(crate) changes: u64,
    /// The descriptor of /dev/null that gives the socket its number: packetdrill closes sockets
    /// that a script leaves open by the kernel's `close`.
    pub(crate) _number: std::fs::File,
}

impl Socket {
    pub(crate) fn new(kind: Kind, is_v6: bool, number: std::fs::File) -> Self {
        Self {
            kind,
            is_v6,
            port: 0,
            flags: libc::O_RDWR,
            is_read_shut: false,
            is_write_shut: false,
            error: None,
            resets: false,
            keeps_alive: false,
            keep_idle_s: 7200,
            send_bytes: None,
            receive_bytes: None,
            segment: 0,
            changes: 1,
            _number: number,
        }
    }

    pub(crate) const fn id(&self) -> Option<TcpId> {
        if let Kind::Connection(id, _) = self.kind { Some(id) } else { None }
    }

    pub(crate) const fn never_waits(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }

    /// Returns the events of `poll` at the socket.
    pub(crate) fn events(&self, tcp: &TcpHost, room: usize, total: usize) -> i16 {
        let mut events = if self.error.is_some() { libc::POLLERR } else { 0 };
        let id = match &self.kind {
            Kind::New => return events | libc::POLLOUT | libc::POLLHUP,
            Kind::Listener(queue) if queue.is_empty() => return 0,
            Kind::Listener(_) => return libc::POLLIN | libc::POLLRDNORM,
            Kind::Set(_) => return 0,
            Kind::Connection(id, _) => *id,
        };
        let Some(connection) = tcp.connection(id) else {
            return events | libc::POLLIN | libc::POLLOUT | libc::POLLHUP | libc::POLLRDHUP;
        };
        let state = connection.state();
        if matches!(state, TcpState::SynSent | TcpState::SynReceived) {
            return events;
        }
        let is_closed = state == TcpState::Closed;
        let is_finished = connection.is_finished() || self.is_read_shut || is_closed;
        if connection.readable() > 0 || is_finished {
            events |= libc::POLLIN | libc::POLLRDNORM;
        }
        if is_finished {
            events |= libc::POLLRDHUP;
        }
        if is_closed || is_finished && self.is_write_shut {
            events |= libc::POLLHUP;
        }
        // Linux reports a third of the buffer, not a byte.
        if self.is_write_shut || is_closed || room * 3 >= total {
            events |= libc::POLLOUT | libc::POLLWRNORM;
        }
        events
    }
}

/// Returns the number of a connection's error.
pub(crate) const fn errno(error: TcpError) -> i32 {
    match error {
        TcpError::Refused => libc::ECONNREFUSED,
        TcpError::Reset => libc::ECONNRESET,
        TcpError::TimedOut => libc::ETIMEDOUT,
    }
}

/// The answer to a call.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) value: i64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) peer: Option<(SocketAddr, bool)>,
    /// For `poll`: the events of each socket.
    pub(crate) polled: Vec<i16>,
    /// For `epoll_wait`: the events and the data of each socket that has some.
    pub(crate) watched: Vec<(u32, u64)>,
}

impl Reply {
    pub(crate) fn of(value: i64) -> Self {
        Self { value, ..Self::default() }
    }
}
