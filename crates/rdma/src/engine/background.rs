//! The background thread ([`Threading::Background`](super::Threading)): the device's own thread
//! where the program makes progress itself. It handles received bytes while the program makes no
//! call.
//!
//! ```text
//!   the program polls ────────────────► the thread pauses, 50 µs to 1 ms, and reads a counter
//!   the program sleeps on the sockets ─► the thread sleeps until the program is awake
//!   neither ──────────────────────────► the thread takes a turn and sleeps on the sockets
//! ```
//!
//! Always holds: it never polls. While the program polls it touches neither the lock nor a socket.
//! The price: after the last poll of the program, up to a millisecond passes before received bytes
//! are handled.

use std::sync::atomic::Ordering;
use std::thread::{self, Thread};
use std::time::Duration;

use sprat_proto::time::{MS, US};

use super::core::Watch;
use super::shared::{FOLLOWER_SLEEP_NS, Shared};

/// The first pause of the background thread between two checks of the program's progress. Each
/// further pause doubles, up to `LONGEST_PAUSE_NS`.
const FIRST_PAUSE_NS: u64 = 50 * US;
const LONGEST_PAUSE_NS: u64 = MS;
/// The least number of turns that a polling program takes during one pause of the background
/// thread.
const ENOUGH: u64 = 4;
/// The longest time in which a polling program takes one turn, even on half a processor.
const TURN_NS: u64 = 4 * US;

/// The most reads of the program's counter of turns in one check, if the counter has moved little
/// since the last pause. They take some microseconds, in which a polling program takes several
/// turns.
const READS: u32 = 128;

/// The state of the background thread between two pauses.
struct Background {
    /// The number of the program's turns at the thread's last check.
    taken: u64,
    pause_ns: u64,
    /// True if the program's thread that slept on the sockets is awake, and has begun to do
    /// something.
    follows: bool,
}

impl Shared {
    /// Runs the background thread until the device closes.
    pub(super) fn run_in_background(&self) {
        let _ = self.background.set(thread::current());
        let mut me = Background { taken: 0, pause_ns: FIRST_PAUSE_NS, follows: false };
        while self.step(&mut me) {}
    }

    /// Makes the background thread check for work at once, if it sleeps while the program makes
    /// progress.
    pub(super) fn wake_background(&self) {
        if let Some(thread) = self.background.get() {
            Thread::unpark(thread);
        }
    }

    fn step(&self, me: &mut Background) -> bool {
        let taken = self.program_turns.load(Ordering::Relaxed);
        let turns = taken.wrapping_sub(std::mem::replace(&mut me.taken, taken));
        let poll_missed = self.poll_missed.swap(false, Ordering::Relaxed);
        let polled = turns >= ENOUGH.max(me.pause_ns / TURN_NS)
            || self.waiting.load(Ordering::Relaxed) > 0
            || (turns > 0 && self.is_polled_now(taken));
        if (polled || std::mem::take(&mut me.follows)) && !poll_missed {
            self.pause(me);
            return true;
        }
        // The thread that keeps the lock makes progress.
        let Some(mut core) = self.lock_or_give_up() else {
            self.pause(me);
            return true;
        };
        if core.stop {
            return false;
        }
        if !core.may_watch() {
            if turns > 0 {
                drop(core);
                self.pause(me);
                return true;
            }
            core.thread_follows = true;
            drop(core);
            thread::park_timeout(Duration::from_nanos(FOLLOWER_SLEEP_NS));
            (me.follows, me.pause_ns) = (true, FIRST_PAUSE_NS);
            return true;
        }
        (me.pause_ns, core.watch) = (FIRST_PAUSE_NS, Watch::Unwatched);
        if core.turn() {
            core.counters.thread_turns += 1;
            self.announce(&core);
        }
        if core.arm() {
            let due = core.deadline();
            core.watch = Watch::Background(due);
            core.background_woken.set(false);
            drop(core);
            // It does not take the lock to say that it is awake, since another thread may keep the
            // lock.
            let _ = self.sleep_on(due, self.wakeup());
        }
        true
    }

    /// True if the program takes turns at this moment. While the background thread sleeps on the
    /// sockets, each message wakes it, and few turns can add up between two checks.
    fn is_polled_now(&self, taken: u64) -> bool {
        (0..READS).any(|_| {
            std::hint::spin_loop();
            self.program_turns.load(Ordering::Relaxed) != taken
        })
    }

    fn pause(&self, me: &mut Background) {
        thread::park_timeout(Duration::from_nanos(me.pause_ns));
        me.pause_ns = LONGEST_PAUSE_NS.min(2 * me.pause_ns);
    }
}
