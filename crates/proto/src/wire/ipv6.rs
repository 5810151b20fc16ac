//! IPv6 headers (RFC 8200): 40 octets, and the extension headers that a host must pass over or obey.
//!
//! ```text
//!  0 u4 6  u8 class  u20 flow   4 u16 length behind this   6 u8 next header   7 u8 hops   8 source(16)   24 destination(16)
//!
//!  fragment   0 u8 next header   1 zero   2 u13 offset / 8  u2 zero  u1 more   4 u32 identification
//!  others     0 u8 next header   1 u8 length / 8 - 1   2 options: u8 type  u8 length  data
//! ```
//!
//! Always: what [`Ipv6::emit`] writes, [`Ipv6::parse`] reads back. No more than [`EXTENSIONS`] extension headers are passed
//! over. Not here: fragments put together (`net`).

use core::net::Ipv6Addr;

use super::checksum::Sum;
use crate::device::Mac;

#[cfg(test)]
mod tests;

/// Octets of the header.
pub const HEADER: usize = 40;
/// Octets of a fragment header.
pub const FRAGMENT: usize = 8;
/// Extension headers that a packet may have before its payload.
pub const EXTENSIONS: usize = 4;

/// The next header of UDP.
pub const UDP: u8 = 17;
/// The next header of ICMPv6.
pub const ICMPV6: u8 = 58;
/// The next header of a fragment header.
pub const FRAGMENTED: u8 = 44;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// What follows.
    pub next: u8,
    /// Routers that it may still pass; of what a neighbour sent to a neighbour it is 255.
    pub hops: u8,
    /// Who sent it.
    pub from: Ipv6Addr,
    /// Whom it is for.
    pub to: Ipv6Addr,
}

/// A fragment header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// What the fragments' payload begins with.
    pub next: u8,
    /// Where in it this one begins: a multiple of 8.
    pub offset: u16,
    /// It is not the last one.
    pub more: bool,
    /// Which fragments belong together.
    pub ident: u32,
}

/// Why octets are no IPv6 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// Shorter than it says.
    Length,
    /// Another version.
    Version,
}

impl Ipv6 {
    /// The header of `packet`, and what follows; padding behind it is cut off.
    ///
    /// # Errors
    /// [`Bad`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Bad> {
        let (header, rest) = Self::quoted(packet)?;
        let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
        Ok((header, rest.get(..len).ok_or(Bad::Length)?))
    }

    /// The header at the start of what an ICMPv6 message quotes, and what is there of the rest.
    ///
    /// # Errors
    /// [`Bad`].
    #[inline]
    pub fn quoted(packet: &[u8]) -> Result<(Self, &[u8]), Bad> {
        let (h, rest) = packet.split_first_chunk::<HEADER>().ok_or(Bad::Length)?;
        if h[0] >> 4 != 6 {
            return Err(Bad::Version);
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&h[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        Ok((Self { next: h[6], hops: h[7], from: address(8), to: address(24) }, rest))
    }

    /// The header of a packet with `payload` octets behind it, extension headers included; at most 65,535.
    #[must_use]
    pub fn emit(&self, payload: usize) -> [u8; HEADER] {
        let mut h = [0; HEADER];
        h[0] = 0x60;
        h[4..6].copy_from_slice(&(payload.min(0xffff) as u16).to_be_bytes());
        (h[6], h[7]) = (self.next, self.hops);
        h[8..24].copy_from_slice(&self.from.octets());
        h[24..40].copy_from_slice(&self.to.octets());
        h
    }

    /// The sum of the pseudo-header for `len` octets of an upper-layer packet of `protocol`.
    #[inline]
    #[must_use]
    pub fn pseudo(&self, protocol: u8, len: usize) -> Sum {
        let sum = Sum::new().bytes(&self.from.octets()).bytes(&self.to.octets());
        sum.word((len >> 16) as u16).word(len as u16).word(u16::from(protocol))
    }
}

/// What stands behind the extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upper<'a> {
    /// A whole packet of this protocol.
    Whole(u8, &'a [u8]),
    /// A fragment, and its octets.
    Part(Fragment, &'a [u8]),
    /// Not for a host that obeys RFC 8200: too many extension headers, cut short, an option that forbids it, a route that
    /// goes on elsewhere.
    Bad,
}

/// Passes over the extension headers in `rest`, which begins with a header of kind `next`.
#[inline]
#[must_use]
pub fn upper(mut next: u8, mut rest: &[u8]) -> Upper<'_> {
    for _ in 0..=EXTENSIONS {
        match next {
            HOP_BY_HOP | DESTINATION | ROUTING => {
                let Some(&[kind, words]) = rest.first_chunk() else { return Upper::Bad };
                let len = 8 * (usize::from(words) + 1);
                let Some((header, behind)) = rest.split_at_checked(len) else { return Upper::Bad };
                let obeyed = if next == ROUTING { header[3] == 0 } else { options(&header[2..]) };
                if !obeyed {
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

/// True if all options may be passed over: those that nobody here knows must have the two high bits clear (section 4.2).
fn options(mut rest: &[u8]) -> bool {
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
    /// The fragment header at the start of `bytes`, and the fragment.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[next, _, a, b, c, d, e, f], part) = bytes.split_first_chunk::<FRAGMENT>()?;
        let bits = u16::from_be_bytes([a, b]);
        let ident = u32::from_be_bytes([c, d, e, f]);
        Some((Self { next, offset: bits & !7, more: bits & 1 != 0, ident }, part))
    }

    /// The header as it is sent.
    #[must_use]
    pub fn emit(&self) -> [u8; FRAGMENT] {
        let [a, b] = (self.offset & !7 | u16::from(self.more)).to_be_bytes();
        let [c, d, e, f] = self.ident.to_be_bytes();
        [self.next, 0, a, b, c, d, e, f]
    }
}

/// The link-local address that a hardware address stands for (RFC 4291 appendix A).
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

/// The group of those whose address may be `address` (RFC 4291 section 2.7.1).
#[must_use]
pub const fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let [_, _, _, _, _, _, low, last] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | low & 0xff, last)
}

/// The hardware address of a group (RFC 2464 section 7).
#[must_use]
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// All nodes of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
