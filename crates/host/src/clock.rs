//! The monotonic clock: the processor's time-stamp counter where it runs at a constant rate, else the kernel's.
//!
//! Reading the counter costs about a third of `clock_gettime`, and a worker reads the time at every turn. The rate is
//! measured against the kernel's clock once per process; the error is below 50 ppm, which the margins of all leases
//! exceed by far. All clocks of one process agree.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};
use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

/// How long the counter is compared with the kernel's clock.
const CALIBRATION_NS: u64 = 4 * MS;

/// The time since the process first asked.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Counter or nanoseconds at the start.
    start: u64,
    /// Nanoseconds per tick, times 2³²; 0 if the kernel's clock is used.
    scale: u64,
}

static CLOCK: OnceLock<Clock> = OnceLock::new();

impl Clock {
    /// The clock of this process. The first call takes some milliseconds.
    #[must_use]
    pub fn new() -> Self {
        *CLOCK.get_or_init(Self::calibrate)
    }

    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        if self.scale == 0 {
            return Instant::from_ns(kernel_ns().saturating_sub(self.start));
        }
        let ticks = ticks().saturating_sub(self.start);
        Instant::from_ns(((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64)
    }

    fn calibrate() -> Self {
        let kernel = Self { start: kernel_ns(), scale: 0 };
        if !counter_is_steady() {
            return kernel;
        }
        let (start_ns, start) = pair();
        let (mut end_ns, mut end) = pair();
        while end_ns < start_ns + CALIBRATION_NS {
            std::hint::spin_loop();
            (end_ns, end) = pair();
        }
        match end.checked_sub(start) {
            Some(ticks) if ticks > 0 => {
                let scale = (u128::from(end_ns - start_ns) << 32) / u128::from(ticks);
                Self { start, scale: scale as u64 }
            }
            _ => kernel,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

fn kernel_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}

/// Both clocks at one time: the closest of several tries, since an interrupt may come between the readings.
fn pair() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..5 {
        let before = ticks();
        let ns = kernel_ns();
        let after = ticks();
        let gap = after.saturating_sub(before);
        if gap < best.0 {
            best = (gap, ns, before + gap / 2);
        }
    }
    (best.1, best.2)
}

/// True if the counter runs at one rate on all processors and in all power states.
fn counter_is_steady() -> bool {
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| {
            let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
            ["constant_tsc", "nonstop_tsc"].iter().all(|want| flags.split_whitespace().any(|f| f == *want))
        })
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: reading the time-stamp counter has no precondition on x86-64 and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::{Clock, kernel_ns};

    #[test]
    fn agrees_with_the_kernel_and_never_goes_back() {
        let clock = Clock::new();
        let (start, kernel_start) = (clock.now(), kernel_ns());
        let mut last = start;
        while kernel_ns() < kernel_start + 20_000_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        let (ours, kernel) = (clock.now().since(start), kernel_ns() - kernel_start);
        // Whatever happens between the two readings lengthens one of them; a wrong rate would be far off.
        assert!(ours.abs_diff(kernel) < kernel / 2, "{ours} ns here, {kernel} ns at the kernel");
    }
}
