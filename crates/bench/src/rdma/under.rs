//! The network under both devices of a measurement: kernel TCP, or our own TCP over a packet
//! device.
//!
//! Without memory between the two ends, each is in a network namespace of its own, and a veth joins
//! them. A second veth carries the floor.

use std::net::SocketAddr;

use sprat::locator::Locator;
use sprat::verbs::{self, Device};
use sprat_sys::netns::{Inside, Wire};

use super::args::{Model, Under};
use crate::baseline::{Kernel, Open};
use crate::fail::{Fail, Named as _};
use crate::perf::net::{self, Net};

/// The network of one measurement. It ends with this value.
pub(super) struct Network {
    under: Under,
    net: Option<Net>,
    /// The name of the rings or the socket that join both ends, if memory does.
    name: String,
}

impl Network {
    /// Makes the network, and moves the calling thread to the client's namespace if it has one.
    pub(super) fn new(under: Under) -> Result<Self, Fail> {
        let net = under.needs_wire().then(|| Net::new(&[under.datagrams()])).transpose()?;
        let name = match under {
            Under::Memif => {
                let file = format!("sprat-rdma-{}", std::process::id());
                std::env::temp_dir().join(file).display().to_string()
            }
            _ => format!("rdma-{}", std::process::id()),
        };
        Ok(Self { under, net, name })
    }

    /// Moves the calling thread to the server's namespace, as long as the returned value lives.
    pub(super) fn far(&self) -> Result<Option<Inside>, Fail> {
        self.net.as_ref().map(Net::far).transpose()
    }

    /// Returns the place of end `i`, 1 for the server: an address of the kernel, or a locator.
    pub(super) fn place(&self, i: usize) -> String {
        match self.under {
            Under::Tcp => "127.0.0.1:0".to_owned(),
            Under::Veth => SocketAddr::from((Wire::kernel(i), 0)).to_string(),
            Under::Shmnet => {
                format!("rdma+shmnet:name={},host=10.83.9.{},port=0", self.name, i + 1)
            }
            Under::Memif => {
                format!("rdma+memif:socket={},host=10.83.9.{},port=0", self.name, i + 1)
            }
            _ => net::at(&self.under.datagrams(), i, 0).replacen("fast+", "rdma+", 1),
        }
    }

    /// Returns the kernel's network for the floor.
    pub(super) fn kernel(&self) -> Kernel<'_> {
        self.net.as_ref().map_or_else(Kernel::loopback, |net| Kernel::over(net.floor()))
    }

    /// Returns functions that open both ends of the raw device, or none over kernel TCP alone.
    pub(super) fn ends(&self) -> Option<[Open<'static>; 2]> {
        match self.under {
            Under::Tcp => None,
            Under::Shmnet => Some(net::shm_ends()),
            Under::Memif => Some(net::memif_ends(&std::env::temp_dir())),
            Under::Veth => None,
            _ => Some(net::ends(&self.under.datagrams(), self.net.as_ref()?.floor())),
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if matches!(self.under, Under::Shmnet | Under::Memif) {
            net::remove_name(&self.place(1).replacen("rdma+", "utcp+", 1));
        }
    }
}

/// Opens the RDMA device of an end at its place. Returns it with the address to listen at.
pub(super) fn open(model: &Model, at: &str, listens: bool) -> Result<(Device, SocketAddr), Fail> {
    if let Ok(addr) = at.parse::<SocketAddr>() {
        let options = verbs::Options { insecure_network: true, ..model.options() };
        return Ok((Device::open(options).named("cannot open a device")?, addr));
    }
    let locator: Locator = at.parse().named("the place of the device")?;
    let device = verbs::open(&locator, listens, model.options()).named("cannot open a device")?;
    let host = locator.option("host").and_then(|host| host.parse().ok());
    let host = host.ok_or_else(|| Fail::new(format!("{locator} names no address")))?;
    Ok((device, SocketAddr::new(host, 0)))
}
