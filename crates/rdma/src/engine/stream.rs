//! One TCP connection below one MPA stream: its socket, bytes that were read and not consumed, and
//! bytes to send.
//!
//! ```text
//!   Opening ──► Live ──► Lingering ──► gone
//!      └─────────┴────────(reset)────────┘
//! ```
//!
//! Always holds: a stream owns a buffer only while it has the start of an FPDU, or while its socket
//! is full.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, sockopt};
use sprat_proto::Instant;
use sprat_proto::rdma::{Conn, ConnectOptions, Qp, Record};
use sprat_proto::rpc::Slices;

use super::regions::Regions;
use super::socket;

/// Silence after which the kernel asks whether the peer is still there, and how long it may take to
/// answer.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBE: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;

/// Bytes of one read in search of a header, behind which payload is read directly. The number grows
/// while only short messages arrive.
pub(super) const AHEAD: usize = 4 << 10;

/// The stage of a stream's life.
#[derive(Debug)]
pub(super) enum Stage {
    /// TCP is connecting, for this queue pair.
    Opening {
        /// Whose connection it will be.
        qp: Qp,
        /// The options for the engine once TCP has connected.
        options: Box<ConnectOptions>,
        /// The time to give up.
        until: Instant,
        /// Until this time a refused connection is tried again.
        again: Instant,
        /// TCP was refused, and the connection will be tried again.
        refused: bool,
    },
    /// The engine knows it.
    Live(Conn),
    /// The engine is done with it: what is left is sent, what comes is dropped, up to a time.
    Lingering(Instant),
}

/// A record that the kernel has taken in part.
#[derive(Debug)]
pub(super) struct Pending {
    /// The bytes.
    pub(super) record: Record,
    /// Bytes of it that are sent.
    pub(super) sent: usize,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: OwnedFd,
    pub(super) stage: Stage,
    pub(super) peer: SocketAddr,
    /// The listener that it came through.
    pub(super) listener: Option<u32>,
    /// Bytes that were read and are the start of an FPDU.
    pub(super) kept: Kept,
    /// Bytes of the next read in search of a header.
    pub(super) ahead: usize,
    pub(super) pending: Option<Box<Pending>>,
    /// The peer has sent its last byte, or everything is over.
    pub(super) finished: bool,
    /// The stream is not read: enough messages wait for receives to be posted.
    pub(super) stalled: bool,
    /// The peer has sent its last byte, behind what is not read.
    pub(super) unread: bool,
    /// The list of streams with output has this one.
    pub(super) dirty: bool,
    /// The events that the epoll reports.
    pub(super) interest: EventFlags,
}

/// Bytes between two reads.
#[derive(Debug, Default)]
pub(super) enum Kept {
    /// None.
    #[default]
    Nothing,
    /// Few, copied.
    Few(Vec<u8>),
    /// Many, at the start of the buffer that they were read into.
    Many(Box<[u8]>, usize),
}

impl Kept {
    /// Bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Few(bytes) => bytes.len(),
            Self::Many(_, len) => *len,
        }
    }
}

impl Stream {
    pub(super) fn new(
        socket: OwnedFd,
        stage: Stage,
        peer: SocketAddr,
        listener: Option<u32>,
    ) -> Self {
        Self {
            socket,
            stage,
            peer,
            listener,
            kept: Kept::Nothing,
            ahead: AHEAD,
            pending: None,
            finished: false,
            stalled: false,
            unread: false,
            dirty: false,
            interest: EventFlags::empty(),
        }
    }

    /// The engine's name for it.
    #[inline]
    pub(super) fn conn(&self) -> Option<Conn> {
        match self.stage {
            Stage::Live(conn) => Some(conn),
            _ => None,
        }
    }

    /// The events that the epoll should report.
    pub(super) fn wanted_interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        let reads = !self.finished && !self.stalled && !matches!(self.stage, Stage::Opening { .. });
        flags.set(EventFlags::IN, reads);
        flags.set(EventFlags::RDHUP, self.stalled && !self.unread && !self.finished);
        let opening = matches!(self.stage, Stage::Opening { refused: false, .. });
        flags.set(EventFlags::OUT, self.pending.is_some() || opening);
        flags
    }

    /// Reads once, behind what is kept: into the kept buffer, or into `buffer` with room in front
    /// and up to `end`. `None` if nothing is there.
    #[inline]
    pub(super) fn read(&mut self, buffer: &mut [u8], end: usize) -> Option<Result<usize, Errno>> {
        let room = match &mut self.kept {
            Kept::Many(buffer, len) => &mut buffer[*len..],
            few => &mut buffer[few.len()..end],
        };
        match net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((n, _)) => Some(Ok(n)),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// Sends what waits; returns how many bytes the kernel took. `pending` is empty afterwards if
    /// it took all.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn send_pending(
        &mut self,
        regions: &Regions,
        slices: &dyn Slices,
    ) -> io::Result<usize> {
        let Some(pending) = &mut self.pending else {
            return Ok(0);
        };
        let n = took(socket::send(
            self.socket.as_fd(),
            &pending.record,
            pending.sent,
            regions,
            slices,
        ))?;
        pending.sent += n;
        if pending.sent == pending.record.len() {
            self.pending = None;
        }
        Ok(n)
    }

    /// Says that nothing more will be sent.
    pub(super) fn shut(&self) {
        let _ = net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Makes the socket's end an abrupt one (RST).
    pub(super) fn abort(&self) {
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// The most payload of one TCP segment, as the kernel sees it now.
    pub(super) fn emss(&self) -> Option<u32> {
        socket::segment(self.socket.as_fd()).ok()
    }
}

/// The bytes that a send took: none if the socket is full.
pub(super) fn took(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(0)
        }
        other => other,
    }
}

/// A socket for `addr`'s family that does not block.
pub(crate) fn open(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Begins to connect; true if the connection is there already.
pub(super) fn begin(socket: &OwnedFd, addr: &SocketAddr) -> io::Result<bool> {
    tune(socket.as_fd())?;
    match net::connect(socket, addr) {
        Ok(()) => Ok(true),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Options of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketOptions {
    /// The traffic class of what it sends (IPv4's TOS), if not the system's.
    pub traffic_class: Option<u8>,
    /// Of IPv6's wildcard: IPv4 is not meant.
    pub v6_only: bool,
    /// The socket is to connect: with port 0 it gets one then, which may be one of many connections
    /// to different peers.
    pub connects: bool,
}

/// A socket for `addr`, bound to it; and its address, with the port filled in.
///
/// # Errors
/// The address is not ours or in use, or there is no descriptor left.
pub(crate) fn bound(
    addr: &SocketAddr,
    options: SocketOptions,
) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = open(addr)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if let Some(class) = options.traffic_class {
        match addr {
            SocketAddr::V4(_) => sockopt::set_ip_tos(&socket, class)?,
            SocketAddr::V6(_) => sockopt::set_ipv6_tclass(&socket, class.into())?,
        }
    }
    if addr.is_ipv6() && options.v6_only {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if options.connects && addr.port() == 0 {
        socket::bind_without_port(socket.as_fd())?;
    }
    net::bind(&socket, addr)?;
    let local = address(&socket)?;
    Ok((socket, local))
}

/// The address of this end.
pub(super) fn address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(net::getsockname(socket)?.try_into()?)
}

/// Small messages leave at once; a peer whose machine has gone is noticed within half a minute.
pub(super) fn tune(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_PROBE)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    let unacknowledged = KEEPALIVE + KEEPALIVE_PROBES * KEEPALIVE_PROBE;
    sockopt::set_tcp_user_timeout(socket, unacknowledged.as_millis() as u32)?;
    Ok(())
}
