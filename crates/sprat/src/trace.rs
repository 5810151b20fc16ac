//! Where the time of an RPC goes: marks with the processor's counter at the borders of the layers, in a ring that the one who
//! asked for them reads afterwards.
//!
//! ```text
//!  caller   Start ········ Request                                           Done ········ End
//!  transport               └──────── ·                          · ──────────┘
//!  IP                                └─ ·                    · ─┘
//!  driver                               └ Send, Sent   Receive ┘                      the server: from Receive by way of
//!                                               └ away ┘                              Serve and Answer to Sent
//! ```
//! From one mark to the next all time belongs to one layer, so that the parts of a way add up to the whole of it. The marks of
//! the transport are those of [`sprat_proto::tracepoint`]; drivers and devices get theirs by a wrapper (`watch`), which is there
//! only where marks were asked for: where none were, there is nothing that could cost anything. [`mod@sample`] makes of the
//! marks what a request cost each side, and of both sides a whole round trip.
//!
//! Always: who marks is one thread. A look for what has arrived is marked only if it found something.
//!
//! Not here: how they are shown (`sprat bench breakdown`, `sprat ping`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_proto::tracepoint::{Probe, Tracepoint};

use sprat_sys::clock::Clock;

pub mod sample;
pub(crate) mod watch;

#[cfg(test)]
mod tests;

/// Marks that a ring holds, the last ones: those of some hundred requests at least. They are gone over at each turn of the
/// ring, so that a longer one would push more out of the cache.
const ROOM: usize = 16 << 10;

/// What happened at a mark, and so which layer the time belongs to from there on.
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
    /// A caller is given his reply. Caller.
    Done,
    /// The operation has ended. Nobody.
    End,
    /// The last packet of a request or reply was given to the driver: no border, and no time of its own.
    Given,
    /// The IP layer was called, or goes on. IP.
    Ip,
    /// The IP layer has ended. Transport.
    Transport,
    /// The driver was given a packet. Driver.
    Send,
    /// The driver was told to let what it has go. Driver.
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

/// One mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// When, in the clock's ticks.
    pub at: u64,
    /// What.
    pub step: Step,
    /// Which request, where the step is about one: the lower 60 bits of its number.
    pub rpc: u64,
}

/// A ring of marks; copies share it. One thread marks.
#[derive(Clone)]
pub struct Marks {
    ring: Arc<Ring>,
    clock: Clock,
}

struct Ring {
    /// How many there have been.
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
    /// A ring without marks.
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

    /// How many there have been.
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

    /// What one mark takes, in ticks: the median of many.
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

    /// What the clock says, for a mark that is made later.
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
