//! The engine: the owner of all objects, and the doors to them. The doors to streams are in `conn`.
//!
//! ```text
//!  Rnic ─┬─ shared ─┬─ mr       protection domains, regions, windows
//!        │          ├─ cqs      completion queues
//!        │          ├─ srqs     shared receive queues
//!        │          └─ events   what happened
//!        ├─ qps     queue pairs ◄─┐ each knows the other's number
//!        └─ conns   streams      ◄┘
//! ```
//!
//! Always: a number that was given back names nothing; an object that others use is not destroyed; no call waits, and no call
//! calls back. Not here: memory, sockets, clocks.

pub(crate) mod poll;

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::rdma::cq::{CompletionQueue, Pushed};
use crate::rdma::iwarp::conn::Connection;
use crate::rdma::iwarp::rx_message::SharedQueue;
use crate::rdma::iwarp::unexpected::Unready;
use crate::rdma::mr::{Regions, Rights, WindowKind};
use crate::rdma::options::{Config, Event, QpOptions, QpState};
use crate::rdma::qp::{Fault, QueuePair};
use crate::rdma::table::Table;
use crate::rdma::{
    Access, Completion, Conn, Cq, MAX_INLINE, MAX_SGE, Pd, PostError, Qp, RecvRequest, SendRequest,
    Srq, Stag,
};
use crate::wire::rdmap::Cause;
use crate::{Instant, Rng};

/// Queue pairs' numbers have 24 bits, since programs send them about in fields of that size.
const QP_BITS: u32 = 24;

/// What every queue pair reaches.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) mr: Regions,
    cqs: Table<CompletionQueue, 32>,
    srqs: Table<SharedQueue, 32>,
    pub(crate) events: VecDeque<Event>,
    /// Completion queues that have overflowed and whose queue pairs do not know it yet.
    overflowed: Vec<Cq>,
    /// Queue pairs whose streams are to be asked for output: what they waited for may be there.
    pub(crate) woken: Vec<Qp>,
    pub(crate) unready: Unready,
    /// Answers that wait for an own message of their queue pair, and when they go by themselves; some may have gone.
    pub(crate) rides: VecDeque<(Instant, Qp)>,
    /// The last time handed in.
    pub(crate) now: Instant,
}

impl Shared {
    /// Puts a completion.
    #[inline]
    pub(crate) fn complete(&mut self, cq: Cq, completion: Completion, solicited: bool) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        match queue.push(completion, solicited) {
            Pushed::Kept | Pushed::Lost => {}
            Pushed::Wakes => self.events.push_back(Event::CqReady(cq)),
            Pushed::Overflows => {
                self.events.push_back(Event::CqOverflow(cq));
                self.overflowed.push(cq);
            }
        }
    }

    /// A completion queue.
    #[inline]
    pub(crate) fn cq(&mut self, cq: Cq) -> Option<&mut CompletionQueue> {
        self.cqs.get_mut(cq.0)
    }

    /// Receives that wait in a shared queue.
    pub(crate) fn srq_len(&self, srq: Srq) -> usize {
        self.srqs.get(srq.0).map_or(0, |queue| queue.waiting.len())
    }

    /// Takes a receive from a shared queue.
    pub(crate) fn take_srq(&mut self, srq: Srq) -> Option<RecvRequest> {
        let queue = self.srqs.get_mut(srq.0)?;
        let request = queue.waiting.pop_front()?;
        if (queue.waiting.len() as u32) < queue.limit {
            queue.limit = 0;
            self.events.push_back(Event::SrqLimit(srq));
        }
        Some(request)
    }

    /// A queue pair has messages for which a shared queue has no receive.
    pub(crate) fn await_srq(&mut self, srq: Srq, qp: Qp) {
        if let Some(queue) = self.srqs.get_mut(srq.0) {
            queue.unready.push_back(qp);
        }
    }

    /// It has none any more; the next one may have what is left.
    pub(crate) fn await_srq_no_more(&mut self, srq: Srq, qp: Qp) {
        let Some(queue) = self.srqs.get_mut(srq.0) else { return };
        queue.unready.retain(|other| *other != qp);
        if !queue.waiting.is_empty() {
            self.woken.extend(queue.unready.front());
        }
    }
}

/// Software iWARP; see the module.
#[derive(Debug)]
pub struct Rnic {
    pub(in crate::rdma) shared: Shared,
    pub(in crate::rdma) qps: Table<QueuePair, QP_BITS>,
    pub(in crate::rdma) conns: Table<Connection, 32>,
    /// Streams with something to send, each once.
    pub(in crate::rdma) ready: VecDeque<Conn>,
    /// When to look at a stream; its own `due` says whether that still holds.
    pub(in crate::rdma) timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// For payload that markers tore apart.
    pub(in crate::rdma) scratch: Vec<u8>,
}

impl Rnic {
    /// An engine without objects. `rng` makes its tags unpredictable.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let unready = Unready::new(config.max_unready);
        let shared = Shared {
            mr: Regions::new(rng, config.max_pds, config.max_tags),
            config,
            cqs: Table::new(),
            srqs: Table::new(),
            events: VecDeque::new(),
            overflowed: Vec::new(),
            woken: Vec::new(),
            unready,
            rides: VecDeque::new(),
            now: Instant::ZERO,
        };
        Self {
            shared,
            qps: Table::new(),
            conns: Table::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            scratch: Vec::new(),
        }
    }

    /// It is this time: what is posted and reported as sent from now on is of this time, as what other calls hand in.
    #[inline]
    pub const fn at(&mut self, now: Instant) {
        self.shared.now = now;
    }

    /// What happened, the oldest first.
    pub fn event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`PostError::NoRoom`].
    pub fn alloc_pd(&mut self) -> Result<Pd, PostError> {
        self.shared.mr.alloc_pd()
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    /// [`PostError::Busy`] while anything is in it; [`PostError::Invalid`].
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), PostError> {
        self.shared.mr.dealloc_pd(pd)
    }

    /// Registers `len` octets from the start of the caller's `region`; the first one has the address `base`.
    ///
    /// # Errors
    /// [`PostError::Rights`] for a range that wraps, or remote writes or atomics without local writes;
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
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

    /// Ends a region, or a tag for fast registration. Nothing is placed through it any more; what was on its way fails.
    ///
    /// # Errors
    /// [`PostError::Busy`] while windows are bound to it; [`PostError::Invalid`].
    pub fn deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        self.shared.mr.deregister(stag)
    }

    /// Ends a region, or a tag for fast registration, and unbinds the windows that are bound to it.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn force_deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        self.shared.mr.force_deregister(stag)
    }

    /// Gives a region other rights; its tag stays.
    ///
    /// # Errors
    /// [`PostError::Busy`] while windows are bound to it; [`PostError::Rights`]; [`PostError::Invalid`].
    pub fn change_rights(&mut self, stag: Stag, access: Access) -> Result<(), PostError> {
        self.shared.mr.change_rights(stag, access)
    }

    /// Makes a tag for fast registration by a work request.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_fast(&mut self, pd: Pd) -> Result<Stag, PostError> {
        self.shared.mr.alloc_fast(pd)
    }

    /// Makes a window, to be bound by a work request.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_window(&mut self, pd: Pd, kind: WindowKind) -> Result<Stag, PostError> {
        self.shared.mr.alloc_window(pd, kind)
    }

    /// Ends a window, bound or not.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn dealloc_window(&mut self, stag: Stag) -> Result<(), PostError> {
        self.shared.mr.dealloc_window(stag)
    }

    /// Makes a completion queue for `depth` completions.
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

    /// Gives a completion queue another depth.
    ///
    /// # Errors
    /// [`PostError::NoRoom`] if more completions are in it, or it is to hold more than can be; [`PostError::Invalid`].
    pub fn resize_cq(&mut self, cq: Cq, depth: u32) -> Result<(), PostError> {
        if depth > self.shared.config.max_cqe {
            return Err(PostError::NoRoom);
        }
        self.shared.cqs.get_mut(cq.0).ok_or(PostError::Invalid)?.resize(depth)
    }

    /// Ends a completion queue, and the completions in it.
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

    /// Takes the oldest completion.
    #[inline]
    pub fn poll(&mut self, cq: Cq) -> Option<Completion> {
        self.shared.cqs.get_mut(cq.0)?.poll()
    }

    /// Whether the program, which has polled as many completions as it had room for, is to be told that there are more:
    /// [`CompletionQueue::left_some`].
    #[inline]
    pub fn left_some(&mut self, cq: Cq) -> bool {
        self.shared.cqs.get_mut(cq.0).is_some_and(CompletionQueue::left_some)
    }

    /// The next completion (with `solicited_only`: the next that a peer solicited, or an error) raises
    /// [`Event::CqReady`], once; so may one in the queue, see [`CompletionQueue::arm`]. Poll again after this.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn arm(&mut self, cq: Cq, solicited_only: bool) -> Result<(), PostError> {
        if self.shared.cqs.get_mut(cq.0).ok_or(PostError::Invalid)?.arm(solicited_only) {
            self.shared.events.push_back(Event::CqReady(cq));
        }
        Ok(())
    }

    /// Makes a shared receive queue for `depth` receives of at most `max_sge` elements.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::TooManyElements`]; [`PostError::NoRoom`].
    pub fn create_srq(&mut self, pd: Pd, depth: u32, max_sge: usize) -> Result<Srq, PostError> {
        let config = &self.shared.config;
        if self.shared.srqs.used() >= config.max_srqs || depth > config.max_depth {
            return Err(PostError::NoRoom);
        }
        if max_sge > MAX_SGE {
            return Err(PostError::TooManyElements);
        }
        self.shared.mr.hold_pd(pd)?;
        let (waiting, unready, limit, users) = (VecDeque::new(), VecDeque::new(), 0, 0);
        let srq = self.shared.srqs.insert(|_| SharedQueue {
            pd,
            depth,
            max_sge,
            limit,
            waiting,
            users,
            unready,
        });
        if srq.is_none() {
            self.shared.mr.release_pd(pd);
        }
        srq.map(Srq).ok_or(PostError::NoRoom)
    }

    /// Raises [`Event::SrqLimit`] once, as soon as fewer than `limit` receives are in the queue after one was taken.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn limit_srq(&mut self, srq: Srq, limit: u32) -> Result<(), PostError> {
        self.shared.srqs.get_mut(srq.0).ok_or(PostError::Invalid)?.limit = limit;
        Ok(())
    }

    /// Ends a shared receive queue. What is in it leaves no completion.
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
        self.shared.mr.release_pd(pd);
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
        if let Some(&qp) = queue.unready.front() {
            self.shared.woken.push(qp);
            if let Some(queue_pair) = self.qps.get_mut(qp.0) {
                queue_pair.receive.until = Instant::NEVER;
            }
            self.settle();
        }
        Ok(())
    }

    /// Makes a queue pair.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if domain or queues are not there, or the shared receive queue is of another domain;
    /// [`PostError::TooManyElements`], [`PostError::Inline`] or [`PostError::NoRoom`] if it is to hold more than can be.
    pub fn create_qp(&mut self, options: QpOptions) -> Result<Qp, PostError> {
        let shared = &mut self.shared;
        let there = |cq: Cq| shared.cqs.get(cq.0).is_some();
        let same_pd = |srq: Srq| shared.srqs.get(srq.0).is_some_and(|queue| queue.pd == options.pd);
        if !there(options.send_cq) || !there(options.recv_cq) || !options.srq.is_none_or(same_pd) {
            return Err(PostError::Invalid);
        }
        if options.max_send_sge > MAX_SGE || options.max_recv_sge > MAX_SGE {
            return Err(PostError::TooManyElements);
        }
        if options.max_inline > MAX_INLINE {
            return Err(PostError::Inline);
        }
        let depth = options.send_depth.max(options.recv_depth);
        if depth > shared.config.max_depth || self.qps.used() >= shared.config.max_qps {
            return Err(PostError::NoRoom);
        }
        shared.mr.hold_pd(options.pd)?;
        let Some(qp) = self.qps.insert(|number| QueuePair::new(Qp(number), options)) else {
            shared.mr.release_pd(options.pd);
            return Err(PostError::NoRoom);
        };
        for cq in [options.send_cq, options.recv_cq] {
            if let Some(queue) = shared.cqs.get_mut(cq.0) {
                queue.hold();
            }
        }
        if let Some(queue) = options.srq.and_then(|srq| shared.srqs.get_mut(srq.0)) {
            queue.users += 1;
        }
        Ok(Qp(qp))
    }

    /// Ends a queue pair and its connection. What is in its queues leaves no completion, and completions that were not
    /// fetched are gone, as with cards: programs free what a request's number stands for as soon as its queue pair has gone.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn destroy_qp(&mut self, qp: Qp) -> Result<(), PostError> {
        let mut queue_pair = self.qps.remove(qp.0).ok_or(PostError::Invalid)?;
        queue_pair.forget_unready(&mut self.shared);
        if let Some(conn) = queue_pair.conn {
            self.orphan(conn, queue_pair.placement.last_words(true));
        }
        let options = queue_pair.options;
        for cq in [options.send_cq, options.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.0) {
                queue.forget(qp);
                queue.release();
            }
        }
        if let Some(queue) = options.srq.and_then(|srq| self.shared.srqs.get_mut(srq.0)) {
            queue.users = queue.users.saturating_sub(1);
        }
        self.shared.mr.release_qp(qp);
        self.shared.mr.release_pd(options.pd);
        self.settle();
        Ok(())
    }

    /// Ends a queue pair's work at once: what is posted completes as flushed, and its connection, if there is one, ends
    /// behind what was sent. The queue pair is in error.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn fail_qp(&mut self, now: Instant, qp: Qp) -> Result<(), PostError> {
        self.shared.now = now;
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        if let Some(conn) = queue_pair.conn {
            self.cut_off(conn);
        }
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.fail(&mut self.shared);
        }
        self.settle();
        Ok(())
    }

    /// Whether a success of this queue pair waits to be fetched from a completion queue.
    #[must_use]
    pub fn has_succeeded(&self, qp: Qp) -> bool {
        let Some(options) = self.qps.get(qp.0).map(|pair| pair.options) else { return false };
        let queues = [options.send_cq, options.recv_cq];
        queues.iter().any(|cq| self.shared.cqs.get(cq.0).is_some_and(|queue| queue.tells_of(qp)))
    }

    /// Makes a queue pair as it was when it was new, its connection ended. What is in its queues leaves no completion, and
    /// completions that were not fetched are gone.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn reset_qp(&mut self, now: Instant, qp: Qp) -> Result<(), PostError> {
        self.shared.now = now;
        let queue_pair = self.qps.get(qp.0).ok_or(PostError::Invalid)?;
        let (conn, options) = (queue_pair.conn, queue_pair.options);
        let parting = queue_pair.placement.last_words(true);
        if let Some(conn) = conn {
            self.orphan(conn, parting);
        }
        self.shared.mr.release_qp(qp);
        for cq in [options.send_cq, options.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.0) {
                queue.forget(qp);
            }
        }
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.forget_unready(&mut self.shared);
            *queue_pair = QueuePair::new(qp, options);
        }
        self.settle();
        Ok(())
    }

    /// What a queue pair's peer may do with memory, with whatever tag. A new queue pair, or one that was reset, allows
    /// everything.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn allow(&mut self, qp: Qp, rights: Rights) -> Result<(), PostError> {
        self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?.rights = rights;
        Ok(())
    }

    /// Where a queue pair stands.
    #[must_use]
    pub fn state(&self, qp: Qp) -> Option<QpState> {
        self.qps.get(qp.0).map(|qp| qp.state)
    }

    /// What a queue pair was made with.
    #[must_use]
    pub fn options(&self, qp: Qp) -> Option<QpOptions> {
        self.qps.get(qp.0).map(|qp| qp.options)
    }

    /// Posts to the send queue. While the connection is made it waits; in error it completes as flushed.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_send(&mut self, qp: Qp, request: SendRequest) -> Result<(), PostError> {
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        queue_pair.post_send(request, &mut self.shared)?;
        if let Some(conn) = queue_pair.conn {
            self.wake(conn);
        }
        self.settle();
        Ok(())
    }

    /// Posts several to the send queue, all or none; those posted are taken out of `requests`.
    ///
    /// # Errors
    /// Of the first that is not possible; nothing was posted.
    pub fn post_sends(&mut self, qp: Qp, requests: &mut Vec<SendRequest>) -> Result<(), PostError> {
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        queue_pair.check_sends(requests)?;
        for request in requests.drain(..) {
            queue_pair.post_send(request, &mut self.shared)?;
        }
        if let Some(conn) = queue_pair.conn {
            self.wake(conn);
        }
        self.settle();
        Ok(())
    }

    /// Posts to the receive queue. In error it completes as flushed.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. [`PostError::Invalid`] also if the queue pair has a shared queue.
    pub fn post_recv(&mut self, qp: Qp, request: RecvRequest) -> Result<(), PostError> {
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        queue_pair.post_recv(request, &mut self.shared)?;
        if queue_pair.receive.is_awaited()
            && let Some(conn) = queue_pair.conn
        {
            self.wake(conn);
        }
        self.settle();
        Ok(())
    }

    /// Puts queue pairs in error whose completion queues overflowed, and wakes those that have what they waited for.
    #[inline]
    pub(in crate::rdma) fn settle(&mut self) {
        if !self.shared.overflowed.is_empty() {
            self.overflow();
        }
        if !self.shared.woken.is_empty() {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&mut self) {
        while let Some(qp) = self.shared.woken.pop() {
            if let Some(conn) = self.qps.get(qp.0).and_then(|queue_pair| queue_pair.conn) {
                self.wake(conn);
            }
        }
    }

    #[cold]
    fn overflow(&mut self) {
        while let Some(cq) = self.shared.overflowed.pop() {
            let uses = |qp: &&mut QueuePair| qp.options.send_cq == cq || qp.options.recv_cq == cq;
            let numbers: Vec<Qp> = self.qps.iter_mut().filter(uses).map(|qp| qp.number).collect();
            for qp in numbers {
                self.abort(qp, &Fault::own(Cause::LOCAL));
            }
        }
    }
}
