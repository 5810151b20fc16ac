//! One connection: a socket below the machine that speaks on it.

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

/// The most parts in one gathering write.
const PARTS: usize = 64;
/// Silence after which the kernel asks whether the peer is still there, and how long it may take to
/// answer.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBE: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;

/// A connection's socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) socket: OwnedFd,
    /// It took no more: wait until it is writable.
    pub(super) blocked: bool,
    /// What the epoll reports now.
    pub(super) interest: EventFlags,
}

impl Socket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, blocked: false, interest: EventFlags::empty() }
    }
}

/// What came of a read.
pub(super) enum Read {
    /// So many bytes are in the buffer.
    Bytes(usize),
    /// So many bytes were added to a long message, which is whole now if there is an event.
    Body(Option<Event<'static>>, usize),
    /// Nothing has come.
    Nothing,
    /// The peer is gone.
    End,
}

impl Link<Socket> {
    /// Reads once: into the message that is coming, or into `buffer`.
    pub(super) fn read(&mut self, now: Instant, buffer: &mut [u8], ids: &mut Ids) -> Read {
        let (result, body) = match self.stream.body() {
            None => (rustix::io::read(&self.wire.socket, buffer), false),
            // The capacity is what the message needs, unless the allocator gave more than it was
            // asked for.
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

    /// Writes once, as much as there is and the socket takes, up to `work` bytes.
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

    /// Tells a peer of another version why it is sent away, if the socket takes that now.
    pub(super) fn say_farewell(&self) {
        if let Some(bytes) = self.stream.farewell() {
            let _ = net::send(&self.wire.socket, &bytes, SendFlags::NOSIGNAL);
        }
    }

    /// What its epoll should report.
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

/// A socket for `addr`'s family that does not block.
pub(super) fn open(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Begins to connect to the first of `addresses` where that is possible, and takes it and those
/// before it out of the list. True if the connection is open already.
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

/// Small messages leave at once; a peer whose machine has gone is noticed within half a minute.
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
