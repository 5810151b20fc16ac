//! Frames that an IP stack receives: parses each and hands it to the protocol that it is for.
//!
//! Always: the stack changes no state before the lengths, addresses and checksum of a packet have
//! been verified. The payload of a datagram stays where it is in the device's burst.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;

use super::event::StackEvent;
use super::ip::icmp::{Quoted, port_unreachable};
use super::ip::output::Head;
use super::ip::reassembly::{DatagramKey, Fragment};
use super::packet::Packet;
use super::stack::Stack;
use super::tcp::{TcpReport, TcpSoftError};
use super::udp::fast_path::FastPath;
use super::udp::received::{Location, Received};
use crate::Instant;
use crate::device::{Device, Mac, RxOffload};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, Ethernet, HEADER};
use crate::wire::icmp::{self, Icmp};
use crate::wire::icmpv6::{self, Icmpv6};
use crate::wire::ipv4::{self, Ecn, Ipv4};
use crate::wire::ipv6::{self, Ipv6, Upper};
use crate::wire::udp::{self, Udp};

impl Stack {
    /// Receives a burst of frames and handles them, or continues with the frames of the last burst
    /// that it did not process. Returns the number of datagrams for [`Stack::datagram`], at most
    /// [`BURST`](crate::device::BURST).
    #[inline]
    pub fn input<D: Device>(&mut self, now: Instant, device: &mut D) -> usize {
        if self.has_lent() {
            self.keep_lent(device);
        }
        self.burst.clear_delivered();
        if self.burst.is_done() {
            let frames = self.burst.receive(device);
            if frames == 0 {
                return 0;
            }
            self.cx.counters.received += frames as u64;
            self.look_ahead_tcp(frames, device);
        }
        self.cx.now = now;
        self.burst.split();
        let mut slow = false;
        while let Some(i) = self.burst.next_frame() {
            let (frame, offload) = device.frame(i);
            if self.receive_fast(i, frame, offload) {
                continue;
            }
            slow = true;
            if offload.left == 0 {
                self.receive(Location::Frame(i), frame, offload);
            } else {
                self.receive_left(i, offload, device);
            }
        }
        self.cx.counters.datagrams_in += self.burst.len() as u64;
        if !self.link.queue.is_empty() || slow && self.link.has_packets() {
            self.output(now, device);
        }
        self.burst.len()
    }

    /// Delivers frame `i` of the burst if the fast path can, and returns true. Such a frame leaves
    /// the stack nothing to send.
    #[inline]
    fn receive_fast(&mut self, i: usize, frame: &[u8], offload: RxOffload) -> bool {
        if let Some(fast_path) = &mut self.fast_path
            && let Some((from, payload)) = fast_path.datagram(frame, offload)
        {
            let (from, port, location) = (SocketAddr::V4(from), fast_path.port, Location::Frame(i));
            let Range { start, end } = payload;
            self.burst.push(Received { from, port, location, start, end });
            return true;
        }
        false
    }

    /// Handles frame `i` of the burst, whose end the device has left: copies it first, because the
    /// peer may change what is checked here.
    #[cold]
    fn receive_left<D: Device>(&mut self, i: usize, offload: RxOffload, device: &D) {
        let mut frame = device.frame(i).0.to_vec();
        let end = frame.len() + usize::from(offload.left);
        device.append_left(i, frame.len()..end, &mut frame);
        let location = self.burst.next_reassembled();
        self.receive(location, &frame, RxOffload { left: 0, ..offload });
        self.burst.push_reassembled(frame);
    }

    #[inline(never)]
    fn receive(&mut self, location: Location, frame: &[u8], offload: RxOffload) {
        let Some((ethernet, packet)) = Ethernet::parse(frame) else {
            self.cx.counters.drop_length += 1;
            return;
        };
        let own = self.cx.info.mac;
        if ethernet.to != own && !ethernet.to.is_multicast() || ethernet.from == own {
            self.cx.counters.drop_address += 1;
            return;
        }
        match ethernet.kind {
            ethernet::IPV4 => self.receive_ipv4(location, &ethernet, packet, offload),
            ethernet::IPV6 => self.receive_ipv6(location, &ethernet, packet, offload),
            ethernet::ARP => self.link.arp(&mut self.cx, &ethernet, packet),
            ethernet::RARP => self.link.rarp(&mut self.cx, packet),
            _ => self.cx.counters.drop_type += 1,
        }
    }

    #[inline]
    fn receive_ipv4(
        &mut self,
        location: Location,
        ethernet: &Ethernet,
        packet: &[u8],
        offload: RxOffload,
    ) {
        let counters = &mut self.cx.counters;
        let (header, bytes) = match Ipv4::parse(packet) {
            Ok(parsed) => parsed,
            Err(ipv4::Ipv4ParseError::Length) => return counters.drop_length += 1,
            Err(ipv4::Ipv4ParseError::Version) => return counters.drop_version += 1,
            Err(ipv4::Ipv4ParseError::Checksum) => return counters.drop_checksum += 1,
        };
        let (from, to) = (IpAddr::V4(header.from), IpAddr::V4(header.to));
        if !self.link.addresses.has(to) || ethernet.to.is_multicast() {
            return counters.drop_address += 1;
        }
        let first = header.from.octets()[0];
        if matches!(first, 0 | 127 | 224..) || from == to {
            return counters.drop_source += 1;
        }
        let start = HEADER + usize::from(packet[0] & 15) * 4;
        let packet = Packet { from, to, bytes, location, start, offload, ecn: header.ecn };
        if !header.is_fragment() {
            return self.receive_upper(header.protocol, header.pseudo(bytes.len()), packet);
        }
        let ident = u32::from(header.ident);
        let key = DatagramKey { from, to, protocol: header.protocol, ident };
        let Ipv4 { more, ecn, .. } = header;
        let fragment = Fragment { offset: usize::from(header.offset), more, ecn, bytes };
        let complete = self.reassembly.input(self.cx.now, key, fragment, &mut self.cx.counters);
        if let Some((bytes, ecn)) = complete {
            let packet = Packet { ecn, ..packet };
            self.reassembled(header.protocol, header.pseudo(bytes.len()), packet, bytes);
        }
    }

    #[inline]
    fn receive_ipv6(
        &mut self,
        location: Location,
        ethernet: &Ethernet,
        packet: &[u8],
        offload: RxOffload,
    ) {
        let counters = &mut self.cx.counters;
        let (header, rest) = match Ipv6::parse(packet) {
            Ok(parsed) => parsed,
            Err(ipv6::Ipv6ParseError::Length) => return counters.drop_length += 1,
            Err(ipv6::Ipv6ParseError::Version) => return counters.drop_version += 1,
        };
        let (from, to) = (IpAddr::V6(header.from), IpAddr::V6(header.to));
        let is_ours = self.link.addresses.has(to) && !ethernet.to.is_multicast();
        if !is_ours && !self.link.may_be_ndp(&header) {
            return counters.drop_address += 1;
        }
        let is_own = self.link.addresses.has(from);
        if header.from.is_multicast() || header.from.is_loopback() || is_own {
            return counters.drop_source += 1;
        }
        match ipv6::upper(header.next, rest) {
            Upper::Whole(ipv6::ICMPV6, bytes) => self.receive_icmpv6(ethernet, &header, bytes),
            Upper::Whole(protocol, bytes) => {
                let start = HEADER + ipv6::HEADER + rest.len() - bytes.len();
                let ecn = header.ecn;
                let packet = Packet { from, to, bytes, location, start, offload, ecn };
                self.receive_upper(protocol, header.pseudo(protocol, bytes.len()), packet);
            }
            Upper::Part(part, bytes) => {
                let key = DatagramKey { from, to, protocol: 0, ident: part.ident };
                let (offset, more) = (usize::from(part.offset), part.more);
                let fragment = Fragment { offset, more, ecn: header.ecn, bytes };
                let complete = self.reassembly.input(self.cx.now, key, fragment, counters);
                if let Some((bytes, ecn)) = complete {
                    let packet = Packet { from, to, bytes: &[], location, start: 0, offload, ecn };
                    let sum = header.pseudo(part.next, bytes.len());
                    self.reassembled(part.next, sum, packet, bytes);
                }
            }
            Upper::Bad => counters.drop_header += 1,
        }
    }

    /// Handles a reassembled IP packet, whose last fragment was `packet`.
    fn reassembled(&mut self, protocol: u8, sum: Sum, packet: Packet<'_>, bytes: Vec<u8>) {
        if let (ipv6::ICMPV6, IpAddr::V6(from), IpAddr::V6(to)) = (protocol, packet.from, packet.to)
        {
            // RFC 6980 section 5: fragmented neighbour discovery is invalid. A hop limit other than
            // 255 makes it so.
            let header = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: protocol, hops: 0, from, to };
            let (own, from) = (self.cx.info.mac, Mac::default());
            self.receive_icmpv6(&Ethernet { to: own, from, kind: ethernet::IPV6 }, &header, &bytes);
            return;
        }
        let location = self.burst.next_reassembled();
        let offload = RxOffload::default();
        let packet = Packet { bytes: &bytes, location, start: 0, offload, ..packet };
        self.receive_upper(protocol, sum, packet);
        self.burst.push_reassembled(bytes);
    }

    #[inline]
    fn receive_upper(&mut self, protocol: u8, sum: Sum, packet: Packet<'_>) {
        match protocol {
            ipv4::UDP => self.receive_udp(sum, packet),
            ipv4::TCP => {
                self.receive_tcp(sum, &packet);
            }
            ipv4::ICMP if packet.from.is_ipv4() => self.receive_icmp(packet),
            _ => self.cx.counters.drop_protocol += 1,
        }
    }

    #[inline]
    fn receive_udp(&mut self, sum: Sum, packet: Packet<'_>) {
        let Packet { bytes, location, start, offload, .. } = packet;
        let Some((header, payload)) = Udp::parse(bytes) else {
            self.cx.counters.drop_length += 1;
            return;
        };
        let has_none = header.checksum == 0 && packet.from.is_ipv4();
        if !offload.checksum_valid && !has_none && !self.is_checksum_right(sum, bytes, &header) {
            self.cx.counters.drop_checksum += 1;
            return;
        }
        if !self.ports.contains(header.to) {
            return self.closed_port(packet.from, packet.to, bytes);
        }
        if let IpAddr::V4(to) = packet.to
            && self.fast_path.is_none_or(|fast_path| !fast_path.is_for(to, header.to))
        {
            self.fast_path = Some(FastPath::new(self.cx.info.mac, to, header.to));
        }
        let from = SocketAddr::new(packet.from, header.from);
        let start = start + udp::HEADER;
        let end = start + payload.len();
        let datagram = Received { from, port: header.to, location, start, end };
        let segment_size = usize::from(offload.segment_size);
        if segment_size == 0 || payload.len() <= segment_size {
            self.burst.push(datagram);
        } else {
            self.burst.push_coalesced(datagram, segment_size);
        }
    }

    /// Verifies the checksum of a received UDP datagram. `sum` is that of a pseudo-header for all
    /// of `bytes`, which may be longer than the datagram.
    #[inline]
    fn is_checksum_right(&self, sum: Sum, bytes: &[u8], header: &Udp) -> bool {
        let len = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
        let padding = bytes.len() - len;
        let sum = if padding > 0 { sum.word(!(padding as u16)) } else { sum };
        let is_partial = self.cx.options.accept_partial_checksum && header.checksum == sum.folded();
        header.checksum != 0 && (sum.bytes(&bytes[..len]).checksum() == 0 || is_partial)
    }

    /// Drops a UDP datagram to a port that is not bound, and reports that to its sender by an ICMP
    /// error.
    #[cold]
    fn closed_port(&mut self, from: IpAddr, own: IpAddr, datagram: &[u8]) {
        let cx = &mut self.cx;
        cx.counters.drop_port += 1;
        if !cx.options.respond {
            return;
        }
        if !self.error_limit.allows(cx.now, cx.options.icmp_errors_per_second) {
            cx.counters.drop_rate += 1;
            return;
        }
        if let Some((protocol, error)) = port_unreachable(from, own, datagram) {
            self.ip.send(cx, &mut self.link, &Head::new(own, from, protocol), &error);
        }
    }

    fn receive_icmp(&mut self, packet: Packet<'_>) {
        let (from, counters) = (packet.from, &mut self.cx.counters);
        let (message, data) = match Icmp::parse(packet.bytes) {
            Ok(parsed) => parsed,
            Err(icmp::IcmpParseError::Length) => return counters.drop_length += 1,
            Err(icmp::IcmpParseError::Checksum) => return counters.drop_checksum += 1,
        };
        match message {
            Icmp::Echo { ident, seq } => {
                let reply = [&Icmp::Reply { ident, seq }.emit(data)[..], data].concat();
                self.send_echo_reply(packet.to, packet.from, ipv4::ICMP, &reply);
            }
            Icmp::Reply { ident, seq } => {
                self.echo.reply(&mut self.cx, packet.from, ident, seq, data);
            }
            Icmp::PortUnreachable => self.unreachable(Quoted::parse4(data)),
            Icmp::TooBig { mtu } => self.too_big(Quoted::parse4(data), usize::from(mtu)),
            Icmp::Unreachable { code } => {
                let report = TcpReport { error: TcpSoftError::Unreachable { code }, from };
                self.reported(Quoted::parse4(data), report, code == icmp::PROTOCOL_CODE);
            }
            Icmp::Other(icmp::TIME_EXCEEDED) => {
                let report = TcpReport { error: TcpSoftError::TimeExceeded, from };
                self.reported(Quoted::parse4(data), report, false);
            }
            Icmp::Other(icmp::PARAMETER_PROBLEM) => {
                let report = TcpReport { error: TcpSoftError::ParameterProblem, from };
                self.reported(Quoted::parse4(data), report, false);
            }
            Icmp::Other(_) => counters.drop_protocol += 1,
        }
    }

    fn receive_icmpv6(&mut self, ethernet: &Ethernet, header: &Ipv6, bytes: &[u8]) {
        let cx = &mut self.cx;
        let (message, data) = match Icmpv6::parse(header, bytes) {
            Ok(parsed) => parsed,
            Err(icmpv6::Icmpv6ParseError::Length) => return cx.counters.drop_length += 1,
            Err(icmpv6::Icmpv6ParseError::Checksum) => return cx.counters.drop_checksum += 1,
        };
        // No router forwards a packet with the hop limit 255, so its sender is on the link.
        let is_on_link = header.hops == 255;
        let (from, to) = (IpAddr::V6(header.from), header.to);
        match message {
            Icmpv6::Solicit { target, mac } if is_on_link && !target.is_multicast() => {
                self.link.solicitation(cx, ethernet, header, target, mac);
            }
            Icmpv6::Advertise { target, mac, solicited, .. }
                if is_on_link && !target.is_multicast() =>
            {
                let solicited = solicited && !to.is_multicast();
                self.link.advertisement(cx, ethernet, target, mac, solicited);
            }
            Icmpv6::Solicit { .. } | Icmpv6::Advertise { .. } => cx.counters.drop_neighbour += 1,
            _ if to.is_multicast() || header.from.is_unspecified() => {
                cx.counters.drop_address += 1;
            }
            Icmpv6::Echo { ident, seq } => {
                let ip = Ipv6 {
                    dscp: 0,
                    ecn: Ecn::NotEct,
                    next: ipv6::ICMPV6,
                    hops: 0,
                    from: to,
                    to: header.from,
                };
                let reply = Icmpv6::Reply { ident, seq }.emit(&ip, data);
                self.send_echo_reply(to.into(), from, ipv6::ICMPV6, &reply);
            }
            Icmpv6::Reply { ident, seq } => self.echo.reply(cx, from, ident, seq, data),
            Icmpv6::PortUnreachable => self.unreachable(Quoted::parse6(data)),
            // The MTU 0 has no special meaning in ICMPv6.
            Icmpv6::TooBig { mtu } => self.too_big(Quoted::parse6(data), (mtu as usize).max(1)),
            Icmpv6::Unreachable { code } => {
                let report = TcpReport { error: TcpSoftError::Unreachable { code }, from };
                self.reported(Quoted::parse6(data), report, false);
            }
            Icmpv6::Other(icmpv6::TIME_EXCEEDED) => {
                let report = TcpReport { error: TcpSoftError::TimeExceeded, from };
                self.reported(Quoted::parse6(data), report, false);
            }
            Icmpv6::Other(icmpv6::PARAMETER_PROBLEM) => {
                let report = TcpReport { error: TcpSoftError::ParameterProblem, from };
                self.reported(Quoted::parse6(data), report, false);
            }
            Icmpv6::Other(_) => cx.counters.drop_protocol += 1,
        }
    }

    fn send_echo_reply(&mut self, own: IpAddr, to: IpAddr, protocol: u8, reply: &[u8]) {
        if self.cx.options.respond {
            self.cx.counters.echoes_answered += 1;
            self.ip.send(&mut self.cx, &mut self.link, &Head::new(own, to, protocol), reply);
        }
    }

    /// Returns the datagram that an ICMP error quotes, if this IP stack recently sent it.
    fn confirmed(&self, quoted: Option<Quoted>) -> Option<Quoted> {
        quoted.filter(|q| {
            self.link.addresses.has(q.from)
                && match q.seq {
                    Some(_) => self.is_tcp_in_flight(q),
                    None => self.ports.contains(q.port) && self.routes.contains(q.port, &q.to),
                }
        })
    }

    /// Handles the received ICMP error "port unreachable".
    fn unreachable(&mut self, quoted: Option<Quoted>) {
        let Some(quoted @ Quoted { to, port, seq, .. }) = self.confirmed(quoted) else {
            self.cx.counters.drop_error += 1;
            return;
        };
        self.cx.counters.ports_unreachable += 1;
        if seq.is_some() {
            return self.tcp_refused(&quoted);
        }
        self.cx.report(StackEvent::PortUnreachable { to, port });
    }

    /// Handles a received ICMP error about a problem that may be over when it arrives. Those about
    /// datagrams are dropped.
    #[cold]
    fn reported(&mut self, quoted: Option<Quoted>, report: TcpReport, is_hard: bool) {
        if quoted.is_none_or(|quoted| quoted.seq.is_none()) {
            self.cx.counters.drop_protocol += 1;
            return;
        }
        match self.confirmed(quoted) {
            Some(quoted) => self.tcp_reported(&quoted, report, is_hard),
            None => self.cx.counters.drop_error += 1,
        }
    }

    /// Handles the received ICMP error "packet too big", which reports the MTU of a link, or 0.
    fn too_big(&mut self, quoted: Option<Quoted>, mtu: usize) {
        let Some(quoted @ Quoted { to, len, .. }) = self.confirmed(quoted) else {
            self.cx.counters.drop_error += 1;
            return;
        };
        let link_mtu = self.cx.info.mtu;
        if self.ip.path_mtus.lower(self.cx.now, to.ip(), len, mtu, link_mtu) {
            self.cx.counters.mtu_lowered += 1;
            self.ip.generation = self.ip.generation.wrapping_add(1);
        }
        // Another connection to the same peer may have reported it first.
        self.tcp_too_big(&quoted);
    }
}
