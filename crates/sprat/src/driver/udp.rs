//! The datagram driver over kernel UDP, IPv4 and IPv6.
//!
//! Sending gathers: datagrams to one peer of one length lie end to end in the batch as a *run*,
//! which leaves as one kernel super-packet (UDP_SEGMENT); several runs leave in one `sendmmsg`; a
//! lone datagram leaves by a plain `sendto`. Receiving polls with one `recvmsg`, goes over to
//! `recvmmsg` while there is much, and takes apart what the kernel joined (UDP_GRO).
//!
//! ```text
//! batch   [ run to A: 8188 8188 8188 412 ][ run to B: 96 ][ run to A: 40 40 ]
//! ```
//!
//! A listening driver has one socket. It opens others when it must reach a peer that this one
//! cannot (another address family, or the outside from a socket on loopback), and a pure client has
//! only such sockets. The first that a client opens is connected to its peer, which spares the
//! kernel a search for the route of each datagram; the others are not, so that many peers do not
//! make many sockets to poll.
//!
//! Always holds: a datagram is answered through the socket that it came by, since
//! [`Socket::reaches`] picks the first one that can reach a peer and sockets are only ever added
//! behind.
//!
//! Errors of the network are counted and otherwise treated as loss: an ICMP message is no proof of
//! anything.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::event::epoll;
use rustix::net::sockopt;
use sprat_proto::datagrams::{BURST, MAX_PARTS, PaddedHeader, Sent};
use sprat_proto::{Addr, Datagrams, Instant, TimedDatagrams};
use sprat_sys::datagram::{self, MAX_RECV, Name, Outgoing, Received};

use crate::driver::Driver;
use crate::locator::{Kind, Locator};

#[cfg(test)]
mod tests;

/// Datagrams on loopback: eight of them fill a kernel super-packet, and a checksum over one is
/// quick.
const LOOPBACK_PAYLOAD: usize = 8188;
/// Datagrams on a network: an Ethernet frame of 1,500 bytes less the IPv6 and UDP headers.
const NETWORK_PAYLOAD: usize = 1452;
/// The most bytes in a run: what UDP over IPv4 carries.
const MAX_RUN: usize = 65_507;
/// The most datagrams in a run; older kernels take no more.
const MAX_SEGMENTS: usize = 64;
/// The batch: several runs, small enough to stay in the second-level cache until the kernel has
/// copied it.
const BATCH: usize = 128 << 10;
/// From one receive buffer to the next: the largest super-packet, and a bit, so that they do not
/// share cache sets.
const STRIDE: usize = (64 << 10) + 192;
/// Asked of the kernel for each socket; it grants less without privilege.
const SOCKET_BUFFER: usize = 8 << 20;

/// Options of a driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Allow peers that are not on loopback. Nothing is encrypted.
    pub insecure_network: bool,
    /// The largest datagram in bytes, if not the default for loopback (8188) or for networks
    /// (1452).
    pub max_payload: Option<usize>,
}

/// Counters since the driver was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Datagrams that the kernel had no room for or could not send: lost.
    pub send_dropped: u64,
    /// Datagrams given to `send` beyond `max_payload`, or to an address that is none of ours: lost.
    pub send_invalid: u64,
    /// Errors that `recv` reported, most of them echoes of ICMP messages.
    pub receive_errors: u64,
    /// Receives that did not fit or came from an address of no family that we know: lost.
    pub receive_invalid: u64,
}

/// The driver.
pub struct Udp {
    sockets: Vec<Socket>,
    /// Holds all sockets: what a sleeping worker waits on.
    epoll: OwnedFd,
    options: Options,
    max_payload: usize,
    /// The socket to poll next.
    turn: usize,
    rx: Rx,
    tx: Tx,
    counters: Counters,
    listening: Option<SocketAddr>,
}

#[derive(Debug)]
struct Socket {
    inner: UdpSocket,
    local: SocketAddr,
    /// The only peer, if it is connected.
    peer: Option<SocketAddr>,
    /// False once the kernel refused to segment for it.
    gso: bool,
}

/// The last receive.
struct Rx {
    /// [`MAX_RECV`] pieces of [`STRIDE`].
    buffer: Box<[u8]>,
    messages: [Received; MAX_RECV],
    /// The sender, if the socket is connected.
    peer: Option<SocketAddr>,
    /// The number of messages.
    filled: usize,
    /// The message to take apart next, and how far it has been.
    next: (usize, usize),
    /// The datagrams of this burst: where each lies in the buffer, and its message.
    burst: [Datagram; BURST],
    len: usize,
    /// The last receive gave something: ask for several next time.
    hot: bool,
}

#[derive(Clone, Copy)]
struct Datagram {
    from: SocketAddr,
    start: usize,
    end: usize,
}

/// Datagrams that wait to be sent.
struct Tx {
    buffer: Box<[u8]>,
    len: usize,
    runs: [Run; BURST],
    count: usize,
}

#[derive(Clone, Copy)]
struct Run {
    socket: usize,
    to: SocketAddr,
    name: Name,
    start: usize,
    end: usize,
    /// The length of its first datagram, which no later one exceeds.
    segment: usize,
    datagrams: usize,
    /// It ends in a shorter datagram, so no other may follow.
    closed: bool,
}

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Udp {
    /// A driver that listens at `at`, a locator of `fast+udp`.
    ///
    /// # Errors
    /// The locator is of another kind or names no address that is allowed, or the address cannot be
    /// bound.
    pub fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let mut driver = Self::client(options)?;
        let mut last = io::ErrorKind::NotFound.into();
        for addr in host_port(at)?.allowed(options.insecure_network)? {
            match driver.open(addr) {
                Ok(i) => {
                    driver.listening = Some(driver.sockets[i].local);
                    return Ok(driver);
                }
                Err(e) => last = io::Error::new(e.kind(), format!("{at}: {e}")),
            }
        }
        Err(last)
    }

    /// A driver that only calls others.
    ///
    /// # Errors
    /// `epoll` failed, or `Options::max_payload` is not in 512..=65507.
    pub fn client(options: Options) -> io::Result<Self> {
        let default = if options.insecure_network { NETWORK_PAYLOAD } else { LOOPBACK_PAYLOAD };
        let max_payload = options.max_payload.unwrap_or(default);
        if !(512..=MAX_RUN).contains(&max_payload) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the largest datagram must be in 512..=65507",
            ));
        }
        Ok(Self {
            sockets: Vec::new(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            options,
            max_payload,
            turn: 0,
            rx: Rx::new(),
            tx: Tx::new(),
            counters: Counters::default(),
            listening: None,
        })
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Opens a socket bound to `addr` and returns its index.
    fn open(&mut self, addr: SocketAddr) -> io::Result<usize> {
        let inner = UdpSocket::bind(addr)?;
        inner.set_nonblocking(true)?;
        // Larger buffers and joined receives only make it faster: whatever the kernel refuses, it
        // works without.
        if sockopt::set_socket_recv_buffer_size_force(&inner, SOCKET_BUFFER).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&inner, SOCKET_BUFFER);
        }
        if sockopt::set_socket_send_buffer_size_force(&inner, SOCKET_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&inner, SOCKET_BUFFER);
        }
        let _ = datagram::set_gro(inner.as_fd());
        let data = epoll::EventData::new_u64(self.sockets.len() as u64);
        epoll::add(&self.epoll, &inner, data, epoll::EventFlags::IN)?;
        let local = inner.local_addr()?;
        self.sockets.push(Socket { inner, local, peer: None, gso: true });
        Ok(self.sockets.len() - 1)
    }

    /// Receives from one socket; true if anything came.
    fn receive(&mut self, socket: usize) -> bool {
        let Socket { inner, peer, .. } = &self.sockets[socket];
        let rx = &mut self.rx;
        let got = if rx.hot {
            datagram::recv(inner.as_fd(), &mut rx.buffer, STRIDE, &mut rx.messages)
        } else {
            datagram::recv_one(inner.as_fd(), &mut rx.buffer[..STRIDE], peer.is_none()).map(|one| {
                rx.messages[0] = one;
                1
            })
        };
        match got {
            Ok(got) => {
                (rx.filled, rx.next, rx.peer) = (got, (0, 0), *peer);
                true
            }
            Err(e) => {
                let idle =
                    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                self.counters.receive_errors += u64::from(!idle);
                false
            }
        }
    }

    /// Sends `items`, all by one socket.
    fn transmit(socket: &mut Socket, mut items: &[Outgoing<'_>], counters: &mut Counters) {
        let mut refused = false;
        while let Some(first) = items.first() {
            let sent = match (items, first.segment) {
                ([one], None) => {
                    datagram::send_one(socket.inner.as_fd(), one.to, one.bytes).map(|()| 1)
                }
                (_, Some(segment)) if !socket.gso => {
                    for bytes in first.bytes.chunks(usize::from(segment)) {
                        Self::transmit(
                            socket,
                            &[Outgoing { bytes, segment: None, ..*first }],
                            counters,
                        );
                    }
                    items = &items[1..];
                    continue;
                }
                _ => datagram::send(socket.inner.as_fd(), items),
            };
            match sent {
                Ok(n) => {
                    counters.sent += items[..n].iter().map(datagrams).sum::<u64>();
                    items = &items[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The error of a connected socket belongs to an earlier datagram; this one was not
                // sent yet.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && !refused => {
                    refused = true
                }
                // The device does not compute checksums (EIO), the path's MTU is smaller than a
                // datagram (EINVAL, EMSGSIZE), or the kernel is too old: singly they may pass.
                Err(e) if first.segment.is_some() && segmentation_refused(&e) => socket.gso = false,
                Err(_) => {
                    counters.send_dropped += datagrams(first);
                    items = &items[1..];
                }
            }
        }
    }
}

impl fmt::Debug for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Udp")
            .field("sockets", &self.sockets)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

fn datagrams(item: &Outgoing<'_>) -> u64 {
    item.segment.map_or(1, |s| item.bytes.len().div_ceil(usize::from(s)) as u64)
}

fn segmentation_refused(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

fn host_port(locator: &Locator) -> io::Result<crate::locator::HostPort> {
    match locator.kind()? {
        Kind::Udp(host_port) => Ok(host_port),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} is no locator of fast+udp"),
        )),
    }
}

impl Socket {
    fn reaches(&self, to: &SocketAddr) -> bool {
        if let Some(peer) = &self.peer {
            return peer == to;
        }
        let local = self.local.ip();
        local.is_ipv4() == to.is_ipv4()
            && (!local.to_canonical().is_loopback() || to.ip().to_canonical().is_loopback())
    }
}

impl Rx {
    fn new() -> Self {
        Self {
            buffer: vec![0; MAX_RECV * STRIDE].into(),
            messages: [Received::default(); MAX_RECV],
            peer: None,
            filled: 0,
            next: (0, 0),
            burst: [Datagram { from: NOWHERE, start: 0, end: 0 }; BURST],
            len: 0,
            hot: false,
        }
    }

    /// True if a message has not been taken apart to its end.
    fn pending(&self) -> bool {
        self.next.0 < self.filled
    }

    /// Fills the burst from the messages, as far as it goes.
    fn split(&mut self, counters: &mut Counters) {
        self.len = 0;
        while self.pending() && self.len < BURST {
            let (i, at) = self.next;
            let message = &self.messages[i];
            let from = self.peer.or_else(|| message.from.addr());
            let Some(from) = from.filter(|_| !message.truncated) else {
                counters.receive_invalid += 1;
                self.next = (i + 1, 0);
                continue;
            };
            let end = message.segment.map_or(message.len, |s| message.len.min(at + s));
            self.burst[self.len] = Datagram { from, start: i * STRIDE + at, end: i * STRIDE + end };
            self.len += 1;
            self.next = if end < message.len { (i, end) } else { (i + 1, 0) };
        }
        counters.received += self.len as u64;
    }
}

impl Tx {
    fn new() -> Self {
        let name = Name::default();
        let run = Run {
            socket: 0,
            to: NOWHERE,
            name,
            start: 0,
            end: 0,
            segment: 0,
            datagrams: 0,
            closed: true,
        };
        Self { buffer: vec![0; BATCH].into(), len: 0, runs: [run; BURST], count: 0 }
    }

    /// True if a datagram of `len` bytes to `to` was added to the last run.
    fn join(&mut self, to: &SocketAddr, len: usize) -> bool {
        let Some(run) = self.runs[..self.count].last_mut() else { return false };
        let fits = run.end - run.start + len <= MAX_RUN && run.datagrams < MAX_SEGMENTS;
        if run.closed || len > run.segment || len == 0 || !fits || run.to != *to {
            return false;
        }
        run.end += len;
        run.datagrams += 1;
        run.closed = len < run.segment;
        true
    }

    /// True if there is room for a datagram of `len` bytes in a run of its own.
    fn has_room(&self, len: usize) -> bool {
        self.count < BURST && self.len + len <= BATCH
    }
}

impl Datagrams for Udp {
    fn recv_burst(&mut self) -> usize {
        if !self.rx.pending() {
            let n = self.sockets.len();
            let mut any = false;
            for _ in 0..n {
                self.turn = if self.turn + 1 < n { self.turn + 1 } else { 0 };
                any = self.receive(self.turn);
                if any {
                    break;
                }
            }
            self.rx.hot = any;
        }
        self.rx.split(&mut self.counters);
        self.rx.len
    }

    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let datagram = &self.rx.burst[..self.rx.len][i];
        (Addr::Net(datagram.from), &self.rx.buffer[datagram.start..datagram.end])
    }

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        let len = parts.iter().map(|p| p.len()).sum::<usize>();
        let Addr::Net(to) = to else {
            self.counters.send_invalid += 1;
            return Sent::Yes;
        };
        if len > self.max_payload || parts.len() > MAX_PARTS {
            self.counters.send_invalid += 1;
            return Sent::Yes;
        }
        if self.tx.len + len > BATCH || !self.tx.join(&to, len) {
            if !self.tx.has_room(len) {
                self.flush();
            }
            let Some(socket) = self.sockets.iter().position(|s| s.reaches(&to)) else {
                self.counters.send_invalid += 1;
                return Sent::Yes;
            };
            let (start, end) = (self.tx.len, self.tx.len + len);
            self.tx.runs[self.tx.count] = Run {
                socket,
                to,
                name: Name::new(to),
                start,
                end,
                segment: len,
                datagrams: 1,
                closed: false,
            };
            self.tx.count += 1;
        }
        for part in parts {
            self.tx.buffer[self.tx.len..self.tx.len + part.len()].copy_from_slice(part);
            self.tx.len += part.len();
        }
        Sent::Yes
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[head, body])
    }

    fn flush(&mut self) {
        let runs = &self.tx.runs[..self.tx.count];
        let item = |run: &Run, named| Outgoing {
            to: named,
            bytes: &self.tx.buffer[run.start..run.end],
            segment: (run.datagrams > 1).then_some(run.segment as u16),
        };
        for same in runs.chunk_by(|a, b| a.socket == b.socket) {
            let socket = &mut self.sockets[same[0].socket];
            let named = socket.peer.is_none();
            let mut items = ArrayVec::<_, BURST>::new();
            items.extend(same.iter().map(|run| item(run, named.then_some(&run.name))));
            Self::transmit(socket, &items, &mut self.counters);
        }
        self.tx.count = 0;
        self.tx.len = 0;
    }

    fn gone(&mut self) -> Option<Addr> {
        None
    }

    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn lossless(&self) -> bool {
        false
    }

    #[inline]
    fn intact(&self) -> bool {
        false
    }
}

impl TimedDatagrams for Udp {
    #[inline]
    fn set_now(&mut self, _: Instant) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _: Instant) {}

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("send_dropped", self.counters.send_dropped);
        each("send_invalid", self.counters.send_invalid);
        each("receive_errors", self.counters.receive_errors);
        each("receive_invalid", self.counters.receive_invalid);
    }
}

impl Driver for Udp {
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr> {
        let host_port = host_port(to)?;
        if host_port.port == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{to}: no one listens at port 0"),
            ));
        }
        let Some(&addr) = host_port.allowed(self.options.insecure_network)?.first() else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{to}: the host has no address"),
            ));
        };
        if !self.sockets.iter().any(|s| s.reaches(&addr)) {
            let loopback = addr.ip().is_loopback();
            let own: IpAddr = match (addr.is_ipv4(), loopback) {
                (true, true) => Ipv4Addr::LOCALHOST.into(),
                (true, false) => Ipv4Addr::UNSPECIFIED.into(),
                (false, true) => Ipv6Addr::LOCALHOST.into(),
                (false, false) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let i = self.open(SocketAddr::new(own, 0))?;
            if i == 0 {
                self.sockets[i].inner.connect(addr)?;
                self.sockets[i].peer = Some(addr);
            }
        }
        Ok(Addr::Net(addr))
    }

    fn locator(&self) -> Option<String> {
        self.listening.map(|a| format!("fast+udp:host={},port={}", a.ip(), a.port()))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.flush();
        !self.rx.pending()
    }

    fn disarm(&mut self) {}
}
