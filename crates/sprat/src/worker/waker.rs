//! Handles by which other threads wake a worker, and end it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A handle by which other threads end the worker's sleep.
#[derive(Clone, Debug)]
pub struct Waker {
    fd: Arc<OwnedFd>,
    woken: Arc<AtomicBool>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd: Arc::new(fd), woken: Arc::new(AtomicBool::new(false)) })
    }

    /// Returns the descriptor that is readable after [`Waker::wake`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes the worker's next turn happen now. A signal handler may call it.
    pub fn wake(&self) {
        if self.announce() {
            self.ring();
        }
    }

    /// Sets the flag. Returns true if it was not set: then the caller rings.
    fn announce(&self) -> bool {
        !self.woken.swap(true, Ordering::SeqCst)
    }

    /// Makes the descriptor readable, which ends a sleep.
    fn ring(&self) {
        // A full counter means that a wake-up is pending anyway.
        let _ = rustix::io::write(&*self.fd, &[0, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// Returns true if [`Waker::wake`] was called since the last call of this function. The
    /// descriptor stays as it is: a thread that has set the flag may make it readable later.
    pub(super) fn clear(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::SeqCst)
    }

    /// Makes the descriptor unreadable, after a sleep and before [`Waker::clear`]. A thread that
    /// makes it readable afterwards has set the flag before, or costs one sleep.
    pub(super) fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.fd, &mut count);
    }
}

/// A handle that ends a worker's [`Worker::run`](super::Worker::run) from another thread or a
/// signal handler.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    pub(super) fn new(flag: Arc<AtomicBool>, waker: Waker) -> Self {
        Self { flag, waker }
    }

    /// Makes [`Worker::run`](super::Worker::run) return after its present turn.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(waker: &Waker) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    /// A thread stops between its two steps. Another one wakes the worker meanwhile, and the worker
    /// takes a turn. The next wake-up ends the worker's sleep all the same.
    #[test]
    fn a_thread_that_stops_in_the_middle_hides_no_wake_up() {
        let waker = Waker::new().unwrap();
        assert!(waker.announce());
        waker.wake();
        assert!(waker.clear(), "one of them is seen");
        waker.ring();
        assert!(is_readable(&waker), "the next sleep ends at once");
        waker.drain();
        assert!(!waker.clear() && !is_readable(&waker), "and the one after it does not");
        waker.wake();
        assert!(is_readable(&waker) && waker.clear());
    }

    #[test]
    fn wake_ups_before_a_turn_are_one() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        waker.drain();
        assert!(waker.clear() && !waker.clear() && !is_readable(&waker));
    }
}
