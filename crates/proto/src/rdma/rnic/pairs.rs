//! Calls of the engine for queue pairs: to create, post, reset and destroy them.

use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::error::PostError;
use crate::rdma::ids::{Conn, Cq, Qp, Srq};
use crate::rdma::iwarp::connection::Phase;
use crate::rdma::mr::Rights;
use crate::rdma::options::{QpOptions, QpState};
use crate::rdma::qp::QueuePair;
use crate::rdma::rnic::Rnic;
use crate::rdma::work::{MAX_INLINE, MAX_SGE, RecvRequest, SendRequest};

/// The most streams whose output waits for posts: a program with more has others to look after.
const MOST_WAITING: usize = 8;

impl Rnic {
    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if the domain or a queue does not exist, or the shared receive queue
    /// is in another domain; [`PostError::TooManyElements`], [`PostError::Inline`] or
    /// [`PostError::NoRoom`] if an option is above its limit.
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
        shared.mr.add_pd_user(options.pd)?;
        let Some(qp) = self.qps.insert(|number| QueuePair::new(Qp(number), options)) else {
            shared.mr.remove_pd_user(options.pd);
            return Err(PostError::NoRoom);
        };
        for cq in [options.send_cq, options.recv_cq] {
            if let Some(queue) = shared.cqs.get_mut(cq.0) {
                queue.add_user();
            }
        }
        if let Some(queue) = options.srq.and_then(|srq| shared.srqs.get_mut(srq.0)) {
            queue.users += 1;
        }
        Ok(Qp(qp))
    }

    /// Destroys a queue pair and its connection. Its posted requests leave no completion, and its
    /// completions are removed from their queues, as hardware does: programs free the data behind a
    /// request's `id` as soon as they have destroyed the queue pair.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn destroy_qp(&mut self, qp: Qp) -> Result<(), PostError> {
        let mut queue_pair = self.qps.remove(qp.0).ok_or(PostError::Invalid)?;
        queue_pair.drop_unexpected(&mut self.shared);
        if let Some(conn) = queue_pair.conn {
            self.release_destroyed(conn, queue_pair.iwarp.acks.final_ack(true));
        }
        let options = queue_pair.options;
        for cq in [options.send_cq, options.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.0) {
                queue.remove_of(qp);
                queue.remove_user();
            }
        }
        if let Some(queue) = options.srq.and_then(|srq| self.shared.srqs.get_mut(srq.0)) {
            queue.users = queue.users.saturating_sub(1);
        }
        self.shared.mr.release_qp(qp);
        self.shared.mr.remove_pd_user(options.pd);
        self.settle();
        Ok(())
    }

    /// Puts a queue pair in error: its posted requests complete as flushed, and its connection ends
    /// after the bytes that are already framed.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn fail_qp(&mut self, now: Instant, qp: Qp) -> Result<(), PostError> {
        self.shared.now = now;
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        if let Some(conn) = queue_pair.conn {
            self.end_after_framed(conn);
        }
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.fail(&mut self.shared);
        }
        self.settle();
        Ok(())
    }

    /// True if a completion queue has a successful completion of this queue pair.
    #[must_use]
    pub fn has_success(&self, qp: Qp) -> bool {
        let Some(options) = self.qps.get(qp.0).map(|pair| pair.options) else { return false };
        let queues = [options.send_cq, options.recv_cq];
        queues.iter().any(|cq| self.shared.cqs.get(cq.0).is_some_and(|queue| queue.has_success(qp)))
    }

    /// Resets a queue pair to its state after creation and ends its connection. Its posted requests
    /// leave no completion, and its completions are removed from their queues.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn reset_qp(&mut self, now: Instant, qp: Qp) -> Result<(), PostError> {
        self.shared.now = now;
        let queue_pair = self.qps.get(qp.0).ok_or(PostError::Invalid)?;
        let (conn, options) = (queue_pair.conn, queue_pair.options);
        let final_ack = queue_pair.iwarp.acks.final_ack(true);
        if let Some(conn) = conn {
            self.release_destroyed(conn, final_ack);
        }
        self.shared.mr.release_qp(qp);
        for cq in [options.send_cq, options.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.0) {
                queue.remove_of(qp);
            }
        }
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.drop_unexpected(&mut self.shared);
            *queue_pair = QueuePair::new(qp, options);
        }
        self.settle();
        Ok(())
    }

    /// Sets the accesses that a queue pair allows its peer under any tag. A new or reset queue pair
    /// allows all.
    ///
    /// # Errors
    /// [`PostError::Invalid`].
    pub fn allow(&mut self, qp: Qp, rights: Rights) -> Result<(), PostError> {
        self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?.rights = rights;
        Ok(())
    }

    /// The state of a queue pair, or `None` if there is no such queue pair.
    #[must_use]
    pub fn state(&self, qp: Qp) -> Option<QpState> {
        self.qps.get(qp.0).map(|qp| qp.state)
    }

    /// The options of a queue pair, or `None` if there is no such queue pair.
    #[must_use]
    pub fn options(&self, qp: Qp) -> Option<QpOptions> {
        self.qps.get(qp.0).map(|qp| qp.options)
    }

    /// Posts a work request to the send queue. The request waits during start-up. If the queue pair
    /// is in error, it completes as flushed.
    ///
    /// # Errors
    /// A [`PostError`]; the request is not posted.
    pub fn post_send(&mut self, qp: Qp, request: SendRequest) -> Result<(), PostError> {
        let queue_pair = self.qps.get_mut(qp.0).ok_or(PostError::Invalid)?;
        queue_pair.post_send(request, &mut self.shared)?;
        if let Some(conn) = queue_pair.conn {
            self.wake(conn);
        }
        self.settle();
        Ok(())
    }

    /// True if all that is to be sent may wait for more posts: long messages of queue pairs in the
    /// middle of a stream of them. [`Rnic::output`] sends them whenever the caller asks.
    #[inline]
    #[must_use]
    pub fn may_wait_for_posts(&self) -> bool {
        !self.ready.is_empty()
            && self.ready.len() <= MOST_WAITING
            && self.ready.iter().all(|conn| self.is_streaming(*conn))
    }

    fn is_streaming(&self, conn: Conn) -> bool {
        let Some(connection) = self.conns.get(conn.0) else { return false };
        let Some(pair) = connection.qp.and_then(|qp| self.qps.get(qp.0)) else { return false };
        let uncollected = self.shared.cqs.get(pair.options.send_cq.0).map_or(0, |cq| cq.len());
        matches!(connection.phase, Phase::Open)
            && connection.frame.is_empty()
            && pair.iwarp.owes_nothing()
            && pair.send.may_wait_for_posts(uncollected)
    }

    /// Posts all of the requests to the send queue, or none. Posted requests are drained from
    /// `requests`.
    ///
    /// # Errors
    /// The [`PostError`] of the first request that cannot be posted; no request is posted.
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

    /// Posts a receive to the receive queue. If the queue pair is in error, the receive completes
    /// as flushed.
    ///
    /// # Errors
    /// A [`PostError`]; the request is not posted. [`PostError::Invalid`] also if the queue pair
    /// has a shared receive queue.
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
}
