//! What the device's own thread does: it attends to the sockets while it has a processor and the program has other things
//! to do, and stands by while somebody of the program makes progress.
//!
//! ```text
//!   polling: epoll (no lock) ─► something? ─► lock, one turn, announce
//! ```
//!
//! Always holds: without work it holds no lock, so that posting does not wait for it; beside somebody who makes progress
//! himself it polls for moments only, now and then; it attends only if nobody watches.
//!
//! Not here: how the program's threads wait (`shared`), and what the thread does where it never polls (`guard`).

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use sprat_proto::Instant;
use sprat_proto::time::{MS, US};

use super::core::Watch;
use super::shared::{FOLLOWER_SLEEP_NS, Shared, Threading};
use sprat_sys::cpu::{Idle, Rest};

/// How long it stands by before it looks whether the program still makes progress: at first, and at the most. A look takes
/// the processor from who waits for some 20 µs.
const FIRST_PAUSE_NS: u64 = 50 * US;
const LONGEST_PAUSE_NS: u64 = MS;
/// After so many looks it tries to attend all the same: there may be a processor for it by now.
const PAUSES: u32 = 20;
/// So many turns of the program in one pause are progress enough.
const ENOUGH: u64 = 4;

/// What the thread remembers between two looks.
struct Attendant {
    idle: Idle,
    /// The epoch at which there was nothing more to do, and when there is without one.
    seen: u64,
    due: Instant,
    /// There is more to do at once.
    more: bool,
    /// It has attended until now: whoever makes progress instead has just begun.
    fresh: bool,
    /// The program's turns at the last look.
    taken: u64,
    pause_ns: u64,
    /// How often it has stood by since it attended.
    pauses: u32,
}

impl Shared {
    /// What the device's own thread does, until it is told to stop.
    pub(crate) fn run(&self) {
        if self.threading == Threading::Guard {
            return self.guard();
        }
        let (idle, due) = (Idle::new(), Instant::ZERO);
        let (more, fresh, pause_ns) = (true, false, FIRST_PAUSE_NS);
        let mut me = Attendant { idle, seen: 0, due, more, fresh, taken: 0, pause_ns, pauses: 0 };
        while if self.attended() { self.poll_sockets(&mut me) } else { self.stand_by(&mut me) } {}
    }

    /// Makes progress if there is any to make; false at the end.
    fn poll_sockets(&self, me: &mut Attendant) -> bool {
        me.fresh = true;
        self.beats();
        if me.more || self.epoch() != me.seen || me.due <= self.clock.now() || self.is_readable() {
            let mut core = self.lock_at_last();
            if core.stop {
                return false;
            }
            if !self.attended() {
                return true;
            }
            let worked = core.turn();
            if worked {
                core.counters.thread_turns += 1;
                me.idle.worked();
                let sleeper = core.sleepers > 0;
                self.announce(&core);
                // Who has been woken makes progress himself, and may need this processor.
                if sleeper {
                    self.attend(&core, false);
                }
            }
            (me.seen, me.due, me.more) = (self.epoch(), core.deadline(), core.has_more());
            drop(core);
            self.give_way();
            if worked {
                return true;
            }
        }
        if me.idle.rest(true, || self.clock.now()) == Rest::Sleep {
            self.lie_down(me);
        }
        true
    }

    fn is_readable(&self) -> bool {
        let mut event = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 1];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(self.epoll().as_fd(), &mut event, Some(&none)).is_ok_and(|count| count > 0)
    }

    /// Nothing has happened for long. One who waits watches better than this thread: he needs not be woken by it.
    fn lie_down(&self, me: &mut Attendant) {
        let core = self.lock();
        if core.stop || self.epoch() != me.seen || !self.attended() {
            return;
        }
        if core.sleepers > 0 {
            return self.rouse(&core);
        }
        self.attend(&core, false);
        let _ = self.watch(core, Watch::Thread(Instant::NEVER), Instant::NEVER, None);
        me.fresh = false;
        me.taken = self.taken.load(Ordering::Relaxed);
    }

    /// Attends again if nobody of the program makes progress; else sleeps for a while. False at the end.
    fn stand_by(&self, me: &mut Attendant) -> bool {
        let mut core = self.lock();
        if core.stop {
            return false;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        let turns = taken.wrapping_sub(std::mem::replace(&mut me.taken, taken));
        core.follows = false;
        let fresh = std::mem::take(&mut me.fresh);
        let watched = core.watch != Watch::Nobody;
        if watched && turns == 0 && !fresh {
            // Nothing happens: it sleeps until who watches is back, who has something to do then.
            core.follows = true;
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
        self.attend(&core, true);
        (me.more, me.pause_ns, me.pauses) = (true, FIRST_PAUSE_NS, 0);
        true
    }
}
