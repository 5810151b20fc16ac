//! Calls of the engine for domains, regions, windows, completion queues and shared receive queues.

use alloc::collections::VecDeque;

use crate::Instant;
use crate::rdma::completion::Completion;
use crate::rdma::cq::CompletionQueue;
use crate::rdma::error::PostError;
use crate::rdma::event::Event;
use crate::rdma::ids::{Cq, Pd, Srq, Stag};
use crate::rdma::memory::Access;
use crate::rdma::mr::WindowKind;
use crate::rdma::rnic::Rnic;
use crate::rdma::srq::SharedReceiveQueue;
use crate::rdma::work::{MAX_SGE, RecvRequest};

impl Rnic {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`PostError::NoRoom`].
    pub fn alloc_pd(&mut self) -> Result<Pd, PostError> {
        self.shared.mr.alloc_pd()
    }

    /// Deallocates a protection domain.
    ///
    /// # Errors
    /// [`PostError::Busy`] while anything is in it; [`PostError::Invalid`].
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), PostError> {
        self.shared.mr.dealloc_pd(pd)
    }

    /// Registers `len` bytes from the start of the caller's `region`. The first byte has the
    /// address `base`.
    ///
    /// # Errors
    /// [`PostError::Rights`] if the range wraps, or for remote writes or atomics without local
    /// writes; [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn register(
        &mut self,
        pd: Pd,
        region: u64,
        base: u64,
        len: u64,
        access: Access,
    ) -> Result<Stag, PostError> {
        self.shared.mr.register(pd, region, base, len, access)
    }

    /// Deregisters a region or a tag for fast registration. The engine places nothing through it
    /// any more, and requests that still need it fail.
    ///
    /// # Errors
    /// [`PostError::Busy`] while windows are bound to it; [`PostError::Invalid`].
    pub fn deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        self.shared.mr.deregister(stag)
    }

    /// Deregisters a region or a tag for fast registration and unbinds its windows.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn force_deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        self.shared.mr.force_deregister(stag)
    }

    /// Sets the access rights of a memory region. Its tag stays the same.
    ///
    /// # Errors
    /// [`PostError::Busy`] while windows are bound to it; [`PostError::Rights`];
    /// [`PostError::Invalid`].
    pub fn change_rights(&mut self, stag: Stag, access: Access) -> Result<(), PostError> {
        self.shared.mr.change_rights(stag, access)
    }

    /// Allocates a tag for fast registration by a work request.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_fast(&mut self, pd: Pd) -> Result<Stag, PostError> {
        self.shared.mr.alloc_fast(pd)
    }

    /// Allocates a memory window. A work request binds it.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_window(&mut self, pd: Pd, kind: WindowKind) -> Result<Stag, PostError> {
        self.shared.mr.alloc_window(pd, kind)
    }

    /// Deallocates a memory window, bound or not.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn dealloc_window(&mut self, stag: Stag) -> Result<(), PostError> {
        self.shared.mr.dealloc_window(stag)
    }

    /// Creates a completion queue for `depth` completions.
    ///
    /// # Errors
    /// [`PostError::NoRoom`].
    pub fn create_cq(&mut self, depth: u32) -> Result<Cq, PostError> {
        let config = &self.shared.config;
        if self.shared.cqs.used() >= config.max_cqs || depth > config.max_cqe {
            return Err(PostError::NoRoom);
        }
        let cq = self.shared.cqs.insert(|_| CompletionQueue::new(depth));
        cq.map(Cq).ok_or(PostError::NoRoom)
    }

    /// Sets the depth of a completion queue.
    ///
    /// # Errors
    /// [`PostError::NoRoom`] if more completions are in it or `depth` is above the engine's limit;
    /// [`PostError::Invalid`].
    pub fn resize_cq(&mut self, cq: Cq, depth: u32) -> Result<(), PostError> {
        if depth > self.shared.config.max_cqe {
            return Err(PostError::NoRoom);
        }
        self.shared.cqs.get_mut(cq.0).ok_or(PostError::Invalid)?.resize(depth)
    }

    /// Destroys a completion queue and the completions in it.
    ///
    /// # Errors
    /// [`PostError::Busy`] while a queue pair uses it; [`PostError::Invalid`].
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), PostError> {
        if self.shared.cqs.get(cq.0).ok_or(PostError::Invalid)?.is_busy() {
            return Err(PostError::Busy);
        }
        self.shared.cqs.remove(cq.0);
        Ok(())
    }

    /// Takes the oldest completion of a completion queue.
    #[inline]
    pub fn poll(&mut self, cq: Cq) -> Option<Completion> {
        self.shared.cqs.get_mut(cq.0)?.poll()
    }

    /// Reports that the program polled as many completions as it had room for. Returns true if
    /// completions remain and the program must be notified again, by
    /// [`CompletionQueue::notify_remaining`].
    #[inline]
    pub fn notify_remaining(&mut self, cq: Cq) -> bool {
        self.shared.cqs.get_mut(cq.0).is_some_and(CompletionQueue::notify_remaining)
    }

    /// Arms a completion queue: the next completion (with `solicited_only`, the next solicited one
    /// or failure) raises [`Event::CqReady`] once. A completion that is already in the queue may
    /// raise it too, by [`CompletionQueue::arm`]. Poll again after this call.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn arm(&mut self, cq: Cq, solicited_only: bool) -> Result<(), PostError> {
        if self.shared.cqs.get_mut(cq.0).ok_or(PostError::Invalid)?.arm(solicited_only) {
            self.shared.events.push_back(Event::CqReady(cq));
        }
        Ok(())
    }

    /// Creates a shared receive queue for `depth` receives of at most `max_sge` elements.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::TooManyElements`];
    /// [`PostError::NoRoom`].
    pub fn create_srq(&mut self, pd: Pd, depth: u32, max_sge: usize) -> Result<Srq, PostError> {
        let config = &self.shared.config;
        if self.shared.srqs.used() >= config.max_srqs || depth > config.max_depth {
            return Err(PostError::NoRoom);
        }
        if max_sge > MAX_SGE {
            return Err(PostError::TooManyElements);
        }
        self.shared.mr.add_pd_user(pd)?;
        let (waiting, unexpected, limit, users) = (VecDeque::new(), VecDeque::new(), 0, 0);
        let srq = self.shared.srqs.insert(|_| SharedReceiveQueue {
            pd,
            depth,
            max_sge,
            limit,
            waiting,
            users,
            unexpected,
        });
        if srq.is_none() {
            self.shared.mr.remove_pd_user(pd);
        }
        srq.map(Srq).ok_or(PostError::NoRoom)
    }

    /// Raises [`Event::SrqLimit`] once, when a receive is taken and fewer than `limit` remain.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn limit_srq(&mut self, srq: Srq, limit: u32) -> Result<(), PostError> {
        self.shared.srqs.get_mut(srq.0).ok_or(PostError::Invalid)?.limit = limit;
        Ok(())
    }

    /// Destroys a shared receive queue. The receives in it leave no completion.
    ///
    /// # Errors
    /// [`PostError::Busy`] while a queue pair uses it; [`PostError::Invalid`].
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), PostError> {
        let queue = self.shared.srqs.get(srq.0).ok_or(PostError::Invalid)?;
        if queue.users > 0 {
            return Err(PostError::Busy);
        }
        let pd = queue.pd;
        self.shared.srqs.remove(srq.0);
        self.shared.mr.remove_pd_user(pd);
        Ok(())
    }

    /// Posts a receive to a shared queue.
    ///
    /// # Errors
    /// [`PostError::Invalid`], [`PostError::TooManyElements`], [`PostError::Full`].
    pub fn post_srq_recv(&mut self, srq: Srq, request: RecvRequest) -> Result<(), PostError> {
        let queue = self.shared.srqs.get_mut(srq.0).ok_or(PostError::Invalid)?;
        if request.list.len() > queue.max_sge {
            return Err(PostError::TooManyElements);
        }
        if queue.waiting.len() >= queue.depth as usize {
            return Err(PostError::Full);
        }
        queue.waiting.push_back(request);
        if let Some(&qp) = queue.unexpected.front() {
            self.shared.woken.push(qp);
            if let Some(queue_pair) = self.qps.get_mut(qp.0) {
                queue_pair.receive.rnr_deadline = Instant::NEVER;
            }
            self.settle();
        }
        Ok(())
    }
}
