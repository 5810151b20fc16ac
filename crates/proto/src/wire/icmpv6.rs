//! ICMPv6 messages (RFC 4443): echo, the errors that a host sends and obeys, and neighbour discovery (RFC 4861).
//!
//! ```text
//!  0 u8 type   1 u8 code   2 u16 checksum of a pseudo-header and all
//!  echo 128, reply 129    4 u16 identifier   6 u16 number   8 data
//!  unreachable 1          4 u32 zero         8 the packet
//!  too big 2              4 u32 mtu          8 the packet
//!  solicitation 135       4 u32 zero                 8 target(16)   24 options
//!  advertisement 136      4 u8 R 0x80 S 0x40 O 0x20  8 target(16)   24 options
//!  option                 0 u8 type   1 u8 length / 8   2 data      1 the source's, 2 the target's mac(6)
//! ```
//!
//! Always: what [`Icmpv6::emit`] appends, [`Icmpv6::parse`] reads back. The checksum is compared here. Not here: whether a
//! message came from a neighbour at all (its hops are 255), which its IPv6 header says; routers' messages.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::ipv6::{ICMPV6, Ipv6};
use crate::device::Mac;

#[cfg(test)]
mod tests;

/// Octets before an echo's data or an error's quotation.
pub const HEADER: usize = 8;

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

/// What a message says. What follows an echo's or an error's header comes beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv6 {
    /// Say this again.
    Echo {
        /// Whose it is.
        ident: u16,
        /// Which of his.
        seq: u16,
    },
    /// It is said again.
    Reply {
        /// Whose it was.
        ident: u16,
        /// Which of his.
        seq: u16,
    },
    /// Nobody listens at the port.
    PortUnreachable,
    /// Unreachable for another reason.
    Unreachable {
        /// Which.
        code: u8,
    },
    /// The packet is too big for a link.
    TooBig {
        /// What that link carries.
        mtu: u32,
    },
    /// Who has this address?
    Solicit {
        /// The address.
        target: Ipv6Addr,
        /// Who asks, unless he has no address yet.
        mac: Option<Mac>,
    },
    /// He who has it.
    Advertise {
        /// The address.
        target: Ipv6Addr,
        /// His hardware address.
        mac: Option<Mac>,
        /// He is a router.
        router: bool,
        /// He was asked.
        solicited: bool,
        /// What is known about him otherwise is no longer true.
        replaces: bool,
    },
    /// Another type.
    Other(u8),
}

/// Why octets are no ICMPv6 message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// Shorter than a header, an option longer than what there is or of no length.
    Length,
    /// The checksum is wrong.
    Checksum,
}

impl Icmpv6 {
    /// The message in a packet with the header `ip`, and what follows its header.
    ///
    /// # Errors
    /// [`Bad`].
    pub fn parse<'a>(ip: &Ipv6, message: &'a [u8]) -> Result<(Self, &'a [u8]), Bad> {
        let (&[kind, code, _, _, a, b, c, d], data) =
            message.split_first_chunk::<HEADER>().ok_or(Bad::Length)?;
        if ip.pseudo(ICMPV6, message.len()).bytes(message).checksum() != 0 {
            return Err(Bad::Checksum);
        }
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let message = match (kind, code) {
            (ECHO, 0) => Self::Echo { ident: first, seq: second },
            (REPLY, 0) => Self::Reply { ident: first, seq: second },
            (UNREACHABLE, PORT) => Self::PortUnreachable,
            (UNREACHABLE, code) => Self::Unreachable { code },
            (TOO_BIG, _) => Self::TooBig { mtu: u32::from_be_bytes([a, b, c, d]) },
            (SOLICIT, 0) => {
                let (target, mac) = about(data, SOURCE_MAC)?;
                Self::Solicit { target, mac }
            }
            (ADVERTISE, 0) => {
                let (target, mac) = about(data, TARGET_MAC)?;
                let [router, solicited, replaces] =
                    [ROUTER, SOLICITED, OVERRIDE].map(|bit| a & bit != 0);
                Self::Advertise { target, mac, router, solicited, replaces }
            }
            _ => Self::Other(kind),
        };
        Ok((message, data))
    }

    /// The message with `data` behind its header, for a packet with the header `ip`. Neighbour discovery's have no data.
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

/// The target of neighbour discovery and the hardware address in the option of kind `wanted`.
fn about(data: &[u8], wanted: u8) -> Result<(Ipv6Addr, Option<Mac>), Bad> {
    let (&target, mut rest) = data.split_first_chunk::<16>().ok_or(Bad::Length)?;
    let mut mac = None;
    while let Some(&kind) = rest.first() {
        let words = usize::from(*rest.get(1).ok_or(Bad::Length)?);
        // An option of no length would go on for ever (RFC 4861 section 7.1: such a message is dropped).
        let (option, behind) =
            rest.split_at_checked(8 * words).filter(|_| words > 0).ok_or(Bad::Length)?;
        if let (true, &[_, _, a, b, c, d, e, f]) = (kind == wanted, option) {
            mac = Some(Mac([a, b, c, d, e, f]));
        }
        rest = behind;
    }
    Ok((target.into(), mac))
}
