//! The search for objects that have expired, so that their memory returns although nothing reads
//! them.
//!
//! Each segment of the log keeps the earliest time at which one of its objects may expire. A pass
//! over all segments reads those whose time has come, entry by entry, removes the objects that have
//! expired and notes the next time.
//!
//! Invariants: a step does bounded work. A pass starts [`PAUSE_NS`] after the end of the one before
//! at the earliest, or later after a long one, unless a write lacks memory and a pass could free
//! some. A log without objects that expire costs nothing.

use sprat_proto::Instant;
use sprat_proto::time::MS;

use super::cleaner::STEP;
use super::entry::{self, HEADER, Head};
use super::log::Full;
use super::memory::Memory;
use super::segment::{Location, SegmentId, State};
use super::table::spread;
use crate::types::WallTime;

/// The shortest pause between two passes, in nanoseconds.
const PAUSE_NS: u64 = 1000 * MS;
/// The pause after a pass that took longer, in times of its duration.
const PAUSE_SHARE: u64 = 4;
/// The pause after a removal for which the log had no room, in nanoseconds.
const FULL_NS: u64 = 10 * MS;
/// The work that a segment costs, an entry, and a removal, in bytes of a cleaning step
/// ([`STEP`]).
const SLOT_COST: usize = 32;
const ENTRY_COST: usize = 16;
const REMOVAL_COST: usize = 256;

/// The state of the search between steps.
#[derive(Debug, Default)]
pub struct Expiry {
    pass: Option<Pass>,
    /// The time of the next step.
    next: Instant,
    /// True if the last pass had to leave objects that had expired.
    left_some: bool,
}

/// A pass over all segments, which has come to an entry of the segment in `slot`.
#[derive(Clone, Copy, Debug)]
struct Pass {
    start: Instant,
    /// True if it has left objects that have expired, for their tablets are not served.
    left_some: bool,
    slot: usize,
    /// The segment in the slot of which entries have been read.
    reading: Option<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    id: SegmentId,
    offset: usize,
    /// The earliest time at which one of the entries so far expires.
    earliest: WallTime,
}

impl Expiry {
    /// Returns the time of the next step, [`Instant::NEVER`] if no object expires.
    #[must_use]
    #[inline]
    pub fn deadline(&self, memory: &Memory) -> Instant {
        if memory.log.has_expiring() { self.next } else { Instant::NEVER }
    }

    /// Lets the next step follow at once, if a pass is in progress or could free memory. Returns
    /// true if so.
    pub fn hurry(&mut self, memory: &Memory, now: Instant, wall: WallTime) -> bool {
        let pays = memory.log.has_expiring()
            && !(self.left_some && now < self.next)
            && (self.pass.is_some() || is_any_due(memory, wall));
        if pays {
            self.next = Instant::ZERO;
        }
        pays
    }

    /// Lets the next step wait a little, for the log can take no removals now.
    pub fn postpone(&mut self, now: Instant) {
        self.next = self.next.max(now.after(FULL_NS));
    }

    /// Does a step at once for something that lacks memory. Returns true if that has freed some, or
    /// if the next step may.
    pub fn make_room(&mut self, memory: &mut Memory, now: Instant, wall: WallTime) -> bool {
        let before = memory.expired;
        let more = self.hurry(memory, now, wall) && self.step(memory, now, wall, STEP);
        more || memory.expired != before
    }

    /// Does about `work` bytes of a step. Returns true if there is more to do at once.
    pub fn step(&mut self, memory: &mut Memory, now: Instant, wall: WallTime, work: usize) -> bool {
        if !memory.log.has_expiring() || now < self.next {
            return false;
        }
        let mut left = work;
        let mut pass = self.pass.take().unwrap_or_else(|| Pass::new(now));
        while left > 0 {
            if pass.slot >= memory.log.slots().len() {
                memory.log.note_expiring();
                self.left_some = pass.left_some;
                self.next = now.after(PAUSE_NS.max(PAUSE_SHARE * now.since(pass.start)));
                return false;
            }
            left = left.saturating_sub(SLOT_COST);
            if !is_due(memory, &pass, wall) {
                pass = pass.behind();
                continue;
            }
            if read(memory, &mut pass, wall, &mut left).is_err() {
                self.pass = Some(pass);
                self.postpone(now);
                return false;
            }
        }
        self.pass = Some(pass);
        true
    }
}

impl Pass {
    fn new(start: Instant) -> Self {
        Self { start, left_some: false, slot: 0, reading: None }
    }

    /// Returns the pass at the next segment.
    fn behind(self) -> Self {
        Self { slot: self.slot + 1, reading: None, ..self }
    }
}

/// Returns true if an object of the log may have expired.
fn is_any_due(memory: &Memory, wall: WallTime) -> bool {
    (0..memory.log.slots().len()).any(|slot| memory.log.earliest_expiry(slot) <= wall)
}

/// Reads entries of a segment and removes the objects among them that have expired.
fn read(
    memory: &mut Memory,
    pass: &mut Pass,
    wall: WallTime,
    left: &mut usize,
) -> Result<(), Full> {
    let id = memory.log.slots()[pass.slot].id;
    let begin = Reading { id, offset: HEADER, earliest: WallTime::NEVER };
    let mut reading = pass.reading.filter(|reading| reading.id == id).unwrap_or(begin);
    while *left > 0 {
        let segment = &memory.log.slots()[pass.slot];
        let entry = &segment.bytes[reading.offset..segment.written as usize];
        let Some(head) = Head::of(entry) else {
            memory.log.set_earliest_expiry(pass.slot, reading.earliest);
            *pass = pass.behind();
            return Ok(());
        };
        *left = left.saturating_sub(ENTRY_COST);
        if head.expires() && !head.is_dead() {
            let expires = entry::object(entry).expires;
            let at = Location::new(pass.slot as u32, reading.offset as u32);
            if expires <= wall {
                *left = left.saturating_sub(REMOVAL_COST + head.entry_len());
                // A removal for which there is no room is tried again by the next step.
                pass.reading = Some(reading);
            }
            if wall < expires || !remove(memory, at)? {
                reading.earliest = reading.earliest.min(expires);
                pass.left_some |= expires <= wall;
            }
        }
        reading.offset += head.entry_len();
    }
    pass.reading = Some(reading);
    Ok(())
}

/// Removes the object at `at`, if the hash table points to it. Returns false if it has to stay:
/// while its tablet is recovered, the replay of an older version must find it.
fn remove(memory: &mut Memory, at: Location) -> Result<bool, Full> {
    let Memory { log, tablets, table, .. } = memory;
    let object = log.object(at);
    let Some(hash) = tablets.locate(object.table, object.key) else { return Ok(false) };
    if let Some(place) = table.place(spread(object.table, hash), at) {
        memory.expire(place, at)?;
    }
    Ok(true)
}

/// Returns true if the pass has to read the segment in its slot.
fn is_due(memory: &Memory, pass: &Pass, wall: WallTime) -> bool {
    let is_in_log = matches!(memory.log.slots()[pass.slot].state, State::Open | State::Closed);
    is_in_log && memory.log.earliest_expiry(pass.slot) <= wall
}

#[cfg(test)]
mod tests;
