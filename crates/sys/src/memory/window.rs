//! A piece of a region whose length is a power of two. Callers address it by positions that grow
//! for ever.
//!
//! The invariant that makes it sound: [`Window::new`] checks once that the piece lies in the
//! region, which the window keeps mapped. Every position is masked to the piece, so that no further
//! check is needed for a word, and one comparison is enough for a copy.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::{Region, copy, outside};

/// A piece of a region, with a length that is a power of two.
#[derive(Clone, Debug)]
pub struct Window {
    /// Keeps the memory mapped.
    region: Arc<Region>,
    base: NonNull<u8>,
    /// The window's length less one.
    mask: u64,
}

// SAFETY: the window keeps its region, which is `Send` and `Sync`, and its address does not depend
// on a thread.
unsafe impl Send for Window {}
// SAFETY: `&self` methods access the memory by atomics and by opaque copies, which are made for
// concurrent writers.
unsafe impl Sync for Window {}

impl Window {
    /// Makes a window of the `len` bytes from `offset` of a region.
    ///
    /// # Panics
    /// If the length is no power of two of at least eight, the offset no multiple of eight, or the
    /// region has fewer bytes there.
    #[must_use]
    pub fn new(region: &Arc<Region>, offset: usize, len: usize) -> Self {
        assert!(len.is_power_of_two() && len >= 8, "a window of {len} bytes");
        assert!(offset.is_multiple_of(8), "a window at an odd place");
        let base = NonNull::new(region.at(offset, len)).expect("mapped at address zero");
        Self { region: Arc::clone(region), base, mask: len as u64 - 1 }
    }

    /// Returns the window's length in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn size(&self) -> usize {
        self.mask as usize + 1
    }

    /// Returns the offset in the window that a position has.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// Returns the address of a position. Panics unless `n` bytes from there lie in the window.
    #[inline(always)]
    fn at(&self, position: u64, n: usize) -> *mut u8 {
        let place = self.place(position);
        if n > self.size() - place {
            outside(place, n, self.size());
        }
        // SAFETY: the place is within the window, which lies in the mapping.
        unsafe { self.base.as_ptr().add(place) }
    }

    /// Returns the eight bytes at a position, rounded down to a multiple of eight, as one atomic
    /// number in the machine's byte order.
    #[inline(always)]
    #[must_use]
    pub fn word(&self, position: u64) -> &AtomicU64 {
        let place = (position & self.mask & !7) as usize;
        // SAFETY: eight bytes within the window, since its length is a multiple of eight, aligned
        // (mappings begin on a page, windows at a multiple of eight), valid as long as the region
        // that `self` keeps; atomics are made for concurrent writers, also in other processes.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(place).cast()) }
    }

    /// Returns the four bytes at a position, rounded down to a multiple of four, as one atomic
    /// number in the machine's byte order.
    #[inline(always)]
    #[must_use]
    pub fn flag(&self, position: u64) -> &AtomicU32 {
        let place = (position & self.mask & !3) as usize;
        // SAFETY: four bytes within the window, aligned and valid as in `word`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(place).cast()) }
    }

    /// Returns the two bytes at a position, rounded down to a multiple of two, as one atomic number
    /// in the machine's byte order.
    #[inline(always)]
    #[must_use]
    pub fn short(&self, position: u64) -> &AtomicU16 {
        let place = (position & self.mask & !1) as usize;
        // SAFETY: two bytes within the window, aligned and valid as in `word`.
        unsafe { AtomicU16::from_ptr(self.base.as_ptr().add(place).cast()) }
    }

    /// Copies `bytes` into the window at a position.
    ///
    /// # Panics
    /// If they would go beyond its end.
    #[inline(always)]
    pub fn copy_in(&self, position: u64, bytes: &[u8]) {
        let dst = self.at(position, bytes.len());
        // SAFETY: `at` checked the window's side, the slice is readable, and nothing lends region
        // memory as a slice, so the two do not overlap.
        unsafe { copy::copy(dst, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies words of eight bytes into the window at a position, rounded down to a multiple of
    /// eight. Words that the caller has just computed go there from the processor's registers,
    /// without a detour through the caller's memory.
    ///
    /// # Panics
    /// If they would go beyond its end.
    #[inline(always)]
    pub fn copy_words_in(&self, position: u64, words: &[[u8; 8]]) {
        let dst = self.at(position & !7, 8 * words.len()).cast::<u64>();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: the `i`th of the words that `at` checked, aligned and valid as in `word`.
            let to = unsafe { AtomicU64::from_ptr(dst.add(i)) };
            to.store(u64::from_le_bytes(*word).to_le(), Ordering::Relaxed);
        }
    }

    /// Copies the window's bytes from a position into `bytes`. If another process writes them
    /// meanwhile, the result is any mixture.
    ///
    /// # Panics
    /// If the window ends before.
    #[inline(always)]
    pub fn copy_out(&self, position: u64, bytes: &mut [u8]) {
        let src = self.at(position, bytes.len());
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { copy::copy(bytes.as_mut_ptr(), src, bytes.len()) }
    }

    /// Appends a copy of the window's `n` bytes from a position to `bytes`. While another process
    /// writes them, the result is any mixture.
    ///
    /// # Panics
    /// If the window ends before.
    #[inline]
    pub fn append_to(&self, position: u64, n: usize, bytes: &mut Vec<u8>) {
        let place = self.place(position);
        if n > self.size() - place {
            outside(place, n, self.size());
        }
        let offset = self.base.addr().get() - self.region.base.addr().get();
        self.region.append_to(offset + place, n, bytes);
    }
}
