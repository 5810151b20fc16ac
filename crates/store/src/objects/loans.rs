//! Bytes of the log that replies name instead of having them: pinned where they lie, or copied.
//!
//! ```text
//!  slice.segment:  slot (24 bits): pinned, the slice's offset is that in the segment
//!                  COPY | which one (24 bits): a copy of the slice's bytes
//! ```
//!
//! A reply keeps its slices until its client has it, and a client may be slow or stopped. So what
//! replies may hold is limited here, for all clients together, in memory that writes never need:
//! segments that were cleaned while replies point into them (at most [`SHARE`] of the log, since no
//! more have pins), and as many bytes of copies. Beyond both there is no slice, and the request has
//! to come again. The transports end what makes no progress.
//!
//! What always holds: a slice's bytes do not change until it is given back; pins keep no segment in
//! the log, only its memory out of use.

use alloc::vec::Vec;

use sprat_proto::rpc::Slice;

/// The share of all segments that may have pins, and of all bytes that may be copied: one of so
/// many.
const SHARE: u32 = 8;
/// Marks a slice as a copy. No slot has this bit.
pub(super) const COPY: u32 = 1 << 31;

/// What is lent.
#[derive(Debug)]
pub(super) struct Loans {
    /// Segments with pins, and the most that may have some.
    pub(super) pinned: u32,
    pub(super) most_pinned: u32,
    /// Copies by their number, empty if it is free.
    pub(super) copies: Vec<Vec<u8>>,
    free: Vec<u32>,
    pub(super) copied_bytes: u64,
    most_copied_bytes: u64,
}

impl Loans {
    pub(super) fn new(segments: u32, segment_bytes: u32) -> Self {
        let most_pinned = (segments / SHARE).max(1);
        Self {
            pinned: 0,
            most_pinned,
            copies: Vec::new(),
            free: Vec::new(),
            copied_bytes: 0,
            most_copied_bytes: u64::from(most_pinned) * u64::from(segment_bytes),
        }
    }

    /// A copy of `bytes`, if there is room for it.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Option<Slice> {
        let len = bytes.len() as u64;
        if self.copied_bytes + len > self.most_copied_bytes {
            return None;
        }
        self.copied_bytes += len;
        let copy = self.free.pop().unwrap_or_else(|| {
            self.copies.push(Vec::new());
            self.copies.len() as u32 - 1
        });
        self.copies[copy as usize] = bytes.to_vec();
        Some(Slice { segment: COPY | copy, offset: 0, len: len as u32 })
    }

    pub(super) fn drop_copy(&mut self, copy: u32) {
        let Some(bytes) = self.copies.get_mut(copy as usize).filter(|bytes| !bytes.is_empty())
        else {
            return;
        };
        self.copied_bytes -= bytes.len() as u64;
        *bytes = Vec::new();
        self.free.push(copy);
    }
}
