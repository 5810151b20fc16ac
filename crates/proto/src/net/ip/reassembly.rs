//! Fragments put together again (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! Always: a datagram of whose fragments two overlap is dropped with all that belongs to it (RFC 5722), of IPv4 too; one that
//! comes twice is no overlap. Memory is taken for octets that came, never for an offset that was claimed; datagrams that wait
//! are limited in octets and time, the oldest gives way.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::{Config, Stats};
use crate::Instant;

/// The longest datagram, its header not counted.
const MAX: usize = 65_535;
/// The most fragments of one datagram: the longest one in pieces of 512 octets.
const PIECES: usize = 128;
/// The most datagrams, each of which a fragment is compared with.
const DATAGRAMS: usize = 256;
/// What it costs to keep a fragment or a datagram, beside its octets.
const OVERHEAD: usize = 128;

/// Which fragments belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) protocol: u8,
    pub(super) ident: u32,
}

/// One fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) offset: usize,
    pub(super) more: bool,
    pub(super) bytes: &'a [u8],
}

#[derive(Debug)]
struct Datagram {
    key: Key,
    due: Instant,
    /// By offset.
    pieces: Vec<(usize, Vec<u8>)>,
    /// Known once the last fragment is there.
    len: Option<usize>,
    bytes: usize,
    /// Fragments contradicted each other: whatever else comes of it is dropped.
    spoilt: bool,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Reassembly {
    /// The oldest first.
    datagrams: VecDeque<Datagram>,
    bytes: usize,
    limit: usize,
    wait_ns: u64,
}

impl Reassembly {
    pub(super) const fn new(config: &Config) -> Self {
        Self {
            datagrams: VecDeque::new(),
            bytes: 0,
            limit: config.reassembly_bytes,
            wait_ns: config.reassembly_ns,
        }
    }

    /// Takes a fragment; the whole datagram if it was the last one missing.
    pub(super) fn input(
        &mut self,
        now: Instant,
        key: Key,
        part: Part<'_>,
        stats: &mut Stats,
    ) -> Option<Vec<u8>> {
        let end = part.offset + part.bytes.len();
        // Only the last one may end elsewhere than at a multiple of 8, and none may be empty.
        if part.bytes.is_empty() || end > MAX || part.more && !end.is_multiple_of(8) {
            stats.drop_fragment += 1;
            return None;
        }
        let index = self.datagrams.iter().position(|d| d.key == key).unwrap_or_else(|| {
            let due = now.after(self.wait_ns);
            self.bytes += OVERHEAD;
            let fresh = Datagram {
                key,
                due,
                pieces: Vec::new(),
                len: None,
                bytes: OVERHEAD,
                spoilt: false,
            };
            self.datagrams.push_back(fresh);
            self.datagrams.len() - 1
        });
        let datagram = &mut self.datagrams[index];
        let before = datagram.bytes;
        datagram.take(part, end, stats);
        self.bytes = self.bytes - before + datagram.bytes;
        if datagram.is_whole() {
            stats.reassembled += 1;
            let datagram = self.remove(index)?;
            return Some(datagram.pieces.into_iter().flat_map(|(_, bytes)| bytes).collect());
        }
        while self.bytes > self.limit || self.datagrams.len() > DATAGRAMS {
            stats.drop_evicted += self.remove(0).map_or(0, |d| d.pieces.len() as u64);
        }
        None
    }

    /// Octets that are kept.
    #[cfg(test)]
    pub(super) const fn held(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, index: usize) -> Option<Datagram> {
        let datagram = self.datagrams.remove(index)?;
        self.bytes -= datagram.bytes;
        Some(datagram)
    }

    /// When `tick` wants to be called.
    pub(super) fn deadline(&self) -> Instant {
        self.datagrams.front().map_or(Instant::NEVER, |d| d.due)
    }

    /// It is `now`: what is not whole yet will not be.
    pub(super) fn tick(&mut self, now: Instant, stats: &mut Stats) {
        while self.datagrams.front().is_some_and(|d| now >= d.due) {
            stats.drop_incomplete += self.remove(0).map_or(0, |d| d.pieces.len() as u64);
        }
    }
}

impl Datagram {
    fn take(&mut self, part: Part<'_>, end: usize, stats: &mut Stats) {
        if self.spoilt {
            stats.drop_fragment += 1;
            return;
        }
        let at = self.pieces.partition_point(|(offset, _)| *offset < part.offset);
        if self
            .pieces
            .get(at)
            .is_some_and(|(offset, bytes)| *offset == part.offset && bytes == part.bytes)
        {
            return;
        }
        let last = self.pieces.last().map_or(0, |(offset, bytes)| offset + bytes.len());
        let beyond = self.len.is_some_and(|len| end > len || !part.more && end != len)
            || !part.more && last > end;
        let before = at.checked_sub(1).and_then(|i| self.pieces.get(i));
        let overlaps = before.is_some_and(|(offset, bytes)| offset + bytes.len() > part.offset)
            || self.pieces.get(at).is_some_and(|(offset, _)| end > *offset);
        if beyond || overlaps || self.pieces.len() == PIECES {
            stats.drop_fragment += self.pieces.len() as u64 + 1;
            self.spoilt = true;
            self.pieces = Vec::new();
            self.bytes = OVERHEAD;
            return;
        }
        if !part.more {
            self.len = Some(end);
        }
        self.bytes += part.bytes.len() + OVERHEAD;
        self.pieces.insert(at, (part.offset, part.bytes.to_vec()));
    }

    /// All between the start and the end is there. Pieces do not overlap, so their lengths tell.
    fn is_whole(&self) -> bool {
        let there = || self.bytes - OVERHEAD - self.pieces.len() * OVERHEAD;
        self.len.is_some_and(|len| there() == len)
    }
}
