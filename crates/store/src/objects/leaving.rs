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
//! it is then, or its tombstone. When few changes are left, the other master lets this one close the
//! tablet, so that the rest is final.
//!
//! Invariants:
//! - A page and everything before it has all objects of the tablet up to the walk, in the versions
//!   that they have when the page is made.
//! - A page that is asked for again has at least the same objects, in the same versions or later.
//! - The pages have all outcomes of mutations that a client may ask for again, after the tablet is
//!   closed. No mutation changes it then.
//! - Nothing here is durable or needs to be: until the coordinator has durably made the other
//!   master the owner, this one has everything in its log.

use alloc::vec::Vec;
use core::hint::black_box;

use hashbrown::HashSet;

use super::entry::{self, Completion, HEADER, Header, Object, Tombstone};
use super::log::Log;
use super::memory::{Memory, object_of_record};
use super::segment::{Location, Span};
use super::table::spread;
use super::tablet::Tablet;
use crate::message::migration::{PAGE, Page, Progress};
use crate::types::{KeyHash, ServerId, TableId, Version};

/// The number of bytes from which on a page is full. One more object goes in. Tests have small
/// memories.
const PAGE_BYTES: usize = if cfg!(test) { 600 } else { 128 << 10 };
/// The most lines of the hash table that one page walks.
const PAGE_LINES: usize = if cfg!(test) { 5 } else { 2048 };
/// The number of changes from which on it pays to let the other master catch up before the tablet
/// is closed.
const FEW: usize = if cfg!(test) { 3 } else { 512 };
/// The most pages after the walk before the tablet is closed although many changes are left.
const MOST_CHASES: u32 = 256;
/// The most bytes of memory for the changes that were not sent yet.
const MOST_CHANGED: usize = 64 << 20;

/// The removal of an object that was sent before.
#[derive(Clone, Debug)]
struct Removed {
    version: Version,
    key: Vec<u8>,
}

/// The changes that the other master does not know yet, or has not acknowledged.
#[derive(Debug, Default)]
struct Changes {
    changed: HashSet<KeyHash>,
    removed: Vec<Removed>,
    /// The bytes of the removed keys.
    key_bytes: usize,
    completions: Vec<Completion>,
}

impl Changes {
    fn len(&self) -> usize {
        self.changed.len() + self.removed.len() + self.completions.len()
    }

    /// Returns the approximate size of the changes in bytes.
    fn bytes(&self) -> usize {
        let Self { changed, removed, key_bytes, completions } = self;
        size_of_val(&completions[..])
            + size_of_val(&removed[..])
            + key_bytes
            + 2 * size_of::<KeyHash>() * changed.len()
    }

    fn remove(&mut self, removed: Removed) {
        self.key_bytes += removed.key.len();
        self.removed.push(removed);
    }

    /// Takes any of the removals.
    fn next_removed(&mut self) -> Option<Removed> {
        let removed = self.removed.pop()?;
        self.key_bytes -= removed.key.len();
        Some(removed)
    }

    /// Takes any of the changed hashes.
    fn next_changed(&mut self) -> Option<KeyHash> {
        let hash = *self.changed.iter().next()?;
        self.changed.take(&hash)
    }

    /// Takes back what was sent and may not have arrived.
    fn take_back(&mut self, sent: Self) {
        self.changed.extend(sent.changed);
        self.removed.extend(sent.removed);
        self.key_bytes += sent.key_bytes;
        self.completions.extend(sent.completions);
    }
}

/// A tablet that another master takes over.
#[derive(Debug)]
pub struct Leaving {
    number: u64,
    tablet: Tablet,
    /// The number of the last page, and the position of the walk at its start.
    page: u64,
    page_began: Option<u64>,
    /// The position of the walk in the hash table. `None` if it has ended.
    walk: Option<u64>,
    /// The number of pages since the end of the walk.
    chases: u32,
    changes: Changes,
    /// The changes in the last page.
    sent: Changes,
    closed: bool,
}

/// The reason for which there is no page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoPage {
    /// The page is neither the last one nor the one after it.
    #[error("the page is out of order")]
    OutOfOrder,
    /// The changes that were not sent take too much memory.
    #[error("the tablet changes faster than it can be sent")]
    TooManyChanges,
}

impl Leaving {
    /// Returns the migration of a tablet of which nothing was sent yet.
    #[must_use]
    pub fn new(number: u64, tablet: Tablet) -> Self {
        Self {
            number,
            tablet,
            page: 0,
            page_began: Some(0),
            walk: Some(0),
            chases: 0,
            changes: Changes::default(),
            sent: Changes::default(),
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
        self.tablet.contains(table, hash) && self.walk.is_none_or(|walk| spread(table, hash) < walk)
    }

    /// Notes that the object of `table` under `hash` has changed.
    #[cold]
    pub(super) fn note_change(&mut self, table: TableId, hash: KeyHash) {
        if self.has_sent(table, hash) {
            self.changes.changed.insert(hash);
        }
    }

    /// Notes that an object was removed.
    #[cold]
    pub(super) fn note_removal(&mut self, hash: KeyHash, tombstone: &Tombstone<'_>) {
        if self.has_sent(tombstone.table, hash) {
            let (version, key) = (tombstone.version, tombstone.key.to_vec());
            self.changes.remove(Removed { version, key });
        }
    }

    /// Begins a page: the one after the last, or the last one again.
    fn begin_page(&mut self, number: u64) -> Result<(), NoPage> {
        if number == self.page {
            // The last page may not have arrived.
            self.changes.take_back(core::mem::take(&mut self.sent));
            self.walk = self.page_began;
        } else if number == self.page + 1 {
            self.sent = Changes::default();
            (self.page, self.page_began) = (number, self.walk);
            self.chases += u32::from(self.walk.is_none());
        } else {
            return Err(NoPage::OutOfOrder);
        }
        if self.changes.bytes() > MOST_CHANGED {
            return Err(NoPage::TooManyChanges);
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        let left = self.changes.len();
        match (self.closed, self.walk) {
            (true, None) if left == 0 => Progress::Complete,
            (false, None) if left <= FEW || self.chases >= MOST_CHASES => Progress::Near,
            _ => Progress::Behind,
        }
    }
}

/// The bytes of a page.
struct Writer<'a> {
    out: Vec<u8>,
    log: &'a Log,
    /// The checksum of the header, which those of the entries continue.
    seed: u32,
}

impl<'a> Writer<'a> {
    fn new(log: &'a Log, (cluster, server): (u64, ServerId)) -> Self {
        let header = Header {
            cluster,
            server,
            segment: PAGE,
            capacity: PAGE_BYTES as u32,
            safe_version: log.safe_version(),
        };
        let mut writer = Self { out: Page::head(Progress::Behind), log, seed: 0 };
        writer.put(HEADER, |out| entry::put_header(out, &header));
        let crc = &writer.out[Page::HEAD + 4..][..4];
        writer.seed = crc.iter().fold(0, |crc, byte| crc << 8 | u32::from(*byte));
        writer
    }

    /// Appends an entry of `len` bytes, which `write` writes.
    fn put(&mut self, len: usize, write: impl FnOnce(&mut [u8])) {
        let at = self.out.len();
        self.out.resize(at + len, 0);
        write(&mut self.out[at..]);
        let sealed = entry::seal(self.log.crc32c(), self.seed, &mut self.out[at..]);
        debug_assert!(sealed == Some(len), "a page has whole entries");
    }

    fn object(&mut self, at: Location, object: &Object<'_>) {
        let bytes = self.log.bytes(at);
        self.put(object.entry_len(), |out| entry::copy(out, bytes, Span::default()));
    }

    fn tombstone(&mut self, table: TableId, removed: &Removed) {
        let Removed { version, ref key } = *removed;
        let tombstone = Tombstone { table, version, older: Span::default(), key };
        self.put(tombstone.entry_len(), |out| entry::put_tombstone(out, &tombstone, None));
    }

    fn completion(&mut self, completion: &Completion) {
        self.put(completion.entry_len(), |out| entry::put_completion(out, completion));
    }

    fn is_full(&self) -> bool {
        self.out.len() >= PAGE_BYTES
    }
}

impl Memory {
    /// Returns the page `number` of the tablet that leaves, in the format of the reply.
    ///
    /// # Errors
    /// [`NoPage`]. The migration has to be given up.
    pub fn page(&mut self, me: (u64, ServerId), number: u64) -> Result<Vec<u8>, NoPage> {
        let mut leaving = self.leaving.take().ok_or(NoPage::OutOfOrder)?;
        let page = leaving.begin_page(number).map(|()| self.fill(&mut leaving, me));
        self.leaving = Some(leaving);
        page
    }

    fn fill(&self, leaving: &mut Leaving, me: (u64, ServerId)) -> Vec<u8> {
        let mut page = Writer::new(&self.log, me);
        self.put_changes(leaving, &mut page);
        let mut line = Vec::new();
        for _ in 0..PAGE_LINES {
            let Some(walk) = leaving.walk.filter(|_| !page.is_full()) else { break };
            line.clear();
            leaving.walk = self.table.walk(walk, &mut line);
            if let Some(at) = self.put_line(leaving.tablet, walk, &line, &mut page) {
                leaving.walk = at.checked_add(1);
            }
        }
        page.out[Page::HEAD - 1] = leaving.progress() as u8;
        page.out
    }

    /// Appends the objects of a line of the hash table that are in the tablet, from the position
    /// `walk` on. Returns the position of the last one if the page is full before the end.
    fn put_line(
        &self,
        tablet: Tablet,
        walk: u64,
        line: &[Location],
        page: &mut Writer<'_>,
    ) -> Option<u64> {
        // All of the line's objects are read at once.
        black_box(line.iter().fold(0, |read, &at| read ^ self.log.bytes(at)[0]));
        let position = |&at: &Location| {
            let object = self.log.object(at);
            let same = Some(object.table).filter(|&table| table == tablet.table)?;
            let hash = self.tablets.hash(same, object.key)?;
            let position = spread(same, hash);
            (tablet.contains(same, hash) && position >= walk).then_some((position, at))
        };
        let mut objects: Vec<_> = line.iter().filter_map(position).collect();
        objects.sort_unstable_by_key(|&(position, at)| (position, at.bits()));
        for (i, &(position, at)) in objects.iter().enumerate() {
            page.object(at, &self.log.object(at));
            // Two keys of one hash stay together, for the walk cannot tell them apart.
            let next = objects.get(i + 1).map(|&(next, _)| next);
            if page.is_full() && next.is_some_and(|next| next != position) {
                return Some(position);
            }
        }
        None
    }

    /// Appends changes as far as the page has room.
    fn put_changes(&self, leaving: &mut Leaving, page: &mut Writer<'_>) {
        let Leaving { tablet, changes, sent, .. } = leaving;
        let table = tablet.table;
        while !page.is_full()
            && let Some(removed) = changes.next_removed()
        {
            page.tombstone(table, &removed);
            sent.remove(removed);
        }
        let mut found = Vec::new();
        while !page.is_full()
            && let Some(hash) = changes.next_changed()
        {
            found.clear();
            self.table.find(spread(table, hash), |at| {
                found.push(at);
                false
            });
            for &at in &found {
                let object = self.log.object(at);
                let is_it = object.table == table
                    && self.tablets.hash(object.table, object.key) == Some(hash);
                if is_it {
                    page.object(at, &object);
                }
            }
            sent.changed.insert(hash);
        }
        while !page.is_full()
            && let Some(completion) = changes.completions.pop()
        {
            page.completion(&completion);
            sent.completions.push(completion);
        }
    }

    /// Closes the tablet that leaves: this master serves it no more. The next pages have the rest of
    /// it. Does nothing if it is closed.
    pub fn close_leaving(&mut self) {
        let Some(leaving) = self.leaving.as_deref_mut().filter(|leaving| !leaving.closed) else {
            return;
        };
        leaving.closed = true;
        self.tablets.close(leaving.tablet);
        let (log, tablets) = (&self.log, &self.tablets);
        self.results.each(|once, outcome, at| {
            if let Some((table, hash)) = object_of_record(log, tablets, at)
                && leaving.tablet.contains(table, hash)
            {
                leaving.changes.completions.push(Completion { once, table, hash, outcome });
            }
        });
    }

    /// Ends the migration of the tablet that leaves. If it is `kept`, this master serves it again or
    /// goes on to. Otherwise its objects are to be swept.
    pub fn end_leaving(&mut self, kept: bool) {
        let Some(leaving) = self.leaving.take() else { return };
        if leaving.closed {
            self.tablets.reopen(leaving.tablet);
        }
        if !kept {
            self.tablets.drop_tablet(leaving.tablet);
        }
    }
}

#[cfg(test)]
mod tests;
