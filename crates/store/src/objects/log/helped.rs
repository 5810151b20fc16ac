//! Segments that a helper thread of the cleaner reads, and the survivor that it fills.
//!
//! ```text
//!  open_twin ─► share sources ─► (the helper copies) ─► fill ─► point to the copies ─► complete
//! ```
//!
//! The survivor is in the log from the start, so that what dies meanwhile knows of its copy: the
//! tombstone of an object in a shared source stays while the survivor does. It has no entries until
//! the helper is done, and replicas only from then on. The log counts a copy as live when the hash
//! table points to it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Log, REMOVALS, SURVIVORS};
use crate::objects::entry::{self, COMPLETION};
use crate::objects::segment::{Location, Mark, Segment, SegmentId, Span, State};
use crate::types::WallTime;

/// The bytes that a helper has written to a survivor, and their accounts.
#[derive(Debug)]
pub(in crate::objects) struct Filled {
    /// The memory of the survivor. The header is missing.
    pub(in crate::objects) bytes: Vec<u8>,
    /// The number of bytes of the header and the entries.
    pub(in crate::objects) written: usize,
    /// The length of the longest entry.
    pub(in crate::objects) longest: usize,
    /// The sum over the bytes of the entries of the age as in [`Segment::aged`].
    pub(in crate::objects) aged: u64,
}

impl Log {
    /// Opens a survivor for a helper and takes its memory out. Returns `None` if the log has too
    /// few free segments to lend one.
    pub(in crate::objects) fn open_twin(&mut self) -> Option<(SegmentId, Vec<u8>)> {
        if self.available() <= SURVIVORS + REMOVALS + 1 || self.last_id.0 == u32::MAX {
            return None;
        }
        let slot = self.take_slot();
        self.last_id.0 += 1;
        let segment = &mut self.slots[slot as usize];
        segment.open(self.last_id, true);
        self.order.insert(self.last_id, slot);
        Some((self.last_id, segment.bytes.take()))
    }

    /// Shares the closed segment in `slot` with a helper, which copies its entries to the survivor
    /// `twin`.
    pub(in crate::objects) fn share(&mut self, slot: u32, twin: SegmentId) -> Arc<Vec<u8>> {
        let segment = &mut self.slots[slot as usize];
        debug_assert_eq!(segment.state, State::Closed);
        segment.twin = twin;
        segment.bytes.share()
    }

    /// Takes a segment back from a helper, which no longer has its bytes. If nothing was copied,
    /// the segment is as it was.
    pub(in crate::objects) fn take_back(&mut self, slot: u32, is_copied: bool) {
        let segment = &mut self.slots[slot as usize];
        for mark in segment.bytes.take_back() {
            match mark {
                Mark::Dead(at) => entry::mark_dead(&mut segment.bytes[at as usize..]),
                Mark::RecordDead(at) => {
                    entry::mark_record_dead(&mut segment.bytes[at as usize..]);
                }
            }
        }
        if !is_copied {
            segment.twin = SegmentId(0);
        }
    }

    /// Puts the entries that a helper has copied into the survivor in `slot`. None of them counts
    /// as live yet.
    pub(in crate::objects) fn fill(&mut self, slot: u32, filled: Filled) {
        let Filled { bytes, written, longest, aged } = filled;
        let header = self.header(self.slots[slot as usize].id);
        let segment = &mut self.slots[slot as usize];
        segment.bytes = bytes.into();
        segment.written = 0;
        if let Some((_, memory)) = segment.take(entry::HEADER, entry::HEADER) {
            entry::put_header(memory, &header);
        }
        let tail = self.tail();
        // The replicas are opened with the header alone, as those of other survivors.
        self.opened(slot, tail);
        let len = written - entry::HEADER;
        let segment = &mut self.slots[slot as usize];
        segment.written = written as u32;
        segment.aged = aged;
        segment.waste = segment.waste.max(longest as u32);
        self.appended += len as u64;
        self.survived += len as u64;
        self.count_closed(slot, longest);
        self.waste = self.waste.max(self.slots[slot as usize].waste);
    }

    /// Counts the entry of `len` bytes at `from` as live at `to`, where a helper has copied it.
    #[inline]
    pub(in crate::objects) fn moved(&mut self, from: Location, to: Location, len: usize) {
        self.slots[from.slot()].live -= len as u32;
        self.slots[to.slot()].live += len as u32;
    }

    /// Closes the survivor in `slot`: its copies are counted. The objects among them expire at
    /// `expires` at the earliest.
    pub(in crate::objects) fn complete(&mut self, slot: u32, expires: WallTime) {
        self.slots[slot as usize].state = State::Closed;
        self.expires(Location::new(slot, 0), expires);
        // All replicas may have had all of it before it was closed.
        self.set_replicated(slot, 0);
        self.closings += 1;
    }

    /// Returns the segments that count as present for [`Log::narrow`], in their order.
    pub(in crate::objects) fn present(&self) -> Vec<SegmentId> {
        let mut present: Vec<SegmentId> = self.order.keys().copied().collect();
        if let Some(replicated) = &self.replicated {
            present.extend(&replicated.lingering);
            present.sort_unstable();
        }
        present
    }

    /// Returns the span of the segments that may have the object at `at`, or older versions of it,
    /// of which `older` may.
    #[inline]
    pub(in crate::objects) fn span(&self, at: Location, older: Span) -> Span {
        let Segment { id, twin, .. } = self.slots[at.slot()];
        let span = older.with(id);
        if twin == SegmentId(0) { span } else { span.with(twin) }
    }

    /// Marks the entry at `at` as dead, its record apart.
    #[inline]
    pub(super) fn mark_dead(&mut self, at: Location) {
        let bytes = &mut self.slots[at.slot()].bytes;
        match bytes.waiting() {
            None => entry::mark_dead(&mut bytes[at.offset()..]),
            Some(marks) => marks.push(Mark::Dead(at.offset() as u32)),
        }
    }

    /// Marks the completion at `at`, or the record of the entry there, as dead. Returns the number
    /// of bytes that it counted as.
    #[inline]
    pub(super) fn mark_record_dead(&mut self, at: Location) -> usize {
        let bytes = &mut self.slots[at.slot()].bytes;
        let Some(marks) = bytes.waiting() else {
            return entry::mark_record_dead(&mut bytes[at.offset()..]);
        };
        marks.push(Mark::RecordDead(at.offset() as u32));
        COMPLETION + entry::old(&bytes[at.offset()..]).len()
    }

    /// Marks the copy at `at` as dead, which never counted as live.
    #[cold]
    pub(in crate::objects) fn copied_in_vain(&mut self, at: Location) {
        self.mark_dead(at);
    }
}

/// Returns the part of `span` between its first and last segments among the sorted ones `present`,
/// `without` apart, as [`Log::narrow`] does.
pub(in crate::objects) fn narrow(present: &[SegmentId], span: Span, without: SegmentId) -> Span {
    if span.is_empty() {
        return span;
    }
    let from = present.partition_point(|&id| id < span.first);
    let to = present.partition_point(|&id| id <= span.last);
    let mut left = present.get(from..to).unwrap_or_default().iter().filter(|&&id| id != without);
    match left.next() {
        None => Span::default(),
        Some(&first) => Span { first, last: left.next_back().copied().unwrap_or(first) },
    }
}
