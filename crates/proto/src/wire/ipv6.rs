//! IPv6 headers (RFC 8200): 40 bytes, and the extension headers that a host skips or handles.
//!
//! ```text
//!  0 u4 version 6  u6 DSCP  u2 ECN  u20 flow   4 u16 payload length
//!  6 u8 next header   7 u8 hop limit   8 source(16)   24 destination(16)
//!
//!  fragment   0 u8 next header   1 zero   2 u13 offset / 8  u2 zero  u1 more
//!             4 u32 identification
//!  others     0 u8 next header   1 u8 length / 8 - 1   2 options: u8 type  u8 length  data
//! ```
//!
//! Always: [`Ipv6::parse`] reads back what [`Ipv6::emit`] writes. [`upper`] skips at most
//! [`EXTENSIONS`] extension headers. Not here: reassembly of fragments (`net`).

use core::net::Ipv6Addr;

use super::checksum::Sum;
use super::ipv4::Ecn;
use crate::device::Mac;

#[cfg(test)]
mod tests;

/// The length of an IPv6 header in bytes, without extension headers.
pub const HEADER: usize = 40;
/// The length of an IPv6 fragment header in bytes.
pub const FRAGMENT: usize = 8;
/// The most extension headers that the parser skips before the payload of an IPv6 packet.
pub const EXTENSIONS: usize = 4;

/// The number of UDP in an IPv6 header's field "next header".
pub const UDP: u8 = 17;
/// The number of ICMPv6 in an IPv6 header's field "next header".
pub const ICMPV6: u8 = 58;
/// The number of the fragment header in an IPv6 header's field "next header".
pub const FRAGMENTED: u8 = 44;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

/// An IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// The Differentiated Services codepoint of the IPv6 packet, below 64 (RFC 2474).
    pub dscp: u8,
    /// The ECN field of the IPv6 packet.
    pub ecn: Ecn,
    /// The type of the header that follows the IPv6 header.
    pub next: u8,
    /// The IPv6 hop limit. It is 255 in messages of neighbour discovery.
    pub hops: u8,
    /// The source address of the IPv6 packet.
    pub from: Ipv6Addr,
    /// The destination address of the IPv6 packet.
    pub to: Ipv6Addr,
}

/// An IPv6 fragment header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// The type of the first header of the fragmented payload.
    pub next: u8,
    /// The offset in bytes of this IPv6 fragment in the packet's payload: a multiple of 8.
    pub offset: u16,
    /// The IPv6 fragment is not the last of its packet.
    pub more: bool,
    /// The IPv6 identification, which all fragments of a packet share.
    pub ident: u32,
}

/// The reason why bytes are not a valid IPv6 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ipv6ParseError {
    /// The IPv6 packet is shorter than its length says.
    Length,
    /// The version in the IP header is not 6.
    Version,
}

impl Ipv6 {
    /// Parses the IPv6 header of `packet`. Returns it and the bytes behind it without padding.
    ///
    /// # Errors
    /// [`Ipv6ParseError`] if the packet is truncated or of another version.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Ipv6ParseError> {
        let (header, rest) = Self::quoted(packet)?;
        let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
        Ok((header, rest.get(..len).ok_or(Ipv6ParseError::Length)?))
    }

    /// Parses the IPv6 header of a packet that an ICMPv6 error quotes. Returns it and the quoted
    /// part of the rest.
    ///
    /// # Errors
    /// [`Ipv6ParseError`] if the header is truncated or of another version.
    #[inline]
    pub fn quoted(packet: &[u8]) -> Result<(Self, &[u8]), Ipv6ParseError> {
        let (h, rest) = packet.split_first_chunk::<HEADER>().ok_or(Ipv6ParseError::Length)?;
        if h[0] >> 4 != 6 {
            return Err(Ipv6ParseError::Version);
        }
        let address = |at: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&h[at..at + 16]);
            Ipv6Addr::from(bytes)
        };
        let class = h[0] << 4 | h[1] >> 4;
        let (dscp, ecn) = (class >> 2, Ecn::from_bits(class));
        Ok((Self { dscp, ecn, next: h[6], hops: h[7], from: address(8), to: address(24) }, rest))
    }

    /// Returns the IPv6 header in wire format, for a packet with `payload` bytes behind it,
    /// extension headers included, at most 65,535.
    #[must_use]
    pub fn emit(&self, payload: usize) -> [u8; HEADER] {
        let mut h = [0; HEADER];
        let class = self.dscp << 2 | self.ecn as u8;
        (h[0], h[1]) = (0x60 | class >> 4, class << 4);
        h[4..6].copy_from_slice(&(payload.min(0xffff) as u16).to_be_bytes());
        (h[6], h[7]) = (self.next, self.hops);
        h[8..24].copy_from_slice(&self.from.octets());
        h[24..40].copy_from_slice(&self.to.octets());
        h
    }

    /// Returns the sum of the IPv6 pseudo-header for an upper-layer packet of `protocol` and `len`
    /// bytes.
    #[inline]
    #[must_use]
    pub fn pseudo(&self, protocol: u8, len: usize) -> Sum {
        let sum = Sum::new().bytes(&self.from.octets()).bytes(&self.to.octets());
        sum.word((len >> 16) as u16).word(len as u16).word(u16::from(protocol))
    }
}

/// The payload behind the extension headers of an IPv6 packet: a whole one or a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upper<'a> {
    /// An unfragmented IPv6 packet: the number of its upper protocol, and its payload.
    Whole(u8, &'a [u8]),
    /// An IPv6 fragment: its fragment header and its payload.
    Part(Fragment, &'a [u8]),
    /// An IPv6 packet that this host must drop: too many or truncated extension headers, an unknown
    /// option that must not be skipped, or a routing header with segments left.
    Bad,
}

/// Skips the IPv6 extension headers in `rest`, whose first header has the type `next`. Returns the
/// payload behind them.
#[inline]
#[must_use]
pub fn upper(mut next: u8, mut rest: &[u8]) -> Upper<'_> {
    for _ in 0..=EXTENSIONS {
        match next {
            HOP_BY_HOP | DESTINATION | ROUTING => {
                let Some(&[kind, words]) = rest.first_chunk() else { return Upper::Bad };
                let len = 8 * (usize::from(words) + 1);
                let Some((header, behind)) = rest.split_at_checked(len) else { return Upper::Bad };
                let may_skip =
                    if next == ROUTING { header[3] == 0 } else { may_skip_options(&header[2..]) };
                if !may_skip {
                    return Upper::Bad;
                }
                (next, rest) = (kind, behind);
            }
            FRAGMENTED => {
                return Fragment::parse(rest)
                    .map_or(Upper::Bad, |(fragment, part)| Upper::Part(fragment, part));
            }
            protocol => return Upper::Whole(protocol, rest),
        }
    }
    Upper::Bad
}

/// Returns true if all options of an IPv6 extension header may be skipped: the two high bits of an
/// unknown option are 0 (RFC 8200 section 4.2).
fn may_skip_options(mut rest: &[u8]) -> bool {
    while let Some((&kind, behind)) = rest.split_first() {
        if kind == 0 {
            rest = behind;
            continue;
        }
        let Some((&len, data)) = behind.split_first() else { return false };
        let Some(behind) = data.get(usize::from(len)..) else { return false };
        if kind & 0xc0 != 0 {
            return false;
        }
        rest = behind;
    }
    true
}

impl Fragment {
    /// Parses the IPv6 fragment header at the start of `bytes`. Returns it and the fragment.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[next, _, a, b, c, d, e, f], part) = bytes.split_first_chunk::<FRAGMENT>()?;
        let bits = u16::from_be_bytes([a, b]);
        let ident = u32::from_be_bytes([c, d, e, f]);
        Some((Self { next, offset: bits & !7, more: bits & 1 != 0, ident }, part))
    }

    /// Returns the IPv6 fragment header in wire format.
    #[must_use]
    pub fn emit(&self) -> [u8; FRAGMENT] {
        let [a, b] = (self.offset & !7 | u16::from(self.more)).to_be_bytes();
        let [c, d, e, f] = self.ident.to_be_bytes();
        [self.next, 0, a, b, c, d, e, f]
    }
}

/// Returns the link-local IPv6 address of a MAC address (RFC 4291 appendix A).
#[must_use]
pub const fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let (first, last) = (u16::from_be_bytes([a ^ 2, b]), u16::from_be_bytes([e, f]));
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        first,
        u16::from_be_bytes([c, 0xff]),
        u16::from_be_bytes([0xfe, d]),
        last,
    )
}

/// Returns the solicited-node multicast group of an IPv6 address (RFC 4291 section 2.7.1).
#[must_use]
pub const fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let [_, _, _, _, _, _, low, last] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | low & 0xff, last)
}

/// Returns the MAC address of an IPv6 multicast group (RFC 2464 section 7).
#[must_use]
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// The IPv6 multicast group of all nodes of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
