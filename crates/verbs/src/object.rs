//! Parts that all of C's verbs objects share: reference counts, counts of events and their
//! acknowledgements.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::entry::Errno;

/// The number of objects that refer to a verbs object. It cannot be destroyed while there are any.
#[derive(Debug, Default)]
pub(crate) struct References(AtomicU32);

impl References {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Fails while other objects refer to this one.
    ///
    /// # Errors
    /// `EBUSY` if the count is not zero.
    pub(crate) fn check_none(&self) -> Result<(), Errno> {
        if self.0.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Errno(libc::EBUSY)) }
    }
}

/// The counts of an object's events: how many the program received, and how many it acknowledged.
#[derive(Debug, Default)]
pub(crate) struct EventCounts {
    delivered_and_acked: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl EventCounts {
    pub(crate) fn deliver(&self) {
        lock(&self.delivered_and_acked).0 += 1;
    }

    pub(crate) fn ack(&self, count: u32) {
        let mut counts = lock(&self.delivered_and_acked);
        counts.1 += u64::from(count);
        // Notify before the lock is released: the woken thread may free this object as soon as it
        // has the lock.
        self.changed.notify_all();
    }

    /// Sets the number of events that the program received, and waits until all are acknowledged.
    pub(crate) fn wait_all_acked(&self, delivered: u64) {
        lock(&self.delivered_and_acked).0 = delivered;
        self.wait_acked();
    }

    /// Waits until the program has acknowledged every event that it received.
    pub(crate) fn wait_acked(&self) {
        let mut counts = lock(&self.delivered_and_acked);
        while counts.0 > counts.1 {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Locks a mutex and ignores poisoning: a panic is a bug, but leaves no value half written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
