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
//! specification). A tombstone is logged only if this log has an older version of its key, so that a
//! replay of this log needs it.
//!
//! Invariants: an entry that is replayed again changes nothing. All entries of the partition are in
//! segments behind [`Partition::since`]. Earlier ones may be those of a recovery that was given up,
//! and a replay of this log skips them.

use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::message::Status;
use crate::message::data::Once;
use crate::objects::entry::{
    COMPLETION, Completion, Entry, Object, Outcome, RECORD, Record, Tombstone, put_completion,
};
use crate::objects::log::{Full, Purpose};
use crate::objects::memory::{Before, Memory};
use crate::objects::rifl::Need;
use crate::objects::segment::{Location, Position, SegmentId, Span};
use crate::objects::tablet::Tablet;
use crate::types::{KeyHash, TableId, Version};

/// A key that was removed, and the highest version that was.
type Removed = (Vec<u8>, Version);

/// The tablets of a crashed master that are recovered together.
#[derive(Debug)]
pub struct Partition {
    /// The tablets, each with the segment of the crashed master's log up to which entries of it do
    /// not count.
    tablets: Vec<(Tablet, SegmentId)>,
    /// The segment of this master's log behind which all entries of the partition are.
    since: SegmentId,
    /// The keys that are not here and were removed, with the versions that were removed.
    removed: HashMap<(TableId, KeyHash), Vec<Removed>>,
}

impl Partition {
    /// Returns a partition of which nothing was replayed yet. `since` is the last segment of this
    /// master's log before.
    #[must_use]
    pub fn new(tablets: Vec<(Tablet, SegmentId)>, since: SegmentId) -> Self {
        Self { tablets, since, removed: HashMap::new() }
    }

    /// Returns the segment of this master's log behind which all entries of the partition are.
    #[must_use]
    pub fn since(&self) -> SegmentId {
        self.since
    }

    /// Iterates over the tablets of the partition.
    pub fn tablets(&self) -> impl Iterator<Item = Tablet> {
        self.tablets.iter().map(|&(tablet, _)| tablet)
    }

    /// Returns true if an entry of `table` in the segment `id` may count.
    fn has_table(&self, table: TableId, id: SegmentId) -> bool {
        self.tablets.iter().any(|&(tablet, since)| tablet.table == table && since < id)
    }

    /// Returns true if an entry of `table` under `hash` in the segment `id` counts.
    fn has(&self, table: TableId, hash: KeyHash, id: SegmentId) -> bool {
        self.tablets.iter().any(|&(tablet, since)| tablet.contains(table, hash) && since < id)
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
        let same = self.removed.entry((tombstone.table, hash)).or_default();
        match same.iter_mut().find(|(other, _)| other == tombstone.key) {
            Some((_, version)) => *version = tombstone.version.max(*version),
            None => same.push((tombstone.key.to_vec(), tombstone.version)),
        }
    }
}

impl Memory {
    /// Replays an entry of the segment `id` of a crashed master's log if it belongs to `partition`.
    ///
    /// # Errors
    /// [`Full`] if there is no room. The entry can be replayed again when there is.
    pub fn replay(
        &mut self,
        partition: &mut Partition,
        id: SegmentId,
        entry: &Entry<'_>,
    ) -> Result<(), Full> {
        match *entry {
            Entry::Header(header) => {
                let safe = header.safe_version.0.saturating_sub(1);
                self.log.raise_safe_version(Version(safe.min(Version::MAX.0)));
                Ok(())
            }
            Entry::Object(object, record) => {
                match self.recovers(partition, id, object.table, object.key) {
                    Some(hash) => self.replay_object(partition, &object, hash, record),
                    None => Ok(()),
                }
            }
            Entry::Tombstone(tombstone, record) => {
                match self.recovers(partition, id, tombstone.table, tombstone.key) {
                    Some(hash) => self.replay_tombstone(partition, &tombstone, hash, record),
                    None => Ok(()),
                }
            }
            Entry::Completion(completion) => {
                if !partition.has(completion.table, completion.hash, id) {
                    return Ok(());
                }
                self.log.raise_safe_version(completion.outcome.version);
                self.replay_completion(partition, &completion)
            }
            Entry::Digest(_) | Entry::Change(_) => Ok(()),
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
        if !partition.has_table(table, id) {
            return None;
        }
        self.tablets.hash(table, key).filter(|&hash| partition.has(table, hash, id))
    }

    fn replay_object(
        &mut self,
        partition: &Partition,
        object: &Object<'_>,
        hash: KeyHash,
        record: Option<Record>,
    ) -> Result<(), Full> {
        let Object { table, version, key, .. } = *object;
        self.log.raise_safe_version(version);
        let before = self.replayed(table, hash, key);
        let is_newer = before.as_ref().is_none_or(|before| before.version < version)
            && (partition.removed.is_empty() || partition.removed(table, hash, key) < version);
        if !is_newer {
            return self.replay_record(partition, (table, hash, version), record);
        }
        let len = object.entry_len();
        let old_len = before.as_ref().map_or(0, |before| before.len);
        if self.log.live_bytes() + (len + COMPLETION) as u64
            > self.log.live_limit_with(len + RECORD) + old_len as u64
        {
            return Err(Full::NoSegment);
        }
        let record = record.and_then(|record| Some((record, self.need(partition, record.once)?)));
        let older = before.as_ref().map_or_else(Span::default, |before| before.older);
        let object = Object { older, ..*object };
        let with = record.as_ref().map(|(record, _)| record);
        let at = self.put(&object, hash, before.as_ref(), with, Purpose::Recover)?;
        if let Some((Record { once, sum }, known)) = record {
            self.remember(once, Outcome { status: Status::Ok, version, sum }, at, known);
        }
        Ok(())
    }

    fn replay_tombstone(
        &mut self,
        partition: &mut Partition,
        tombstone: &Tombstone<'_>,
        hash: KeyHash,
        record: Option<Record>,
    ) -> Result<(), Full> {
        let Tombstone { table, version, key, .. } = *tombstone;
        self.log.raise_safe_version(version);
        match self.replayed(table, hash, key) {
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

    /// Returns the object of a key, if a replay has put it here.
    fn replayed(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Option<Before> {
        let (place, at) = self.find(table, hash, key)?;
        Some(Before::new(&self.log, place, at, &self.log.object(at)))
    }

    /// Replays the record of a mutation whose object is not here.
    fn replay_record(
        &mut self,
        partition: &Partition,
        (table, hash, version): (TableId, KeyHash, Version),
        record: Option<Record>,
    ) -> Result<(), Full> {
        let Some(Record { once, sum }) = record else { return Ok(()) };
        let outcome = Outcome { status: Status::Ok, version, sum };
        self.replay_completion(partition, &Completion { once, table, hash, outcome })
    }

    fn replay_completion(
        &mut self,
        partition: &Partition,
        completion: &Completion,
    ) -> Result<(), Full> {
        let Some(known) = self.need(partition, completion.once) else { return Ok(()) };
        let (at, memory) = self.log.append(completion.entry_len(), Purpose::Recover)?;
        put_completion(memory, completion);
        self.remember(completion.once, completion.outcome, at, known);
        Ok(())
    }

    /// Returns `None` if the completion record of `once` need not be replayed. Otherwise returns the
    /// location of an earlier copy, if there is one: a replay of this log would skip that.
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

    /// Records the outcome of a mutation whose record is at `at` now, and was at `known` before.
    fn remember(&mut self, once: Once, outcome: Outcome, at: Location, known: Option<Location>) {
        self.log.live_record(at);
        match known {
            Some(old) => {
                self.log.dead_record(old);
                self.results.moved(once, at);
            }
            // It was durable in the crashed master's log.
            None => self.results.done(once, outcome, at, Position::default()),
        }
    }
}
