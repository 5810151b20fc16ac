//! The datagram driver over our own IP stack on a packet device: `fast+packet`, `fast+xdp`,
//! `fast+tap`, `fast+memif`, `fast+shmnet`, `fast+dpdk`, and `fast+bond` of two of a kind.
//!
//! ```text
//!  Fast ─► Stack ─► sprat_proto::net::UdpSocket ─► a device
//!           names, sleep        ARP … UDP          frames
//! ```
//!
//! A stack has an address of its own, beside those of the kernel. An address of a kernel interface
//! is refused, since the kernel answers for it. A client without an address takes one at random for
//! the link alone (169.254.0.0/16, or the IPv6 address of the hardware); servers answer at the
//! address that a packet came from.
//!
//! The stack also answers `ping`.
//!
//! Always holds: device and stack count what they drop, and their errors are losses here.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use sprat_proto::datagrams::{LeftDatagram, PaddedHeader, Sent};
use sprat_proto::device::Mac;
use sprat_proto::net::{Ipv4Assignment, StackEvent, StackOptions, UdpSocket};
use sprat_proto::{Addr, Datagrams, Device as _, Instant, TimedDatagrams};

use crate::device::bond::Bond;
use crate::device::{self, AnyNic, Nic as _, Steer, memif, pcap, shm};
use crate::driver::{Driver, same_crc};
use crate::locator::{DevicePort, Kind, Locator};
use crate::trace::{TraceRing, watch::TracedNic};
use sprat_sys::clock;

/// The MTU of Ethernet frames through rings in memory: large frames cost no wire time, and a long
/// message wants few frames.
const MEMORY_MTU: usize = 9000;

/// A UDP port of an IP stack of its own, on a device of its own.
pub struct Stack {
    port: UdpSocket<AnyNic>,
    protocol: String,
    /// True if packets over this device have a checksum.
    crc: bool,
    /// The locator that other machines reach this port by, if it listens.
    locator: Option<String>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port.port();
        f.debug_struct("Stack")
            .field("protocol", &self.protocol)
            .field("port", &port)
            .finish_non_exhaustive()
    }
}

/// Returns the packet device and port that a locator names.
fn device_port(locator: &Locator) -> io::Result<DevicePort> {
    match locator.kind()? {
        Kind::Device(port) => Ok(port),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} names no packet device"),
        )),
    }
}

/// Returns the first address of the host that a locator names.
fn resolved(at: &DevicePort) -> io::Result<SocketAddr> {
    let found = at.at.resolve()?;
    found.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The end of a device that a stack is at: server or client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

/// Opens the device that `at` names, for the address `own`: a bond, if it names two.
fn device(
    at: &DevicePort,
    own: Option<SocketAddr>,
    mac: Option<Mac>,
    side: Side,
) -> io::Result<AnyNic> {
    let Some(with) = &at.with else { return one(at, &at.dev, own, mac, side) };
    let members = [&at.dev, with].map(|dev| one(at, dev, own, mac, side));
    let bond = AnyNic::other(Bond::new(members.into_iter().collect::<io::Result<_>>()?)?);
    match &at.pcap {
        Some(path) => Ok(AnyNic::other(pcap::Capture::new(bond, path, pcap::LIMIT)?)),
        None => Ok(bond),
    }
}

/// Opens one device, which is the device of a stack or a member of its bond.
fn one(
    at: &DevicePort,
    dev: &str,
    own: Option<SocketAddr>,
    mac: Option<Mac>,
    side: Side,
) -> io::Result<AnyNic> {
    // A bond is captured as one.
    let pcap = at.pcap.clone().filter(|_| at.with.is_none());
    let mut options =
        device::Options { dev: dev.to_owned(), mac, pcap, ..device::Options::default() };
    match at.driver {
        "memif" => {
            let role = if side == Side::Server { memif::Role::Server } else { memif::Role::Client };
            // A checksum would be computed of bytes that the peer may still change.
            let leaves = !at.crc && at.with.is_none();
            options.memif =
                Some(memif::Options { mac, leaves, ..memif::Options::jumbo(role, dev) });
        }
        "shm" => {
            let listens = side == Side::Server;
            options.shm =
                Some(shm::Options { name: dev.to_owned(), listens, mac, mtu: MEMORY_MTU });
        }
        _ => {
            options.steer =
                Steer { addr: own.map(|own| own.ip()), port: own.map_or(0, |own| own.port()) }
        }
    }
    options.queue = at.queue;
    options.bridge.clone_from(&at.bridge);
    options.eal.clone_from(&at.eal);
    Ok(device::open(at.driver, &options)?)
}

/// Makes a hardware address for an own IP address. It depends on the IP address alone, so that
/// neighbours need not learn it again. The kernel ignores frames to it; the kernel would forward
/// frames to its own address if it is a router.
fn mac_for(ip: IpAddr) -> Mac {
    let octets = ip.to_canonical();
    let [a, b, c, d] = match octets {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => (ip.to_bits() as u32).to_be_bytes(),
    };
    Mac([0x0a, 0x53, a, b, c, d])
}

/// Makes the options of the IP stack with the address `own`.
fn options(at: &DevicePort, own: IpAddr) -> StackOptions {
    // The RPC packets in it have checksums of their own, so a datagram need not.
    let mut options = StackOptions { udp4_checksum: false, ..StackOptions::default() };
    match own.to_canonical() {
        IpAddr::V4(addr) => options.ipv4 = Ipv4Assignment::Static { addr, prefix: at.prefix },
        IpAddr::V6(addr) => options.ipv6 = Some((addr, at.prefix)),
    }
    match at.gateway.map(|gateway| gateway.to_canonical()) {
        Some(IpAddr::V4(gateway)) => options.gateway4 = Some(gateway),
        Some(IpAddr::V6(gateway)) => options.gateway6 = Some(gateway),
        None => {}
    }
    options
}

/// Returns a random IPv4 address for the link alone (RFC 3927 section 2.1).
fn link_local() -> io::Result<IpAddr> {
    let mut rng = crate::random::rng()?;
    let (high, low) = (rng.below(254) as u8 + 1, rng.below(256) as u8);
    Ok(Ipv4Addr::new(169, 254, high, low).into())
}

impl Stack {
    /// Opens a driver that listens at `at`, a locator of a packet device. No other machine may have
    /// its address.
    ///
    /// # Errors
    /// The locator is of another kind, its host does not resolve, is the kernel's own or no host's,
    /// or the device cannot be opened: the error says what is missing.
    pub fn listen(at: &Locator) -> io::Result<Self> {
        let port = device_port(at)?;
        let own = resolved(&port)?;
        let mut this = Self::open(at, &port, own, Side::Server)?;
        let mut locator = at.clone();
        locator.unset("pcap");
        locator.unset("queue");
        locator.set("host", &own.ip().to_string());
        locator.set("port", &this.port.port().to_string());
        this.locator = Some(locator.to_string());
        Ok(this)
    }

    /// Opens a driver that only calls others such as `to`: at the address and on the device that
    /// one of `local` names for this protocol, otherwise on the device that `to` names.
    ///
    /// # Errors
    /// The errors of [`Stack::listen`].
    pub fn client(to: &Locator, local: &[Locator]) -> io::Result<Self> {
        let target = device_port(to)?;
        if let Some(own) = local.iter().find(|l| l.protocol() == to.protocol()) {
            let port = device_port(own)?;
            let mut at = resolved(&port)?;
            at.set_port(port.at.port);
            // The server decides whether packets have a checksum.
            let port = DevicePort { crc: target.crc, ..port };
            return Self::open(own, &port, at, Side::Client);
        }
        if target.facts().client_needs_own {
            let why =
                "a client needs a device of its own: SPRAT_LOCAL='fast+dpdk:dev=…,host=…,port=0'";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{to}: {why}")));
        }
        let v4 = resolved(&target)?.is_ipv4();
        let ip = if v4 { link_local()? } else { IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED) };
        let port = DevicePort { mac: None, prefix: 0, gateway: None, queue: None, ..target };
        Self::open(to, &port, SocketAddr::new(ip, 0), Side::Client)
    }

    fn open(at: &Locator, port: &DevicePort, own: SocketAddr, side: Side) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{at}: {e}"));
        let refused =
            |why: &str| named(io::Error::new(io::ErrorKind::AddrNotAvailable, why.to_owned()));
        let ip = own.ip().to_canonical();
        let chosen = ip.is_unspecified() && side == Side::Client;
        if !chosen && (ip.is_unspecified() || ip.is_multicast() || ip.is_loopback()) {
            return Err(refused("the stack needs an address of its own"));
        }
        let facts = port.facts();
        if !facts.memory
            && sprat_sys::interfaces::interfaces()?.iter().any(|i| i.addresses.contains(&ip))
        {
            return Err(refused(
                "the kernel answers for that address: give one that no interface has, on the same \
                 network",
            ));
        }
        let mac = match port.mac {
            None if facts.own_mac && !chosen => Some(mac_for(ip)),
            // The devices of a bond have one.
            None if facts.own_mac && port.with.is_some() => Some(device::random_mac()?),
            mac => mac,
        };
        let nic = device(port, (!chosen).then_some(own), mac, side).map_err(named)?;
        let mut options = if chosen {
            StackOptions { udp4_checksum: false, ..StackOptions::default() }
        } else {
            options(port, ip)
        };
        options.accept_partial_checksum = facts.partial_checksums;
        let crc = port.crc;
        let port = UdpSocket::new(options, nic, own.port(), own.is_ipv6(), crate::random::rng()?);
        let mut port = port.map_err(|e| named(io::Error::new(io::ErrorKind::AddrInUse, e)))?;
        port.interface_mut().tick(clock::now());
        Ok(Self { port, protocol: at.protocol().to_owned(), crc, locator: None })
    }

    /// Makes the driver trace the device's calls, too.
    pub fn traced(self, trace: &TraceRing) -> Self {
        let watch = |nic| AnyNic::other(TracedNic::new(nic, trace.clone()));
        Self { port: self.port.map(watch), ..self }
    }

    /// The driver's UDP port with its stack, to read counters and to send echo requests.
    pub fn port(&mut self) -> &mut UdpSocket<AnyNic> {
        &mut self.port
    }

    /// The next event of the stack beside datagrams; call until `None`.
    pub fn event(&mut self) -> Option<StackEvent> {
        self.port.interface_mut().event()
    }
}

impl Datagrams for Stack {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        self.port.recv_burst()
    }

    #[inline(always)]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        self.port.datagram(i)
    }

    fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        self.port.left(i)
    }

    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        self.port.append_left(i, from, bytes);
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.port.send(to, parts)
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.port.send_short(to, head, body)
    }

    #[inline]
    fn flush(&mut self) {
        self.port.flush();
    }

    fn gone(&mut self) -> Option<Addr> {
        None
    }

    fn max_payload(&self) -> usize {
        self.port.max_payload()
    }

    fn max_loopback_payload(&self) -> usize {
        self.max_payload()
    }

    fn lossless(&self) -> bool {
        false
    }

    #[inline]
    fn intact(&self) -> bool {
        !self.crc
    }
}

impl TimedDatagrams for Stack {
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.port.interface_mut().set_now(now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.port.interface().deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.port.interface_mut().tick(now);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.port.interface().stack().counters().each(each);
        self.port.interface().device().counters(each);
    }
}

impl Driver for Stack {
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr> {
        let target = device_port(to)?;
        if to.protocol() != self.protocol || target.at.port == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{to}: no one is reached there by {}", self.protocol),
            ));
        }
        same_crc(to, self.crc, target.crc)?;
        let addr = resolved(&target)?;
        if let Some(mac) = target.mac {
            self.port.interface_mut().set_now(clock::now());
            self.port.interface_mut().set_neighbour(addr.ip(), mac);
        }
        Ok(UdpSocket::<AnyNic>::canonical(addr))
    }

    fn locator(&self) -> Option<String> {
        self.locator.clone()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.port.interface().device().fd()
    }

    fn arm(&mut self) -> bool {
        self.port.flush();
        self.port.interface().stack().is_idle() && self.port.interface_mut().device_mut().arm()
    }

    fn disarm(&mut self) {
        self.port.interface_mut().device_mut().disarm();
    }
}
