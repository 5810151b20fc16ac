//! A segment: a fixed block of log memory, its bytes and its accounts.
//!
//! ```text
//! Location, 47 bits:  slot (24 bits), which block of memory | offset (23 bits), where in it
//! Position:           segment id (which grows with every opened segment) and offset
//! ```
//!
//! Invariants: bytes below `written` never change while the segment is in the log, apart from
//! checksums, which the log fills in later, and marks of dead entries ([`crate::objects::entry`]).
//! While a helper of the cleaner reads a segment, nothing of it changes.
//! The memory of a segment with pins is not reused, so that replies can refer to it. `live` counts
//! the bytes that live entries take when they are moved, at most. This file does not know the
//! meaning of entries.

use alloc::vec::Vec;

use crate::types::WallTime;

mod bytes;

pub use bytes::{Bytes, Mark};

/// The size of a segment in bytes, and the largest that a [`Location`] can name.
pub const SEGMENT_BYTES: u32 = 8 << 20;
/// The size of a segment in a small log, in bytes.
const SMALL_SEGMENT_BYTES: u32 = 4 << 20;
/// The longest log that is small, in bytes. At this length, the ends of small segments waste as
/// much behind the longest objects (a quarter of each) as large segments lose by the reserve.
const SMALL_LOG: u64 = 128 << 20;
const OFFSET_BITS: u32 = 23;
const SLOT_BITS: u32 = 24;
/// The maximum of segments in a log.
pub const MAX_SEGMENTS: u32 = 1 << SLOT_BITS;

/// The number of a segment, in the order of opening, from 1. It is never reused. 2³² segments of 8
/// MiB are 36 PB written in one life of a server; after that its log is full.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId(pub u32);

/// A position in the log. Everything before it was appended earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// The id of the position's segment.
    pub segment: SegmentId,
    /// The offset in the position's segment, in bytes.
    pub offset: u32,
}

/// The location of an entry in memory. It changes when the cleaner moves the entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Location(u64);

impl Location {
    /// The number of bits of an entry's location in the log.
    pub const BITS: u32 = OFFSET_BITS + SLOT_BITS;

    /// Returns the location of the byte at `offset` of the memory block in `slot`.
    #[must_use]
    #[inline]
    pub fn new(slot: u32, offset: u32) -> Self {
        debug_assert!(slot < MAX_SEGMENTS && offset < 1 << OFFSET_BITS);
        Self(u64::from(slot) << OFFSET_BITS | u64::from(offset))
    }

    /// Returns the location whose [`Location::bits`] are `bits`.
    #[must_use]
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Returns the location as a number of [`Location::BITS`] bits. No entry that can be looked up
    /// has 0, for a segment's header lies there.
    #[must_use]
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the location `bytes` further on in the same segment.
    #[must_use]
    #[inline]
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }

    /// Returns the slot of the location: the number of its block of memory.
    #[must_use]
    #[inline]
    pub fn slot(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize
    }

    /// Returns the offset of the location in its block of memory, in bytes.
    #[must_use]
    #[inline]
    pub fn offset(self) -> usize {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as usize
    }
}

/// Returns the size of the segments for a log of `log_bytes` bytes.
#[must_use]
pub fn segment_bytes(log_bytes: u64) -> u32 {
    if log_bytes > SMALL_LOG { SEGMENT_BYTES } else { SMALL_SEGMENT_BYTES }
}

/// A range of segment numbers, both ends included. It is empty if `last` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// The first segment of the span.
    pub first: SegmentId,
    /// The last segment of the span; 0 if the span is empty.
    pub last: SegmentId,
}

impl Span {
    /// Returns true if the span has no segment.
    #[must_use]
    #[inline]
    pub fn is_empty(self) -> bool {
        self.last == SegmentId(0)
    }

    /// Returns the smallest span that contains this one and `segment`.
    #[must_use]
    #[inline]
    pub fn with(self, segment: SegmentId) -> Self {
        if self.is_empty() {
            return Self { first: segment, last: segment };
        }
        Self { first: self.first.min(segment), last: self.last.max(segment) }
    }

    /// Returns the smallest span that contains both spans of segments.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        if other.is_empty() { self } else { self.with(other.first).with(other.last) }
    }
}

/// The use of a block of log memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The block has no segment: it is free.
    Free,
    /// The block has an open segment, to which the log appends entries.
    Open,
    /// The block has a segment of the log that is complete.
    Closed,
    /// The block has a segment that is no longer in the log, but replies still refer to it.
    Draining,
}

/// A block of log memory, and the segment that it has.
#[derive(Debug)]
pub struct Segment {
    /// The whole memory of the block. It is empty while a helper fills the segment.
    pub bytes: Bytes,
    /// The id of the segment in the block.
    pub id: SegmentId,
    /// The use of the block: free, open, closed or draining.
    pub state: State,
    /// True if the cleaner fills the segment. Its entries were durable elsewhere before.
    pub survivor: bool,
    /// The sum over the survivor's bytes of the number of segments that were opened between the one
    /// in which a byte was first written and this one.
    pub aged: u64,
    /// True if the segment was closed with room left, so that the cleaner can take it. Cleaning it
    /// yields that room too.
    pub closed_early: bool,
    /// The number of the segment's bytes that have entries.
    pub written: u32,
    /// The length of the longest append to the segment, or the room that was left when it was
    /// closed because an append did not fit. This many bytes may be lost at the end of a segment.
    pub waste: u32,
    /// The offset in the segment up to which the checksums are filled in.
    pub sealed: u32,
    /// The number of bytes of the segment's live entries, tombstones included.
    pub live: u32,
    /// The number of bytes of the segment's tombstones that were needed when they were written.
    pub tombstones: u32,
    /// A span of the segments that made the segment's tombstones necessary.
    pub buried: Span,
    /// The number of slices of replies that refer to the segment.
    pub pins: u32,
    /// The number of the segment's bytes that all its replicas have.
    pub durable: u32,
    /// The earliest time at which an object of the segment may expire.
    pub expires: WallTime,
    /// The survivor to which a helper of the cleaner copies the segment's entries, 0 if there is
    /// none. It may have a copy of any entry of this segment, dead ones included.
    pub twin: SegmentId,
}

impl Segment {
    /// Returns a free block of log memory with these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: bytes.into(),
            id: SegmentId(0),
            state: State::Free,
            survivor: false,
            aged: 0,
            closed_early: false,
            written: 0,
            waste: 0,
            sealed: 0,
            live: 0,
            tombstones: 0,
            buried: Span::default(),
            pins: 0,
            durable: 0,
            expires: WallTime::NEVER,
            twin: SegmentId(0),
        }
    }

    /// Makes the block an empty segment of the log.
    pub fn open(&mut self, id: SegmentId, survivor: bool) {
        let bytes = core::mem::take(&mut self.bytes);
        *self = Self { bytes, id, state: State::Open, survivor, ..Self::new(Vec::new()) };
    }

    /// Returns the mean of the segments in which the segment's bytes were first written.
    #[must_use]
    pub fn born(&self) -> SegmentId {
        let age = self.aged / u64::from(self.written.max(1));
        SegmentId(self.id.0.saturating_sub(age as u32))
    }

    /// Returns the number of bytes that still fit into the segment.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        self.bytes.len() - self.written as usize
    }

    /// Takes `len` bytes at the end of the segment for entries, the longest of which has `longest`
    /// bytes, and returns their offset and memory, or `None` if they do not fit.
    #[inline]
    pub fn take(&mut self, len: usize, longest: usize) -> Option<(u32, &mut [u8])> {
        let at = self.written;
        let memory = self.bytes.get_mut(at as usize..at as usize + len)?;
        self.written += len as u32;
        self.waste = self.waste.max(longest as u32);
        Some((at, memory))
    }
}
