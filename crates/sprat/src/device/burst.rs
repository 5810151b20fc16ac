//! The frames of one burst, copied out of memory that others write.

use sprat_proto::device::BURST;

/// Frames one behind the other in one buffer, which is kept from burst to burst.
#[derive(Debug)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    /// The start of each frame; the next one's start is its end.
    starts: [usize; BURST + 1],
    len: usize,
}

impl Default for Burst {
    fn default() -> Self {
        Self { bytes: Vec::new(), starts: [0; BURST + 1], len: 0 }
    }
}

impl Burst {
    /// Forgets all frames.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    /// The number of frames.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// There is no room for another.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len == BURST
    }

    /// The buffer that the next frame's bytes are appended to.
    #[inline]
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes appended since [`Burst::begin`] are a frame; or are none, and go.
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

    /// Frame `i`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(super) fn frame(&self, i: usize) -> &[u8] {
        assert!(i < self.len, "no such frame");
        &self.bytes[self.starts[i]..self.starts[i + 1]]
    }
}
