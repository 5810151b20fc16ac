//! The lag of the replicas of a log whose master does not wait for them (durability `async`).
//!
//! A mutation is acknowledged when the log has it, unless replicas lag: then it waits until they
//! have it. So at most [`MOST_BYTES`], none older than [`MOST_NS`] when the last one was
//! acknowledged, are lost with the master.
//!
//! ```text
//!  log  ──── replicated ────┤ floor ── acknowledged, not replicated ──┤ tail
//!                               mark: the floor, once it is replicated
//! ```
//!
//! Invariant: every mutation that was acknowledged and is not replicated was appended after the
//! floor's time, behind the floor's bytes.

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
struct Mark {
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
    /// The end of the log after the last mutation.
    last: Mark,
    /// The number of mutations that waited for replicas.
    waits: u64,
}

impl Lag {
    /// Returns true if a mutation that was just appended may be acknowledged without replicas.
    pub(crate) fn allows(&mut self, now: Instant, log: &Log) -> bool {
        let durable = log.durable();
        if durable >= self.last.position {
            self.floor = Mark { at: now, ..self.last };
            self.mark = self.floor;
        } else if durable >= self.mark.position {
            self.floor = self.mark;
            self.mark = Mark { at: now, ..self.last };
        }
        self.last = Mark { at: now, position: log.tail(), bytes: log.appended_bytes() };
        let bytes = self.last.bytes - self.floor.bytes;
        let allows = bytes <= MOST_BYTES && now.since(self.floor.at) <= MOST_NS;
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
