//! Items by number. [`Slab`] is for what is few and busy: one block of memory, the cheapest index. [`Chunks`] is for what may
//! be millions: it grows by chunks, so that growing copies nothing and stops nobody.
//!
//! Always: an index is checked at every use. Numbers given back are used again, the last first, so that few items stay
//! warm.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 9;
const CHUNK: usize = 1 << CHUNK_BITS;

/// No item.
pub(super) const NONE: u32 = u32::MAX;

/// See the file.
#[derive(Debug)]
pub(super) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }

    /// Numbers ever given out: all of them are below this.
    pub(super) const fn len(&self) -> u32 {
        self.items.len() as u32
    }

    /// Items in use.
    pub(super) const fn used(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// A number that is free; `fresh` makes its item if it was never used.
    #[inline]
    pub(super) fn alloc(&mut self, fresh: impl FnOnce(u32) -> T) -> u32 {
        if let Some(i) = self.free.pop() {
            return i;
        }
        let i = self.items.len() as u32;
        self.items.push(fresh(i));
        i
    }

    /// Gives a number back. The item stays as it is until the number is used again.
    #[inline]
    pub(super) fn free(&mut self, i: u32) {
        self.free.push(i);
    }

    #[inline]
    pub(super) fn get(&self, i: u32) -> Option<&T> {
        self.items.get(i as usize)
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, i: u32) -> &T {
        &self.items[i as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut T {
        &mut self.items[i as usize]
    }
}

/// See the file.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
    free: Vec<u32>,
    len: u32,
}

impl<T> Chunks<T> {
    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// Numbers ever given out: all of them are below this.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Items in use.
    pub(super) const fn used(&self) -> usize {
        self.len as usize - self.free.len()
    }

    /// A number that is free; `fresh` makes items that were never used.
    pub(super) fn alloc(&mut self, fresh: impl Fn() -> T) -> u32 {
        if let Some(i) = self.free.pop() {
            return i;
        }
        let i = self.len;
        if (i as usize).is_multiple_of(CHUNK) {
            let items: Box<[T]> = (0..CHUNK).map(|_| fresh()).collect();
            self.chunks.extend(items.try_into());
        }
        self.len += 1;
        i
    }

    /// Gives a number back. The item stays as it is until the number is used again.
    pub(super) fn free(&mut self, i: u32) {
        self.free.push(i);
    }

    /// The item, if the number was ever given out or will be next.
    #[inline]
    pub(super) fn get(&self, i: u32) -> Option<&T> {
        self.chunks.get((i >> CHUNK_BITS) as usize).map(|chunk| &chunk[i as usize % CHUNK])
    }
}

impl<T> Index<u32> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, i: u32) -> &T {
        &self.chunks[(i >> CHUNK_BITS) as usize][i as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut T {
        &mut self.chunks[(i >> CHUNK_BITS) as usize][i as usize % CHUNK]
    }
}
