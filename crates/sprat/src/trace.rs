//! The time of an RPC by layer: tracepoints with the processor's counter at the borders of the
//! layers, in a ring that is read afterwards.
//!
//! ```text
//!  caller   Start ········ Request                                      Done ········ End
//!  transport               └────── ·                          · ────────┘
//!  IP                              └─ ·                    · ─┘
//!  driver                             └ Send, Sent   Receive ┘      the server: from Receive
//!                                             └ away ┘              by Serve and Answer to Sent
//! ```
//!
//! All time from one tracepoint to the next belongs to one layer, so that the parts of a round trip
//! add up to the whole. The tracepoints of the transport are those of [`sprat_proto::tracepoint`].
//! Wrappers (`watch`) trace drivers and devices. They exist only in a process that traces, so that
//! tracing costs nothing elsewhere. [`mod@sample`] computes from the tracepoints what a request
//! cost each side, and from both sides a whole round trip.
//!
//! Always holds: one thread traces. A poll is traced only if it found something.
//!
//! Not here: output (`sprat bench breakdown`, `sprat ping`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_proto::tracepoint::{Probe, Tracepoint};

use sprat_sys::clock::Clock;

pub mod sample;
pub(crate) mod watch;

#[cfg(test)]
mod tests;

/// The number of records that a ring has room for: those of some hundred requests at least. A
/// longer ring would displace more of the cache.
const ROOM: usize = 16 << 10;

/// The event at a tracepoint, which decides the layer that the time from there on belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TraceEvent {
    /// A program begins an operation. The caller's time begins.
    Start,
    /// The transport gets a request, with the number that both ends know. The transport's time
    /// begins.
    Request,
    /// A service gets a request. The service's time begins.
    Serve,
    /// The transport gets the service's reply. The transport's time begins.
    Answer,
    /// The caller gets the reply. The caller's time begins.
    Done,
    /// The operation has ended. The time from here on belongs to no layer.
    End,
    /// The driver got the last packet of a request or reply. No layer's time begins here.
    Given,
    /// The IP layer is called, or goes on. Its time begins.
    Ip,
    /// The IP layer returns. The transport's time begins.
    Transport,
    /// The driver gets a packet. Its time begins.
    Send,
    /// The driver sends its waiting packets. Its time begins.
    Flush,
    /// The driver has sent, and IP goes on.
    SentIp,
    /// The driver has sent, and the transport goes on.
    Sent,
    /// The driver began a poll that found packets. Its time begins.
    Receive,
    /// The driver has received packets, and IP goes on.
    ReceivedIp,
    /// The driver has received packets, and the transport goes on.
    Received,
}

const EVENTS: [TraceEvent; 16] = [
    TraceEvent::Start,
    TraceEvent::Request,
    TraceEvent::Serve,
    TraceEvent::Answer,
    TraceEvent::Done,
    TraceEvent::End,
    TraceEvent::Given,
    TraceEvent::Ip,
    TraceEvent::Transport,
    TraceEvent::Send,
    TraceEvent::Flush,
    TraceEvent::SentIp,
    TraceEvent::Sent,
    TraceEvent::Receive,
    TraceEvent::ReceivedIp,
    TraceEvent::Received,
];

/// The record of a tracepoint that a thread has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRecord {
    /// The time of the tracepoint, in ticks of the clock.
    pub at: u64,
    /// The event at the tracepoint.
    pub kind: TraceEvent,
    /// The lower 60 bits of the request's number, if the tracepoint belongs to a request.
    pub rpc: u64,
}

/// A ring of tracepoint records. A clone shares the ring. One thread writes it.
#[derive(Clone)]
pub struct TraceRing {
    ring: Arc<Ring>,
    clock: Clock,
}

struct Ring {
    /// Number of tracepoints passed since the ring was made.
    next: AtomicU64,
    records: Box<[[AtomicU64; 2]]>,
}

impl fmt::Debug for TraceRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceRing({})", self.count())
    }
}

impl Default for TraceRing {
    fn default() -> Self {
        Self::new()
    }
}

impl TraceRing {
    /// Makes an empty ring of tracepoint records.
    #[must_use]
    pub fn new() -> Self {
        let records = std::iter::repeat_with(Default::default).take(ROOM).collect();
        Self { ring: Arc::new(Ring { next: AtomicU64::new(0), records }), clock: Clock::new() }
    }

    /// Returns the clock in whose ticks the records have their times.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Records that an operation of the program begins.
    pub fn start(&self) {
        self.now(TraceEvent::Start, 0);
    }

    /// Records that an operation of the IP layer begins: an echo request.
    pub fn begin_echo(&self) {
        self.start();
        self.now(TraceEvent::Ip, 0);
    }

    /// Records that the traced operation has ended.
    pub fn end(&self) {
        self.now(TraceEvent::End, 0);
    }

    /// Returns the number of tracepoints passed since the ring was made.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ring.next.load(Ordering::Relaxed)
    }

    /// Returns the records after the first `count` of all. If the ring has overwritten some of
    /// them, it returns the last ones.
    #[must_use]
    pub fn since(&self, count: u64) -> Vec<TraceRecord> {
        let next = self.count();
        let first = count.max(next.saturating_sub(ROOM as u64));
        (first..next).map(|n| self.record_at(n)).collect()
    }

    fn record_at(&self, n: u64) -> TraceRecord {
        let [at, what] = &self.ring.records[n as usize % ROOM];
        let what = what.load(Ordering::Relaxed);
        TraceRecord {
            at: at.load(Ordering::Relaxed),
            kind: EVENTS[what as usize % EVENTS.len()],
            rpc: what >> 4,
        }
    }

    /// Measures the cost of one tracepoint in ticks: the median of many.
    #[must_use]
    pub fn cost(&self) -> f64 {
        const EACH: u32 = 100;
        let trace = Self::new();
        let mut all: Vec<u64> = (0..201)
            .map(|_| {
                let begin = self.clock.ticks();
                (0..EACH).for_each(|_| trace.now(TraceEvent::Ip, 0));
                self.clock.ticks().saturating_sub(begin)
            })
            .collect();
        all.sort_unstable();
        all[all.len() / 2] as f64 / f64::from(EACH)
    }

    /// Returns the clock's present ticks, for a tracepoint that is recorded later.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        self.clock.ticks()
    }

    #[inline]
    pub(crate) fn now(&self, kind: TraceEvent, rpc: u64) {
        self.at(self.clock.ticks(), kind, rpc);
    }

    #[inline]
    pub(crate) fn at(&self, at: u64, kind: TraceEvent, rpc: u64) {
        let n = self.count();
        let [when, what] = &self.ring.records[n as usize % ROOM];
        when.store(at, Ordering::Relaxed);
        what.store(rpc << 4 | kind as u64, Ordering::Relaxed);
        self.ring.next.store(n + 1, Ordering::Relaxed);
    }
}

impl Probe for TraceRing {
    #[inline]
    fn hit(&mut self, tracepoint: Tracepoint, rpc: u64) {
        match tracepoint {
            Tracepoint::ClientRequest => self.now(TraceEvent::Request, rpc),
            Tracepoint::ServiceStart => self.now(TraceEvent::Serve, rpc),
            Tracepoint::ServiceEnd => self.now(TraceEvent::Answer, rpc),
            Tracepoint::ClientDone => self.now(TraceEvent::Done, rpc),
            Tracepoint::ClientSent | Tracepoint::ServerSent => self.at(0, TraceEvent::Given, rpc),
            // Neither is a border: the transport has it before and after.
            _ => {}
        }
    }
}
