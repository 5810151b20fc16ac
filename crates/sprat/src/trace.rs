//! The time of an RPC by layer: tracepoints with the processor's counter at the borders of the
//! layers, in a ring that is read afterwards.
//!
//! ```text
//!  caller   Start ········ Request                                           Done ········ End
//!  transport               └──────── ·                          · ──────────┘
//!  IP                                └─ ·                    · ─┘
//!  driver                               └ Send, Sent   Receive ┘        the server: from Receive
//!                                               └ away ┘                by Serve and Answer to Sent
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

/// Marks that a ring holds, the last ones: those of some hundred requests at least. They are gone
/// over at each turn of the ring, so that a longer one would push more out of the cache.
const ROOM: usize = 16 << 10;

/// The event at a tracepoint, which decides the layer that the time from there on belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Step {
    /// A program begins an operation. Caller.
    Start,
    /// The transport was given a request, by the number that both ends know it by. Transport.
    Request,
    /// A service is given a request. Service.
    Serve,
    /// The transport was given its reply. Transport.
    Answer,
    /// The caller gets its reply. Caller.
    Done,
    /// The operation has ended. No layer.
    End,
    /// The last packet of a request or reply was given to the driver: no border, and no time of its
    /// own.
    Given,
    /// The IP layer was called, or goes on. IP.
    Ip,
    /// The IP layer has ended. Transport.
    Transport,
    /// The driver was given a packet. Driver.
    Send,
    /// The driver sends its waiting packets. Driver.
    Flush,
    /// The driver has done so; IP goes on.
    SentIp,
    /// The driver has done so; the transport goes on.
    Sent,
    /// The driver began to look for what has arrived, and found something. Driver.
    Receive,
    /// It has it; IP goes on.
    ReceivedIp,
    /// It has it; the transport goes on.
    Received,
}

const STEPS: [Step; 16] = [
    Step::Start,
    Step::Request,
    Step::Serve,
    Step::Answer,
    Step::Done,
    Step::End,
    Step::Given,
    Step::Ip,
    Step::Transport,
    Step::Send,
    Step::Flush,
    Step::SentIp,
    Step::Sent,
    Step::Receive,
    Step::ReceivedIp,
    Step::Received,
];

/// One tracepoint that was passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The time in the clock's ticks.
    pub at: u64,
    /// The event.
    pub step: Step,
    /// Which request, where the step is about one: the lower 60 bits of its number.
    pub rpc: u64,
}

/// A ring of passed tracepoints. A clone shares the ring. One thread writes it.
#[derive(Clone)]
pub struct Marks {
    ring: Arc<Ring>,
    clock: Clock,
}

struct Ring {
    /// Tracepoints passed, ever.
    next: AtomicU64,
    marks: Box<[[AtomicU64; 2]]>,
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Marks({})", self.count())
    }
}

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}

impl Marks {
    /// An empty ring.
    #[must_use]
    pub fn new() -> Self {
        let marks = std::iter::repeat_with(Default::default).take(ROOM).collect();
        Self { ring: Arc::new(Ring { next: AtomicU64::new(0), marks }), clock: Clock::new() }
    }

    /// The clock whose ticks they have.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// An operation of the program begins.
    pub fn start(&self) {
        self.now(Step::Start, 0);
    }

    /// An operation of the IP layer itself begins: an echo request.
    pub fn begin_echo(&self) {
        self.start();
        self.now(Step::Ip, 0);
    }

    /// It has ended.
    pub fn end(&self) {
        self.now(Step::End, 0);
    }

    /// Tracepoints passed, ever.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ring.next.load(Ordering::Relaxed)
    }

    /// Those after the first `count` of all, the last ones only if there have been too many since.
    #[must_use]
    pub fn since(&self, count: u64) -> Vec<Mark> {
        let next = self.count();
        let first = count.max(next.saturating_sub(ROOM as u64));
        (first..next).map(|n| self.mark_at(n)).collect()
    }

    fn mark_at(&self, n: u64) -> Mark {
        let [at, what] = &self.ring.marks[n as usize % ROOM];
        let what = what.load(Ordering::Relaxed);
        Mark {
            at: at.load(Ordering::Relaxed),
            step: STEPS[what as usize % STEPS.len()],
            rpc: what >> 4,
        }
    }

    /// The cost of one tracepoint in ticks: the median of many.
    #[must_use]
    pub fn cost(&self) -> f64 {
        const EACH: u32 = 100;
        let marks = Self::new();
        let mut all: Vec<u64> = (0..201)
            .map(|_| {
                let begin = self.clock.ticks();
                (0..EACH).for_each(|_| marks.now(Step::Ip, 0));
                self.clock.ticks().saturating_sub(begin)
            })
            .collect();
        all.sort_unstable();
        all[all.len() / 2] as f64 / f64::from(EACH)
    }

    /// The clock's present ticks, for a tracepoint that is recorded later.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        self.clock.ticks()
    }

    #[inline]
    pub(crate) fn now(&self, step: Step, rpc: u64) {
        self.at(self.clock.ticks(), step, rpc);
    }

    #[inline]
    pub(crate) fn at(&self, at: u64, step: Step, rpc: u64) {
        let n = self.count();
        let [when, what] = &self.ring.marks[n as usize % ROOM];
        when.store(at, Ordering::Relaxed);
        what.store(rpc << 4 | step as u64, Ordering::Relaxed);
        self.ring.next.store(n + 1, Ordering::Relaxed);
    }
}

impl Probe for Marks {
    #[inline]
    fn hit(&mut self, tracepoint: Tracepoint, rpc: u64) {
        match tracepoint {
            Tracepoint::ClientRequest => self.now(Step::Request, rpc),
            Tracepoint::ServiceStart => self.now(Step::Serve, rpc),
            Tracepoint::ServiceEnd => self.now(Step::Answer, rpc),
            Tracepoint::ClientDone => self.now(Step::Done, rpc),
            Tracepoint::ClientSent | Tracepoint::ServerSent => self.at(0, Step::Given, rpc),
            // Neither is a border: the transport has it before and after.
            _ => {}
        }
    }
}
