//! The processor: where a thread runs, and how it waits.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, sched_yield};
use sprat_proto::Instant;
use sprat_proto::time::US;

/// Empty polls before the processor is offered to others.
const SPINS: u32 = 256;
/// How long nothing must have happened before sleep.
const SLEEP_AFTER_NS: u64 = 50 * US;

/// What [`Idle::rest`] did or wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// It paused or yielded: poll again.
    Spun,
    /// Nothing has happened for long: sleep until something does.
    Sleep,
}

/// The polling schedule of the whole product, the raw floors included: 256 empty polls with a pause, then yields, then,
/// after 50 µs without work, sleep.
///
/// It gives way early because client and server may have to share a core, and a process that spins on keeps its peer from
/// answering.
#[derive(Clone, Debug, Default)]
pub struct Idle {
    empty: u32,
    since: Instant,
}

impl Idle {
    /// A schedule at its start.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// There was work: the schedule starts again.
    #[inline]
    pub fn worked(&mut self) {
        self.empty = 0;
    }

    /// There was none: pauses or yields, or says that it is time to sleep. `now` is read only after the spinning.
    #[inline]
    pub fn rest(&mut self, now: impl FnOnce() -> Instant) -> Rest {
        if self.empty < SPINS {
            self.empty += 1;
            std::hint::spin_loop();
            return Rest::Spun;
        }
        self.give_way(now())
    }

    #[cold]
    fn give_way(&mut self, now: Instant) -> Rest {
        if self.empty == SPINS {
            self.empty += 1;
            self.since = now;
        }
        if now.since(self.since) >= SLEEP_AFTER_NS {
            self.empty = 0;
            return Rest::Sleep;
        }
        sched_yield();
        Rest::Spun
    }
}

/// The processors that this thread may run on.
///
/// # Errors
/// The kernel refuses to say.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Binds this thread to one processor.
///
/// # Errors
/// `InvalidInput` if the processor does not exist or is not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::InvalidInput, format!("processor {cpu} cannot be used"));
    if cpu >= CpuSet::MAX_CPU {
        return Err(missing());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|_| missing())
}

#[cfg(test)]
mod tests {
    use super::{CpuSet, Idle, Rest, SLEEP_AFTER_NS, SPINS, allowed, pin};
    use sprat_proto::Instant;

    #[test]
    fn spins_then_yields_then_sleeps_and_work_starts_it_again() {
        let mut idle = Idle::new();
        for _ in 0..2 {
            for _ in 0..SPINS {
                assert_eq!(idle.rest(|| panic!("no time is read while spinning")), Rest::Spun);
            }
            assert_eq!(idle.rest(|| Instant::from_ns(1_000)), Rest::Spun);
            assert_eq!(idle.rest(|| Instant::from_ns(1_000 + SLEEP_AFTER_NS - 1)), Rest::Spun);
            assert_eq!(idle.rest(|| Instant::from_ns(1_000 + SLEEP_AFTER_NS)), Rest::Sleep);
        }
        idle.rest(|| Instant::ZERO);
        idle.worked();
        for _ in 0..SPINS {
            assert_eq!(idle.rest(|| panic!("no time is read while spinning")), Rest::Spun);
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
}
