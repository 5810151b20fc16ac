//! The guard ([`Threading::Guard`](super::Threading)): the device's own thread where the program makes progress itself. It
//! does what comes while nobody of the program does, and keeps out of the way else.
//!
//! ```text
//!   somebody of the program polls ─► it naps, for 50 µs at first and for 1 ms at last, and looks at a counter
//!   somebody sleeps on the sockets ─► it sleeps until he is back, who has something to do then
//!   nobody does either ────────────► it takes a turn and sleeps on the sockets
//! ```
//!
//! Always holds: it never polls; beside somebody who polls it touches neither the lock nor a socket. What is lost: after the
//! program has turned away, up to a millisecond passes before what comes is done.

use std::sync::atomic::Ordering;
use std::thread::{self, Thread};
use std::time::Duration;

use sprat_proto::time::{MS, US};

use super::core::Watch;
use super::shared::{FOLLOWER_SLEEP_NS, Shared};

/// The first nap and the longest one.
const FIRST_NAP_NS: u64 = 50 * US;
const LONGEST_NAP_NS: u64 = MS;
/// Who polls takes so many turns at least,
const ENOUGH: u64 = 4;
/// and one in so long a time, even on half a processor.
const TURN_NS: u64 = 4 * US;

/// So often his turns are looked at where he has taken few since the last look: for some microseconds, in which one who polls takes
/// several.
const LOOKS: u32 = 128;

/// What the thread remembers.
struct Guard {
    /// The program's turns at the last look.
    taken: u64,
    nap_ns: u64,
    /// He who slept on the sockets is back, and has begun to do something.
    called: bool,
}

impl Shared {
    /// What the thread does, until it is told to stop.
    pub(super) fn guard(&self) {
        let _ = self.guarding.set(thread::current());
        let mut me = Guard { taken: 0, nap_ns: FIRST_NAP_NS, called: false };
        while self.look_after(&mut me) {}
    }

    /// Has it look at once, if it sleeps beside the program.
    pub(super) fn call_guard(&self) {
        if let Some(thread) = self.guarding.get() {
            Thread::unpark(thread);
        }
    }

    fn look_after(&self, me: &mut Guard) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        let turns = taken.wrapping_sub(std::mem::replace(&mut me.taken, taken));
        let deserted = self.deserted.swap(false, Ordering::Relaxed);
        let polled = turns >= ENOUGH.max(me.nap_ns / TURN_NS)
            || self.waiting.load(Ordering::Relaxed) > 0
            || (turns > 0 && self.is_polled_now(taken));
        if (polled || std::mem::take(&mut me.called)) && !deserted {
            self.nap(me);
            return true;
        }
        // Who keeps the lock makes progress.
        let Some(mut core) = self.lock_perhaps() else {
            self.nap(me);
            return true;
        };
        if core.stop {
            return false;
        }
        if !core.may_watch() {
            if turns > 0 {
                drop(core);
                self.nap(me);
                return true;
            }
            core.follows = true;
            drop(core);
            thread::park_timeout(Duration::from_nanos(FOLLOWER_SLEEP_NS));
            (me.called, me.nap_ns) = (true, FIRST_NAP_NS);
            return true;
        }
        (me.nap_ns, core.watch) = (FIRST_NAP_NS, Watch::Nobody);
        if core.turn() {
            core.counters.thread_turns += 1;
            self.announce(&core);
        }
        if core.doze() {
            let due = core.deadline();
            core.watch = Watch::Guard(due);
            core.rung.set(false);
            drop(core);
            // The lock is not taken just to say that it is awake again: somebody may keep it.
            let _ = self.sleep_on(due, self.bell());
        }
        true
    }

    /// True if somebody takes turns at this moment. What comes wakes this thread for each message where it sleeps on the
    /// sockets, and then there is little time between two looks for turns to add up in.
    fn is_polled_now(&self, taken: u64) -> bool {
        (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            self.taken.load(Ordering::Relaxed) != taken
        })
    }

    fn nap(&self, me: &mut Guard) {
        thread::park_timeout(Duration::from_nanos(me.nap_ns));
        me.nap_ns = LONGEST_NAP_NS.min(2 * me.nap_ns);
    }
}
