//! The network of a run over packet devices: this process at one end of a wire, the servers at the
//! other, and a second wire for the baselines, so that neither slows the other. The namespaces end
//! with the processes.
//!
//! Each transport has a cable of its own, since a program on an interface slows all other traffic
//! there. The kernel's bridge connects a tap with its cable.

use std::sync::Arc;

use crate::baseline::Open;
use sprat::internals::device::{self, AnyNic, memif, shm};
use sprat::locator::{DeviceFacts, Locator, Protocol};
use sprat::tcp::Options;
use sprat::tcp::native::Interface;
use sprat_proto::device::Mac;
use sprat_sys::netns::{DEV, Inside, Wire, link};

use crate::fail::{Fail, Named as _};

/// The name of the transport over a bond of devices.
pub(crate) const BOND: &str = "fast+bond";
/// Largest payload of an Ethernet frame on the wires, in bytes.
const MTU: usize = 1500;
/// Largest payload of a frame in shared memory, in bytes: Sprat's own default.
const MEMORY_MTU: usize = 9000;
/// The transport that uses the cable that each wire has.
const FIRST: &str = "fast+packet";
/// Cables of each transport besides the first one's.
const CABLES: [(&str, &[&str]); 14] = [
    ("fast+xdp", &["wire1"]),
    ("fast+tap", &["wire2"]),
    ("fast+bond", &["wire3", "wire4"]),
    ("fast+dpdk", &["wire5"]),
    ("utcp+packet", &["wire6"]),
    ("utcp+xdp", &["wire7"]),
    ("utcp+tap", &["wire8"]),
    ("utcp+bond", &["wire9", "wire10"]),
    ("utcp+dpdk", &["wire11"]),
    ("rdma+packet", &["wire12"]),
    ("rdma+xdp", &["wire13"]),
    ("rdma+tap", &["wire14"]),
    ("rdma+bond", &["wire15", "wire16"]),
    ("rdma+dpdk", &["wire17"]),
];

/// The network of one benchmark run: its wires, and this process's place in it.
pub(crate) struct Net {
    wire: Wire,
    floor: Arc<Wire>,
    /// Keeps the thread that made the network in its end's namespace while this value lives.
    _inside: Inside,
}

/// Returns the properties of the packet device below `transport`. `None` if the transport has no
/// device.
fn facts(transport: &str) -> Option<DeviceFacts> {
    Protocol::named(transport)?.device
}

/// True if the run needs network namespaces for `transport`.
pub(crate) fn wanted(transport: &str) -> bool {
    facts(transport).is_some_and(|device| !device.memory)
}

/// True if `transport` uses a packet device.
pub(crate) fn is_device(transport: &str) -> bool {
    facts(transport).is_some()
}

/// Returns the part of a transport's name that says what is below it: `xdp` of `fast+xdp`.
pub(crate) fn below(transport: &str) -> &str {
    transport.split_once('+').map_or("", |(_, below)| below)
}

/// Returns the name of the tap at the cable of `transport`, and that of the bridge that connects
/// the two.
fn tap(transport: &str) -> (String, String) {
    let cable = cables(transport)[0];
    (format!("{cable}tap"), format!("{cable}bridge"))
}

/// Returns the names of the cables that `transport` uses.
pub(crate) fn cables(transport: &str) -> &'static [&'static str] {
    CABLES.iter().find(|(name, _)| *name == transport).map_or(&[DEV], |(_, cables)| cables)
}

/// Makes two network namespaces with the cables of `transports` between them.
fn wire(transports: &[String]) -> std::io::Result<Wire> {
    let wire = Wire::new(MTU)?;
    for transport in transports.iter().filter(|t| wanted(t) && *t != FIRST) {
        for cable in cables(transport) {
            wire.add(cable, MTU)?;
            if below(transport) == "tap" {
                let bridge = tap(transport).1;
                for i in 0..2 {
                    wire.end(i).run(|| {
                        link::bridge(&bridge, MTU).and_then(|()| link::attach(cable, &bridge))
                    })??;
                }
            }
        }
    }
    Ok(wire)
}

impl Net {
    /// Makes the network of `transports`, and moves the calling thread to its end 0, the client's.
    pub(crate) fn new(transports: &[String]) -> Result<Self, Fail> {
        let made = || {
            let (wire, floor) = (wire(transports)?, Arc::new(wire(transports)?));
            let inside = wire.end(0).enter()?;
            Ok(Self { wire, floor, _inside: inside })
        };
        made().map_err(|error: std::io::Error| {
            Fail::new(format!("cannot make a network for packet devices: {error}"))
                .next("without root measure fast+shm, fast+shmnet, fast+memif, fast+udp and tcp")
        })
    }

    /// Moves the calling thread to the servers' network namespace as long as the returned value
    /// lives.
    pub(crate) fn far(&self) -> Result<Inside, Fail> {
        self.wire.end(1).enter().named("cannot enter a network namespace")
    }

    /// Returns the wire that the baselines use.
    pub(crate) fn floor(&self) -> &Arc<Wire> {
        &self.floor
    }
}

/// Returns the locator of end `i` over `transport`.
pub(crate) fn at(transport: &str, i: usize, port: u16) -> String {
    let device = match (below(transport), cables(transport)) {
        ("tap", _) => {
            let (dev, bridge) = tap(transport);
            format!("dev={dev},bridge={bridge}")
        }
        ("dpdk", [cable, ..]) => format!("dev=\"net_af_packet{i},iface={cable}\""),
        (_, [dev, with, ..]) => format!("dev={dev},with={with}"),
        (_, [dev]) => format!("dev={dev}"),
        (_, []) => String::new(),
    };
    // Each transport has a subnet of its own.
    let n = CABLES.iter().position(|(name, _)| *name == transport).map_or(0, |n| n as u8 + 1);
    format!("{transport}:{device},host={},port={port}", Wire::ours(i, n))
}

/// Returns the locator of a server over `transport`.
pub(crate) fn locator(transport: &str, port: u16) -> String {
    at(transport, 1, port)
}

/// Returns the locator of the client's own packet device for `transport`. `None` if the server's
/// locator determines the device.
pub(crate) fn own(transport: &str) -> Option<Locator> {
    facts(transport)
        .filter(|device| device.client_needs_own)
        .and_then(|_| at(transport, 0, 0).parse().ok())
}

/// Returns two functions that open the packet devices of a baseline on `wire`: those under
/// `transport`.
pub(crate) fn ends(transport: &str, wire: &Arc<Wire>) -> [Open<'static>; 2] {
    let cable = cables(transport)[0];
    // One device carries as much as a bond for frames that are sent one by one. DPDK's memory would
    // be shared with a forked copy of this process, so its baseline is AF_PACKET, which is under it
    // here.
    let driver = match below(transport) {
        "xdp" => "xdp",
        "tap" => "tap",
        _ => "packet",
    };
    let (dev, bridge) = tap(transport);
    [0, 1].map(|i| -> Open<'static> {
        let (wire, dev, bridge) = (Arc::clone(wire), dev.clone(), bridge.clone());
        Box::new(move || {
            let _inside = wire.end(i).enter()?;
            let mut options =
                device::Options { dev: cable.to_owned(), ..device::Options::default() };
            // With an address of its own, as in the product, the kernel's stack ignores the frames.
            options.mac = (driver != "xdp").then_some(Mac([2, 0x53, 0, 0, 0, i as u8]));
            if driver == "tap" {
                (options.dev, options.bridge) = (dev, Some(bridge));
            }
            Ok(device::open(driver, &options)?)
        })
    })
}

/// Returns two functions that open the two ends of a memif.
pub(crate) fn memif_ends(folder: &std::path::Path) -> [Open<'static>; 2] {
    [memif::Role::Server, memif::Role::Client].map(|role| -> Open<'static> {
        let memif = memif::Options::jumbo(role, folder.join("floor"));
        Box::new(move || -> std::io::Result<AnyNic> {
            Ok(device::open(
                "memif",
                &device::Options { memif: Some(memif), ..device::Options::default() },
            )?)
        })
    })
}

/// Returns two functions that open the two ends of a packet device in shared memory.
pub(crate) fn shm_ends() -> [Open<'static>; 2] {
    [true, false].map(|listens| -> Open<'static> {
        let name = format!("perf-{}-floor", std::process::id());
        let shm = shm::Options { name, listens, mac: None, mtu: MEMORY_MTU };
        Box::new(move || -> std::io::Result<AnyNic> {
            Ok(device::open(
                "shm",
                &device::Options { shm: Some(shm), ..device::Options::default() },
            )?)
        })
    })
}

/// Removes the name or the socket of a server on a device in memory, which its killed process has
/// left: the next server of a name takes it, and removes it when it ends. `at` is any locator of
/// our own TCP on that device.
pub(crate) fn remove_name(at: &str) {
    drop(Interface::open(at, &Options::default()));
}
