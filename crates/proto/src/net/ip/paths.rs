//! The cache of paths to peers: for each pair of addresses the headers of a packet, and the path
//! MTU. TCP sends by it: 100,000 connections to one peer share one path.
//!
//! Always: the cache has a fixed number of slots. A path that another one overwrites is built again
//! from the neighbour cache when it is next used. A path is valid while its generation is the
//! stack's and its time has not passed.

use alloc::boxed::Box;
use core::hash::BuildHasher as _;
use core::net::IpAddr;

use super::output::{IpOutput, next_hop};
use super::template::{Addresses, Template};
use crate::device::{HEADER, Info};
use crate::net::context::Context;
use crate::net::link::Link;
use crate::rand::KeyedHash;
use crate::wire::{ipv4, ipv6, tcp};
use crate::{Instant, Rng};

/// The number of slots of the cache: a power of two.
const SLOTS: usize = 256;

/// A path to a peer whose next hop is resolved.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Path {
    from: IpAddr,
    to: IpAddr,
    generation: u32,
    valid_until: Instant,
    /// The most bytes that a segment may have behind the fixed TCP header on this path, and on the
    /// link.
    pub(in crate::net) mss: u16,
    pub(in crate::net) link_mss: u16,
    pub(in crate::net) template: Template,
}

/// Returns the most bytes behind the fixed TCP header that fit a packet of `mtu` bytes (RFC 6691).
fn mss(mtu: usize, is_v4: bool) -> u16 {
    let ip = if is_v4 { ipv4::HEADER } else { ipv6::HEADER };
    mtu.saturating_sub(ip + tcp::HEADER).min(u16::MAX.into()) as u16
}

/// Returns the most bytes behind the fixed TCP header that a packet on the link has room for.
pub(in crate::net) fn link_mss(info: &Info, is_v4: bool) -> u16 {
    mss(info.mtu.min(info.max_send.saturating_sub(HEADER)), is_v4)
}

/// Returns the most bytes behind the fixed TCP header that a packet to `to` has room for.
pub(in crate::net) fn path_mss(cx: &Context, ip: &IpOutput, to: IpAddr) -> u16 {
    let mtu = ip.path_mtus.get(cx.now, to, cx.info.mtu);
    mss(mtu, to.is_ipv4()).min(link_mss(&cx.info, to.is_ipv4()))
}

/// The paths to the peers of a stack.
#[derive(Debug)]
pub(in crate::net) struct Paths {
    slots: Box<[Option<Path>]>,
    hash: KeyedHash,
    /// The slot of the path that was used last.
    last: usize,
}

impl Paths {
    pub(in crate::net) fn new(rng: &mut Rng) -> Self {
        Self { slots: alloc::vec![None; SLOTS].into(), hash: KeyedHash::new(rng), last: 0 }
    }

    /// Returns the path to `to`, or none if there is no route or the next hop is not resolved.
    #[inline]
    pub(in crate::net) fn get(
        &mut self,
        cx: &mut Context,
        link: &mut Link,
        ip: &IpOutput,
        from: IpAddr,
        to: IpAddr,
    ) -> Option<&Path> {
        let generation = link.neighbours.generation().wrapping_add(ip.generation);
        let is_it = |path: &Option<Path>, now: Instant| {
            path.as_ref().is_some_and(|path| {
                let is_pair = path.to == to && path.from == from;
                is_pair && path.generation == generation && now < path.valid_until
            })
        };
        if !is_it(&self.slots[self.last], cx.now) {
            self.last = self.hash.hash_one((from, to)) as usize % SLOTS;
            if !is_it(&self.slots[self.last], cx.now) {
                self.slots[self.last] = resolve(cx, link, ip, from, to);
            }
        }
        self.last()
    }

    /// Returns the path of the last call of [`Paths::get`].
    #[inline]
    pub(in crate::net) fn last(&self) -> Option<&Path> {
        self.slots[self.last].as_ref()
    }
}

/// Makes the path to `to` of the neighbour cache.
#[cold]
fn resolve(
    cx: &mut Context,
    link: &mut Link,
    ip: &IpOutput,
    from: IpAddr,
    to: IpAddr,
) -> Option<Path> {
    let hop = next_hop(&cx.options, link, to)?;
    let (mac, until) = link.neighbours.lookup(cx.now, hop.neighbour, &mut cx.counters)?;
    let addresses =
        Addresses { own_mac: cx.info.mac, next_hop_mac: mac, from, to, protocol: ipv4::TCP };
    // The look-up may have changed the neighbour's state.
    let generation = link.neighbours.generation().wrapping_add(ip.generation);
    let link_mss = link_mss(&cx.info, to.is_ipv4());
    Some(Path {
        from,
        to,
        generation,
        valid_until: until.min(ip.path_mtus.valid_until(to)),
        mss: path_mss(cx, ip, to),
        link_mss,
        template: Template::new(&addresses),
    })
}
