//! What a stack sends: datagrams by their path's headers, and by way of the outbox whatever takes longer: fragments, packets
//! whose neighbour is not known yet, questions and answers.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::claims::Say;
use super::neighbours::Ask;
use super::paths::{Ends, Path, ROOM, TTL, plain, v4};
use super::run::LONG;
use super::stack::Stack;
use crate::Instant;
use crate::device::{Device, MAX_PARTS, Mac, Offload, Sent};
use crate::time::MS;
use crate::wire::arp::{Arp, Op};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::ipv6::{self, Fragment, Ipv6};
use crate::wire::udp;

/// Frames and octets that wait for the device: a datagram of 64 KiB in fragments, and answers beside it.
const OUTBOX_FRAMES: usize = 512;
const OUTBOX_BYTES: usize = 2 << 20;
/// How long the first frame of the outbox waits for a device that has no room. Shared memory has none as long as the peer takes
/// nothing: a peer that never does must not hold up frames to others, nor keep this side from sleeping.
const OUTBOX_WAIT_NS: u64 = 100 * MS;
/// The longest payload of a datagram: what IPv4 has room for.
const LONGEST: usize = 65_535 - ipv4::HEADER - udp::HEADER;

impl Stack {
    /// Sends a datagram, the concatenation of at most [`crate::datagrams::MAX_PARTS`] parts, from a port of ours. One that is too
    /// long for its way goes in fragments; one to a neighbour who is not known yet waits for him. [`Sent::Full`]: the device has
    /// no room now, nothing was taken.
    #[inline]
    pub fn send<D: Device>(
        &mut self,
        now: Instant,
        device: &mut D,
        port: u16,
        to: SocketAddr,
        parts: &[&[u8]],
    ) -> Sent {
        let key = self.paths.key(port, &to);
        let place = self.paths.place(key);
        let path = self.paths.at(place);
        let mut len = 0_usize;
        for part in parts {
            // Slices are no longer than memory.
            len = len.wrapping_add(part.len());
        }
        let holds = path.leads(key, port, &to) && path.epoch == self.epoch() && now < path.until;
        if !holds || len > path.room || parts.len() >= MAX_PARTS {
            return self.send_otherwise(now, device, port, to, parts);
        }
        if !self.run.is_empty() || len >= LONG && self.info.offloads.udp_segments {
            return self.gather(place, len, device, parts);
        }
        let sent = self.send_by(path, len, device, parts);
        self.stats.datagrams_out += u64::from(sent == Sent::Yes);
        sent
    }

    /// Sends a datagram by a path that holds and has room for it.
    #[inline(always)]
    pub(super) fn send_by<D: Device>(
        &self,
        path: &Path,
        len: usize,
        device: &mut D,
        parts: &[&[u8]],
    ) -> Sent {
        let udp_len = (udp::HEADER + len) as u16;
        let mut offload = Offload::None;
        let checksum = if path.len < ROOM && !self.config.checksum {
            0
        } else if self.info.offloads.checksum {
            offload = Offload::Checksum { start: (path.len - udp::HEADER) as u16, offset: 6 };
            path.pseudo_sum.word(udp_len).folded()
        } else {
            // The length counts twice: in the pseudo-header and in the header.
            let sum = path.udp_sum.word(udp_len).word(udp_len);
            udp::in_field(parts.iter().fold(sum, |sum, part| sum.bytes(part)))
        };
        device.send_with_headers(&path.headers(udp_len, checksum), parts, len, offload)
    }

    /// The same where no path holds: makes one, or goes without.
    #[cold]
    fn send_otherwise<D: Device>(
        &mut self,
        now: Instant,
        device: &mut D,
        port: u16,
        to: SocketAddr,
        parts: &[&[u8]],
    ) -> Sent {
        let to = plain(to);
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > LONGEST || parts.len() >= MAX_PARTS || to.port() == 0 {
            self.stats.drop_invalid += 1;
            return Sent::Yes;
        }
        let Some((from, hop)) = self.route(to.ip()) else {
            self.stats.drop_no_route += 1;
            return Sent::Yes;
        };
        let mtu = self.paths.mtu(now, to.ip(), self.info.mtu);
        let found = self.neighbours.find(now, hop, &mut self.stats);
        let ends = Ends {
            key: self.paths.key(port, &to),
            macs: (self.info.mac, found.map_or_else(Mac::default, |(mac, _)| mac)),
            from,
            port,
            to,
            mtu,
        };
        let until =
            found.map_or(Instant::ZERO, |(_, until)| until).min(self.paths.mtu_until(to.ip()));
        let path = Path::new(&ends, self.epoch(), until);
        if len <= path.room && found.is_some() {
            self.paths.put(path);
            let sent = self.send_by(&path, len, device, parts);
            self.stats.datagrams_out += u64::from(sent == Sent::Yes);
            return sent;
        }
        // A path that never holds still says that something was sent this way, for errors that come back.
        self.paths.put(Path { until: Instant::ZERO, ..path });
        let header = udp::Udp { from: port, to: to.port(), checksum: 0 }.emit(len);
        let mut datagram = Vec::with_capacity(udp::HEADER + len);
        datagram.extend(header);
        parts.iter().for_each(|part| datagram.extend_from_slice(part));
        let sum = path.udp_sum.word(datagram.len() as u16).bytes(&datagram[4..]);
        datagram[6..8].copy_from_slice(&udp::in_field(sum).to_be_bytes());
        self.packet(now, from, to.ip(), ipv4::UDP, &datagram);
        Sent::Yes
    }

    /// Our address towards `to`, and the neighbour that leads there.
    pub(super) fn route(&self, to: IpAddr) -> Option<(IpAddr, IpAddr)> {
        let on_link = |own: IpAddr| self.is_neighbour(own, to);
        match to {
            IpAddr::V4(addr) => {
                let own = self.claims.v4()?;
                let sound = !addr.is_unspecified()
                    && !addr.is_broadcast()
                    && !addr.is_multicast()
                    && addr != own;
                let gateway = || self.config.gateway4.map(IpAddr::V4);
                let hop = if on_link(own.into()) { Some(to) } else { gateway() };
                hop.filter(|_| sound).map(|hop| (own.into(), hop))
            }
            IpAddr::V6(addr) => {
                let own = self.claims.v6()?;
                let sound = !addr.is_unspecified() && !addr.is_multicast() && !self.claims.has(to);
                let gateway = || self.config.gateway6.map(IpAddr::V6);
                let hop = if on_link(own.into()) { Some(to) } else { gateway() };
                hop.filter(|_| sound).map(|hop| (own.into(), hop))
            }
        }
    }

    /// Sends a packet with the payload `upper`, in fragments if it must be, by the outbox.
    pub(super) fn packet(
        &mut self,
        now: Instant,
        from: IpAddr,
        to: IpAddr,
        protocol: u8,
        upper: &[u8],
    ) {
        let Some((_, hop)) = self.route(to) else {
            self.stats.drop_no_route += 1;
            return;
        };
        let mtu = self.paths.mtu(now, to, self.info.mtu);
        let frames = self.frames(from, to, protocol, upper, mtu);
        self.stats.fragmented += u64::from(frames.len() > 1);
        let bytes = frames.iter().map(Vec::len).sum::<usize>();
        let found = self.neighbours.find(now, hop, &mut self.stats);
        if found.is_some() && !self.has_room(frames.len(), bytes) {
            self.stats.drop_outbox += 1;
            return;
        }
        for mut frame in frames {
            match (found, frame.first_chunk_mut()) {
                (Some((mac, _)), Some(place)) => {
                    *place = mac.0;
                    self.post(frame);
                }
                _ => self.neighbours.wait(hop, frame, &mut self.stats),
            }
        }
    }

    /// The frames of a packet, their destination left open.
    fn frames(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        protocol: u8,
        upper: &[u8],
        mtu: usize,
    ) -> Vec<Vec<u8>> {
        let own = self.info.mac;
        let frame = |kind, ip: &[u8], extension: &[u8], part: &[u8]| {
            [&Ethernet { to: Mac::default(), from: own, kind }.emit()[..], ip, extension, part]
                .concat()
        };
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let whole = Ipv4 { protocol, ..v4(from, to) };
                if ipv4::HEADER + upper.len() <= mtu {
                    return [frame(ethernet::IPV4, &whole.emit(upper.len()), &[], upper)].into();
                }
                let ident = self.ident() as u16;
                let room = (mtu.saturating_sub(ipv4::HEADER) & !7).max(8);
                let cut = upper.chunks(room).enumerate().map(|(i, part)| {
                    let (offset, more) = ((i * room) as u16, (i + 1) * room < upper.len());
                    let header = Ipv4 { dont_fragment: false, ident, offset, more, ..whole };
                    frame(ethernet::IPV4, &header.emit(part.len()), &[], part)
                });
                cut.collect()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let next = protocol;
                let whole = Ipv6 { next, hops: TTL, from, to };
                if ipv6::HEADER + upper.len() <= mtu {
                    return [frame(ethernet::IPV6, &whole.emit(upper.len()), &[], upper)].into();
                }
                let ident = self.ident();
                let room = (mtu.saturating_sub(ipv6::HEADER + ipv6::FRAGMENT) & !7).max(8);
                let cut = upper.chunks(room).enumerate().map(|(i, part)| {
                    let (offset, more) = ((i * room) as u16, (i + 1) * room < upper.len());
                    let extension = Fragment { next, offset, more, ident }.emit();
                    let header = Ipv6 { next: ipv6::FRAGMENTED, ..whole };
                    let header = header.emit(ipv6::FRAGMENT + part.len());
                    frame(ethernet::IPV6, &header, &extension, part)
                });
                cut.collect()
            }
            _ => Vec::new(),
        }
    }

    fn has_room(&self, frames: usize, bytes: usize) -> bool {
        self.outbox.len() + frames <= OUTBOX_FRAMES && self.outbox_bytes + bytes <= OUTBOX_BYTES
    }

    /// Puts a whole frame into the outbox.
    pub(super) fn post(&mut self, frame: Vec<u8>) {
        if !self.has_room(1, frame.len()) {
            self.stats.drop_outbox += 1;
            return;
        }
        self.outbox_bytes += frame.len();
        self.outbox.push_back(frame);
    }

    /// Puts an ARP or RARP packet into the outbox.
    pub(super) fn post_arp(&mut self, to: Mac, arp: &Arp) {
        let reverse = matches!(arp.op, Op::ReverseRequest | Op::ReverseReply);
        let kind = if reverse { ethernet::RARP } else { ethernet::ARP };
        let header = Ethernet { to, from: self.info.mac, kind };
        self.post([&header.emit()[..], &arp.emit()].concat());
    }

    /// Puts a message of neighbour discovery into the outbox.
    pub(super) fn post_discovery(&mut self, mac: Mac, ip: &Ipv6, message: &Icmpv6) {
        let ip = Ipv6 { next: ipv6::ICMPV6, hops: 255, ..*ip };
        let message = message.emit(&ip, &[]);
        let header = Ethernet { to: mac, from: self.info.mac, kind: ethernet::IPV6 };
        self.post([&header.emit()[..], &ip.emit(message.len()), &message].concat());
    }

    /// Sends what waits, as far as the device has room; true if something is left.
    #[inline]
    pub fn output<D: Device>(&mut self, now: Instant, device: &mut D) -> bool {
        if !self.outbox.is_empty() || !self.neighbours.is_quiet() || !self.claims.is_quiet() {
            self.output_all(now, device);
        }
        if !self.run.is_empty() {
            self.send_run(device);
        }
        device.flush();
        !self.outbox.is_empty() || !self.run.is_empty()
    }

    #[cold]
    fn output_all<D: Device>(&mut self, now: Instant, device: &mut D) {
        self.now = now;
        while let Some(say) = self.claims.say() {
            self.say(say);
        }
        while let Some(ask) = self.neighbours.ask() {
            self.ask(ask);
        }
        while let Some(frame) = self.neighbours.ready() {
            self.post(frame);
        }
        while let Some(frame) = self.outbox.front() {
            if device.send(&[frame], Offload::None) == Sent::Full {
                if !self.give_up_stuck(now) {
                    return;
                }
                continue;
            }
            self.outbox_stuck = Instant::NEVER;
            self.stats.frames_out += 1;
            self.outbox_bytes -= frame.len();
            self.outbox.pop_front();
        }
    }

    /// The device has no room for the first frame of the outbox: after a while all frames to that neighbour are dropped. True if
    /// they are.
    fn give_up_stuck(&mut self, now: Instant) -> bool {
        self.outbox_stuck = self.outbox_stuck.min(now);
        if now.since(self.outbox_stuck) < OUTBOX_WAIT_NS {
            return false;
        }
        self.outbox_stuck = Instant::NEVER;
        let to = self.outbox.front().and_then(|frame| frame.first_chunk::<6>().copied());
        let before = self.outbox.len();
        self.outbox.retain(|frame| frame.first_chunk().copied() != to);
        self.outbox_bytes = self.outbox.iter().map(Vec::len).sum();
        self.stats.drop_outbox += (before - self.outbox.len()) as u64;
        true
    }

    fn say(&mut self, say: Say) {
        let own = self.info.mac;
        let arp = |op, sender, target_mac, target| Arp {
            op,
            sender_mac: own,
            sender,
            target_mac,
            target,
        };
        let nobody = Mac::default();
        match say {
            Say::Learn => {
                let zero = core::net::Ipv4Addr::UNSPECIFIED;
                self.post_arp(Mac::BROADCAST, &arp(Op::ReverseRequest, zero, own, zero));
            }
            Say::Probe(IpAddr::V4(addr)) => {
                let zero = core::net::Ipv4Addr::UNSPECIFIED;
                self.post_arp(Mac::BROADCAST, &arp(Op::Request, zero, nobody, addr));
            }
            Say::Announce(IpAddr::V4(addr)) => {
                self.post_arp(Mac::BROADCAST, &arp(Op::Request, addr, nobody, addr));
            }
            Say::Probe(IpAddr::V6(target)) => {
                let to = ipv6::solicited(target);
                let ip = Ipv6 { next: 0, hops: 0, from: core::net::Ipv6Addr::UNSPECIFIED, to };
                let message = Icmpv6::Solicit { target, mac: None };
                self.post_discovery(ipv6::group_mac(to), &ip, &message);
            }
            Say::Announce(IpAddr::V6(target)) => {
                let ip = Ipv6 { next: 0, hops: 0, from: target, to: ipv6::ALL_NODES };
                let (mac, router, solicited, replaces) = (Some(own), false, false, true);
                let message = Icmpv6::Advertise { target, mac, router, solicited, replaces };
                self.post_discovery(ipv6::group_mac(ipv6::ALL_NODES), &ip, &message);
            }
        }
    }

    fn ask(&mut self, Ask { addr, to }: Ask) {
        let own = self.info.mac;
        match addr {
            IpAddr::V4(target) => {
                let Some(sender) = self.claims.v4() else { return };
                let target_mac = to.unwrap_or_default();
                let arp = Arp { op: Op::Request, sender_mac: own, sender, target_mac, target };
                self.post_arp(to.unwrap_or(Mac::BROADCAST), &arp);
            }
            IpAddr::V6(target) => {
                let Some(from) = self.claims.v6() else { return };
                let group = ipv6::solicited(target);
                let ip =
                    Ipv6 { next: 0, hops: 0, from, to: if to.is_some() { target } else { group } };
                let message = Icmpv6::Solicit { target, mac: Some(own) };
                self.post_discovery(to.unwrap_or_else(|| ipv6::group_mac(group)), &ip, &message);
            }
        }
    }
}
