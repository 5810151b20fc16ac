//! What arrives at a stack: frames taken apart, and what comes of each.
//!
//! Always: nothing changes before lengths, addresses and checksum of a frame agree; a datagram is handed up borrowed, where it
//! lies in the device's burst.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::ops::Range;

use super::Event;
use super::reassembly::{Key, Part};
use super::short::Short;
use super::stack::{Item, Joined, Place, Stack};
use crate::Instant;
use crate::device::{Mac, RxOffload};
use crate::wire::arp::{Arp, Op};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, Ethernet, HEADER};
use crate::wire::icmp::{self, Icmp};
use crate::wire::icmpv6::{self, Icmpv6};
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::ipv6::{self, Ipv6, Upper};
use crate::wire::udp::{self, Udp};

/// An upper-layer packet and where it lies.
#[derive(Clone, Copy)]
struct Found<'a> {
    from: IpAddr,
    to: IpAddr,
    bytes: &'a [u8],
    place: Place,
    /// Where in the frame, or in the whole, it begins.
    start: usize,
    arrival: RxOffload,
}

impl Stack {
    /// Deals with a frame of the burst; false if it was a datagram and nothing else can have come of it.
    #[inline]
    pub(super) fn frame(
        &mut self,
        now: Instant,
        i: usize,
        frame: &[u8],
        arrival: RxOffload,
    ) -> bool {
        if let Some(short) = &self.short
            && let Some((from, payload)) = short.datagram(frame, arrival)
        {
            let (from, port) = (SocketAddr::V4(from), short.port);
            let Range { start, end } = payload;
            self.items.push(Item { from, port, place: Place::Frame(i), start, end });
            return false;
        }
        self.any_frame(now, i, frame, arrival);
        true
    }

    #[inline(never)]
    fn any_frame(&mut self, now: Instant, i: usize, frame: &[u8], arrival: RxOffload) {
        let Some((ethernet, packet)) = Ethernet::parse(frame) else {
            self.stats.drop_length += 1;
            return;
        };
        if ethernet.to != self.info.mac && !ethernet.to.is_multicast()
            || ethernet.from == self.info.mac
        {
            self.stats.drop_address += 1;
            return;
        }
        match ethernet.kind {
            ethernet::IPV4 => self.ipv4(now, i, &ethernet, packet, arrival),
            ethernet::IPV6 => self.ipv6(now, i, &ethernet, packet, arrival),
            ethernet::ARP => self.arp(now, &ethernet, packet),
            ethernet::RARP => self.rarp(packet),
            _ => self.stats.drop_type += 1,
        }
    }

    // IPv4.

    #[inline]
    fn ipv4(
        &mut self,
        now: Instant,
        i: usize,
        ethernet: &Ethernet,
        packet: &[u8],
        arrival: RxOffload,
    ) {
        let (header, bytes) = match Ipv4::parse(packet) {
            Ok(parsed) => parsed,
            Err(ipv4::Bad::Length) => return self.stats.drop_length += 1,
            Err(ipv4::Bad::Version) => return self.stats.drop_version += 1,
            Err(ipv4::Bad::Checksum) => return self.stats.drop_checksum += 1,
        };
        let (from, to) = (IpAddr::V4(header.from), IpAddr::V4(header.to));
        // RFC 1122 section 3.3.6: what is for one host came to one station.
        if !self.claims.has(to) || ethernet.to.is_multicast() {
            return self.stats.drop_address += 1;
        }
        let first = header.from.octets()[0];
        if matches!(first, 0 | 127 | 224..) || from == to {
            return self.stats.drop_source += 1;
        }
        let start = HEADER + usize::from(packet[0] & 15) * 4;
        let found = Found { from, to, bytes, place: Place::Frame(i), start, arrival };
        if !header.is_fragment() {
            return self.upper(now, header.protocol, header.pseudo(bytes.len()), found);
        }
        let key = Key { from, to, protocol: header.protocol, ident: u32::from(header.ident) };
        let part = Part { offset: usize::from(header.offset), more: header.more, bytes };
        let whole = self.reassembly.input(now, key, part, &mut self.stats);
        if let Some(whole) = whole {
            self.whole(now, header.protocol, header.pseudo(whole.len()), found, whole);
        }
    }

    fn arp(&mut self, now: Instant, ethernet: &Ethernet, packet: &[u8]) {
        let sound = |arp: &Arp| arp.sender_mac.is_unicast() && arp.sender_mac == ethernet.from;
        let Some(arp) = Arp::parse(packet).filter(sound) else {
            self.stats.drop_neighbour += 1;
            return;
        };
        let (sender, target) = (IpAddr::V4(arp.sender), IpAddr::V4(arp.target));
        // RFC 5227 section 2.1.1: somebody has our address, or wants it too.
        let probes_ours =
            arp.op == Op::Request && arp.sender.is_unspecified() && self.claims.wants(target);
        let contested =
            if self.claims.wants(sender) { Some(sender) } else { probes_ours.then_some(target) };
        if let Some(addr) = contested.filter(|addr| *addr == sender || !self.claims.has(*addr)) {
            return self.conflict(now, addr, arp.sender_mac);
        }
        let usable = |addr: IpAddr| matches!(addr, IpAddr::V4(a) if !matches!(a.octets()[0], 0 | 127 | 224..));
        match arp.op {
            Op::Request if self.claims.has(target) => {
                if usable(sender) {
                    self.neighbours.asked_us(now, sender, arp.sender_mac, &mut self.stats);
                }
                if self.config.answer {
                    let (own, target_mac) = (self.info.mac, arp.sender_mac);
                    let (sender, target) = (arp.target, arp.sender);
                    let answer = Arp { op: Op::Reply, sender_mac: own, sender, target_mac, target };
                    self.post_arp(arp.sender_mac, &answer);
                }
            }
            Op::Reply if self.claims.has(target) && usable(sender) => {
                self.neighbours.answered(now, sender, Some(arp.sender_mac), &mut self.stats);
            }
            // What he tells all others may be news about a neighbour of ours.
            Op::Request | Op::Reply => {
                self.neighbours.disputed(now, sender, Some(arp.sender_mac), &mut self.stats);
            }
            Op::ReverseRequest | Op::ReverseReply => self.stats.drop_neighbour += 1,
        }
    }

    fn rarp(&mut self, packet: &[u8]) {
        let own = self.info.mac;
        let for_us = |arp: &Arp| arp.op == Op::ReverseReply && arp.target_mac == own;
        let learnt = Arp::parse(packet).filter(for_us).map(|arp| self.claims.learnt(arp.target));
        match learnt {
            Some(event) => event.into_iter().for_each(|event| self.happened(event)),
            None => self.stats.drop_neighbour += 1,
        }
    }

    fn conflict(&mut self, now: Instant, addr: IpAddr, mac: Mac) {
        self.stats.conflicts += 1;
        if let Some(event) = self.claims.disputed(now, addr, mac) {
            self.happened(event);
        }
    }

    // IPv6.

    #[inline]
    fn ipv6(
        &mut self,
        now: Instant,
        i: usize,
        ethernet: &Ethernet,
        packet: &[u8],
        arrival: RxOffload,
    ) {
        let (header, rest) = match Ipv6::parse(packet) {
            Ok(parsed) => parsed,
            Err(ipv6::Bad::Length) => return self.stats.drop_length += 1,
            Err(ipv6::Bad::Version) => return self.stats.drop_version += 1,
        };
        let (from, to) = (IpAddr::V6(header.from), IpAddr::V6(header.to));
        let ours = self.claims.has(to) && !ethernet.to.is_multicast();
        if !ours && !self.is_discovery(&header) {
            return self.stats.drop_address += 1;
        }
        if header.from.is_multicast() || header.from.is_loopback() || self.claims.has(from) {
            return self.stats.drop_source += 1;
        }
        let (protocol, bytes) = match ipv6::upper(header.next, rest) {
            Upper::Whole(protocol, bytes) => (protocol, bytes),
            Upper::Part(fragment, bytes) => {
                let key = Key { from, to, protocol: 0, ident: fragment.ident };
                let part =
                    Part { offset: usize::from(fragment.offset), more: fragment.more, bytes };
                let found = Found { from, to, bytes, place: Place::Frame(i), start: 0, arrival };
                if let Some(whole) = self.reassembly.input(now, key, part, &mut self.stats) {
                    let sum = header.pseudo(fragment.next, whole.len());
                    self.whole(now, fragment.next, sum, found, whole);
                }
                return;
            }
            Upper::Bad => return self.stats.drop_header += 1,
        };
        if protocol == ipv6::ICMPV6 {
            return self.icmpv6(now, ethernet, &header, bytes);
        }
        let start = HEADER + ipv6::HEADER + rest.len() - bytes.len();
        let found = Found { from, to, bytes, place: Place::Frame(i), start, arrival };
        self.upper(now, protocol, header.pseudo(protocol, bytes.len()), found);
    }

    /// True for what is sent to a group that we are in, and may concern discovery.
    #[cold]
    fn is_discovery(&self, header: &Ipv6) -> bool {
        let to = header.to;
        let tentative = !to.is_multicast() && self.claims.wants(to.into());
        let solicited = to.is_multicast() && self.claims.wants_group(to);
        header.next == ipv6::ICMPV6 && (to == ipv6::ALL_NODES || solicited || tentative)
    }

    fn icmpv6(&mut self, now: Instant, ethernet: &Ethernet, header: &Ipv6, bytes: &[u8]) {
        let (message, data) = match Icmpv6::parse(header, bytes) {
            Ok(parsed) => parsed,
            Err(icmpv6::Bad::Length) => return self.stats.drop_length += 1,
            Err(icmpv6::Bad::Checksum) => return self.stats.drop_checksum += 1,
        };
        let near = header.hops == 255;
        let (from, to) = (IpAddr::V6(header.from), header.to);
        match message {
            Icmpv6::Solicit { target, mac } if near && !target.is_multicast() => {
                self.solicited(now, ethernet, header, target, mac);
            }
            Icmpv6::Advertise { target, mac, solicited, .. } if near && !target.is_multicast() => {
                self.advertised(now, ethernet, target, mac, solicited && !to.is_multicast());
            }
            Icmpv6::Solicit { .. } | Icmpv6::Advertise { .. } => self.stats.drop_neighbour += 1,
            _ if to.is_multicast() || header.from.is_unspecified() => self.stats.drop_address += 1,
            Icmpv6::Echo { ident, seq } => {
                let ip = Ipv6 { next: ipv6::ICMPV6, hops: 0, from: to, to: header.from };
                let reply = Icmpv6::Reply { ident, seq }.emit(&ip, data);
                self.answer_echo(now, to.into(), from, ipv6::ICMPV6, &reply);
            }
            Icmpv6::Reply { ident, seq } => self.echoed(now, from, ident, seq, data),
            Icmpv6::PortUnreachable => self.unreachable6(data),
            Icmpv6::TooBig { mtu } => self.too_big6(now, data, mtu as usize),
            Icmpv6::Unreachable { .. } | Icmpv6::Other(_) => self.stats.drop_protocol += 1,
        }
    }

    /// RFC 4861 section 7.2.3 and RFC 4862 section 5.4.3.
    fn solicited(
        &mut self,
        now: Instant,
        ethernet: &Ethernet,
        ip: &Ipv6,
        target: Ipv6Addr,
        mac: Option<Mac>,
    ) {
        let addr = IpAddr::V6(target);
        if !self.claims.wants(addr) {
            return self.stats.drop_address += 1;
        }
        let detects = ip.from.is_unspecified();
        let mac = mac.filter(|mac| mac.is_unicast());
        if detects && (mac.is_some() || ip.to != ipv6::solicited(target)) {
            return self.stats.drop_neighbour += 1;
        }
        if detects && !self.claims.has(addr) {
            return self.conflict(now, addr, ethernet.from);
        }
        if !self.claims.has(addr) || !self.config.answer {
            return;
        }
        if let (false, Some(mac)) = (detects, mac) {
            self.neighbours.asked_us(now, ip.from.into(), mac, &mut self.stats);
        }
        let (to, to_mac) = match detects {
            true => (ipv6::ALL_NODES, ipv6::group_mac(ipv6::ALL_NODES)),
            false => (ip.from, mac.unwrap_or(ethernet.from)),
        };
        let ip = Ipv6 { next: ipv6::ICMPV6, hops: 255, from: target, to };
        let (mac, router, solicited, replaces) = (Some(self.info.mac), false, !detects, true);
        let answer = Icmpv6::Advertise { target, mac, router, solicited, replaces };
        self.post_discovery(to_mac, &ip, &answer);
    }

    fn advertised(
        &mut self,
        now: Instant,
        ethernet: &Ethernet,
        target: Ipv6Addr,
        mac: Option<Mac>,
        asked: bool,
    ) {
        let addr = IpAddr::V6(target);
        if self.claims.wants(addr) {
            return self.conflict(now, addr, ethernet.from);
        }
        let mac = match mac {
            Some(mac) if !mac.is_unicast() => return self.stats.drop_neighbour += 1,
            mac => mac,
        };
        if asked {
            self.neighbours.answered(now, addr, mac, &mut self.stats);
        } else {
            self.neighbours.disputed(now, addr, mac, &mut self.stats);
        }
    }

    // Above.

    /// A datagram put together of fragments, the last of which was `found`.
    fn whole(
        &mut self,
        now: Instant,
        protocol: u8,
        sum: Sum,
        found: Found<'_>,
        whole: alloc::vec::Vec<u8>,
    ) {
        // Wholes of a burst are few: as many as its frames.
        let place = Place::Whole(self.wholes.len());
        let found =
            Found { bytes: &whole, place, start: 0, arrival: RxOffload::default(), ..found };
        if let (ipv6::ICMPV6, IpAddr::V6(from), IpAddr::V6(to)) = (protocol, found.from, found.to) {
            // RFC 6980: neighbour discovery is never fragmented, so its hops do not count as a neighbour's.
            let header = Ipv6 { next: protocol, hops: 0, from, to };
            let nobody = Ethernet { to: self.info.mac, from: Mac::default(), kind: ethernet::IPV6 };
            self.icmpv6(now, &nobody, &header, &whole);
        } else {
            self.upper(now, protocol, sum, found);
        }
        self.wholes.push(whole);
    }

    #[inline]
    fn upper(&mut self, now: Instant, protocol: u8, sum: Sum, found: Found<'_>) {
        match protocol {
            ipv4::UDP => self.udp(now, sum, found),
            ipv4::ICMP if found.from.is_ipv4() => self.icmp(now, found),
            _ => self.stats.drop_protocol += 1,
        }
    }

    #[inline]
    fn udp(&mut self, now: Instant, sum: Sum, found: Found<'_>) {
        let Found { bytes, place, start, arrival, .. } = found;
        let Some((header, payload)) = Udp::parse(bytes) else {
            self.stats.drop_length += 1;
            return;
        };
        let unsummed = header.checksum == 0 && found.from.is_ipv4();
        // The pseudo-header has UDP's own length, which what is behind the datagram may have raised above.
        if !arrival.checksum_valid && !unsummed {
            let padded = bytes.len() - udp::HEADER - payload.len();
            let sum = if padded > 0 { sum.word(!(padded as u16)) } else { sum };
            let unfinished = self.config.unfinished && header.checksum == sum.folded();
            let sum = sum.bytes(&bytes[..udp::HEADER + payload.len()]);
            if header.checksum == 0 || sum.checksum() != 0 && !unfinished {
                self.stats.drop_checksum += 1;
                return;
            }
        }
        if !self.is_bound(header.to) {
            return self.closed(now, found.from, found.to, bytes);
        }
        if let IpAddr::V4(to) = found.to
            && self.short.is_none_or(|short| !short.is(to, header.to))
        {
            // The next one like this goes the short way.
            self.short = Some(Short::new(self.info.mac, to, header.to));
        }
        let from = SocketAddr::new(found.from, header.from);
        let start = start + udp::HEADER;
        let end = start + payload.len();
        let item = Item { from, port: header.to, place, start, end };
        let segment = usize::from(arrival.segment_size);
        if segment == 0 || payload.len() <= segment {
            self.items.push(item);
        } else {
            self.joined = Some(Joined { rest: item, segment });
            self.split();
        }
    }

    /// Takes a joined frame apart, as far as the burst has room.
    #[inline]
    pub(super) fn split(&mut self) {
        while let Some(Joined { rest, segment }) = self.joined {
            if self.items.is_full() {
                return;
            }
            let end = rest.end.min(rest.start + segment);
            self.items.push(Item { end, ..rest });
            let rest = Item { start: end, ..rest };
            self.joined = (rest.start < rest.end).then_some(Joined { rest, segment });
        }
    }

    fn icmp(&mut self, now: Instant, found: Found<'_>) {
        let (message, data) = match Icmp::parse(found.bytes) {
            Ok(parsed) => parsed,
            Err(icmp::Bad::Length) => return self.stats.drop_length += 1,
            Err(icmp::Bad::Checksum) => return self.stats.drop_checksum += 1,
        };
        match message {
            Icmp::Echo { ident, seq } => {
                let reply = [&Icmp::Reply { ident, seq }.emit(data)[..], data].concat();
                self.answer_echo(now, found.to, found.from, ipv4::ICMP, &reply);
            }
            Icmp::Reply { ident, seq } => self.echoed(now, found.from, ident, seq, data),
            Icmp::PortUnreachable => self.unreachable4(data),
            Icmp::TooBig { mtu } => self.too_big4(now, data, usize::from(mtu)),
            Icmp::Unreachable { .. } | Icmp::Other(_) => self.stats.drop_protocol += 1,
        }
    }

    fn answer_echo(&mut self, now: Instant, own: IpAddr, to: IpAddr, protocol: u8, reply: &[u8]) {
        if self.config.answer {
            self.stats.echoes_answered += 1;
            self.packet(now, own, to, protocol, reply);
        }
    }

    pub(super) fn tell_unreachable(&mut self, to: SocketAddr, port: u16) {
        self.stats.ports_unreachable += 1;
        self.happened(Event::Unreachable { to, port });
    }
}
