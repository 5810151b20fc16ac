//! One core and the threads around it: one lock, one way to wait, perhaps one progress thread.
//!
//! ```text
//!   Caller         posting sends; polling and waiting take a turn, and posting does now and then
//!   IoThread       a thread takes all turns while it owns progress; posting leaves sending to it
//!   ReceiveThread  a thread takes turns while it owns progress; posting sends
//!   Background     as Caller, and a thread sleeps on the sockets while the program does not poll
//! ```
//!
//! `epoch` is a counter that advances with every change and is read without the lock, so that
//! polling an empty queue costs the thread that fills it nothing. A thread that has waited long
//! enough sleeps: one thread on the sockets (it watches them), the others until the epoch advances.
//!
//! The progress thread owns progress while it has a processor and the program does not make
//! progress itself:
//!
//! ```text
//!   owns progress ──(its heartbeat stops, or it wakes a thread of the program)──► backs off
//!         ▲ └──(nothing happens)──► watches the sockets, unless a waiting thread can       │
//!         └──(no thread of the program waits or polls)─────────────────────────────────────┘
//! ```
//!
//! Two threads would pass every message on if only one of them had a processor. Therefore a waiting
//! thread makes progress itself, and the progress thread works while no thread waits.
//!
//! Always holds: a thread that changes anything holds the lock, advances the epoch and wakes the
//! sleepers, so that no wake-up is lost between a poll and a sleep. `thread_owns` changes only
//! under the lock.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

use super::core::{Core, Settings, Watch};
use super::native::NativeInterface;
use super::threading::{Patience, Threading};
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};

/// The longest sleep of a thread, so that a lost wake-up cannot last.
const LONGEST_SLEEP_NS: u64 = SECOND;
/// The longest sleep of a thread that waits for another thread to watch the sockets.
pub(super) const FOLLOWER_SLEEP_NS: u64 = 100 * MS;
/// The number of turns after which a polling wait reads the clock again.
const LIMIT_EVERY: u32 = 16;
/// The number of attempts to take the lock before a thread sleeps for it: a turn takes a
/// microsecond or two.
const TRIES: u32 = 200;
/// The number of polls without a new heartbeat of the progress thread after which it seems to have
/// no processor. One poll takes some 50 ns, one heartbeat as long as asking an epoll, 300 ns.
const MISSED: u32 = 64;
/// The number of bits of a heartbeat that name the processor; the others count.
const PROCESSOR_BITS: u32 = 16;

/// The core of a device behind its lock, with the state that threads share without the lock.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Core>,
    changed: Condvar,
    /// Wakes the device's own thread.
    pub(super) called: Condvar,
    epoch: AtomicU64,
    /// The number of the program's threads that want the lock: the device's own thread gives way to
    /// them.
    wanted: AtomicU32,
    /// True if the progress thread makes progress; false if the calling thread does.
    thread_owns: AtomicBool,
    /// The heartbeat of the progress thread: its processor, and a counter. It advances while the
    /// thread owns progress, has a processor and holds no lock.
    heartbeat: AtomicU64,
    /// The heartbeat that a polling thread saw last. `missed` counts how often it has not changed
    /// since.
    seen_heartbeat: AtomicU64,
    missed: AtomicU32,
    /// The background thread, once it runs.
    pub(super) background: OnceLock<Thread>,
    pub(super) poll_missed: AtomicBool,
    /// The number of turns that the program's threads have taken. `waiting` is the number of them
    /// that poll in a wait at present.
    pub(super) program_turns: AtomicU64,
    pub(super) waiting: AtomicU32,
    pub(crate) threading: Threading,
    /// True if the engine has a device of its own, which announces nothing while it is polled.
    pub(super) is_native: bool,
    epoll: Arc<OwnedFd>,
    wakeup: OwnedFd,
    pub(super) clock: Clock,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        threading: Threading,
        interface: Option<NativeInterface>,
    ) -> io::Result<Self> {
        let is_native = interface.is_some();
        let core = Core::new(settings, interface)?;
        Ok(Self {
            epoll: Arc::clone(&core.epoll),
            core: Mutex::new(core),
            changed: Condvar::new(),
            called: Condvar::new(),
            epoch: AtomicU64::new(1),
            wanted: AtomicU32::new(0),
            thread_owns: AtomicBool::new(false),
            heartbeat: AtomicU64::new(0),
            seen_heartbeat: AtomicU64::new(0),
            missed: AtomicU32::new(0),
            background: OnceLock::new(),
            poll_missed: AtomicBool::new(false),
            program_turns: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            threading,
            is_native,
            wakeup: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            clock: Clock::new(),
        })
    }

    /// The epoch: a number that changes whenever the state of the core may have changed.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// True if the device's own thread owns progress.
    #[inline]
    pub(super) fn thread_owns_progress(&self) -> bool {
        self.thread_owns.load(Ordering::Relaxed)
    }

    /// Records that the device's own thread owns progress, or no longer owns it. `&Core` proves
    /// that the caller has the lock.
    pub(super) fn set_thread_owns(&self, _: &Core, owns: bool) {
        self.thread_owns.store(owns, Ordering::Relaxed);
    }

    /// The present time of the device's clock.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The epoll descriptor, which is readable when a socket has something to do.
    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        if let Ok(core) = self.core.try_lock() {
            return core;
        }
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let core = self.lock_slowly();
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        core
    }

    fn lock_slowly(&self) -> MutexGuard<'_, Core> {
        for _ in 0..TRIES {
            if let Ok(core) = self.core.try_lock() {
                return core;
            }
            std::hint::spin_loop();
        }
        self.lock_blocking()
    }

    /// Takes the lock without precedence over other threads.
    pub(super) fn lock_blocking(&self) -> MutexGuard<'_, Core> {
        // A panic under the lock is a bug; what it left is as good as what a panic elsewhere
        // leaves.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a change to the threads that poll or sleep. Called under the lock.
    #[inline]
    pub(super) fn announce(&self, core: &Core) {
        self.epoch.fetch_add(1, Ordering::Release);
        if core.sleepers > 0 {
            self.changed.notify_all();
        }
        let wakes = match core.watch {
            Watch::Unwatched => false,
            Watch::Program => true,
            Watch::Thread(until) => core.deadline() < until || core.has_more(),
            Watch::Background(until) if core.deadline() < until || core.has_more() => {
                !core.background_woken.replace(true)
            }
            Watch::Background(_) => false,
        };
        if wakes {
            self.write_wakeup();
        }
    }

    fn write_wakeup(&self) {
        // A counter at its limit is readable anyway.
        let _ = rustix::io::write(&self.wakeup, &[0, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// Changes the core and sends the resulting records, unless sending is another thread's work.
    #[inline]
    pub(crate) fn act<T>(&self, act: impl FnOnce(&mut Core, Instant) -> T) -> T {
        let mut core = self.lock();
        let now = self.clock.now();
        if self.threading == Threading::Background && core.rnic().has_ready() {
            // Posts that wait for others, before a call that may end their queue pair.
            core.flush(now);
        }
        let result = act(&mut core, now);
        if self.threading != Threading::IoThread || !self.thread_owns_progress() {
            core.flush(now);
        }
        self.announce(&core);
        result
    }

    /// Posts send requests. A program may do nothing else for long, so this also handles received
    /// bytes now and then.
    #[inline]
    pub(crate) fn post<T>(&self, post: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let now = self.clock.now();
        let result = post(&mut core);
        if self.threading == Threading::Background && core.may_wait_for_posts() {
            // The next post, any other call or the background thread sends them.
        } else if !self.thread_owns_progress() {
            core.flush(now);
            core.turn_if_stale(now);
        } else if self.threading != Threading::IoThread {
            core.flush(now);
        }
        self.announce(&core);
        result
    }

    /// Posts receives. They leave something to send only where messages wait for a receive.
    #[inline]
    pub(crate) fn post_receives<T>(&self, post: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let result = post(&mut core);
        if core.rnic().has_ready()
            && (self.threading != Threading::IoThread || !self.thread_owns_progress())
        {
            let now = self.clock.now();
            core.flush(now);
        }
        self.announce(&core);
        result
    }

    /// Changes the core in a way that leaves nothing to send.
    #[inline]
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let result = change(&mut core);
        self.announce(&core);
        result
    }

    /// Reads the core without changing it, or takes a value that the core already has.
    #[inline]
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        act(&mut self.lock())
    }

    /// Takes a value from the core. If the core has none and no other thread makes progress, takes
    /// a turn and tries again.
    #[inline]
    pub(crate) fn poll<T>(&self, mut take: impl FnMut(&mut Core) -> Option<T>) -> Option<T> {
        let mut core = self.lock();
        if let Some(found) = take(&mut core) {
            if std::mem::take(&mut core.poll_missed) {
                self.poll_missed.store(true, Ordering::Relaxed);
                self.wake_background();
            }
            if !self.thread_owns_progress() && core.turn_if_stale(self.clock.now()) {
                self.announce(&core);
            }
            return Some(found);
        }
        if self.thread_owns_progress() {
            return None;
        }
        if self.threading != Threading::Caller {
            self.program_turns.fetch_add(1, Ordering::Relaxed);
        }
        if !core.turn() {
            return None;
        }
        self.announce(&core);
        take(&mut core)
    }

    /// Polls for a value repeatedly. While nothing has changed since `empty_at`, the epoch of the
    /// last poll without result, the thread that makes progress keeps the lock.
    #[inline]
    pub(crate) fn poll_since<T>(
        &self,
        empty_at: &AtomicU64,
        take: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        if !self.thread_owns_progress() {
            return self.poll(take);
        }
        let epoch = self.epoch();
        if empty_at.load(Ordering::Relaxed) == epoch && !self.takes_over() {
            return None;
        }
        let found = self.poll(take);
        if found.is_none() {
            empty_at.store(epoch, Ordering::Relaxed);
        }
        found
    }

    /// Advances the heartbeat, which proves that the progress thread has a processor. Only that
    /// thread calls this.
    #[inline]
    pub(super) fn heartbeat(&self) {
        let count = (self.heartbeat.load(Ordering::Relaxed) >> PROCESSOR_BITS) + 1;
        self.heartbeat.store(count << PROCESSOR_BITS | processor(), Ordering::Relaxed);
    }

    /// Handles a poll without result while the progress thread owns progress. Returns true if the
    /// calling thread makes progress from now on: the progress thread has no processor, or has this
    /// one.
    #[inline]
    fn takes_over(&self) -> bool {
        let heartbeat = self.heartbeat.load(Ordering::Relaxed);
        let same_processor = heartbeat % (1 << PROCESSOR_BITS) == processor();
        if !same_processor && self.seen_heartbeat.load(Ordering::Relaxed) != heartbeat {
            self.seen_heartbeat.store(heartbeat, Ordering::Relaxed);
            self.missed.store(0, Ordering::Relaxed);
            return false;
        }
        let missed = self.missed.load(Ordering::Relaxed) + 1;
        let gone = same_processor || missed >= MISSED;
        self.missed.store(if gone { 0 } else { missed }, Ordering::Relaxed);
        // A thread that holds the lock is about to have a result.
        if gone && let Ok(core) = self.core.try_lock() {
            self.set_thread_owns(&core, false);
        }
        !self.thread_owns_progress()
    }

    /// Waits until `take` returns a value, at most for `limit`.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Duration>,
        patience: Patience,
        mut take: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        let limit_ns = limit.map_or(u64::MAX, |l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX));
        let (mut until, mut turn) = (None, 0_u32);
        let (mut idle, mut waits) = (Idle::new(), None);
        loop {
            let seen = self.epoch();
            if let Some(found) = self.poll(&mut take) {
                return Some(found);
            }
            if self.epoch() != seen {
                idle.worked();
                continue;
            }
            // The time is read only if there is nothing to do, and then rarely.
            if limit_ns == 0 {
                return None;
            }
            turn = turn.wrapping_add(1);
            if patience == Patience::Sleep || until.is_none() || turn.is_multiple_of(LIMIT_EVERY) {
                let now = self.clock.now();
                if now >= *until.get_or_insert_with(|| now.after(limit_ns)) {
                    return None;
                }
            }
            if waits.is_none() && self.threading != Threading::Caller {
                waits = Some(Waits::begin(&self.waiting));
            }
            self.rest(&mut idle, patience, seen, until.unwrap_or(Instant::NEVER));
        }
    }

    /// Waits asleep until `take` returns a value that `fd` announces, as a read of `fd` would. It
    /// returns after a while, so that the caller can handle signals and requests to end.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing and `fd` was made non-blocking; `Interrupted` if a signal
    /// came; `TimedOut`: call again.
    pub(crate) fn read<T>(
        &self,
        fd: &OwnedFd,
        mut take: impl FnMut(&mut Core) -> Option<T>,
    ) -> io::Result<T> {
        let mut until = None;
        // A program that could sleep here has time for received bytes, even if an event waits: it
        // reads its memory next, and may come back only for an event that follows from that.
        self.poll(|_| None::<()>);
        loop {
            if let Some(found) = self.poll(&mut take) {
                return Ok(found);
            }
            if rustix::fs::fcntl_getfl(fd)?.contains(rustix::fs::OFlags::NONBLOCK) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let now = self.clock.now();
            let until = *until.get_or_insert_with(|| now.after(FOLLOWER_SLEEP_NS));
            if now >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let core = self.lock();
            if !self.thread_owns_progress() && core.may_watch() {
                self.watch(core, Watch::Thread(Instant::NEVER), until, Some(fd))?;
                continue;
            }
            drop(core);
            let limit = Timespec { tv_sec: 0, tv_nsec: FOLLOWER_SLEEP_NS as i64 };
            poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&limit))?;
        }
    }

    /// Gives way or sleeps, until the epoch is no longer `seen`, there is something to read, or
    /// `until` has passed.
    fn rest(&self, idle: &mut Idle, patience: Patience, seen: u64, until: Instant) {
        loop {
            if patience == Patience::Sleep || idle.rest(true, || self.clock.now()) == Rest::Sleep {
                return self.sleep(seen, until);
            }
            // A thread that makes progress itself goes back to it. A thread that waits for another
            // only has to poll.
            if !self.thread_owns_progress() || self.epoch() != seen || self.takes_over() {
                return;
            }
        }
    }

    fn sleep(&self, seen: u64, until: Instant) {
        let mut core = self.lock();
        if self.epoch() != seen {
            return;
        }
        if !self.thread_owns_progress() && core.may_watch() {
            let _ = self.watch(core, Watch::Program, until, None);
            return;
        }
        let limit_ns = until.since(self.clock.now()).min(FOLLOWER_SLEEP_NS);
        core.sleepers += 1;
        // A sleeping thread makes no progress.
        let counted = self.threading != Threading::Caller;
        self.waiting.fetch_sub(u32::from(counted), Ordering::Relaxed);
        let woken = self.changed.wait_timeout(core, Duration::from_nanos(limit_ns));
        self.waiting.fetch_add(u32::from(counted), Ordering::Relaxed);
        woken.unwrap_or_else(PoisonError::into_inner).0.sleepers -= 1;
    }

    /// Sleeps on the sockets, the wake-up descriptor and `event_fd`, at most up to `until`.
    ///
    /// # Errors
    /// `Interrupted` if a signal came.
    pub(super) fn watch(
        &self,
        mut core: MutexGuard<'_, Core>,
        who: Watch,
        until: Instant,
        event_fd: Option<&OwnedFd>,
    ) -> io::Result<()> {
        if !core.arm() {
            return Ok(());
        }
        let due = core.deadline().min(until);
        core.watch = if who == Watch::Program { who } else { Watch::Thread(due) };
        drop(core);
        let slept = self.sleep_on(due, event_fd.unwrap_or(&self.wakeup));
        let mut core = self.lock();
        core.watch = Watch::Unwatched;
        // Another thread has to watch the sockets now, if this thread has its value.
        if core.sleepers > 0 {
            self.changed.notify_all();
        }
        if std::mem::take(&mut core.thread_follows) {
            self.wake_thread();
        }
        slept
    }

    /// Sleeps until the sockets, the wake-up descriptor or `event_fd` is readable, or `due` has
    /// passed; clears the wake-up descriptor afterwards.
    ///
    /// # Errors
    /// `Interrupted` if a signal came.
    pub(super) fn sleep_on(&self, due: Instant, event_fd: &OwnedFd) -> io::Result<()> {
        let limit_ns = due.since(self.clock.now()).min(LONGEST_SLEEP_NS);
        let limit =
            Timespec { tv_sec: (limit_ns / SECOND) as i64, tv_nsec: (limit_ns % SECOND) as i64 };
        let mut fds = [&*self.epoll, &self.wakeup, event_fd]
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
        let slept = poll(&mut fds, Some(&limit));
        let mut wakes = [0; 8];
        let _ = rustix::io::read(&self.wakeup, &mut wakes);
        slept?;
        Ok(())
    }

    /// The wake-up descriptor, which ends a thread's sleep on the sockets.
    pub(super) fn wakeup(&self) -> &OwnedFd {
        &self.wakeup
    }

    /// Takes the lock, unless other threads keep it all the time.
    pub(super) fn lock_or_give_up(&self) -> Option<MutexGuard<'_, Core>> {
        for _ in 0..TRIES {
            if let Ok(core) = self.core.try_lock() {
                return Some(core);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Wakes the device's own thread, if it sleeps while the program makes progress.
    fn wake_thread(&self) {
        match self.threading {
            Threading::Background => self.wake_background(),
            _ => self.called.notify_one(),
        }
    }

    /// Hands progress over to the sleeping threads of the program and wakes them. Called under the
    /// lock.
    pub(super) fn hand_over(&self, core: &Core) {
        self.set_thread_owns(core, false);
        self.changed.notify_all();
    }

    /// Waits while other threads want the lock: otherwise a thread that takes turns all the time
    /// would keep the lock.
    #[inline]
    pub(super) fn yield_lock(&self) {
        let mut tries = 0;
        while self.wanted.load(Ordering::SeqCst) > 0 && tries < TRIES {
            tries += 1;
            std::hint::spin_loop();
        }
    }

    /// Ends the device's own thread, which runs [`Shared::run`].
    pub(crate) fn stop(&self) {
        self.change(|core| core.stop = true);
        self.wake_thread();
        self.write_wakeup();
    }
}

/// The number of the processor that this thread runs on.
fn processor() -> u64 {
    (rustix::thread::sched_getcpu() % (1 << PROCESSOR_BITS)) as u64
}

/// Counts a waiting thread as long as this value lives.
struct Waits<'a>(&'a AtomicU32);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a AtomicU32) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
