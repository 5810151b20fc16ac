//! The cleaner makes free segments out of segments in which much is dead (RAMCloud's log cleaning).
//!
//! It works while few segments are free. It also works while less than half of the log is live and
//! the log would have to take new memory, so that the size of a server follows its data. It chooses
//! the segments with the highest benefit, copies their live entries to the survivor segment for
//! entries of their age ([`Log::begin_moving`]), lets the tables point to the copies, and frees the
//! segment:
//!
//! ```text
//!  benefit = reclaimable bytes × age / (size + live bytes)
//! ```
//!
//! The age counts the segments that the log has opened since this one: entries that have survived
//! for long are likely to survive longer, so that old segments are worth cleaning earlier. It is
//! the age of the segment, not of its entries (as in RAMCloud, other than in LFS): cleaned entries
//! count as young, or cold segments would be cleaned again and again although little in them is
//! dead. One scan of all segments chooses several of them.
//!
//! An entry is live if it is an object that the hash table points to, a completion record that
//! [`rifl`](super::rifl) remembers, or a tombstone while one of the segments that may hold its
//! object is in the log. A record moves with its object, and alone if only the record is live. The
//! log marks dead objects and records, so that the cleaner skips them without a look-up. The rest
//! is cleaned in groups: a first pass computes the hashes of a group, a second one touches the
//! lines of the hash table and the memory of the copies, so that their cache misses overlap, and a
//! third one moves the entries. Before the first pass the group's part of the segment is loaded.
//!
//! Writes pay for the cleaning that they cause ([`Cleaner::pay`]): the budget of a step is the
//! number of bytes written since the last one, times the bytes to clean for one byte of free
//! memory. So a request waits for a small step at most. In idle time the cleaner makes full steps.
//! `pace` has the price, `reserve` the memory that stays free.
//!
//! Invariants: a step does bounded work; between steps the log and the tables agree; slices in
//! replies do not delay cleaning; the cleaner skips segments that would yield less than 1/64 of
//! their size, and thus rests when memory is full of live data. When tombstones outlive their
//! purpose because old segments are never worth cleaning, the cleaner cleans those, the oldest
//! first.

use alloc::vec::Vec;
use core::hint::black_box;

use super::cache;
use super::entry::{self, COMPLETION, Completion, Entry, HEADER, Head, Outcome, Record};
use super::log::{Full, LEAST_GAIN, Log, MIN_SEGMENTS};
use super::memory::Memory;
use super::segment::{Location, SegmentId, Span, State};
use super::table::spread;
use super::tablet::Tablets;
use crate::message::Status;
use crate::message::data::Once;
use crate::types::{TableId, Version};

mod help;
mod helped;
mod job;
mod late;
mod pace;
mod reserve;

use help::Help;
pub use help::Worth;
pub use job::{Copier, Job};
pub use late::Late;

/// The amount of work of one cleaning step in idle time, in bytes.
///
/// A copied byte counts one. A live entry counts 64 more, for its look-up.
pub const STEP: usize = 64 << 10;
/// The amount of work of one cleaning step while requests wait, in bytes.
pub const SMALL_STEP: usize = 8 << 10;
const LIVE_COST: usize = 64;
const DEAD_COST: usize = 16;
const SLOT_COST: usize = 256;
/// The maximum of entries in a group: the cleaner touches their table lines before it moves the
/// first of them.
const GROUP: usize = 32;
/// The number of bytes that a group loads ahead of its segment, and of the memory of the copies, at
/// most: those of small entries. Long ones would fill the cache before they are copied.
const LOADED: usize = 6 << 10;
/// The maximum of segments that one scan of the cleaner chooses.
const MOST_CHOSEN: usize = 32;
/// One scan of the cleaner chooses one of this number of segments. The last ones of a larger share
/// would be worse than those that a later scan finds.
const CHOSEN_SHARE: usize = 64;
/// The cleaner counts every segment as older than it is by the log's size over this number. With
/// age zero for the youngest, uniform overwrites cost up to 10 % more, and skewed ones hardly less.
const YOUNG_SHARE: u32 = 2;

/// The number of bytes to be cleaned before [`Cleaner::pay`] makes a step: about one group of small
/// objects.
const LEAST_PAYMENT: u64 = 6 << 10;

/// The state of the cleaner between steps.
#[derive(Debug, Default)]
pub struct Cleaner {
    phase: Phase,
    /// The segments that the last scan chose and their benefits, the best one last.
    chosen: Vec<(u128, u32)>,
    /// The number of bytes that cleaning the current segment yields, and its size.
    yields: (u32, u32),
    /// [`Log::written_bytes`](super::log::Log::written_bytes) up to which writes have been charged.
    charged: u64,
    /// The number of bytes of segments that charged writes have still to clean.
    owed: u64,
    /// The cleaner rests until this number of bytes has died, a segment of less than `rest_gain` is
    /// worth cleaning, or [`Log::closings`] differs from `rest_closings`.
    rest_until_died: u64,
    rest_gain: u32,
    rest_closings: u64,
    /// The end of the present round of cleaning the oldest segments for their tombstones; `None` if
    /// there is no round.
    round: Option<SegmentId>,
    /// The number of appended bytes at which the next round of cleaning for tombstones starts.
    next_round: u64,
    cleaned: u64,
    /// The amount of work since the start, in bytes.
    worked: u64,
    help: Help,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Rest,
    /// The cleaner scans all segments to choose some, and has come to `slot`.
    Choose { slot: usize },
    /// The cleaner has cleaned the segment in `slot` up to `offset`.
    Clean { slot: u32, offset: usize },
}

/// An entry of a segment that is probably live.
#[derive(Clone, Copy, Default)]
struct Candidate {
    offset: usize,
    head: Head,
    /// The hash of the entry's object for the hash table.
    hash: u64,
}

impl Cleaner {
    /// Returns true if the cleaner has work that it can do.
    #[must_use]
    #[inline]
    pub fn wanted(&self, memory: &Memory) -> bool {
        match self.phase {
            Phase::Rest => {
                self.help.has_copies()
                    || self.is_short(memory) && (self.has_chosen() || self.rested(memory))
                    || self.may_ask(memory) && self.help.has_use(self.rested(memory))
            }
            // A helper may free enough.
            Phase::Clean { .. } => !self.help.is_away() || self.is_short(memory),
            Phase::Choose { .. } => true,
        }
    }

    /// Returns true if a segment is left to be cleaned.
    fn has_chosen(&self) -> bool {
        !self.chosen.is_empty() || self.help.rest.is_some()
    }

    /// Returns true if something has changed since no segment was worth cleaning.
    fn rested(&self, memory: &Memory) -> bool {
        let log = &memory.log;
        log.died_bytes() >= self.rest_until_died
            || least_gain(memory) < self.rest_gain
            || log.closings() != self.rest_closings
    }

    /// Returns the number of segments that were cleaned since the start.
    #[must_use]
    pub fn cleaned(&self) -> u64 {
        self.cleaned
    }

    /// Returns the amount of work since the start, in bytes as of [`STEP`].
    #[must_use]
    #[inline]
    pub fn worked(&self) -> u64 {
        self.worked
    }

    /// Does a cleaning step of about `work` bytes ([`STEP`]) and returns true if there is more to
    /// do.
    pub fn step(&mut self, memory: &mut Memory, work: usize) -> bool {
        self.run(memory, work, false)
    }

    /// Does about `work` bytes of cleaning; if `paced`, no more than the bytes owed.
    fn run(&mut self, memory: &mut Memory, work: usize, paced: bool) -> bool {
        self.look_now(memory);
        let mut left = work;
        let more = self.spend(memory, &mut left, paced);
        self.worked += (work - left) as u64;
        more
    }

    /// Cleans until no work is `left`; if `paced`, no more than the bytes owed.
    fn spend(&mut self, memory: &mut Memory, left: &mut usize, paced: bool) -> bool {
        while *left > 0 && (!paced || self.owed >= LEAST_PAYMENT) {
            if !self.wanted(memory) {
                return false;
            }
            if self.help.ready && self.may_ask(memory) && self.ask(memory) {
                continue;
            }
            let done = match self.phase {
                // A segment that is cleaned in part comes first: two such would take memory.
                Phase::Clean { slot, offset } => self.clean(memory, slot, offset, left),
                _ if self.help.has_copies() => self.use_copies(memory, left),
                Phase::Rest => {
                    self.begin(memory);
                    Ok(())
                }
                Phase::Choose { slot } => {
                    self.choose(memory, slot, left);
                    Ok(())
                }
            };
            if done.is_err() {
                // The log has no segment numbers left, so that nothing can be cleaned.
                return false;
            }
        }
        self.wanted(memory)
    }

    /// Begins to clean the next chosen segment. Begins a scan if none is left, or too few for a
    /// helper that could get a job.
    fn begin(&mut self, memory: &Memory) {
        let scan = self.may_ask(memory) && self.rested(memory);
        if !scan && self.clean_rest(memory) {
            return;
        }
        if !scan && self.is_short(memory) {
            while let Some((_, slot)) = self.chosen.pop() {
                if gain(memory, slot as usize) >= least_gain(memory) {
                    self.start(memory, slot);
                    return self.count_sources(memory);
                }
            }
        }
        self.chosen.clear();
        self.help.ready = false;
        // If no segment is worth cleaning, changes from here on may make one worth it.
        self.rest_gain = least_gain(memory);
        self.rest_until_died = memory.log.died_bytes() + u64::from(self.rest_gain);
        self.rest_closings = memory.log.closings();
        self.phase = Phase::Choose { slot: 0 };
    }

    fn start(&mut self, memory: &Memory, slot: u32) {
        let size = memory.log.segment_bytes();
        self.yields = (gain(memory, slot as usize).max(size / LEAST_GAIN), size);
        self.phase = Phase::Clean { slot, offset: HEADER };
    }

    /// Scans some more segments to choose those with the highest benefit.
    fn choose(&mut self, memory: &Memory, mut slot: usize, left: &mut usize) {
        let slots = memory.log.slots().len();
        let most =
            (slots / CHOSEN_SHARE).clamp(self.help.least_chosen(memory.log.limit()), MOST_CHOSEN);
        while slot < slots && *left > 0 {
            *left = left.saturating_sub(SLOT_COST);
            let benefit = benefit(memory, slot);
            let worst = self.chosen.first().map_or(0, |(worst, _)| *worst);
            if benefit > 0 && (self.chosen.len() < most || benefit > worst) {
                if self.chosen.len() == most {
                    self.chosen.remove(0);
                }
                let at = self.chosen.partition_point(|(other, _)| *other < benefit);
                self.chosen.insert(at, (benefit, slot as u32));
            }
            slot += 1;
        }
        if slot < slots {
            self.phase = Phase::Choose { slot };
            return;
        }
        self.phase = Phase::Rest;
        self.count_sources(memory);
        if self.chosen.is_empty()
            && self.is_short(memory)
            && let Some(slot) = self.oldest(memory)
        {
            self.start(memory, slot);
        }
    }

    /// Returns the oldest segment if tombstones take much memory and cleaning it can free some.
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
        let waits =
            |slot: u32| !log.may_clean(slot as usize) || log.slots()[slot as usize].twin.0 > 0;
        if oldest.is_some_and(waits) {
            // It can be cleaned once all of it is durable, and no helper has it.
            return None;
        }
        if oldest.is_none() {
            self.round = None;
        }
        oldest
    }

    /// Cleans one group of entries of the segment in `slot`, and frees the segment after the last.
    fn clean(
        &mut self,
        memory: &mut Memory,
        slot: u32,
        offset: usize,
        left: &mut usize,
    ) -> Result<(), Full> {
        let mut group = [Candidate::default(); GROUP];
        let (count, next) = gather(memory, slot, offset, &mut group, left);
        memory.log.begin_moving(slot);
        let len: usize = group[..count].iter().map(|candidate| candidate.head.entry_len()).sum();
        memory.log.load_survivor(len.min(LOADED));
        for candidate in &group[..count] {
            let at = Location::new(slot, candidate.offset as u32);
            if let Err(full) = move_entry(memory, at, candidate) {
                self.phase = Phase::Clean { slot, offset: candidate.offset };
                return Err(full);
            }
        }
        self.owed = self.owed.saturating_sub((next - offset) as u64);
        if next < memory.log.slots()[slot as usize].written as usize {
            self.phase = Phase::Clean { slot, offset: next };
            return Ok(());
        }
        memory.log.free(slot);
        self.cleaned += 1;
        self.rest_until_died = 0;
        self.phase = Phase::Rest;
        Ok(())
    }
}

/// Finds the next entries of the segment that are probably live and touches the memory needed to
/// move them. Returns their number and the offset behind the last entry.
fn gather(
    memory: &Memory,
    slot: u32,
    mut offset: usize,
    group: &mut [Candidate; GROUP],
    left: &mut usize,
) -> (usize, usize) {
    let Memory { log, table, tablets, .. } = memory;
    let segment = &log.slots()[slot as usize];
    let mut count = 0;
    let ahead = &segment.bytes[offset..segment.written as usize];
    cache::load(&ahead[..ahead.len().min(LOADED)]);
    while count < GROUP && *left > 0 {
        *left = left.saturating_sub(DEAD_COST);
        let entries = &segment.bytes[offset..segment.written as usize];
        let Some(head) = Head::of(entries) else {
            debug_assert!(entries.is_empty(), "the log's own entries are well-formed");
            offset = segment.written as usize;
            break;
        };
        let mut candidate = Candidate { offset, head, hash: 0 };
        offset += head.entry_len();
        if head.is_all_dead() {
            continue;
        }
        candidate.hash = hash_of(tablets, head, entries);
        *left = left.saturating_sub(LIVE_COST + head.entry_len());
        group[count] = candidate;
        count += 1;
    }
    // The loop is short, so that the processor has all of its reads in progress at once. The
    // compiler must not drop them.
    black_box(
        group[..count].iter().fold(0, |read, candidate| read ^ table.prefetch(candidate.hash)),
    );
    (count, offset)
}

/// Returns the hash for the hash table of the entry at the start of `entry`, 0 unless it is a live
/// object.
#[inline]
fn hash_of(tablets: &Tablets, head: Head, entry: &[u8]) -> u64 {
    if !head.is_object() || head.is_dead() {
        return 0;
    }
    let object = entry::object(entry);
    let hash = tablets.hash(object.table, object.key);
    hash.map_or(0, |hash| spread(object.table, hash))
}

/// Returns the least number of bytes that a segment must yield to be cleaned: an eighth of its
/// size, or much less if writes have to wait.
fn least_gain(memory: &Memory) -> u32 {
    let log = &memory.log;
    let urgent = log.available() <= MIN_SEGMENTS - 2;
    log.segment_bytes() / if urgent { LEAST_GAIN } else { 8 }
}

/// Returns the number of bytes that cleaning the segment in `slot` yields.
fn gain(memory: &Memory, slot: usize) -> u32 {
    let segment = &memory.log.slots()[slot];
    if segment.state != State::Closed || segment.twin.0 > 0 || !memory.log.may_clean(slot) {
        return 0;
    }
    let useless =
        segment.tombstones > 0 && memory.log.narrow(segment.buried, segment.id).is_empty();
    let live = if useless { segment.live - segment.tombstones } else { segment.live };
    let room = if segment.closed_early { segment.room() as u32 } else { 0 };
    // A record counts as more than it takes beside its object.
    (segment.written - HEADER as u32 + room).saturating_sub(live)
}

/// Returns the benefit of cleaning the segment in `slot`, 0 if it is not worth cleaning.
fn benefit(memory: &Memory, slot: usize) -> u128 {
    let gain = gain(memory, slot);
    if gain < least_gain(memory) {
        return 0;
    }
    let log = &memory.log;
    let segment = &log.slots()[slot];
    let age = log.clock() - segment.id.0 + log.limit() / YOUNG_SHARE;
    let cost = segment.bytes.len() as u32 + segment.live;
    ((u128::from(gain) * u128::from(age)) << 20) / u128::from(cost)
}

/// Moves the entry at `at` to the survivor segment if it is live, or its live part.
#[inline]
fn move_entry(memory: &mut Memory, at: Location, candidate: &Candidate) -> Result<(), Full> {
    if candidate.head.is_object() {
        move_object(memory, at, candidate)
    } else {
        move_other(memory, at, candidate.head)
    }
}

#[inline]
fn move_object(memory: &mut Memory, at: Location, candidate: &Candidate) -> Result<(), Full> {
    let Memory { log, table, tablets, results, .. } = memory;
    let head = candidate.head;
    let bytes = log.bytes(at);
    let object = entry::object(bytes);
    let record = head.live_record(bytes).filter(|record| results.location(record.once) == Some(at));
    let place = if head.is_dead() { None } else { table.place(candidate.hash, at) };
    let Some(place) = place else {
        let of = (object.table, object.key, object.version);
        let alone = record.map(|record| alone(tablets, record, of));
        return alone.map_or(Ok(()), |alone| move_completion(memory, at, &alone));
    };
    let (expires, record) = (object.expires, record.map(Moved::new));
    let to = copy(log, at, object.entry_len(), record.as_ref(), object.older)?;
    log.expires(to, expires);
    table.set(place, to);
    if let Some(record) = record {
        results.moved(record.once, to);
    }
    Ok(())
}

/// Moves the tombstone or completion at `at` to the survivor segment if it is live.
fn move_other(memory: &mut Memory, at: Location, head: Head) -> Result<(), Full> {
    let Memory { log, tablets, results, .. } = memory;
    let bytes = log.bytes(at);
    let Some((entry, _)) = entry::parse(bytes) else { return Ok(()) };
    let cleaned = log.slots()[at.slot()].id;
    match entry {
        Entry::Tombstone(tombstone, _) => {
            let record =
                head.live_record(bytes).filter(|record| results.location(record.once) == Some(at));
            let (len, is_dead) = (tombstone.entry_len(), head.is_dead());
            let older = log.narrow(tombstone.older, cleaned);
            if is_dead || older.is_empty() {
                let of = (tombstone.table, tombstone.key, tombstone.version);
                let alone = record.map(|record| alone(tablets, record, of));
                if !is_dead {
                    log.dead_tombstone(at, len);
                }
                return alone.map_or(Ok(()), |alone| move_completion(memory, at, &alone));
            }
            let record = record.map(Moved::new);
            let to = copy(log, at, len, record.as_ref(), older)?;
            log.tombstone_moved(at, to, len, older);
            if let Some(record) = record {
                results.moved(record.once, to);
            }
        }
        Entry::Completion(completion) if results.location(completion.once) == Some(at) => {
            let alone = Completion { old: &[], ..completion };
            move_completion(memory, at, &alone)?;
        }
        Entry::Completion(_)
        | Entry::Header(_)
        | Entry::Object(..)
        | Entry::Digest(_)
        | Entry::Change(_)
        | Entry::Group(_) => {}
    }
    Ok(())
}

/// A record that moves with its object or tombstone.
struct Moved {
    once: Once,
    /// The number of bytes that the record counts as, and its length behind the entry.
    counted: usize,
    len: usize,
}

impl Moved {
    fn new(record: Record<'_>) -> Self {
        let counted = COMPLETION + record.old.len();
        Self { once: record.once, counted, len: record.entry_len() }
    }
}

/// Copies the object or tombstone of `len` bytes at `at` to the survivor segment, with its record
/// if that is live.
fn copy(
    log: &mut Log,
    at: Location,
    len: usize,
    record: Option<&Moved>,
    older: Span,
) -> Result<Location, Full> {
    let older = log.narrow(older, log.slots()[at.slot()].id);
    let (counted, whole) = match record {
        Some(record) => (len + record.counted, len + record.len),
        None => (len, len),
    };
    log.relocate(at, counted, whole, |out, entry| entry::copy(out, entry, older))
}

/// Returns the completion for the record of a mutation that wrote `key` of `table` in `version`,
/// without its old value.
fn alone(
    tablets: &Tablets,
    record: Record<'_>,
    (table, key, version): (TableId, &[u8], Version),
) -> Completion<'static> {
    let Record { once, sum, .. } = record;
    // A table that is gone needs no place for the record.
    let hash = tablets.hash(table, key).unwrap_or_default();
    let outcome = Outcome { status: Status::Ok, version, sum };
    Completion { once, table: table.base(), hash, outcome, old: &[] }
}

/// Writes a completion to the survivor segment: the one at `at`, or that for the record of the
/// entry at `at`. Its old value is that of the entry.
fn move_completion(
    memory: &mut Memory,
    at: Location,
    completion: &Completion<'static>,
) -> Result<(), Full> {
    let old = entry::old_place(memory.log.bytes(at));
    let (counted, len) = (COMPLETION + old.len(), completion.entry_len() + old.len());
    let write = |out: &mut [u8], entry: &[u8]| {
        entry::put_completion(out, &Completion { old: &entry[old], ..*completion });
    };
    let to = memory.log.relocate(at, counted, len, write)?;
    memory.results.moved(completion.once, to);
    Ok(())
}

#[cfg(test)]
mod tests;
