//! The network of a run whose processes have hosts of their own: a network namespace for the
//! clients and for each process, joined by a bridge.
//!
//! ```text
//!      clients ─┐            ┌─ server 1
//! coordinators ─┼── bridge ──┼─ server 2
//!         etcd ─┘            └─ server n
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

use crate::cluster::{Host, Part};

/// The name of a host's interface.
const DEV: &str = "eth0";
/// The name of the bridge.
const BRIDGE: &str = "bridge0";
/// The MTU of the network, Ethernet's.
const MTU: usize = 1500;
/// The hardware address that no interface has.
const NOWHERE: Mac = Mac([2, 0x53, 0xde, 0xad, 0, 0]);

/// A host of the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    /// The host of all clients.
    Clients,
    /// The host of a process of the cluster.
    Process(Part),
}

/// The network of a host, its hardware address and its address.
#[derive(Debug)]
struct Joined {
    namespace: Arc<Namespace>,
    mac: Mac,
    address: Ipv4Addr,
}

/// The network of a run.
#[derive(Debug)]
pub(super) struct Network {
    hosts: BTreeMap<Place, Joined>,
    /// The cuts, and the number of faults that each belongs to: frames from the first host do not
    /// reach the second one.
    cuts: BTreeMap<(Place, Place), u32>,
    /// Keeps the bridge.
    _hub: Namespace,
}

impl Network {
    /// Makes the network of the clients and of these processes.
    ///
    /// # Errors
    /// CAP_SYS_ADMIN or CAP_NET_ADMIN is missing, or the kernel has no veth or no bridges.
    pub(super) fn new(parts: &[Part]) -> std::io::Result<Self> {
        let hub = Namespace::new()?;
        hub.run(|| link::bridge(BRIDGE, MTU))??;
        let mut hosts = BTreeMap::new();
        let processes = parts.iter().copied().map(Place::Process);
        for (number, place) in (0..).zip(processes.chain([Place::Clients])) {
            let (namespace, port) = (Namespace::new()?, format!("port{number}"));
            let address = address(number);
            link::veth([(&hub, &port), (&namespace, DEV)], MTU, 1)?;
            hub.run(|| link::attach(&port, BRIDGE))??;
            let mac = namespace.run(|| {
                link::switch("lo", true)?;
                link::address(DEV, address.into(), 24)?;
                Ok::<_, std::io::Error>(link::find(DEV)?.mac)
            })??;
            hosts.insert(place, Joined { namespace: Arc::new(namespace), mac, address });
        }
        let network = Self { hosts, cuts: BTreeMap::new(), _hub: hub };
        for from in network.places() {
            for to in network.places().filter(|to| *to != from) {
                network.route(from, to, true)?;
            }
        }
        Ok(network)
    }

    /// Returns all hosts.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.hosts.keys().copied()
    }

    /// Returns the hosts of the processes.
    pub(super) fn hosts(&self) -> Vec<(Part, Host)> {
        let host = |(place, joined): (&Place, &Joined)| match place {
            Place::Clients => None,
            Place::Process(part) => {
                Some((*part, Host::new(Arc::clone(&joined.namespace), joined.address)))
            }
        };
        self.hosts.iter().filter_map(host).collect()
    }

    /// Moves the calling thread to the clients' host until the returned value is dropped.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn enter(&self) -> std::io::Result<Inside> {
        self.hosts[&Place::Clients].namespace.enter()
    }

    /// Cuts the way between pairs of hosts, each in one direction.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn cut(&mut self, pairs: &[(Place, Place)]) -> std::io::Result<()> {
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
    pub(super) fn mend(&mut self, pairs: &[(Place, Place)]) -> std::io::Result<()> {
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
    fn route(&self, from: Place, to: Place, whole: bool) -> std::io::Result<()> {
        let (from, to) = (&self.hosts[&from], &self.hosts[&to]);
        let mac = if whole { to.mac } else { NOWHERE };
        from.namespace.run(|| link::neighbour(DEV, to.address.into(), mac))?
    }
}

/// Returns the address of the host with this number.
fn address(number: u16) -> Ipv4Addr {
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
        let Ok(mut network) = Network::new(&[Part::Server(1), Part::Server(2)]) else {
            assert!(!rustix::process::geteuid().is_root(), "root can make namespaces");
            return;
        };
        let [one, two] = [1, 2].map(|index| Place::Process(Part::Server(index)));
        let open = |place: Place| {
            let host = &network.hosts[&place];
            let bound = host.namespace.run(|| UdpSocket::bind((host.address, 7)));
            let socket = bound.expect("a namespace").expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time");
            socket
        };
        let sockets = [open(one), open(two)];
        let addresses = [one, two].map(|place| network.hosts[&place].address);
        let passes = |from: usize| {
            let to = 1 - from;
            sockets[from].send_to(b"x", (addresses[to], 7)).expect("it is silent");
            sockets[to].recv(&mut [0; 8]).is_ok()
        };
        assert!(passes(0) && passes(1));
        network.cut(&[(one, two)]).expect("root");
        assert!(!passes(0) && passes(1));
        network.cut(&[(two, one)]).expect("root");
        network.mend(&[(one, two)]).expect("root");
        assert!(passes(0) && !passes(1));
        network.cut(&[(two, one)]).expect("root");
        network.mend(&[(two, one)]).expect("root");
        assert!(!passes(1), "another fault cuts it still");
        network.mend(&[(two, one), (one, two)]).expect("root");
        assert!(passes(0) && passes(1));
    }
}
