//! The part of a log that only replicas need: checksums, the digest, and the durable end.
//!
//! ```text
//!  head      header, digest, entries …       a mutation is durable when all replicas have it
//!  survivor  header, entries …               in no digest until all replicas have its entries
//!
//!  cleaned ─► lingering: still in the digest ─► a digest or change without it is durable ─► freed
//! ```
//!
//! The digest of a head names the segments that a recovery replays, this head apart, and the least
//! length of each. A change follows in the head when cleaned segments leave the log. A cleaned
//! segment stays in the digest until all replicas have the entries that were moved out of it.
//!
//! Invariants: the segments of the newest durable digest, with its changes, hold all durable
//! entries. Segments leave the digest in the order in which they were cleaned, so that a tombstone
//! never leaves before the segments for which it is needed. A segment in a durable digest counts as
//! present for [`Log::narrow`] although its memory is reused.
//!
//! [`Log::seal`] fills in checksums late, before bytes leave this memory. Nothing reads them
//! before, and without replicas most entries die before the cleaner moves them.

use super::digests::{DIGEST_HEAD, NAMED, Opened, Survivor};
use super::survivors::{Ends, HELPED};
use super::{Full, Log, Purpose, SURVIVORS};
use crate::objects::entry::{self, DIGESTED, Head};
use crate::objects::segment::{Location, Position, Segment, SegmentId, State};

/// A change of the digest names at most this many segments that leave the log.
const MOST_LEAVING: usize = 64;

impl Log {
    /// Returns the number of bytes that a digest may take.
    pub(super) fn longest_digest(&self) -> usize {
        match self.replicated {
            None => 0,
            Some(_) => DIGEST_HEAD + DIGESTED * (NAMED * self.limit) as usize,
        }
    }

    /// Writes the digest behind the header of a head that was opened in `slot`, and announces the
    /// segment to the replicas. The log ended at `tail` before.
    pub(super) fn opened(&mut self, slot: u32, tail: Position) {
        let Some(replicated) = &mut self.replicated else { return };
        let segment = &mut self.slots[slot as usize];
        if segment.survivor {
            replicated.survivors.insert(segment.id, Survivor::default());
        } else {
            if tail.segment > SegmentId(0) {
                replicated.named.insert(tail.segment, tail.offset);
            }
            let changed = replicated.change(usize::MAX);
            let len = DIGEST_HEAD + DIGESTED * replicated.named.len();
            if let Some((_, memory)) = segment.take(len, len) {
                entry::put_digest(memory, replicated.named.iter().map(|(&id, &len)| (id, len)));
            }
            let end = Position { segment: segment.id, offset: segment.written };
            replicated.leave(&changed, end);
        }
        let (id, survivor, front) = (segment.id, segment.survivor, segment.written);
        replicated.opened.push_back(Opened { id, slot, survivor, front });
    }

    /// Records that the cleaner has moved what was live in the segment `id`, whose memory is free.
    /// A helper has copied entries of it to the survivor `twin`, if that is not 0. An earlier job
    /// may have copied others to an earlier survivor: another source of that job left before, which
    /// waits for that one, and segments leave in this order.
    pub(super) fn freed(&mut self, id: SegmentId, twin: SegmentId) {
        let open = self.survivor_ends();
        if let Some(replicated) = &mut self.replicated {
            // A recovery may have closed the survivors that have entries of the segment. A survivor
            // that was closed alone is older than the open one in its place.
            let is_open = open != Ends::default();
            let mut ends = if is_open { open } else { replicated.survivors_end() };
            ends[HELPED] =
                Position { segment: twin, offset: if twin.0 == 0 { 0 } else { u32::MAX } };
            replicated.lingering.insert(id);
            replicated.leaving.push_back((id, ends));
        }
    }

    /// Appends a change of the digest if cleaned segments can leave it. Returns true if it did.
    pub fn change_digest(&mut self) -> bool {
        let Some(replicated) = &self.replicated else { return false };
        let can = |(_, ends): &(SegmentId, Ends)| replicated.has_survived(ends);
        if !replicated.leaving.front().is_some_and(can) && replicated.adoptable().is_none() {
            return false;
        }
        let leaving = replicated.leaving.len().min(MOST_LEAVING);
        let most = DIGEST_HEAD + DIGESTED * (replicated.survivors.len() + leaving);
        let room = self.head.map_or(0, |slot| self.slots[slot as usize].room());
        if room < most {
            // The digest of the next head has the change. If the cleaner waits for it, memory may
            // be full, and nothing else would open a head.
            let waits = self.lingering() >= self.most_lingering();
            let purpose = if waits { Purpose::Digest } else { Purpose::Remove };
            let kept_back = if waits { SURVIVORS - 1 } else { SURVIVORS };
            return self.available() > kept_back && self.advance(0, usize::MAX, purpose).is_ok();
        }
        let Some(replicated) = &mut self.replicated else { return false };
        let changed = replicated.change(MOST_LEAVING);
        let len = DIGEST_HEAD + DIGESTED * changed.len();
        let Ok((_, memory)) = self.append(len, Purpose::Remove) else { return false };
        entry::put_change(memory, changed.iter().copied());
        let end = self.tail();
        if let Some(replicated) = &mut self.replicated {
            replicated.leave(&changed, end);
        }
        true
    }

    /// Opens the first head of a log that has replicas, if it has none.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    pub fn open_head(&mut self) -> Result<(), Full> {
        if self.replicated.is_some() && self.tail() == Position::default() {
            self.advance(0, usize::MAX, Purpose::Write)?;
        }
        Ok(())
    }

    // For the replicas.

    /// Returns true if the log has replicas.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.replicated.is_some()
    }

    /// Returns the next segment that was opened and needs replicas.
    pub fn take_opened(&mut self) -> Option<Opened> {
        self.replicated.as_mut()?.opened.pop_front()
    }

    /// Returns the next segment whose replicas are not needed any more.
    pub fn take_freed(&mut self) -> Option<SegmentId> {
        self.replicated.as_mut()?.freed.pop_front()
    }

    /// Records that all replicas of the segment in `slot` have its first `len` bytes.
    pub fn set_replicated(&mut self, slot: u32, len: u32) {
        let Some(segment) = self.slots.get_mut(slot as usize) else { return };
        segment.durable = segment.durable.max(len);
        let whole = segment.state == State::Closed && segment.durable == segment.written;
        let Some(replicated) = &mut self.replicated else { return };
        if let Some(survivor) = replicated.survivors.get_mut(&segment.id) {
            self.closings += u64::from(whole && survivor.whole.is_none());
            survivor.durable = segment.durable;
            survivor.whole = whole.then_some(segment.durable);
        }
    }

    /// Returns the end of the durable part of the log.
    #[must_use]
    #[inline]
    pub fn durable(&self) -> Position {
        if self.replicated.is_some() { self.durable } else { self.tail() }
    }

    /// Returns true if all of the log is durable.
    #[must_use]
    #[inline]
    pub fn is_all_durable(&self) -> bool {
        self.replicated.is_none() || self.durable >= self.tail()
    }

    /// Records that the log is durable up to `position`.
    pub fn set_durable(&mut self, position: Position) {
        let before = self.durable;
        self.durable = before.max(position);
        let durable = self.durable;
        let Some(replicated) = &mut self.replicated else { return };
        let mut cleanable = before.segment < durable.segment
            || before < self.closed && self.closed <= durable && self.head.is_none();
        while let Some((id, _)) = replicated.left.pop_front_if(|(_, end)| *end <= durable) {
            replicated.lingering.remove(&id);
            replicated.freed.push_back(id);
            cleanable = true;
        }
        self.closings += u64::from(cleanable);
    }

    /// Returns true if the entry at `at` is durable.
    #[must_use]
    #[inline]
    pub fn is_durable(&self, at: Location) -> bool {
        if self.replicated.is_none() {
            return true;
        }
        let segment = &self.slots[at.slot()];
        let at = Position { segment: segment.id, offset: at.offset() as u32 };
        // All that is durable ends with an entry.
        segment.survivor || at < self.durable
    }

    /// Returns the end of the last entry in `slot` that ends at most `most` bytes behind `from`,
    /// where an entry begins; the end of the first one there if that is longer.
    #[must_use]
    pub fn end_of_entries(&self, slot: u32, from: u32, most: u32) -> u32 {
        let segment = &self.slots[slot as usize];
        if segment.written - from <= most {
            return segment.written;
        }
        let mut end = from;
        let bytes = &segment.bytes[..segment.written as usize];
        while let Some(head) = bytes.get(end as usize..).and_then(Head::of) {
            // Replicas get a group whole: a read of its first entry must not be ahead of the rest.
            let group = head.group_len(&bytes[end as usize..]);
            let next = end + (head.entry_len() + group) as u32;
            if next - from > most && end > from {
                break;
            }
            end = next;
        }
        end.min(segment.written)
    }

    /// Returns true if the cleaner may take the closed segment in `slot`: all of it is durable, and
    /// few cleaned segments are still in the digest.
    #[must_use]
    pub fn may_clean(&self, slot: usize) -> bool {
        let Some(replicated) = &self.replicated else { return true };
        let Segment { survivor, durable, written, id, .. } = self.slots[slot];
        let end = Position { segment: id, offset: written };
        let settled = replicated.survivors.get(&id).is_none_or(|s| s.whole.is_some());
        let is_durable = if survivor { durable == written && settled } else { end <= self.durable };
        is_durable && self.lingering() < self.most_lingering()
    }

    /// Returns the number of cleaned segments that the durable digest may still name. Their
    /// memory is free: a replica of one that its backup loses cannot be made again.
    #[must_use]
    pub fn lingering(&self) -> usize {
        self.replicated.as_ref().map_or(0, |replicated| replicated.lingering.len())
    }

    /// Returns the number of segments in the digest that were cleaned from which on the cleaner
    /// waits.
    fn most_lingering(&self) -> usize {
        self.limit as usize - 1
    }

    /// Fills in the missing checksums of all entries in `slot`.
    pub fn seal(&mut self, slot: u32) {
        let segment = &mut self.slots[slot as usize];
        let mut at = segment.sealed as usize;
        let mut seed = segment.bytes.get(4..8).and_then(|crc| crc.try_into().ok());
        let mut seed = seed.take().map_or(0, u32::from_be_bytes);
        while let Some(entries) = segment.bytes.get_mut(at..segment.written as usize)
            && let Some(len) = entry::seal(self.crc32c, if at == 0 { 0 } else { seed }, entries)
        {
            if at == 0 {
                seed = entries[4..8].try_into().map_or(0, u32::from_be_bytes);
            }
            at += len;
        }
        segment.sealed = at as u32;
    }
}
