//! The Ethernet and IP headers of packets to one destination, built once and completed for each
//! packet.
//!
//! ```text
//!  Ethernet(14)   IPv4(20) or IPv6(40)
//! ```

use core::net::{IpAddr, Ipv6Addr};

use super::fields::IpFields;
use super::output::udp4_header;
use crate::device::{HEADER, Mac};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ipv4::{self, Ecn, Ipv4};
use crate::wire::ipv6::{self, Ipv6};

/// The length of the longest template in bytes.
pub(in crate::net) const MAX: usize = HEADER + ipv6::HEADER;
/// The version in the first byte of an IPv6 header.
const VERSION_6: u8 = 0x60;

/// The Ethernet and IP headers of unfragmented packets to one destination. Lengths, the checksum
/// of an IPv4 header and the fields that programs choose are 0.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Template {
    bytes: [u8; MAX],
    is_v4: bool,
    /// The checksum's sum over the IPv4 header without what is 0.
    pub(in crate::net) ip_sum: Sum,
    /// The checksum's sum over the pseudo-header without a length.
    pub(in crate::net) pseudo_sum: Sum,
}

/// The addresses of a [`Template`], and the protocol of its packets.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Addresses {
    pub(in crate::net) own_mac: Mac,
    pub(in crate::net) next_hop_mac: Mac,
    pub(in crate::net) from: IpAddr,
    pub(in crate::net) to: IpAddr,
    pub(in crate::net) protocol: u8,
}

impl Template {
    pub(in crate::net) fn new(addresses: &Addresses) -> Self {
        let Addresses { own_mac, next_hop_mac, from, to, protocol } = *addresses;
        let ethernet = |kind| Ethernet { to: next_hop_mac, from: own_mac, kind }.emit();
        let mut template =
            Self { bytes: [0; MAX], is_v4: false, ip_sum: Sum::new(), pseudo_sum: Sum::new() };
        let bytes = &mut template.bytes;
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes[..HEADER].copy_from_slice(&ethernet(ethernet::IPV4));
                let header = Ipv4 { ttl: 0, protocol, ..udp4_header(from, to) };
                let mut ip = header.emit(0);
                ip[2..4].fill(0);
                ip[10..12].fill(0);
                bytes[HEADER..HEADER + ipv4::HEADER].copy_from_slice(&ip);
                template.is_v4 = true;
                template.ip_sum = Sum::new().bytes(&ip);
                template.pseudo_sum = header.pseudo(0);
            }
            (from, to) => {
                bytes[..HEADER].copy_from_slice(&ethernet(ethernet::IPV6));
                let (from, to) = (to_ipv6(from), to_ipv6(to));
                let ecn = Ecn::NotEct;
                let header = Ipv6 { dscp: 0, ecn, next: protocol, hops: 0, from, to };
                bytes[HEADER..].copy_from_slice(&header.emit(0));
                template.pseudo_sum = header.pseudo(protocol, 0);
            }
        }
        template
    }

    /// Returns the template with these fields, for packets that all have them.
    pub(in crate::net) fn with(mut self, fields: IpFields) -> Self {
        let word = fields.with(Ecn::NotEct);
        fill(&mut self.bytes, self.is_v4, word);
        self.ip_sum = self.ip_sum.word(word);
        self
    }

    /// Returns the headers as bytes.
    pub(in crate::net) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// Returns the length of the headers in bytes.
    #[inline]
    pub(in crate::net) const fn len(&self) -> usize {
        if self.is_v4 { HEADER + ipv4::HEADER } else { HEADER + ipv6::HEADER }
    }

    /// Returns true for the headers of IPv4.
    #[inline]
    pub(in crate::net) const fn is_v4(&self) -> bool {
        self.is_v4
    }

    /// Writes the headers of a packet with `payload` bytes behind the IP header to the beginning of
    /// `frame`. `word` has the fields that the program chooses, and the ECN field
    /// ([`IpFields::with`]).
    #[inline]
    pub(in crate::net) fn write(&self, frame: &mut [u8], payload: u16, word: u16) {
        const IP: usize = HEADER;
        if self.is_v4 {
            let len = payload.wrapping_add(ipv4::HEADER as u16);
            frame[..HEADER + ipv4::HEADER].copy_from_slice(&self.bytes[..HEADER + ipv4::HEADER]);
            fill(frame, true, word);
            frame[IP + 2..IP + 4].copy_from_slice(&len.to_be_bytes());
            let checksum = self.ip_sum.word(len).word(word).checksum();
            frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            frame[..MAX].copy_from_slice(&self.bytes);
            fill(frame, false, word);
            frame[IP + 4..IP + 6].copy_from_slice(&payload.to_be_bytes());
        }
    }
}

/// Writes the fields that a program chooses, and the ECN field, into the IP header of a frame.
#[inline]
fn fill(frame: &mut [u8], is_v4: bool, word: u16) {
    let [ttl, class] = word.to_be_bytes();
    if is_v4 {
        (frame[HEADER + 1], frame[HEADER + 8]) = (class, ttl);
    } else {
        (frame[HEADER], frame[HEADER + 1]) = (VERSION_6 | class >> 4, class << 4);
        frame[HEADER + 7] = ttl;
    }
}

/// Returns an address as an IPv6 address; IPv4 addresses are mapped.
const fn to_ipv6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}
