//! Network interfaces of this process: an IP stack on a packet device, as a locator names it.
//!
//! ```text
//!  fast+DEVICE: datagrams ─┐
//!  utcp+DEVICE: our TCP ───┼─► Interface: our own IP stack ─► a device
//!  rdma+DEVICE: verbs ─────┘
//! ```
//!
//! A stack has an address of its own, beside those of the kernel. An address of a kernel interface
//! is refused, since the kernel answers for it. A client without an address takes one at random for
//! the link alone (169.254.0.0/16, or the IPv6 address of the hardware); servers answer at the
//! address that a packet came from.
//!
//! The stack also answers `ping`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sprat_proto::device::Mac;
use sprat_proto::net::{Interface, Ipv4Assignment, StackOptions};
use sprat_sys::clock;

use crate::device::bond::Bond;
use crate::device::{self, AnyNic, Steer, memif, pcap, shm};
use crate::locator::{DevicePort, Locator};

/// The MTU of Ethernet frames through rings in memory: large frames cost no wire time, and a long
/// message wants few frames.
const MEMORY_MTU: usize = 9000;

/// A network interface with the address that its locator gives it.
pub(crate) struct Opened {
    pub(crate) interface: Interface<AnyNic>,
    /// The address of the stack, and the port that the locator names, which may be 0.
    pub(crate) own: SocketAddr,
    /// True if packets over the device have a checksum.
    pub(crate) crc: bool,
}

/// The packets to the address of an interface that are for this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ports {
    /// Only packets to the port of the locator: other processes may use the address too.
    One,
    /// Packets to all ports.
    All,
}

/// The end of a device that a stack is at: server or client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

/// The wishes of an interface for its device.
#[derive(Clone, Copy)]
struct Wanted {
    steer: Steer,
    mac: Option<Mac>,
    side: Side,
    ports: Ports,
}

/// Opens the interface of a server at `at`, whose locator names the device port `port`. No other
/// machine may have its address.
///
/// # Errors
/// The host does not resolve, is the kernel's own or no host's, or the device cannot be opened: the
/// error says what is missing.
pub(crate) fn listen(at: &Locator, port: &DevicePort, ports: Ports) -> io::Result<Opened> {
    let own = resolved(port)?;
    open(at, port, own, Side::Server, ports)
}

/// Opens the interface of a client of servers such as `to`: at the address and on the device that
/// one of `local` names for this protocol, otherwise on the device that `to` names. `device_port`
/// finds the device port that a locator names.
///
/// # Errors
/// The errors of [`listen`].
pub(crate) fn towards(
    to: &Locator,
    local: &[Locator],
    ports: Ports,
    device_port: impl Fn(&Locator) -> io::Result<DevicePort>,
) -> io::Result<Opened> {
    let target = device_port(to)?;
    if let Some(own) = local.iter().find(|l| l.protocol() == to.protocol()) {
        let port = device_port(own)?;
        let mut at = resolved(&port)?;
        at.set_port(port.at.port);
        // The server decides whether packets have a checksum.
        let port = DevicePort { crc: target.crc, ..port };
        return open(own, &port, at, Side::Client, ports);
    }
    if target.facts().client_needs_own {
        let why = format!(
            "a client needs a device of its own: SPRAT_LOCAL='{}:dev=…,host=…,port=0'",
            to.protocol()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{to}: {why}")));
    }
    let v4 = resolved(&target)?.is_ipv4();
    let ip = if v4 { link_local()? } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let port = DevicePort { mac: None, prefix: 0, gateway: None, queue: None, ..target };
    open(to, &port, SocketAddr::new(ip, 0), Side::Client, ports)
}

/// Returns the locator by which others reach an interface that listens at `port`.
pub(crate) fn locator(at: &Locator, own: SocketAddr, port: u16) -> String {
    let mut locator = at.clone();
    locator.unset("pcap");
    locator.unset("queue");
    locator.set("host", &own.ip().to_string());
    locator.set("port", &port.to_string());
    locator.to_string()
}

/// Returns the first address of the host that a locator names.
pub(crate) fn resolved(at: &DevicePort) -> io::Result<SocketAddr> {
    let found = at.at.resolve()?;
    found.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn open(
    at: &Locator,
    port: &DevicePort,
    own: SocketAddr,
    side: Side,
    ports: Ports,
) -> io::Result<Opened> {
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
    let steer = Steer {
        addr: (!chosen).then_some(ip),
        port: if ports == Ports::One && !chosen { own.port() } else { 0 },
    };
    let nic = device(port, Wanted { steer, mac, side, ports }).map_err(named)?;
    let mut options = if chosen {
        StackOptions { udp4_checksum: false, ..StackOptions::default() }
    } else {
        options(port, ip)
    };
    options.accept_partial_checksum = facts.partial_checksums;
    let mut interface = Interface::new(options, nic, crate::random::rng()?);
    interface.tick(clock::now());
    Ok(Opened { interface, own, crc: port.crc })
}

/// Opens the device that `at` names: a bond, if it names two.
fn device(at: &DevicePort, wanted: Wanted) -> io::Result<AnyNic> {
    let open = |dev: &str| one(at, dev, wanted);
    let Some(with) = &at.with else { return open(&at.dev) };
    let members = [&at.dev, with].map(|dev| open(dev));
    let bond = AnyNic::other(Bond::new(members.into_iter().collect::<io::Result<_>>()?)?);
    match &at.pcap {
        Some(path) => Ok(AnyNic::other(pcap::Capture::new(bond, path, pcap::LIMIT)?)),
        None => Ok(bond),
    }
}

/// Opens one device, which is the device of a stack or a member of its bond.
fn one(at: &DevicePort, dev: &str, wanted: Wanted) -> io::Result<AnyNic> {
    let Wanted { steer, mac, side, ports } = wanted;
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
        _ => options.steer = steer,
    }
    // A peer on this machine leaves it to a card to cut its segments.
    options.long_frames = ports == Ports::All;
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
