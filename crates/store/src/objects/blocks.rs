//! Memory for segments that is touched before the log needs it.
//!
//! The kernel gives memory page by page as it is touched for the first time, and a virtual machine
//! takes still longer: a fresh segment of 8 MiB costs the thread that first writes to it
//! milliseconds. So the log orders the next block before it needs it, and the host touches it
//! elsewhere, in a thread of its own. It orders late, since a log that grows no more does not
//! use it.
//!
//! Invariant: a log waits for at most one block, and orders none beyond its limit. A block that is
//! not ready in time is taken fresh, so that a late one may stay unused.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;

use sprat_proto::Instant;
use sprat_proto::time::MS;

/// The time over which the rate of appended bytes is measured.
const PERIOD_NS: u64 = 10 * MS;
/// The number of periods before the end of a segment at which the next block is ordered. A block of
/// 8 MiB is ready after 10 ms, and on a busy machine later.
const LEAD: u64 = 3;
/// A block is ordered in any case when this part of the segment before it is left.
const LAST_PART: usize = 8;

/// A host that prepares blocks of memory for a log.
pub trait Prepare: Debug + Send {
    /// Orders a block of this many bytes of memory, all of which the host touches.
    fn order(&mut self, bytes: usize);

    /// Returns an ordered block if one is ready. Its bytes have any values.
    fn ready(&mut self) -> Option<Vec<u8>>;
}

/// The block that a log has ordered, and when it orders one.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    host: Option<Box<dyn Prepare>>,
    is_ordered: bool,
    /// The number of bytes that were appended in the last whole period.
    rate: u64,
    /// The number of bytes that had been appended at the begin of this period.
    appended: u64,
    /// The begin of this period.
    since: Instant,
}

impl Blocks {
    /// Lets `host` prepare blocks from now on.
    pub(super) fn prepare(&mut self, host: Box<dyn Prepare>) {
        (self.host, self.is_ordered) = (Some(host), false);
    }

    /// Orders the next block of `bytes` bytes if it is needed soon. `room` bytes are left in the
    /// fullest open segment, and `appended` bytes have been appended since the start.
    pub(super) fn order(&mut self, bytes: usize, room: usize, appended: u64, now: Instant) {
        let Some(host) = &mut self.host else { return };
        let periods = now.since(self.since) / PERIOD_NS;
        if let Some(rate) = appended.saturating_sub(self.appended).checked_div(periods) {
            self.rate = rate;
            (self.appended, self.since) = (appended, now);
        }
        let is_soon = room <= bytes / LAST_PART || room as u64 <= LEAD * self.rate;
        if is_soon && !self.is_ordered {
            host.order(bytes);
            self.is_ordered = true;
        }
    }

    /// Returns a block of `bytes` bytes: the ordered one if it is ready.
    pub(super) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let ready = self.host.as_mut().and_then(|host| host.ready());
        if ready.is_some() {
            self.is_ordered = false;
        }
        ready.filter(|block| block.len() == bytes).unwrap_or_else(|| vec![0; bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 6400;

    /// A test's host, which prepares a block at once or never.
    #[derive(Debug)]
    struct Host {
        is_fast: bool,
        ordered: bool,
    }

    impl Prepare for Host {
        fn order(&mut self, bytes: usize) {
            assert!(!self.ordered && bytes == BYTES, "one block at a time");
            self.ordered = true;
        }

        fn ready(&mut self) -> Option<Vec<u8>> {
            (self.is_fast && core::mem::take(&mut self.ordered)).then(|| vec![7; BYTES])
        }
    }

    fn with_host(is_fast: bool) -> Blocks {
        let mut blocks = Blocks::default();
        blocks.prepare(Box::new(Host { is_fast, ordered: false }));
        blocks
    }

    /// Fills `segments` segments in this many periods each. Returns the part of each that was
    /// written when the next block was ordered, in percent.
    fn fill(blocks: &mut Blocks, segments: u64, periods: u64) -> Vec<u64> {
        let bytes = BYTES as u64;
        let mut ordered = Vec::new();
        for segment in 0..segments {
            let mut at = None;
            for step in 0..100 {
                let percent = segment * 100 + step;
                let now = Instant::from_ns(PERIOD_NS * (1 + periods * percent / 100));
                let room = BYTES - BYTES * step as usize / 100;
                blocks.order(BYTES, room, percent * bytes / 100, now);
                at = at.or_else(|| blocks.is_ordered.then_some(step));
            }
            ordered.extend(at);
            blocks.take(BYTES);
        }
        ordered
    }

    #[test]
    fn a_block_is_ordered_the_later_the_slower_the_log_grows() {
        assert_eq!(fill(&mut with_host(true), 3, 2)[1..], [0, 0]);
        let slow = fill(&mut with_host(true), 3, 7);
        assert!(slow[1..].iter().all(|&at| (55..=65).contains(&at)), "{slow:?}");
        let slower = fill(&mut with_host(true), 3, 1000);
        assert!(slower[1..].iter().all(|&at| (87..=88).contains(&at)), "{slower:?}");
    }

    #[test]
    fn a_log_that_grows_no_more_orders_nothing() {
        let mut blocks = with_host(true);
        fill(&mut blocks, 2, 2);
        let later = Instant::from_ns(PERIOD_NS * 1000);
        blocks.order(BYTES, BYTES / 2, 2 * BYTES as u64, later);
        assert!(!blocks.is_ordered);
        assert_eq!(blocks.take(BYTES), [0; BYTES]);
    }

    #[test]
    fn a_block_is_taken_when_it_is_ready_and_ordered_once() {
        for is_fast in [true, false] {
            let mut blocks = with_host(is_fast);
            fill(&mut blocks, 3, 2);
            blocks.order(BYTES, 0, 0, Instant::NEVER);
            let expected = if is_fast { 7 } else { 0 };
            assert_eq!(blocks.take(BYTES), [expected; BYTES]);
            assert_eq!(blocks.is_ordered, !is_fast, "a late block is that of the next order");
        }
    }
}
