//! The RDMA engine: the owner of all objects.
//!
//! ```text
//!  Rnic ─┬─ shared ─┬─ mr       protection domains, regions, windows
//!        │          ├─ cqs      completion queues
//!        │          ├─ srqs     shared receive queues
//!        │          └─ events   pending events
//!        ├─ qps     queue pairs ◄─┐ each has the other's number
//!        └─ conns   streams      ◄┘
//! ```
//!
//! `objects` has the calls for memory and queues, `pairs` those for queue pairs, and `poll` those
//! for deferred completions. The calls for streams lie with the wire, in `iwarp::conn` and
//! `iwarp::io`.
//!
//! Invariants: a number that was given back names nothing; an object in use is not destroyed; no
//! call waits, and no call calls back.
//!
//! Not here: memory, sockets, clocks.

mod objects;
mod pairs;
pub(crate) mod poll;

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::rdma::event::Event;
use crate::rdma::ids::{Conn, Qp};
use crate::rdma::iwarp::connection::Connection;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::mr::Regions;
use crate::rdma::options::RnicOptions;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::unexpected::UnexpectedPool;
use crate::rdma::shared::Shared;
use crate::rdma::table::Table;
use crate::wire::rdmap::Cause;
use crate::{Instant, Rng};

/// The number of bits in a queue pair's number. It is 24, since programs send such numbers in
/// fields of that size.
const QP_BITS: u32 = 24;

/// A software iWARP engine. The [module](crate::rdma) describes it.
#[derive(Debug)]
pub struct Rnic {
    pub(in crate::rdma) shared: Shared,
    pub(in crate::rdma) qps: Table<QueuePair, QP_BITS>,
    pub(in crate::rdma) conns: Table<Connection, 32>,
    /// The engine's streams with something to send, each once.
    pub(in crate::rdma) ready: VecDeque<Conn>,
    /// The deadlines of streams. An entry counts only while it is one of its stream's deadlines.
    pub(in crate::rdma) timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// A buffer of the engine for a copy of received payload without its markers.
    pub(in crate::rdma) scratch: Vec<u8>,
}

impl Rnic {
    /// Creates an engine without objects. `rng` makes its steering tags unpredictable.
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

    /// Sets the engine's time for the calls that take none, such as posting and [`Rnic::sent`].
    #[inline]
    pub const fn set_time(&mut self, now: Instant) {
        self.shared.now = now;
    }

    /// Takes the oldest event of the engine.
    pub fn event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// Puts the queue pairs of overflowed completion queues in error, and asks woken streams for
    /// output.
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
                self.abort(qp, &StreamError::own(Cause::LOCAL));
            }
        }
    }
}
