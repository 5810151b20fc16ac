//! The watchdog of a worker's loop: turns that take long.
//!
//! ```text
//! turn begins ─► … ─► next turn begins: 100 µs after the last mark? ─► read the processor clock
//!                                       if the turn took more than 100 µs: count it
//!                                       if it took more than 1 ms: a stall, or preempted
//! ```
//! A turn pays a comparison with the clock's reading that the loop has. Each 100 µs of work end
//! with a *mark*: readings of the wall clock and of the thread's own processor clock at one moment.
//! What the wall clock has gained on the processor clock since the mark before a long turn is time
//! in which the thread did not run: another thread had the processor, the process was stopped, or
//! the kernel made it wait. A turn that used the processor itself for a millisecond is a *stall*.
//! Shorter ones are counted by length. The others are *preempted*.
//!
//! Up to 100 µs that the thread lost between the mark and the turn's begin count as the turn's.
//! Sleep is not part of a turn, and neither is the time for which the loop yields. A sleep that
//! ends much later than it was to end counts as preempted, too, and so does a long yield.

use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND, US};

/// The time in nanoseconds after which the clocks are marked again, and from which a turn counts.
const MARK_NS: u64 = 100 * US;
/// The time in nanoseconds from which a turn is a stall.
const LONG_NS: u64 = MS;
/// The time in nanoseconds from which a turn is reported in which the thread did not run. Shorter
/// ones are ordinary where threads share processors.
const LONG_WAIT_NS: u64 = 100 * MS;
/// The least time in nanoseconds between two reports.
const REPORT_EACH_NS: u64 = SECOND;

/// The factor by which a turn is longer than the last one that was reported, if it is reported at
/// once.
const MUCH_LONGER: u64 = 8;

/// A turn of a server's loop that took long.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The nanoseconds that the turn used the processor.
    pub processor_ns: u64,
    /// The nanoseconds of the turn in which its thread did not run.
    pub preempted_ns: u64,
    /// The operations and the tasks of the turn. None: it sent or received messages alone.
    pub done: Vec<String>,
    /// The number of long turns since the last report that were not reported.
    pub unreported: u64,
}

/// The function that takes reports about long turns.
pub(super) type Report = Box<dyn FnMut(&Stall) + Send>;

/// The counters of long turns.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The turns that used the processor for at least 100, 200 and 500 µs.
    from: [u64; 3],
    stalls: u64,
    /// The stalls of at least 4, 16, 64 and 256 ms.
    longer: [u64; 4],
    stall_ns: u64,
    preempted: u64,
    preempted_ns: u64,
}

impl Turns {
    /// Calls `each` with the name and the value of every counter.
    pub(super) fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("turns_from_100us", self.from[0]);
        each("turns_from_200us", self.from[1]);
        each("turns_from_500us", self.from[2]);
        each("stalls", self.stalls);
        each("stalls_from_4ms", self.longer[0]);
        each("stalls_from_16ms", self.longer[1]);
        each("stalls_from_64ms", self.longer[2]);
        each("stalls_from_256ms", self.longer[3]);
        each("stalls_ns", self.stall_ns);
        each("turns_preempted", self.preempted);
        each("turns_preempted_ns", self.preempted_ns);
    }

    /// Counts a turn that took long.
    fn count(&mut self, processor_ns: u64, preempted_ns: u64) {
        for (count, us) in self.from.iter_mut().zip([100, 200, 500]) {
            *count += u64::from(processor_ns >= us * US);
        }
        if processor_ns >= LONG_NS {
            self.stalls += 1;
            self.stall_ns += processor_ns;
            for (count, ms) in self.longer.iter_mut().zip([4, 16, 64, 256]) {
                *count += u64::from(processor_ns >= ms * MS);
            }
        }
        if preempted_ns >= LONG_NS {
            self.preempted += 1;
            self.preempted_ns += preempted_ns;
        }
    }
}

/// The watchdog of one worker.
pub(super) struct Stalls {
    /// The time of the next mark; never while the watchdog is off.
    mark_at: Instant,
    /// The begin of the present turn.
    began: Instant,
    /// The last mark: the wall clock and the thread's processor clock.
    mark: (Instant, u64),
    report: Option<Report>,
    next_report: Instant,
    /// The length of what was reported last, in nanoseconds.
    last_ns: u64,
    unreported: u64,
}

impl std::fmt::Debug for Stalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stalls").field("began", &self.began).finish_non_exhaustive()
    }
}

impl Stalls {
    /// Returns a watchdog that is off.
    pub(super) fn off() -> Self {
        Self {
            mark_at: Instant::NEVER,
            began: Instant::NEVER,
            mark: (Instant::ZERO, 0),
            report: None,
            next_report: Instant::ZERO,
            last_ns: 0,
            unreported: 0,
        }
    }

    /// Sets the function that takes reports about long turns, one a second at most.
    pub(super) fn report_to(&mut self, report: Report) {
        self.report = Some(report);
    }

    /// Turns the watchdog on: the loop runs from now on.
    pub(super) fn start(&mut self, now: Instant, processor_ns: u64) {
        self.mark = (now, processor_ns);
        self.mark_at = now.after(MARK_NS);
        self.began = now;
    }

    /// Returns true if [`Stalls::ended`] has to judge the turn that ends at `now`.
    #[inline(always)]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.mark_at
    }

    /// Records the begin of a turn, or the end of a time that is part of no turn.
    #[inline(always)]
    pub(super) fn begin(&mut self, now: Instant) {
        self.began = now;
    }

    /// Ends the turn before `now`, at which the thread has used the processor for `processor_ns`.
    /// Returns the begin of the turn if it has to be reported, with its processor time and the time
    /// in which the thread did not run.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        processor_ns: u64,
        turns: &mut Turns,
    ) -> Option<(Instant, u64, u64)> {
        let took_ns = now.since(self.began);
        let lost_ns = now.since(self.mark.0).saturating_sub(processor_ns - self.mark.1);
        self.mark = (now, processor_ns);
        self.mark_at = now.after(MARK_NS);
        if took_ns < MARK_NS {
            return None;
        }
        let preempted_ns = lost_ns.min(took_ns);
        let own_ns = took_ns - preempted_ns;
        turns.count(own_ns, preempted_ns);
        let is_short = own_ns < LONG_NS && preempted_ns < LONG_WAIT_NS;
        (!is_short && self.may_report(now, took_ns)).then_some((self.began, own_ns, preempted_ns))
    }

    /// Returns true if a time of this length may be reported now, or else counts it. One that is
    /// much longer than the last one need not wait.
    fn may_report(&mut self, now: Instant, length_ns: u64) -> bool {
        if self.report.is_none() {
            return false;
        }
        if now < self.next_report && length_ns < self.last_ns.saturating_mul(MUCH_LONGER) {
            self.unreported += 1;
            return false;
        }
        self.next_report = now.after(REPORT_EACH_NS);
        self.last_ns = length_ns;
        true
    }

    /// Reports a turn that [`Stalls::ended`] has returned.
    pub(super) fn report(&mut self, processor_ns: u64, preempted_ns: u64, done: Vec<String>) {
        let unreported = std::mem::take(&mut self.unreported);
        if let Some(report) = &mut self.report {
            report(&Stall { processor_ns, preempted_ns, done, unreported });
        }
    }

    /// The thread slept from `from` to `now`, which is part of no turn. It was to wake after
    /// `limit_ns`. If it woke much later, the process did not run meanwhile. Returns that time in
    /// nanoseconds if it has to be reported.
    pub(super) fn slept(
        &mut self,
        from: Instant,
        limit_ns: u64,
        now: Instant,
        turns: &mut Turns,
    ) -> Option<u64> {
        // The processor clock stands still while the thread sleeps.
        let rest_ns = now.since(from);
        self.mark.0 = self.mark.0.after(rest_ns);
        if self.mark_at != Instant::NEVER {
            self.mark_at = self.mark_at.after(rest_ns);
        }
        self.began = now;
        self.lost(rest_ns.saturating_sub(limit_ns), now, turns)
    }

    /// The thread yielded from `from` to `now`, which is part of no turn. Returns the nanoseconds
    /// if the time is long and has to be reported.
    pub(super) fn yielded(
        &mut self,
        from: Instant,
        now: Instant,
        turns: &mut Turns,
    ) -> Option<u64> {
        self.began = now;
        self.lost(now.since(from), now, turns)
    }

    /// Counts a time outside of turns in which the thread did not run, if it is long. Returns it if
    /// it has to be reported.
    fn lost(&mut self, lost_ns: u64, now: Instant, turns: &mut Turns) -> Option<u64> {
        if lost_ns < LONG_WAIT_NS || self.mark_at == Instant::NEVER {
            return None;
        }
        turns.count(0, lost_ns);
        self.may_report(now, lost_ns).then_some(lost_ns)
    }
}

#[cfg(test)]
mod tests;
