//! A queue of bytes in a ring that grows on demand up to a limit, and that keeps little memory
//! while it is empty: the data that a connection has to send, or has received.
//!
//! ```text
//!  storage   … free │ front ── readable ── len │ free: written ahead at an offset …
//! ```

use alloc::boxed::Box;
use core::ops::Range;

use super::spare::Kept;

/// The size of the smallest storage in bytes: a small message takes, and clears, no more.
const LEAST: usize = 512;

/// Storages of empty queues, of `LEAST` bytes each.
pub(super) type SpareStorage = Kept<Box<[u8]>>;

/// A queue of bytes. Bytes may be written ahead of its end, where they are not readable before
/// [`Ring::extend`].
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// A power of two of bytes, or none.
    storage: Box<[u8]>,
    /// 32 bits: no buffer has more than 2³⁰ bytes.
    front: u32,
    len: u32,
}

impl Ring {
    /// Returns the number of readable bytes.
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the size of the storage in bytes.
    #[cfg(test)]
    pub(super) const fn capacity(&self) -> usize {
        self.storage.len()
    }

    /// Returns the readable bytes of `range`, in two pieces.
    pub(super) fn get(&self, range: Range<usize>) -> (&[u8], &[u8]) {
        debug_assert!(range.end <= self.len(), "{range:?} of {}", self.len);
        self.pieces(range.start, range.len())
    }

    /// Appends `bytes`.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.write_ahead(0, bytes);
        self.extend(bytes.len());
    }

    /// Writes `bytes` at `ahead` bytes behind the end, where they are not readable yet.
    pub(super) fn write_ahead(&mut self, ahead: usize, bytes: &[u8]) {
        let at = self.len() + ahead;
        self.reserve(at + bytes.len());
        let start = self.index(at);
        let first = bytes.len().min(self.storage.len() - start);
        let (a, b) = bytes.split_at(first);
        self.storage[start..start + first].copy_from_slice(a);
        self.storage[..b.len()].copy_from_slice(b);
    }

    /// Inserts `bytes` at `at`, before the bytes from there on. Those written up to `ahead` bytes
    /// behind the end move with the end.
    pub(super) fn insert(&mut self, at: usize, bytes: &[u8], ahead: usize) {
        let behind = (self.len() - at + ahead).min(self.storage.len().saturating_sub(at));
        let (a, b) = self.pieces(at, behind);
        let moved = [a, b].concat();
        let len = self.len + bytes.len() as u32;
        self.len = at as u32;
        self.push(bytes);
        self.write_ahead(0, &moved);
        self.len = len;
    }

    /// Makes `count` bytes behind the end readable, which were written ahead.
    pub(super) fn extend(&mut self, count: usize) {
        debug_assert!(self.len() + count <= self.storage.len());
        self.len += count as u32;
    }

    /// Removes `count` bytes at the front.
    pub(super) fn remove(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        self.len -= count as u32;
        self.front = self.index(count) as u32;
    }

    /// Frees the memory, if the queue is empty, but for that of small messages: allocating it for
    /// each would take a third of the time of an exchange. Bytes that were written ahead are lost.
    pub(super) fn free(&mut self) {
        if self.len == 0 && self.storage.len() > LEAST {
            *self = Self::default();
        }
    }

    /// Gives back the memory of an empty queue, that of small messages too. Bytes that were written
    /// ahead are lost.
    pub(super) fn give_back(&mut self, spare: &mut SpareStorage) {
        if self.len == 0 && !self.storage.is_empty() {
            let storage = core::mem::take(self).storage;
            if storage.len() == LEAST {
                spare.give(storage);
            }
        }
    }

    /// Takes memory for a small message, if there is none and some is spare.
    pub(super) fn take_spare(&mut self, spare: &mut SpareStorage) {
        if self.storage.is_empty()
            && let Some(storage) = spare.take()
        {
            self.storage = storage;
        }
    }

    fn index(&self, offset: usize) -> usize {
        // The size is 0 or a power of two.
        (self.front as usize + offset) & self.storage.len().saturating_sub(1)
    }

    fn pieces(&self, at: usize, len: usize) -> (&[u8], &[u8]) {
        if len == 0 {
            return (&[], &[]);
        }
        let start = self.index(at);
        let first = len.min(self.storage.len() - start);
        (&self.storage[start..start + first], &self.storage[..len - first])
    }

    /// Makes room for `size` bytes from the front on.
    fn reserve(&mut self, size: usize) {
        if size <= self.storage.len() {
            return;
        }
        let mut storage = alloc::vec![0; size.next_power_of_two().max(LEAST)].into_boxed_slice();
        // All of it: bytes behind the end may have been written ahead.
        let (a, b) = self.pieces(0, self.storage.len());
        storage[..a.len()].copy_from_slice(a);
        storage[a.len()..a.len() + b.len()].copy_from_slice(b);
        (self.storage, self.front) = (storage, 0);
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn all(ring: &Ring) -> Vec<u8> {
        let (a, b) = ring.get(0..ring.len());
        [a, b].concat()
    }

    #[test]
    fn bytes_written_ahead_become_readable_when_the_gap_is_filled() {
        let mut ring = Ring::default();
        ring.push(b"ab");
        ring.write_ahead(2, b"ef");
        assert_eq!(all(&ring), b"ab");
        ring.write_ahead(0, b"cd");
        ring.extend(4);
        assert_eq!(all(&ring), b"abcdef");
    }

    #[test]
    fn an_empty_queue_gives_its_memory_back() {
        let mut ring = Ring::default();
        ring.push(&[7; 5000]);
        assert_eq!(ring.storage.len(), 8192);
        ring.remove(5000);
        ring.free();
        assert_eq!(ring.storage.len(), 0);
        ring.push(b"x");
        assert_eq!(all(&ring), b"x");
    }

    proptest! {
        /// A ring does what a queue does, with writes ahead of its end.
        #[test]
        fn a_ring_is_a_queue(steps in proptest::collection::vec((0..5u8, 0..6000usize), 1..60)) {
            let (mut ring, mut model) = (Ring::default(), VecDeque::new());
            let mut next = 0u8;
            for (kind, len) in steps {
                let mut bytes = || { next = next.wrapping_add(1); alloc::vec![next; len] };
                match kind {
                    0 => { let b = bytes(); ring.push(&b); model.extend(b); }
                    1 => {
                        let (a, b) = (bytes(), bytes());
                        ring.write_ahead(len, &b);
                        ring.write_ahead(0, &a);
                        ring.extend(2 * len);
                        model.extend(a);
                        model.extend(b);
                    }
                    2 => {
                        let count = len.min(model.len());
                        ring.remove(count);
                        model.drain(..count);
                    }
                    3 => {
                        let (inserted, ahead) = (bytes(), bytes());
                        let at = len % (model.len() + 1);
                        ring.write_ahead(0, &ahead);
                        ring.insert(at, &inserted, len);
                        ring.extend(len);
                        let tail = model.split_off(at);
                        model.extend(inserted);
                        model.extend(tail);
                        model.extend(ahead);
                    }
                    _ => ring.free(),
                }
                prop_assert_eq!(all(&ring), model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
