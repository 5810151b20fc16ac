//! An allocator that puts large blocks on huge pages: log segments, hash tables and session tables
//! are touched at random, and with pages of 4 KiB nearly every touch misses the translation cache
//! as well.
//!
//! Blocks of [`LARGE`] bytes and more are mapped at a multiple of 2 MiB and offered to the kernel
//! for huge pages, which it takes where `/sys/kernel/mm/transparent_hugepage/enabled` says
//! `madvise` or `always`; they come zeroed, and page by page as they are touched. If the program
//! has memory that was touched at its start ([`super::populated`]), they come from there.
//! Everything smaller goes to the system's allocator. A program opts in:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: sprat_sys::memory::huge::Allocator = sprat_sys::memory::huge::Allocator;
//! # fn main() { assert_eq!(vec![0_u8; 9 << 20].iter().filter(|b| **b != 0).count(), 0); }
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use rustix::mm::munmap;

use super::pages::{HUGE, map, rounded};
use super::populated;

/// Size in bytes from which the allocator maps a block. It lies above the usual size of messages,
/// so that buffers that come and go are not mapped each time.
pub const LARGE: usize = 4 << 20;

/// The allocator that puts large blocks on huge pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

impl Allocator {
    fn is_large(layout: Layout) -> bool {
        layout.size() >= LARGE && layout.align() <= HUGE
    }
}

/// Lets the system's allocator keep up to 64 MiB of freed memory, for messages that come and go.
/// The first access to a page costs more than all other work on it. Call this before anything else.
pub fn keep_freed() {
    #[cfg(target_env = "gnu")]
    {
        // Both at once: the allocator moves neither any more once one is set. 32 MiB is the most
        // that it takes.
        for (what, bytes) in
            [(libc::M_TRIM_THRESHOLD, 64 << 20), (libc::M_MMAP_THRESHOLD, 32 << 20)]
        {
            // SAFETY: it only sets a number; no other thread is needed to be still.
            unsafe { libc::mallopt(what, bytes) };
        }
    }
}

// SAFETY: Every block comes from `map` or from `System` and returns to its origin, which its layout
// decides both times; both give blocks of at least the requested size and alignment.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::is_large(layout) {
            let block = populated::take(layout.size());
            return if block.is_null() { map(layout.size()) } else { block };
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Self::is_large(layout) {
            let block = populated::take(layout.size());
            if block.is_null() {
                // Fresh pages are zero.
                return map(layout.size());
            }
            // SAFETY: the block has this many bytes.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
            return block;
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if Self::is_large(layout) {
            if populated::give(block, layout.size()) {
                return;
            }
            // SAFETY: `map` mapped the large block with this size, and nothing uses it any more.
            // The call fails for no mapping of ours; if it did, the block would stay mapped.
            let _ = unsafe { munmap(block.cast(), rounded(layout.size())) };
            return;
        }
        // SAFETY: a small block came from `System` with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The caller promises that the new size makes a valid layout.
        let Ok(new) = Layout::from_size_align(new_size, layout.align()) else {
            return ptr::null_mut();
        };
        if !Self::is_large(layout) && !Self::is_large(new) {
            // SAFETY: the block came from `System` with this layout, and stays there.
            return unsafe { System.realloc(block, layout, new_size) };
        }
        // SAFETY: `new` is valid and, as the caller promises, not empty.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least that many bytes, and the new one overlaps nothing.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size)) };
            // SAFETY: the block came from here with this layout and is not used any more.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc as _, Layout};

    use super::{Allocator, HUGE, LARGE};

    /// Returns the address space that this process uses, in kibibytes.
    fn address_space_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmSize:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn blocks_are_aligned_zeroed_and_kept_while_they_grow() {
        for size in [LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 4097] {
            let layout = Layout::from_size_align(size, 64).unwrap();
            // SAFETY: the layout is not empty; every access stays within it; the block is given
            // back once, with the layout it last had.
            unsafe {
                let block = Allocator.alloc_zeroed(layout);
                assert!(!block.is_null());
                assert!(size < LARGE || block.align_offset(HUGE) == 0);
                assert_eq!((*block, *block.add(size / 2), *block.add(size - 1)), (0, 0, 0));
                *block = 1;
                *block.add(LARGE - 2) = 2;
                let block = Allocator.realloc(block, layout, 2 * size);
                let layout = Layout::from_size_align(2 * size, 64).unwrap();
                assert_eq!((*block, *block.add(LARGE - 2)), (1, 2));
                *block.add(2 * size - 1) = 3;
                let block = Allocator.realloc(block, layout, LARGE - 1);
                assert_eq!((*block, *block.add(LARGE - 2)), (1, 2));
                Allocator.dealloc(block, Layout::from_size_align(LARGE - 1, 64).unwrap());
            }
        }
    }

    #[test]
    fn blocks_are_given_back_whole() {
        let layout = Layout::from_size_align(64 << 20, 8).unwrap();
        let before = address_space_kib();
        for _ in 0..1000 {
            // SAFETY: the layout is not empty, and the block goes back with it.
            unsafe { Allocator.dealloc(Allocator.alloc(layout), layout) };
        }
        // A leak of the least part, 2 MiB each time, would be 2 GiB; other tests that run meanwhile
        // take far less.
        let more = address_space_kib().saturating_sub(before);
        assert!(more < 1 << 20, "{more} KiB more than before");
    }
}
