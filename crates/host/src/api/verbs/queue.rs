//! Where work requests complete, and shared receive queues.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use sprat_proto::rdma::{Completion, Cq, PostError, RecvRequest, Srq};

use super::device::Handle;
use super::memory::Domain;
use crate::rdma::Patience;

/// A queue of completions. Clones are the same one.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(super) inner: Arc<Queue>,
}

#[derive(Debug)]
pub(super) struct Queue {
    handle: Arc<Handle>,
    pub(super) cq: Cq,
    /// The epoch at which it was found empty: nothing is in it while that is still the present one.
    empty_at: AtomicU64,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.handle.shared.act(|core, _| {
            core.desk().reports.remove(&self.cq);
            // The queue pairs that use it hold it, so it is not in use.
            let _ = core.rnic().destroy_cq(self.cq);
        });
    }
}

impl CompletionQueue {
    pub(super) fn new(handle: Arc<Handle>, depth: u32, channel: Option<u32>) -> Result<Self, PostError> {
        let cq = handle.shared.act(|core, _| {
            let cq = core.rnic().create_cq(depth)?;
            if let Some(channel) = channel {
                core.desk().reports.insert(cq, channel);
            }
            Ok::<_, PostError>(cq)
        })?;
        Ok(Self { inner: Arc::new(Queue { handle, cq, empty_at: AtomicU64::new(0) }) })
    }

    /// Its number, as notices and channels name it.
    #[must_use]
    pub fn number(&self) -> Cq {
        self.inner.cq
    }

    /// The oldest completion, if there is one. Without a thread of its own the device makes progress first, if there is
    /// none.
    #[inline]
    #[must_use]
    pub fn poll(&self) -> Option<Completion> {
        let Queue { handle, cq, empty_at } = &*self.inner;
        handle.shared.poll_since(empty_at, |core| core.rnic().poll(*cq))
    }

    /// The oldest completion, if there is one already; nobody is asked whether there could be another.
    #[inline]
    #[must_use]
    pub fn poll_ready(&self) -> Option<Completion> {
        self.inner.handle.shared.look(|core| core.rnic().poll(self.inner.cq))
    }

    /// The oldest completion; waits for it, at most for `limit`: polling at first, then asleep.
    #[must_use]
    pub fn wait(&self, limit: Option<Duration>) -> Option<Completion> {
        self.inner.handle.shared.wait(limit, Patience::Spin, |core| core.rnic().poll(self.inner.cq))
    }

    /// The same, asleep from the beginning: costs no processor time and some microseconds more.
    #[must_use]
    pub fn sleep(&self, limit: Option<Duration>) -> Option<Completion> {
        self.inner.handle.shared.wait(limit, Patience::Sleep, |core| core.rnic().poll(self.inner.cq))
    }

    /// The next completion (with `solicited_only`: the next that a peer solicited, or an error) is told by the channel that
    /// the queue was made with, once. Those that are in the queue are not: poll again after this.
    pub fn arm(&self, solicited_only: bool) {
        let _ = self.inner.handle.shared.act(|core, _| core.rnic().arm(self.inner.cq, solicited_only));
    }
}

/// Tells which of several completion queues have something: after [`CompletionQueue::arm`], once for each arming.
#[derive(Debug)]
pub struct CompletionChannel {
    handle: Arc<Handle>,
    number: u32,
    fd: Arc<OwnedFd>,
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        self.handle.shared.look(|core| core.desk().channels.remove(&self.number));
    }
}

impl CompletionChannel {
    pub(super) fn new(handle: Arc<Handle>, number: u32, fd: Arc<OwnedFd>) -> Self {
        Self { handle, number, fd }
    }

    /// A completion queue that reports here.
    ///
    /// # Errors
    /// As [`super::Device::completion_queue`].
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue, PostError> {
        CompletionQueue::new(Arc::clone(&self.handle), depth, Some(self.number))
    }

    /// The number of a queue that was armed and has something; waits for one, asleep, at most for `limit`.
    #[must_use]
    pub fn next(&self, limit: Option<Duration>) -> Option<Cq> {
        self.handle.shared.wait(limit, Patience::Sleep, |core| {
            let ready = &mut core.desk().channels.get_mut(&self.number)?.ready;
            let found = ready.pop_front()?;
            if ready.is_empty() {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.fd, &mut count);
            }
            Some(found)
        })
    }
}

/// Readable while [`CompletionChannel::next`] would not wait. A device without a thread of its own makes no progress while
/// nobody calls it: wait for [`super::Device::fd`] too, and call [`super::Device::progress`].
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A receive queue that several queue pairs share. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(super) inner: Arc<Receives>,
}

#[derive(Debug)]
pub(super) struct Receives {
    domain: Arc<Domain>,
    pub(super) srq: Srq,
}

impl Drop for Receives {
    fn drop(&mut self) {
        let _ = self.domain.handle.shared.act(|core, _| core.rnic().destroy_srq(self.srq));
    }
}

impl SharedReceiveQueue {
    pub(super) fn new(domain: Arc<Domain>, srq: Srq) -> Self {
        Self { inner: Arc::new(Receives { domain, srq }) }
    }

    /// Its number, as notices name it.
    #[must_use]
    pub fn number(&self) -> Srq {
        self.inner.srq
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full, or the request has too many elements.
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), PostError> {
        self.inner.domain.handle.shared.note(|core| core.rnic().post_srq_recv(self.inner.srq, request))
    }

    /// Asks for a notice, once, as soon as fewer than `limit` receives are left.
    pub fn limit(&self, limit: u32) {
        let _ = self.inner.domain.handle.shared.act(|core, _| core.rnic().limit_srq(self.inner.srq, limit));
    }
}
