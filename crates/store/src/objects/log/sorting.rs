//! The open survivor segments, to which the cleaner moves live entries.
//!
//! ```text
//!  segments opened since its entries were written
//!    fewer than the log has ─────────────────► the survivor for young entries
//!    as many or more, and the log is large ──► the survivor for old entries
//! ```
//!
//! Entries that have lived for long live on for longer than others. If they lie together, the
//! segments of the old ones stay full and the others empty, so that less has to be moved. Entries
//! have no time of their own: each segment has the mean age of its entries.
//!
//! Invariant: the free segments are enough for one survivor. When writes have none, an entry goes
//! to whichever open survivor has room.

use super::survivors::{Ends, KINDS};
use super::{Full, Log, Purpose, REMOVALS, SURVIVORS};
use crate::objects::cache;
use crate::objects::segment::{Location, Position, Span, State};

/// The number of segments from which on a log has a survivor for old entries, unless
/// [`Log::sort_from`] sets it. In a smaller one the memory of another open segment costs more than
/// it saves where no entry lives for longer than others.
pub const SORTED_FROM: u32 = 384;

impl Log {
    /// Lets a log of this number of segments, or more, have a survivor for old entries. It must be
    /// empty.
    pub fn sort_from(&mut self, segments: u32) {
        self.survivors.sorted_from = segments;
    }

    /// Returns true if old entries have a survivor of their own.
    #[must_use]
    #[inline]
    pub fn sorts(&self) -> bool {
        self.limit >= self.survivors.sorted_from
    }

    /// Returns the number of bytes that still fit into the open segments. That of the survivor for
    /// old entries counts half, since it fills slowly.
    #[must_use]
    pub fn open_room(&self) -> u64 {
        let room =
            |open: Option<u32>| open.map_or(0, |slot| self.slots[slot as usize].room() as u64);
        let [young, old] = self.survivors.open;
        room(self.head) + room(young) + room(old) / 2
    }

    /// Chooses the survivor for entries of the segment in `slot`, which are moved next.
    pub fn begin_moving(&mut self, slot: u32) {
        let born = self.slots[slot as usize].born();
        (self.survivors.current, self.survivors.born) = (usize::from(self.is_old(slot)), born);
    }

    /// Returns true if entries of the segment in `slot` go to the survivor for old entries.
    #[must_use]
    pub fn is_old(&self, slot: u32) -> bool {
        let age = self.last_id.0.saturating_sub(self.slots[slot as usize].born().0);
        self.sorts() && age as usize >= self.order.len()
    }

    /// Loads the memory of the present survivor to which entries of `len` bytes in all are moved
    /// next, so that it is in the processor's cache when they are written.
    pub fn load_survivor(&self, len: usize) {
        let Some(slot) = self.survivors.open[self.survivors.current] else { return };
        let segment = &self.slots[slot as usize];
        let room = &segment.bytes[segment.written as usize..];
        cache::load(&room[..room.len().min(len)]);
    }

    /// Moves the live entry at `from`, which counts as `counted` bytes, to the survivor of
    /// [`Log::begin_moving`], or the live part of it. The copy has `len` bytes, at most `counted`.
    /// `write` gets the memory of the copy, and the entry.
    ///
    /// # Errors
    /// [`Full`], and nothing changed.
    pub fn relocate(
        &mut self,
        from: Location,
        counted: usize,
        len: usize,
        write: impl FnOnce(&mut [u8], &[u8]),
    ) -> Result<Location, Full> {
        let (to, _) = self.append(len, Purpose::Survive)?;
        let pair = self.slots.get_disjoint_mut([from.slot(), to.slot()]);
        let [source, target] = pair.map_err(|_| Full::NoSegment)?;
        source.live -= counted as u32;
        target.live += counted as u32;
        let older = target.id.0.saturating_sub(self.survivors.born.0);
        target.aged += len as u64 * u64::from(older);
        write(&mut target.bytes[to.offset()..][..len], &source.bytes[from.offset()..]);
        Ok(to)
    }

    /// Counts the live tombstone of `len` bytes, which was moved from `from` to `to`, at its new
    /// place. It is needed for the rest of `buried`.
    pub fn tombstone_moved(&mut self, from: Location, to: Location, len: usize, buried: Span) {
        self.slots[from.slot()].tombstones -= len as u32;
        let target = &mut self.slots[to.slot()];
        target.tombstones += len as u32;
        target.buried = target.buried.hull(buried);
    }

    /// Returns an open survivor with room for an entry of `len` bytes, if no segment is free for
    /// writes: the cleaner has to go on with what is open.
    pub(super) fn other_survivor(&self, len: usize) -> Option<u32> {
        if self.available() > SURVIVORS + REMOVALS {
            return None;
        }
        let mut open = self.survivors.open.iter().flatten().copied();
        open.find(|&slot| self.slots[slot as usize].room() >= len)
    }

    /// Closes the open survivors, although they may have room left.
    pub(super) fn close_survivors(&mut self) {
        for kind in 0..KINDS {
            if let Some(slot) = self.survivors.open[kind].take() {
                let segment = &mut self.slots[slot as usize];
                (segment.state, segment.closed_early) = (State::Closed, true);
                self.count_waste(slot);
                // All replicas may have had all of it before it was closed.
                self.set_replicated(slot, 0);
            }
        }
    }

    /// Returns the ends of the open survivors.
    pub(super) fn survivor_ends(&self) -> Ends {
        let mut ends = Ends::default();
        for (end, open) in ends.iter_mut().zip(self.survivors.open) {
            if let Some(slot) = open {
                let segment = &self.slots[slot as usize];
                *end = Position { segment: segment.id, offset: segment.written };
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests;
