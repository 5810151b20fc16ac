//! IPv4 headers (RFC 791): 20 bytes, and up to 40 bytes of options, which the parser skips.
//!
//! ```text
//!   0 u4 version 4  u4 header length / 4   1 u6 DSCP  u2 ECN   2 u16 total length
//!   4 u16 identification   6 u3 flags  u13 offset / 8
//!   8 u8 time to live   9 u8 protocol   10 u16 header checksum
//!  12 source(4)   16 destination(4)
//! ```
//!
//! Always: [`Ipv4::parse`] reads back what [`Ipv4::emit`] writes, and verifies the header checksum.
//! Not here: reassembly of fragments (`net`).

use core::net::Ipv4Addr;

use super::checksum::Sum;

/// The length of an IPv4 header without options, in bytes.
pub const HEADER: usize = 20;

/// The number of ICMP in an IPv4 header's protocol field.
pub const ICMP: u8 = 1;
/// The number of TCP in an IPv4 header's protocol field, and in an IPv6 header's next header.
pub const TCP: u8 = 6;
/// The number of UDP in an IPv4 header's protocol field.
pub const UDP: u8 = 17;

/// The IPv4 flag "don't fragment".
const DF: u16 = 0x4000;
/// The IPv4 flag "more fragments".
const MF: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// The ECN field of an IP header (RFC 3168 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ecn {
    /// The ends of the transport do not understand marks of congestion.
    #[default]
    NotEct = 0,
    /// The ends of the transport understand marks: ECT(1), which experiments use (RFC 8311).
    Ect1 = 1,
    /// The ends of the transport understand marks: ECT(0).
    Ect0 = 2,
    /// A router has marked the packet instead of dropping it: congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// Returns the ECN field whose two bits are the lowest of `bits`.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// An IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// The Differentiated Services codepoint of the IPv4 packet, below 64 (RFC 2474).
    pub dscp: u8,
    /// The ECN field of the IPv4 packet.
    pub ecn: Ecn,
    /// The IPv4 flag "don't fragment": routers must not fragment the packet.
    pub dont_fragment: bool,
    /// The IPv4 flag "more fragments": the packet is a fragment, and not the last one.
    pub more: bool,
    /// The offset in bytes of this IPv4 fragment in the payload of the datagram: a multiple of 8.
    pub offset: u16,
    /// The IPv4 identification, which all fragments of a datagram share.
    pub ident: u16,
    /// The IPv4 time to live, in hops.
    pub ttl: u8,
    /// The number of the protocol of the IPv4 packet's payload.
    pub protocol: u8,
    /// The source address of the IPv4 packet.
    pub from: Ipv4Addr,
    /// The destination address of the IPv4 packet.
    pub to: Ipv4Addr,
}

/// The reason why bytes are not a valid IPv4 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ipv4ParseError {
    /// The IPv4 packet is shorter than its lengths say, or the lengths contradict each other.
    Length,
    /// The version in the IP header is not 4.
    Version,
    /// The checksum of the IPv4 header is wrong.
    Checksum,
}

impl Ipv4 {
    /// Parses the IPv4 header of `packet`. Returns it and the payload without padding.
    ///
    /// # Errors
    /// [`Ipv4ParseError`] if the packet is truncated, damaged or of another version.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Ipv4ParseError> {
        let h: &[u8; HEADER] = packet.first_chunk().ok_or(Ipv4ParseError::Length)?;
        if h[0] >> 4 != 4 {
            return Err(Ipv4ParseError::Version);
        }
        let (header, len) =
            (usize::from(h[0] & 15) * 4, usize::from(u16::from_be_bytes([h[2], h[3]])));
        let payload =
            packet.get(header..len).filter(|_| header >= HEADER).ok_or(Ipv4ParseError::Length)?;
        if Sum::new().bytes(&packet[..header]).checksum() != 0 {
            return Err(Ipv4ParseError::Checksum);
        }
        Ok((Self::read(h), payload))
    }

    /// Parses the IPv4 header of a packet that an ICMP error quotes. Returns it and the quoted part
    /// of the payload. The checksum is not verified, because routers may have changed the header.
    #[must_use]
    pub fn quoted(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let h: &[u8; HEADER] = bytes.first_chunk()?;
        let header = usize::from(h[0] & 15) * 4;
        (h[0] >> 4 == 4 && header >= HEADER).then_some(())?;
        Some((Self::read(h), bytes.get(header..)?))
    }

    fn read(h: &[u8; HEADER]) -> Self {
        let word = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        let address = |at: usize| Ipv4Addr::new(h[at], h[at + 1], h[at + 2], h[at + 3]);
        Self {
            dscp: h[1] >> 2,
            ecn: Ecn::from_bits(h[1]),
            dont_fragment: word(6) & DF != 0,
            more: word(6) & MF != 0,
            offset: (word(6) & OFFSET) * 8,
            ident: word(4),
            ttl: h[8],
            protocol: h[9],
            from: address(12),
            to: address(16),
        }
    }

    /// Returns true if the IPv4 packet is a fragment of a datagram.
    #[inline]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.more || self.offset != 0
    }

    /// Returns the IPv4 header in wire format, for a packet with `payload` bytes of payload, at
    /// most 65,515.
    #[must_use]
    pub fn emit(&self, payload: usize) -> [u8; HEADER] {
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        let len = (HEADER + payload).min(0xffff) as u16;
        let mut h = [0; HEADER];
        (h[0], h[1]) = (0x45, self.dscp << 2 | self.ecn as u8);
        h[2..4].copy_from_slice(&len.to_be_bytes());
        h[4..6].copy_from_slice(&self.ident.to_be_bytes());
        let flags =
            flag(self.dont_fragment, DF) | flag(self.more, MF) | ((self.offset / 8) & OFFSET);
        h[6..8].copy_from_slice(&flags.to_be_bytes());
        (h[8], h[9]) = (self.ttl, self.protocol);
        h[12..16].copy_from_slice(&self.from.octets());
        h[16..20].copy_from_slice(&self.to.octets());
        let checksum = Sum::new().bytes(&h).checksum();
        h[10..12].copy_from_slice(&checksum.to_be_bytes());
        h
    }

    /// Returns the sum of the IPv4 pseudo-header for `len` bytes of payload, with which a checksum
    /// begins.
    #[inline]
    #[must_use]
    pub fn pseudo(&self, len: usize) -> Sum {
        let sum = Sum::new().bytes(&self.from.octets()).bytes(&self.to.octets());
        sum.word(u16::from(self.protocol)).word(len as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IPv4 headers that Linux 6 sent: of a UDP datagram, and of the first and the last fragment of
    /// an echo request.
    const WHOLE: [u8; HEADER] =
        [0x45, 0, 0, 0x21, 0x0e, 0x9f, 0x40, 0, 0x40, 0x11, 0x18, 0x1d, 10, 7, 0, 1, 10, 7, 0, 2];
    const FIRST: [u8; HEADER] =
        [0x45, 0, 5, 0xdc, 0x89, 0xaa, 0x20, 0, 0x40, 1, 0xb7, 0x66, 10, 7, 0, 1, 10, 7, 0, 2];
    const LAST: [u8; HEADER] =
        [0x45, 0, 2, 0x24, 0x89, 0xaa, 0, 0xb9, 0x40, 1, 0xda, 0x65, 10, 7, 0, 1, 10, 7, 0, 2];

    fn whole() -> Ipv4 {
        Ipv4 {
            dscp: 0,
            ecn: Ecn::NotEct,
            dont_fragment: true,
            more: false,
            offset: 0,
            ident: 0x0e9f,
            ttl: 64,
            protocol: UDP,
            from: Ipv4Addr::new(10, 7, 0, 1),
            to: Ipv4Addr::new(10, 7, 0, 2),
        }
    }

    #[test]
    fn golden() {
        let fragment = Ipv4 { dont_fragment: false, ident: 0x89aa, protocol: ICMP, ..whole() };
        let first = Ipv4 { more: true, ..fragment };
        let last = Ipv4 { offset: 0xb9 * 8, ..fragment };
        for (bytes, header, payload) in
            [(WHOLE, whole(), 13), (FIRST, first, 1480), (LAST, last, 528)]
        {
            assert_eq!(Ipv4 { ecn: Ecn::Ce, ..header }.emit(payload)[1], 3);
            assert_eq!(Ipv4 { dscp: 46, ecn: Ecn::Ect0, ..header }.emit(payload)[1], 0xba);
            // Padding of a short frame is not part of the payload.
            let mut packet = bytes.to_vec();
            packet.resize(HEADER + payload + 9, 7);
            assert_eq!(Ipv4::parse(&packet), Ok((header, &packet[HEADER..HEADER + payload])));
            assert_eq!(header.emit(payload), bytes);
            assert_eq!(header.is_fragment(), header.protocol == ICMP);
        }
        let classed = Ipv4 { dscp: 46, ecn: Ecn::Ce, ..whole() };
        assert_eq!(Ipv4::parse(&classed.emit(0)), Ok((classed, &[][..])));
    }

    #[test]
    fn each_wrong_byte_of_a_header_is_detected() {
        let mut packet = WHOLE.to_vec();
        packet.resize(33, 1);
        for at in 0..HEADER {
            let mut bad = packet.clone();
            bad[at] ^= 0x10;
            assert!(Ipv4::parse(&bad).is_err(), "byte {at}");
        }
        assert!((0..33).all(|len| Ipv4::parse(&packet[..len]) == Err(Ipv4ParseError::Length)));
        packet[0] = 0x44;
        assert_eq!(Ipv4::parse(&packet), Err(Ipv4ParseError::Length));
        packet[0] = 0x65;
        assert_eq!(Ipv4::parse(&packet), Err(Ipv4ParseError::Version));
    }

    #[test]
    fn options_are_skipped() {
        let mut packet = whole().emit(4 + 2).to_vec();
        packet.extend([1, 1, 1, 0, 0xaa, 0xbb]);
        packet[0] = 0x46;
        packet[10..12].fill(0);
        let checksum = Sum::new().bytes(&packet[..24]).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(Ipv4::parse(&packet), Ok((whole(), &[0xaa, 0xbb][..])));
        assert_eq!(Ipv4::quoted(&packet), Some((whole(), &[0xaa, 0xbb][..])));
        assert_eq!(Ipv4::quoted(&packet[..23]), None);
    }
}
