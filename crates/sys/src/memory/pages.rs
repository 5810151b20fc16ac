//! Mappings of memory on huge pages.

use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size of a huge page in bytes, on x86-64 and on 64-bit Arm with pages of 4 KiB.
pub(super) const HUGE: usize = 2 << 20;

/// Rounds `size` up to whole huge pages: the address space that a block of this size takes.
pub(super) const fn rounded(size: usize) -> usize {
    (size + HUGE - 1) & !(HUGE - 1)
}

/// Maps `size` bytes, rounded up to whole huge pages, at a multiple of 2 MiB. Returns null if there
/// is no memory.
pub(super) fn map(size: usize) -> *mut u8 {
    let want = rounded(size);
    let Some(reserve) = want.checked_add(HUGE) else { return ptr::null_mut() };
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
    // exists.
    let mapped = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            reserve,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(start) = mapped else { return ptr::null_mut() };
    let start: *mut u8 = start.cast();
    let before = start.align_offset(HUGE);
    let block = start.wrapping_add(before);
    let after = reserve - before - want;
    if before > 0 {
        // SAFETY: These bytes are the beginning of the mapping just made, and nothing uses them
        // yet.
        let _ = unsafe { munmap(start.cast(), before) };
    }
    if after > 0 {
        // SAFETY: likewise the end of it.
        let _ = unsafe { munmap(block.wrapping_add(want).cast(), after) };
    }
    // SAFETY: the range is the rest of the mapping just made; the advice changes how it is backed,
    // not what it holds. A kernel without huge pages refuses, and the block is as good.
    let _ = unsafe { madvise(block.cast(), want, Advice::LinuxHugepage) };
    block
}
