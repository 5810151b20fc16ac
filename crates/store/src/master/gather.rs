//! The pause after which writes that wait for a disk go to the replicas together.
//!
//! ```text
//!  disk ── confirms n of n + m ─► n replies ─► n new requests ─► one write of n + m changes
//! ```
//!
//! A disk takes as long to confirm one change as to confirm many. When it has confirmed some,
//! clients that wait for each answer send the next change within a few microseconds. Without a
//! pause the next write would go with the m changes that had arrived before, and the n would wait
//! for the write after it: each change would wait for two writes of half the size.
//!
//! The master expects as many changes as there were in progress, and waits no longer for them than
//! a small part of the disk's time. A single writer never waits: its next change is all that the
//! master expects.

use sprat_proto::Instant;
use sprat_proto::time::US;

/// The longest pause: the time in which clients on the same two processors take 32 replies and send
/// the next requests. It is a fraction of the time that a disk takes. With 25 us few of them came
/// in time, and a write was no faster than without a pause.
const PAUSE_NS: u64 = 100 * US;

/// The changes that the master expects before it writes to the replicas.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// The number of changes in progress when the disk confirmed the last ones.
    expected: usize,
    /// The end of the pause.
    until: Instant,
}

impl Gather {
    /// Begins a pause: the disks have confirmed some changes, and of those `in_progress` before,
    /// `left` still wait.
    pub(super) fn confirmed(&mut self, now: Instant, in_progress: usize, left: usize) {
        if left < in_progress {
            (self.expected, self.until) = (in_progress, now.after(PAUSE_NS));
        }
    }

    /// Ends the pause: its time is over.
    pub(super) fn end(&mut self) {
        self.expected = 0;
    }

    /// Returns the end of the pause, if fewer changes wait than are expected.
    pub(super) fn pause(&self, waiting: usize) -> Option<Instant> {
        (waiting < self.expected).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Instant = Instant::from_ns(1000 + PAUSE_NS);

    #[test]
    fn as_many_changes_as_before_end_the_pause() {
        let mut gather = Gather::default();
        assert_eq!(gather.pause(0), None, "nothing was confirmed");
        gather.confirmed(Instant::from_ns(1000), 64, 32);
        assert_eq!((gather.pause(32), gather.pause(63)), (Some(LATER), Some(LATER)));
        assert_eq!(gather.pause(64), None);
    }

    #[test]
    fn a_single_writer_never_waits_and_nothing_confirmed_is_no_pause() {
        let mut gather = Gather::default();
        gather.confirmed(Instant::from_ns(1000), 1, 0);
        assert_eq!(gather.pause(1), None);
        gather.confirmed(Instant::from_ns(1000), 2, 0);
        gather.confirmed(Instant::from_ns(9000), 64, 64);
        assert_eq!(gather.pause(0), Some(LATER), "the pause is that of the first");
        gather.end();
        assert_eq!(gather.pause(0), None);
    }
}
