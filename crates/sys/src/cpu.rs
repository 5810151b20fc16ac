//! The processor: where a thread runs, and how it waits.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, sched_yield};
use sprat_proto::Instant;
use sprat_proto::time::US;

/// Number of empty polls before [`Idle`] reads the clock.
const SPINS: u32 = 16;
/// The time of spinning before a waiting thread yields the processor to others. It is a time and
/// not a number of polls, because a poll takes from 20 ns (shared memory) to 2 µs (system calls for
/// some sockets).
const SPIN_NS: u64 = 10 * US;
/// The time without work after which a waiting thread sleeps.
const SLEEP_AFTER_NS: u64 = 50 * US;
/// The time without work after which a thread that awaits a reply sleeps. Waking a sleeper takes 50
/// to 150 µs if the processor itself sleeps (an idle virtual one leaves its host). A caller of a
/// sleeping server should not sleep too, or it pays twice.
const SLEEP_AWAITED_AFTER_NS: u64 = 300 * US;

/// The result of [`Idle::rest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// The loop has paused, and polls again.
    Spun,
    /// The loop has given the processor to others, and polls again.
    Yielded,
    /// Nothing has happened for long: the caller should sleep until something does.
    Sleep,
}

/// The polling schedule of Sprat and of its baselines: polls with a pause for 10 µs, then yields,
/// then, after 50 µs without work (300 µs while an answer is awaited), sleep.
///
/// It gives way early because client and server may have to share a core, and a process that spins
/// on keeps its peer from answering.
#[derive(Clone, Debug, Default)]
pub struct Idle {
    empty: u32,
    since: Instant,
}

impl Idle {
    /// Makes a polling schedule at its start.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the polling schedule again, because the last poll found work.
    #[inline]
    pub fn worked(&mut self) {
        self.empty = 0;
    }

    /// Pauses or yields after a poll that found no work, or says that it is time to sleep.
    /// `awaited` says whether an answer is under way; `now` is called only after a few polls.
    #[inline]
    pub fn rest(&mut self, awaited: bool, now: impl FnOnce() -> Instant) -> Rest {
        if self.empty < SPINS {
            self.empty += 1;
            std::hint::spin_loop();
            return Rest::Spun;
        }
        self.give_way(awaited, now())
    }

    fn give_way(&mut self, awaited: bool, now: Instant) -> Rest {
        if self.empty == SPINS {
            self.empty += 1;
            self.since = now;
        }
        let idle_ns = now.since(self.since);
        let enough_ns = if awaited { SLEEP_AWAITED_AFTER_NS } else { SLEEP_AFTER_NS };
        if idle_ns >= enough_ns {
            self.empty = 0;
            return Rest::Sleep;
        }
        if idle_ns < SPIN_NS {
            std::hint::spin_loop();
            return Rest::Spun;
        }
        sched_yield();
        Rest::Yielded
    }
}

/// Returns the processors that the calling thread may run on.
///
/// # Errors
/// The kernel refuses to say.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Binds the calling thread to one processor.
///
/// # Errors
/// `InvalidInput` if the processor does not exist or is not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    let missing =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("processor {cpu} cannot be used"));
    if cpu >= CpuSet::MAX_CPU {
        return Err(missing());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|_| missing())
}

/// Lets the calling thread run only while a processor has nothing else to do (SCHED_IDLE).
///
/// # Errors
/// The kernel refuses it.
pub fn run_when_idle() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads `param`, which lives longer than the call; 0 is the calling thread.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) } < 0;
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::{
        CpuSet, Idle, Rest, SLEEP_AFTER_NS, SLEEP_AWAITED_AFTER_NS, SPINS, allowed, pin,
        run_when_idle,
    };
    use sprat_proto::Instant;

    #[test]
    fn spins_then_yields_then_sleeps_and_work_starts_it_again() {
        let mut idle = Idle::new();
        for (awaited, enough_ns) in [(false, SLEEP_AFTER_NS), (true, SLEEP_AWAITED_AFTER_NS)] {
            for _ in 0..SPINS {
                assert_eq!(idle.rest(awaited, || panic!("no time is read at first")), Rest::Spun);
            }
            assert_eq!(idle.rest(awaited, || Instant::from_ns(1_000)), Rest::Spun);
            let late = Instant::from_ns(1_000 + enough_ns - 1);
            assert_eq!(idle.rest(awaited, || late), Rest::Yielded);
            assert_eq!(idle.rest(awaited, || Instant::from_ns(1_000 + enough_ns)), Rest::Sleep);
        }
        idle.rest(false, || Instant::ZERO);
        idle.worked();
        for _ in 0..SPINS {
            assert_eq!(idle.rest(false, || panic!("no time is read at first")), Rest::Spun);
        }
    }

    #[test]
    fn a_thread_stays_where_it_was_put() {
        std::thread::spawn(|| {
            let last = *allowed().unwrap().last().unwrap();
            pin(last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
            assert!(pin(CpuSet::MAX_CPU).is_err());
            assert!(pin(CpuSet::MAX_CPU - 1).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_runs_when_idle() {
        let thread = std::thread::spawn(|| {
            run_when_idle().unwrap();
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // The policy is field 41, and the name, which is field 2, may contain spaces.
            let (_, fields) = stat.rsplit_once(") ").unwrap();
            fields.split(' ').nth(41 - 3).unwrap().parse::<i32>().unwrap()
        });
        assert_eq!(thread.join().unwrap(), libc::SCHED_IDLE);
    }
}
