//! A slab that grows by chunks: an item never moves, growing never copies, and an index is checked at every use.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

/// No item.
pub(super) const NONE: u32 = u32::MAX;

/// Items by number. Freed numbers are used again, the last freed first, so that few items stay warm.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
    len: u32,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// Numbers ever given out: all of them are below this.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Items in use.
    pub(super) fn used(&self) -> usize {
        self.len as usize - self.free.len()
    }

    /// A number that is free; `fresh` makes its item if it was never used.
    #[inline]
    pub(super) fn alloc(&mut self, fresh: impl FnOnce(u32) -> T) -> u32 {
        match self.free.pop() {
            Some(i) => i,
            None => self.grow(fresh),
        }
    }

    #[cold]
    fn grow(&mut self, fresh: impl FnOnce(u32) -> T) -> u32 {
        let i = self.len;
        if i as usize & (CHUNK - 1) == 0 {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[(i >> CHUNK_BITS) as usize].push(fresh(i));
        self.len += 1;
        i
    }

    /// Gives a number back. The item stays as it is until the number is used again.
    #[inline]
    pub(super) fn free(&mut self, i: u32) {
        debug_assert!(i < self.len);
        self.free.push(i);
    }

    #[inline]
    pub(super) fn get(&self, i: u32) -> Option<&T> {
        self.chunks.get((i >> CHUNK_BITS) as usize)?.get(i as usize & (CHUNK - 1))
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, i: u32) -> &T {
        &self.chunks[(i >> CHUNK_BITS) as usize][i as usize & (CHUNK - 1)]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut T {
        &mut self.chunks[(i >> CHUNK_BITS) as usize][i as usize & (CHUNK - 1)]
    }
}
