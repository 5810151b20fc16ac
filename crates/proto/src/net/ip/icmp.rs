//! ICMP errors: those that we send, and those about packets of ours.
//!
//! Always: an error is believed only if it quotes a datagram from a bound port of ours to where one went lately (RFC 5927
//! section 4); no more are sent than so many a second, none to groups, and none that is longer than RFC 1812 section 4.3.2.3 and
//! RFC 4443 section 2.4 allow.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::stack::Stack;
use crate::Instant;
use crate::time::SECOND;
use crate::wire::icmp::Icmp;
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::ipv6::{self, Ipv6};

/// The longest packets that carry an error.
const LONGEST_V4: usize = 576;
const LONGEST_V6: usize = 1280;

/// What an error quotes: from which port of ours, where to, how long the packet was.
type Quoted = (u16, SocketAddr, usize);

impl Stack {
    /// `datagram` came for a port at which nobody listens.
    #[cold]
    pub(super) fn closed(&mut self, now: Instant, from: IpAddr, own: IpAddr, datagram: &[u8]) {
        self.stats.drop_port += 1;
        if !self.config.answer {
            return;
        }
        let (since, sent) = self.errors;
        if now.since(since) >= SECOND || sent == 0 {
            self.errors = (now, 0);
        }
        if self.errors.1 >= self.config.errors_per_second {
            self.stats.drop_rate += 1;
            return;
        }
        self.errors.1 += 1;
        match (own, from) {
            (IpAddr::V4(own4), IpAddr::V4(from4)) => {
                let header = Ipv4 { ..super::paths::v4(from4, own4) };
                let room = LONGEST_V4 - 2 * ipv4::HEADER - crate::wire::icmp::HEADER;
                let quoted =
                    [&header.emit(datagram.len())[..], &datagram[..datagram.len().min(room)]]
                        .concat();
                let error = [&Icmp::PortUnreachable.emit(&quoted)[..], &quoted].concat();
                self.packet(now, own, from, ipv4::ICMP, &error);
            }
            (IpAddr::V6(own6), IpAddr::V6(from6)) => {
                let header =
                    Ipv6 { next: ipv6::UDP, hops: super::paths::TTL, from: from6, to: own6 };
                let room = LONGEST_V6 - 2 * ipv6::HEADER - crate::wire::icmpv6::HEADER;
                let quoted =
                    [&header.emit(datagram.len())[..], &datagram[..datagram.len().min(room)]]
                        .concat();
                let ip = Ipv6 { next: ipv6::ICMPV6, hops: 0, from: own6, to: from6 };
                let error: Vec<u8> = Icmpv6::PortUnreachable.emit(&ip, &quoted);
                self.packet(now, own, from, ipv6::ICMPV6, &error);
            }
            _ => {}
        }
    }

    pub(super) fn unreachable4(&mut self, quoted: &[u8]) {
        match self.quoted4(quoted) {
            Some((port, to, _)) => self.tell_unreachable(to, port),
            None => self.stats.drop_error += 1,
        }
    }

    pub(super) fn unreachable6(&mut self, quoted: &[u8]) {
        match self.quoted6(quoted) {
            Some((port, to, _)) => self.tell_unreachable(to, port),
            None => self.stats.drop_error += 1,
        }
    }

    pub(super) fn too_big4(&mut self, now: Instant, quoted: &[u8], mtu: usize) {
        let about = self.quoted4(quoted);
        self.too_big(now, about, mtu);
    }

    pub(super) fn too_big6(&mut self, now: Instant, quoted: &[u8], mtu: usize) {
        let about = self.quoted6(quoted);
        self.too_big(now, about, mtu.max(1));
    }

    fn too_big(&mut self, now: Instant, about: Option<Quoted>, mtu: usize) {
        let Some((_, to, len)) = about else {
            self.stats.drop_error += 1;
            return;
        };
        if self.paths.lower(now, to.ip(), len, mtu, self.info.mtu) {
            self.stats.mtu_lowered += 1;
            self.path_epoch = self.path_epoch.wrapping_add(1);
        }
    }

    fn quoted4(&self, bytes: &[u8]) -> Option<Quoted> {
        let (header, rest) = Ipv4::quoted(bytes)?;
        let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let ours = header.protocol == ipv4::UDP
            && header.offset == 0
            && self.claims.has(header.from.into());
        self.sent(ours, header.to.into(), rest, len)
    }

    fn quoted6(&self, bytes: &[u8]) -> Option<Quoted> {
        let (header, rest) = Ipv6::quoted(bytes).ok()?;
        let len = usize::from(u16::from_be_bytes([bytes[4], bytes[5]])) + ipv6::HEADER;
        let rest = match header.next {
            ipv6::FRAGMENTED => {
                ipv6::Fragment::parse(rest).filter(|(f, _)| f.offset == 0 && f.next == ipv6::UDP)?.1
            }
            _ => rest,
        };
        let ours = matches!(header.next, ipv6::UDP | ipv6::FRAGMENTED)
            && self.claims.has(header.from.into());
        self.sent(ours, header.to.into(), rest, len)
    }

    /// Looks at the quoted ports, if the quoted header is one of ours.
    fn sent(&self, ours: bool, to: IpAddr, udp: &[u8], len: usize) -> Option<Quoted> {
        let &[a, b, c, d] = udp.first_chunk().filter(|_| ours)?;
        let (port, to) =
            (u16::from_be_bytes([a, b]), SocketAddr::new(to, u16::from_be_bytes([c, d])));
        (self.is_bound(port) && self.paths.knows(port, &to)).then_some((port, to, len))
    }
}
