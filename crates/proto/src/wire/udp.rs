//! UDP headers (RFC 768): 8 bytes.
//!
//! ```text
//!  0 u16 source port   2 u16 destination port
//!  4 u16 length, header included   6 u16 checksum, 0: none (IPv4 only)
//! ```
//!
//! Always: [`Udp::parse`] reads back what [`Udp::emit`] writes.

use super::checksum::Sum;

/// The length of a UDP header in bytes.
pub const HEADER: usize = 8;

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// The source port of the UDP datagram.
    pub from: u16,
    /// The destination port of the UDP datagram.
    pub to: u16,
    /// The UDP checksum field; 0 if the sender computed none.
    pub checksum: u16,
}

impl Udp {
    /// Parses the UDP header of `datagram`. Returns it and the payload without padding. The
    /// checksum is not verified.
    #[inline]
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let &[a, b, c, d, e, f, g, h] = datagram.first_chunk::<HEADER>()?;
        let payload = datagram.get(HEADER..usize::from(u16::from_be_bytes([e, f])))?;
        let word = |high, low| u16::from_be_bytes([high, low]);
        Some((Self { from: word(a, b), to: word(c, d), checksum: word(g, h) }, payload))
    }

    /// Returns the UDP header in wire format, for a datagram with `payload` bytes of payload, at
    /// most 65,527.
    #[inline]
    #[must_use]
    pub fn emit(&self, payload: usize) -> [u8; HEADER] {
        let ([a, b], [c, d]) = (self.from.to_be_bytes(), self.to.to_be_bytes());
        let [e, f] = ((HEADER + payload).min(0xffff) as u16).to_be_bytes();
        let [g, h] = self.checksum.to_be_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

/// Returns the value of the UDP checksum field for a sum. A checksum of 0 becomes 0xffff, because 0
/// means that there is none.
#[inline]
#[must_use]
pub const fn to_field(sum: Sum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::wire::{ipv4, ipv6};

    /// A UDP datagram that Linux 6 sent from 10.7.0.1 to 10.7.0.2.
    const V4: [u8; 13] = [0x12, 0x34, 0x56, 0x78, 0, 13, 0x29, 0x45, b's', b'p', b'r', b'a', b't'];
    /// A UDP datagram that Linux 6 sent from fe80::ff:fe00:a to fe80::ff:fe00:b.
    const V6: [u8; 13] = [0x12, 0x34, 0x56, 0x78, 0, 13, 0x42, 0x3f, b's', b'p', b'r', b'a', b't'];

    #[test]
    fn golden() {
        for bytes in [V4, V6] {
            let (header, payload) = Udp::parse(&bytes).unwrap();
            assert_eq!((header.from, header.to, payload), (0x1234, 0x5678, &b"sprat"[..]));
            assert_eq!(header.emit(5), bytes[..8]);
        }
    }

    #[test]
    fn checksums_equal_those_of_linux() {
        let [one, two] = [1, 2].map(|last| Ipv4Addr::new(10, 7, 0, last));
        let v4 = ipv4::Ipv4::parse(
            &ipv4::Ipv4 {
                dscp: 0,
                ecn: ipv4::Ecn::NotEct,
                dont_fragment: true,
                more: false,
                offset: 0,
                ident: 0,
                ttl: 64,
                protocol: ipv4::UDP,
                from: one,
                to: two,
            }
            .emit(0),
        )
        .unwrap()
        .0;
        let [a, b] = [0xa, 0xb].map(|last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, last));
        let v6 = ipv6::Ipv6 {
            dscp: 0,
            ecn: ipv4::Ecn::NotEct,
            next: ipv6::UDP,
            hops: 64,
            from: a,
            to: b,
        };
        for (bytes, pseudo) in [(V4, v4.pseudo(13)), (V6, v6.pseudo(ipv6::UDP, 13))] {
            assert_eq!(pseudo.bytes(&bytes).checksum(), 0);
            let mut unsummed = bytes;
            unsummed[6..8].fill(0);
            assert_eq!(to_field(pseudo.bytes(&unsummed)).to_be_bytes(), bytes[6..8]);
        }
        assert_eq!(to_field(Sum::new().word(0xffff)), 0xffff);
    }

    #[test]
    fn impossible_lengths_are_rejected() {
        assert!((0..13).all(|len| Udp::parse(&V4[..len]).is_none()));
        let mut bytes = V4;
        bytes[5] = 7;
        assert!(Udp::parse(&bytes).is_none());
        bytes[5] = 8;
        assert!(Udp::parse(&bytes).unwrap().1.is_empty());
    }
}
