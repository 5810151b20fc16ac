//! The frames of one burst, copied out of memory that others write.

use sprat_proto::device::BURST;

/// Frames one behind the other in one buffer, which is kept from burst to burst.
#[derive(Debug, Default)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    /// Where each begins; the next one's beginning is its end.
    ends: Vec<usize>,
}

impl Burst {
    /// Forgets all frames.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// How many frames there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// There is no room for another.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.ends.len() == BURST
    }

    /// Where the next frame's octets are to be appended.
    #[inline]
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The octets appended since [`Burst::begin`] are a frame; or are none, and go.
    #[inline]
    pub(super) fn end(&mut self, good: bool) {
        if good {
            self.ends.push(self.bytes.len());
        } else {
            self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        }
    }

    /// Frame `i`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(super) fn frame(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }
}
