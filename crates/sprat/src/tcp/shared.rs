//! One stack and the threads around it: one lock, one way to wait, one progress thread.
//!
//! ```text
//!   a call that can be done at once ─► done, and a turn if the last one is long ago
//!   a call that has to wait ─► it takes turns, then sleeps on the device between them
//!   other calls that have to wait ─► sleep until a turn wakes them
//!   no call waits ─► the progress thread sleeps on the device between turns
//! ```
//!
//! The progress thread stays away from the lock while calls make progress: it checks once a
//! millisecond if they still do, and sleeps until they end if one sleeps on the device.
//!
//! Always holds: a thread that changes the state holds the lock, wakes the threads that wait for
//! the change, and wakes the thread on the device if a timer is due earlier. A thread checks
//! what it waits for under the lock in which its sleep begins. So no wake-up is lost.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND, US};
use sprat_sys::clock;
use sprat_sys::cpu::{Idle, Rest};

use super::core::{Core, Key, Maker, Sleep};
use super::native::Interface;

/// The time after which a call that need not wait takes a turn, so that a program which only writes
/// handles acknowledgements.
const STALE_NS: u64 = 20 * US;
/// The time between two checks of the progress thread while calls make progress.
const PAUSE: Duration = Duration::from_millis(1);
/// The longest time that a thread waits for another thread's turn.
const FOLLOW: Duration = Duration::from_millis(500);
/// The time between two checks of connections that a closed stack waits for.
const LINGER_NS: u64 = 5 * MS;

/// A stack behind its lock.
#[derive(Debug)]
pub(super) struct Shared {
    core: Mutex<Core>,
    /// Wakes the progress thread where it does not sleep on the device.
    thread: Condvar,
    /// Wake a calling thread and the progress thread that sleep on the device.
    caller_wake: OwnedFd,
    thread_wake: OwnedFd,
}

/// The lock of a stack.
pub(super) type Guard<'a> = MutexGuard<'a, Core>;

impl Shared {
    pub(super) fn new(interface: Interface) -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self {
            core: Mutex::new(Core::new(interface)?),
            thread: Condvar::new(),
            caller_wake: eventfd(0, flags)?,
            thread_wake: eventfd(0, flags)?,
        })
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        // A panic under the lock is a bug; what it left is as good as what a panic elsewhere
        // leaves.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the stack, and sends what results.
    pub(super) fn act<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let result = act(&mut core);
        self.settle(&mut core);
        result
    }

    /// Reads the state of the stack.
    pub(super) fn with<T>(&self, read: impl FnOnce(&mut Core) -> T) -> T {
        read(&mut self.lock())
    }

    /// Sends what a change has left to send, and wakes the thread on the device if that is needed.
    fn settle(&self, core: &mut Core) {
        if clock::now().since(core.interface.now()) >= STALE_NS {
            core.turn();
            core.turns += 1;
        } else {
            core.interface.output();
        }
        self.wake_sleeper(core);
    }

    fn wake_sleeper(&self, core: &mut Core) {
        if core.take_wake() {
            write(match core.maker {
                Maker::Thread(_) => &self.thread_wake,
                _ => &self.caller_wake,
            });
        }
    }

    /// Waits until `attempt` returns a value: it makes progress meanwhile, or sleeps if another
    /// call does. Returns `None` at the time `until`. `attempt` runs under the lock.
    pub(super) fn wait<T>(
        &self,
        key: Key,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        let mut core = self.lock();
        if let Some(found) = attempt(&mut core) {
            self.settle(&mut core);
            return Some(found);
        }
        let (mut idle, mut makes) = (Idle::new(), false);
        let found = loop {
            if !makes && matches!(core.maker, Maker::Polling | Maker::Sleeping(..)) {
                core = follow(core, key, until);
            } else {
                if matches!(core.maker, Maker::Thread(_)) {
                    // The progress thread keeps away from now on.
                    write(&self.thread_wake);
                }
                (core.maker, makes) = (Maker::Polling, true);
                core.turns += 1;
                if core.turn() {
                    idle.worked();
                }
            }
            if let Some(found) = attempt(&mut core) {
                break Some(found);
            }
            if until.is_some_and(|until| until <= clock::now()) {
                break None;
            }
            if !makes {
                continue;
            }
            let now = core.interface.now();
            drop(core);
            let rest = idle.rest(true, || now);
            core = self.lock();
            if rest == Rest::Sleep {
                if let Some(found) = attempt(&mut core) {
                    break Some(found);
                }
                core = self.sleep(core, key, until);
            }
        };
        if makes {
            core.maker = Maker::Nobody;
            if core.sleepers > 0 || core.thread_follows {
                self.thread.notify_one();
            }
        }
        core.interface.output();
        self.wake_sleeper(&mut core);
        found
    }

    /// Sleeps on the device between two turns of a call that waits.
    fn sleep<'a>(&'a self, mut core: Guard<'a>, key: Key, until: Option<Instant>) -> Guard<'a> {
        let Some(due) = core.interface.sleep_until(clock::now()) else { return core };
        let until = due.min(until.unwrap_or(Instant::NEVER));
        let Ok(device) = core.device() else { return core };
        core.maker = Maker::Sleeping(key, Sleep { until, is_woken: false });
        drop(core);
        sleep_on(&device, &self.caller_wake, until);
        let mut core = self.lock();
        if matches!(core.maker, Maker::Sleeping(_, Sleep { is_woken: true, .. })) {
            clear(&self.caller_wake);
        }
        core.maker = Maker::Polling;
        core
    }

    /// Runs the progress thread until the last handle is gone and the peers have everything, at
    /// most for `linger`.
    pub(super) fn run(&self, linger: Duration) {
        let mut seen = 0;
        let mut core = self.lock();
        while !core.is_closing {
            let has_turned = std::mem::replace(&mut seen, core.turns) != core.turns;
            match core.maker {
                Maker::Polling | Maker::Sleeping(..) if !has_turned => {
                    core.thread_follows = true;
                    core = pause(&self.thread, core, FOLLOW);
                    core.thread_follows = false;
                    if core.sleepers == 0 {
                        core = pause(&self.thread, core, PAUSE);
                    }
                }
                Maker::Polling | Maker::Sleeping(..) => core = pause(&self.thread, core, PAUSE),
                _ if has_turned && core.sleepers == 0 => {
                    core = pause(&self.thread, core, PAUSE);
                }
                _ => core = self.make_progress(core, Instant::NEVER),
            }
        }
        let end = clock::now().after(linger.as_nanos() as u64);
        core.maker = Maker::Nobody;
        while core.lingers() && clock::now() < end {
            let next = clock::now().after(LINGER_NS).min(end);
            core = self.make_progress(core, next);
        }
        core.interface.host().abort_all();
        core.interface.output();
    }

    /// Takes turns until there is nothing to do, and sleeps on the device once.
    fn make_progress<'a>(&'a self, mut core: Guard<'a>, until: Instant) -> Guard<'a> {
        if core.turn() {
            // Others may want the lock.
            drop(core);
            std::thread::yield_now();
            return self.lock();
        }
        let Some(due) = core.interface.sleep_until(clock::now()) else { return core };
        let until = until.min(due);
        let Ok(device) = core.device() else { return core };
        core.maker = Maker::Thread(Sleep { until, is_woken: false });
        drop(core);
        sleep_on(&device, &self.thread_wake, until);
        let mut core = self.lock();
        clear(&self.thread_wake);
        if matches!(core.maker, Maker::Thread(_)) {
            core.maker = Maker::Nobody;
        }
        core
    }

    /// Makes the progress thread end.
    pub(super) fn close(&self) {
        let mut core = self.lock();
        core.is_closing = true;
        self.thread.notify_one();
        write(&self.thread_wake);
    }
}

/// Sleeps until another thread's turn wakes the waiters of a key.
fn follow(mut core: Guard<'_>, key: Key, until: Option<Instant>) -> Guard<'_> {
    let left = until.unwrap_or(Instant::NEVER).since(clock::now());
    let left = Duration::from_nanos(left).min(FOLLOW);
    let Some(waiters) = core.waiters(key) else { return core };
    waiters.sleepers += 1;
    let condvar = Arc::clone(&waiters.condvar);
    core.sleepers += 1;
    core = pause(&condvar, core, left);
    core.sleepers -= 1;
    if let Some(waiters) = core.waiters(key) {
        waiters.sleepers -= 1;
    }
    core
}

fn pause<'a>(condvar: &Condvar, core: Guard<'a>, longest: Duration) -> Guard<'a> {
    condvar.wait_timeout(core, longest).unwrap_or_else(PoisonError::into_inner).0
}

/// Sleeps on the device and on a descriptor of this stack.
fn sleep_on(device: &Arc<OwnedFd>, wake: &OwnedFd, until: Instant) {
    let ns = until.since(clock::now()).min(SECOND);
    let timeout = Timespec { tv_sec: (ns / SECOND) as i64, tv_nsec: (ns % SECOND) as i64 };
    let mut fds = [
        PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
    ];
    // An interrupted sleep ends early, which does no harm.
    let _ = poll(&mut fds, Some(&timeout));
}

fn write(fd: &OwnedFd) {
    // A counter at its limit is readable anyway.
    let _ = rustix::io::write(fd, &[0, 0, 0, 0, 0, 0, 0, 1]);
}

fn clear(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
