//! Lending bytes of the log to replies, by pins or copies.

use sprat_proto::rpc::Slice;

use super::Log;
use crate::objects::loans::COPY;
use crate::objects::segment::{Location, State};

impl Log {
    /// Lends the `len` (at least one) bytes of the log at `at` until [`Log::give_back`]: in place
    /// while few segments are pinned, else as a copy. Returns `None` if too much is lent already.
    pub fn lend(&mut self, at: Location, len: usize) -> Option<Slice> {
        let segment = &mut self.slots[at.slot()];
        if segment.pins == 0 {
            if self.loans.pinned >= self.loans.most_pinned {
                return self.loans.copy(&segment.bytes[at.offset()..][..len]);
            }
            self.loans.pinned += 1;
        }
        segment.pins += 1;
        Some(Slice { segment: at.slot() as u32, offset: at.offset() as u32, len: len as u32 })
    }

    /// Returns the bytes of a slice that is lent, or no bytes for a malformed slice.
    #[must_use]
    pub fn lent_bytes(&self, slice: Slice) -> &[u8] {
        let end = slice.offset as usize + slice.len as usize;
        let bytes = match slice.segment & COPY {
            0 => self.slots.get(slice.segment as usize).map(|segment| &segment.bytes[..]),
            _ => self.loans.copies.get((slice.segment & !COPY) as usize).map(|copy| &copy[..]),
        };
        bytes.and_then(|bytes| bytes.get(slice.offset as usize..end)).unwrap_or(&[])
    }

    /// Undoes one [`Log::lend`]. Returns true if that frees the memory of a segment.
    pub fn give_back(&mut self, slice: Slice) -> bool {
        if slice.segment & COPY != 0 {
            self.loans.drop_copy(slice.segment & !COPY);
            return false;
        }
        let Some(segment) = self.slots.get_mut(slice.segment as usize).filter(|s| s.pins > 0)
        else {
            return false;
        };
        segment.pins -= 1;
        if segment.pins > 0 {
            return false;
        }
        self.loans.pinned -= 1;
        let drained = segment.state == State::Draining;
        if drained {
            self.put_slot(slice.segment);
        }
        drained
    }

    /// Returns the number of segments that slices of replies refer to.
    #[must_use]
    pub fn pinned(&self) -> u32 {
        self.loans.pinned
    }

    /// Returns the number of bytes of the log that are copied for replies.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.loans.copied_bytes
    }
}

#[cfg(test)]
mod tests;
