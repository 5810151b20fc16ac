//! The progress thread. It owns progress while it has a processor and the program does not make
//! progress itself, and backs off while a thread of the program does.
//!
//! ```text
//!   polling: epoll (no lock) ─► something? ─► lock, one turn, announce
//! ```
//!
//! Always holds: without work it holds no lock, so that posting does not wait for it. While a
//! thread of the program makes progress, it polls rarely and for moments only. It takes progress
//! only if no thread watches the sockets.
//!
//! Not here: how the program's threads wait (`shared`), and the thread that never polls
//! (`background`).

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use sprat_proto::Instant;
use sprat_proto::time::{MS, US};

use super::core::Watch;
use super::shared::{FOLLOWER_SLEEP_NS, Shared};
use super::threading::Threading;
use sprat_sys::cpu::{Idle, Rest};

/// The first pause of the progress thread before it checks if the program still makes progress.
/// Each further pause doubles, up to `LONGEST_PAUSE_NS`. A check takes the processor from a waiting
/// thread for some 20 µs.
const FIRST_PAUSE_NS: u64 = 50 * US;
const LONGEST_PAUSE_NS: u64 = MS;
/// The number of checks after which the progress thread tries to take progress anyway: there may be
/// a processor for it by now.
const PAUSES: u32 = 20;
/// The number of turns in one pause of the progress thread from which on the program makes enough
/// progress itself.
const ENOUGH: u64 = 4;

/// The state of the progress thread between two checks.
struct Progress {
    idle: Idle,
    /// The epoch at which the progress thread found nothing more to do. `due` is the time at which
    /// there is something to do without a new epoch.
    seen: u64,
    due: Instant,
    /// True if the progress thread has more to do at once.
    more: bool,
    /// True if the progress thread owned progress until now, and another thread has just taken
    /// over.
    fresh: bool,
    /// The number of the program's turns at the progress thread's last check.
    taken: u64,
    pause_ns: u64,
    /// The number of pauses since the progress thread last owned progress.
    pauses: u32,
}

impl Shared {
    /// Runs the device's own thread until the device closes.
    pub(crate) fn run(&self) {
        if self.threading == Threading::Background {
            return self.run_in_background();
        }
        let (idle, due) = (Idle::new(), Instant::ZERO);
        let (more, fresh, pause_ns) = (true, false, FIRST_PAUSE_NS);
        let mut me = Progress { idle, seen: 0, due, more, fresh, taken: 0, pause_ns, pauses: 0 };
        while if self.thread_owns_progress() {
            self.poll_sockets(&mut me)
        } else {
            self.back_off(&mut me)
        } {}
    }

    /// Makes progress if there is any to make; returns false when the device closes.
    fn poll_sockets(&self, me: &mut Progress) -> bool {
        me.fresh = true;
        self.heartbeat();
        if me.more || self.epoch() != me.seen || me.due <= self.clock.now() || self.is_readable() {
            let mut core = self.lock_blocking();
            if core.stop {
                return false;
            }
            if !self.thread_owns_progress() {
                return true;
            }
            let worked = core.turn();
            if worked {
                core.counters.thread_turns += 1;
                me.idle.worked();
                let sleeper = core.sleepers > 0;
                self.announce(&core);
                // The woken thread makes progress itself, and may need this processor.
                if sleeper {
                    self.set_thread_owns(&core, false);
                }
            }
            (me.seen, me.due, me.more) = (self.epoch(), core.deadline(), core.has_more());
            drop(core);
            self.yield_lock();
            if worked {
                return true;
            }
        }
        if me.idle.rest(true, || self.clock.now()) == Rest::Sleep {
            self.sleep_on_sockets(me);
        }
        true
    }

    fn is_readable(&self) -> bool {
        if self.is_native {
            return true;
        }
        let mut event = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 1];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(self.epoll().as_fd(), &mut event, Some(&none)).is_ok_and(|count| count > 0)
    }

    /// Sleeps on the sockets after nothing has happened for long. If a thread of the program waits,
    /// that thread watches the sockets instead: then nothing has to wake it.
    fn sleep_on_sockets(&self, me: &mut Progress) {
        let core = self.lock();
        if core.stop || self.epoch() != me.seen || !self.thread_owns_progress() {
            return;
        }
        if core.sleepers > 0 {
            return self.hand_over(&core);
        }
        self.set_thread_owns(&core, false);
        let _ = self.watch(core, Watch::Thread(Instant::NEVER), Instant::NEVER, None);
        me.fresh = false;
        me.taken = self.program_turns.load(Ordering::Relaxed);
    }

    /// Takes progress if no thread of the program makes it, and pauses otherwise. Returns false
    /// when the device closes.
    fn back_off(&self, me: &mut Progress) -> bool {
        let mut core = self.lock();
        if core.stop {
            return false;
        }
        let taken = self.program_turns.load(Ordering::Relaxed);
        let turns = taken.wrapping_sub(std::mem::replace(&mut me.taken, taken));
        core.thread_follows = false;
        let fresh = std::mem::take(&mut me.fresh);
        let watched = core.watch != Watch::Unwatched;
        if watched && turns == 0 && !fresh {
            // Nothing happens. It sleeps until the watching thread is awake, which has something to
            // do then.
            core.thread_follows = true;
            drop(self.called.wait_timeout(core, Duration::from_nanos(FOLLOWER_SLEEP_NS)));
            (me.fresh, me.pause_ns) = (true, FIRST_PAUSE_NS);
            return true;
        }
        let busy = fresh || turns >= ENOUGH || self.waiting.load(Ordering::Relaxed) > 0;
        me.pauses += 1;
        if watched || (busy && me.pauses < PAUSES) {
            let pause = Duration::from_nanos(me.pause_ns);
            me.pause_ns = LONGEST_PAUSE_NS.min(2 * me.pause_ns);
            drop(self.called.wait_timeout(core, pause));
            return true;
        }
        self.set_thread_owns(&core, true);
        (me.more, me.pause_ns, me.pauses) = (true, FIRST_PAUSE_NS, 0);
        true
    }
}
