//! The thread that copies entries for the cleaner of a server.
//!
//! ```text
//! worker ── job ──► slot ──► thread: copies live entries ── job ──► slot ──► worker
//! ```
//!
//! The thread starts with the first job, sleeps between jobs, and ends when the server does. It
//! runs only while a processor has nothing else to do, so that it takes no time from others; then a
//! job may take long. The worker never waits for the thread, which may stop anywhere: it tries to
//! lock a slot, and looks again later.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;

use sprat_store::objects::cleaner::{Copier, Job};
use sprat_sys::cpu;

/// The place of a job between two threads.
type Slot = Mutex<Option<Box<Job>>>;

/// The state that the worker and the thread share.
#[derive(Debug, Default)]
struct Shared {
    to_do: Slot,
    done: Slot,
    is_over: AtomicBool,
}

/// The worker's end of the thread that helps the cleaner.
#[derive(Debug, Default)]
pub(super) struct Thread {
    thread: Option<(thread::Thread, Arc<Shared>)>,
    /// A job that the thread has yet to get.
    waiting: Option<Box<Job>>,
}

impl Thread {
    /// Starts the thread, unless it runs. Returns false if there is none.
    fn spawn(&mut self) -> bool {
        if self.thread.is_none() {
            let shared = Arc::<Shared>::default();
            let its = Arc::clone(&shared);
            let spawned =
                thread::Builder::new().name("cleaner".to_owned()).spawn(move || work(&its));
            self.thread = spawned.ok().map(|handle| (handle.thread().clone(), shared));
        }
        self.thread.is_some()
    }

    /// Gives the thread the job that waits, unless the thread has the lock.
    fn pass_on(&mut self) {
        let Some((thread, shared)) = &self.thread else { return };
        if self.waiting.is_some()
            && let Some(mut slot) = try_lock(&shared.to_do)
        {
            *slot = self.waiting.take();
            drop(slot);
            thread.unpark();
        }
    }
}

impl Copier for Thread {
    fn start(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        if !self.spawn() {
            return Err(job);
        }
        self.waiting = Some(job);
        self.pass_on();
        Ok(())
    }

    fn done(&mut self) -> Option<Box<Job>> {
        self.pass_on();
        let (_, shared) = self.thread.as_ref()?;
        try_lock(&shared.done)?.take()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some((thread, shared)) = &self.thread {
            shared.is_over.store(true, Ordering::Release);
            thread.unpark();
        }
    }
}

/// Returns what a lock guards, unless another thread has the lock. A thread that has panicked with
/// it leaves a job or none.
fn try_lock<T>(lock: &Mutex<T>) -> Option<std::sync::MutexGuard<'_, T>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Runs jobs until the server ends.
fn work(shared: &Shared) {
    // If the kernel refuses it, the thread competes with others.
    let _ = cpu::run_when_idle();
    while !shared.is_over.load(Ordering::Acquire) {
        let job = shared.to_do.lock().map(|mut slot| mem::take(&mut *slot)).unwrap_or_default();
        let Some(mut job) = job else {
            thread::park();
            continue;
        };
        job.run();
        if let Ok(mut slot) = shared.done.lock() {
            *slot = Some(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread runs a job in time, and the next one, and ends with the server.
    #[test]
    fn jobs_are_done_in_another_thread() {
        let mut helper = Thread::default();
        assert!(helper.done().is_none());
        for _ in 0..2 {
            helper.start(Box::default()).unwrap();
            while helper.done().is_none() {
                thread::yield_now();
            }
            assert!(helper.done().is_none(), "a job is done once");
        }
        let (_, shared) = helper.thread.as_ref().unwrap();
        let shared = Arc::downgrade(shared);
        drop(helper);
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
