//! Completion queues, their channels, and shared receive queues.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use sprat_proto::rdma::{Completion, Cq, PostError, RecvRequest, Srq};

use super::async_event::AsyncEvent;
use super::ended;
use super::handle::Handle;
use super::memory::{Domain, ProtectionDomain};
use crate::engine::{EventQueue, EventSource, Events, Patience};

/// A queue of completions. A clone is the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(super) inner: Arc<Queue>,
}

#[derive(Debug)]
pub(super) struct Queue {
    handle: Arc<Handle>,
    pub(super) cq: Cq,
    /// The epoch at which the completion queue was found empty: it is still empty while the
    /// device's epoch is the same.
    empty_at: AtomicU64,
    /// True if the completion queue notifies a channel.
    reports: bool,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.handle.shared.act(|core, _| {
            core.events().forget(EventSource::Cq(self.cq));
            // The queue pairs that use it hold it, so it is not in use.
            ended(core.rnic().destroy_cq(self.cq));
        });
    }
}

impl CompletionQueue {
    pub(super) fn new(
        handle: Arc<Handle>,
        depth: u32,
        channel: Option<u32>,
    ) -> Result<Self, PostError> {
        let cq = handle.shared.act(|core, _| {
            let cq = core.rnic().create_cq(depth)?;
            if let Some(channel) = channel {
                core.events().channel_of.insert(cq, channel);
            }
            Ok::<_, PostError>(cq)
        })?;
        let (empty_at, reports) = (AtomicU64::new(0), channel.is_some());
        Ok(Self { inner: Arc::new(Queue { handle, cq, empty_at, reports }) })
    }

    /// The queue's number, which asynchronous events and channels carry.
    #[must_use]
    pub fn number(&self) -> Cq {
        self.inner.cq
    }

    /// Takes the oldest completion of the queue, if there is one. If there is none, a device
    /// without a thread of its own makes progress first.
    #[inline]
    #[must_use]
    pub fn poll(&self) -> Option<Completion> {
        let Queue { handle, cq, empty_at, .. } = &*self.inner;
        handle.shared.poll_since(empty_at, |core| core.rnic().poll(*cq))
    }

    /// Takes up to `most` of the oldest completions, calls `each` with them, and returns how many
    /// there were; makes progress as [`CompletionQueue::poll`]. In a queue without a channel a
    /// Write's completion may be deferred for some microseconds, in which the peer may answer. If
    /// completions remain after an armed poll, the channel is notified again.
    #[inline]
    pub fn poll_many(&self, most: usize, mut each: impl FnMut(Completion)) -> usize {
        let Queue { handle, cq, empty_at, reports } = &*self.inner;
        let found = handle.shared.poll_since(empty_at, |core| {
            let mut count = 0;
            while count < most
                && let Some(completion) =
                    if *reports { core.rnic().poll(*cq) } else { core.poll_deferring(*cq) }
            {
                each(completion);
                count += 1;
            }
            if *reports && count == most && core.rnic().notify_remaining(*cq) {
                core.events().notify_channel(*cq);
            }
            (count > 0).then_some(count)
        });
        found.unwrap_or(0)
    }

    /// Takes the oldest completion of the queue, if there is one already; makes no progress.
    #[inline]
    #[must_use]
    pub fn poll_ready(&self) -> Option<Completion> {
        self.inner.handle.shared.with(|core| core.rnic().poll(self.inner.cq))
    }

    /// Takes the oldest completion of the queue; waits for it, at most for `limit`: polling at
    /// first, then asleep.
    #[must_use]
    pub fn wait(&self, limit: Option<Duration>) -> Option<Completion> {
        self.inner.handle.shared.wait(limit, Patience::Spin, |core| core.rnic().poll(self.inner.cq))
    }

    /// Waits as [`CompletionQueue::wait`] does, but sleeps from the beginning: that costs no
    /// processor time and some microseconds more.
    #[must_use]
    pub fn sleep(&self, limit: Option<Duration>) -> Option<Completion> {
        self.inner
            .handle
            .shared
            .wait(limit, Patience::Sleep, |core| core.rnic().poll(self.inner.cq))
    }

    /// Sets the depth of the completion queue.
    ///
    /// # Errors
    /// The queue has more completions than the new depth, or the depth is 0 or too large.
    pub fn resize(&self, depth: u32) -> Result<(), PostError> {
        self.inner.handle.shared.with(|core| core.rnic().resize_cq(self.inner.cq, depth))
    }

    /// Sends the asynchronous events of the completion queue to `channel` alone from now on.
    pub fn report_to(&self, channel: &AsyncEventChannel) {
        channel.own(EventSource::Cq(self.inner.cq));
    }

    /// Arms the completion queue: its channel is notified once of the next completion (with
    /// `solicited_only`: of the next that a peer solicited, or an error). Completions that wait
    /// already may cause no notification: poll again after this.
    pub fn arm(&self, solicited_only: bool) {
        let _ =
            self.inner.handle.shared.act(|core, _| core.rnic().arm(self.inner.cq, solicited_only));
    }
}

/// A channel that reports which of several completion queues have completions: after
/// [`CompletionQueue::arm`], once for each arming.
#[derive(Debug)]
pub struct CompletionChannel {
    handle: Arc<Handle>,
    number: u32,
    fd: Arc<OwnedFd>,
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        self.handle.shared.with(|core| core.events().channels.remove(&self.number));
    }
}

impl CompletionChannel {
    pub(super) fn new(handle: Arc<Handle>) -> io::Result<Self> {
        let new = EventQueue::new()?;
        let fd = Arc::clone(new.fd());
        let number = handle.shared.with(|core| {
            let channels = &mut core.events().channels;
            let number = Events::free_number(channels);
            channels.insert(number, new);
            number
        });
        Ok(Self { handle, number, fd })
    }

    /// A completion queue that notifies this channel.
    ///
    /// # Errors
    /// The errors of [`super::Device::completion_queue`].
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue, PostError> {
        CompletionQueue::new(Arc::clone(&self.handle), depth, Some(self.number))
    }

    /// Takes the number of an armed completion queue that has completions; waits for one, asleep,
    /// at most for `limit`.
    #[must_use]
    pub fn next(&self, limit: Option<Duration>) -> Option<Cq> {
        self.handle.shared.wait(limit, Patience::Sleep, |core| {
            core.events().channels.get_mut(&self.number)?.take()
        })
    }

    /// Takes the next completion queue that has completions; waits as a read of the descriptor
    /// would.
    ///
    /// # Errors
    /// `WouldBlock` if no queue has completions and the descriptor was made non-blocking;
    /// `Interrupted` if a signal came.
    pub fn read(&self) -> io::Result<Cq> {
        self.handle
            .shared
            .read(&self.fd, |core| core.events().channels.get_mut(&self.number)?.take())
    }
}

/// The channel's descriptor is readable while [`CompletionChannel::next`] would not wait. A device
/// without a thread makes no progress without calls: wait for [`super::Device::fd`] too, and call
/// [`super::Device::progress`].
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A receive queue that several queue pairs share. A clone is the same queue.
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
        self.domain.handle.shared.act(|core, _| {
            core.events().forget(EventSource::Srq(self.srq));
            // The queue pairs that use it hold it, so it is not in use.
            ended(core.rnic().destroy_srq(self.srq));
        });
    }
}

impl ProtectionDomain {
    /// Creates a receive queue for several queue pairs, of `depth` work requests with up to
    /// `max_sge` elements each.
    ///
    /// # Errors
    /// The device has too many shared receive queues, or this one is too large.
    pub fn shared_receive_queue(
        &self,
        depth: u32,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, PostError> {
        let pd = self.inner.pd;
        let srq: Srq =
            self.inner.handle.shared.act(|core, _| core.rnic().create_srq(pd, depth, max_sge))?;
        Ok(SharedReceiveQueue::new(Arc::clone(&self.inner), srq))
    }
}

impl SharedReceiveQueue {
    pub(super) fn new(domain: Arc<Domain>, srq: Srq) -> Self {
        Self { inner: Arc::new(Receives { domain, srq }) }
    }

    /// The number of the shared receive queue, which asynchronous events carry.
    #[must_use]
    pub fn number(&self) -> Srq {
        self.inner.srq
    }

    /// Posts a receive to the shared receive queue.
    ///
    /// # Errors
    /// The queue is full, or the request has too many elements.
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), PostError> {
        self.inner
            .domain
            .handle
            .shared
            .post_receives(|core| core.rnic().post_srq_recv(self.inner.srq, request))
    }

    /// Posts several receives to the shared receive queue, one after the other.
    ///
    /// # Errors
    /// The error of the first receive that cannot be posted, as of
    /// [`SharedReceiveQueue::post_recv`], with the number of receives posted before it.
    pub fn post_recvs(
        &self,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<usize, (usize, PostError)> {
        self.inner.domain.handle.shared.post_receives(|core| {
            let rnic = core.rnic();
            post_all(requests, |request| rnic.post_srq_recv(self.inner.srq, request))
        })
    }

    /// Sends the asynchronous events of the shared receive queue to `channel` alone from now on.
    pub fn report_to(&self, channel: &AsyncEventChannel) {
        channel.own(EventSource::Srq(self.inner.srq));
    }

    /// Requests one asynchronous event as soon as the shared receive queue has fewer than `limit`
    /// receives.
    pub fn limit(&self, limit: u32) {
        let _ = self
            .inner
            .domain
            .handle
            .shared
            .act(|core, _| core.rnic().limit_srq(self.inner.srq, limit));
    }
}

/// A channel that reports the asynchronous events of those objects that use it.
#[derive(Debug)]
pub struct AsyncEventChannel {
    handle: Arc<Handle>,
    number: u32,
    fd: Arc<OwnedFd>,
}

impl Drop for AsyncEventChannel {
    fn drop(&mut self) {
        self.handle.shared.with(|core| core.events().async_queues.remove(&self.number));
    }
}

impl AsyncEventChannel {
    pub(super) fn new(handle: Arc<Handle>, fd: Arc<OwnedFd>) -> Self {
        let number = handle.shared.with(|core| {
            let boxes = &mut core.events().async_queues;
            let number = Events::free_number(boxes);
            boxes.insert(number, EventQueue::behind(Arc::clone(&fd)));
            number
        });
        Self { handle, number, fd }
    }

    pub(super) fn own(&self, object: EventSource) {
        self.handle.shared.with(|core| core.events().set_owner(object, self.number));
    }

    /// Takes the channel's next asynchronous event; waits as a read of the descriptor would.
    ///
    /// # Errors
    /// `WouldBlock` if there is none and the descriptor was made non-blocking; `Interrupted` if a
    /// signal came.
    pub fn read(&self) -> io::Result<AsyncEvent> {
        self.handle.shared.read(&self.fd, |core| {
            let own = core.events().async_queues.get_mut(&self.number)?;
            loop {
                let event = own.take()?;
                if let Some(notice) = AsyncEvent::of(&event) {
                    return Some(notice);
                }
            }
        })
    }
}

/// Posts work requests one after the other. On a failure returns how many were posted before it.
pub(super) fn post_all<T>(
    requests: impl IntoIterator<Item = T>,
    mut post: impl FnMut(T) -> Result<(), PostError>,
) -> Result<usize, (usize, PostError)> {
    let mut posted = 0;
    for request in requests {
        post(request).map_err(|e| (posted, e))?;
        posted += 1;
    }
    Ok(posted)
}
