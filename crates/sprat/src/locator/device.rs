//! Locators of ports of our own IP stack: the device, and the stack's address on it.
//!
//! ```text
//! fast+packet:dev=eth0,host=192.0.2.7,port=7000                one interface
//! fast+xdp:dev=eth0,queue=2,host=192.0.2.7,port=7000           one of its queues
//! fast+tap:dev=sprat0,bridge=br0,host=192.0.2.7,port=7000      one that is made
//! fast+memif:socket=/run/s,host=192.0.2.7,port=7000            memory shared with others
//! fast+bond:dev=eth0,with=eth1,of=xdp,host=…                   two used as one
//! utcp+packet:…   rdma+packet:…                                our own TCP, and iWARP on it
//! ```
//!
//! Not here: devices themselves (`device`), and opening them (`driver::ip`).

use std::net::IpAddr;
use std::path::PathBuf;

use sprat_proto::device::Mac;

use super::protocols::{DeviceFacts, Protocol};
use super::{HostPort, Locator, LocatorError, parse, shm_name};

/// The transport over our own IP stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Over {
    /// `fast+DEVICE`: the RPC endpoint over datagrams.
    Datagrams,
    /// `utcp+DEVICE`: our own TCP.
    Tcp,
    /// `rdma+DEVICE`: queue pairs of software iWARP over our own TCP.
    Rdma,
}

/// A port of our own IP stack on a packet device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DevicePort {
    /// The transport over the stack.
    pub over: Over,
    /// The name of the device's driver: `packet`, `xdp`, `tap`, `memif`, `shm` or `dpdk`. For a
    /// bond, that of both members.
    pub driver: &'static str,
    /// The name of the device: its interface's name, the path of the socket of `memif`, the name of
    /// `shm`, or DPDK's name.
    pub dev: String,
    /// The name of a bond's second device.
    pub with: Option<String>,
    /// The interface's queue that is used (`xdp`); all queues if `None`.
    pub queue: Option<u32>,
    /// The kernel's bridge that a tap is attached to.
    pub bridge: Option<String>,
    /// Further arguments for DPDK's environment.
    pub eal: Vec<String>,
    /// The host and the port of the IP stack.
    pub at: HostPort,
    /// The host's hardware address. `None`: ARP or neighbour discovery finds it.
    pub mac: Option<Mac>,
    /// Number of leading bits of the address that neighbours have in common; 0 makes every host a
    /// neighbour.
    pub prefix: u8,
    /// The address of the router to hosts that are no neighbours.
    pub gateway: Option<IpAddr>,
    /// True if packets, or the FPDUs of iWARP, have a CRC32C. Packets have none only where nothing
    /// but memory lies between both ends (`memif`, `shm`), and if the server says so.
    pub crc: bool,
    /// The capture file that all frames are written to.
    pub pcap: Option<PathBuf>,
}

/// The greatest number of a queue that a locator may name: more than any interface has.
const MAX_QUEUE: u32 = 4095;

/// Parses a locator whose protocol is over a packet device.
pub(super) fn port(
    locator: &Locator,
    protocol: &'static Protocol,
    facts: &'static DeviceFacts,
) -> Result<DevicePort, LocatorError> {
    let bad = |key, expected| {
        let value = locator.option(key).unwrap_or_default().into();
        LocatorError::BadValue { key, value, expected }
    };
    let at = locator.host_port(protocol)?;
    let dev = locator.need(protocol.name, facts.key)?;
    if dev.is_empty() {
        return Err(bad(facts.key, "a name"));
    }
    let (driver, with) = match facts.driver {
        "" => bonded(locator, protocol.name)?,
        "shm" => (shm_name(dev).map(|_| "shm")?, None),
        one => (one, None),
    };
    let mac = locator.option("mac").map(|text| {
        let mac = parse::mac(text).filter(|mac| mac.is_unicast());
        mac.ok_or_else(|| {
            bad("mac", "the address of one station: six numbers as in 02:00:00:00:00:0a")
        })
    });
    let prefix = locator.option("prefix").map(|text| {
        let prefix = text.parse().ok().filter(|prefix| *prefix <= 128);
        prefix.ok_or_else(|| {
            bad("prefix", "the number of bits that neighbours share, up to 32 or 128")
        })
    });
    let gateway = locator
        .option("gateway")
        .map(|text| text.parse().map_err(|_| bad("gateway", "an IPv4 or IPv6 address")));
    let queue = locator.option("queue").map(|text| {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let queue = text.parse().ok().filter(|queue: &u32| digits && *queue <= MAX_QUEUE);
        queue.ok_or_else(|| {
            bad("queue", "the number of one of the interface's queues, counted from 0")
        })
    });
    let eal = locator.option("eal").unwrap_or_default();
    let over = match locator.transport() {
        "utcp" => Over::Tcp,
        "rdma" => Over::Rdma,
        _ => Over::Datagrams,
    };
    Ok(DevicePort {
        over,
        driver,
        dev: dev.into(),
        with,
        queue: queue.transpose()?,
        bridge: locator.option("bridge").map(str::to_owned),
        eal: eal.split_whitespace().map(str::to_owned).collect(),
        at,
        mac: mac.transpose()?,
        prefix: prefix.transpose()?.unwrap_or(0),
        gateway: gateway.transpose()?,
        crc: locator.switch("crc", true)?,
        pcap: locator.option("pcap").map(PathBuf::from),
    })
}

/// Returns the driver of a bond's members, and the name of the second device.
fn bonded(
    locator: &Locator,
    protocol: &'static str,
) -> Result<(&'static str, Option<String>), LocatorError> {
    let with = locator.need(protocol, "with")?;
    if with.is_empty() || Some(with) == locator.option("dev") {
        let expected = "the second device, another one than dev";
        return Err(LocatorError::BadValue { key: "with", value: with.into(), expected });
    }
    let of = locator.option("of").unwrap_or("packet");
    let known = DeviceFacts::of(of).filter(|member| member.bonds).map(|member| member.driver);
    let of = known.ok_or_else(|| {
        let expected = "what both devices are: packet (the default), xdp, memif or dpdk";
        LocatorError::BadValue { key: "of", value: of.into(), expected }
    })?;
    Ok((of, Some(with.to_owned())))
}

impl DevicePort {
    /// Returns the facts about the port's kind of device; for a bond, those of its members.
    #[must_use]
    pub fn facts(&self) -> &'static DeviceFacts {
        DeviceFacts::of(self.driver).expect("a driver's name comes from the table")
    }
}

impl Locator {
    /// Returns the name of the device's wire, if the device leads only to the processes that use
    /// this name and to no other host.
    pub(crate) fn wire(&self) -> Option<&str> {
        let facts = Protocol::named(self.protocol())?.device?;
        if facts.driver.is_empty() {
            let member = DeviceFacts::of(self.option("of")?)?;
            return self.option(facts.key).filter(|_| member.private_wire);
        }
        self.option(facts.key).filter(|_| facts.private_wire)
    }

    /// Changes the locator so that worker `i` gets a device of its own.
    pub(super) fn set_own_device(&mut self, port: &DevicePort, i: u16) {
        let key = if port.with.is_some() { "dev" } else { port.facts().key };
        self.set(key, &format!("{}.{i}", port.dev));
        if let Some(with) = &port.with {
            self.set("with", &format!("{with}.{i}"));
        }
    }
}
