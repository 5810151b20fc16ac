//! What all objects have in common: who uses them, and which of their events are acknowledged.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::entry::Errno;

/// How many others use an object.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// # Errors
    /// `EBUSY` if there are any.
    pub(crate) fn none(&self) -> Result<(), Errno> {
        if self.0.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Errno(libc::EBUSY)) }
    }
}

/// Events of an object that a program was told, and those that it has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    told_and_acked: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Acks {
    pub(crate) fn tell(&self) {
        locked(&self.told_and_acked).0 += 1;
    }

    pub(crate) fn ack(&self, count: u32) {
        let mut counts = locked(&self.told_and_acked);
        counts.1 += u64::from(count);
        // Before the lock is given back: whoever waits may then give the object back at once.
        self.changed.notify_all();
    }

    /// The same where somebody else has counted how many were told.
    pub(crate) fn wait_for(&self, told: u64) {
        locked(&self.told_and_acked).0 = told;
        self.wait();
    }

    /// Waits until every event that was told is acknowledged.
    pub(crate) fn wait(&self) {
        let mut counts = locked(&self.told_and_acked);
        while counts.0 > counts.1 {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A lock whose holder's panic, which is a bug, leaves nothing half done.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
