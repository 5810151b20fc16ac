//! The time, cheaply: [`now`] reads the processor's time stamp counter where it is a clock, and
//! asks the kernel elsewhere.
//!
//! The counter is a clock if it runs at one rate in every state of the processor (CPUID says so)
//! and the kernel itself keeps time by it, which it stops doing when processors disagree. The first
//! use of the clock measures the counter's rate over [`CALIBRATE_NS`], against the kernel's clock.
//! The two then drift apart by a few millionths, which is small enough for every protocol here. A
//! machine that slept may set its counter to 0. If a reading lies before the clock's start, the
//! clock reads the kernel's time from then on.
//!
//! The kernel's clock is `CLOCK_BOOTTIME`, which counts the time that the machine slept: a lease
//! ends meanwhile, for the others go on. A counter that goes on counts it, too. Only a virtual
//! machine that was stopped with its counter, and not told, counts less.
//!
//! All instants of one process share one start. Those of two processes have nothing in common.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

/// The time for which the counter's rate is measured, at the first use of the clock in a process,
/// in nanoseconds.
const CALIBRATE_NS: u64 = 4 * MS;

static CLOCK: OnceLock<Clock> = OnceLock::new();
/// The least value that a reading of the time stamp counter may have. A lower reading shows that
/// the counter was set back.
static FLOOR: AtomicU64 = AtomicU64::new(0);

/// Returns the nanoseconds since a start that all threads of this process share.
#[inline]
#[must_use]
pub fn now() -> Instant {
    Clock::new().now()
}

/// Returns the time of day in nanoseconds since 1970. It is for display; use [`now`] to measure.
#[must_use]
pub fn wall_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.unsigned_abs() * SECOND + now.tv_nsec.unsigned_abs()
}

/// Returns the nanoseconds for which the calling thread has used a processor.
#[must_use]
pub fn thread_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec.unsigned_abs() * SECOND + used.tv_nsec.unsigned_abs()
}

/// The clock of this process: the rate and the start of the time stamp counter. A copy saves
/// [`now`]'s access to the shared clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Nanoseconds per tick of the counter, times two to the power of [`SHIFT`]. Zero if the clock
    /// asks the kernel instead.
    ns_per_tick_shifted: u64,
    start_ticks: u64,
    start_ns: u64,
    floor: &'static AtomicU64,
}

/// Returns the time of the system's wall clock (`CLOCK_REALTIME`), in milliseconds since 1970-01-01
/// 00:00 UTC, 0 if it is earlier.
#[must_use]
pub fn wall_ms() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    u64::try_from(time.tv_sec).map_or(0, |seconds| seconds * 1000 + time.tv_nsec as u64 / 1_000_000)
}

/// The power of two by which `ns_per_tick_shifted` is multiplied.
const SHIFT: u32 = 32;

impl Clock {
    /// Returns the clock of this process. The first call measures the counter's rate, which takes
    /// some milliseconds.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        *CLOCK.get_or_init(|| if ticks_are_a_clock() { Self::calibrate() } else { Self::kernel() })
    }

    /// Returns the nanoseconds since the start of this process's clock.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        if self.ns_per_tick_shifted == 0 {
            return self.kernel_now();
        }
        let ticks = ticks();
        if ticks < self.floor.load(Ordering::Relaxed) {
            return self.set_back();
        }
        let passed = ticks.saturating_sub(self.start_ticks);
        let ns = (u128::from(passed) * u128::from(self.ns_per_tick_shifted)) >> SHIFT;
        Instant::from_ns(ns as u64)
    }

    fn kernel_now(&self) -> Instant {
        Instant::from_ns(kernel_ns().saturating_sub(self.start_ns))
    }

    /// Stops all use of the counter, which has fallen below its start, and returns the kernel's
    /// time. The kernel's time has gone on.
    #[cold]
    fn set_back(&self) -> Instant {
        self.floor.store(u64::MAX, Ordering::Relaxed);
        self.kernel_now()
    }

    /// Returns the counter's reading in ticks, to compare readings of several processes of this
    /// machine: all of them share its start. Where the counter is no clock, it returns the kernel's
    /// nanoseconds.
    #[inline]
    #[must_use]
    pub fn ticks(&self) -> u64 {
        if self.ns_per_tick_shifted == 0 { kernel_ns() } else { ticks() }
    }

    /// Returns the nanoseconds of one tick of [`Clock::ticks`].
    #[must_use]
    pub fn tick_ns(&self) -> f64 {
        match self.ns_per_tick_shifted {
            0 => 1.0,
            shifted => shifted as f64 / (1_u64 << SHIFT) as f64,
        }
    }

    /// True if the clock reads the processor's counter, which needs no system call.
    #[must_use]
    pub fn is_counter(&self) -> bool {
        self.ns_per_tick_shifted != 0
    }

    fn kernel() -> Self {
        Self { ns_per_tick_shifted: 0, start_ticks: 0, start_ns: kernel_ns(), floor: &FLOOR }
    }

    fn calibrate() -> Self {
        let (start_ticks, start_ns) = both();
        while kernel_ns() < start_ns + CALIBRATE_NS {
            std::hint::spin_loop();
        }
        let (end_ticks, end_ns) = both();
        let passed = u128::from(end_ticks.saturating_sub(start_ticks)).max(1);
        let rate = (u128::from(end_ns - start_ns) << SHIFT) / passed;
        match u64::try_from(rate) {
            Ok(ns_per_tick_shifted @ 1..) => {
                FLOOR.store(start_ticks, Ordering::Relaxed);
                Self { ns_per_tick_shifted, start_ticks, start_ns, floor: &FLOOR }
            }
            _ => Self::kernel(),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

fn kernel_ns() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    t.tv_sec as u64 * SECOND + t.tv_nsec as u64
}

/// Reads the counter and the kernel's clock at one moment. Of several tries, it returns the one
/// that took least.
fn both() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..16 {
        let before = ticks();
        let ns = kernel_ns();
        let after = ticks();
        let took = after.saturating_sub(before);
        if took < best.0 {
            best = (took, before + took / 2, ns);
        }
    }
    (best.1, best.2)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: part of the architecture; Linux lets every program read it unless asked otherwise by
    // prctl(2), which this program does not do.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
fn ticks_are_a_clock() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    if __cpuid(0x8000_0000).eax < POWER || __cpuid(POWER).edx & INVARIANT == 0 {
        return false;
    }
    let source =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|s| matches!(s.trim(), "tsc" | "kvm-clock"))
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks_are_a_clock() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_agree_and_never_go_back() {
        let (counter, kernel) = (Clock::new(), Clock::kernel());
        // One clock's readings enclose the other's, so waiting for the processor in between cannot
        // upset the comparison.
        let (k0, c0, k1) = (kernel.now(), counter.now(), kernel.now());
        let mut last = c0;
        for _ in 0..200_000 {
            let t = counter.now();
            assert!(t >= last);
            last = t;
        }
        let (k2, c1, k3) = (kernel.now(), counter.now(), kernel.now());
        let passed = c1.since(c0);
        let slack_ns = 1_000 + passed / 1_000;
        assert!(passed <= k3.since(k0) + slack_ns, "the counter runs fast");
        assert!(passed + slack_ns >= k2.since(k1), "the counter runs slow");
    }

    /// Reads a clock whose counter was set back. A machine that slept set its counter to 0: time
    /// stood still then, and every timer with it, for as long as the machine had run before.
    #[test]
    fn a_counter_that_is_set_back_is_not_asked_again() {
        static OURS: AtomicU64 = AtomicU64::new(u64::MAX - 1);
        let start_ticks = OURS.load(Ordering::Relaxed);
        let clock =
            Clock { ns_per_tick_shifted: 1 << SHIFT, start_ticks, start_ns: 0, floor: &OURS };
        let before = kernel_ns();
        let now = clock.now();
        assert!(now.as_ns() >= before && clock.now() >= now);
        assert_eq!(OURS.load(Ordering::Relaxed), u64::MAX, "nor when it has caught up");
    }

    #[test]
    fn the_kernel_serves_where_the_counter_does_not() {
        let clock = Clock::kernel();
        assert!(!clock.is_counter());
        let a = clock.now();
        assert!(clock.now() >= a);
    }
}
