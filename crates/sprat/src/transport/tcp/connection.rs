//! One TCP connection: a socket, and the reads and writes of its frames.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use sprat_proto::Instant;
use sprat_proto::rpc::stream::Ids;
use sprat_proto::rpc::{CloseReason, Event, Slices};

use crate::transport::framed::Link;

/// The most pieces of memory in one gathering write.
const PARTS: usize = 64;
/// The silence on a connection after which the kernel probes the peer.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The time between two probes of a silent peer.
const KEEPALIVE_PROBE: Duration = Duration::from_secs(2);
/// The number of unanswered probes after which the connection ends.
const KEEPALIVE_PROBES: u32 = 3;

/// The socket of a TCP connection, and its state.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) socket: OwnedFd,
    /// True if the last write was cut short: the connection waits until the socket is writable.
    pub(super) blocked: bool,
    /// The events that epoll reports for the socket now.
    pub(super) interest: EventFlags,
}

impl Socket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, blocked: false, interest: EventFlags::empty() }
    }
}

/// The result of one read of a socket.
pub(super) enum Read {
    /// The read put this many bytes into the buffer.
    Bytes(usize),
    /// The read added this many bytes to a long message. If the message is whole now, there is an
    /// event.
    Body(Option<Event<'static>>, usize),
    /// The socket has no input now.
    Nothing,
    /// The peer has ended the connection, or it has failed.
    End,
}

impl Link<Socket> {
    /// Reads the socket once: into the message of which a part has arrived, or into `buffer`.
    pub(super) fn read(&mut self, now: Instant, buffer: &mut [u8], ids: &mut Ids) -> Read {
        let (result, body) = match self.stream.body() {
            None => (rustix::io::read(&self.wire.socket, buffer), false),
            // The spare capacity is the room, unless the allocator gave more than requested.
            Some((body, room)) if body.capacity() - body.len() == room => {
                (rustix::io::read(&self.wire.socket, spare_capacity(body)), true)
            }
            Some((body, room)) => {
                let old = body.len();
                body.resize(old + room, 0);
                let result = rustix::io::read(&self.wire.socket, &mut body[old..]);
                body.truncate(old + result.unwrap_or(0));
                (result, true)
            }
        };
        match result {
            Ok(0) => Read::End,
            Ok(n) if body => Read::Body(self.stream.filled(now, ids), n),
            Ok(n) => Read::Bytes(n),
            Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
            Err(_) => Read::End,
        }
    }

    /// Writes frames to the socket once, up to `work` bytes.
    pub(super) fn write(&mut self, now: Instant, memory: &dyn Slices, work: usize) {
        let mut parts = ArrayVec::<&[u8], PARTS>::new();
        self.stream.output(now, memory, work, &mut parts);
        let lent: usize = parts.iter().map(|p| p.len()).sum();
        let result = match parts.as_slice() {
            [] => return,
            [one] => net::send(&self.wire.socket, one, SendFlags::NOSIGNAL),
            all => {
                let slices: ArrayVec<_, PARTS> = all.iter().map(|p| io::IoSlice::new(p)).collect();
                net::sendmsg(
                    &self.wire.socket,
                    &slices,
                    &mut net::SendAncillaryBuffer::default(),
                    SendFlags::NOSIGNAL,
                )
            }
        };
        drop(parts);
        match result {
            Ok(n) => {
                self.stream.written(n);
                self.wire.blocked = n < lent;
            }
            Err(Errno::AGAIN | Errno::NOBUFS) => self.wire.blocked = true,
            Err(Errno::INTR) => {}
            Err(_) => self.stream.end(CloseReason::Reset),
        }
    }

    /// Sends a peer of another version the RESET that says so, if the socket takes it now.
    pub(super) fn send_reset(&self) {
        if let Some(bytes) = self.stream.reset_frame() {
            let _ = net::send(&self.wire.socket, &bytes, SendFlags::NOSIGNAL);
        }
    }

    /// Returns the events that epoll should report for the socket.
    pub(super) fn wanted_interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        if self.stream.ended().is_some() {
            return flags;
        }
        if self.connecting.is_some() || self.wire.blocked {
            flags |= EventFlags::OUT;
        }
        if self.connecting.is_none() && self.stream.wants_input() {
            flags |= EventFlags::IN;
        }
        flags
    }
}

/// Opens a non-blocking TCP socket of the family of `addr`.
pub(super) fn open(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Begins to connect to the first of `addresses` where that is possible, and removes it and those
/// before it from the list. Returns true if the connection is open already.
pub(super) fn begin(
    addresses: &mut VecDeque<SocketAddr>,
    busy_poll_us: Option<u32>,
) -> io::Result<(OwnedFd, bool)> {
    let mut last = Errno::ADDRNOTAVAIL.into();
    while let Some(addr) = addresses.pop_front() {
        let tried = open(&addr).and_then(|socket| {
            tune(socket.as_fd(), busy_poll_us)?;
            match net::connect(&socket, &addr) {
                Ok(()) => Ok((socket, true)),
                Err(Errno::INPROGRESS | Errno::INTR) => Ok((socket, false)),
                Err(e) => Err(e.into()),
            }
        });
        match tried {
            Ok(begun) => return Ok(begun),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Sets the options of a connection's socket: small messages leave at once, and the kernel ends the
/// connection within half a minute if the peer's machine is gone.
pub(super) fn tune(socket: BorrowedFd<'_>, busy_poll_us: Option<u32>) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_PROBE)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    let unacknowledged = KEEPALIVE + KEEPALIVE_PROBES * KEEPALIVE_PROBE;
    sockopt::set_tcp_user_timeout(socket, unacknowledged.as_millis() as u32)?;
    if let Some(us) = busy_poll_us {
        sprat_sys::socket::set(
            socket,
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            &(us.min(1_000_000) as i32),
        )?;
    }
    Ok(())
}
