//! Echo requests that an IP stack sends (ping), and their replies.
//!
//! Always: a reply counts only if it comes from the address that the request went to, has its
//! sequence number and its secret, and is the first one.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::net::context::Context;
use crate::net::event::StackEvent;
use crate::wire::icmp::{self, Icmp};
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv4::{self, Ecn};
use crate::wire::ipv6::{self, Ipv6};
use crate::{Instant, Rng};

/// The most echo requests that wait for a reply. A further one replaces the oldest.
const MAX_PENDING: usize = 64;
/// The length in bytes of the secret at the start of an echo request's data.
pub(in crate::net) const SECRET: usize = 8;
/// The most bytes of echo data that fit an IPv4 packet.
pub(in crate::net) const MAX_DATA: usize = 65_535 - ipv4::HEADER - icmp::HEADER;

/// The reason why an echo request cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PingError {
    /// The echo request's data is shorter than 8 or longer than 65,507 bytes.
    #[error("an echo request carries 8 to 65507 bytes of data")]
    Length,
    /// The IP stack has no route to the address of the echo request.
    #[error("no route to that address: choose one on the link, or configure a gateway")]
    NoRoute,
    /// The IP stack has no address of its own yet, from which to send the echo request.
    #[error("this stack has no address yet: wait for RARP or address detection, then retry")]
    NoAddress,
}

#[derive(Debug)]
struct Pending {
    to: IpAddr,
    seq: u16,
    secret: [u8; SECRET],
    sent: Instant,
}

/// The echo requests of this IP stack that wait for a reply.
#[derive(Debug)]
pub(in crate::net) struct EchoRequests {
    ident: u16,
    next_seq: u16,
    pending: VecDeque<Pending>,
}

impl EchoRequests {
    pub(in crate::net) fn new(rng: &mut Rng) -> Self {
        Self { ident: rng.u32() as u16, next_seq: 0, pending: VecDeque::new() }
    }

    /// Makes an echo request with `len` bytes of data. Returns its sequence number, the protocol
    /// number, and the ICMP message to send.
    pub(in crate::net) fn request(
        &mut self,
        cx: &mut Context,
        from: IpAddr,
        to: IpAddr,
        len: usize,
    ) -> (u16, u8, Vec<u8>) {
        let (ident, seq) = (self.ident, self.next_seq);
        let secret = cx.rng.u64().to_be_bytes();
        let mut data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        data[..SECRET].copy_from_slice(&secret);
        self.next_seq = seq.wrapping_add(1);
        if self.pending.len() == MAX_PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back(Pending { to, seq, secret, sent: cx.now });
        match (from, to) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ipv6::ICMPV6, hops: 0, from, to };
                (seq, ipv6::ICMPV6, Icmpv6::Echo { ident, seq }.emit(&ip, &data))
            }
            _ => {
                let header = Icmp::Echo { ident, seq }.emit(&data);
                (seq, ipv4::ICMP, [&header[..], &data].concat())
            }
        }
    }

    /// Handles an echo reply: reports it if a request waits for it.
    pub(in crate::net) fn reply(
        &mut self,
        cx: &mut Context,
        from: IpAddr,
        ident: u16,
        seq: u16,
        data: &[u8],
    ) {
        let matches = |p: &Pending| {
            p.seq == seq && p.to == from && data.starts_with(&p.secret) && ident == self.ident
        };
        let found = self.pending.iter().position(matches);
        let Some(request) = found.and_then(|i| self.pending.remove(i)) else {
            cx.counters.drop_unsolicited += 1;
            return;
        };
        cx.counters.echo_replies += 1;
        let rtt_ns = cx.now.since(request.sent);
        cx.report(StackEvent::EchoReply { from, seq, len: data.len(), rtt_ns });
    }
}
