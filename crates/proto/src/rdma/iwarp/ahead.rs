//! The segments of a stream whose payload was placed before their turn.
//!
//! ```text
//!  stream   consumed │ missing │ placed │ missing │ placed …
//! ```
//!
//! Invariants: the segments are in the order of the stream, and no two overlap, neither in the
//! stream nor in memory. The engine may forget a segment at any time: the stream still has its
//! bytes, and the segment is then received in its turn like any other. It forgets one whose memory
//! anything else was placed into since.
//!
//! Not here: what may be placed (`rx_ahead`).

use alloc::collections::VecDeque;

use crate::rdma::memory::Span;
use crate::wire::ddp::HeaderBytes;

/// The most segments of a stream that are placed before their turn: those of 4 MB of jumbo frames.
/// More stay with the stream.
const MOST: usize = 512;

/// A segment whose payload was placed before its turn.
#[derive(Debug)]
pub(crate) struct PlacedSegment {
    /// The number of bytes of the stream before the segment's FPDU, modulo 2³².
    pub(crate) at: u32,
    /// The length of the FPDU in the stream.
    pub(crate) len: u32,
    pub(crate) header: HeaderBytes,
    /// The place of the payload in registered memory.
    pub(crate) span: Span,
    /// The number of changes of steering tags before the payload was placed.
    pub(crate) changes: u64,
}

/// The segments of a stream that were placed before their turn.
#[derive(Debug, Default)]
pub(crate) struct PlacedSegments(VecDeque<PlacedSegment>);

impl PlacedSegments {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0 = VecDeque::new();
    }

    /// Returns the index of a segment that `len` bytes at `at` would have, if there is room for it,
    /// and if no other segment overlaps these bytes of the stream or `span`. `consumed` bytes of
    /// the stream were received in order.
    pub(crate) fn room(&self, consumed: u32, at: u32, len: u32, span: Span) -> Option<usize> {
        let from = at.wrapping_sub(consumed);
        let index = self.0.partition_point(|other| other.at.wrapping_sub(consumed) < from);
        let before = index.checked_sub(1).and_then(|index| self.0.get(index));
        let is_behind = before.is_none_or(|b| b.at.wrapping_sub(consumed) + b.len <= from);
        let behind = self.0.get(index);
        let is_before = behind.is_none_or(|b| from + len <= b.at.wrapping_sub(consumed));
        let is_apart = !self.0.iter().any(|other| other.span.overlaps(span));
        (self.0.len() < MOST && is_behind && is_before && is_apart).then_some(index)
    }

    /// Inserts a segment at the index that [`PlacedSegments::room`] returned.
    pub(crate) fn insert(&mut self, index: usize, segment: PlacedSegment) {
        self.0.insert(index, segment);
    }

    /// Forgets the segments in whose memory something else is placed.
    #[cold]
    pub(crate) fn forget(&mut self, span: Span) {
        self.0.retain(|segment| !segment.span.overlaps(span));
        self.free();
    }

    /// Returns the distance of the next segment from the `consumed` bytes, and its length in the
    /// stream. Forgets segments that were received otherwise.
    pub(crate) fn next(&mut self, consumed: u32) -> Option<(u32, u32)> {
        let is_past = |segment: &PlacedSegment| (segment.at.wrapping_sub(consumed) as i32) < 0;
        while self.0.front().is_some_and(is_past) {
            self.0.pop_front();
        }
        self.free();
        self.0.front().map(|segment| (segment.at.wrapping_sub(consumed), segment.len))
    }

    /// Takes the segment behind the `consumed` bytes.
    pub(crate) fn take(&mut self, consumed: u32) -> Option<PlacedSegment> {
        self.next(consumed).filter(|(distance, _)| *distance == 0)?;
        let segment = self.0.pop_front();
        self.free();
        segment
    }

    /// Frees the memory, if there is nothing in it.
    fn free(&mut self) {
        if self.0.is_empty() && self.0.capacity() > 0 {
            self.clear();
        }
    }
}
