//! The cleaner: makes free segments out of segments in which much is dead.
//!
//! It begins when free segments are few, and before that when the log would take new memory though less than half of
//! what it has is live: so a server's size follows its data. It takes the segment that promises most, copies what is live to a survivor segment, lets the tables point there, and
//! frees the rest:
//!
//! ```text
//!  promise = reclaimable bytes × age / (size + live bytes)     (cost-benefit: old segments are worth it earlier, since
//!                                                              what is still live in them will probably stay so)
//! ```
//!
//! Live are: an object that the hash table points to; a completion that [`crate::objects::rifl`] remembers;
//! a tombstone as long as one of the segments that may hold its object is in the log. What has died
//! of the first two is marked in the log, so that passing by it costs no look into the tables. What
//! always holds: a step does bounded work, between steps the log and the tables agree; what replies
//! point into is cleaned as anything else ([`crate::objects::log`] keeps their bytes); it never cleans what
//! gives less than 1/64 of a segment, so it comes to rest when memory is full of live data. If
//! tombstones outlive their use because old segments are never worth cleaning, it cleans those,
//! oldest first.

use crate::objects::entry::{self, Entry, HEAD, HEADER};
use crate::objects::log::Full;
use crate::objects::memory::Memory;
use crate::objects::segment::{Location, SegmentId, State};
use crate::objects::table::spread;

/// The work of one step, in bytes: a copied byte counts one, a live entry 256 more (it costs some cache misses).
pub const STEP: usize = 64 << 10;
const LIVE_COST: usize = 256;
const DEAD_COST: usize = 16;
const SLOT_COST: usize = 256;
/// How many segments the log takes before it is cleaned for its size's sake.
const TAKEN_FREELY: u32 = 16;
/// Segments that it then keeps ready.
const SPARE: u32 = 2;

/// See the module.
#[derive(Debug, Default)]
pub struct Cleaner {
    phase: Phase,
    /// At rest until so many bytes have died, less is asked of a segment than `rest_gain`, or
    /// another head was closed than these.
    rest_until_died: u64,
    rest_gain: u32,
    rest_closings: u64,
    /// Cleaning oldest segments for their tombstones' sake, up to this segment.
    round: Option<SegmentId>,
    /// No further round until so many bytes have been appended.
    next_round: u64,
    cleaned: u64,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Rest,
    /// Looking at all segments, a few a step.
    Choose { slot: usize, best: Option<(u128, u32)> },
    /// Cleaning the segment in `slot`, from `offset` on.
    Clean { slot: u32, offset: usize },
}

impl Cleaner {
    /// True if there is work that can be done.
    #[must_use]
    pub fn wanted(&self, memory: &Memory) -> bool {
        let log = &memory.log;
        match self.phase {
            Phase::Rest => {
                let rested = log.died_bytes() >= self.rest_until_died
                    || least_gain(memory) < self.rest_gain
                    || log.closings() != self.rest_closings;
                low(memory) && rested
            }
            Phase::Choose { .. } | Phase::Clean { .. } => true,
        }
    }

    /// Segments that it has cleaned.
    #[must_use]
    pub fn cleaned(&self) -> u64 {
        self.cleaned
    }

    /// Does about `budget` bytes of work ([`STEP`]); `stamp` is the time in seconds. True if there is more to do.
    pub fn step(&mut self, memory: &mut Memory, stamp: u32, budget: usize) -> bool {
        let mut left = budget;
        while left > 0 {
            if !self.wanted(memory) {
                return false;
            }
            match self.phase {
                Phase::Rest => self.begin(memory),
                Phase::Choose { slot, best } => self.choose(memory, stamp, slot, best, &mut left),
                Phase::Clean { slot, offset } => {
                    if self.clean(memory, slot, offset, &mut left).is_err() {
                        // The log has used up its segments' numbers: nothing can be cleaned any
                        // more.
                        return false;
                    }
                }
            }
        }
        self.wanted(memory)
    }

    /// Begins to look at all segments. If none is worth it, what happens from here on may change
    /// that.
    fn begin(&mut self, memory: &Memory) {
        self.rest_gain = least_gain(memory);
        self.rest_until_died = memory.log.died_bytes() + u64::from(self.rest_gain);
        self.rest_closings = memory.log.closings();
        self.phase = Phase::Choose { slot: 0, best: None };
    }

    /// Looks at some more segments.
    fn choose(
        &mut self,
        memory: &Memory,
        stamp: u32,
        mut slot: usize,
        mut best: Option<(u128, u32)>,
        left: &mut usize,
    ) {
        let slots = memory.log.slots();
        while slot < slots.len() && *left > 0 {
            *left = left.saturating_sub(SLOT_COST);
            let promise = promise(memory, slot, stamp);
            if promise > best.map_or(0, |(promise, _)| promise) {
                best = Some((promise, slot as u32));
            }
            slot += 1;
        }
        self.phase = match (best, slot < slots.len()) {
            (best, true) => Phase::Choose { slot, best },
            (Some((_, slot)), false) => Phase::Clean { slot, offset: HEADER },
            (None, false) => match self.oldest(memory) {
                Some(slot) => Phase::Clean { slot, offset: HEADER },
                None => Phase::Rest,
            },
        };
    }

    /// The oldest segment, if tombstones take much memory and cleaning it can free some.
    fn oldest(&mut self, memory: &Memory) -> Option<u32> {
        let log = &memory.log;
        if log.tombstone_bytes() < log.capacity_bytes() / 16 {
            return None;
        }
        let end = match self.round {
            Some(end) => end,
            None if log.appended_bytes() < self.next_round => return None,
            None => {
                self.next_round = log.appended_bytes() + log.capacity_bytes();
                *self.round.insert(log.tail().segment)
            }
        };
        let oldest = log
            .segments()
            .take_while(|&(id, _)| id < end)
            .find(|(_, segment)| segment.state == State::Closed)
            .and_then(|(id, _)| log.slot(id));
        if oldest.is_none() {
            self.round = None;
        }
        oldest
    }

    /// Cleans some entries of the segment in `slot`; frees it after the last.
    fn clean(
        &mut self,
        memory: &mut Memory,
        slot: u32,
        mut offset: usize,
        left: &mut usize,
    ) -> Result<(), Full> {
        loop {
            if *left == 0 {
                self.phase = Phase::Clean { slot, offset };
                return Ok(());
            }
            *left = left.saturating_sub(DEAD_COST);
            let segment = &memory.log.slots()[slot as usize];
            let entries = &segment.bytes[offset..segment.written as usize];
            if let Some(len) = entry::dead(entries) {
                offset += len;
                continue;
            }
            let Some((entry, len)) = entry::parse(entries) else {
                debug_assert!(entries.is_empty(), "an entry of our own makes no sense");
                break;
            };
            if let Entry::Group(_) = entry {
                offset += HEAD;
                continue;
            }
            let moved = move_entry(memory, Location::new(slot, offset as u32), len);
            if moved.inspect_err(|_| self.phase = Phase::Clean { slot, offset })? {
                *left = left.saturating_sub(LIVE_COST + len);
            }
            offset += len;
        }
        memory.log.free(slot);
        self.cleaned += 1;
        self.rest_until_died = 0;
        self.phase = Phase::Rest;
        Ok(())
    }
}

/// True if free segments are few: less than a tenth. Also if less than half of what the log took so far is live and the
/// next segments would be new memory: that is dearer to touch than a few live entries to copy, and a server's size
/// follows its data.
fn low(memory: &Memory) -> bool {
    let log = &memory.log;
    let bytes = u64::from(log.taken()) * u64::from(log.segment_bytes());
    let sparse = log.taken() >= TAKEN_FREELY && log.live_bytes() < bytes / 2 && log.spare() < SPARE;
    sparse || log.available() < (log.limit() / 10).max(crate::objects::log::MIN_SEGMENTS - 1)
}

/// The fewest bytes that a segment must give: an eighth of it, or much less if writes have to wait.
fn least_gain(memory: &Memory) -> u32 {
    let log = &memory.log;
    let urgent = log.available() <= crate::objects::log::MIN_SEGMENTS - 2;
    log.segment_bytes() / if urgent { crate::objects::log::LEAST_GAIN } else { 8 }
}

/// What cleaning the segment in `slot` promises; 0 if nothing.
fn promise(memory: &Memory, slot: usize, stamp: u32) -> u128 {
    let segment = &memory.log.slots()[slot];
    if segment.state != State::Closed {
        return 0;
    }
    let useless =
        segment.tombstones > 0 && memory.log.narrow(segment.buried, segment.id).is_empty();
    let live = if useless { segment.live - segment.tombstones } else { segment.live };
    let room = if segment.closed_early { segment.room() as u32 } else { 0 };
    let gain = segment.written - HEADER as u32 - live + room;
    if gain < least_gain(memory) {
        return 0;
    }
    let age = stamp.saturating_sub(segment.mean_stamp()) + 1;
    ((u128::from(gain) * u128::from(age)) << 20) / u128::from(segment.bytes.len() as u32 + live)
}

/// Moves the entry of `len` bytes at `at` if it is live; whether it was.
fn move_entry(memory: &mut Memory, at: Location, len: usize) -> Result<bool, Full> {
    let Memory { log, table, tablets, results, .. } = memory;
    let cleaned = log.slots()[at.slot()].id;
    match entry::parse(log.bytes(at)) {
        Some((Entry::Object(object), _)) => {
            let Some(hash) = tablets.hash(object.table, object.key) else { return Ok(false) };
            let Some(place) = table.find(spread(object.table, hash), |other| other == at) else {
                return Ok(false);
            };
            let (stamp, older) = (object.stamp, log.narrow(object.older, cleaned));
            let (to, copy) = log.relocate(at, len, stamp)?;
            entry::set_older(copy, older);
            table.set(place, to);
        }
        Some((Entry::Tombstone(tombstone), _)) => {
            let (stamp, older) = (tombstone.stamp, log.narrow(tombstone.older, cleaned));
            if older.is_empty() {
                log.dead_tombstone(at, len);
                return Ok(false);
            }
            log.relocate_tombstone(at, len, stamp, older)?;
        }
        Some((Entry::Completion(completion), _)) => {
            if results.location(completion.once) != Some(at) {
                return Ok(false);
            }
            let stamp = log.slots()[at.slot()].mean_stamp();
            let (to, _) = log.relocate(at, len, stamp)?;
            results.moved(completion.once, to);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
