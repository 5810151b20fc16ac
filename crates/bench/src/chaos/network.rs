//! The network of a run whose processes have hosts of their own: a network namespace for the
//! clients, the coordinator and each server, joined by a bridge.
//!
//! ```text
//! clients ─┐            ┌─ server 1
//!          ├── bridge ──┼─ server 2
//! coordinator ─┘        └─ server n
//! ```
//!
//! Every host has a permanent neighbour entry for every other one. A cut gives a host a hardware
//! address for its peer that no interface has: the bridge passes the frames on, and every host
//! drops them. So nothing tells the sender, and the other direction still works.
//!
//! The namespaces have no names. They end with the processes inside.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use sprat_proto::device::Mac;
use sprat_sys::netns::{Inside, Namespace, link};

use crate::cluster::Host;

/// The name of a host's interface.
const DEV: &str = "eth0";
/// The name of the bridge.
const BRIDGE: &str = "bridge0";
/// The MTU of the network, Ethernet's.
const MTU: usize = 1500;
/// The hardware address that no interface has.
const NOWHERE: Mac = Mac([2, 0x53, 0xde, 0xad, 0, 0]);

/// The number of a host: 0 is the coordinator, then the servers follow, then the clients.
pub(super) type HostNumber = u16;

/// The network of a run.
#[derive(Debug)]
pub(super) struct Network {
    hosts: Vec<(Arc<Namespace>, Mac)>,
    /// The cuts, and the number of faults that each belongs to: frames from the first host do not
    /// reach the second one.
    cuts: BTreeMap<(HostNumber, HostNumber), u32>,
    /// Keeps the bridge.
    _hub: Namespace,
}

impl Network {
    /// Makes the network of a coordinator, `servers` servers and the clients.
    ///
    /// # Errors
    /// CAP_SYS_ADMIN or CAP_NET_ADMIN is missing, or the kernel has no veth or no bridges.
    pub(super) fn new(servers: u16) -> std::io::Result<Self> {
        let hub = Namespace::new()?;
        hub.run(|| link::bridge(BRIDGE, MTU))??;
        let mut hosts = Vec::new();
        for number in 0..servers + 2 {
            let (host, port) = (Namespace::new()?, format!("port{number}"));
            link::veth([(&hub, &port), (&host, DEV)], MTU, 1)?;
            hub.run(|| link::attach(&port, BRIDGE))??;
            let mac = host.run(|| {
                link::switch("lo", true)?;
                link::address(DEV, address(number).into(), 24)?;
                Ok::<_, std::io::Error>(link::find(DEV)?.mac)
            })??;
            hosts.push((Arc::new(host), mac));
        }
        let network = Self { hosts, cuts: BTreeMap::new(), _hub: hub };
        for from in 0..servers + 2 {
            for to in (0..servers + 2).filter(|to| *to != from) {
                network.route(from, to, true)?;
            }
        }
        Ok(network)
    }

    /// Returns the hosts of the coordinator and the servers.
    pub(super) fn hosts(&self) -> Vec<Host> {
        let processes = &self.hosts[..self.hosts.len() - 1];
        let host = |(number, (namespace, _)): (usize, &(Arc<Namespace>, Mac))| {
            Host::new(Arc::clone(namespace), address(number as u16))
        };
        processes.iter().enumerate().map(host).collect()
    }

    /// Moves the calling thread to the clients' host until the returned value is dropped.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn enter(&self) -> std::io::Result<Inside> {
        self.hosts[self.hosts.len() - 1].0.enter()
    }

    /// Cuts the way between pairs of hosts, each in one direction.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn cut(&mut self, pairs: &[(HostNumber, HostNumber)]) -> std::io::Result<()> {
        for &(from, to) in pairs {
            self.route(from, to, false)?;
            *self.cuts.entry((from, to)).or_default() += 1;
        }
        Ok(())
    }

    /// Takes back one call of [`Network::cut`] with these pairs.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn mend(&mut self, pairs: &[(HostNumber, HostNumber)]) -> std::io::Result<()> {
        for pair in pairs {
            let Some(faults) = self.cuts.get_mut(pair) else { continue };
            *faults -= 1;
            if *faults == 0 {
                self.cuts.remove(pair);
                self.route(pair.0, pair.1, true)?;
            }
        }
        Ok(())
    }

    /// Sets the hardware address of host `to` that host `from` uses.
    fn route(&self, from: HostNumber, to: HostNumber, whole: bool) -> std::io::Result<()> {
        let mac = if whole { self.hosts[usize::from(to)].1 } else { NOWHERE };
        self.hosts[usize::from(from)].0.run(|| link::neighbour(DEV, address(to).into(), mac))?
    }
}

/// Returns the address of a host.
fn address(number: HostNumber) -> Ipv4Addr {
    Ipv4Addr::new(10, 83, 1, number as u8 + 1)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    /// A cut drops the datagrams of one direction alone, and the sender gets no error.
    #[test]
    fn a_cut_has_one_direction_and_is_mended() {
        let Ok(mut network) = Network::new(2) else {
            assert!(!rustix::process::geteuid().is_root(), "root can make namespaces");
            return;
        };
        let open = |host: usize| {
            let bound = network.hosts[host].0.run(|| UdpSocket::bind((address(host as u16), 7)));
            let socket = bound.expect("a namespace").expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time");
            socket
        };
        let sockets = [open(1), open(2)];
        let passes = |from: usize| {
            let to = 1 - from;
            sockets[from].send_to(b"x", (address(to as u16 + 1), 7)).expect("it is silent");
            sockets[to].recv(&mut [0; 8]).is_ok()
        };
        assert!(passes(0) && passes(1));
        network.cut(&[(1, 2)]).expect("root");
        assert!(!passes(0) && passes(1));
        network.cut(&[(2, 1)]).expect("root");
        network.mend(&[(1, 2)]).expect("root");
        assert!(passes(0) && !passes(1));
        network.cut(&[(2, 1)]).expect("root");
        network.mend(&[(2, 1)]).expect("root");
        assert!(!passes(1), "another fault cuts it still");
        network.mend(&[(2, 1), (1, 2)]).expect("root");
        assert!(passes(0) && passes(1));
    }
}
