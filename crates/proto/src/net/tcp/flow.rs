//! The names of connections for their peers, and the table by which a host finds them.

use alloc::boxed::Box;
use core::hash::{BuildHasher as _, Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::device::HEADER;
use crate::rand::KeyedHash;
use crate::wire::{ethernet, ipv4, ipv6};

/// The addresses and ports of both ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpFlow {
    /// The address and port of this end.
    pub local: SocketAddr,
    /// The address and port of the peer.
    pub peer: SocketAddr,
}

impl TcpFlow {
    /// Returns the flow of an Ethernet frame that seems to have a segment. Nothing of the frame is
    /// verified.
    pub(super) fn of_frame(frame: &[u8]) -> Option<Self> {
        let kind = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
        let packet = frame.get(HEADER..)?;
        let (from, to, tcp): (IpAddr, IpAddr, _) = if kind == ethernet::IPV4 {
            let header = packet.first_chunk::<{ ipv4::HEADER }>()?;
            let [.., a, b, c, d, e, f, g, h] = *header;
            let is_tcp = header[9] == ipv4::TCP;
            let tcp = packet.get(usize::from(header[0] & 15) * 4..).filter(|_| is_tcp)?;
            (Ipv4Addr::new(a, b, c, d).into(), Ipv4Addr::new(e, f, g, h).into(), tcp)
        } else {
            let header = packet.first_chunk::<{ ipv6::HEADER }>()?;
            let is_tcp = kind == ethernet::IPV6 && header[6] == ipv4::TCP;
            let address = |at: usize| header[at..].first_chunk::<ADDRESS>().map(|a| (*a).into());
            let tcp = packet.get(ipv6::HEADER..).filter(|_| is_tcp)?;
            (address(8).map(Ipv6Addr::into)?, address(24).map(Ipv6Addr::into)?, tcp)
        };
        let &[a, b, c, d] = tcp.first_chunk()?;
        let [from_port, to_port] = [[a, b], [c, d]].map(u16::from_be_bytes);
        Some(Self { local: (to, to_port).into(), peer: (from, from_port).into() })
    }
}

/// A flow in few bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    /// The addresses of this end and of the peer, each in two words, whose rest is 0.
    addresses: [u64; 4],
    /// The ports of this end and of the peer.
    ports: [u16; 2],
    /// 4 or 6, the version of IP.
    kind: u32,
}

const ADDRESS: usize = 16;

impl Hash for Ends {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.addresses.iter().for_each(|word| state.write_u64(*word));
        state.write_u64(self.rest());
    }
}

impl From<&TcpFlow> for Ends {
    #[inline]
    fn from(flow: &TcpFlow) -> Self {
        let words = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => [u64::from(ip.to_bits()), 0],
            IpAddr::V6(ip) => [(ip.to_bits() >> 64) as u64, ip.to_bits() as u64],
        };
        let ([a, b], [c, d]) = (words(flow.local.ip()), words(flow.peer.ip()));
        Self {
            addresses: [a, b, c, d],
            ports: [flow.local.port(), flow.peer.port()],
            kind: if flow.peer.is_ipv4() { 4 } else { 6 },
        }
    }
}

impl Ends {
    /// Returns the addresses and ports.
    #[inline]
    pub(super) fn flow(&self) -> TcpFlow {
        let end = |at: usize| {
            let [high, low] = [self.addresses[2 * at], self.addresses[2 * at + 1]];
            let ip: IpAddr = match self.kind {
                4 => Ipv4Addr::from_bits(high as u32).into(),
                _ => Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into(),
            };
            SocketAddr::new(ip, self.ports[at])
        };
        TcpFlow { local: end(0), peer: end(1) }
    }

    /// Returns what is no address.
    #[inline]
    fn rest(&self) -> u64 {
        let [local, peer] = self.ports.map(u64::from);
        u64::from(self.kind) << 32 | local << 16 | peer
    }

    /// Returns a number that often differs between flows. Peers can make flows with the same one.
    #[inline]
    fn mark(&self) -> u32 {
        let [_, _, high, low] = self.addresses;
        let mixed = (high ^ low ^ self.rest() << 32 ^ self.rest()).wrapping_mul(MIX);
        (mixed >> 32) as u32
    }
}

/// An odd number with bits at random places.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// The number of connections that [`Recent`] remembers: a power of two.
const RECENT: usize = 256;

/// The connections that were found last, so that the segments that follow need no hash.
#[derive(Debug)]
pub(super) struct Recent(Box<[(u32, u32); RECENT]>);

impl Default for Recent {
    fn default() -> Self {
        Self(Box::new([(0, u32::MAX); RECENT]))
    }
}

impl Recent {
    /// Returns the index of the connection of a flow, if it was one of the last ones. It may be
    /// that of another flow, or of none any more.
    #[inline]
    pub(super) fn get(&self, ends: &Ends) -> Option<u32> {
        let mark = ends.mark();
        let (found, index) = self.0[mark as usize % RECENT];
        (found == mark).then_some(index)
    }

    /// Remembers the connection of a flow.
    #[inline]
    pub(super) fn set(&mut self, ends: &Ends, index: u32) {
        let mark = ends.mark();
        self.0[mark as usize % RECENT] = (mark, index);
    }
}

/// The table of the connections of a host: their indexes by flow, in 8 bytes each.
#[derive(Debug)]
pub(super) struct Flows {
    /// The hash of the flow, and the index.
    table: hashbrown::HashTable<(u32, u32)>,
    key: KeyedHash,
}

impl Flows {
    pub(super) const fn new(key: KeyedHash) -> Self {
        Self { table: hashbrown::HashTable::new(), key }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the index of the connection of a flow. `is_it` tells whether the connection with an
    /// index is it.
    pub(super) fn get(&self, ends: &Ends, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = self.hash(ends);
        let is_it = |&(other, index): &(u32, u32)| other == hash && is_it(index);
        self.table.find(wide(hash), is_it).map(|&(_, index)| index)
    }

    /// Adds a connection whose flow has none.
    pub(super) fn insert(&mut self, ends: &Ends, index: u32) {
        let hash = self.hash(ends);
        self.table.insert_unique(wide(hash), (hash, index), |&(hash, _)| wide(hash));
    }

    pub(super) fn remove(&mut self, ends: &Ends, index: u32) {
        let hash = self.hash(ends);
        if let Ok(found) = self.table.find_entry(wide(hash), |&other| other == (hash, index)) {
            found.remove();
        }
    }

    /// Returns the size of the table in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.table.allocation_size()
    }

    /// Returns the index of a connection whose flow has this hash.
    pub(super) fn first(&self, hash: u32) -> Option<u32> {
        self.table.find(wide(hash), |&(other, _)| other == hash).map(|&(_, index)| index)
    }

    pub(super) fn hash(&self, ends: &Ends) -> u32 {
        self.key.hash_one(ends) as u32
    }
}

/// Returns a hash whose high bits are random, too, as the table needs it.
const fn wide(hash: u32) -> u64 {
    (hash as u64) << u32::BITS | hash as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ip::template::{self, Addresses, Template};

    #[test]
    fn ends_keep_the_flow() {
        for [local, peer] in [["10.0.0.1:1", "10.0.0.2:65535"], ["[fe80::1]:80", "[::1]:9"]] {
            let [local, peer] = [local, peer].map(|end| end.parse().unwrap());
            let flow = TcpFlow { local, peer };
            assert_eq!(Ends::from(&flow).flow(), flow);
        }
    }

    /// A frame tells its flow by both versions of IP. One that is cut off, or has another protocol,
    /// tells none.
    #[test]
    fn frames_have_flows() {
        for [local, peer] in [["10.0.0.1:1", "10.0.0.2:65535"], ["[fe80::1]:80", "[::1]:9"]] {
            let [local, peer] = [local, peer].map(|end| end.parse::<SocketAddr>().unwrap());
            let (own_mac, next_hop_mac) = Default::default();
            let (from, to, protocol) = (peer.ip(), local.ip(), ipv4::TCP);
            let addresses = Addresses { own_mac, next_hop_mac, from, to, protocol };
            let template = Template::new(&addresses);
            let mut frame = [0; template::MAX + 20];
            template.write(&mut frame, 20, 0);
            let ports = [peer.port(), local.port()].map(u16::to_be_bytes);
            let start = template.len();
            frame[start..start + 4].copy_from_slice(&ports.concat());
            assert_eq!(TcpFlow::of_frame(&frame), Some(TcpFlow { local, peer }));
            for len in 0..start + 4 {
                assert_eq!(TcpFlow::of_frame(&frame[..len]), None, "{len}");
            }
            let other = Template::new(&Addresses { protocol: ipv4::UDP, ..addresses });
            other.write(&mut frame, 20, 0);
            assert_eq!(TcpFlow::of_frame(&frame), None);
        }
    }
}
