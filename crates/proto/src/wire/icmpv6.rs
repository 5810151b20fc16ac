//! ICMPv6 messages (RFC 4443): echo, the errors that a host sends and handles, and neighbour
//! discovery (RFC 4861).
//!
//! ```text
//!  0 u8 type   1 u8 code   2 u16 checksum of the pseudo-header and the message
//!  echo 128, reply 129    4 u16 identifier   6 u16 sequence number   8 data
//!  unreachable 1          4 u32 zero         8 the packet
//!  too big 2              4 u32 MTU          8 the packet
//!  solicitation 135       4 u32 zero                 8 target(16)   24 options
//!  advertisement 136      4 u8 R 0x80 S 0x40 O 0x20  8 target(16)   24 options
//!  option                 0 u8 type   1 u8 length / 8   2 data
//!                         type 1: source MAC(6), type 2: target MAC(6)
//! ```
//!
//! Always: [`Icmpv6::parse`] reads back what [`Icmpv6::emit`] writes, and verifies the checksum.
//! Not here: the check that a message comes from a neighbour (its hop limit is 255); router
//! messages.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::ipv6::{ICMPV6, Ipv6};
use crate::device::Mac;

#[cfg(test)]
mod tests;

/// The length of an ICMPv6 header in bytes. The data of an echo or the packet of an error follows
/// it.
pub const HEADER: usize = 8;

/// The type of the ICMPv6 error "time exceeded".
pub const TIME_EXCEEDED: u8 = 3;
/// The type of the ICMPv6 error "parameter problem".
pub const PARAMETER_PROBLEM: u8 = 4;

const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const ECHO: u8 = 128;
const REPLY: u8 = 129;
const SOLICIT: u8 = 135;
const ADVERTISE: u8 = 136;
const PORT: u8 = 4;
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// An ICMPv6 message, without the data of an echo or the packet of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv6 {
    /// An ICMPv6 echo request.
    Echo {
        /// The identifier that the sender of the echo request chose.
        ident: u16,
        /// The sequence number of the echo request.
        seq: u16,
    },
    /// An ICMPv6 echo reply.
    Reply {
        /// The identifier of the echo request that this reply answers.
        ident: u16,
        /// The sequence number of the echo request that this reply answers.
        seq: u16,
    },
    /// The ICMPv6 error "port unreachable".
    PortUnreachable,
    /// The ICMPv6 error "destination unreachable" with another code than "port unreachable".
    Unreachable {
        /// The ICMPv6 code of the error "destination unreachable".
        code: u8,
    },
    /// The ICMPv6 error "packet too big".
    TooBig {
        /// The MTU in bytes of the link that the packet was too big for.
        mtu: u32,
    },
    /// A neighbour solicitation.
    Solicit {
        /// The IPv6 address that a neighbour solicitation asks about.
        target: Ipv6Addr,
        /// The MAC address of the solicitation's sender; none in a probe of duplicate address
        /// detection.
        mac: Option<Mac>,
    },
    /// A neighbour advertisement.
    Advertise {
        /// The IPv6 address that the sender of the advertisement has.
        target: Ipv6Addr,
        /// The MAC address of the advertisement's sender.
        mac: Option<Mac>,
        /// The R flag of a neighbour advertisement: the sender is a router.
        router: bool,
        /// The S flag: the advertisement answers a solicitation.
        solicited: bool,
        /// The O flag of a neighbour advertisement: the MAC address overrides a cached one.
        replaces: bool,
    },
    /// An ICMPv6 message of a type that the host does not handle. The value is the type.
    Other(u8),
}

/// The reason why bytes are not a valid ICMPv6 message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv6ParseError {
    /// The ICMPv6 message or one of its options is truncated, or the length of an option is 0.
    Length,
    /// The checksum of the ICMPv6 message is wrong.
    Checksum,
}

impl Icmpv6 {
    /// Parses an ICMPv6 message in a packet with the header `ip`. Returns it and the data behind
    /// its header.
    ///
    /// # Errors
    /// [`Icmpv6ParseError`] if the message is truncated or damaged.
    pub fn parse<'a>(ip: &Ipv6, message: &'a [u8]) -> Result<(Self, &'a [u8]), Icmpv6ParseError> {
        let (&[kind, code, _, _, a, b, c, d], data) =
            message.split_first_chunk::<HEADER>().ok_or(Icmpv6ParseError::Length)?;
        if ip.pseudo(ICMPV6, message.len()).bytes(message).checksum() != 0 {
            return Err(Icmpv6ParseError::Checksum);
        }
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let message = match (kind, code) {
            (ECHO, 0) => Self::Echo { ident: first, seq: second },
            (REPLY, 0) => Self::Reply { ident: first, seq: second },
            (UNREACHABLE, PORT) => Self::PortUnreachable,
            (UNREACHABLE, code) => Self::Unreachable { code },
            (TOO_BIG, _) => Self::TooBig { mtu: u32::from_be_bytes([a, b, c, d]) },
            (SOLICIT, 0) => {
                let (target, mac) = parse_target(data, SOURCE_MAC)?;
                Self::Solicit { target, mac }
            }
            (ADVERTISE, 0) => {
                let (target, mac) = parse_target(data, TARGET_MAC)?;
                let [router, solicited, replaces] =
                    [ROUTER, SOLICITED, OVERRIDE].map(|bit| a & bit != 0);
                Self::Advertise { target, mac, router, solicited, replaces }
            }
            _ => Self::Other(kind),
        };
        Ok((message, data))
    }

    /// Returns the ICMPv6 message in wire format with `data` behind its header, for a packet with
    /// the header `ip`. Messages of neighbour discovery have no data.
    #[must_use]
    pub fn emit(&self, ip: &Ipv6, data: &[u8]) -> Vec<u8> {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let pair = |ident: u16, seq: u16| {
            let ([a, b], [c, d]) = (ident.to_be_bytes(), seq.to_be_bytes());
            [a, b, c, d]
        };
        let (kind, code, word) = match *self {
            Self::Echo { ident, seq } => (ECHO, 0, pair(ident, seq)),
            Self::Reply { ident, seq } => (REPLY, 0, pair(ident, seq)),
            Self::PortUnreachable => (UNREACHABLE, PORT, [0; 4]),
            Self::Unreachable { code } => (UNREACHABLE, code, [0; 4]),
            Self::TooBig { mtu } => (TOO_BIG, 0, mtu.to_be_bytes()),
            Self::Solicit { .. } => (SOLICIT, 0, [0; 4]),
            Self::Advertise { router, solicited, replaces, .. } => {
                let flags =
                    flag(router, ROUTER) | flag(solicited, SOLICITED) | flag(replaces, OVERRIDE);
                (ADVERTISE, 0, [flags, 0, 0, 0])
            }
            Self::Other(kind) => (kind, 0, [0; 4]),
        };
        let mut out = Vec::with_capacity(HEADER + data.len().max(24));
        out.extend([kind, code, 0, 0]);
        out.extend(word);
        match *self {
            Self::Solicit { target, mac } => append(&mut out, target, SOURCE_MAC, mac),
            Self::Advertise { target, mac, .. } => append(&mut out, target, TARGET_MAC, mac),
            _ => out.extend_from_slice(data),
        }
        let checksum = ip.pseudo(ICMPV6, out.len()).bytes(&out).checksum();
        out[2..4].copy_from_slice(&checksum.to_be_bytes());
        out
    }
}

fn append(out: &mut Vec<u8>, target: Ipv6Addr, option: u8, mac: Option<Mac>) {
    out.extend(target.octets());
    if let Some(mac) = mac {
        out.extend([option, 1]);
        out.extend(mac.0);
    }
}

/// Parses the target of a neighbour discovery message, and the MAC address in the option of type
/// `wanted`.
fn parse_target(data: &[u8], wanted: u8) -> Result<(Ipv6Addr, Option<Mac>), Icmpv6ParseError> {
    let (&target, mut rest) = data.split_first_chunk::<16>().ok_or(Icmpv6ParseError::Length)?;
    let mut mac = None;
    while let Some(&kind) = rest.first() {
        let words = usize::from(*rest.get(1).ok_or(Icmpv6ParseError::Length)?);
        // RFC 4861 section 7.1: a message with an option of length 0 is invalid.
        let (option, behind) = rest
            .split_at_checked(8 * words)
            .filter(|_| words > 0)
            .ok_or(Icmpv6ParseError::Length)?;
        if let (true, &[_, _, a, b, c, d, e, f]) = (kind == wanted, option) {
            mac = Some(Mac([a, b, c, d, e, f]));
        }
        rest = behind;
    }
    Ok((target.into(), mac))
}
