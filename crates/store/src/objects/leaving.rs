//! A tablet that another master takes over from this one while this one serves it.
//!
//! ```text
//!  walk of the hash table ─► objects ─┐
//!  mutations behind the walk ─► changed, removed ─┤─► pages of log entries ─► the other master
//!  the tablet is closed ─► completions ───────────┘
//! ```
//!
//! The walk sends each object once, in the order of the hash table. A mutation ahead of it needs no
//! note: the walk will see its result. One behind it is noted, and a later page has the object as
//! it is then, or its tombstone. When few changes are left, the other master lets this one close
//! the tablet, so that the rest is final.
//!
//! Invariants:
//! - A page and everything before it has all objects of the tablet up to the walk, in the
//!   versions that they have when the page is made.
//! - The pages that have arrived, and the changes, are of objects behind the walk, also after it
//!   went back.
//! - The pages have all outcomes of mutations that a client may ask for again, after the tablet is
//!   closed. No mutation changes it then.
//! - Nothing here is durable or needs to be: until the coordinator has durably made the other
//!   master the owner, this one has everything in its log.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashSet;

use super::entry::Tombstone;
use super::table::spread;
use super::tablet::Tablet;
use crate::message::data::Once;
use crate::message::migration::{MOST_AHEAD, Progress};
use crate::types::{KeyHash, TableId, Version};

/// The number of changes from which on it pays to let the other master catch up before the tablet
/// is closed.
const FEW: usize = if cfg!(test) { 3 } else { 512 };
/// The most pages after the walk before the tablet is closed although [`MANY`] changes are left,
/// and before the migration is given up if there are more.
const MOST_CHASES: u32 = 256;
const MANY: usize = 32 * FEW;
/// The most bytes of memory for the changes that were not sent yet.
const MOST_CHANGED: usize = 64 << 20;

/// The removal of an object that was sent before.
#[derive(Clone, Debug)]
pub(super) struct Removed {
    pub(super) table: TableId,
    pub(super) hash: KeyHash,
    pub(super) version: Version,
    pub(super) key: Vec<u8>,
}

/// The changes that the other master does not know yet, or has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The tables and hashes whose objects have changed, each once, and the same in a set. Records
    /// of transactions have another place in the walk than the object of their hash.
    changed: Vec<(TableId, KeyHash)>,
    known: HashSet<(TableId, KeyHash)>,
    removed: Vec<Removed>,
    /// The bytes of the removed keys.
    key_bytes: usize,
    /// The mutations whose outcomes belong to the tablet, with the key hashes of their objects.
    pub(super) completions: Vec<(Once, KeyHash)>,
}

impl Changes {
    fn len(&self) -> usize {
        self.changed.len() + self.removed.len() + self.completions.len()
    }

    /// Returns the approximate size of the changes in bytes.
    fn bytes(&self) -> usize {
        let Self { changed, removed, key_bytes, completions, .. } = self;
        size_of_val(&completions[..])
            + size_of_val(&removed[..])
            + key_bytes
            + 3 * size_of_val(&changed[..])
    }

    /// Adds a hash whose objects have changed.
    pub(super) fn change(&mut self, table: TableId, hash: KeyHash) {
        if self.known.insert((table, hash)) {
            self.changed.push((table, hash));
        }
    }

    pub(super) fn remove(&mut self, removed: Removed) {
        self.key_bytes += removed.key.len();
        self.removed.push(removed);
    }

    /// Takes any of the removals.
    pub(super) fn next_removed(&mut self) -> Option<Removed> {
        let removed = self.removed.pop()?;
        self.key_bytes -= removed.key.len();
        Some(removed)
    }

    /// Takes any of the changed hashes.
    pub(super) fn next_changed(&mut self) -> Option<(TableId, KeyHash)> {
        let changed = self.changed.pop()?;
        self.known.remove(&changed);
        Some(changed)
    }

    /// Takes back what was sent and may not have arrived.
    fn take_back(&mut self, sent: Self) {
        sent.changed.into_iter().for_each(|(table, hash)| self.change(table, hash));
        self.removed.extend(sent.removed);
        self.key_bytes += sent.key_bytes;
        self.completions.extend(sent.completions);
    }

    /// Drops the changes of objects for which `has_sent` is false: the walk will meet the objects
    /// as they are then.
    fn keep(&mut self, has_sent: impl Fn(TableId, KeyHash) -> bool) {
        self.known.retain(|&(table, hash)| has_sent(table, hash));
        self.changed.retain(|changed| self.known.contains(changed));
        self.removed.retain(|removed| has_sent(removed.table, removed.hash));
        self.key_bytes = self.removed.iter().map(|removed| removed.key.len()).sum();
    }
}

/// A page that was sent.
#[derive(Debug)]
pub(super) struct Sent {
    /// The position of the walk at the start of the page.
    began: Option<u64>,
    /// The changes in the page.
    pub(super) changes: Changes,
}

/// A tablet that another master takes over.
#[derive(Debug)]
pub struct Leaving {
    number: u64,
    pub(super) tablet: Tablet,
    /// The number of the last page, and of the attempt that it belongs to.
    page: u64,
    attempt: u64,
    /// The last pages, which may not have arrived, the newest last.
    pages: VecDeque<Sent>,
    /// The position of the walk in the hash table. `None` if it has ended.
    pub(super) walk: Option<u64>,
    /// The number of pages since the end of the walk.
    chases: u32,
    pub(super) changes: Changes,
    pub(super) closed: bool,
}

/// The request for a page, as in [`PullTablet`](crate::message::migration::PullTablet).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The number of the page.
    pub page: u64,
    /// The number of the attempt.
    pub attempt: u64,
    /// The first page of the attempt.
    pub from: u64,
}

/// The reason for which there is no page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoPage {
    /// The page is neither the next one nor one that may not have arrived.
    #[error("the page is out of order")]
    OutOfOrder,
    /// The changes that were not sent take too much memory.
    #[error("the tablet changes faster than it can be sent")]
    TooManyChanges,
}

/// Returns true if the walk has passed the object.
#[inline]
fn is_behind(walk: Option<u64>, table: TableId, hash: KeyHash) -> bool {
    walk.is_none_or(|walk| spread(table, hash) < walk)
}

impl Leaving {
    /// Returns the migration of a tablet of which nothing was sent yet.
    #[must_use]
    pub fn new(number: u64, tablet: Tablet) -> Self {
        Self {
            number,
            tablet,
            page: 0,
            attempt: 0,
            pages: VecDeque::new(),
            walk: Some(0),
            chases: 0,
            changes: Changes::default(),
            closed: false,
        }
    }

    /// Returns the number of the migration.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the tablet that leaves.
    #[must_use]
    pub fn tablet(&self) -> Tablet {
        self.tablet
    }

    /// Returns true if the tablet is closed: this master does not serve it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns true if the other master may have an older state of the object.
    #[inline]
    fn has_sent(&self, table: TableId, hash: KeyHash) -> bool {
        self.tablet.contains(table, hash) && is_behind(self.walk, table, hash)
    }

    /// Notes that the object of `table` under `hash` has changed.
    #[cold]
    pub(super) fn note_change(&mut self, table: TableId, hash: KeyHash) {
        if self.has_sent(table, hash) {
            self.changes.change(table, hash);
        }
    }

    /// Notes that an object was removed.
    #[cold]
    pub(super) fn note_removal(&mut self, hash: KeyHash, tombstone: &Tombstone<'_>) {
        if self.has_sent(tombstone.table, hash) {
            let Tombstone { table, version, key, .. } = *tombstone;
            self.changes.remove(Removed { table, hash, version, key: key.to_vec() });
        }
    }

    /// Begins a page of an attempt: the one after the last. A new attempt goes back to its first
    /// page, one of those that may not have arrived, and those behind it are to be sent again too.
    ///
    /// The requests of an attempt may arrive in any order. Only those that are in order count, or a
    /// page could be made anew that has arrived, without the changes that it has then.
    pub(super) fn begin_page(&mut self, asked: Asked) -> Result<(), NoPage> {
        let Asked { page: number, attempt, from } = asked;
        if attempt < self.attempt {
            return Err(NoPage::OutOfOrder);
        }
        if attempt > self.attempt {
            // The numbers of pages start with 1.
            let oldest = (self.page + 1).saturating_sub(self.pages.len() as u64);
            if !(oldest..=self.page + 1).contains(&from) {
                return Err(NoPage::OutOfOrder);
            }
            self.attempt = attempt;
            while self.page >= from
                && let Some(lost) = self.pages.pop_back()
            {
                self.changes.take_back(lost.changes);
                self.walk = lost.began;
                self.page -= 1;
            }
            // A change that went out ahead of the walk would arrive, and a removal after it would
            // not be noted.
            let walk = self.walk;
            self.changes.keep(|table, hash| is_behind(walk, table, hash));
        }
        if number != self.page + 1 {
            return Err(NoPage::OutOfOrder);
        }
        let is_hopeless = !self.closed && self.chases >= 4 * MOST_CHASES;
        if is_hopeless || self.changes.bytes() > MOST_CHANGED {
            return Err(NoPage::TooManyChanges);
        }
        if self.pages.len() == MOST_AHEAD as usize {
            self.pages.pop_front();
        }
        self.page = number;
        self.pages.push_back(Sent { began: self.walk, changes: Changes::default() });
        self.chases += u32::from(self.walk.is_none());
        Ok(())
    }

    /// Records what a page has of the changes: the newest one.
    pub(super) fn sent(&mut self, changes: Changes) {
        if let Some(page) = self.pages.back_mut() {
            page.changes = changes;
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let left = self.changes.len();
        match (self.closed, self.walk) {
            (true, None) if left == 0 => Progress::Complete,
            (false, None) if left <= FEW => Progress::Near,
            (false, None) if left <= MANY && self.chases >= MOST_CHASES => Progress::Near,
            _ => Progress::Behind,
        }
    }
}
