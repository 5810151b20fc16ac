//! A value that one thread owns from one call of C's interface to a later one.
//!
//! Invariant: one sequence at a time has the value. A thread that begins another one yields its
//! processor until the first ends.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value that is owned from a call that begins a sequence to the call that ends it.
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

    /// The value that the current sequence owns.
    ///
    /// # Safety
    /// The caller is within a sequence that has begun and not ended, and holds no other reference
    /// to the value.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "a lock whose guard C holds")]
    pub(crate) unsafe fn value(&self) -> &mut T {
        // SAFETY: The caller guarantees it.
        unsafe { &mut *self.value.get() }
    }
}
