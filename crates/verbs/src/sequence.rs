//! Something that a program has for itself from one call to a later one.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that one sequence at a time has for itself.
pub(crate) struct Sequence<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `begin` gives the value to one thread at a time. Between start and end, C's interface
// obliges the program to use one thread.
unsafe impl<T: Send> Sync for Sequence<T> {}

impl<T> Sequence<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn begin(&self) {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    #[inline]
    pub(crate) fn end(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The value.
    ///
    /// # Safety
    /// The caller is within a sequence that was begun and has not ended, and has no other reference from here.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "a lock whose guard C holds")]
    pub(crate) unsafe fn value(&self) -> &mut T {
        // SAFETY: The caller guarantees it.
        unsafe { &mut *self.value.get() }
    }
}
