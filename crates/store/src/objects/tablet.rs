//! The tablets that a master owns: ranges of key hashes of tables, with the hash keys of the
//! tables.
//!
//! Invariants: the ranges of a table are sorted and never overlap. A dropped tablet is remembered
//! with its hash key until its objects are gone from memory, so that the master cannot take it back
//! with old objects in it. [`Memory::sweep`](super::memory::Memory::sweep) removes the objects.

use alloc::vec::Vec;
use core::cell::Cell;

use crate::durability::TableDurability;
use crate::hash::KeyHasher;
use crate::objects::record::RecordKey;
use crate::types::{HashKey, KeyHash, TableId, Version};

/// The number of former tablets from which on the master does not tell them apart.
const MOST_FORMER: usize = 4096;

/// The maximum of hash functions that [`Tablets::hashers`] copies, so that it takes microseconds.
const MOST_HASHERS: usize = 1024;

/// A range of a table's key hashes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tablet {
    /// The id of the tablet's table.
    pub table: TableId,
    /// The first key hash of the tablet.
    pub first: u64,
    /// The last key hash of the tablet.
    pub last: u64,
}

impl Tablet {
    /// Returns true if the object of `table` under `hash` belongs to the tablet. The record of a
    /// transaction belongs to the tablet of the object that it is about.
    #[must_use]
    pub fn contains(&self, table: TableId, hash: KeyHash) -> bool {
        self.table == table.base() && (self.first..=self.last).contains(&hash.0)
    }

    /// Returns true if a hash belongs to both tablets.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.table == other.table && self.first <= other.last && other.first <= self.last
    }
}

/// The reason why a master cannot take a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TakeError {
    /// The tablet overlaps a tablet that is owned already and differs from it, or it has another
    /// hash key.
    #[error("it overlaps another tablet")]
    Overlap,
    /// The tablet was owned before, and its old objects are still in memory.
    #[error("its old objects are being removed")]
    Sweeping,
}

#[derive(Debug)]
struct Owned {
    table: TableId,
    hash_key: HashKey,
    hasher: KeyHasher,
    durability: TableDurability,
    /// The sorted ranges of key hashes that the master owns. Empty if all tablets of the table were
    /// dropped but objects are left.
    ranges: Vec<(u64, u64)>,
}

/// The hash functions of a master's tables at some time, for another thread.
#[derive(Debug, Default)]
pub(super) struct Hashers(Vec<(TableId, KeyHasher)>);

impl Hashers {
    /// Returns the hash of `key` in `table` as [`Tablets::hash`] does, or `None` if the table is
    /// not among these.
    #[inline]
    pub(super) fn hash(&self, table: TableId, key: &[u8]) -> Option<KeyHash> {
        if table.is_records() {
            return Some(RecordKey::parse(key)?.hash);
        }
        let index = self.0.binary_search_by_key(&table, |&(id, _)| id).ok()?;
        Some(self.0[index].1.hash(key))
    }
}

/// The tablets of one master.
#[derive(Debug, Default)]
pub struct Tablets {
    /// The tables of the master's tablets, sorted by id.
    tables: Vec<Owned>,
    /// The index of the table that the last look-up found.
    recent: Cell<usize>,
    /// The tablets that the master recovers and does not serve yet.
    arriving: Vec<Tablet>,
    /// The tablet that another master takes over, once this one serves it no more.
    closed: Option<Tablet>,
    dropped: Vec<Tablet>,
    /// The tablets that were dropped or given up in this life of the server, so that the log may
    /// have old entries of them.
    former: Vec<Tablet>,
    /// The tablets whose writes have a lowest version, by which an accepted loss gives no version
    /// twice.
    floors: Vec<(Tablet, Version)>,
    /// The number of times that the master began to serve a tablet.
    arrivals: u64,
}

impl Tablets {
    /// Returns the lowest version of a write to the object of `table` under `hash`.
    #[inline]
    #[must_use]
    pub fn floor(&self, table: TableId, hash: KeyHash) -> Version {
        let of_tablet = self.floors.iter().filter(|(tablet, _)| tablet.contains(table, hash));
        of_tablet.map(|&(_, floor)| floor).max().unwrap_or_default()
    }

    /// Returns the hash of `key` in `table`, or `None` if the master does not own its tablet.
    #[inline]
    pub fn locate(&self, table: TableId, key: &[u8]) -> Option<KeyHash> {
        if self.tables.get(self.recent.get()).is_none_or(|owned| owned.table != table) {
            self.recent.set(self.index(table).ok()?);
        }
        let owned = &self.tables[self.recent.get()];
        let hash = owned.hasher.hash(key);
        let after = owned.ranges.partition_point(|&(first, _)| first <= hash.0);
        let (_, last) = *owned.ranges.get(after.checked_sub(1)?)?;
        (hash.0 <= last).then_some(hash)
    }

    /// Returns the number of times that the master began to serve a tablet.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Returns the durability of `table`. For a table that is unknown here the mode of the cluster
    /// decides.
    #[inline]
    #[must_use]
    pub fn durability(&self, table: TableId) -> TableDurability {
        match self.tables.get(self.recent.get()) {
            Some(owned) if owned.table == table => owned.durability,
            _ => self.index(table).map_or_else(|_| <_>::default(), |i| self.tables[i].durability),
        }
    }

    /// Returns the hash of `key` in `table`, even if its tablet was dropped and not swept yet.
    /// `None` means that the table is unknown, so that no object of it exists.
    ///
    /// The hash of a transaction's record is that of the object that it is about.
    #[must_use]
    pub fn hash(&self, table: TableId, key: &[u8]) -> Option<KeyHash> {
        let index = self.index(table.base()).ok()?;
        if table.is_records() {
            return Some(RecordKey::parse(key)?.hash);
        }
        Some(self.tables[index].hasher.hash(key))
    }

    /// Returns the hash functions of the tables, of the first [`MOST_HASHERS`] at most.
    pub(super) fn hashers(&self) -> Hashers {
        let tables = self.tables.iter().take(MOST_HASHERS);
        Hashers(tables.map(|owned| (owned.table, owned.hasher)).collect())
    }

    /// Returns true if the master serves the objects of `table` under `hash`.
    #[must_use]
    pub fn serves(&self, table: TableId, hash: KeyHash) -> bool {
        self.owns(Tablet { table, first: hash.0, last: hash.0 })
    }

    /// Returns true if the master owns all of `tablet`.
    #[must_use]
    pub fn owns(&self, tablet: Tablet) -> bool {
        let Ok(index) = self.index(tablet.table) else { return false };
        let mut from = tablet.first;
        for &(first, last) in &self.tables[index].ranges {
            if first <= from && from <= last {
                if last >= tablet.last {
                    return true;
                }
                from = last + 1;
            }
        }
        false
    }

    /// Iterates over all tablets that the master owns.
    pub fn iter(&self) -> impl Iterator<Item = Tablet> {
        self.tables.iter().flat_map(|owned| {
            owned.ranges.iter().map(|&(first, last)| Tablet { table: owned.table, first, last })
        })
    }

    /// Returns true if the log may have old entries of a tablet that the master does not own.
    #[must_use]
    pub fn had(&self, tablet: Tablet) -> bool {
        let had = |former: &Tablet| former.overlaps(&tablet);
        self.former.len() >= MOST_FORMER || self.former.iter().any(had)
    }

    /// Notes that the log has entries of a tablet that the master does not own any more.
    fn note_former(&mut self, tablet: Tablet) {
        if self.former.len() < MOST_FORMER && !self.former.contains(&tablet) {
            self.former.push(tablet);
        }
    }

    /// Prepares to recover a tablet: its objects may be put into the memory, and nothing serves
    /// them. Its later writes have at least the version `floor`.
    ///
    /// # Errors
    /// [`TakeError`], and nothing changed.
    pub fn prepare(
        &mut self,
        tablet: Tablet,
        hash_key: HashKey,
        durability: TableDurability,
        floor: Version,
    ) -> Result<(), TakeError> {
        if self.dropped.iter().chain(&self.closed).any(|old| old.overlaps(&tablet)) {
            return Err(TakeError::Sweeping);
        }
        let index = self.index(tablet.table);
        let owned = index.ok().map(|index| &self.tables[index]);
        let clashes = |owned: &Owned| {
            let mut ranges = owned.ranges.iter();
            owned.hash_key != hash_key
                || ranges.any(|&(first, last)| first <= tablet.last && tablet.first <= last)
        };
        if owned.is_some_and(clashes) || self.arriving.iter().any(|other| other.overlaps(&tablet)) {
            return Err(TakeError::Overlap);
        }
        if let Err(index) = index {
            let (table, hasher, ranges) = (tablet.table, hash_key.into(), Vec::new());
            self.tables.insert(index, Owned { table, hash_key, hasher, durability, ranges });
        }
        self.arriving.push(tablet);
        if floor > Version(0) {
            self.floors.retain(|(other, _)| *other != tablet);
            self.floors.push((tablet, floor));
        }
        Ok(())
    }

    /// Serves a prepared tablet from now on.
    pub fn open(&mut self, tablet: Tablet) {
        self.arriving.retain(|other| *other != tablet);
        self.arrivals += 1;
        if let Ok(index) = self.index(tablet.table) {
            let (ranges, range) = (&mut self.tables[index].ranges, (tablet.first, tablet.last));
            ranges.insert(ranges.partition_point(|&r| r < range), range);
        }
    }

    /// Gives a prepared tablet up. It has no objects.
    pub fn forget(&mut self, tablet: Tablet) {
        self.arriving.retain(|other| *other != tablet);
        self.swept(0);
    }

    /// Gives a prepared tablet up. Its objects are to be swept.
    pub(super) fn abandon(&mut self, tablet: Tablet) {
        self.arriving.retain(|other| *other != tablet);
        self.dropped.push(tablet);
        self.note_former(tablet);
    }

    /// Takes a tablet for the master. Succeeds if the master owns it already.
    ///
    /// # Errors
    /// [`TakeError`], and nothing changed.
    pub fn take(
        &mut self,
        tablet: Tablet,
        hash_key: HashKey,
        durability: TableDurability,
    ) -> Result<(), TakeError> {
        if self.dropped.iter().chain(&self.closed).any(|old| old.overlaps(&tablet)) {
            return Err(TakeError::Sweeping);
        }
        if self.arriving.iter().any(|other| other.overlaps(&tablet)) {
            return Err(TakeError::Overlap);
        }
        let range = (tablet.first, tablet.last);
        match self.index(tablet.table) {
            Err(index) => {
                let hasher = hash_key.into();
                let ranges = [range].to_vec();
                let owned = Owned { table: tablet.table, hash_key, hasher, durability, ranges };
                self.tables.insert(index, owned);
            }
            Ok(index) => {
                let owned = &mut self.tables[index];
                if owned.hash_key != hash_key {
                    return Err(TakeError::Overlap);
                }
                if owned.ranges.contains(&range) {
                    return Ok(());
                }
                if owned
                    .ranges
                    .iter()
                    .any(|&(first, last)| first <= tablet.last && tablet.first <= last)
                {
                    return Err(TakeError::Overlap);
                }
                let at = owned.ranges.partition_point(|&r| r < range);
                owned.ranges.insert(at, range);
            }
        }
        self.arrivals += 1;
        Ok(())
    }

    /// Serves a tablet no more, but keeps its objects. Cuts the tablets that overlap it.
    pub(super) fn close(&mut self, tablet: Tablet) {
        self.cut(tablet);
        self.closed = Some(tablet);
    }

    /// Serves the tablet again that [`Tablets::close`] has closed.
    pub(super) fn reopen(&mut self, tablet: Tablet) {
        self.closed = None;
        self.open(tablet);
    }

    /// Drops a tablet of the master and cuts the tablets that overlap it. Returns true if there may
    /// be objects to sweep.
    pub fn drop_tablet(&mut self, tablet: Tablet) -> bool {
        let cut = self.cut(tablet);
        if cut {
            self.dropped.push(tablet);
            self.note_former(tablet);
        }
        cut
    }

    /// Cuts a tablet out of those that the master serves. Returns true if it served a part of it.
    fn cut(&mut self, tablet: Tablet) -> bool {
        let Ok(index) = self.index(tablet.table) else { return false };
        let mut left = Vec::new();
        let mut cut = false;
        for &(first, last) in &self.tables[index].ranges {
            if first > tablet.last || last < tablet.first {
                left.push((first, last));
                continue;
            }
            cut = true;
            if first < tablet.first {
                left.push((first, tablet.first - 1));
            }
            if last > tablet.last {
                left.push((tablet.last + 1, last));
            }
        }
        self.tables[index].ranges = left;
        cut
    }

    /// Returns true if the object of `table` under `hash` belongs to a dropped tablet.
    #[must_use]
    pub fn is_dropped(&self, table: TableId, hash: KeyHash) -> bool {
        self.dropped.iter().any(|tablet| tablet.contains(table, hash))
    }

    /// Returns the number of dropped tablets whose objects are not yet removed.
    #[must_use]
    pub fn dropped(&self) -> usize {
        self.dropped.len()
    }

    /// Forgets the first `count` dropped tablets, whose objects are gone.
    pub fn swept(&mut self, count: usize) {
        self.dropped.drain(..count.min(self.dropped.len()));
        let needed = self.dropped.iter().chain(&self.arriving).chain(&self.closed);
        let needed = needed.map(|tablet| tablet.table);
        let needed = needed.collect::<Vec<_>>();
        self.tables.retain(|o| !o.ranges.is_empty() || needed.contains(&o.table));
        let tables = &self.tables;
        self.floors.retain(|(tablet, _)| tables.iter().any(|o| o.table == tablet.table));
        self.recent.set(0);
    }

    fn index(&self, table: TableId) -> Result<usize, usize> {
        self.tables.binary_search_by_key(&table, |owned| owned.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tablet(table: u64, first: u64, last: u64) -> Tablet {
        Tablet { table: TableId(table), first, last }
    }

    fn take(tablets: &mut Tablets, tablet: Tablet, key: HashKey) -> Result<(), TakeError> {
        tablets.take(tablet, key, TableDurability::Cluster)
    }

    #[test]
    fn taking_is_idempotent_and_never_overlaps() {
        let mut tablets = Tablets::default();
        let key = HashKey([1; 16]);
        assert_eq!(take(&mut tablets, tablet(1, 0, 99), key), Ok(()));
        assert_eq!(take(&mut tablets, tablet(1, 0, 99), key), Ok(()));
        assert_eq!(take(&mut tablets, tablet(1, 99, 120), key), Err(TakeError::Overlap));
        assert_eq!(
            take(&mut tablets, tablet(1, 100, 120), HashKey([2; 16])),
            Err(TakeError::Overlap)
        );
        assert_eq!(take(&mut tablets, tablet(1, 100, u64::MAX), key), Ok(()));
        assert!(tablets.owns(tablet(1, 0, u64::MAX)) && tablets.owns(tablet(1, 50, 150)));
        assert!(!tablets.owns(tablet(2, 0, 1)));
        let hash = KeyHasher::from(key).hash(b"k");
        assert_eq!(tablets.locate(TableId(1), b"k"), Some(hash));
        assert_eq!(tablets.locate(TableId(2), b"k"), None);
        assert_eq!(tablets.locate(TableId(1), b"k"), Some(hash));
    }

    /// A look-up among many ranges of key hashes finds the one that contains a hash, and none for a
    /// hash between two ranges.
    #[test]
    fn a_hash_is_found_in_its_range_alone() {
        let mut tablets = Tablets::default();
        let key = HashKey([1; 16]);
        let share = u64::MAX / 64;
        for n in (0..64).rev().step_by(2) {
            let first = n * share;
            assert_eq!(take(&mut tablets, tablet(1, first, first + share - 1), key), Ok(()));
        }
        for n in 0..1000u64 {
            let hash = KeyHasher::from(key).hash(&n.to_be_bytes());
            let owned = (hash.0 / share) % 2 == 1;
            assert_eq!(tablets.locate(TableId(1), &n.to_be_bytes()), owned.then_some(hash));
        }
    }

    #[test]
    fn a_dropped_tablet_cannot_be_taken_back_before_it_is_swept() {
        let mut tablets = Tablets::default();
        let key = HashKey([1; 16]);
        let hash = KeyHasher::from(key).hash(b"k");
        assert_eq!(take(&mut tablets, tablet(1, 0, u64::MAX), key), Ok(()));
        assert!(tablets.drop_tablet(tablet(1, 10, 19)));
        assert!(!tablets.drop_tablet(tablet(1, 10, 19)) && !tablets.drop_tablet(tablet(2, 10, 19)));
        let left: Vec<_> = tablets.iter().collect();
        assert_eq!(left, [tablet(1, 0, 9), tablet(1, 20, u64::MAX)]);
        assert!(!tablets.owns(tablet(1, 5, 25)) && tablets.owns(tablet(1, 5, 9)));
        assert!(
            tablets.is_dropped(TableId(1), KeyHash(10))
                && !tablets.is_dropped(TableId(1), KeyHash(20))
        );
        assert_eq!(take(&mut tablets, tablet(1, 10, 19), key), Err(TakeError::Sweeping));
        tablets.swept(1);
        assert_eq!(take(&mut tablets, tablet(1, 10, 19), key), Ok(()));

        assert!(tablets.drop_tablet(tablet(1, 0, u64::MAX)));
        assert_eq!(tablets.locate(TableId(1), b"k"), None);
        assert_eq!(tablets.hash(TableId(1), b"k"), Some(hash), "its objects must still be found");
        assert_eq!(tablets.dropped(), 1);
        tablets.swept(1);
        assert_eq!(tablets.hash(TableId(1), b"k"), None);
    }
}
