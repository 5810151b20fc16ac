//! The sizes and counts of a log.

use super::{LEAST_GAIN, Log, REMOVALS, SURVIVORS};
use crate::objects::entry;

impl Log {
    /// Returns the number of bytes of live entries in the log. A record counts as the longest
    /// completion that stands alone, and its old value.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live
    }

    /// Returns the number of bytes of live tombstones in the log.
    #[must_use]
    pub fn tombstone_bytes(&self) -> u64 {
        self.tombstones
    }

    /// Returns the number of bytes of entries that have died since the start. The cleaner uses it
    /// as a clock.
    #[must_use]
    pub fn died_bytes(&self) -> u64 {
        self.died
    }

    /// Returns the number of bytes appended to the log since the start, those of the cleaner
    /// included.
    #[must_use]
    pub fn appended_bytes(&self) -> u64 {
        self.appended
    }

    /// Returns a number that grows with each appended entry and each closed segment.
    #[must_use]
    #[inline]
    pub fn changes(&self) -> u64 {
        self.appended + self.closings
    }

    /// Returns the number of bytes appended to the log since the start, without those of the
    /// cleaner.
    #[must_use]
    #[inline]
    pub fn written_bytes(&self) -> u64 {
        self.appended - self.survived
    }

    /// Returns the number of segments that were opened since the start. The cleaner uses it as a
    /// clock.
    #[must_use]
    #[inline]
    pub fn clock(&self) -> u32 {
        self.last_id.0
    }

    /// Returns the maximum of live bytes in the log.
    #[must_use]
    pub fn live_limit(&self) -> u64 {
        self.live_limit_with(0)
    }

    /// Returns the maximum of live bytes in the log for an append of `len` bytes. New data may fill
    /// 95 % of the log without the reserve, so that cleaning stays cheap. It must also fit into all
    /// segments without the reserve, the next head and the survivor for old entries, after
    /// cleaning: the cleaner leaves 1/64 of a segment alone, and the end of each segment may have
    /// less room than the longest entry needs.
    #[must_use]
    pub fn live_limit_with(&self, len: usize) -> u64 {
        let segment = u64::from(self.segment_bytes);
        let usable = u64::from(self.limit - SURVIVORS - REMOVALS);
        let waste = u64::from(self.waste).max(len as u64) + segment / u64::from(LEAST_GAIN);
        let front = (entry::HEADER + self.longest_digest()) as u64;
        let closed = usable - 1 - u64::from(self.sorts());
        let surely = closed * segment.saturating_sub(waste + front);
        surely.min(usable * segment / 100 * 95)
    }

    /// Returns the size of the log in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.limit) * u64::from(self.segment_bytes)
    }

    // Segments.

    /// Returns the number of segments that the log may still open. A freed segment counts even if
    /// replies still refer to its memory, for the next segment takes other memory.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.limit - self.order.len() as u32
    }

    /// Returns the number of segments that have memory, without those that only replies refer to.
    #[must_use]
    pub fn taken(&self) -> u32 {
        (self.order.len() + self.free.len()) as u32
    }

    /// Returns the number of times since the start that a head segment was closed, or that more
    /// segments were durable and could be cleaned. The cleaner uses it as a clock.
    #[must_use]
    pub fn closings(&self) -> u64 {
        self.closings
    }

    /// Returns the number of free segments with memory.
    #[must_use]
    pub fn spare(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the size of each segment of the log in bytes.
    #[must_use]
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Returns the maximum of segments in the log.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }
}
