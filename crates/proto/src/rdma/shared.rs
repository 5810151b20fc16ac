//! What every queue pair reaches.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::completion::Completion;
use crate::rdma::cq::{CompletionQueue, Pushed};
use crate::rdma::event::Event;
use crate::rdma::ids::{Cq, Qp, Srq};
use crate::rdma::mr::Regions;
use crate::rdma::options::RnicOptions;
use crate::rdma::qp::unexpected::UnexpectedPool;
use crate::rdma::srq::SharedReceiveQueue;
use crate::rdma::table::Table;
use crate::rdma::work::RecvRequest;

/// What every queue pair reaches.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RnicOptions,
    pub(crate) mr: Regions,
    pub(crate) cqs: Table<CompletionQueue, 32>,
    pub(crate) srqs: Table<SharedReceiveQueue, 32>,
    pub(crate) events: VecDeque<Event>,
    /// Completion queues that have overflowed and whose queue pairs do not know it yet.
    pub(crate) overflowed: Vec<Cq>,
    /// Queue pairs whose streams are to be asked for output: what they waited for may be there.
    pub(crate) woken: Vec<Qp>,
    pub(crate) unexpected: UnexpectedPool,
    /// Answers that wait for an own message of their queue pair, and when they go by themselves; some may have gone.
    pub(crate) ack_timers: VecDeque<(Instant, Qp)>,
    /// The last time handed in.
    pub(crate) now: Instant,
}

impl Shared {
    /// Puts a completion.
    #[inline]
    pub(crate) fn complete(&mut self, cq: Cq, completion: Completion, solicited: bool) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        match queue.push(completion, solicited) {
            Pushed::UnexpectedMessage | Pushed::Lost => {}
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
    pub(crate) fn wait_for_srq(&mut self, srq: Srq, qp: Qp) {
        if let Some(queue) = self.srqs.get_mut(srq.0) {
            queue.unexpected.push_back(qp);
        }
    }

    /// It has none any more; the next one may have what is left.
    pub(crate) fn stop_waiting_for_srq(&mut self, srq: Srq, qp: Qp) {
        let Some(queue) = self.srqs.get_mut(srq.0) else { return };
        queue.unexpected.retain(|other| *other != qp);
        if !queue.waiting.is_empty() {
            self.woken.extend(queue.unexpected.front());
        }
    }

    /// Messages are kept no longer; who was read no further for want of room is asked again.
    pub(crate) fn release_unexpected(&mut self, messages: usize, bytes: usize) {
        self.unexpected.messages -= messages;
        self.unexpected.bytes -= bytes;
        if !self.unexpected.is_short() {
            self.woken.append(&mut self.unexpected.stalled);
        }
    }
}
