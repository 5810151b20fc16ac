//! The memory that the cleaner keeps free, and whether it is short.

use crate::objects::log::MIN_SEGMENTS;
use crate::objects::memory::Memory;

/// The free memory that the cleaner aims at, in quarters of segments. Writes wait when
/// [`SURVIVORS`](crate::objects::log::SURVIVORS) + [`REMOVALS`](crate::objects::log::REMOVALS)
/// segments are left. The rest is the room of open segments and what has been passed of the present
/// one: when the head is full, another segment is free.
const RESERVE: u64 = 4 * (MIN_SEGMENTS as u64 - 1);
/// The free memory beyond [`RESERVE`] at which the cleaner aims in a log with a survivor for old
/// entries, since the room of this survivor is of no use to others. With half a segment less, one
/// of 5,000 writes found no free segment while 90 % were live.
const RESERVE_TO_SORT: u64 = 3;
/// The number of segments that the log takes before its size alone is a reason to clean.
pub(super) const TAKEN_FREELY: u32 = 16;
/// The number of segments that the cleaner keeps ready when it cleans only to limit the log's size.
const SPARE: u32 = 2;

/// Returns the number of bytes that the cleaner keeps free.
#[inline]
pub(super) fn reserve_bytes(memory: &Memory) -> u64 {
    let quarters = RESERVE + if memory.log.sorts() { RESERVE_TO_SORT } else { 0 };
    quarters * u64::from(memory.log.segment_bytes()) / 4
}

/// Returns the number of bytes in free segments and in the room of open ones.
#[inline]
pub(super) fn free_bytes(memory: &Memory) -> u64 {
    let log = &memory.log;
    u64::from(log.available()) * u64::from(log.segment_bytes()) + log.open_room()
}

/// Returns true if too little memory is free. It also is if less than half of the memory that
/// the log has taken is live and the next segments would be new memory: to touch new memory costs
/// more than to copy a few live entries.
pub(super) fn is_short(memory: &Memory) -> bool {
    let log = &memory.log;
    if free_bytes(memory) < reserve_bytes(memory) + u64::from(log.segment_bytes()) / 2 {
        return true;
    }
    let taken = u64::from(log.taken()) * u64::from(log.segment_bytes());
    log.taken() >= TAKEN_FREELY && log.live_bytes() < taken / 2 && log.spare() < SPARE
}
