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
use sprat_proto::net::tcp::TcpId;
use sprat_proto::rdma::{Conn, ConnectOptions, Qp, Record};
use sprat_proto::rpc::Slices;

use super::native::Native;
use super::regions::Regions;
use super::reserved::Reserved;
use super::socket;

/// The time of silence after which the kernel probes if the peer still exists.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The time that a peer has to answer one probe of a silent connection.
const KEEPALIVE_PROBE: Duration = Duration::from_secs(2);
/// The number of unanswered probes after which the kernel ends a silent connection.
const KEEPALIVE_PROBES: u32 = 3;

/// The number of bytes of one read in search of a header, behind which payload is read directly. It
/// grows while only short messages arrive.
pub(super) const AHEAD: usize = 4 << 10;

/// The stage of a stream's life: opening, live, or lingering.
#[derive(Debug)]
pub(super) enum Stage {
    /// TCP is connecting for a queue pair.
    Opening {
        /// The queue pair that the connection will belong to.
        qp: Qp,
        /// The options for the engine once TCP has connected.
        options: Box<ConnectOptions>,
        /// The time to give up connecting.
        until: Instant,
        /// The time until which a refused connection is tried again.
        again: Instant,
        /// True if TCP was refused, and the connection will be tried again.
        refused: bool,
    },
    /// The stream is open, and the engine knows it by this number.
    Live(Conn),
    /// The engine is done with the stream: the socket sends what is left and drops what arrives,
    /// until this time.
    Lingering(Instant),
}

/// A record that the kernel has taken in part.
#[derive(Debug)]
pub(super) struct Pending {
    /// The record with the bytes to send.
    pub(super) record: Record,
    /// The number of the record's bytes that are sent.
    pub(super) sent: usize,
}

/// The socket of a stream.
#[derive(Debug)]
pub(super) enum Socket {
    /// A socket of the kernel.
    Kernel(OwnedFd),
    /// A connection of our own TCP.
    Native(TcpId),
}

/// A socket that is not connected yet.
#[derive(Debug)]
pub(crate) enum Unconnected {
    /// A socket of the kernel, which may be bound.
    Kernel(OwnedFd),
    /// A socket of our own TCP.
    Native(Reserved),
}

/// One TCP connection of an RDMA device.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: Socket,
    pub(super) stage: Stage,
    pub(super) peer: SocketAddr,
    /// The number of the listener that accepted the connection, if one did.
    pub(super) listener: Option<u32>,
    /// The bytes that were read and are the start of an FPDU.
    pub(super) kept: Kept,
    /// The number of bytes of the next read in search of a header.
    pub(super) ahead: usize,
    pub(super) pending: Option<Box<Pending>>,
    /// True if the peer has sent its last byte, or the connection is over.
    pub(super) finished: bool,
    /// True if the stream is not read since enough messages wait for receives to be posted.
    pub(super) stalled: bool,
    /// True if the peer has sent its last byte, and bytes before it are unread.
    pub(super) unread: bool,
    /// True if the list of streams with output has this one.
    pub(super) dirty: bool,
    /// The events that the epoll reports for the stream's socket.
    pub(super) interest: EventFlags,
}

/// The received bytes that a stream keeps between two reads.
#[derive(Debug, Default)]
pub(super) enum Kept {
    /// The stream keeps no bytes.
    #[default]
    Nothing,
    /// The stream keeps a copy of few bytes.
    Few(Vec<u8>),
    /// The stream keeps many bytes, at the start of the buffer that they were read into.
    Many(Box<[u8]>, usize),
}

impl Kept {
    /// The number of bytes that the stream keeps.
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
        socket: Socket,
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

    /// The number by which the engine knows the stream; `None` if the stream is opening or
    /// lingering.
    #[inline]
    pub(super) fn conn(&self) -> Option<Conn> {
        match self.stage {
            Stage::Live(conn) => Some(conn),
            _ => None,
        }
    }

    /// The events that the epoll should report for the stream's socket.
    pub(super) fn wanted_interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        let reads = !self.finished && !self.stalled && !matches!(self.stage, Stage::Opening { .. });
        flags.set(EventFlags::IN, reads);
        flags.set(EventFlags::RDHUP, self.stalled && !self.unread && !self.finished);
        let opening = matches!(self.stage, Stage::Opening { refused: false, .. });
        flags.set(EventFlags::OUT, self.pending.is_some() || opening);
        flags
    }

    /// Reads once from the socket, behind the bytes that the stream keeps: into the kept buffer, or
    /// into `buffer` with room in front and up to `end`. Returns `None` if there is nothing to
    /// read.
    #[inline]
    pub(super) fn read(
        &mut self,
        native: &mut Option<Box<Native>>,
        buffer: &mut [u8],
        end: usize,
    ) -> Option<Result<usize, Errno>> {
        let room = match &mut self.kept {
            Kept::Many(buffer, len) => &mut buffer[*len..],
            few => &mut buffer[few.len()..end],
        };
        let socket = match &self.socket {
            Socket::Kernel(socket) => socket,
            Socket::Native(id) => return native.as_deref_mut()?.read(*id, room),
        };
        match net::recv(socket, room, RecvFlags::DONTWAIT) {
            Ok((n, _)) => Some(Ok(n)),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// Sends the rest of the pending record; returns how many bytes the kernel took. `pending` is
    /// empty afterwards if the kernel took all.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn send_pending(
        &mut self,
        native: &mut Option<Box<Native>>,
        regions: &mut Regions,
        slices: &dyn Slices,
    ) -> io::Result<usize> {
        let Some(pending) = &mut self.pending else {
            return Ok(0);
        };
        let Pending { record, sent } = &**pending;
        let n = took(self.socket.send(native, record, *sent, regions, slices))?;
        pending.sent += n;
        if pending.sent == pending.record.len() {
            self.pending = None;
        }
        Ok(n)
    }
}

impl Socket {
    /// Sends the bytes of `record` behind the first `skip`; returns how many bytes the stream took.
    ///
    /// # Errors
    /// `WouldBlock`, or the error that ended the connection. `InvalidInput` or `EFAULT` if memory
    /// of the record is unmapped.
    pub(super) fn send(
        &self,
        native: &mut Option<Box<Native>>,
        record: &Record,
        skip: usize,
        regions: &mut Regions,
        slices: &dyn Slices,
    ) -> io::Result<usize> {
        match (self, native) {
            (Self::Kernel(socket), _) => {
                socket::send(socket.as_fd(), record, skip, regions, slices)
            }
            (Self::Native(id), Some(native)) => native.send(*id, record, skip, regions, slices),
            (Self::Native(_), None) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// The local address of the connection.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn address(&self, native: &mut Option<Box<Native>>) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(socket) => address(socket),
            Self::Native(id) => {
                let flow = native.as_deref_mut().and_then(|native| native.flow(*id));
                flow.map(|flow| flow.local).ok_or_else(|| io::ErrorKind::NotConnected.into())
            }
        }
    }

    /// Closes the sending half: nothing more will be sent.
    pub(super) fn shut(&self, native: &mut Option<Box<Native>>) {
        match self {
            Self::Kernel(socket) => {
                let _ = net::shutdown(socket, Shutdown::Write);
            }
            Self::Native(id) => native.iter_mut().for_each(|native| native.shut(*id)),
        }
    }

    /// Makes the socket's close an abrupt one (RST).
    pub(super) fn abort(&self, native: &mut Option<Box<Native>>) {
        match self {
            Self::Kernel(socket) => {
                let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            }
            Self::Native(id) => native.iter_mut().for_each(|native| native.remove(*id, true)),
        }
    }

    /// The most payload of one TCP segment at present.
    pub(super) fn emss(&self, native: &mut Option<Box<Native>>) -> Option<u32> {
        match self {
            Self::Kernel(socket) => socket::segment(socket.as_fd()).ok(),
            Self::Native(id) => native.as_deref_mut()?.mss(*id),
        }
    }
}

/// The number of bytes that a send took: none if the socket is full.
pub(super) fn took(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(0)
        }
        other => other,
    }
}

/// Creates a TCP socket for `addr`'s family that does not block.
pub(crate) fn open(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Begins to connect a socket to `addr`; returns true if the connection is open already.
pub(super) fn begin(socket: &OwnedFd, addr: &SocketAddr) -> io::Result<bool> {
    tune(socket.as_fd())?;
    match net::connect(socket, addr) {
        Ok(()) => Ok(true),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Options of a TCP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketOptions {
    /// The traffic class of the packets that the socket sends (IPv4's TOS), if not the system's.
    pub traffic_class: Option<u8>,
    /// True to bind IPv6's wildcard address without IPv4.
    pub v6_only: bool,
    /// True if the socket will connect. With port 0 it then gets a port only when it connects, and
    /// may share that port with connections to different peers.
    pub connects: bool,
}

/// Creates a socket bound to `addr`; returns it and its address, with the port filled in.
///
/// # Errors
/// The address is in use or not one of this machine, or no descriptor is left.
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

/// The local address of a socket.
pub(super) fn address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(net::getsockname(socket)?.try_into()?)
}

/// Sets TCP's options on a socket: small messages leave at once, and a peer whose machine has gone
/// is noticed within half a minute.
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
