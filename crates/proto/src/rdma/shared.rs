//! The part of an engine that every queue pair uses: options, registered memory, completion queues,
//! shared receive queues and pending events.

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

/// The part of an RDMA engine that every queue pair uses.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RnicOptions,
    pub(crate) mr: Regions,
    pub(crate) cqs: Table<CompletionQueue, 32>,
    pub(crate) srqs: Table<SharedReceiveQueue, 32>,
    pub(crate) events: VecDeque<Event>,
    /// Completion queues that have overflowed and whose queue pairs are not yet in error.
    pub(crate) overflowed: Vec<Cq>,
    /// Queue pairs whose streams must be asked for output, since they may have more to send.
    pub(crate) woken: Vec<Qp>,
    pub(crate) unexpected: UnexpectedPool,
    /// The deadlines of pending acknowledgements that wait for an own message to follow. An entry
    /// may be outdated.
    pub(crate) ack_timers: VecDeque<(Instant, Qp)>,
    /// The time of the last call of the engine.
    pub(crate) now: Instant,
}

impl Shared {
    /// Pushes a completion to its queue and reports the events that follow from it.
    #[inline]
    pub(crate) fn complete(&mut self, cq: Cq, completion: Completion, solicited: bool) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        match queue.push(completion, solicited) {
            Pushed::Queued | Pushed::Lost => {}
            Pushed::Notify => self.events.push_back(Event::CqReady(cq)),
            Pushed::Overflowed => {
                self.events.push_back(Event::CqOverflow(cq));
                self.overflowed.push(cq);
            }
        }
    }

    /// Returns a completion queue.
    #[inline]
    pub(crate) fn cq(&mut self, cq: Cq) -> Option<&mut CompletionQueue> {
        self.cqs.get_mut(cq.0)
    }

    /// The number of receives in a shared receive queue.
    pub(crate) fn srq_len(&self, srq: Srq) -> usize {
        self.srqs.get(srq.0).map_or(0, |queue| queue.waiting.len())
    }

    /// Takes a receive from a shared receive queue.
    pub(crate) fn take_srq(&mut self, srq: Srq) -> Option<RecvRequest> {
        let queue = self.srqs.get_mut(srq.0)?;
        let request = queue.waiting.pop_front()?;
        if (queue.waiting.len() as u32) < queue.limit {
            queue.limit = 0;
            self.events.push_back(Event::SrqLimit(srq));
        }
        Some(request)
    }

    /// Adds a queue pair to those that wait for receives of a shared receive queue.
    pub(crate) fn wait_for_srq(&mut self, srq: Srq, qp: Qp) {
        if let Some(queue) = self.srqs.get_mut(srq.0) {
            queue.unexpected.push_back(qp);
        }
    }

    /// Removes a queue pair from those that wait for receives of a shared receive queue. The next
    /// of them may take the receives that are left.
    pub(crate) fn stop_waiting_for_srq(&mut self, srq: Srq, qp: Qp) {
        let Some(queue) = self.srqs.get_mut(srq.0) else { return };
        queue.unexpected.retain(|other| *other != qp);
        if !queue.waiting.is_empty() {
            self.woken.extend(queue.unexpected.front());
        }
    }

    /// Frees the memory of unexpected messages, and wakes the streams that stalled for want of
    /// room.
    pub(crate) fn release_unexpected(&mut self, messages: usize, bytes: usize) {
        self.unexpected.messages -= messages;
        self.unexpected.bytes -= bytes;
        if !self.unexpected.is_short() {
            self.woken.append(&mut self.unexpected.stalled);
        }
    }
}
