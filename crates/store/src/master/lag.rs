//! The lag of the replicas behind mutations that do not wait for them (durability `async`, of the
//! cluster or of a table).
//!
//! A mutation is acknowledged when the log has it, unless replicas lag: then it waits until they
//! have it. So at most [`MOST_BYTES`], none older than [`MOST_NS`] when the last one was
//! acknowledged, are lost with the master.
//!
//! ```text
//!  log  ──── replicated ────┤ floor ── acknowledged, not replicated ──┤ last, tail
//!                               mark: the floor, once it is replicated
//! ```
//!
//! Invariant: every mutation that was acknowledged and is not replicated was appended after the
//! floor's time, behind the floor's bytes. The mutations of other tables, which wait, count there
//! as bytes, too.

use sprat_proto::Instant;
use sprat_proto::time::MS;

use crate::objects::log::Log;
use crate::objects::segment::Position;

/// The most bytes of the log that are acknowledged and not replicated.
const MOST_BYTES: u64 = 1 << 20;
/// The age that an entry of the log may reach without replicas while mutations are acknowledged.
const MOST_NS: u64 = 10 * MS;

/// An end of the log, and when it was the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    at: Instant,
    position: Position,
    /// The number of bytes that were appended to the log up to here.
    bytes: u64,
}

/// The part of a log that is acknowledged and may not be replicated.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    floor: Mark,
    mark: Mark,
    /// The end of the log after the last mutation that asked.
    last: Mark,
    /// The number of mutations that waited for replicas.
    waits: u64,
}

impl Mark {
    /// Returns the end of the log.
    pub(crate) fn new(now: Instant, log: &Log) -> Self {
        Self { at: now, position: log.tail(), bytes: log.appended_bytes() }
    }
}

impl Lag {
    /// Returns true if a mutation that was just appended behind `before` may be acknowledged
    /// without replicas.
    pub(crate) fn allows(&mut self, before: Mark, log: &Log) -> bool {
        let durable = log.durable();
        if durable >= self.last.position {
            self.floor = before;
            self.mark = before;
        } else if durable >= self.mark.position {
            self.floor = self.mark;
            self.mark = before;
        }
        self.last = Mark::new(before.at, log);
        let bytes = self.last.bytes - self.floor.bytes;
        let allows = bytes <= MOST_BYTES && before.at.since(self.floor.at) <= MOST_NS;
        self.waits += u64::from(!allows);
        allows
    }

    /// Returns the most bytes that are acknowledged and not replicated, and the number of mutations
    /// that waited.
    pub(crate) fn counts(&self, log: &Log) -> (u64, u64) {
        let is_replicated = log.durable() >= self.last.position;
        let bytes = if is_replicated { 0 } else { self.last.bytes - self.floor.bytes };
        (bytes, self.waits)
    }
}
