//! The wall clock of a master, by which objects expire.

use alloc::sync::Arc;
use core::fmt;

use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

use crate::types::WallTime;

/// The time between two readings of the wall clock, in nanoseconds. Between them the master counts
/// by its own clock.
const READING_NS: u64 = SECOND;

/// A function that returns the time of the wall clock at the given time.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn(Instant) -> WallTime + Send + Sync>);

impl WallClock {
    /// Makes a wall clock of a function.
    pub fn new(time: impl Fn(Instant) -> WallTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(time))
    }
}

impl Default for WallClock {
    /// Returns a clock that shows 1970 at the start of time.
    fn default() -> Self {
        Self::new(|now| WallTime(now.as_ns() / MS))
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

/// The wall clock and its last reading.
#[derive(Debug)]
pub(crate) struct Wall {
    clock: WallClock,
    read_at: Instant,
    reading: WallTime,
    /// The time of the next reading.
    due: Instant,
}

impl Wall {
    pub(super) fn new(clock: WallClock) -> Self {
        let zero = Instant::ZERO;
        Self { clock, read_at: zero, reading: WallTime(0), due: zero }
    }

    /// Returns the time of the wall clock.
    #[inline]
    pub(crate) fn at(&mut self, now: Instant) -> WallTime {
        if now >= self.due {
            self.read(now);
        }
        WallTime(self.reading.0.saturating_add(now.since(self.read_at) / MS))
    }

    #[cold]
    fn read(&mut self, now: Instant) {
        self.reading = (self.clock.0)(now);
        (self.read_at, self.due) = (now, now.after(READING_NS));
    }
}
