//! The ways to peers: ready-made headers, in which only lengths and checksums are missing, and what the way carries.
//!
//! ```text
//!  Ethernet(14) │ IPv4(20) without length and checksum, or IPv6(40) without length │ UDP(8) ports only
//!  with them: the sums of the IPv4 header, of the pseudo-header without a length, and of that and the ports, to be continued
//! ```
//!
//! Paths are a cache of a fixed number of places: one that is overwritten is made again from `neighbours` when it is next
//! wanted. It holds while its epoch is the stack's and its neighbour's time has not run out.
//!
//! Always: a path MTU falls only to what RFC 8201 and this file allow, and rises again by itself.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::device::{HEADER, Headers, Mac};
use crate::time::SECOND;
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::ipv6::{self, Ipv6};
use crate::wire::udp;
use crate::{Instant, Rng};

/// Places for paths: a power of two.
const PATHS: usize = 1024;
/// Octets of the longest header.
pub(super) const ROOM: usize = HEADER + ipv6::HEADER + udp::HEADER;
/// Routers that a packet of ours may pass.
pub(super) const TTL: u8 = 64;

/// The least that an IPv4 link is believed to carry (RFC 791 has 68, on which no datagram of ours would make sense), and what
/// an IPv6 link carries at least.
const LEAST_V4: usize = 552;
const LEAST_V6: usize = 1280;
/// How long a smaller MTU is believed (RFC 8201 section 4), and how many are.
const LOWERED_NS: u64 = 600 * SECOND;
const LOWERED: usize = 256;
/// What links carry, for routers that do not say (RFC 1191 section 7.1).
const PLATEAUS: [usize; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, LEAST_V4];

/// A way from a port of ours to a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Of the two that follow.
    pub(super) key: u64,
    pub(super) to: SocketAddr,
    pub(super) port: u16,
    pub(super) epoch: u32,
    pub(super) until: Instant,
    /// The headers, as above: in words, as a device takes them.
    pub(super) words: [u64; Headers::CAPACITY / 8],
    /// Their octets.
    pub(super) len: usize,
    pub(super) ip_sum: Sum,
    pub(super) pseudo_sum: Sum,
    pub(super) udp_sum: Sum,
    /// The longest payload that goes in one packet.
    pub(super) room: usize,
}

pub(super) const NOWHERE: Path = Path {
    key: 0,
    to: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    port: 0,
    epoch: 0,
    until: Instant::ZERO,
    words: [0; Headers::CAPACITY / 8],
    len: 0,
    ip_sum: Sum::new(),
    pseudo_sum: Sum::new(),
    udp_sum: Sum::new(),
    room: 0,
};

/// Who sends from where: what a path is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) key: u64,
    pub(super) macs: (Mac, Mac),
    pub(super) from: IpAddr,
    pub(super) port: u16,
    pub(super) to: SocketAddr,
    pub(super) mtu: usize,
}

impl Path {
    pub(super) fn new(ends: &Ends, epoch: u32, until: Instant) -> Self {
        let Ends { key, macs: (own, next), from, port, to, mtu } = *ends;
        let mut path = Self { key, to, port, epoch, until, ..NOWHERE };
        let mut head = [0; Headers::CAPACITY];
        let ethernet = |kind| Ethernet { to: next, from: own, kind }.emit();
        let ports = udp::Udp { from: port, to: to.port(), checksum: 0 }.emit(0);
        let ip = match (from, to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                head[..HEADER].copy_from_slice(&ethernet(ethernet::IPV4));
                let header = v4(from, to);
                let mut bytes = header.emit(0);
                bytes[2..4].fill(0);
                bytes[10..12].fill(0);
                path.ip_sum = Sum::new().bytes(&bytes);
                path.pseudo_sum = header.pseudo(0);
                head[HEADER..HEADER + ipv4::HEADER].copy_from_slice(&bytes);
                ipv4::HEADER
            }
            (from, to) => {
                head[..HEADER].copy_from_slice(&ethernet(ethernet::IPV6));
                let header = v6(from, to);
                path.pseudo_sum = header.pseudo(ipv6::UDP, 0);
                head[HEADER..HEADER + ipv6::HEADER].copy_from_slice(&header.emit(0));
                ipv6::HEADER
            }
        };
        path.udp_sum = path.pseudo_sum.bytes(&ports[..4]);
        path.len = HEADER + ip + udp::HEADER;
        head[HEADER + ip..path.len].copy_from_slice(&ports);
        head[path.len - 4..path.len].fill(0);
        path.words = *Headers::from_bytes(&head).words();
        path.room = mtu.saturating_sub(ip + udp::HEADER);
        path
    }

    /// True if it leads from `port` to `to`, whose key is `key`: over IPv4 the key says all.
    #[inline]
    pub(super) fn leads(&self, key: u64, port: u16, to: &SocketAddr) -> bool {
        self.key == key
            && if to.is_ipv4() { self.len < ROOM } else { self.port == port && self.to == *to }
    }

    /// The headers with what is missing in them: by words, since what is written by octets is slow to be read by words.
    #[inline]
    pub(super) fn headers(&self, udp_len: u16, checksum: u16) -> Headers {
        let mut words = self.words;
        let place = |number: u16, octet: usize| u64::from(number.swap_bytes()) << (octet % 8 * 8);
        if self.len < ROOM {
            const IP: usize = HEADER;
            const UDP: usize = HEADER + ipv4::HEADER;
            let ip_len = udp_len.wrapping_add(ipv4::HEADER as u16);
            words[(IP + 2) / 8] |= place(ip_len, IP + 2);
            words[(IP + 10) / 8] |= place(self.ip_sum.word(ip_len).checksum(), IP + 10);
            words[(UDP + 4) / 8] |= place(udp_len, UDP + 4);
            words[(UDP + 6) / 8] |= place(checksum, UDP + 6);
        } else {
            const IP: usize = HEADER;
            const UDP: usize = HEADER + ipv6::HEADER;
            words[(IP + 4) / 8] |= place(udp_len, IP + 4);
            words[(UDP + 4) / 8] |= place(udp_len, UDP + 4);
            words[(UDP + 6) / 8] |= place(checksum, UDP + 6);
        }
        Headers::new(words, self.len)
    }
}

/// The header of a whole UDP datagram.
pub(super) const fn v4(from: Ipv4Addr, to: Ipv4Addr) -> Ipv4 {
    Ipv4 {
        dont_fragment: true,
        more: false,
        offset: 0,
        ident: 0,
        ttl: TTL,
        protocol: ipv4::UDP,
        from,
        to,
    }
}

const fn v6(from: IpAddr, to: IpAddr) -> Ipv6 {
    Ipv6 { next: ipv6::UDP, hops: TTL, from: mapped(from), to: mapped(to) }
}

const fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

/// See the file.
#[derive(Debug)]
pub(super) struct Paths {
    places: Box<[Path]>,
    /// Mixed into each place, so that strangers cannot choose theirs.
    key: u64,
    lowered: BTreeMap<IpAddr, (usize, Instant)>,
}

impl Paths {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self { places: vec![NOWHERE; PATHS].into(), key: rng.u64() | 1, lowered: BTreeMap::new() }
    }

    /// A number for a port of ours and a peer: over IPv4 there are no two with the same one.
    #[inline]
    pub(super) fn key(&self, port: u16, to: &SocketAddr) -> u64 {
        let ports = u64::from(to.port()) << 16 | u64::from(port);
        match to {
            SocketAddr::V4(to) => u64::from(to.ip().to_bits()) << 32 | ports,
            SocketAddr::V6(to) => {
                let (high, low) = ((to.ip().to_bits() >> 64) as u64, to.ip().to_bits() as u64);
                let mixed = (low ^ ports.rotate_left(32)).wrapping_mul(self.key);
                mixed ^ high.wrapping_mul(self.key.rotate_left(21))
            }
        }
    }

    /// The place of a path with this key.
    #[inline]
    pub(super) fn place(&self, key: u64) -> usize {
        (key.wrapping_mul(self.key) >> 48) as usize % PATHS
    }

    #[inline]
    pub(super) fn at(&self, place: usize) -> &Path {
        &self.places[place]
    }

    pub(super) fn put(&mut self, path: Path) {
        let place = self.place(path.key);
        self.places[place] = path;
    }

    /// True if something was sent this way lately.
    pub(super) fn knows(&self, port: u16, to: &SocketAddr) -> bool {
        let key = self.key(port, to);
        self.at(self.place(key)).leads(key, port, to)
    }

    /// The longest packet that reaches `to`, if the link here carries `mtu`.
    pub(super) fn mtu(&self, now: Instant, to: IpAddr, mtu: usize) -> usize {
        match self.lowered.get(&to) {
            Some(&(lowered, until)) if now < until => lowered.min(mtu),
            _ => mtu,
        }
    }

    /// A router says that a packet of `len` octets to `to` was too big for a link that carries `mtu`, or does not say what it
    /// carries. True if that is news.
    pub(super) fn lower(
        &mut self,
        now: Instant,
        to: IpAddr,
        len: usize,
        mtu: usize,
        own: usize,
    ) -> bool {
        let least = if to.is_ipv4() { LEAST_V4 } else { LEAST_V6 };
        let plateau = || PLATEAUS.into_iter().find(|p| *p < len).unwrap_or(least);
        let mtu = if mtu == 0 { plateau() } else { mtu }.max(least);
        if mtu >= self.mtu(now, to, own) {
            return false;
        }
        if self.lowered.len() >= LOWERED && !self.lowered.contains_key(&to) {
            let oldest =
                self.lowered.iter().min_by_key(|(_, (_, until))| *until).map(|(addr, _)| *addr);
            oldest.and_then(|addr| self.lowered.remove(&addr));
        }
        self.lowered.insert(to, (mtu, now.after(LOWERED_NS)));
        true
    }

    /// Until when what `mtu` said about `to` holds.
    pub(super) fn mtu_until(&self, to: IpAddr) -> Instant {
        self.lowered.get(&to).map_or(Instant::NEVER, |(_, until)| *until)
    }
}

/// The address without what only this machine knows about it: an interface's number, and the IPv6 form of an IPv4 address.
#[inline]
pub(super) fn plain(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => addr,
        SocketAddr::V6(v6) => SocketAddr::new(canonical(*v6.ip()), v6.port()),
    }
}

#[inline]
fn canonical(addr: Ipv6Addr) -> IpAddr {
    addr.to_canonical()
}
