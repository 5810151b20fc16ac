//! Echo requests of our own, and when each was sent.
//!
//! Always: a reply counts only if it carries the number and the secret of a request to that very address, and only once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::stack::Stack;
use super::{Event, V4};
use crate::wire::icmp::Icmp;
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv4;
use crate::wire::ipv6::{self, Ipv6};
use crate::{Instant, Rng};

/// Requests that are remembered; the oldest is forgotten.
const ASKED: usize = 64;
/// Octets of the secret at the start of a request's data.
const SECRET: usize = 8;
/// The most data: with the headers it fits a datagram of 65,535 octets.
const LONGEST: usize = 65_535 - ipv4::HEADER - crate::wire::icmp::HEADER;

/// Why nobody can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PingError {
    /// The data is shorter than 8 or longer than 65,507 octets.
    #[error("an echo request carries 8 to 65507 octets")]
    Length,
    /// There is no way to the address.
    #[error("there is no way to that address")]
    NoRoute,
    /// Our own address is not known yet.
    #[error("our own address is not known yet")]
    NoAddress,
}

#[derive(Debug)]
struct Asked {
    to: IpAddr,
    seq: u16,
    secret: [u8; SECRET],
    at: Instant,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Echoes {
    ident: u16,
    next: u16,
    asked: VecDeque<Asked>,
}

impl Echoes {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self { ident: rng.u32() as u16, next: 0, asked: VecDeque::new() }
    }
}

impl Stack {
    pub(super) fn ask_echo(
        &mut self,
        now: Instant,
        to: IpAddr,
        len: usize,
    ) -> Result<u16, PingError> {
        if !(SECRET..=LONGEST).contains(&len) {
            return Err(PingError::Length);
        }
        let waits = to.is_ipv4() && self.config.v4 != V4::None && self.claims.v4().is_none();
        let missing = if waits { PingError::NoAddress } else { PingError::NoRoute };
        let (own, _) = self.route(to).ok_or(missing)?;
        let (ident, seq) = (self.echoes.ident, self.echoes.next);
        let secret = self.rng.u64().to_be_bytes();
        let mut data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        data[..SECRET].copy_from_slice(&secret);
        match (own, to) {
            (IpAddr::V6(from), IpAddr::V6(to6)) => {
                let ip = Ipv6 { next: ipv6::ICMPV6, hops: 0, from, to: to6 };
                let request = Icmpv6::Echo { ident, seq }.emit(&ip, &data);
                self.packet(now, own, to, ipv6::ICMPV6, &request);
            }
            _ => {
                let request = [&Icmp::Echo { ident, seq }.emit(&data)[..], &data].concat();
                self.packet(now, own, to, ipv4::ICMP, &request);
            }
        }
        let echoes = &mut self.echoes;
        echoes.next = seq.wrapping_add(1);
        if echoes.asked.len() == ASKED {
            echoes.asked.pop_front();
        }
        echoes.asked.push_back(Asked { to, seq, secret, at: now });
        Ok(seq)
    }

    pub(super) fn echoed(&mut self, now: Instant, from: IpAddr, ident: u16, seq: u16, data: &[u8]) {
        let echoes = &mut self.echoes;
        let same = |a: &Asked| {
            a.seq == seq && a.to == from && data.starts_with(&a.secret) && ident == echoes.ident
        };
        let Some(asked) = echoes.asked.iter().position(same).and_then(|i| echoes.asked.remove(i))
        else {
            self.stats.drop_unsolicited += 1;
            return;
        };
        self.stats.echo_replies += 1;
        self.happened(Event::Echo { from, seq, len: data.len(), rtt_ns: now.since(asked.at) });
    }
}
