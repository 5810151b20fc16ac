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
        if !self.woken.load(Ordering::SeqCst) {
            // A full counter means that a wake-up is pending anyway. The flag comes after the
            // counter: a worker that saw the flag alone would empty the counter before this write,
            // and would find it readable from then on.
            let _ = rustix::io::write(&*self.fd, &[0, 0, 0, 0, 0, 0, 0, 1]);
            self.woken.store(true, Ordering::SeqCst);
        }
    }

    /// Returns true if [`Waker::wake`] was called since the last call of this function.
    pub(super) fn clear(&self) -> bool {
        if !self.woken.load(Ordering::Relaxed) {
            return false;
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.fd, &mut count);
        self.woken.store(false, Ordering::SeqCst);
        true
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
