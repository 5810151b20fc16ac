//! The pages of a tablet that leaves: log entries for another master, and the end of its migration.
//!
//! [`Leaving`] has the rules of what they contain.

use alloc::vec::Vec;
use core::hint::black_box;

use super::entry::{self, Completion, HEADER, Header, Object, Tombstone};
use super::leaving::{Asked, Changes, Leaving, NoPage, Removed};
use super::log::Log;
use super::memory::{Memory, object_of_record};
use super::segment::{Location, Span};
use super::table::spread;
use super::tablet::Tablet;
use crate::message::migration::{PAGE, Page, Progress};
use crate::types::ServerId;

/// The number of bytes from which on a page is full. One more object goes in. Tests have small
/// memories. The source makes one page in a turn, and clients wait meanwhile. A longer page is also
/// in no cache any more when it is sent, and when it is replayed.
const PAGE_BYTES: usize = if cfg!(test) { 600 } else { 64 << 10 };
/// The most lines of the hash table that one page walks.
const PAGE_LINES: usize = if cfg!(test) { 5 } else { 128 };
/// The most changed hashes that one page looks up.
const PAGE_CHANGES: usize = if cfg!(test) { 5 } else { 1024 };
/// The number of objects from which on the walk reads no more lines before it appends the objects.
/// Their bytes are read from the log at once.
const GROUP: usize = 32;
/// The most bytes of an object that are read ahead. The processor itself fetches the rest of a long
/// one.
const READ_AHEAD: usize = 1024;
/// The length in bytes of a line of the processor's caches.
const CACHE_LINE: usize = 64;

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
        let mut out = Page::head(Progress::Behind);
        // One more object than has room is mostly short.
        out.reserve(PAGE_BYTES + PAGE_BYTES / 16);
        let mut writer = Self { out, log, seed: 0 };
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

    fn tombstone(&mut self, removed: &Removed) {
        let Removed { table, version, ref key, .. } = *removed;
        let tombstone = Tombstone { table, version, older: Span::default(), key };
        self.put(tombstone.entry_len(), |out| entry::put_tombstone(out, &tombstone, None));
    }

    fn completion(&mut self, completion: &Completion<'_>) {
        self.put(completion.entry_len(), |out| entry::put_completion(out, completion));
    }

    fn is_full(&self) -> bool {
        self.out.len() >= PAGE_BYTES
    }
}

impl Memory {
    /// Returns a page of the tablet that leaves, in the format of the reply.
    ///
    /// # Errors
    /// [`NoPage`]. After [`NoPage::TooManyChanges`] the migration has to be given up.
    pub fn page(&mut self, me: (u64, ServerId), asked: Asked) -> Result<Vec<u8>, NoPage> {
        let mut leaving = self.leaving.take().ok_or(NoPage::OutOfOrder)?;
        let page = leaving.begin_page(asked).map(|()| self.fill(&mut leaving, me));
        self.leaving = Some(leaving);
        page
    }

    fn fill(&self, leaving: &mut Leaving, me: (u64, ServerId)) -> Vec<u8> {
        let mut page = Writer::new(&self.log, me);
        self.put_changes(leaving, &mut page);
        let (mut line, mut group) = (Vec::new(), Vec::new());
        let mut lines = 0;
        while !page.is_full()
            && lines < PAGE_LINES
            && let Some(mut walk) = leaving.walk
        {
            group.clear();
            while group.len() < GROUP && lines < PAGE_LINES {
                leaving.walk = self.table.walk(walk, &mut line);
                group.extend(line.drain(..).map(|at| (walk, at)));
                lines += 1;
                let Some(next) = leaving.walk else { break };
                walk = next;
            }
            if let Some(at) = self.put_group(leaving.tablet, &group, &mut page) {
                leaving.walk = at.checked_add(1);
            }
        }
        page.out[Page::HEAD - 1] = leaving.progress() as u8;
        page.out
    }

    /// Appends the objects of some lines of the hash table that are in the tablet, each from a
    /// position of the walk on. Returns the position of the last one if the page is full before the
    /// end.
    fn put_group(
        &self,
        tablet: Tablet,
        group: &[(u64, Location)],
        page: &mut Writer<'_>,
    ) -> Option<u64> {
        // These loops are short, so that the processor has all of their reads in progress at once.
        // The compiler must not drop them.
        let read = |at: Location, byte: usize| self.log.bytes(at).get(byte).copied().unwrap_or(0);
        let begin = |sum, &(_, at): &(u64, Location)| sum ^ read(at, 0) ^ read(at, CACHE_LINE - 1);
        black_box(group.iter().fold(0, begin));
        let position = |&(walk, at): &(u64, Location)| {
            let object = self.log.object(at);
            let table = Some(object.table).filter(|table| table.base() == tablet.table)?;
            let hash = self.tablets.hash(table, object.key)?;
            let position = spread(table, hash);
            let is_it = tablet.contains(table, hash) && position >= walk;
            is_it.then_some((position, at, object.entry_len()))
        };
        let mut objects: Vec<_> = group.iter().filter_map(position).collect();
        objects.sort_unstable_by_key(|&(position, at, _)| (position, at.bits()));
        let rest = |sum, &(_, at, len): &(u64, Location, usize)| {
            let bytes = (CACHE_LINE..len.min(READ_AHEAD)).step_by(CACHE_LINE);
            bytes.fold(sum, |sum, byte| sum ^ read(at, byte))
        };
        black_box(objects.iter().fold(0, rest));
        for (i, &(position, at, _)) in objects.iter().enumerate() {
            page.object(at, &self.log.object(at));
            // Two keys of one hash stay together, for the walk cannot tell them apart.
            let next = objects.get(i + 1).map(|&(next, ..)| next);
            if page.is_full() && next.is_some_and(|next| next != position) {
                return Some(position);
            }
        }
        None
    }

    /// Appends changes as far as the page has room.
    fn put_changes(&self, leaving: &mut Leaving, page: &mut Writer<'_>) {
        let (changes, table) = (&mut leaving.changes, leaving.tablet.table);
        let mut sent = Changes::default();
        while !page.is_full()
            && let Some(removed) = changes.next_removed()
        {
            page.tombstone(&removed);
            sent.remove(removed);
        }
        let mut found = Vec::new();
        for _ in 0..PAGE_CHANGES {
            if page.is_full() {
                break;
            }
            let Some((table, hash)) = changes.next_changed() else { break };
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
            sent.change(table, hash);
        }
        while !page.is_full()
            && let Some((once, hash)) = changes.completions.pop()
        {
            // The client may have acknowledged it meanwhile.
            if let Some((outcome, at)) = self.results.record(once) {
                let old = entry::old(self.log.bytes(at));
                page.completion(&Completion { once, table, hash, outcome, old });
            }
            sent.completions.push((once, hash));
        }
        leaving.sent(sent);
    }

    /// Closes the tablet that leaves: this master serves it no more. The next pages have the rest
    /// of it. Does nothing if it is closed.
    pub fn close_leaving(&mut self) {
        let Some(leaving) = self.leaving.as_deref_mut().filter(|leaving| !leaving.closed) else {
            return;
        };
        leaving.closed = true;
        self.tablets.close(leaving.tablet);
        let (log, tablets) = (&self.log, &self.tablets);
        self.results.each(|once, at| {
            if let Some((table, hash)) = object_of_record(log, tablets, at)
                && leaving.tablet.contains(table, hash)
            {
                leaving.changes.completions.push((once, hash));
            }
        });
    }

    /// Ends the migration of the tablet that leaves. If it is `kept`, this master serves it.
    /// Otherwise its objects are to be swept.
    pub fn end_leaving(&mut self, kept: bool) {
        let Some(leaving) = self.leaving.take() else { return };
        if leaving.closed {
            self.tablets.reopen(leaving.tablet);
        }
        if !kept {
            // The new owner has the outcomes.
            self.forget_outcomes(leaving.tablet);
            self.tablets.drop_tablet(leaving.tablet);
        }
    }
}

#[cfg(test)]
mod tests;
