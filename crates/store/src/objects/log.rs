//! Log-structured memory: all objects, tombstones and completion records of a master, in segments.
//!
//! ```text
//!  closed … closed │ head ← mutations append │ survivors ← the cleaner copies │ free …
//!
//!  free segments: SURVIVORS for the cleaner alone, REMOVALS for removals too, the rest for writes
//! ```
//!
//! Invariants: an append is one block of memory in one segment, so that a group of entries exists
//! whole or not at all. [`Position`]s only grow. A segment leaves the log only when nothing in it
//! is live, and its memory is reused only when no reply refers to it. Until then that memory counts
//! against no limit of the log: readers take no room from writers (`loans`). [`Log::durable`] is
//! the end of the durable part of the log. Without replicas it is the end of the log.
//!
//! Elsewhere: `replicated` has what a log with replicas needs, and the checksums. The
//! [`crate::objects::cleaner`] finds out which entries are live.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::wire::checksum::Crc32c;

use crate::objects::blocks::{Blocks, Prepare};
use crate::objects::entry::{self, COMPLETION};
use crate::objects::loans::Loans;
use crate::objects::segment::{
    Location, MAX_SEGMENTS, Position, SEGMENT_BYTES, Segment, SegmentId, Span, State,
};
use crate::types::{ServerId, Version, WallTime};

mod counts;
mod digests;
mod expiring;
mod helped;
mod lending;
mod purpose;
mod replicated;
mod side;
mod sorting;
mod survivors;

pub use digests::Opened;
use digests::Replicated;
pub(in crate::objects) use helped::{Filled, narrow};
pub use purpose::{Full, Purpose};
pub use sorting::SORTED_FROM;
use survivors::Survivors;

/// The number of free segments for the cleaner alone, so that it can always work.
pub const SURVIVORS: u32 = 2;
/// The number of further free segments for removals and the cleaner alone, so that full memory can
/// be emptied.
pub const REMOVALS: u32 = 1;
/// The least number of segments that a log can work with.
pub const MIN_SEGMENTS: u32 = SURVIVORS + REMOVALS + 3;

/// The cleaner takes no segment that would yield less than its size over this number, or it would
/// copy without end.
pub const LEAST_GAIN: u32 = 64;

/// The segments of one master, and their accounts.
#[derive(Debug)]
pub struct Log {
    slots: Vec<Segment>,
    /// The free slots of segments that have memory.
    free: Vec<u32>,
    /// The free slots of segments that have no memory.
    bare: Vec<u32>,
    blocks: Blocks,
    /// The segments in the log, by id in their order, with their slots.
    order: BTreeMap<SegmentId, u32>,
    segment_bytes: u32,
    limit: u32,
    last_id: SegmentId,
    head: Option<u32>,
    /// The end of the last head segment while there is no head.
    closed: Position,
    survivors: Survivors,
    live: u64,
    /// The greatest [`Segment::waste`] of all segments in the log.
    waste: u32,
    /// The numbers of closed segments by their waste.
    wastes: BTreeMap<u32, u32>,
    tombstones: u64,
    died: u64,
    appended: u64,
    survived: u64,
    /// The number of times since the start that more segments could be cleaned.
    closings: u64,
    loans: Loans,
    safe_version: Version,
    /// The safe version in the header of the last head segment.
    head_version: Version,
    /// True if an object in the log may expire.
    has_expiring: bool,
    cluster: u64,
    server: ServerId,
    /// The state of a log that has replicas.
    replicated: Option<Box<Replicated>>,
    durable: Position,
    crc32c: Crc32c,
}

/// Returns the size of the segments of a log that is to have segments of `wanted` bytes.
pub(crate) fn segment_bytes(wanted: u32) -> u32 {
    wanted.clamp(1 << 10, SEGMENT_BYTES)
}

impl Log {
    /// Returns an empty log of at most `bytes` bytes, in segments of `segment_bytes`. It takes
    /// memory as it grows. Both sizes are clamped: at least [`MIN_SEGMENTS`] segments of at most
    /// [`SEGMENT_BYTES`]. If `replicated`, appended entries are durable only after
    /// [`Log::set_durable`].
    #[must_use]
    pub fn new(bytes: u64, segment_bytes: u32, crc32c: Crc32c, replicated: bool) -> Self {
        let segment_bytes = self::segment_bytes(segment_bytes);
        let most =
            if replicated { Replicated::most_segments(segment_bytes) } else { MAX_SEGMENTS / 2 };
        let limit = (bytes / u64::from(segment_bytes)).clamp(MIN_SEGMENTS.into(), most.into());
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            bare: Vec::new(),
            blocks: Blocks::default(),
            order: BTreeMap::new(),
            segment_bytes,
            limit: limit as u32,
            last_id: SegmentId(0),
            head: None,
            closed: Position::default(),
            survivors: Survivors { sorted_from: SORTED_FROM, ..Survivors::default() },
            live: 0,
            waste: 0,
            wastes: BTreeMap::new(),
            tombstones: 0,
            died: 0,
            appended: 0,
            survived: 0,
            closings: 0,
            loans: Loans::new(limit as u32, segment_bytes),
            safe_version: Version(1),
            head_version: Version(0),
            has_expiring: false,
            cluster: 0,
            server: ServerId::default(),
            replicated: replicated.then(Box::default),
            durable: Position::default(),
            crc32c,
        }
    }

    /// Lets `host` touch the memory of the log's later segments ahead.
    pub fn prepare(&mut self, host: Box<dyn Prepare>) {
        self.blocks.prepare(host);
    }

    /// Orders memory for the next segment if it is needed soon and will be new. Called in each
    /// tick.
    pub fn prepare_next(&mut self, now: Instant) {
        if self.free.is_empty() && self.taken() < self.limit {
            let open = self.survivors.open.iter().chain([&self.head]).flatten();
            let bytes = self.segment_bytes as usize;
            let room = open.map(|&slot| self.slots[slot as usize].room()).min().unwrap_or(bytes);
            self.blocks.order(bytes, room, self.appended, now);
        }
    }

    /// Returns the function that continues a CRC32C checksum.
    #[must_use]
    pub fn crc32c(&self) -> Crc32c {
        self.crc32c
    }

    /// Sets the owner of the log and its cluster, for the headers of later segments.
    pub fn set_server(&mut self, cluster: u64, server: ServerId) {
        (self.cluster, self.server) = (cluster, server);
    }

    // Appending.

    /// Takes `len` bytes at the end of the log for one entry. The caller must fill them at once.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    #[inline]
    pub fn append(&mut self, len: usize, purpose: Purpose) -> Result<(Location, &mut [u8]), Full> {
        self.append_group(len, len, purpose)
    }

    /// Takes `len` bytes at the end of the log for several entries, as [`Log::append`] does for
    /// one. The longest of them has `longest` bytes. The cleaner moves them one by one, so that it
    /// needs no more room at a time.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    #[inline]
    pub fn append_group(
        &mut self,
        len: usize,
        longest: usize,
        purpose: Purpose,
    ) -> Result<(Location, &mut [u8]), Full> {
        let Survivors { open, current, .. } = &self.survivors;
        let open = if purpose.is_aside() { open[*current] } else { self.head };
        let slot = match open {
            Some(slot) if self.slots[slot as usize].room() >= len => slot,
            _ => self.advance(len, longest, purpose)?,
        };
        self.appended += len as u64;
        self.survived += if purpose == Purpose::Survive { len as u64 } else { 0 };
        self.waste = self.waste.max(longest as u32);
        let taken = self.slots[slot as usize].take(len, longest);
        let (offset, memory) = taken.ok_or(Full::TooLong)?;
        Ok((Location::new(slot, offset), memory))
    }

    /// Closes the log's open segment for `purpose` and opens another one.
    #[cold]
    fn advance(&mut self, len: usize, longest: usize, purpose: Purpose) -> Result<u32, Full> {
        if len > self.longest_entry() {
            return Err(Full::TooLong);
        }
        let kept_back = match purpose {
            Purpose::Write | Purpose::Recover => SURVIVORS + REMOVALS,
            Purpose::Remove => SURVIVORS,
            Purpose::Digest => SURVIVORS - 1,
            Purpose::Survive => 0,
        };
        if self.available() <= kept_back || self.last_id.0 == u32::MAX {
            if !purpose.is_aside() {
                // Its dead entries may be all that the cleaner can still free.
                self.close_head();
            }
            return Err(Full::NoSegment);
        }
        let survivor = purpose.is_aside();
        if survivor && let Some(slot) = self.other_survivor(len) {
            return Ok(slot);
        }
        let tail = self.tail();
        let slot = self.take_slot();
        self.last_id.0 += 1;
        let Survivors { open, current, .. } = &mut self.survivors;
        let open = if survivor { &mut open[*current] } else { &mut self.head };
        if let Some(full) = open.replace(slot) {
            self.slots[full as usize].state = State::Closed;
            self.count_closed(full, longest);
            // All replicas may have had all of it before it was closed.
            self.set_replicated(full, 0);
        }
        if !survivor {
            (self.closings, self.head_version) = (self.closings + 1, self.safe_version);
        }
        self.slots[slot as usize].open(self.last_id, survivor);
        self.order.insert(self.last_id, slot);
        let header = self.header(self.last_id);
        let segment = &mut self.slots[slot as usize];
        if let Some((_, memory)) = segment.take(entry::HEADER, entry::HEADER) {
            entry::put_header(memory, &header);
        }
        self.opened(slot, tail);
        Ok(slot)
    }

    /// Closes the head, although it may have room left.
    fn close_head(&mut self) {
        if let Some(head) = self.head.take() {
            let segment = &mut self.slots[head as usize];
            (segment.state, segment.closed_early) = (State::Closed, true);
            self.closings += 1;
            self.closed = Position { segment: segment.id, offset: segment.written };
            self.count_waste(head);
        }
    }

    /// Returns the header for the segment `id`.
    fn header(&self, id: SegmentId) -> entry::Header {
        entry::Header {
            cluster: self.cluster,
            server: self.server,
            segment: id,
            capacity: self.segment_bytes,
            safe_version: self.safe_version,
        }
    }

    /// Counts the waste of the segment in `slot`, which has no room for entries of `longest` bytes.
    fn count_closed(&mut self, slot: u32, longest: usize) {
        let segment = &mut self.slots[slot as usize];
        let room = segment.room();
        if room > longest.max(self.waste as usize) {
            // A group did not fit. The cleaner gains the room back.
            segment.closed_early = true;
        } else {
            segment.waste = segment.waste.max(room as u32);
        }
        self.count_waste(slot);
    }

    /// Counts the waste of the segment in `slot`, which was closed.
    fn count_waste(&mut self, slot: u32) {
        *self.wastes.entry(self.slots[slot as usize].waste).or_default() += 1;
    }

    /// Ends the count of the waste of a segment that leaves the log.
    fn discount_waste(&mut self, waste: u32) {
        if let Some(count) = self.wastes.get_mut(&waste) {
            *count -= 1;
            if *count == 0 {
                self.wastes.remove(&waste);
            }
        }
        if waste == self.waste {
            let open = self.survivors.open.iter().chain([&self.head]).flatten();
            let open = open.map(|&slot| self.slots[slot as usize].waste);
            let closed = self.wastes.last_key_value().map(|(&waste, _)| waste);
            self.waste = open.chain(closed).max().unwrap_or(0);
            debug_assert!(self.segments().all(|(_, segment)| segment.waste <= self.waste));
        }
    }

    /// Returns a slot with memory for the next segment.
    fn take_slot(&mut self) -> u32 {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        let segment = Segment::new(self.blocks.take(self.segment_bytes as usize));
        if let Some(slot) = self.bare.pop() {
            self.slots[slot as usize] = segment;
            return slot;
        }
        self.slots.push(segment);
        self.slots.len() as u32 - 1
    }

    /// Frees the slot of a segment that nothing refers to. Keeps its memory for the next segment,
    /// unless the log has all the memory that it may have.
    fn put_slot(&mut self, slot: u32) {
        if self.available() > self.free.len() as u32 {
            self.slots[slot as usize].state = State::Free;
            self.free.push(slot);
        } else {
            self.slots[slot as usize] = Segment::new(Vec::new());
            self.bare.push(slot);
        }
    }

    /// Returns the length of the longest entry that fits into a segment, in bytes.
    #[must_use]
    pub fn longest_entry(&self) -> usize {
        self.segment_bytes as usize - entry::HEADER - self.longest_digest()
    }

    // What is live.

    /// Counts the entry of `len` bytes at `at` as live.
    #[inline]
    pub fn live(&mut self, at: Location, len: usize) {
        self.slots[at.slot()].live += len as u32;
        self.live += len as u64;
    }

    /// Counts the tombstone of `len` bytes at `at` as live. It is needed while a segment of
    /// `buried` is in the log.
    pub fn live_tombstone(&mut self, at: Location, len: usize, buried: Span) {
        self.live(at, len);
        let segment = &mut self.slots[at.slot()];
        segment.tombstones += len as u32;
        segment.buried = segment.buried.hull(buried);
        self.tombstones += len as u64;
    }

    /// Counts the entry of `len` bytes at `at`, its record apart, as dead, and marks it, so that
    /// the cleaner skips it.
    #[inline]
    pub fn dead(&mut self, at: Location, len: usize) {
        self.count_dead(at, len);
        self.mark_dead(at);
    }

    /// Counts the completion at `at`, or the record of the entry at `at`, as live. It has an old
    /// value of `old` bytes.
    #[inline]
    pub fn live_record(&mut self, at: Location, old: usize) {
        self.live(at, COMPLETION + old);
    }

    /// Counts the completion at `at`, or the record of the entry at `at`, as dead, and marks it.
    #[inline]
    pub fn dead_record(&mut self, at: Location) {
        let counted = self.mark_record_dead(at);
        self.count_dead(at, counted);
    }

    #[inline]
    fn count_dead(&mut self, at: Location, len: usize) {
        self.slots[at.slot()].live -= len as u32;
        self.live -= len as u64;
        self.died += len as u64;
    }

    /// Counts the tombstone of `len` bytes at `at` as dead, and marks it.
    pub fn dead_tombstone(&mut self, at: Location, len: usize) {
        self.dead(at, len);
        self.slots[at.slot()].tombstones -= len as u32;
        self.tombstones -= len as u64;
    }

    // Segments.

    /// Returns all blocks of memory that were ever used, by slot.
    #[must_use]
    pub fn slots(&self) -> &[Segment] {
        &self.slots
    }

    /// Iterates over the segments in the log, in their order.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.order.iter().map(|(&id, &slot)| (id, &self.slots[slot as usize]))
    }

    /// Returns the slot of the segment `id`, if it is in the log.
    #[must_use]
    pub fn slot(&self, id: SegmentId) -> Option<u32> {
        self.order.get(&id).copied()
    }

    /// Returns the part of `span` between its first and last segments that are still in the log,
    /// `without` apart. It is empty if there is none.
    #[must_use]
    pub fn narrow(&self, span: Span, without: SegmentId) -> Span {
        if span.is_empty() || span.first > span.last {
            return Span::default();
        }
        let mut left =
            self.order.range(span.first..=span.last).map(|(&id, _)| id).filter(|&id| id != without);
        let in_memory = match left.next() {
            None => Span::default(),
            Some(first) => Span { first, last: left.next_back().unwrap_or(first) },
        };
        match &self.replicated {
            None => in_memory,
            Some(replicated) => in_memory.hull(replicated.lingering_in(span)),
        }
    }

    /// Removes the segment in `slot`, in which nothing is live, from the log.
    pub fn free(&mut self, slot: u32) {
        let segment = &mut self.slots[slot as usize];
        debug_assert_eq!((segment.live, segment.tombstones), (0, 0), "{:?}", segment.id);
        debug_assert_eq!(segment.state, State::Closed);
        let (id, twin) = (segment.id, segment.twin);
        self.order.remove(&id);
        let waste = segment.waste;
        segment.expires = WallTime::NEVER;
        if segment.pins > 0 {
            segment.state = State::Draining;
        } else {
            self.put_slot(slot);
        }
        self.freed(id, twin);
        self.discount_waste(waste);
    }

    // Reading.

    /// Returns the bytes of the log from `at` to the end of its segment.
    #[must_use]
    #[inline]
    pub fn bytes(&self, at: Location) -> &[u8] {
        &self.slots[at.slot()].bytes[at.offset()..]
    }

    /// Returns the object whose entry is at `at` in the log.
    #[must_use]
    #[inline]
    pub fn object(&self, at: Location) -> entry::Object<'_> {
        entry::object(self.bytes(at))
    }

    // Order, durability, versions.

    /// Returns the position in the log behind the last entry that a mutation appended.
    #[must_use]
    #[inline]
    pub fn tail(&self) -> Position {
        let Some(head) = self.head else { return self.closed };
        let segment = &self.slots[head as usize];
        Position { segment: segment.id, offset: segment.written }
    }

    /// Returns the version for a new object. It is greater than that of any removed object.
    #[must_use]
    pub fn safe_version(&self) -> Version {
        self.safe_version
    }

    /// Records that a new object has the version [`Log::safe_version`].
    pub fn use_version(&mut self) {
        self.safe_version.0 += 1;
    }

    /// Records that an object of `version` was removed.
    pub fn raise_safe_version(&mut self, version: Version) {
        self.safe_version = self.safe_version.max(Version(version.0 + 1));
    }
}

#[cfg(test)]
mod tests;
