//! Reassembly of IP fragments (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! Always: if two fragments of a datagram overlap, the whole datagram is dropped (RFC 5722), for
//! IPv4 too; an exact duplicate is no overlap. The bytes received reserve memory, never an offset
//! that a fragment claims. Incomplete datagrams are limited in number, bytes and time; the oldest
//! is evicted first.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::Instant;
use crate::net::counters::StackCounters;
use crate::net::options::StackOptions;
use crate::wire::ipv4::{self, Ecn};

/// The longest payload of a reassembled IPv6 packet, in bytes. For IPv4 it is shorter, because its
/// length field counts the header too.
const MAX_V6: usize = 65_535;
const MAX_V4: usize = MAX_V6 - ipv4::HEADER;
/// The most fragments of one IP datagram: the longest datagram in fragments of 512 bytes.
const MAX_FRAGMENTS: usize = 128;
/// The most incomplete IP datagrams. Each fragment is compared with all of them.
const MAX_DATAGRAMS: usize = 256;
/// The bookkeeping bytes charged for each fragment and each incomplete datagram.
const OVERHEAD: usize = 128;

/// The key of a fragmented IP datagram, which all its fragments share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) struct DatagramKey {
    pub(in crate::net) from: IpAddr,
    pub(in crate::net) to: IpAddr,
    /// The protocol number of an IPv4 datagram; 0 over IPv6, where it is not part of the key.
    pub(in crate::net) protocol: u8,
    pub(in crate::net) ident: u32,
}

/// A received IP fragment.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Fragment<'a> {
    pub(in crate::net) offset: usize,
    /// The received fragment is not the last of its datagram.
    pub(in crate::net) more: bool,
    /// The ECN field of the fragment's packet.
    pub(in crate::net) ecn: Ecn,
    pub(in crate::net) bytes: &'a [u8],
}

/// A fragmented IP datagram of which some fragments are missing.
#[derive(Debug)]
struct Incomplete {
    key: DatagramKey,
    expires: Instant,
    /// The datagram's fragments received so far, sorted by their offsets.
    fragments: Vec<(usize, Vec<u8>)>,
    /// The ECN field of the datagram, by the fragments received so far, and true if one of them was
    /// not of a transport that understands marks.
    ecn: Ecn,
    has_not_ect: bool,
    /// The length of the fragmented datagram in bytes, known once its last fragment was received.
    len: Option<usize>,
    /// The bytes received of the fragmented datagram, and the bookkeeping overhead.
    charged: usize,
    /// Fragments of the datagram overlapped: all further fragments of it are dropped.
    invalid: bool,
}

/// The fragmented IP datagrams of a stack that are incomplete.
#[derive(Debug)]
pub(in crate::net) struct Reassembly {
    /// The incomplete datagrams, the oldest first.
    incomplete: VecDeque<Incomplete>,
    charged: usize,
    max_bytes: usize,
    timeout_ns: u64,
}

impl Reassembly {
    pub(in crate::net) const fn new(options: &StackOptions) -> Self {
        Self {
            incomplete: VecDeque::new(),
            charged: 0,
            max_bytes: options.max_reassembly_bytes,
            timeout_ns: options.reassembly_ns,
        }
    }

    /// Takes an IP fragment. Returns the payload and the ECN field of the datagram if it is now
    /// complete.
    pub(in crate::net) fn input(
        &mut self,
        now: Instant,
        key: DatagramKey,
        fragment: Fragment<'_>,
        counters: &mut StackCounters,
    ) -> Option<(Vec<u8>, Ecn)> {
        let end = fragment.offset + fragment.bytes.len();
        let max = if key.from.is_ipv4() { MAX_V4 } else { MAX_V6 };
        let is_aligned = !fragment.more || end.is_multiple_of(8);
        if fragment.bytes.is_empty() || end > max || !is_aligned {
            counters.drop_fragment += 1;
            return None;
        }
        // RFC 6946 section 4: an atomic fragment has nothing to do with others of the same key.
        if fragment.offset == 0 && !fragment.more {
            counters.reassembled += 1;
            return Some((fragment.bytes.to_vec(), fragment.ecn));
        }
        let found = self.incomplete.iter().position(|d| d.key == key);
        let index = found.unwrap_or_else(|| self.insert(key, now.after(self.timeout_ns)));
        let datagram = &mut self.incomplete[index];
        let before = datagram.charged;
        datagram.insert(fragment, end, counters);
        self.charged = self.charged - before + datagram.charged;
        if datagram.is_complete() {
            if datagram.ecn == Ecn::Ce && datagram.has_not_ect {
                // RFC 3168 5.3: no router marks such a packet, and the mark must not be lost.
                counters.drop_fragment += datagram.fragments.len() as u64;
                self.remove(index);
                return None;
            }
            counters.reassembled += 1;
            let datagram = self.remove(index)?;
            let bytes = datagram.fragments.into_iter().flat_map(|(_, bytes)| bytes).collect();
            return Some((bytes, datagram.ecn));
        }
        while self.charged > self.max_bytes || self.incomplete.len() > MAX_DATAGRAMS {
            counters.drop_evicted += self.remove(0).map_or(0, |d| d.fragments.len() as u64);
        }
        None
    }

    /// Adds an incomplete datagram without fragments and returns its index.
    fn insert(&mut self, key: DatagramKey, expires: Instant) -> usize {
        self.charged += OVERHEAD;
        let (fragments, len, charged, invalid) = (Vec::new(), None, OVERHEAD, false);
        let (ecn, has_not_ect) = (Ecn::NotEct, false);
        let datagram =
            Incomplete { key, expires, fragments, ecn, has_not_ect, len, charged, invalid };
        self.incomplete.push_back(datagram);
        self.incomplete.len() - 1
    }

    fn remove(&mut self, index: usize) -> Option<Incomplete> {
        let datagram = self.incomplete.remove(index)?;
        self.charged -= datagram.charged;
        Some(datagram)
    }

    /// Returns the bytes charged for all incomplete IP datagrams.
    #[cfg(test)]
    pub(in crate::net) const fn charged(&self) -> usize {
        self.charged
    }

    /// Returns the time at which the next incomplete datagram expires, when to call `tick`.
    pub(in crate::net) fn deadline(&self) -> Instant {
        self.incomplete.front().map_or(Instant::NEVER, |d| d.expires)
    }

    /// Drops the incomplete IP datagrams that have expired.
    pub(in crate::net) fn tick(&mut self, now: Instant, counters: &mut StackCounters) {
        while self.incomplete.front().is_some_and(|d| now >= d.expires) {
            counters.drop_incomplete += self.remove(0).map_or(0, |d| d.fragments.len() as u64);
        }
    }
}

impl Incomplete {
    /// Stores a fragment that ends at `end`, or invalidates its datagram if the two contradict each
    /// other.
    fn insert(&mut self, fragment: Fragment<'_>, end: usize, counters: &mut StackCounters) {
        if self.invalid {
            counters.drop_fragment += 1;
            return;
        }
        self.has_not_ect |= fragment.ecn == Ecn::NotEct;
        // CE is the largest value, and a mark of one fragment is a mark of all.
        self.ecn = if fragment.ecn as u8 > self.ecn as u8 { fragment.ecn } else { self.ecn };
        let at = self.fragments.partition_point(|(offset, _)| *offset < fragment.offset);
        let next = self.fragments.get(at);
        let is_same = |(offset, bytes): &(usize, Vec<u8>)| {
            *offset == fragment.offset && bytes == fragment.bytes
        };
        if next.is_some_and(is_same) {
            return;
        }
        let received_end = self.fragments.last().map_or(0, |(offset, bytes)| offset + bytes.len());
        let is_beyond = self.len.is_some_and(|len| end > len || !fragment.more && end != len)
            || !fragment.more && received_end > end;
        let previous = at.checked_sub(1).and_then(|i| self.fragments.get(i));
        let overlaps = previous.is_some_and(|(o, bytes)| o + bytes.len() > fragment.offset)
            || next.is_some_and(|(offset, _)| end > *offset);
        if is_beyond || overlaps || self.fragments.len() == MAX_FRAGMENTS {
            counters.drop_fragment += self.fragments.len() as u64 + 1;
            self.invalid = true;
            self.fragments = Vec::new();
            self.charged = OVERHEAD;
            return;
        }
        if !fragment.more {
            self.len = Some(end);
        }
        self.charged += fragment.bytes.len() + OVERHEAD;
        self.fragments.insert(at, (fragment.offset, fragment.bytes.to_vec()));
    }

    /// Returns true if all bytes of the datagram were received. Fragments do not overlap, so the
    /// sum of their lengths shows it.
    fn is_complete(&self) -> bool {
        let received = || self.charged - OVERHEAD - self.fragments.len() * OVERHEAD;
        self.len.is_some_and(|len| received() == len)
    }
}
