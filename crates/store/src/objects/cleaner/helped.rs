//! Cleaning with a helper, a thread of the host that copies entries ([`super::job`]).
//!
//! ```text
//!  memory gets short ─► choose sources of one age, whose live bytes fill a survivor ─► helper
//!  helper ─► copies in the survivor ─► the table points to them, step by step ─► free the sources
//! ```
//!
//! The cleaner asks for help a little earlier than it would clean itself. It cleans itself if that
//! is not enough: the helper may have no core. A job that takes long keeps its sources from being
//! cleaned, so that the next one waits for a multiple of that time.
//!
//! The last source is copied in part where the survivor is full. The next job goes on with it, or
//! the cleaner does.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;

use super::help::{Copied, MOST_SOURCES, Stage, Worth};
use super::job::{Copier, Find, Job, Source};
use super::reserve::{HELP_ROOM, is_short, reserve_bytes, wants_help};
use super::{Candidate, Cleaner, GROUP, LEAST_GAIN, Phase, gain, hash_of, least_gain, move_entry};
use crate::objects::entry::{HEADER, Head};
use crate::objects::log::{Filled, Full};
use crate::objects::memory::Memory;
use crate::objects::segment::Location;

/// The amount of work to let the table point to a copy, in bytes as of [`super::STEP`].
const FIND_COST: usize = 48;
/// The cleaner looks for the end of a job each time that the log has this share of a segment more.
const LOOK_SHARE: u64 = 2048;
/// The number of segments that the log may open during a job before later jobs wait.
const SLOW: u32 = 4;
/// The next job waits until the log has opened this many times the segments that it has opened
/// during a slow one.
const WAIT_SHARE: u32 = 16;

impl Cleaner {
    /// Lets `helper` copy entries, if the log and the job are worth it.
    pub fn help(&mut self, helper: Box<dyn Copier>, worth: Worth) {
        (self.help.helper, self.help.worth) = (Some(helper), worth);
    }

    /// Returns the number of survivors that a helper has filled since the start.
    #[must_use]
    pub fn helped(&self) -> u64 {
        self.help.filled
    }

    /// Returns true if the helper has no job, and may get one.
    #[inline]
    fn is_free(&self, memory: &Memory) -> bool {
        self.help.is_used(memory.log.limit())
            && !self.help.is_away()
            && memory.log.clock() >= self.help.not_before
    }

    /// Returns true if the helper should get a job.
    #[inline]
    pub(super) fn may_ask(&self, memory: &Memory) -> bool {
        !self.help.has_copies()
            && self.is_free(memory)
            && wants_help(memory, self.help.worth.quarters)
    }

    /// Returns true if too little memory is free.
    pub(super) fn is_short(&self, memory: &Memory) -> bool {
        is_short(memory, self.reserve(memory).saturating_sub(self.coming(memory)))
    }

    /// Returns the number of bytes that a helper is expected to free soon: half a segment, and less
    /// and less as its job takes longer.
    fn coming(&self, memory: &Memory) -> u64 {
        let Stage::Away { written, .. } = self.help.stage else { return 0 };
        let Memory { log, .. } = memory;
        (u64::from(log.segment_bytes()) / 2).saturating_sub(log.written_bytes() - written)
    }

    /// Returns the number of bytes that the cleaner keeps free: more if a helper may get a job, for
    /// its survivor.
    #[inline]
    pub(super) fn reserve(&self, memory: &Memory) -> u64 {
        let room = if self.is_free(memory) { HELP_ROOM } else { 0 };
        reserve_bytes(memory) + room * u64::from(memory.log.segment_bytes()) / 4
    }

    /// Returns the chosen segments for a job: their live entries fill a survivor, and all are old
    /// or all are young. They begin with the rest of a source. `None` if too few are chosen.
    fn sources(&self, memory: &Memory) -> Option<Vec<u32>> {
        let log = &memory.log;
        let rest = self.help.rest.map(|(slot, _)| slot);
        let chosen = self.chosen.iter().rev().map(|&(_, slot)| slot);
        let chosen = chosen.filter(|&slot| gain(memory, slot as usize) >= least_gain(memory));
        let least = u64::from(log.segment_bytes()) * u64::from(self.help.worth.percent) / 100;
        // A survivor without entries would be the next source, for ever.
        let least = least.max(1);
        // Young and old ones, and their live bytes.
        let mut kinds = [const { (Vec::new(), 0) }; 2];
        for slot in rest.into_iter().chain(chosen) {
            if rest.is_some_and(|rest| log.is_old(rest) != log.is_old(slot)) {
                continue;
            }
            let (sources, live) = &mut kinds[usize::from(log.is_old(slot))];
            let segment = &log.slots()[slot as usize];
            *live += u64::from(segment.live - segment.tombstones);
            sources.push(slot);
            if *live >= least {
                return Some(core::mem::take(sources));
            }
            if sources.len() == MOST_SOURCES {
                return None;
            }
        }
        None
    }

    /// Finds out whether the chosen segments are enough for a job.
    pub(super) fn count_sources(&mut self, memory: &Memory) {
        self.help.ready = self.help.is_used(memory.log.limit()) && self.sources(memory).is_some();
    }

    /// Gives the helper a job, if enough segments are chosen. Returns true if it did.
    pub(super) fn ask(&mut self, memory: &mut Memory) -> bool {
        self.help.ready = false;
        let Some(slots) = self.sources(memory) else { return false };
        let present = memory.log.present();
        let Some((twin, target)) = memory.log.open_twin() else { return false };
        let mut job = Box::new(Job::new(target, present, memory.tablets.hashers()));
        for slot in slots {
            let rest = self.help.rest.take_if(|(rest, _)| *rest == slot);
            let from = rest.map_or(HEADER, |(_, offset)| offset);
            let bytes = memory.log.share(slot, twin);
            let segment = &memory.log.slots()[slot as usize];
            job.add(Source::new((slot, segment.id), bytes, from..segment.written as usize));
            self.chosen.retain(|&(_, other)| other != slot);
        }
        self.count_sources(memory);
        let (since, written) = (memory.log.clock(), memory.log.written_bytes());
        self.help.stage = Stage::Away { twin, since, written };
        if let Some(helper) = &mut self.help.helper
            && let Err(job) = helper.start(job)
        {
            // There is no thread, and there will be none.
            self.help.helper = None;
            self.take_copies(memory, *job);
        }
        true
    }

    /// Looks for the end of a job, if the log has `written` bytes.
    #[inline]
    pub(super) fn look(&mut self, memory: &mut Memory, written: u64) {
        if self.help.is_away() && written >= self.help.look_at {
            self.help.look_at = written + u64::from(memory.log.segment_bytes()) / LOOK_SHARE;
            self.look_now(memory);
        }
    }

    /// Looks for the end of a job.
    pub(super) fn look_now(&mut self, memory: &mut Memory) {
        if self.help.is_away()
            && let Some(job) = self.help.helper.as_mut().and_then(|helper| helper.done())
        {
            self.take_copies(memory, *job);
        }
    }

    /// Takes the copies and the sources of a job into the log.
    fn take_copies(&mut self, memory: &mut Memory, job: Job) {
        let log = &mut memory.log;
        let Stage::Away { twin, since, .. } = self.help.stage else { return };
        let Some(slot) = log.slot(twin) else { return };
        let took = log.clock() - since;
        if took > SLOW {
            self.help.not_before = log.clock().saturating_add(WAIT_SHARE * took);
        }
        let Job { mut sources, target: bytes, written, longest, expires, .. } = job;
        let mut aged = 0;
        for source in &mut sources {
            source.bytes = Arc::default();
            log.take_back(source.slot, source.next > HEADER);
            let born = log.slots()[source.slot as usize].born();
            aged += source.copied as u64 * u64::from(twin.0.saturating_sub(born.0));
        }
        sources.retain(|source| source.next > source.from || source.next > HEADER);
        log.fill(slot, Filled { bytes, written, longest, aged });
        let size: usize = sources.iter().map(|source| source.next - source.from).sum();
        let gained = size.saturating_sub(written).max(size / LEAST_GAIN as usize);
        self.yields = (gained.max(1) as u32, size.max(1) as u32);
        self.help.filled += u64::from(written > HEADER);
        self.help.stage = Stage::Copied(Box::new(Copied {
            slot,
            expires,
            sources,
            source: 0,
            find: 0,
            to: HEADER,
            passed: 0,
        }));
    }

    /// Lets the table point to the next copies, or ends a source or the job.
    pub(super) fn use_copies(&mut self, memory: &mut Memory, left: &mut usize) -> Result<(), Full> {
        let Stage::Copied(mut copied) = core::mem::take(&mut self.help.stage) else {
            return Ok(());
        };
        let Some(source) = copied.sources.get(copied.source) else {
            memory.log.complete(copied.slot, copied.expires);
            return Ok(());
        };
        let (slot, next, end) = (source.slot, source.next, source.end);
        let result = if copied.find < source.finds.len() {
            copied.point(memory, left)
        } else {
            let passed = copied.pass(next);
            self.owed = self.owed.saturating_sub(passed);
            if next == end {
                memory.log.free(slot);
                self.cleaned += 1;
                self.rest_until_died = 0;
            } else {
                self.help.rest = Some((slot, next));
            }
            (copied.source, copied.find, copied.passed) = (copied.source + 1, 0, 0);
            self.help.stage = Stage::Copied(copied);
            return Ok(());
        };
        let at = copied.sources[copied.source].finds.get(copied.find);
        let passed = copied.pass(at.map_or(next, |find| find.offset as usize));
        self.owed = self.owed.saturating_sub(passed);
        self.help.stage = Stage::Copied(copied);
        result
    }

    /// Begins to clean the rest of a source, if there is one. Returns true if there is.
    pub(super) fn clean_rest(&mut self, memory: &Memory) -> bool {
        let Some((slot, offset)) = self.help.rest.take() else { return false };
        let segment = &memory.log.slots()[slot as usize];
        let size = segment.written - offset as u32;
        self.yields = (size.saturating_sub(segment.live).max(size / LEAST_GAIN), size);
        self.phase = Phase::Clean { slot, offset };
        self.count_sources(memory);
        true
    }
}

impl Copied {
    /// Counts the present source as done up to `offset`. Returns the number of bytes since the last
    /// time.
    fn pass(&mut self, offset: usize) -> u64 {
        let from = self.sources.get(self.source).map_or(offset, |source| source.from);
        let done = offset.saturating_sub(from) as u64;
        done.saturating_sub(core::mem::replace(&mut self.passed, done))
    }

    /// Lets the table point to the copies of a group of finds, and moves what the helper has left.
    fn point(&mut self, memory: &mut Memory, left: &mut usize) -> Result<(), Full> {
        let Source { slot, finds, .. } = &self.sources[self.source];
        let (source, target) = (*slot, self.slot);
        let group = &finds[self.find..finds.len().min(self.find + GROUP)];
        let table = &memory.table;
        // As in the cleaner's own groups, all cache misses are in progress at once.
        black_box(group.iter().fold(0, |read, find| read ^ table.prefetch(find.hash)));
        memory.log.begin_moving(source);
        for &Find { hash, offset, len } in group {
            if *left == 0 {
                break;
            }
            let from = Location::new(source, offset);
            *left = left.saturating_sub(FIND_COST);
            if len == 0 {
                *left = left.saturating_sub(move_left(memory, from)?);
            } else {
                let to = Location::new(target, self.to as u32);
                self.to += len as usize;
                let Memory { log, table, .. } = memory;
                match table.place(hash, from) {
                    Some(place) => {
                        table.set(place, to);
                        log.moved(from, to, len as usize);
                    }
                    None => log.copied_in_vain(to),
                }
            }
            self.find += 1;
        }
        Ok(())
    }
}

/// Moves the entry at `at`, which a helper has left. Returns its length.
fn move_left(memory: &mut Memory, at: Location) -> Result<usize, Full> {
    let Some(head) = Head::of(memory.log.bytes(at)) else { return Ok(0) };
    let hash = hash_of(&memory.tablets, head, memory.log.bytes(at));
    move_entry(memory, at, &Candidate { offset: at.offset(), head, hash })?;
    Ok(head.entry_len())
}
