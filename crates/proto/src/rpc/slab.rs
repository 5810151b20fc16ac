//! Tables of items by number. [`Slab`] is for few, busy items: one block of memory, the cheapest
//! index. [`Chunks`] is for items that may be millions: it grows by chunks, each twice as large as
//! the one before, so that growing copies nothing and an allocator that puts large blocks on huge
//! pages has large blocks.
//!
//! Always: an index is checked at every use. Freed numbers are used again, the last first, so that
//! few items stay warm.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// The first chunk of a table has 2 to this power items.
const FIRST_BITS: u32 = 9;

/// The number that stands for no item of a table.
pub(super) const NONE: u32 = u32::MAX;

/// A table of items under small numbers, in one vector that moves when it grows.
#[derive(Debug)]
pub(super) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }

    /// The number of items ever allocated in the table. All their numbers are below it.
    pub(super) const fn len(&self) -> u32 {
        self.items.len() as u32
    }

    /// The number of items in use in the table.
    #[cfg(test)]
    pub(super) const fn used(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Allocates an item of the table and returns its number; `fresh` makes the item if the number
    /// was never used.
    #[inline(always)]
    pub(super) fn alloc(&mut self, fresh: impl FnOnce(u32) -> T) -> u32 {
        if let Some(i) = self.take_free() {
            return i;
        }
        let i = self.items.len() as u32;
        self.items.push(fresh(i));
        i
    }

    /// Allocates the number of an item that was used before and is free, if there is one. The item
    /// stays as it was.
    #[inline(always)]
    pub(super) fn take_free(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Frees the item with number `i`. The item stays as it is until the number is used again.
    #[inline(always)]
    pub(super) fn free(&mut self, i: u32) {
        self.free.push(i);
    }

    #[inline(always)]
    pub(super) fn get(&self, i: u32) -> Option<&T> {
        self.items.get(i as usize)
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, i: u32) -> &T {
        &self.items[i as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline(always)]
    fn index_mut(&mut self, i: u32) -> &mut T {
        &mut self.items[i as usize]
    }
}

/// A table of items under small numbers, in chunks that never move.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
    len: u32,
}

/// The number of the chunk that holds item `i`, and the item's index in the chunk.
#[inline(always)]
const fn place(i: u32) -> (usize, usize) {
    let i = i as u64 + (1 << FIRST_BITS);
    let bits = i.ilog2();
    ((bits - FIRST_BITS) as usize, (i - (1 << bits)) as usize)
}

impl<T> Chunks<T> {
    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// The number of items ever allocated in the table. All their numbers are below it.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// The number of items in use in the table.
    pub(super) const fn used(&self) -> usize {
        self.len as usize - self.free.len()
    }

    /// Allocates an item of the table and returns its number; `fresh` makes the item if the number
    /// was never used.
    pub(super) fn alloc(&mut self, fresh: impl FnOnce() -> T) -> u32 {
        if let Some(i) = self.free.pop() {
            return i;
        }
        let i = self.len;
        let (chunk, at) = place(i);
        if at == 0 {
            self.chunks.push(Vec::with_capacity(1 << (FIRST_BITS as usize + chunk)));
        }
        self.chunks[chunk].push(fresh());
        self.len += 1;
        i
    }

    /// Frees the item with number `i`. The item stays as it is until the number is used again.
    pub(super) fn free(&mut self, i: u32) {
        self.free.push(i);
    }

    /// The item with number `i` in the table, if the number was ever allocated.
    #[inline(always)]
    pub(super) fn get(&self, i: u32) -> Option<&T> {
        let (chunk, at) = place(i);
        self.chunks.get(chunk)?.get(at)
    }

    /// The item with number `i` in the table, for a change.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, i: u32) -> Option<&mut T> {
        let (chunk, at) = place(i);
        self.chunks.get_mut(chunk)?.get_mut(at)
    }
}

impl<T> Index<u32> for Chunks<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, i: u32) -> &T {
        let (chunk, at) = place(i);
        &self.chunks[chunk][at]
    }
}

impl<T> IndexMut<u32> for Chunks<T> {
    #[inline(always)]
    fn index_mut(&mut self, i: u32) -> &mut T {
        let (chunk, at) = place(i);
        &mut self.chunks[chunk][at]
    }
}

#[cfg(test)]
mod tests {
    use super::{Chunks, NONE};

    #[test]
    fn a_number_leads_to_its_item_however_many_there_are() {
        let mut chunks = Chunks::new();
        for i in 0..100_000 {
            assert_eq!(chunks.alloc(|| i), i);
        }
        assert!((0..100_000).all(|i| chunks[i] == i && chunks.get(i) == Some(&i)));
        assert_eq!([chunks.get(100_000), chunks.get(NONE)], [None, None]);
        let chunk = &chunks.chunks[3];
        assert_eq!((chunk.len(), chunk.capacity()), (4096, 4096), "no chunk is ever moved");
        chunks.free(7);
        chunks[7] = 70;
        assert_eq!((chunks.alloc(|| 0), chunks[7], chunks.used()), (7, 70, 100_000));
    }
}
