//! Log-structured memory: all objects, tombstones and completions of a master, in segments.
//!
//! ```text
//!  segments:  closed … closed │ head ← mutations are appended here     survivor ← the cleaner copies here     free …
//!  free ones: kept back for the cleaner (SURVIVORS), then for removals (REMOVALS); writes may have the rest
//! ```
//!
//! What always holds: an append is one piece of memory in one segment, so a group of entries is
//! there whole or not at all; [`Position`]s only grow; a segment leaves the log only when nothing
//! in it is live, and its memory is used again only when no reply points into it. Until then that
//! memory counts against nothing here: readers cannot take room from writers (`loans`).
//! Durability has its door here: [`Log::durable`] is how far the log is safe. With no replicas that
//! is its end; a replica step moves it by [`Log::set_durable`].
//!
//! Checksums are filled in late, by [`Log::seal`], when bytes are about to leave this memory (to a replica, or to be
//! replayed): nothing reads them before, most entries are dead before the cleaner has moved them, and a checksum over a
//! 1 MiB value costs more than a turn's work may take. What is deliberately not here: which entries are live (the
//! [`crate::objects::cleaner`] asks the tables), and replication.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::Crc32c;

use crate::objects::entry;
use crate::objects::loans::Loans;
use crate::objects::segment::{
    Location, MAX_SEGMENTS, Position, SEGMENT_BYTES, Segment, SegmentId, Span, State,
};
use crate::types::{ServerId, Version};

mod lending;

/// Free segments that only the cleaner may use, so that it can always go on.
pub const SURVIVORS: u32 = 2;
/// Further ones that only removals (and the cleaner) may use, so that memory that is full can be emptied.
pub const REMOVALS: u32 = 1;
/// The fewest segments that a log can work with.
pub const MIN_SEGMENTS: u32 = SURVIVORS + REMOVALS + 3;

/// The cleaner takes no segment that would give less than one part in so many of it, or it would
/// copy without end.
pub const LEAST_GAIN: u32 = 64;

/// What an append is for: how much of the reserve it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A new value.
    Write,
    /// A removal, or a completion alone.
    Remove,
    /// The cleaner's copy.
    Survive,
}

/// Why an append is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    /// The entry is longer than a segment.
    #[error("the entry is longer than a segment")]
    TooLong,
    /// There is no free segment for this purpose; the cleaner may find one.
    #[error("no free segment")]
    NoSegment,
}

/// The log. See the module.
#[derive(Debug)]
pub struct Log {
    slots: Vec<Segment>,
    /// Slots that are free and have memory.
    free: Vec<u32>,
    /// Slots without memory.
    bare: Vec<u32>,
    /// The segments of the log in their order, with their slots.
    order: BTreeMap<SegmentId, u32>,
    segment_bytes: u32,
    limit: u32,
    last_id: SegmentId,
    head: Option<u32>,
    /// The end of the last head, when there is none.
    closed: Position,
    survivor: Option<u32>,
    live: u64,
    /// The greatest [`Segment::waste`] of all segments in the log.
    waste: u32,
    tombstones: u64,
    died: u64,
    appended: u64,
    survived: u64,
    /// Heads that were closed.
    closings: u64,
    loans: Loans,
    safe_version: Version,
    server: ServerId,
    replicated: bool,
    durable: Position,
    crc32c: Crc32c,
}

impl Log {
    /// An empty log of at most `bytes` bytes, in segments of `segment_bytes`; it takes memory as it grows. Both are
    /// brought into the limits: at least [`MIN_SEGMENTS`] segments of at most [`SEGMENT_BYTES`]. If `replicated`, what
    /// is appended is durable only when [`Log::set_durable`] says so.
    #[must_use]
    pub fn new(bytes: u64, segment_bytes: u32, crc32c: Crc32c, replicated: bool) -> Self {
        let segment_bytes = segment_bytes.clamp(1 << 10, SEGMENT_BYTES);
        let limit = (bytes / u64::from(segment_bytes))
            .clamp(MIN_SEGMENTS.into(), (MAX_SEGMENTS / 2).into());
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            bare: Vec::new(),
            order: BTreeMap::new(),
            segment_bytes,
            limit: limit as u32,
            last_id: SegmentId(0),
            head: None,
            closed: Position::default(),
            survivor: None,
            live: 0,
            waste: 0,
            tombstones: 0,
            died: 0,
            appended: 0,
            survived: 0,
            closings: 0,
            loans: Loans::new(limit as u32, segment_bytes),
            safe_version: Version(1),
            server: ServerId::default(),
            replicated,
            durable: Position::default(),
            crc32c,
        }
    }

    /// Whose log it is, for the headers of later segments.
    pub fn set_server(&mut self, server: ServerId) {
        self.server = server;
    }

    // Appending.

    /// Takes `len` bytes at the log's end for one entry, to be filled at once.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    #[inline]
    pub fn append(&mut self, len: usize, purpose: Purpose) -> Result<(Location, &mut [u8]), Full> {
        let open = if purpose == Purpose::Survive { self.survivor } else { self.head };
        let slot = match open {
            Some(slot) if self.slots[slot as usize].room() >= len => slot,
            _ => self.advance(len, purpose)?,
        };
        self.appended += len as u64;
        self.survived += if purpose == Purpose::Survive { len as u64 } else { 0 };
        self.waste = self.waste.max(len as u32);
        let (offset, memory) = self.slots[slot as usize].take(len).ok_or(Full::TooLong)?;
        Ok((Location::new(slot, offset), memory))
    }

    /// Closes the open segment for `purpose` and opens another one.
    #[cold]
    fn advance(&mut self, len: usize, purpose: Purpose) -> Result<u32, Full> {
        if len > self.longest_entry() {
            return Err(Full::TooLong);
        }
        let kept_back = match purpose {
            Purpose::Write => SURVIVORS + REMOVALS,
            Purpose::Remove => SURVIVORS,
            Purpose::Survive => 0,
        };
        if self.available() <= kept_back || self.last_id.0 == u32::MAX {
            if purpose != Purpose::Survive
                && let Some(head) = self.head.take()
            {
                // What is dead in it may be all that the cleaner can still free.
                let segment = &mut self.slots[head as usize];
                (segment.state, segment.closed_early) = (State::Closed, true);
                self.closings += 1;
                self.closed = Position { segment: segment.id, offset: segment.written };
            }
            return Err(Full::NoSegment);
        }
        let slot = self.take_slot();
        self.last_id.0 += 1;
        let survivor = purpose == Purpose::Survive;
        let open = if survivor { &mut self.survivor } else { &mut self.head };
        if let Some(full) = open.replace(slot) {
            let segment = &mut self.slots[full as usize];
            segment.state = State::Closed;
            segment.waste = segment.waste.max(segment.room() as u32);
        }
        self.closings += u64::from(!survivor);
        let segment = &mut self.slots[slot as usize];
        segment.open(self.last_id, survivor);
        self.order.insert(self.last_id, slot);
        let header = entry::Header {
            server: self.server,
            segment: self.last_id,
            capacity: self.segment_bytes,
            safe_version: self.safe_version,
        };
        if let Some((_, memory)) = segment.take(entry::HEADER) {
            entry::put_header(memory, &header);
        }
        Ok(slot)
    }

    /// A slot with memory for the next segment.
    fn take_slot(&mut self) -> u32 {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        let segment = Segment::new(self.segment_bytes);
        if let Some(slot) = self.bare.pop() {
            self.slots[slot as usize] = segment;
            return slot;
        }
        self.slots.push(segment);
        self.slots.len() as u32 - 1
    }

    /// Nothing points into the segment in `slot` any more: its memory is for the next one, unless
    /// the log has all that it may have.
    fn put_slot(&mut self, slot: u32) {
        if self.available() > self.free.len() as u32 {
            self.slots[slot as usize].state = State::Free;
            self.free.push(slot);
        } else {
            self.slots[slot as usize] = Segment::new(0);
            self.bare.push(slot);
        }
    }

    /// The longest entry that fits into a segment, in bytes.
    #[must_use]
    pub fn longest_entry(&self) -> usize {
        self.segment_bytes as usize - entry::HEADER
    }

    /// Copies the entry of `len` bytes at `from`, which is live, to the survivor segment, where it is live from now on.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    pub fn relocate(&mut self, from: Location, len: usize) -> Result<(Location, &mut [u8]), Full> {
        let (to, _) = self.append(len, Purpose::Survive)?;
        let pair = self.slots.get_disjoint_mut([from.slot(), to.slot()]);
        let [source, target] = pair.map_err(|_| Full::NoSegment)?;
        source.live -= len as u32;
        target.live += len as u32;
        let copy = &mut target.bytes[to.offset()..][..len];
        copy.copy_from_slice(&source.bytes[from.offset()..][..len]);
        Ok((to, copy))
    }

    /// As [`Log::relocate`], for a tombstone that is needed for what is left of `buried`.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    pub fn relocate_tombstone(
        &mut self,
        from: Location,
        len: usize,
        buried: Span,
    ) -> Result<(), Full> {
        let (to, copy) = self.relocate(from, len)?;
        entry::set_older(copy, buried);
        self.slots[from.slot()].tombstones -= len as u32;
        let target = &mut self.slots[to.slot()];
        target.tombstones += len as u32;
        target.buried = target.buried.hull(buried);
        Ok(())
    }

    // What is live.

    /// The entry of `len` bytes at `at` is needed.
    #[inline]
    pub fn live(&mut self, at: Location, len: usize) {
        self.slots[at.slot()].live += len as u32;
        self.live += len as u64;
    }

    /// The tombstone of `len` bytes at `at` is needed as long as a segment of `buried` is in the log.
    pub fn live_tombstone(&mut self, at: Location, len: usize, buried: Span) {
        self.live(at, len);
        let segment = &mut self.slots[at.slot()];
        segment.tombstones += len as u32;
        segment.buried = segment.buried.hull(buried);
        self.tombstones += len as u64;
    }

    /// The entry of `len` bytes at `at` is needed no more; it is marked, so that the cleaner passes by.
    #[inline]
    pub fn dead(&mut self, at: Location, len: usize) {
        let segment = &mut self.slots[at.slot()];
        segment.live -= len as u32;
        entry::mark_dead(&mut segment.bytes[at.offset()..]);
        self.live -= len as u64;
        self.died += len as u64;
    }

    /// As [`Log::dead`], for a tombstone.
    pub fn dead_tombstone(&mut self, at: Location, len: usize) {
        self.dead(at, len);
        self.slots[at.slot()].tombstones -= len as u32;
        self.tombstones -= len as u64;
    }

    /// Bytes of entries that are needed.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live
    }

    /// Those of them that are tombstones.
    #[must_use]
    pub fn tombstone_bytes(&self) -> u64 {
        self.tombstones
    }

    /// Bytes that have died since the start: a clock for who waits for something to clean.
    #[must_use]
    pub fn died_bytes(&self) -> u64 {
        self.died
    }

    /// Bytes appended since the start, survivors included.
    #[must_use]
    pub fn appended_bytes(&self) -> u64 {
        self.appended
    }

    /// Returns the bytes that were appended since the start, those of the cleaner apart.
    #[must_use]
    #[inline]
    pub fn written_bytes(&self) -> u64 {
        self.appended - self.survived
    }

    /// Returns the number of segments that were opened since the start. Entries take it as their
    /// stamp, so that their age counts what was appended since then.
    #[must_use]
    #[inline]
    pub fn clock(&self) -> u32 {
        self.last_id.0
    }

    /// The limit of live data, in bytes.
    #[must_use]
    pub fn live_limit(&self) -> u64 {
        self.live_limit_with(0)
    }

    /// The same with an append of `len` bytes. New data is refused beyond 95 % of what the reserve
    /// leaves, so that cleaning stays cheap, and beyond what the cleaner can surely keep in all
    /// segments but the reserve and the next head: it leaves a 64th of a segment alone, and at the
    /// end of each may be less room than the longest entry needs.
    #[must_use]
    pub fn live_limit_with(&self, len: usize) -> u64 {
        let segment = u64::from(self.segment_bytes);
        let closed = u64::from(self.limit - SURVIVORS - REMOVALS - 1);
        let waste = u64::from(self.waste).max(len as u64) + segment / u64::from(LEAST_GAIN);
        let surely = closed * segment.saturating_sub(waste + entry::HEADER as u64);
        surely.min((closed + 1) * segment / 100 * 95)
    }

    /// All of the memory, in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.limit) * u64::from(self.segment_bytes)
    }

    // Segments.

    /// Segments that may yet be opened. One that was freed counts although replies still point into
    /// its memory: the next takes other memory.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.limit - self.order.len() as u32
    }

    /// Segments that have memory and into which no reply points that is in the log no more.
    #[must_use]
    pub fn taken(&self) -> u32 {
        (self.order.len() + self.free.len()) as u32
    }

    /// How often a head was closed: for who waits for something to clean.
    #[must_use]
    pub fn closings(&self) -> u64 {
        self.closings
    }

    /// Free segments whose memory was used before.
    #[must_use]
    pub fn spare(&self) -> u32 {
        self.free.len() as u32
    }

    /// The length of a segment, in bytes.
    #[must_use]
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// The most segments that the log may have.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// All blocks of memory that were ever used, by slot.
    #[must_use]
    pub fn slots(&self) -> &[Segment] {
        &self.slots
    }

    /// The segments in the log, in their order.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.order.iter().map(|(&id, &slot)| (id, &self.slots[slot as usize]))
    }

    /// Where the segment `id` is, if it is in the log.
    #[must_use]
    pub fn slot(&self, id: SegmentId) -> Option<u32> {
        self.order.get(&id).copied()
    }

    /// The part of `span` from its first segment that is still in the log, not counting `without`; empty if none is.
    #[must_use]
    pub fn narrow(&self, span: Span, without: SegmentId) -> Span {
        if span.is_empty() || span.first > span.last {
            return Span::default();
        }
        let mut left =
            self.order.range(span.first..=span.last).map(|(&id, _)| id).filter(|&id| id != without);
        match left.next() {
            None => Span::default(),
            Some(first) => Span { first, last: left.next_back().unwrap_or(first) },
        }
    }

    /// Takes the segment in `slot`, in which nothing is live, out of the log.
    pub fn free(&mut self, slot: u32) {
        let segment = &mut self.slots[slot as usize];
        debug_assert_eq!((segment.live, segment.tombstones), (0, 0), "{:?}", segment.id);
        debug_assert_eq!(segment.state, State::Closed);
        self.order.remove(&segment.id);
        let waste = segment.waste;
        if segment.pins > 0 {
            segment.state = State::Draining;
        } else {
            self.put_slot(slot);
        }
        if waste == self.waste {
            self.waste = self.segments().map(|(_, segment)| segment.waste).max().unwrap_or(0);
        }
    }

    // Reading.

    /// The memory from `at` to the end of its segment.
    #[must_use]
    #[inline]
    pub fn bytes(&self, at: Location) -> &[u8] {
        &self.slots[at.slot()].bytes[at.offset()..]
    }

    /// The object at `at`.
    #[must_use]
    #[inline]
    pub fn object(&self, at: Location) -> entry::Object<'_> {
        entry::object(self.bytes(at))
    }

    // Order, durability, versions.

    /// The end of what mutations appended.
    #[must_use]
    #[inline]
    pub fn tail(&self) -> Position {
        let Some(head) = self.head else { return self.closed };
        let segment = &self.slots[head as usize];
        Position { segment: segment.id, offset: segment.written }
    }

    /// Up to where the log is safe.
    #[must_use]
    #[inline]
    pub fn durable(&self) -> Position {
        if self.replicated { self.durable } else { self.tail() }
    }

    /// True if all of the log is safe.
    #[must_use]
    #[inline]
    pub fn is_all_durable(&self) -> bool {
        !self.replicated || self.durable >= self.tail()
    }

    /// The log is safe up to `position`.
    pub fn set_durable(&mut self, position: Position) {
        self.durable = self.durable.max(position);
    }

    /// Whether the entry at `at` is safe. What the cleaner moved was safe before.
    #[must_use]
    #[inline]
    pub fn is_durable(&self, at: Location) -> bool {
        if !self.replicated {
            return true;
        }
        let segment = &self.slots[at.slot()];
        segment.survivor
            || Position { segment: segment.id, offset: at.offset() as u32 } < self.durable
    }

    /// The version for a new object: greater than that of any object that was ever removed.
    #[must_use]
    pub fn safe_version(&self) -> Version {
        self.safe_version
    }

    /// A new object has got [`Log::safe_version`].
    pub fn use_version(&mut self) {
        self.safe_version.0 += 1;
    }

    /// An object of `version` was removed.
    pub fn bury(&mut self, version: Version) {
        self.safe_version = self.safe_version.max(Version(version.0 + 1));
    }

    /// Fills in the checksums of all entries in `slot` that have none yet.
    pub fn seal(&mut self, slot: u32) {
        let segment = &mut self.slots[slot as usize];
        let mut at = segment.sealed as usize;
        while let Some(len) = segment
            .bytes
            .get_mut(at..segment.written as usize)
            .and_then(|entries| entry::seal(self.crc32c, entries))
        {
            at += len;
        }
        segment.sealed = at as u32;
    }
}

#[cfg(test)]
mod tests;
