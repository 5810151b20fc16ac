//! The replay of another master's log into this master's memory: the tablets of a crashed master
//! that this master recovers.
//!
//! ```text
//!  object      newer than what is here, and not removed ─► survivor segment, hash table
//!  tombstone   an older version is here ─► tombstone in the survivor segment, else only `removed`
//!  completion  not acknowledged, not remembered ─► survivor segment, outcomes
//! ```
//!
//! The entries come in any order and may come twice: of each key the object of the highest version
//! stays, unless a tombstone has at least that version ([`crate::recovery::Replay`] is the
//! specification). A tombstone is logged only if this log has an older version of its key, so that
//! a replay of this log needs it.
//!
//! Invariants: an entry that is replayed again changes nothing. All entries of the partition are in
//! segments behind [`Partition::since`]. Earlier ones may be those of a recovery that was given up,
//! and a replay of this log skips them.

use alloc::vec::Vec;
use core::hint::black_box;

use arrayvec::ArrayVec;
use hashbrown::HashMap;

use crate::message::Status;
use crate::message::data::Once;
use crate::objects::entry::{
    COMPLETION, Completion, Entries, Entry, Object, Outcome, RECORD, Record, Tombstone,
    put_completion,
};
use crate::objects::log::{Full, Purpose};
use crate::objects::memory::{Memory, object_of_record};
use crate::objects::rifl::Need;
use crate::objects::segment::{Location, Position, SegmentId, Span};
use crate::objects::table::spread;
use crate::objects::tablet::Tablet;
use crate::types::{KeyHash, ServerId, TableId, Version};

/// The number of entries whose lines of the hash table are read at once.
const GROUP: usize = 32;
/// The number of replayed bytes from which the number of objects in the rest is estimated.
const SAMPLE: u64 = 256 << 10;

/// A key that was removed, and the highest version that was.
type Removed = (Vec<u8>, Version);

/// The reason why the replay of a segment stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stopped {
    /// The memory has no room for the next entry. The replay can go on from there.
    #[error("no room")]
    Full,
    /// The next entry is malformed, has a wrong checksum, or is of another log.
    #[error("the segment is damaged")]
    Damaged,
}

/// An entry to replay.
struct Candidate<'a> {
    entry: Entry<'a>,
    /// The hash of the entry's key, if the entry belongs to the partition.
    hash: Option<KeyHash>,
    /// The place in the hash table that will be looked up.
    spread: u64,
    /// The position behind the entry.
    behind: Entries,
}

/// The tablets of a crashed master that are recovered together.
#[derive(Debug)]
pub struct Partition {
    /// The crashed master, which owned the log.
    crashed: ServerId,
    /// The number of bytes of the log, and of those that were replayed.
    bytes: u64,
    replayed: u64,
    /// The number of objects that were put into the memory, and true if there is room for those of
    /// the rest in the hash table.
    objects: u64,
    has_room: bool,
    /// The tablets by table and first hash. Each has the segment of the crashed master's log up to
    /// which its entries do not count.
    tablets: Vec<(Tablet, SegmentId)>,
    /// The segment of this master's log behind which all entries of the partition are.
    since: SegmentId,
    /// True if the log may have earlier entries of the tablets.
    was_here: bool,
    /// True if no entry of a version comes behind one of a later version of the same key, and the
    /// objects come in the order of a walk through the owner's hash table.
    in_order: bool,
    /// The last place in that hash table of an object that was replayed.
    walked: u64,
    /// The keys that are not here and were removed, with the versions that were removed.
    removed: HashMap<(TableId, KeyHash), Vec<Removed>>,
}

impl Partition {
    /// Returns a partition of a log of `bytes` bytes of which nothing was replayed yet. `since` is
    /// the last segment of this master's log before, and `was_here` is true if that may have
    /// earlier entries of the tablets.
    #[must_use]
    pub fn new(
        crashed: ServerId,
        bytes: u64,
        mut tablets: Vec<(Tablet, SegmentId)>,
        (since, was_here): (SegmentId, bool),
    ) -> Self {
        tablets.sort_unstable_by_key(|(tablet, _)| (tablet.table, tablet.first));
        let (replayed, objects, has_room) = (0, 0, false);
        let removed = HashMap::new();
        let (in_order, walked) = (false, 0);
        Self {
            crashed,
            bytes,
            replayed,
            objects,
            has_room,
            tablets,
            since,
            was_here,
            in_order,
            walked,
            removed,
        }
    }

    /// Returns the partition for entries that come in the order of the versions of each key, and
    /// for objects in the order of a walk through a hash table. Keys that are removed need not be
    /// remembered.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Returns the number of bytes that were replayed.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Returns the approximate number of bytes that were not replayed yet. Where the walk has come
    /// tells the rest of it, since places in a hash table are spread evenly.
    fn left(&self) -> u64 {
        if !self.in_order {
            return self.bytes.saturating_sub(self.replayed);
        }
        let (walked, rest) = (u128::from(self.walked.max(1)), u128::from(!self.walked));
        let left = u128::from(self.replayed) * rest / walked;
        // A sample that is a little too small would let the table grow once more, at the end.
        u64::try_from(left + left / 16).unwrap_or(u64::MAX)
    }

    /// Returns the segment of this master's log up to which entries of the tablets are of an
    /// earlier time, 0 if there are none.
    #[must_use]
    pub fn counts_from(&self) -> SegmentId {
        if self.was_here { self.since } else { SegmentId(0) }
    }

    /// Iterates over the tablets of the partition.
    pub fn tablets(&self) -> impl Iterator<Item = Tablet> {
        self.tablets.iter().map(|&(tablet, _)| tablet)
    }

    /// Returns true if a tablet of the partition is of `table`.
    fn has_table(&self, table: TableId) -> bool {
        let table = table.base();
        let at = self.tablets.partition_point(|(tablet, _)| tablet.table < table);
        self.tablets.get(at).is_some_and(|(tablet, _)| tablet.table == table)
    }

    /// Returns true if an entry of `table` under `hash` in the segment `id` counts.
    fn has(&self, table: TableId, hash: KeyHash, id: SegmentId) -> bool {
        let table = table.base();
        let is_before =
            |(tablet, _): &(Tablet, SegmentId)| (tablet.table, tablet.first) <= (table, hash.0);
        let behind = self.tablets.partition_point(is_before);
        let of_hash = behind.checked_sub(1).map(|at| self.tablets[at]);
        of_hash.is_some_and(|(tablet, since)| tablet.contains(table, hash) && since < id)
    }

    /// Returns the highest version of a key that was removed while it was not here.
    fn removed(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Version {
        let same = self.removed.get(&(table, hash)).into_iter().flatten();
        same.filter(|(other, _)| other == key)
            .map(|&(_, version)| version)
            .max()
            .unwrap_or_default()
    }

    fn remove(&mut self, hash: KeyHash, tombstone: &Tombstone<'_>) {
        if self.in_order {
            return;
        }
        let same = self.removed.entry((tombstone.table, hash)).or_default();
        match same.iter_mut().find(|(other, _)| other == tombstone.key) {
            Some((_, version)) => *version = tombstone.version.max(*version),
            None => same.push((tombstone.key.to_vec(), tombstone.version)),
        }
    }
}

impl Memory {
    /// Replays about `most` bytes of the segment `id` of the crashed master's log, which has
    /// `whole` bytes, from the position `entries` on, as far as they belong to `partition`. `bytes`
    /// has the first of them, all entries that are replayed now.
    ///
    /// # Errors
    /// [`Stopped`]. `entries` is before the entry that was not replayed.
    pub fn replay(
        &mut self,
        partition: &mut Partition,
        (id, whole): (SegmentId, usize),
        bytes: &[u8],
        entries: &mut Entries,
        most: usize,
    ) -> Result<(), Stopped> {
        let end = bytes.len().min(entries.at() + most);
        while entries.at() < end {
            let mut group: ArrayVec<Candidate<'_>, GROUP> = ArrayVec::new();
            let mut ahead = *entries;
            while !group.is_full()
                && ahead.at() < end
                && let Some(candidate) = self.candidate(partition, (id, whole), bytes, &mut ahead)
            {
                group.push(candidate);
            }
            // The loop is short, so that the processor has all of its reads in progress at once.
            // The compiler must not drop them.
            let prefetch =
                |read, candidate: &Candidate<'_>| read ^ self.table.prefetch(candidate.spread);
            black_box(group.iter().fold(0, prefetch));
            if group.is_empty() {
                return Err(Stopped::Damaged);
            }
            for candidate in &group {
                self.replay_entry(partition, candidate).map_err(|_| Stopped::Full)?;
                partition.replayed += (candidate.behind.at() - entries.at()) as u64;
                partition.walked = partition.walked.max(candidate.spread);
                *entries = candidate.behind;
            }
        }
        if !partition.has_room && partition.replayed >= SAMPLE {
            partition.has_room = true;
            // The log takes no more than it has room for, whatever is left.
            let room = self.log.live_limit().saturating_sub(self.log.live_bytes());
            let left = partition.left().min(room);
            self.table.reserve(partition.objects.saturating_mul(left) / partition.replayed);
        }
        Ok(())
    }

    /// Gives up the recovery of a tablet. Forgets the outcomes of mutations of its objects: another
    /// recovery may find a shorter log, without mutations that nothing has acknowledged. The sweep
    /// removes the objects.
    pub fn abandon(&mut self, tablet: Tablet) {
        self.forget_outcomes(tablet);
        self.tablets.abandon(tablet);
    }

    /// Forgets the outcomes of mutations of objects of a tablet.
    pub(super) fn forget_outcomes(&mut self, tablet: Tablet) {
        let (log, tablets) = (&self.log, &self.tablets);
        let is_of_tablet = |at| {
            let object = object_of_record(log, tablets, at);
            object.is_some_and(|(table, hash)| tablet.contains(table, hash))
        };
        for at in self.results.forget(is_of_tablet) {
            self.log.dead_record(at);
        }
    }

    /// Returns the next entry of a segment. Returns `None` if it is not intact.
    #[inline]
    fn candidate<'a>(
        &self,
        partition: &Partition,
        (id, whole): (SegmentId, usize),
        bytes: &'a [u8],
        entries: &mut Entries,
    ) -> Option<Candidate<'a>> {
        let (_, entry) = entries.next(self.log.crc32c(), bytes)?;
        let (table, hash) = match entry {
            Entry::Header(header) => {
                let own = (header.server, header.segment) == (partition.crashed, id);
                own.then_some((TableId(0), None))?
            }
            Entry::Object(Object { table, key, .. }, _)
            | Entry::Tombstone(Tombstone { table, key, .. }, _) => {
                (table, self.recovers(partition, id, table, key))
            }
            Entry::Completion(Completion { table, hash, .. }) => {
                (table, Some(hash).filter(|&hash| partition.has(table, hash, id)))
            }
            Entry::Digest(_) | Entry::Change(_) => (TableId(0), None),
            Entry::Group(len) => {
                if whole.saturating_sub(entries.at()) < len {
                    entries.end_at(whole);
                }
                (TableId(0), None)
            }
        };
        let spread = hash.map_or(0, |hash| spread(table, hash));
        Some(Candidate { entry, hash, spread, behind: *entries })
    }

    fn replay_entry(
        &mut self,
        partition: &mut Partition,
        candidate: &Candidate<'_>,
    ) -> Result<(), Full> {
        match (candidate.entry, candidate.hash) {
            (Entry::Header(header), _) => {
                let safe = header.safe_version.0.saturating_sub(1);
                self.log.raise_safe_version(Version(safe.min(Version::MAX.0)));
                Ok(())
            }
            (Entry::Object(object, record), Some(hash)) => {
                self.replay_object(partition, &object, hash, record)
            }
            (Entry::Tombstone(tombstone, record), Some(hash)) => {
                self.replay_tombstone(partition, &tombstone, hash, record)
            }
            (Entry::Completion(completion), Some(_)) => {
                self.log.raise_safe_version(completion.outcome.version);
                self.replay_completion(partition, &completion)
            }
            _ => Ok(()),
        }
    }

    /// Returns the hash of a key if its entries in the segment `id` belong to `partition`.
    #[inline]
    fn recovers(
        &self,
        partition: &Partition,
        id: SegmentId,
        table: TableId,
        key: &[u8],
    ) -> Option<KeyHash> {
        if !partition.has_table(table) {
            return None;
        }
        self.tablets.hash(table, key).filter(|&hash| partition.has(table, hash, id))
    }

    fn replay_object(
        &mut self,
        partition: &mut Partition,
        object: &Object<'_>,
        hash: KeyHash,
        record: Option<Record<'_>>,
    ) -> Result<(), Full> {
        let Object { table, version, key, .. } = *object;
        self.log.raise_safe_version(version);
        let before = self.before(table, hash, key);
        let is_newer = before.as_ref().is_none_or(|before| before.version < version)
            && (partition.removed.is_empty() || partition.removed(table, hash, key) < version);
        if !is_newer {
            return self.replay_record(partition, (table, hash, version), record);
        }
        let (kept, longest) = record.map_or((0, RECORD), |it| (it.old.len(), it.longest()));
        let len = object.entry_len() + kept;
        let old_len = before.as_ref().map_or(0, |before| before.len);
        if self.log.live_bytes() + (len + COMPLETION) as u64
            > self.log.live_limit_with(len + longest) + old_len as u64
        {
            return Err(Full::NoSegment);
        }
        let record = record.and_then(|record| Some((record, self.need(partition, record.once)?)));
        let older = before.as_ref().map_or_else(Span::default, |before| before.older);
        let object = Object { older, ..*object };
        let with = record.as_ref().map(|(record, _)| record);
        let at = self.put(&object, hash, before.as_ref(), with, Purpose::Recover)?;
        partition.objects += u64::from(before.is_none());
        if let Some((Record { once, sum, .. }, known)) = record {
            let outcome = Outcome { status: Status::Ok, version, sum };
            self.remember(once, outcome, (at, kept), known);
        }
        Ok(())
    }

    fn replay_tombstone(
        &mut self,
        partition: &mut Partition,
        tombstone: &Tombstone<'_>,
        hash: KeyHash,
        record: Option<Record<'_>>,
    ) -> Result<(), Full> {
        let Tombstone { table, version, key, .. } = *tombstone;
        self.log.raise_safe_version(version);
        match self.before(table, hash, key) {
            Some(before) if before.version <= version => {
                let tombstone = Tombstone { older: before.older, ..*tombstone };
                self.bury(&tombstone, &before, None, Purpose::Recover)?;
                partition.remove(hash, &tombstone);
            }
            Some(_) => {}
            None => partition.remove(hash, tombstone),
        }
        self.replay_record(partition, (table, hash, version), record)
    }

    /// Replays the record of a mutation whose object is not here.
    fn replay_record(
        &mut self,
        partition: &Partition,
        (table, hash, version): (TableId, KeyHash, Version),
        record: Option<Record<'_>>,
    ) -> Result<(), Full> {
        let Some(Record { once, sum, old }) = record else { return Ok(()) };
        let outcome = Outcome { status: Status::Ok, version, sum };
        let table = table.base();
        self.replay_completion(partition, &Completion { once, table, hash, outcome, old })
    }

    fn replay_completion(
        &mut self,
        partition: &Partition,
        completion: &Completion<'_>,
    ) -> Result<(), Full> {
        let Some(known) = self.need(partition, completion.once) else { return Ok(()) };
        let (at, memory) = self.log.append(completion.entry_len(), Purpose::Recover)?;
        put_completion(memory, completion);
        let place = (at, completion.old.len());
        self.remember(completion.once, completion.outcome, place, known);
        Ok(())
    }

    /// Returns `None` if the completion record of `once` need not be replayed. Otherwise returns
    /// the location of an earlier copy, if there is one: a replay of this log would skip that.
    fn need(&mut self, partition: &Partition, once: Once) -> Option<Option<Location>> {
        let log = &mut self.log;
        match self.results.replay(once, |at| log.dead_record(at)) {
            Need::Acknowledged => None,
            Need::New => Some(None),
            Need::Known(at) => {
                let is_early = self.log.slots()[at.slot()].id <= partition.since;
                is_early.then_some(Some(at))
            }
        }
    }

    /// Records the outcome of a mutation whose record is at `at` now, with an old value of `old`
    /// bytes, and was at `known` before.
    fn remember(
        &mut self,
        once: Once,
        outcome: Outcome,
        (at, old): (Location, usize),
        known: Option<Location>,
    ) {
        self.log.live_record(at, old);
        match known {
            Some(known) => {
                self.log.dead_record(known);
                self.results.moved(once, at);
            }
            // It was durable in the crashed master's log.
            None => self.results.done(once, outcome, at, Position::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn an_entry_counts_in_the_tablet_of_its_hash_alone() {
        let tablet = |table, first, last| Tablet { table: TableId(table), first, last };
        let tablets = vec![
            (tablet(5, 0, 9), SegmentId(0)),
            (tablet(3, 20, u64::MAX), SegmentId(4)),
            (tablet(3, 0, 9), SegmentId(2)),
        ];
        let partition = Partition::new(ServerId::default(), 1, tablets, (SegmentId(0), false));
        let has = |table, hash, id| partition.has(TableId(table), KeyHash(hash), SegmentId(id));
        assert!(has(3, 0, 3) && has(3, 9, 3) && !has(3, 10, 9) && !has(3, 19, 9));
        assert!(has(3, 20, 5) && has(3, u64::MAX, 5) && has(5, 0, 1));
        assert!(!has(3, 9, 2) && !has(3, 20, 4), "entries of an earlier time of the tablet");
        assert!(!has(2, 0, 9) && !has(4, 0, 9) && !has(5, 10, 9) && !has(6, 0, 9));
        let tables = [2, 3, 4, 5, 6].map(|table| partition.has_table(TableId(table)));
        assert_eq!(tables, [false, true, false, true, false]);
    }

    #[test]
    fn the_place_of_a_walk_tells_what_is_left() {
        let of = |bytes, walked| {
            let tablets = vec![(Tablet { table: TableId(1), first: 0, last: 9 }, SegmentId(0))];
            let new = Partition::new(ServerId::default(), bytes, tablets, (SegmentId(0), false));
            Partition { replayed: 1_000, walked, ..new }
        };
        let walked = |walked| of(0, walked).in_order().left();
        assert_eq!((walked(u64::MAX / 4), walked(u64::MAX)), (3_000 + 3_000 / 16, 0));
        assert!(walked(0) > 1 << 63, "whatever a page has");
        assert_eq!(of(5_000, 7).left(), 4_000, "the segments of a crashed master have no order");
    }
}
