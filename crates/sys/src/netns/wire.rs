//! Two hosts and the cable between them, for tests and local measurements: network namespaces
//! joined by a veth pair, each with an IP address of the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use super::{Namespace, link};

/// The name of the cable's interface at both ends.
pub const DEV: &str = "wire0";

/// Two network namespaces joined by a veth pair. They are gone when the value is dropped, unless a
/// thread, process or socket inside lives on.
#[derive(Debug)]
pub struct Wire {
    ends: [Namespace; 2],
}

impl Wire {
    /// Makes two namespaces and the veth pair between them. The kernel's addresses at the ends are
    /// 10.83.0.1 and 10.83.0.2, in a network with a prefix of 24 bits.
    ///
    /// # Errors
    /// CAP_SYS_ADMIN or CAP_NET_ADMIN is missing, or the kernel has no veth.
    pub fn new(mtu: usize) -> io::Result<Self> {
        Self::with_queues(mtu, 1)
    }

    /// Makes a wire with `queues` queues at each end.
    ///
    /// # Errors
    /// The errors of [`Wire::new`].
    pub fn with_queues(mtu: usize, queues: u32) -> io::Result<Self> {
        let ends = [Namespace::new()?, Namespace::new()?];
        link::veth([(&ends[0], DEV), (&ends[1], DEV)], mtu, queues)?;
        for (i, end) in ends.iter().enumerate() {
            end.run(|| {
                link::switch("lo", true)?;
                link::address(DEV, Self::kernel(i).into(), 24)
            })??;
        }
        Ok(Self { ends })
    }

    /// Adds another cable between the namespaces, called `dev` at both ends, without an IP address
    /// of the kernel.
    ///
    /// # Errors
    /// The name is taken, or as [`Wire::new`].
    pub fn add(&self, dev: &str, mtu: usize) -> io::Result<()> {
        let [a, b] = &self.ends;
        link::veth([(a, dev), (b, dev)], mtu, 1)
    }

    /// Returns the network namespace at end 0 or 1.
    ///
    /// # Panics
    /// If there is no such end.
    #[must_use]
    pub fn end(&self, i: usize) -> &Namespace {
        &self.ends[i]
    }

    /// Returns the kernel's IP address at end `i` of the wire.
    #[must_use]
    pub const fn kernel(i: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 83, 0, 1 + i as u8)
    }

    /// Returns an IP address for a stack of our own at end `i` of the wire, which the kernel does
    /// not know. Each `n` has another address.
    #[must_use]
    pub const fn ours(i: usize, n: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 83, 0, 100 + 100 * i as u8 + n))
    }
}
