//! The frames of one burst, copied out of memory that other processes write. Of a long frame only
//! the beginning may be copied: its end stays where it is until the next burst, and its receiver
//! copies it to where it belongs.

use std::ops::Range;
use std::sync::Arc;

use sprat_proto::device::{BURST, LEFT_HEAD, RxOffload};
use sprat_sys::memory::Region;

/// The end of a frame of the burst, left in memory that the peer can write.
#[derive(Debug)]
struct LeftEnd {
    region: Arc<Region>,
    /// The offset in the region at which the frame begins, its copied bytes included.
    offset: usize,
    /// Bytes of the frame that are not copied.
    bytes: u16,
}

/// A buffer with the frames of a burst, one behind the other. Each burst uses the same memory.
#[derive(Debug)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    /// The offset of each frame in the buffer. A frame ends where the next one begins.
    starts: [usize; BURST + 1],
    len: usize,
    /// The ends of frames that are not copied. All are `None` unless `holds`.
    left: [Option<LeftEnd>; BURST],
    holds: bool,
    /// True if the ends of long frames are left in the peer's memory.
    leaves: bool,
}

impl Default for Burst {
    fn default() -> Self {
        let left = [const { None }; BURST];
        Self {
            bytes: Vec::new(),
            starts: [0; BURST + 1],
            len: 0,
            left,
            holds: false,
            leaves: false,
        }
    }
}

impl Burst {
    /// Makes an empty burst. If `leaves`, it leaves the ends of long frames in the peer's memory.
    pub(super) fn new(leaves: bool) -> Self {
        Self { leaves, ..Self::default() }
    }

    /// True if the ends of long frames are left in the peer's memory.
    #[inline]
    pub(super) fn leaves(&self) -> bool {
        self.leaves
    }

    /// Removes all frames from the buffer. The ends of frames that are left need
    /// [`Burst::release`] before.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    /// Forgets the ends of frames that are left in the peer's memory.
    #[cold]
    pub(super) fn release(&mut self) {
        self.left.fill_with(|| None);
        self.holds = false;
    }

    /// True if the end of a frame of the burst is still in the peer's memory.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// Returns the number of frames in the burst.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// True if the burst has no room for another frame.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len == BURST
    }

    /// Begins a frame, and returns the buffer to which the caller appends its bytes.
    #[inline]
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Ends the frame that [`Burst::begin`] began. Keeps it if it is `good`, else drops its bytes.
    ///
    /// # Panics
    /// If it is full.
    #[inline]
    pub(super) fn end(&mut self, good: bool) {
        if good {
            self.len += 1;
            self.starts[self.len] = self.bytes.len();
        } else {
            self.bytes.truncate(self.starts[self.len]);
        }
    }

    /// Adds the frame of `len` bytes at `offset` of `region`, at least [`LEFT_HEAD`] and at most
    /// [`MAX_FRAME`](sprat_proto::device::MAX_FRAME). Copies its beginning, and leaves its end.
    ///
    /// # Panics
    /// If the burst is full, or the region ends within the beginning.
    #[inline(never)]
    pub(super) fn leave(&mut self, region: &Arc<Region>, offset: usize, len: usize) {
        let bytes = (len - LEFT_HEAD) as u16;
        self.left[self.len] = Some(LeftEnd { region: Arc::clone(region), offset, bytes });
        self.holds = true;
        region.append_to(offset, LEFT_HEAD, &mut self.bytes);
        self.end(true);
    }

    /// Returns how many bytes at the end of frame `i` are left in the peer's memory.
    #[inline(always)]
    pub(super) fn arrival(&self, i: usize) -> RxOffload {
        let left = if self.holds { self.left[i].as_ref().map_or(0, |left| left.bytes) } else { 0 };
        RxOffload { left, ..RxOffload::default() }
    }

    /// Appends the bytes `range` of frame `i`, whose end is left in the peer's memory, to `bytes`.
    ///
    /// # Panics
    /// If the range ends behind the frame's region.
    pub(super) fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        if let Some(left) = &self.left[i] {
            left.region.append_to(left.offset + range.start, range.len(), bytes);
        }
    }

    /// Returns the bytes of frame `i` of the burst, as far as they are copied.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(super) fn frame(&self, i: usize) -> &[u8] {
        assert!(i < self.len, "no such frame");
        &self.bytes[self.starts[i]..self.starts[i + 1]]
    }
}
