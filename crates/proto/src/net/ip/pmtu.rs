//! Path MTUs learned from ICMP errors (RFC 1191, RFC 8201).
//!
//! Always: a path MTU never falls below the minimum of its IP version, and a lowered one expires,
//! so that the stack tries the full MTU again. The number of entries is limited.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use crate::Instant;
use crate::time::SECOND;

/// The lowest IPv4 path MTU that the stack accepts, in bytes. RFC 791 allows 68, which no datagram
/// of ours fits.
const MIN_V4: usize = 552;
/// The minimum link MTU of IPv6 (RFC 8200 section 5), in bytes.
const MIN_V6: usize = 1280;
/// The time in nanoseconds after which a lowered path MTU expires (RFC 8201 section 4).
const EXPIRY_NS: u64 = 600 * SECOND;
/// The most destinations with a lowered path MTU.
const MAX_ENTRIES: usize = 256;
/// Common MTUs in bytes, for routers that report none (RFC 1191 section 7.1).
const PLATEAUS: [usize; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, MIN_V4];

#[derive(Clone, Copy, Debug)]
struct Lowered {
    mtu: usize,
    expires: Instant,
}

/// The lowered path MTUs, by destination.
#[derive(Debug, Default)]
pub(in crate::net) struct PathMtus(BTreeMap<IpAddr, Lowered>);

impl PathMtus {
    /// Returns the path MTU to `to` over a link with the MTU `link`, in bytes.
    pub(in crate::net) fn get(&self, now: Instant, to: IpAddr, link: usize) -> usize {
        match self.0.get(&to) {
            Some(lowered) if now < lowered.expires => lowered.mtu.min(link),
            _ => link,
        }
    }

    /// Returns the time until which the path MTU that `get` returns for `to` is valid.
    pub(in crate::net) fn valid_until(&self, to: IpAddr) -> Instant {
        self.0.get(&to).map_or(Instant::NEVER, |lowered| lowered.expires)
    }

    /// Lowers a path MTU after an ICMP error: a packet of `len` bytes to `to` was too big for a
    /// link with the MTU `mtu`, or 0 if the router does not report it. Returns true if the path MTU
    /// falls.
    pub(in crate::net) fn lower(
        &mut self,
        now: Instant,
        to: IpAddr,
        len: usize,
        mtu: usize,
        link: usize,
    ) -> bool {
        let min = if to.is_ipv4() { MIN_V4 } else { MIN_V6 };
        let plateau = || PLATEAUS.into_iter().find(|p| *p < len).unwrap_or(min);
        let mtu = if mtu == 0 { plateau() } else { mtu }.max(min);
        if mtu >= self.get(now, to, link) {
            return false;
        }
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&to) {
            let oldest = self.0.iter().min_by_key(|(_, l)| l.expires).map(|(addr, _)| *addr);
            oldest.and_then(|addr| self.0.remove(&addr));
        }
        self.0.insert(to, Lowered { mtu, expires: now.after(EXPIRY_NS) });
        true
    }
}
