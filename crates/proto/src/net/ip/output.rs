//! IP packets sent without a cached route: routes, fragmentation, address resolution.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use super::fields::{IpFields, TTL};
use super::pmtu::PathMtus;
use crate::Rng;
use crate::device::Mac;
use crate::net::context::Context;
use crate::net::link::Link;
use crate::net::options::{Ipv4Assignment, StackOptions};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ipv4::{self, Ecn, Ipv4};
use crate::wire::ipv6::{self, Fragment, Ipv6};

/// The next hop to a destination, and the source address for packets to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) struct NextHop {
    pub(in crate::net) from: IpAddr,
    /// The neighbour that receives the IP packet: the destination itself or a router.
    pub(in crate::net) neighbour: IpAddr,
}

/// The properties of an IP packet to send: addresses, protocol, and what its program chooses.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Head {
    pub(in crate::net) from: IpAddr,
    pub(in crate::net) to: IpAddr,
    pub(in crate::net) protocol: u8,
    pub(in crate::net) fields: IpFields,
}

impl Head {
    /// Returns the head of a packet whose fields no program chooses.
    pub(in crate::net) fn new(from: IpAddr, to: IpAddr, protocol: u8) -> Self {
        Self { from, to, protocol, fields: IpFields::default() }
    }
}

/// The sending half of the IP layer: path MTUs, and the state of fragmentation.
#[derive(Debug)]
pub(in crate::net) struct IpOutput {
    pub(in crate::net) path_mtus: PathMtus,
    /// A number that changes when cached routes become invalid for other reasons than a neighbour.
    pub(in crate::net) generation: u32,
    /// The IP identification of the last packet that the stack fragmented.
    ident: u32,
}

impl IpOutput {
    pub(in crate::net) fn new(rng: &mut Rng) -> Self {
        Self { path_mtus: PathMtus::default(), generation: 1, ident: rng.u32() }
    }

    /// Sends an IP packet with the payload `upper` by the transmit queue, in fragments if
    /// necessary.
    pub(in crate::net) fn send(
        &mut self,
        cx: &mut Context,
        link: &mut Link,
        head: &Head,
        upper: &[u8],
    ) {
        let to = head.to;
        let Some(hop) = next_hop(&cx.options, link, to) else {
            cx.counters.drop_no_route += 1;
            return;
        };
        let mtu = self.path_mtus.get(cx.now, to, cx.info.mtu);
        let frames = self.frames(cx.info.mac, head, upper, mtu);
        cx.counters.fragmented += u64::from(frames.len() > 1);
        let bytes = frames.iter().map(Vec::len).sum::<usize>();
        let resolved = link.neighbours.lookup(cx.now, hop.neighbour, &mut cx.counters);
        if resolved.is_some() && !link.queue.has_room(frames.len(), bytes) {
            cx.counters.drop_queue += 1;
            return;
        }
        for mut frame in frames {
            match (resolved, frame.first_chunk_mut()) {
                (Some((mac, _)), Some(to)) => {
                    *to = mac.0;
                    link.queue.push(frame, &mut cx.counters);
                }
                _ => link.neighbours.wait(hop.neighbour, frame, &mut cx.counters),
            }
        }
    }

    /// Builds the Ethernet frames of an IP packet, one for each fragment. Their destination MAC
    /// address is not filled in.
    fn frames(&mut self, own: Mac, head: &Head, upper: &[u8], mtu: usize) -> Vec<Vec<u8>> {
        let Head { from, to, protocol, fields } = *head;
        let (dscp, ttl) = (fields.dscp(), fields.ttl());
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = Ipv4 { dscp, ttl, protocol, ..udp4_header(from, to) };
                if ipv4::HEADER + upper.len() <= mtu {
                    let ip = header.emit(upper.len());
                    return [frame(own, ethernet::IPV4, &ip, &[], upper)].into();
                }
                self.ident = self.ident.wrapping_add(1);
                fragments4(own, &Ipv4 { ident: self.ident as u16, ..header }, upper, mtu)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ecn = Ecn::NotEct;
                let header = Ipv6 { dscp, ecn, next: protocol, hops: ttl, from, to };
                if ipv6::HEADER + upper.len() <= mtu {
                    let ip = header.emit(upper.len());
                    return [frame(own, ethernet::IPV6, &ip, &[], upper)].into();
                }
                self.ident = self.ident.wrapping_add(1);
                fragments6(own, &header, self.ident, upper, mtu)
            }
            _ => Vec::new(),
        }
    }
}

/// Concatenates the parts of an Ethernet frame. Its destination MAC address is not filled in.
fn frame(own: Mac, kind: u16, ip: &[u8], extension: &[u8], payload: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet { to: Mac::default(), from: own, kind };
    [&ethernet.emit()[..], ip, extension, payload].concat()
}

/// Cuts an IPv4 packet into fragments (RFC 791 section 3.2).
fn fragments4(own: Mac, whole: &Ipv4, upper: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let room = (mtu.saturating_sub(ipv4::HEADER) & !7).max(8);
    let fragment = |(i, part): (usize, &[u8])| {
        let (offset, more) = ((i * room) as u16, (i + 1) * room < upper.len());
        let header = Ipv4 { dont_fragment: false, offset, more, ..*whole };
        frame(own, ethernet::IPV4, &header.emit(part.len()), &[], part)
    };
    upper.chunks(room).enumerate().map(fragment).collect()
}

/// Cuts an IPv6 packet into fragments (RFC 8200 section 4.5).
fn fragments6(own: Mac, whole: &Ipv6, ident: u32, upper: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let room = (mtu.saturating_sub(ipv6::HEADER + ipv6::FRAGMENT) & !7).max(8);
    let fragment = |(i, part): (usize, &[u8])| {
        let (offset, more) = ((i * room) as u16, (i + 1) * room < upper.len());
        let extension = Fragment { next: whole.next, offset, more, ident }.emit();
        let header = Ipv6 { next: ipv6::FRAGMENTED, ..*whole };
        let ip = header.emit(ipv6::FRAGMENT + part.len());
        frame(own, ethernet::IPV6, &ip, &extension, part)
    };
    upper.chunks(room).enumerate().map(fragment).collect()
}

/// Returns the IPv4 header of an unfragmented UDP datagram.
pub(in crate::net) const fn udp4_header(from: Ipv4Addr, to: Ipv4Addr) -> Ipv4 {
    Ipv4 {
        dscp: 0,
        ecn: Ecn::NotEct,
        dont_fragment: true,
        more: false,
        offset: 0,
        ident: 0,
        ttl: TTL,
        protocol: ipv4::UDP,
        from,
        to,
    }
}

/// Returns the source address and the next hop for packets to `to`. None if the IP stack has no
/// address of that version, no router for it, or `to` is not the address of another host.
pub(in crate::net) fn next_hop(options: &StackOptions, link: &Link, to: IpAddr) -> Option<NextHop> {
    let (from, gateway): (IpAddr, _) = match to {
        IpAddr::V4(addr) => {
            let is_host =
                !addr.is_unspecified() && !is_broadcast4(options, addr) && !addr.is_multicast();
            let own = link.addresses.v4().filter(|own| is_host && *own != addr)?;
            (own.into(), options.gateway4.map(IpAddr::V4))
        }
        IpAddr::V6(addr) => {
            let is_host = !addr.is_unspecified() && !addr.is_multicast();
            let own = link.addresses.v6().filter(|_| is_host && !link.addresses.has(to))?;
            (own.into(), options.gateway6.map(IpAddr::V6))
        }
    };
    let neighbour = if is_on_link(options, from, to) { to } else { gateway? };
    Some(NextHop { from, neighbour })
}

/// Returns true if an address is the broadcast address of all links, or that of this link (RFC 1122
/// 3.2.1.3).
pub(in crate::net) fn is_broadcast4(options: &StackOptions, addr: Ipv4Addr) -> bool {
    let Ipv4Assignment::Static { addr: own, prefix } = options.ipv4 else {
        return addr.is_broadcast();
    };
    // Links of two hosts have no broadcast address (RFC 3021).
    let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    addr.is_broadcast() || hosts > 1 && addr.to_bits() == own.to_bits() | hosts
}

/// Returns true if `own` and `to` are on one link, by the configured prefixes.
fn is_on_link(options: &StackOptions, own: IpAddr, to: IpAddr) -> bool {
    match (own, to) {
        (IpAddr::V4(own), IpAddr::V4(to)) => {
            let Ipv4Assignment::Static { prefix, .. } = options.ipv4 else { return true };
            let common = (own.to_bits() ^ to.to_bits()).leading_zeros();
            common >= u32::from(prefix.min(32))
        }
        (IpAddr::V6(own), IpAddr::V6(to)) => {
            let prefix = options.ipv6.map_or(0, |(_, prefix)| prefix);
            let common = (own.to_bits() ^ to.to_bits()).leading_zeros();
            to.is_unicast_link_local() || common >= u32::from(prefix.min(128))
        }
        _ => false,
    }
}
