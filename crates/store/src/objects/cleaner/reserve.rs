//! The memory that the cleaner keeps free, and whether it is short.

use crate::objects::log::{MIN_SEGMENTS, REMOVALS, SURVIVORS};
use crate::objects::memory::Memory;

/// The free memory that the cleaner aims at, in quarters of segments. Writes wait when
/// [`SURVIVORS`] + [`REMOVALS`] segments are left. The rest is the room of open segments and what
/// has been passed of the present one: when the head is full, another segment is free.
const RESERVE: u64 = 4 * (MIN_SEGMENTS as u64 - 1);
/// The free memory beyond [`RESERVE`] at which the cleaner aims in a log with a survivor for old
/// entries, since the room of this survivor is of no use to others. With half a segment less, one
/// of 5,000 writes found no free segment while 90 % were live.
const RESERVE_TO_SORT: u64 = 3;
/// The number of segments that the log takes before its size alone is a reason to clean.
pub(super) const TAKEN_FREELY: u32 = 16;
/// The number of segments that the cleaner keeps ready when it cleans only to limit the log's size.
const SPARE: u32 = 2;

/// Returns the number of bytes that the cleaner keeps free, without a segment for a job of a
/// helper.
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

/// The free memory that the cleaner keeps for the next job of a helper, in quarters of a segment.
/// With a quarter less than a server's job needs, a helper got one of ten jobs in a log that was
/// live to 89 %.
pub(super) const HELP_ROOM: u64 = 6;
/// The free memory beyond what a job needs from which on the cleaner wants no help, in quarters of
/// a segment. With twice as much, a helper had hardly more to do, and 5 % more was moved.
const ENOUGH: u64 = 6;

/// Returns true if so little memory is free that a helper should work, and so much that its job may
/// take a segment: this many `quarters` of one beyond what the cleaner keeps free.
#[inline]
pub(super) fn wants_help(memory: &Memory, quarters: u32) -> bool {
    let log = &memory.log;
    let quarter = u64::from(log.segment_bytes()) / 4;
    let least = reserve_bytes(memory) + u64::from(quarters) * quarter;
    let most = least + ENOUGH * quarter;
    log.available() > SURVIVORS + REMOVALS + 1 && (least..most).contains(&free_bytes(memory))
}

/// Returns true if too little memory is free to keep `reserve` bytes. It also is if less than half
/// of the memory that the log has taken is live and the next segments would be new memory: to touch
/// new memory costs more than to copy a few live entries.
pub(super) fn is_short(memory: &Memory, reserve: u64) -> bool {
    let log = &memory.log;
    if free_bytes(memory) < reserve + u64::from(log.segment_bytes()) / 2 {
        return true;
    }
    let taken = u64::from(log.taken()) * u64::from(log.segment_bytes());
    log.taken() >= TAKEN_FREELY && log.live_bytes() < taken / 2 && log.spare() < SPARE
}
