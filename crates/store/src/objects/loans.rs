//! The accounts of log bytes that replies refer to instead of copying them.
//!
//! ```text
//!  slice.segment   0 | slot (24 bits)          pinned: the slice's offset counts from the segment
//!                  COPY | number (24 bits)     a copy of the slice's bytes
//! ```
//!
//! A reply keeps its slices until its client has acknowledged it, and a client may be slow or
//! stopped. Therefore the log limits the memory that all replies together occupy: pins on at most
//! [`SHARE`] of its segments, and the same number of bytes in copies. Writes never need this
//! memory. Beyond both limits there is no slice, and the client must send the request again. The
//! transports end sessions that make no progress.
//!
//! Invariants: the bytes of a slice do not change until the slice is released; a pin delays the
//! reuse of a segment's memory, but never keeps the segment in the log.

use alloc::vec::Vec;

use sprat_proto::rpc::Slice;

/// One of this number of segments may have pins. Copies may take the same share of all bytes.
const SHARE: u32 = 8;
/// The bit that marks a slice as a copy. No slot number has it.
pub(super) const COPY: u32 = 1 << 31;

/// The accounts of log bytes that replies refer to: pinned segments and copied bytes, with limits.
#[derive(Debug)]
pub(super) struct Loans {
    /// The number of segments that have pins.
    pub(super) pinned: u32,
    /// The maximum of segments that have pins.
    pub(super) most_pinned: u32,
    /// The copies of log bytes, by number. A free number has an empty copy.
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

    /// Copies bytes of the log and returns the slice of the copy, or `None` if copies would exceed
    /// their limit.
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
