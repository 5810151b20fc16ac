//! The datagram driver over kernel UDP, IPv4 and IPv6.
//!
//! Sending gathers: datagrams to one peer of one length leave as one kernel super-packet
//! (UDP_SEGMENT), several of those in one `sendmmsg`, and a lone datagram by a plain `sendto`
//! ([`batch`], [`socket`]). A long datagram leaves at once, behind those that wait, and the kernel
//! copies its bytes from where they lie. Receiving polls with one `recvmsg`, goes over to
//! `recvmmsg` while there is much, and takes apart what the kernel joined ([`received`], UDP_GRO).
//! A server's replies to several clients leave together, when all of a receive is handled.
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
//! Packets have a checksum unless the server's locator says `crc=off`, for loopback or where the
//! operator trusts the link. A client's first server decides for all that it calls.
//!
//! Errors of the network are counted and otherwise treated as loss: an ICMP message is no proof of
//! anything.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::event::epoll;
use sprat_proto::datagrams::{LeftDatagram, MAX_PARTS, PaddedHeader, Sent};
use sprat_proto::{Addr, Datagrams, Instant, TimedDatagrams};

use crate::driver::{Driver, same_crc};
use crate::locator::{HostPort, Kind, Locator};
use batch::{Batch, MAX_RUN};
use received::Rx;
use socket::Socket;
use sprat_sys::datagram::{Name, Outgoing};

mod batch;
mod options;
mod received;
mod socket;
#[cfg(test)]
mod tests;

pub use options::{Counters, Options};

/// The length of datagrams on loopback: the most that IPv6 carries in one piece over an MTU of
/// 65,536 bytes. The kernel computes no checksum of a whole datagram there.
const LOOPBACK_PAYLOAD: usize = 65_536 - 40 - 8;
/// The length of datagrams on a network: an Ethernet frame of 1,500 bytes less the IPv6 and UDP
/// headers.
const NETWORK_PAYLOAD: usize = 1452;
/// The least length of a datagram that leaves at once. It is so long that a system call costs less
/// than a copy of it.
const LENT: usize = 16 << 10;
/// The maximum of bursts of a receive whose replies leave together.
const HELD_BURSTS: u32 = 8;

/// The datagram driver over kernel UDP.
pub struct Udp {
    sockets: Vec<Socket>,
    /// The epoll that watches all sockets: a sleeping worker waits on it.
    epoll: OwnedFd,
    options: Options,
    max_payload: usize,
    max_loopback_payload: usize,
    /// True if packets have a checksum; `None` until a client's first server decides.
    crc: Option<bool>,
    /// The index of the socket that is polled next.
    turn: usize,
    rx: Rx,
    batch: Batch,
    counters: Counters,
    listening: Option<SocketAddr>,
    /// The number of bursts whose replies wait in the batch.
    held: u32,
}

impl Udp {
    /// Opens a driver that listens at `at`, a locator of `fast+udp`.
    ///
    /// # Errors
    /// The locator is of another kind or names no address that is allowed, or the address cannot be
    /// bound.
    pub fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let (host_port, crc) = udp_port(at)?;
        let mut driver = Self { crc: Some(crc), ..Self::client(options)? };
        let mut last = io::ErrorKind::NotFound.into();
        for addr in host_port.allowed(options.insecure_network)? {
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

    /// Opens a driver over kernel UDP that only calls others.
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
            max_loopback_payload: options.max_payload.unwrap_or(LOOPBACK_PAYLOAD),
            crc: None,
            turn: 0,
            rx: Rx::new(),
            batch: Batch::new(),
            counters: Counters::default(),
            listening: None,
            held: 0,
        })
    }

    /// Returns the counters of the driver over kernel UDP.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sends the datagrams that wait in the batch.
    fn transmit(&mut self) {
        self.held = 0;
        if self.batch.is_empty() {
            return;
        }
        self.batch.close();
        let (sockets, counters) = (&mut self.sockets, &mut self.counters);
        self.batch.each_socket(|socket, runs| sockets[socket].transmit(runs, counters));
        self.batch.clear();
    }

    /// Sends one datagram by a socket, from where its parts lie.
    fn transmit_lent(&mut self, socket: usize, to: SocketAddr, parts: &[&[u8]]) {
        let pieces: ArrayVec<_, MAX_PARTS> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let one = Outgoing { to: &Name::new(to), pieces: &pieces, segment: None };
        self.sockets[socket].transmit(&[one], &mut self.counters);
    }

    /// Opens a UDP socket bound to `addr` and returns its index.
    fn open(&mut self, addr: SocketAddr) -> io::Result<usize> {
        let socket = Socket::open(addr)?;
        let data = epoll::EventData::new_u64(self.sockets.len() as u64);
        epoll::add(&self.epoll, &socket.inner, data, epoll::EventFlags::IN)?;
        self.sockets.push(socket);
        Ok(self.sockets.len() - 1)
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

/// Returns the host and port that a locator names, and whether packets have a checksum.
fn udp_port(locator: &Locator) -> io::Result<(HostPort, bool)> {
    match locator.kind()? {
        Kind::Udp { at, crc } => Ok((at, crc)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} is no locator of fast+udp"),
        )),
    }
}

impl Datagrams for Udp {
    fn recv_burst(&mut self) -> usize {
        if !self.rx.pending() {
            self.transmit();
            let n = self.sockets.len();
            let mut any = false;
            for _ in 0..n {
                self.turn = if self.turn + 1 < n { self.turn + 1 } else { 0 };
                any = self.sockets[self.turn].receive(&mut self.rx, &mut self.counters);
                if any {
                    break;
                }
            }
            if !any {
                self.rx.idle();
            }
        }
        self.rx.split(&mut self.counters)
    }

    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let (from, bytes) = self.rx.datagram(i);
        (Addr::Net(from), bytes)
    }

    fn left(&self, _: usize) -> Option<LeftDatagram<'_>> {
        None
    }

    fn append_left(&self, _: usize, _: usize, _: &mut Vec<u8>) {}

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        let len = parts.iter().map(|p| p.len()).sum::<usize>();
        let Addr::Net(to) = to else {
            self.counters.send_invalid += 1;
            return Sent::Yes;
        };
        let fits = len <= self.max_payload
            || len <= self.max_loopback_payload && to.ip().to_canonical().is_loopback();
        if !fits || parts.len() > MAX_PARTS {
            self.counters.send_invalid += 1;
            return Sent::Yes;
        }
        if len < LENT && self.batch.join(&to, len, parts) {
            return Sent::Yes;
        }
        let Some(socket) = self.sockets.iter().position(|s| s.reaches(&to)) else {
            self.counters.send_invalid += 1;
            return Sent::Yes;
        };
        if len >= LENT {
            self.transmit();
            self.transmit_lent(socket, to, parts);
            return Sent::Yes;
        }
        if !self.batch.has_room(len) {
            self.transmit();
        }
        self.batch.begin(socket, to, len, parts);
        Sent::Yes
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[head, body])
    }

    fn flush(&mut self) {
        // A server's replies to several clients wait for those to the rest of the receive, which is
        // handled next: a client gets one long run instead of several short ones, and sends its
        // next requests in as long a run.
        let waits = self.listening.is_some()
            && self.rx.pending()
            && self.held < HELD_BURSTS
            && self.batch.runs() > 1;
        if waits {
            self.held += 1;
        } else {
            self.transmit();
        }
    }

    fn gone(&mut self) -> Option<Addr> {
        None
    }

    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn max_loopback_payload(&self) -> usize {
        self.max_loopback_payload
    }

    fn lossless(&self) -> bool {
        false
    }

    #[inline]
    fn intact(&self) -> bool {
        self.crc == Some(false)
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
        let (host_port, crc) = udp_port(to)?;
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
        same_crc(to, *self.crc.get_or_insert(crc), crc)?;
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
                self.sockets[i].connect(addr)?;
            }
        }
        Ok(Addr::Net(addr))
    }

    fn locator(&self) -> Option<String> {
        let crc = if self.intact() { ",crc=off" } else { "" };
        self.listening.map(|a| format!("fast+udp:host={},port={}{crc}", a.ip(), a.port()))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.transmit();
        !self.rx.pending()
    }

    fn disarm(&mut self) {}
}
