//! Ethernet headers (IEEE 802.3, with a type as in RFC 894): 14 bytes.
//!
//! ```text
//!  0 destination(6)   6 source(6)   12 u16 type   14 payload
//! ```
//!
//! Always: [`Ethernet::parse`] reads back what [`Ethernet::emit`] writes. Not here: lengths in
//! place of a type (802.2) and VLAN tags. They parse as types that no protocol above handles.

use crate::device::Mac;

/// The length of an Ethernet header in bytes.
pub const HEADER: usize = crate::device::HEADER;

/// The value of the Ethernet type field for IPv4.
pub const IPV4: u16 = 0x0800;
/// The value of the Ethernet type field for ARP.
pub const ARP: u16 = 0x0806;
/// The value of the Ethernet type field for RARP.
pub const RARP: u16 = 0x8035;
/// The value of the Ethernet type field for IPv6.
pub const IPV6: u16 = 0x86dd;

/// An Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// The MAC address of the frame's destination.
    pub to: Mac,
    /// The MAC address of the frame's source.
    pub from: Mac,
    /// The Ethernet type: the protocol of the payload.
    pub kind: u16,
}

impl Ethernet {
    /// Parses the Ethernet header of `frame`. Returns it and the payload, padding included.
    #[inline]
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (h, payload) = frame.split_first_chunk::<HEADER>()?;
        let &[a, b, c, d, e, f, g, i, j, k, l, m, high, low] = h;
        let (to, from) = (Mac([a, b, c, d, e, f]), Mac([g, i, j, k, l, m]));
        Some((Self { to, from, kind: u16::from_be_bytes([high, low]) }, payload))
    }

    /// Returns the Ethernet header in wire format.
    #[inline]
    #[must_use]
    pub const fn emit(&self) -> [u8; HEADER] {
        let ([a, b, c, d, e, f], [g, i, j, k, l, m]) = (self.to.0, self.from.0);
        let [high, low] = self.kind.to_be_bytes();
        [a, b, c, d, e, f, g, i, j, k, l, m, high, low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of an Ethernet frame that Linux 6 sent over veth.
    const FRAME: [u8; 16] = [2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 8, 0, 0x45, 0];

    #[test]
    fn golden() {
        let (header, payload) = Ethernet::parse(&FRAME).unwrap();
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        assert_eq!(header, Ethernet { to: mac(0xb), from: mac(0xa), kind: IPV4 });
        assert_eq!((header.emit(), payload), (*FRAME.first_chunk().unwrap(), &FRAME[14..]));
    }

    #[test]
    fn short_frames_are_rejected() {
        assert!((0..HEADER).all(|len| Ethernet::parse(&FRAME[..len]).is_none()));
        assert!(Ethernet::parse(&FRAME[..HEADER]).unwrap().1.is_empty());
    }
}
