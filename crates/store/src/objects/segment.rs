//! A segment: a fixed stretch of log memory, its bytes and what is known of them.
//!
//! ```text
//! Location, 47 bits:  slot (24 bits), which block of memory | offset (23 bits), where in it
//! Position:           segment id, which grows with every segment opened, and offset: the order of the log
//! ```
//!
//! What always holds: bytes below `written` never change while the segment is in the log, but for
//! checksums, which are filled in later (see [`crate::objects::log`]), and marks of what is dead (see
//! [`crate::objects::entry`]); the memory of a segment with pins is not used again, so that replies can
//! point into it; `live` counts the bytes of entries that somebody still needs, and never those of
//! group headers. Which entry means what is not known here: see [`crate::objects::entry`].

use alloc::vec;
use alloc::vec::Vec;

/// The size of a segment in bytes, and the largest that a [`Location`] can name.
pub const SEGMENT_BYTES: u32 = 8 << 20;
/// The size of a segment in a small log.
const SMALL_SEGMENT_BYTES: u32 = 4 << 20;
/// The longest log that is small, in bytes: here what the ends of small segments waste behind the
/// longest objects, a quarter of each, is as much as what large ones lose by the few that are kept
/// in reserve.
const SMALL_LOG: u64 = 128 << 20;
const OFFSET_BITS: u32 = 23;
const SLOT_BITS: u32 = 24;
/// How many segments a log can have.
pub const MAX_SEGMENTS: u32 = 1 << SLOT_BITS;

/// Which segment, in the order in which they were opened; from 1, never used again. 2³² segments of 8 MiB are 36 PB
/// written in one life of a server; after that its log is full.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId(pub u32);

/// A point in the log: everything before it was appended earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// The segment.
    pub segment: SegmentId,
    /// The offset in it, in bytes.
    pub offset: u32,
}

/// Where an entry lies in memory; changes when the cleaner moves it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Location(u64);

impl Location {
    /// Bits that it takes.
    pub const BITS: u32 = OFFSET_BITS + SLOT_BITS;

    /// `offset` in `slot`.
    #[must_use]
    #[inline]
    pub fn new(slot: u32, offset: u32) -> Self {
        debug_assert!(slot < MAX_SEGMENTS && offset < 1 << OFFSET_BITS);
        Self(u64::from(slot) << OFFSET_BITS | u64::from(offset))
    }

    /// From [`Location::bits`].
    #[must_use]
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// As a number of [`Location::BITS`] bits. No entry that can be looked up has 0: there stands a segment's header.
    #[must_use]
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// `bytes` further on in the same segment.
    #[must_use]
    #[inline]
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }

    /// Which block of memory.
    #[must_use]
    #[inline]
    pub fn slot(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize
    }

    /// Where in it.
    #[must_use]
    #[inline]
    pub fn offset(self) -> usize {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as usize
    }
}

/// The size of the segments for a log of `log_bytes` bytes.
#[must_use]
pub fn segment_bytes(log_bytes: u64) -> u32 {
    if log_bytes > SMALL_LOG { SEGMENT_BYTES } else { SMALL_SEGMENT_BYTES }
}

/// A range of segment ids, both ends included; empty when `last` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// The first.
    pub first: SegmentId,
    /// The last.
    pub last: SegmentId,
}

impl Span {
    /// True if it holds no segment.
    #[must_use]
    #[inline]
    pub fn is_empty(self) -> bool {
        self.last == SegmentId(0)
    }

    /// The smallest span that holds this one and `segment`.
    #[must_use]
    #[inline]
    pub fn with(self, segment: SegmentId) -> Self {
        if self.is_empty() {
            return Self { first: segment, last: segment };
        }
        Self { first: self.first.min(segment), last: self.last.max(segment) }
    }

    /// The smallest span that holds both.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        if other.is_empty() { self } else { self.with(other.first).with(other.last) }
    }
}

/// What a block of memory is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// For nothing.
    Free,
    /// Entries are being appended.
    Open,
    /// In the log, complete.
    Closed,
    /// No longer in the log, but replies still point into it.
    Draining,
}

/// A block of log memory.
#[derive(Debug)]
pub struct Segment {
    /// Its memory, all of it.
    pub bytes: Vec<u8>,
    /// Which segment it is now.
    pub id: SegmentId,
    /// What it is used for.
    pub state: State,
    /// True if the cleaner fills it: everything in it was durable elsewhere before.
    pub survivor: bool,
    /// True if it was closed though there was room, for the cleaner's sake: the room is worth cleaning it.
    pub closed_early: bool,
    /// How much of the memory has entries.
    pub written: u32,
    /// The longest append, or the room that was left when it was closed for want of it: so much may
    /// be lost at the end of a segment.
    pub waste: u32,
    /// Up to where the checksums are filled in.
    pub sealed: u32,
    /// Bytes of entries that are needed, tombstones included.
    pub live: u32,
    /// Bytes of tombstones that were needed when they were written.
    pub tombstones: u32,
    /// The segments for whose sake they were needed, and perhaps others between.
    pub buried: Span,
    /// Slices of replies that point here.
    pub pins: u32,
}

impl Segment {
    /// A block of `bytes` bytes, zeroed, free.
    #[must_use]
    pub fn new(bytes: u32) -> Self {
        Self {
            bytes: vec![0; bytes as usize],
            id: SegmentId(0),
            state: State::Free,
            survivor: false,
            closed_early: false,
            written: 0,
            waste: 0,
            sealed: 0,
            live: 0,
            tombstones: 0,
            buried: Span::default(),
            pins: 0,
        }
    }

    /// Begins a new life as an empty segment of the log.
    pub fn open(&mut self, id: SegmentId, survivor: bool) {
        let bytes = core::mem::take(&mut self.bytes);
        *self = Self { bytes, id, state: State::Open, survivor, ..Self::new(0) };
    }

    /// Bytes that fit in yet.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        self.bytes.len() - self.written as usize
    }

    /// Takes `len` bytes at the end for an entry and returns their offset and memory, or `None` if
    /// they do not fit.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<(u32, &mut [u8])> {
        let at = self.written;
        let memory = self.bytes.get_mut(at as usize..at as usize + len)?;
        self.written += len as u32;
        self.waste = self.waste.max(len as u32);
        Some((at, memory))
    }
}
