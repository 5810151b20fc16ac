//! The network of a local run over packet devices: this process at one end of a wire, what it measures at the other, and for
//! each floor a wire of its own, so that neither slows the other. All are gone with the processes.

use std::sync::Arc;

use sprat::floor::Open;
use sprat::netns::{DEV, Inside, Wire};
use sprat::nic::{self, AnyNic, memif};
use sprat_proto::device::Mac;

use crate::fail::{Fail, Named as _};

/// The payload of frames on our wires.
const MTU: usize = 1500;
/// The same on a memif, as the product has it.
const MEMIF_MTU: usize = 9000;
/// The second wire's name: a program on an interface slows whatever else goes through it.
const XDP_DEV: &str = "wire1";

/// The network of one run.
pub(crate) struct Net {
    wire: Wire,
    floor: Arc<Wire>,
    /// This process is at its end as long as that is there.
    _inside: Inside,
}

/// Whether `transport` needs one.
pub(crate) fn wanted(transport: &str) -> bool {
    matches!(transport, "fast+packet" | "fast+xdp")
}

/// Whether `transport` goes over a packet device.
pub(crate) fn is_device(transport: &str) -> bool {
    wanted(transport) || transport == "fast+memif"
}

impl Net {
    /// A new one; from here on the calling thread is at its end 0.
    pub(crate) fn new() -> Result<Self, Fail> {
        let made = || {
            let (wire, floor) = (Wire::new(MTU)?, Arc::new(Wire::new(MTU)?));
            wire.add(XDP_DEV, MTU)?;
            let inside = wire.end(0).enter()?;
            Ok(Self { wire, floor, _inside: inside })
        };
        made().map_err(|error: std::io::Error| {
            Fail::new(format!("cannot make a network for packet devices: {error}"))
                .next("without root measure fast+shm, fast+memif, fast+udp and tcp")
        })
    }

    /// The calling thread at the far end, where the servers are.
    pub(crate) fn far(&self) -> Result<Inside, Fail> {
        self.wire.end(1).enter().named("cannot enter a network namespace")
    }

    /// The wire of the floors.
    pub(crate) fn floor(&self) -> &Arc<Wire> {
        &self.floor
    }
}

/// Where a server over `transport` listens.
pub(crate) fn locator(transport: &str, port: u16) -> String {
    let (dev, n) = if transport == "fast+xdp" { (XDP_DEV, 1) } else { (DEV, 0) };
    format!("{transport}:dev={dev},host={},port={port}", Wire::ours(1, n))
}

/// What opens the two devices of a floor on `wire`.
pub(crate) fn ends(driver: &'static str, wire: &Arc<Wire>) -> [Open<'static>; 2] {
    [0, 1].map(|i| -> Open<'static> {
        let wire = Arc::clone(wire);
        Box::new(move || {
            let _inside = wire.end(i).enter()?;
            // With an address of its own, as the product has it, the kernel's stack lets frames alone.
            let mac = (driver == "packet").then_some(Mac([2, 0x53, 0, 0, 0, i as u8]));
            Ok(nic::open(driver, &nic::Options { dev: DEV.into(), mac, ..nic::Options::default() })?)
        })
    })
}

/// The same over shared memory.
pub(crate) fn memif_ends(folder: &std::path::Path) -> [Open<'static>; 2] {
    [memif::Role::Server, memif::Role::Client].map(|role| -> Open<'static> {
        let memif = memif::Options { mtu: MEMIF_MTU, ..memif::Options::new(role, folder.join("floor")) };
        Box::new(move || -> std::io::Result<AnyNic> {
            Ok(nic::open("memif", &nic::Options { memif: Some(memif), ..nic::Options::default() })?)
        })
    })
}
