//! The fields of IP headers that a program chooses: Differentiated Services and time to live.
//!
//! ```text
//!  bits 15..8 time to live, or hop limit   7..2 DSCP   1..0 room for ECN
//! ```
//!
//! Both bytes have their places in the words of an IPv4 header. So the sum of such a header takes
//! them as one word.

use crate::wire::ipv4::Ecn;

/// The time to live or hop limit of IP packets whose program chooses none (RFC 1700).
pub(in crate::net) const TTL: u8 = 64;

/// The fields of IP headers that a program chooses for its packets: the Differentiated Services
/// codepoint and the time to live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpFields {
    word: u16,
}

impl Default for IpFields {
    fn default() -> Self {
        Self::new(0, TTL)
    }
}

impl IpFields {
    /// Returns the fields with a Differentiated Services codepoint, of which the lower six bits
    /// count, and a time to live. No packet leaves with a time to live of 0 (RFC 1122 3.2.1.7): it
    /// counts as 1.
    #[must_use]
    pub const fn new(dscp: u8, ttl: u8) -> Self {
        let ttl = if ttl == 0 { 1 } else { ttl };
        Self { word: u16::from_be_bytes([ttl, dscp << 2]) }
    }

    /// Returns the Differentiated Services codepoint, which is below 64.
    #[must_use]
    pub const fn dscp(self) -> u8 {
        self.word as u8 >> 2
    }

    /// Returns the time to live over IPv4, and the hop limit over IPv6.
    #[must_use]
    pub const fn ttl(self) -> u8 {
        (self.word >> 8) as u8
    }

    /// Returns the time to live in the high byte, and in the low byte the byte of an IP header that
    /// has the codepoint and the ECN field.
    #[inline]
    pub(in crate::net) const fn with(self, ecn: Ecn) -> u16 {
        self.word | ecn as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_within_their_bits() {
        for dscp in 0..=u8::MAX {
            for ttl in 0..=u8::MAX {
                let fields = IpFields::new(dscp, ttl);
                assert_eq!((fields.dscp(), fields.ttl()), (dscp & 63, ttl.max(1)));
                let [first, second] = fields.with(Ecn::Ect0).to_be_bytes();
                assert_eq!((first, second), (ttl.max(1), dscp << 2 | 2));
            }
        }
    }
}
