//! Locators of ports of our own IP stack: the device, and the stack's address on it.
//!
//! ```text
//! fast+packet:dev=eth0,host=192.0.2.7,port=7000                one interface
//! fast+xdp:dev=eth0,queue=2,host=192.0.2.7,port=7000           one of its queues
//! fast+tap:dev=sprat0,bridge=br0,host=192.0.2.7,port=7000      one that is made
//! fast+memif:socket=/run/s,host=192.0.2.7,port=7000            memory shared with others
//! fast+bond:dev=eth0,with=eth1,of=xdp,host=…                   two used as one
//! ```
//!
//! Not here: devices themselves (`device`), and opening them (`driver::ip`).

use std::net::IpAddr;
use std::path::PathBuf;

use sprat_proto::device::Mac;

use super::protocols::{DeviceFacts, Protocol};
use super::{HostPort, Locator, LocatorError, parse, shm_name};

/// A port of our own IP stack on a packet device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DevicePort {
    /// The driver's name: `packet`, `xdp`, `tap`, `memif`, `shm` or `dpdk`; that of both members,
    /// if it is a bond.
    pub driver: &'static str,
    /// The interface's name, the path of the socket of `memif`, the name of `shm`, or the device in
    /// DPDK's words.
    pub dev: String,
    /// The second device of a bond.
    pub with: Option<String>,
    /// The one of the interface's queues that is used (`xdp`); all of them, if none is named.
    pub queue: Option<u32>,
    /// The kernel's bridge that a tap is attached to.
    pub bridge: Option<String>,
    /// Arguments for DPDK's environment.
    pub eal: Vec<String>,
    /// The host and the port.
    pub at: HostPort,
    /// The host's hardware address; asked for by ARP or neighbour discovery where none is given.
    pub mac: Option<Mac>,
    /// Leading bits of the address that neighbours share; 0: everyone is one.
    pub prefix: u8,
    /// The router to all others.
    pub gateway: Option<IpAddr>,
    /// Packets have a checksum: false only where nothing but memory is between both ends (`memif`,
    /// `shm`), if the server says so.
    pub crc: bool,
    /// The file that all frames are written to.
    pub pcap: Option<PathBuf>,
}

/// More queues than any interface has.
const MAX_QUEUE: u32 = 4095;

/// The port that `locator` means, whose protocol is over a device.
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
    Ok(DevicePort {
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

/// The driver of a bond's members, and the second device.
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
    /// The facts about its kind of device, or that of both members of a bond.
    #[must_use]
    pub fn facts(&self) -> &'static DeviceFacts {
        DeviceFacts::of(self.driver).expect("a driver's name comes from the table")
    }
}

impl Locator {
    /// The name of the wire, for a device that leads to the processes at its name and to no other
    /// host.
    pub(crate) fn wire(&self) -> Option<&str> {
        let facts = Protocol::named(self.protocol())?.device?;
        if facts.driver.is_empty() {
            let member = DeviceFacts::of(self.option("of")?)?;
            return self.option(facts.key).filter(|_| member.private_wire);
        }
        self.option(facts.key).filter(|_| facts.private_wire)
    }

    /// Gives worker `i` a device of its own.
    pub(super) fn set_own_device(&mut self, port: &DevicePort, i: u16) {
        let key = if port.with.is_some() { "dev" } else { port.facts().key };
        self.set(key, &format!("{}.{i}", port.dev));
        if let Some(with) = &port.with {
            self.set("with", &format!("{with}.{i}"));
        }
    }
}
