//! Ethernet frames (IEEE 802.3, with a type as in RFC 894): 14 octets.
//!
//! ```text
//!  0 destination(6)   6 source(6)   12 u16 type   14 payload
//! ```
//!
//! Always: what [`Ethernet::emit`] writes, [`Ethernet::parse`] reads back. Not here: lengths in place of a type (802.2) and
//! VLAN tags, which are types like any other and known to nobody above.

use crate::device::Mac;

/// Octets of the header.
pub const HEADER: usize = crate::device::HEADER;

/// The type of IPv4.
pub const IPV4: u16 = 0x0800;
/// The type of ARP.
pub const ARP: u16 = 0x0806;
/// The type of RARP.
pub const RARP: u16 = 0x8035;
/// The type of IPv6.
pub const IPV6: u16 = 0x86dd;

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Whom it is for.
    pub to: Mac,
    /// Who sent it.
    pub from: Mac,
    /// What the payload is.
    pub kind: u16,
}

impl Ethernet {
    /// The header of `frame`, and what follows it, padding included.
    #[inline]
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (h, payload) = frame.split_first_chunk::<HEADER>()?;
        let &[a, b, c, d, e, f, g, i, j, k, l, m, high, low] = h;
        let (to, from) = (Mac([a, b, c, d, e, f]), Mac([g, i, j, k, l, m]));
        Some((Self { to, from, kind: u16::from_be_bytes([high, low]) }, payload))
    }

    /// The header as it is sent.
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

    /// The start of a frame that Linux 6 sent over veth.
    const FRAME: [u8; 16] = [2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 8, 0, 0x45, 0];

    #[test]
    fn golden() {
        let (header, payload) = Ethernet::parse(&FRAME).unwrap();
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        assert_eq!(header, Ethernet { to: mac(0xb), from: mac(0xa), kind: IPV4 });
        assert_eq!((header.emit(), payload), (*FRAME.first_chunk().unwrap(), &FRAME[14..]));
    }

    #[test]
    fn short_frames_are_none() {
        assert!((0..HEADER).all(|len| Ethernet::parse(&FRAME[..len]).is_none()));
        assert!(Ethernet::parse(&FRAME[..HEADER]).unwrap().1.is_empty());
    }
}
