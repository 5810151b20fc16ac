//! A queue of events behind an eventfd that counts them.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ReadWriteFlags;

/// Events for one reader, behind an eventfd that counts them: the eventfd is readable exactly while
/// an event waits, if no other thread reads from it. The program may make the eventfd non-blocking.
/// The queue itself never blocks on it.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: Arc<OwnedFd>,
    waiting: VecDeque<T>,
}

impl<T> EventQueue<T> {
    /// Creates an empty event queue with an eventfd of its own.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?);
        Ok(Self::behind(fd))
    }

    /// Creates an empty event queue behind the caller's descriptor, an eventfd that counts down by
    /// one.
    pub(crate) fn behind(fd: Arc<OwnedFd>) -> Self {
        Self { fd, waiting: VecDeque::new() }
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn put(&mut self, item: T) {
        self.waiting.push_back(item);
        #[expect(clippy::host_endian_bytes, reason = "the kernel reads a number of this machine")]
        let one = 1_u64.to_ne_bytes();
        // A counter at its limit is readable anyway.
        let _ = rustix::io::write(&*self.fd, &one);
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.waiting.front()
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        let item = self.waiting.pop_front()?;
        self.count_down();
        Some(item)
    }

    /// Takes the events for which `wanted` is true out of the queue, in order.
    pub(crate) fn extract(&mut self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let (out, rest): (Vec<T>, Vec<T>) =
            std::mem::take(&mut self.waiting).into_iter().partition(wanted);
        self.waiting = rest.into();
        for _ in &out {
            self.count_down();
        }
        out
    }

    /// Drops the events for which `keep` is false.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        let before = self.waiting.len();
        self.waiting.retain(keep);
        for _ in self.waiting.len()..before {
            self.count_down();
        }
    }

    fn count_down(&self) {
        let mut count = [0; 8];
        // The read does not block even if another thread has read the eventfd.
        let _ = rustix::io::preadv2(
            &*self.fd,
            &mut [IoSliceMut::new(&mut count)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
    }
}
