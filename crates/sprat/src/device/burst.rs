//! The frames of one burst, copied out of memory that other processes write.

use sprat_proto::device::BURST;

/// A buffer with the frames of a burst, one behind the other. Each burst uses the same memory.
#[derive(Debug)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    /// The offset of each frame in the buffer. A frame ends where the next one begins.
    starts: [usize; BURST + 1],
    len: usize,
}

impl Default for Burst {
    fn default() -> Self {
        Self { bytes: Vec::new(), starts: [0; BURST + 1], len: 0 }
    }
}

impl Burst {
    /// Removes all frames from the buffer.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
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

    /// Returns the bytes of frame `i` of the burst.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(super) fn frame(&self, i: usize) -> &[u8] {
        assert!(i < self.len, "no such frame");
        &self.bytes[self.starts[i]..self.starts[i + 1]]
    }
}
