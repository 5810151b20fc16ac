//! ICMP errors: those that the IP stack sends, and the packets that received ones quote.
//!
//! Always: the stack sends no more errors than its rate limit allows, none longer than RFC 1812
//! section 4.3.2.3 and RFC 4443 section 2.4 allow. It accepts an error only if it quotes a datagram
//! from a bound port to a destination with a cached route (RFC 5927 section 4); the caller checks
//! port and route.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::fields::TTL;
use super::output::udp4_header;
use crate::Instant;
use crate::time::SECOND;
use crate::wire::icmp::{self, Icmp};
use crate::wire::icmpv6::{self, Icmpv6};
use crate::wire::ipv4::{self, Ecn, Ipv4};
use crate::wire::ipv6::{self, Fragment, Ipv6};

/// The longest IP packets that the stack sends with an ICMP error, in bytes: 576 over IPv4, 1280
/// over IPv6.
const MAX_ERROR_V4: usize = 576;
const MAX_ERROR_V6: usize = 1280;

/// The rate limit of ICMP errors that the stack sends: a window of one second.
#[derive(Debug, Default)]
pub(in crate::net) struct ErrorLimit {
    window_start: Instant,
    sent: u32,
}

impl ErrorLimit {
    /// Returns true if one more ICMP error may be sent, and counts it.
    pub(in crate::net) fn allows(&mut self, now: Instant, per_second: u32) -> bool {
        if now.since(self.window_start) >= SECOND || self.sent == 0 {
            (self.window_start, self.sent) = (now, 0);
        }
        if self.sent >= per_second {
            return false;
        }
        self.sent += 1;
        true
    }
}

/// Builds the ICMP error "port unreachable" about a UDP `datagram` from `from` to our address
/// `own`. Returns the protocol number and the ICMP message.
pub(in crate::net) fn port_unreachable(
    from: IpAddr,
    own: IpAddr,
    datagram: &[u8],
) -> Option<(u8, Vec<u8>)> {
    match (own, from) {
        (IpAddr::V4(own), IpAddr::V4(from)) => {
            let header = udp4_header(from, own).emit(datagram.len());
            let room = MAX_ERROR_V4 - 2 * ipv4::HEADER - icmp::HEADER;
            let quoted = [&header[..], &datagram[..datagram.len().min(room)]].concat();
            let header = Icmp::PortUnreachable.emit(&quoted);
            Some((ipv4::ICMP, [&header[..], &quoted].concat()))
        }
        (IpAddr::V6(own), IpAddr::V6(from)) => {
            let header =
                Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ipv6::UDP, hops: TTL, from, to: own }
                    .emit(datagram.len());
            let room = MAX_ERROR_V6 - 2 * ipv6::HEADER - icmpv6::HEADER;
            let quoted = [&header[..], &datagram[..datagram.len().min(room)]].concat();
            let ip = Ipv6 {
                dscp: 0,
                ecn: Ecn::NotEct,
                next: ipv6::ICMPV6,
                hops: 0,
                from: own,
                to: from,
            };
            Some((ipv6::ICMPV6, Icmpv6::PortUnreachable.emit(&ip, &quoted)))
        }
        _ => None,
    }
}

/// The UDP datagram or TCP segment that an ICMP error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) struct Quoted {
    /// The source address of the quoted packet.
    pub(in crate::net) from: IpAddr,
    /// The source port of the quoted packet.
    pub(in crate::net) port: u16,
    /// The destination address and port of the quoted packet.
    pub(in crate::net) to: SocketAddr,
    /// The sequence number of a TCP segment. A UDP datagram has none.
    pub(in crate::net) seq: Option<u32>,
    /// The length of the quoted packet in bytes.
    pub(in crate::net) len: usize,
}

impl Quoted {
    /// Parses the packet that an ICMP error quotes: a UDP datagram, a TCP segment or its first
    /// fragment.
    pub(in crate::net) fn parse4(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = Ipv4::quoted(bytes)?;
        let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let is_first = header.offset == 0;
        let upper = is_first.then(|| upper(header.protocol, rest))??;
        Some(Self::new(header.from.into(), header.to.into(), len, upper))
    }

    /// Parses the packet that an ICMPv6 error quotes: a UDP datagram, a TCP segment or its
    /// first fragment.
    pub(in crate::net) fn parse6(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = Ipv6::quoted(bytes).ok()?;
        let len = usize::from(u16::from_be_bytes([bytes[4], bytes[5]])) + ipv6::HEADER;
        let (protocol, rest) = match header.next {
            ipv6::FRAGMENTED => {
                let (fragment, rest) = Fragment::parse(rest).filter(|(f, _)| f.offset == 0)?;
                (fragment.next, rest)
            }
            protocol => (protocol, rest),
        };
        let upper = upper(protocol, rest)?;
        Some(Self::new(header.from.into(), header.to.into(), len, upper))
    }

    fn new(from: IpAddr, to: IpAddr, len: usize, upper: Upper) -> Self {
        let Upper { port, to_port, seq } = upper;
        Self { from, port, to: SocketAddr::new(to, to_port), seq, len }
    }
}

/// The beginning of a quoted UDP or TCP header.
struct Upper {
    port: u16,
    to_port: u16,
    seq: Option<u32>,
}

/// Parses the eight bytes of a UDP or TCP header that each ICMP error quotes at least.
fn upper(protocol: u8, bytes: &[u8]) -> Option<Upper> {
    let &[a, b, c, d, rest @ ..] = bytes.first_chunk::<8>()?;
    let seq = match protocol {
        ipv4::UDP => None,
        ipv4::TCP => Some(u32::from_be_bytes(rest)),
        _ => return None,
    };
    Some(Upper { port: u16::from_be_bytes([a, b]), to_port: u16::from_be_bytes([c, d]), seq })
}
