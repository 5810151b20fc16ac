//! The route cache: for each local port and peer, the complete headers of a datagram.
//!
//! ```text
//!  Ethernet(14)
//!  IPv4(20) or IPv6(40)
//!  UDP(8)
//! ```
//!
//! The lengths and checksums of the last datagram stay in the headers, so that a datagram of the
//! same length to a known peer needs none. A route also has partial checksums of the IPv4 header,
//! of the pseudo-header without a length, and of the pseudo-header with the ports, so that a
//! datagram of another length costs a few additions.
//!
//! Always: the cache has a fixed number of slots. A route that another one overwrites is built
//! again from the neighbour cache when it is next used. A route is valid while its generation is
//! the stack's and its time has not passed.

use alloc::boxed::Box;
use alloc::vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::device::{Device, HEADER, Headers, Mac, Offload, Sent};
use crate::net::context::Context;
use crate::net::ip::fields::IpFields;
use crate::net::ip::template::{Addresses, Template};
use crate::wire::checksum::Sum;
use crate::wire::{ipv4, ipv6, udp};
use crate::{Instant, Rng};

/// The number of slots of the route cache: a power of two.
const SLOTS: usize = 1024;
/// The length in bytes of the headers of a UDP datagram over IPv6. Over IPv4 they are shorter.
const HEADERS_V6: usize = HEADER + ipv6::HEADER + udp::HEADER;

/// A cached route from a local port to a peer.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Route {
    /// The key of the local port and the peer, by which the cache finds the route.
    key: u64,
    pub(in crate::net) to: SocketAddr,
    pub(in crate::net) port: u16,
    generation: u32,
    valid_until: Instant,
    /// The route's headers, as a device takes them, with the lengths and checksums of the last
    /// datagram.
    headers: Headers,
    /// The last datagram's length with its UDP header, and its UDP checksum.
    filled: (u16, u16),
    /// The checksum's sum over the route's IPv4 header without length and checksum.
    ip_sum: Sum,
    /// The checksum's sum over the route's pseudo-header without a length.
    pub(in crate::net) pseudo_sum: Sum,
    /// The checksum's sum over the route's pseudo-header without a length and over the UDP ports.
    pub(in crate::net) udp_sum: Sum,
    /// The longest payload of an unfragmented datagram by this route, in bytes.
    pub(in crate::net) max_payload: usize,
}

/// A cached route to no peer, which is never valid.
pub(in crate::net) const NOWHERE: Route = Route {
    key: 0,
    to: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    port: 0,
    generation: 0,
    valid_until: Instant::ZERO,
    headers: Headers::NONE,
    filled: (0, 0),
    ip_sum: Sum::new(),
    pseudo_sum: Sum::new(),
    udp_sum: Sum::new(),
    max_payload: 0,
};

/// The addresses and the MTU from which a cached route is built.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Ends {
    pub(in crate::net) key: u64,
    pub(in crate::net) own_mac: Mac,
    pub(in crate::net) next_hop_mac: Mac,
    pub(in crate::net) from: IpAddr,
    pub(in crate::net) port: u16,
    pub(in crate::net) to: SocketAddr,
    pub(in crate::net) mtu: usize,
}

impl Route {
    /// Builds a cached route that is valid until `valid_until`, and while the stack's generation is
    /// `generation`.
    pub(in crate::net) fn new(ends: &Ends, generation: u32, valid_until: Instant) -> Self {
        let Ends { key, own_mac, next_hop_mac, from, port, to, mtu } = *ends;
        let mut route = Self { key, to, port, generation, valid_until, ..NOWHERE };
        let addresses = Addresses { own_mac, next_hop_mac, from, to: to.ip(), protocol: ipv4::UDP };
        let template = Template::new(&addresses).with(IpFields::default());
        let ports = udp::Udp { from: port, to: to.port(), checksum: 0 }.emit(0);
        (route.ip_sum, route.pseudo_sum) = (template.ip_sum, template.pseudo_sum);
        route.udp_sum = route.pseudo_sum.bytes(&ports[..4]);
        let mut headers = [0; Headers::CAPACITY];
        let (ip, len) = (template.len(), template.len() + udp::HEADER);
        headers[..ip].copy_from_slice(template.bytes());
        headers[ip..len].copy_from_slice(&ports);
        route.headers = Headers::from_bytes(&headers[..len]);
        route.fill(udp::HEADER as u16, 0);
        route.max_payload = mtu.saturating_sub(len - HEADER);
        route
    }

    /// Returns true if the cached route leads from `port` to `to`, whose key is `key`. Over IPv4
    /// the key is unique.
    #[inline]
    pub(in crate::net) fn leads(&self, key: u64, port: u16, to: &SocketAddr) -> bool {
        let is_same = || self.port == port && self.to == *to;
        self.key == key && if to.is_ipv4() { self.is_v4() } else { is_same() }
    }

    /// Returns true if the cached route is valid now.
    #[inline]
    pub(in crate::net) fn is_valid(&self, generation: u32, now: Instant) -> bool {
        self.generation == generation && now < self.valid_until
    }

    #[inline]
    const fn is_v4(&self) -> bool {
        self.headers.len() < HEADERS_V6
    }

    /// Returns the length of the route's headers in bytes.
    #[inline]
    pub(in crate::net) const fn headers_len(&self) -> usize {
        self.headers.len()
    }

    /// Returns the route's headers with lengths and checksums filled in, for a datagram of
    /// `udp_len` bytes with the UDP header. Those of the last datagram are often right for the
    /// next one.
    #[inline]
    pub(in crate::net) fn headers(&mut self, udp_len: u16, checksum: u16) -> &Headers {
        if self.filled != (udp_len, checksum) {
            self.fill(udp_len, checksum);
        }
        &self.headers
    }

    /// Fills lengths and checksums into the route's headers.
    #[inline]
    fn fill(&mut self, udp_len: u16, checksum: u16) {
        const IP: usize = HEADER;
        let headers = &mut self.headers;
        let udp = headers.len() - udp::HEADER;
        if udp == HEADER + ipv4::HEADER {
            let ip_len = udp_len.wrapping_add(ipv4::HEADER as u16);
            headers.set_field(IP + 2, ip_len);
            headers.set_field(IP + 10, self.ip_sum.word(ip_len).checksum());
        } else {
            headers.set_field(IP + 4, udp_len);
        }
        headers.set_field(udp + 4, udp_len);
        headers.set_field(udp + 6, checksum);
        self.filled = (udp_len, checksum);
    }

    /// Sends a UDP datagram of `len` bytes in `parts` by this route. The route must be valid and
    /// `len` at most `max_payload`.
    #[inline(always)]
    pub(in crate::net) fn send<D: Device>(
        &mut self,
        cx: &Context,
        len: usize,
        device: &mut D,
        parts: &[&[u8]],
    ) -> Sent {
        let udp_len = (udp::HEADER + len) as u16;
        let mut offload = Offload::None;
        let checksum = if self.is_v4() && !cx.options.udp4_checksum {
            0
        } else if cx.info.offloads.checksum {
            let start = (self.headers_len() - udp::HEADER) as u16;
            offload = Offload::Checksum { start, offset: 6 };
            self.pseudo_sum.word(udp_len).folded()
        } else {
            // The length counts twice: in the pseudo-header and in the UDP header.
            let sum = self.udp_sum.word(udp_len).word(udp_len);
            udp::to_field(parts.iter().fold(sum, |sum, part| sum.bytes(part)))
        };
        device.send_with_headers(self.headers(udp_len, checksum), parts, len, offload)
    }
}

/// The cache of routes from local ports to peers.
#[derive(Debug)]
pub(in crate::net) struct RouteCache {
    slots: Box<[Route]>,
    /// The random factor of the hash that selects a route's slot, so that peers cannot choose their
    /// slots.
    hash_key: u64,
}

impl RouteCache {
    pub(in crate::net) fn new(rng: &mut Rng) -> Self {
        Self { slots: vec![NOWHERE; SLOTS].into(), hash_key: rng.u64() | 1 }
    }

    /// Returns the route cache's key of a local port and a peer. Over IPv4 it is unique.
    #[inline]
    pub(in crate::net) fn key(&self, port: u16, to: &SocketAddr) -> u64 {
        let ports = u64::from(to.port()) << 16 | u64::from(port);
        match to {
            SocketAddr::V4(to) => u64::from(to.ip().to_bits()) << 32 | ports,
            SocketAddr::V6(to) => {
                let (high, low) = ((to.ip().to_bits() >> 64) as u64, to.ip().to_bits() as u64);
                let mixed = (low ^ ports.rotate_left(32)).wrapping_mul(self.hash_key);
                mixed ^ high.wrapping_mul(self.hash_key.rotate_left(21))
            }
        }
    }

    /// Returns the slot of the route with this key in the route cache.
    #[inline]
    fn slot(&self, key: u64) -> usize {
        (key.wrapping_mul(self.hash_key) >> 48) as usize % SLOTS
    }

    /// Returns the route in the slot of this key. The route may be that of another key.
    fn get(&self, key: u64) -> &Route {
        &self.slots[self.slot(key)]
    }

    /// Returns the route in the slot of this key, to send by it. The route may be that of another
    /// key.
    #[inline]
    pub(in crate::net) fn get_mut(&mut self, key: u64) -> &mut Route {
        let slot = self.slot(key);
        &mut self.slots[slot]
    }

    /// Stores a route in its slot of the route cache.
    pub(in crate::net) fn insert(&mut self, route: Route) {
        let slot = self.slot(route.key);
        self.slots[slot] = route;
    }

    /// Returns true if the cache has a route from `port` to `to`, valid or not, which shows that a
    /// datagram was sent there recently.
    pub(in crate::net) fn contains(&self, port: u16, to: &SocketAddr) -> bool {
        let key = self.key(port, to);
        self.get(key).leads(key, port, to)
    }
}

/// Returns the peer's address in the form by which the cache finds routes: without flow label and
/// scope, and IPv4 addresses unmapped.
#[inline]
pub(in crate::net) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => addr,
        SocketAddr::V6(v6) => SocketAddr::new(v6.ip().to_canonical(), v6.port()),
    }
}
