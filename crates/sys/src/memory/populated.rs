//! Memory whose pages are touched at the start of a program, for the allocator of large blocks.
//!
//! The first touch of a page takes the kernel, which clears it, and in a virtual machine the
//! hypervisor as well, which may have to find memory for it. A server that recovers the objects of
//! another one touches twice their size within a second or two.
//!
//! ```text
//! populate: maps and touches ──► free ◄── freed ── block of the allocator
//!                                 └──── taken ────────►
//! ```
//!
//! Always holds: the memory is mapped until the process ends. A block is a run of huge pages, and
//! no two blocks share one.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::pages::{HUGE, map};

/// The largest block that is taken from this memory, in bytes: a segment of a log. A larger one, of
/// a hash table, is wanted as zeros. Fresh pages are zero, and these would have to be cleared while
/// the caller waits.
const MOST: usize = 8 << 20;
/// The number of bytes that are touched between two reports of the progress.
const STEP: usize = 64 << 20;
/// The smallest size of a page on any machine, in bytes.
const PAGE: usize = 4 << 10;

/// The memory, and the first and last address of it for a check without the lock. Both are zero
/// while there is none.
static MEMORY: Mutex<Memory> = Mutex::new(Memory { base: 0, taken: Vec::new(), lowest: 0 });
static BASE: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

struct Memory {
    base: usize,
    /// True for each huge page that is part of a block.
    taken: Vec<bool>,
    /// All pages below this one are taken.
    lowest: usize,
}

/// Maps memory of `bytes` bytes, rounded up to whole huge pages, and touches all of it. Blocks of
/// 4 to 8 MiB come from there then, as long as there is room. `report` gets the number of bytes
/// that were touched, again and again. Memory that was populated before stays so, and the call does
/// nothing.
///
/// # Errors
/// There is not so much address space.
pub fn populate(bytes: usize, mut report: impl FnMut(usize)) -> io::Result<()> {
    if bytes == 0 || END.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let pages = bytes.div_ceil(HUGE);
    let base = map(pages.saturating_mul(HUGE));
    if base.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    for offset in (0..pages * HUGE).step_by(PAGE) {
        // SAFETY: the address lies within the mapping just made, which nothing else uses yet.
        unsafe { ptr::write_volatile(base.wrapping_add(offset), 0) };
        if (offset + PAGE).is_multiple_of(STEP) {
            report(offset + PAGE);
        }
    }
    // Allocated before the lock is taken, since the allocator takes it too.
    let taken = vec![false; pages];
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    if memory.base != 0 {
        // Another thread was faster. The mapping stays unused.
        return Ok(());
    }
    *memory = Memory { base: base.addr(), taken, lowest: 0 };
    BASE.store(base.expose_provenance(), Ordering::Relaxed);
    END.store(base.addr() + pages * HUGE, Ordering::Release);
    Ok(())
}

/// Returns a block of `size` bytes. Returns null if there is none.
pub(super) fn take(size: usize) -> *mut u8 {
    if END.load(Ordering::Acquire) == 0 || size > MOST {
        return ptr::null_mut();
    }
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    memory.take(size.div_ceil(HUGE)).map_or(ptr::null_mut(), |at| {
        ptr::with_exposed_provenance_mut::<u8>(memory.base + at * HUGE)
    })
}

/// Takes back a block of `size` bytes. Returns false if it did not come from here.
pub(super) fn give(block: *mut u8, size: usize) -> bool {
    let end = END.load(Ordering::Acquire);
    if !(BASE.load(Ordering::Relaxed)..end).contains(&block.addr()) {
        return false;
    }
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let first = (block.addr() - memory.base) / HUGE;
    memory.give(first, size.div_ceil(HUGE));
    true
}

impl Memory {
    /// Takes the first run of this many free pages, and returns its first page.
    fn take(&mut self, pages: usize) -> Option<usize> {
        while self.taken.get(self.lowest) == Some(&true) {
            self.lowest += 1;
        }
        let mut first = self.lowest;
        for at in self.lowest..self.taken.len() {
            if self.taken[at] {
                first = at + 1;
            } else if at + 1 - first == pages {
                self.taken[first..=at].fill(true);
                return Some(first);
            }
        }
        None
    }

    fn give(&mut self, first: usize, pages: usize) {
        self.taken[first..first + pages].fill(false);
        self.lowest = self.lowest.min(first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_pages_are_taken_first_fit_and_merge_when_they_are_given_back() {
        let mut memory = Memory { base: 0, taken: vec![false; 10], lowest: 0 };
        assert_eq!([4, 4, 4].map(|pages| memory.take(pages)), [Some(0), Some(4), None]);
        assert_eq!([2, 1].map(|pages| memory.take(pages)), [Some(8), None]);
        memory.give(4, 4);
        assert_eq!([3, 2, 1].map(|pages| memory.take(pages)), [Some(4), None, Some(7)]);
        memory.give(0, 4);
        memory.give(4, 3);
        assert_eq!([8, 7].map(|pages| memory.take(pages)), [None, Some(0)]);
    }

    #[test]
    fn blocks_come_from_populated_memory_as_long_as_there_is_room() {
        assert!(!give(ptr::null_mut(), 1), "no block of this memory");
        let mut reports = Vec::new();
        populate(STEP + 1, |bytes| reports.push(bytes)).unwrap();
        assert_eq!(reports, [STEP]);
        // Other tests of this process may hold some of it, through no allocator of theirs.
        let block = take(MOST - 1);
        assert!(!block.is_null() && block.align_offset(HUGE) == 0);
        // SAFETY: the block has this many bytes, and is used here alone.
        unsafe { ptr::write_bytes(block, 7, MOST - 1) };
        assert!(take(MOST + 1).is_null(), "too large");
        let others: Vec<_> = std::iter::repeat_with(|| take(MOST)).take(9).collect();
        assert!(others.iter().any(|block| block.is_null()), "no room any more");
        assert!(give(block, MOST - 1) && take(MOST) == block);
        assert!(give(block, MOST));
        others.iter().filter(|block| !block.is_null()).for_each(|&block| {
            assert!(give(block, MOST));
        });
        populate(1, |_| panic!("it is populated")).unwrap();
    }
}
