//! One core and the threads around it: one lock, one way to wait, perhaps one thread that makes progress.
//!
//! ```text
//!   Caller         whoever posts sends, whoever polls or waits takes a turn, and now and then whoever posts
//!   IoThread       a thread takes all turns while it attends; posting hands over to it
//!   ReceiveThread  a thread takes turns while it attends; whoever posts sends
//!   Guard          as Caller; and a thread sleeps on the sockets while nobody of the program polls or sleeps on them
//! ```
//!
//! What has happened shows in `epoch`, a counter that is read without the lock, so that polling an empty queue costs the
//! thread that fills it nothing. A thread that has waited long enough sleeps: one of them on the sockets (it is the one
//! that watches), the others until the epoch changes.
//!
//! The device's own thread attends while it has a processor and the program has other things to do:
//!
//! ```text
//!   attends ──(its beat stops: who waits takes over; or it has woken somebody)──► stands by ──(nobody waits or polls)──► attends
//!      └──(nothing happens)──► watches, unless one who waits can                      └──(one who waits watches)──► asleep
//! ```
//!
//! So two threads never pass each message on where only one of them can run: there whoever waits does the work, as if he
//! were alone, and the thread is for the time in which nobody waits.
//!
//! Always holds: under the lock, whoever changes anything advances the epoch and wakes those who sleep, so that no wake-up
//! is lost between looking and lying down; `attended` changes only under the lock.

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
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};

/// The longest sleep, so that no lost wake-up can last.
const LONGEST_SLEEP_NS: u64 = SECOND;
/// The longest sleep of those who wait for another thread to watch.
pub(super) const FOLLOWER_SLEEP_NS: u64 = 100 * MS;
/// In how many turns of a polling wait the time limit is looked at once.
const LIMIT_EVERY: u32 = 16;
/// How often the lock is tried before a thread sleeps for it: a turn takes a microsecond or two.
const TRIES: u32 = 200;
/// Looks without a beat of the device's thread after which it seems to have no processor. One look takes some 50 ns, one
/// beat as long as asking an epoll, 300.
const MISSED: u32 = 64;
/// Bits of a beat that name the processor; the others count.
const PROCESSOR_BITS: u32 = 16;

/// Who makes progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Threading {
    /// Whoever calls: posting sends, polling and waiting receive (run to completion). Nothing moves while nobody calls.
    #[default]
    Caller,
    /// A thread of the device: posting hands over to it, polling looks at what it has done. Where it has no processor,
    /// whoever calls does its work.
    IoThread,
    /// A thread of the device receives and places; whoever posts sends. Where it has no processor, as above.
    ReceiveThread,
    /// Whoever calls; and a thread, which never polls, does what comes while nobody calls. It begins with the first
    /// connection or listener.
    Guard,
}

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// It polls for a while, then sleeps.
    Spin,
    /// It sleeps at once.
    Sleep,
}

/// See the file.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Core>,
    changed: Condvar,
    /// For the device's own thread.
    pub(super) called: Condvar,
    epoch: AtomicU64,
    /// Programs' threads that want the lock: the device's own gives way to them.
    wanted: AtomicU32,
    /// The device's own thread makes progress; else whoever calls.
    attended: AtomicBool,
    /// Moves while it attends and has a processor, and holds no lock: which processor, and a count.
    beat: AtomicU64,
    /// The beat that was seen last, and how often since.
    seen_beat: AtomicU64,
    missed: AtomicU32,
    /// The guard, once it is there; and who polled has probably turned to his memory.
    pub(super) guarding: OnceLock<Thread>,
    pub(super) deserted: AtomicBool,
    /// Turns that programs' threads have taken, and how many of them poll in a wait at present.
    pub(super) taken: AtomicU64,
    pub(super) waiting: AtomicU32,
    pub(crate) threading: Threading,
    epoll: Arc<OwnedFd>,
    bell: OwnedFd,
    pub(super) clock: Clock,
}

impl Shared {
    pub(crate) fn new(settings: Settings, threading: Threading) -> io::Result<Self> {
        let core = Core::new(settings)?;
        Ok(Self {
            epoll: Arc::clone(&core.epoll),
            core: Mutex::new(core),
            changed: Condvar::new(),
            called: Condvar::new(),
            epoch: AtomicU64::new(1),
            wanted: AtomicU32::new(0),
            attended: AtomicBool::new(false),
            beat: AtomicU64::new(0),
            seen_beat: AtomicU64::new(0),
            missed: AtomicU32::new(0),
            guarding: OnceLock::new(),
            deserted: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            threading,
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            clock: Clock::new(),
        })
    }

    /// A number that changes whenever anything may have.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The device's own thread makes progress.
    #[inline]
    pub(super) fn attended(&self) -> bool {
        self.attended.load(Ordering::Relaxed)
    }

    /// Says whether it does; the core's lock is shown as proof.
    pub(super) fn attend(&self, _: &Core, attends: bool) {
        self.attended.store(attends, Ordering::Relaxed);
    }

    /// The present time.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The descriptor that is readable when there is something to do.
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
        self.lock_at_last()
    }

    /// Without precedence over others.
    pub(super) fn lock_at_last(&self) -> MutexGuard<'_, Core> {
        // A panic under the lock is a bug; what it left is as good as what a panic elsewhere leaves.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has changed: tells all who look or sleep. Called under the lock.
    #[inline]
    pub(super) fn announce(&self, core: &Core) {
        self.epoch.fetch_add(1, Ordering::Release);
        if core.sleepers > 0 {
            self.changed.notify_all();
        }
        let rings = match core.watch {
            Watch::Nobody => false,
            Watch::Program => true,
            Watch::Thread(until) => core.deadline() < until || core.has_more(),
            Watch::Guard(until) if core.deadline() < until || core.has_more() => {
                !core.rung.replace(true)
            }
            Watch::Guard(_) => false,
        };
        if rings {
            self.ring();
        }
    }

    fn ring(&self) {
        // A counter at its limit is readable anyway.
        let _ = rustix::io::write(&self.bell, &[0, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// Does something with the engine now, and sends what follows from it unless that is another thread's work.
    #[inline]
    pub(crate) fn act<T>(&self, act: impl FnOnce(&mut Core, Instant) -> T) -> T {
        let mut core = self.lock();
        let now = self.clock.now();
        let result = act(&mut core, now);
        if self.threading != Threading::IoThread || !self.attended() {
            core.flush(now);
        }
        self.announce(&core);
        result
    }

    /// The same for posting, which a program may do for long and nothing else: what has come is taken in now and then.
    #[inline]
    pub(crate) fn post<T>(&self, post: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let now = self.clock.now();
        let result = post(&mut core);
        if !self.attended() {
            core.flush(now);
            core.turn_perhaps(now);
        } else if self.threading != Threading::IoThread {
            core.flush(now);
        }
        self.announce(&core);
        result
    }

    /// The same for posting receives, which leaves something to do only where messages wait for one.
    #[inline]
    pub(crate) fn post_receives<T>(&self, post: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let result = post(&mut core);
        if core.rnic().has_ready() && (self.threading != Threading::IoThread || !self.attended()) {
            let now = self.clock.now();
            core.flush(now);
        }
        self.announce(&core);
        result
    }

    /// The same for what leaves nothing to send.
    #[inline]
    pub(crate) fn note<T>(&self, note: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let result = note(&mut core);
        self.announce(&core);
        result
    }

    /// Looks at something without changing it, or takes what is there already.
    #[inline]
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut Core) -> T) -> T {
        look(&mut self.lock())
    }

    /// Takes what `take` finds; if it finds nothing and nobody else makes progress, whoever calls does so once and looks
    /// again.
    #[inline]
    pub(crate) fn poll<T>(&self, mut take: impl FnMut(&mut Core) -> Option<T>) -> Option<T> {
        let mut core = self.lock();
        if let Some(found) = take(&mut core) {
            if std::mem::take(&mut core.deserted) {
                self.deserted.store(true, Ordering::Relaxed);
                self.call_guard();
            }
            if !self.attended() && core.turn_perhaps(self.clock.now()) {
                self.announce(&core);
            }
            return Some(found);
        }
        if self.attended() {
            return None;
        }
        if self.threading != Threading::Caller {
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        if !core.turn() {
            return None;
        }
        self.announce(&core);
        take(&mut core)
    }

    /// The same for what is polled again and again: while nothing has happened since `empty_at`, the epoch of the last vain
    /// look, the lock is left to the thread that makes progress.
    #[inline]
    pub(crate) fn poll_since<T>(
        &self,
        empty_at: &AtomicU64,
        take: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        if !self.attended() {
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

    /// The device's thread, which alone calls this, has a processor.
    #[inline]
    pub(super) fn beats(&self) {
        let count = (self.beat.load(Ordering::Relaxed) >> PROCESSOR_BITS) + 1;
        self.beat.store(count << PROCESSOR_BITS | processor(), Ordering::Relaxed);
    }

    /// After a vain look while the device's thread attends: true if whoever calls makes progress from now on, since that
    /// thread does not get to it, or only when he gives way.
    #[inline]
    fn takes_over(&self) -> bool {
        let beat = self.beat.load(Ordering::Relaxed);
        let same_processor = beat % (1 << PROCESSOR_BITS) == processor();
        if !same_processor && self.seen_beat.load(Ordering::Relaxed) != beat {
            self.seen_beat.store(beat, Ordering::Relaxed);
            self.missed.store(0, Ordering::Relaxed);
            return false;
        }
        let missed = self.missed.load(Ordering::Relaxed) + 1;
        let gone = same_processor || missed >= MISSED;
        self.missed.store(if gone { 0 } else { missed }, Ordering::Relaxed);
        // Where it holds the lock it is about to have something.
        if gone && let Ok(core) = self.core.try_lock() {
            self.attend(&core, false);
        }
        !self.attended()
    }

    /// Waits until `take` finds something, at most for `limit`.
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

    /// Waits until `take` finds something that is told by `fd`, asleep, as a read of `fd` would, but not for long, so that
    /// whoever calls can see what else is asked of his thread.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing and `fd` was made non-blocking; `Interrupted` if a signal came; `TimedOut`: call
    /// again.
    pub(crate) fn read<T>(
        &self,
        fd: &OwnedFd,
        mut take: impl FnMut(&mut Core) -> Option<T>,
    ) -> io::Result<T> {
        let mut until = None;
        // Who could sleep here has time for what has come, even if there is something for him already: he looks in his memory
        // next, and may come back for no more than an event that would follow from that.
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
            if !self.attended() && core.may_watch() {
                self.watch(core, Watch::Thread(Instant::NEVER), until, Some(fd))?;
                continue;
            }
            drop(core);
            let limit = Timespec { tv_sec: 0, tv_nsec: FOLLOWER_SLEEP_NS as i64 };
            poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&limit))?;
        }
    }

    /// Gives way, or sleeps: until the epoch is no longer `seen`, there is something to read, or the time has come.
    fn rest(&self, idle: &mut Idle, patience: Patience, seen: u64, until: Instant) {
        loop {
            if patience == Patience::Sleep || idle.rest(true, || self.clock.now()) == Rest::Sleep {
                return self.sleep(seen, until);
            }
            // Who makes progress by himself goes back to it; who waits for another thread needs only to look.
            if !self.attended() || self.epoch() != seen || self.takes_over() {
                return;
            }
        }
    }

    fn sleep(&self, seen: u64, until: Instant) {
        let mut core = self.lock();
        if self.epoch() != seen {
            return;
        }
        if !self.attended() && core.may_watch() {
            let _ = self.watch(core, Watch::Program, until, None);
            return;
        }
        let limit_ns = until.since(self.clock.now()).min(FOLLOWER_SLEEP_NS);
        core.sleepers += 1;
        // Asleep, he makes no progress.
        let counted = self.threading != Threading::Caller;
        self.waiting.fetch_sub(u32::from(counted), Ordering::Relaxed);
        let woken = self.changed.wait_timeout(core, Duration::from_nanos(limit_ns));
        self.waiting.fetch_add(u32::from(counted), Ordering::Relaxed);
        woken.unwrap_or_else(PoisonError::into_inner).0.sleepers -= 1;
    }

    /// Sleeps on the sockets, the bell and `mail`, at most up to `until`.
    ///
    /// # Errors
    /// `Interrupted` if a signal came.
    pub(super) fn watch(
        &self,
        mut core: MutexGuard<'_, Core>,
        who: Watch,
        until: Instant,
        mail: Option<&OwnedFd>,
    ) -> io::Result<()> {
        if !core.doze() {
            return Ok(());
        }
        let due = core.deadline().min(until);
        core.watch = if who == Watch::Program { who } else { Watch::Thread(due) };
        drop(core);
        let slept = self.sleep_on(due, mail.unwrap_or(&self.bell));
        let mut core = self.lock();
        core.watch = Watch::Nobody;
        // Somebody else has to watch now, if this thread has what it waited for.
        if core.sleepers > 0 {
            self.changed.notify_all();
        }
        if std::mem::take(&mut core.follows) {
            self.call();
        }
        slept
    }

    /// Sleeps until the sockets, the bell or `mail` has something, or it is `due`; the bell is silent afterwards.
    ///
    /// # Errors
    /// `Interrupted` if a signal came.
    pub(super) fn sleep_on(&self, due: Instant, mail: &OwnedFd) -> io::Result<()> {
        let limit_ns = due.since(self.clock.now()).min(LONGEST_SLEEP_NS);
        let limit =
            Timespec { tv_sec: (limit_ns / SECOND) as i64, tv_nsec: (limit_ns % SECOND) as i64 };
        let mut fds = [&*self.epoll, &self.bell, mail]
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
        let slept = poll(&mut fds, Some(&limit));
        let mut rings = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut rings);
        slept?;
        Ok(())
    }

    /// The bell.
    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// The lock, unless others keep it all the time.
    pub(super) fn lock_perhaps(&self) -> Option<MutexGuard<'_, Core>> {
        for _ in 0..TRIES {
            if let Ok(core) = self.core.try_lock() {
                return Some(core);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Has the device's own thread look, if it sleeps beside the program.
    fn call(&self) {
        match self.threading {
            Threading::Guard => self.call_guard(),
            _ => self.called.notify_one(),
        }
    }

    /// Has those who sleep look again, and make progress by themselves. Called under the lock.
    pub(super) fn rouse(&self, core: &Core) {
        self.attend(core, false);
        self.changed.notify_all();
    }

    /// Lets those have the lock who want it: a thread that takes turns all the time would keep it.
    #[inline]
    pub(super) fn give_way(&self) {
        let mut tries = 0;
        while self.wanted.load(Ordering::SeqCst) > 0 && tries < TRIES {
            tries += 1;
            std::hint::spin_loop();
        }
    }

    /// Ends [`Shared::run`].
    pub(crate) fn stop(&self) {
        self.note(|core| core.stop = true);
        self.call();
        self.ring();
    }
}

/// The processor that this thread is on.
fn processor() -> u64 {
    (rustix::thread::sched_getcpu() % (1 << PROCESSOR_BITS)) as u64
}

/// One more who waits, as long as this lives.
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
