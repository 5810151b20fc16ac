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

mod objects;
mod pairs;
pub(crate) mod poll;

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::rdma::event::Event;
use crate::rdma::ids::{Conn, Qp};
use crate::rdma::iwarp::connection::Connection;
use crate::rdma::iwarp::error::Fault;
use crate::rdma::mr::Regions;
use crate::rdma::options::RnicOptions;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::unexpected::UnexpectedPool;
use crate::rdma::shared::Shared;
use crate::rdma::table::Table;
use crate::wire::rdmap::Cause;
use crate::{Instant, Rng};

/// Queue pairs' numbers have 24 bits, since programs send them about in fields of that size.
const QP_BITS: u32 = 24;

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
    pub fn new(config: RnicOptions, rng: Rng) -> Self {
        let unexpected = UnexpectedPool::new(config.max_unexpected);
        let shared = Shared {
            mr: Regions::new(rng, config.max_pds, config.max_tags),
            config,
            cqs: Table::new(),
            srqs: Table::new(),
            events: VecDeque::new(),
            overflowed: Vec::new(),
            woken: Vec::new(),
            unexpected,
            ack_timers: VecDeque::new(),
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
    pub const fn set_time(&mut self, now: Instant) {
        self.shared.now = now;
    }

    /// What happened, the oldest first.
    pub fn event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
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
