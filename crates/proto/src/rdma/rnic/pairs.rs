//! The doors to queue pairs.

use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::error::PostError;
use crate::rdma::ids::{Cq, Qp, Srq};
use crate::rdma::mr::Rights;
use crate::rdma::options::{QpOptions, QpState};
use crate::rdma::qp::QueuePair;
use crate::rdma::rnic::Rnic;
use crate::rdma::work::{MAX_INLINE, MAX_SGE, RecvRequest, SendRequest};

impl Rnic {
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
        queue_pair.drop_unexpected(&mut self.shared);
        if let Some(conn) = queue_pair.conn {
            self.release_destroyed(conn, queue_pair.iwarp.acks.last_words(true));
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
            self.end_after_framed(conn);
        }
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.fail(&mut self.shared);
        }
        self.settle();
        Ok(())
    }

    /// Whether a success of this queue pair waits to be fetched from a completion queue.
    #[must_use]
    pub fn has_success(&self, qp: Qp) -> bool {
        let Some(options) = self.qps.get(qp.0).map(|pair| pair.options) else { return false };
        let queues = [options.send_cq, options.recv_cq];
        queues.iter().any(|cq| self.shared.cqs.get(cq.0).is_some_and(|queue| queue.has_success(qp)))
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
        let final_ack = queue_pair.iwarp.acks.last_words(true);
        if let Some(conn) = conn {
            self.release_destroyed(conn, final_ack);
        }
        self.shared.mr.release_qp(qp);
        for cq in [options.send_cq, options.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.0) {
                queue.forget(qp);
            }
        }
        if let Some(queue_pair) = self.qps.get_mut(qp.0) {
            queue_pair.drop_unexpected(&mut self.shared);
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
}
