//! The memory of a master, and the operations on it: the log, and the tables that point into it.
//!
//! ```text
//!  tablets: table, key → hash            table: hash → location in the log
//!  results: lease, number → outcome      log: the entries
//! ```
//!
//! Invariants: every object in the hash table is live in the log, and is the only live one of its
//! key. A mutation is one append of the object or tombstone together with its completion record,
//! and changes nothing if that append is impossible. Versions of a key only grow. The master checks
//! leases and holds replies back until they are durable; the cleaner is in a file of its own.

use alloc::vec::Vec;

use crate::message::Status;
use crate::message::data::{Amount, Once, Target};
use crate::message::list::object_head;
use crate::objects::entry::{
    self, COMPLETION, Completion, OBJECT, Object, Outcome, RECORD, Record, Tombstone,
};
use crate::objects::log::{Full, Log, Purpose};
use crate::objects::number;
use crate::objects::rifl::Results;
use crate::objects::segment::{Location, Span};
use crate::objects::table::{HashTable, Place, spread};
use crate::objects::tablet::{Tablet, Tablets};
use crate::types::{KeyHash, MAX_KEY, MAX_VALUE, TableId, Version};

/// The number of lines of the hash table that one enumeration reads.
const ENUMERATE_LINES: usize = 32;
/// The length from which on a value is not copied into the reply to an enumeration, in bytes.
pub const LARGE_VALUE: usize = 4 << 10;

/// The change that a mutation makes to an object.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change<'a> {
    /// The mutation writes this value to the object.
    Write(&'a [u8]),
    /// The mutation removes the object.
    Remove,
    /// The mutation adds this amount to the number in the object.
    Add(Amount),
    /// The mutation adds these bytes to the end of the value.
    Append(&'a [u8]),
}

/// A mutation of an object, which a master executes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mutation<'a> {
    /// The table of the mutation's object and the conditions.
    pub target: Target,
    /// The identity of the mutation: lease, number and acknowledgement.
    pub once: Once,
    /// The key of the mutation's object.
    pub key: &'a [u8],
    /// The hash of the key in the table.
    pub hash: KeyHash,
    /// The change that the mutation makes to the object.
    pub change: Change<'a>,
}

/// An object as it was before a mutation.
pub(super) struct Before {
    pub(super) place: Place,
    pub(super) at: Location,
    pub(super) len: usize,
    pub(super) version: Version,
    /// A span of the segments that have the object and older versions of it.
    pub(super) older: Span,
}

impl Before {
    /// Returns `object`, which is at `at` in the log and `place` in the hash table.
    #[inline]
    pub(super) fn new(log: &Log, place: Place, at: Location, object: &Object<'_>) -> Self {
        let older = object.older.with(log.slots()[at.slot()].id);
        Self { place, at, len: object.entry_len(), version: object.version, older }
    }
}

/// Some objects of a tablet, as [`Memory::enumerate`] returns them.
#[derive(Debug, Default)]
pub struct Listing {
    /// The listed objects in the format of the reply.
    pub bytes: Vec<u8>,
    /// The location and length of the last listed value if it is large. It is not in `bytes`.
    pub large: Option<(Location, usize)>,
    /// The number of listed objects.
    pub count: u32,
    /// The position of the next object to list, 0 at the end.
    pub next: u64,
}

/// The memory of a master: its log, its hash table, its tablets, and outcomes of mutations.
#[derive(Debug)]
pub struct Memory {
    /// The log with all entries of the master.
    pub log: Log,
    /// The hash table with the locations of the objects.
    pub table: HashTable,
    /// The tablets that the master owns.
    pub tablets: Tablets,
    /// The outcomes of mutations, which the master remembers.
    pub results: Results,
    /// The position of the sweep for dropped tablets, and the number of tablets that it covers.
    sweep: Option<(u64, usize)>,
}

impl Memory {
    /// Returns the memory of a master, without objects, on top of this log.
    #[must_use]
    pub fn new(log: Log) -> Self {
        // A line of the table for every 8 KiB of log; more when there are many small objects.
        let table = HashTable::new(log.capacity_bytes() / 2048);
        Self { log, table, tablets: Tablets::default(), results: Results::default(), sweep: None }
    }

    // Objects.

    /// Returns the location of the object of `table` under `key`.
    #[inline]
    pub fn find(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Option<(Place, Location)> {
        let mut found = None;
        let place = self.table.find(spread(table, hash), |at| {
            found = Some(at);
            entry::is_of(self.log.bytes(at), table, key)
        })?;
        found.map(|at| (place, at))
    }

    /// Executes a mutation that is new.
    ///
    /// # Errors
    /// The status to reply with. Nothing changed, and the mutation is still new. [`Status::Retry`]
    /// means that no segment is free.
    pub fn mutate(&mut self, mutation: &Mutation<'_>) -> Result<Outcome, Status> {
        let Mutation { target, key, hash, .. } = mutation;
        let (mut sum, mut appended) = (None, Vec::new());
        let before = self.find(target.table, *hash, key).map(|(place, at)| {
            let object = self.log.object(at);
            match mutation.change {
                Change::Add(amount) => sum = Some(number::add(Some(object.value), amount)),
                Change::Append(bytes) => appended = [object.value, bytes].concat(),
                Change::Write(_) | Change::Remove => {}
            }
            Before::new(&self.log, place, at, &object)
        });
        let version = before.as_ref().map_or(Version(0), |before| before.version);
        if let Err(status) = target.rules.check(version) {
            return self.conclude(mutation, Outcome { status, version, sum: None });
        }
        match mutation.change {
            Change::Write(value) => self.write(mutation, before, value, None),
            Change::Append(bytes) => {
                let value = if before.is_some() { &appended } else { bytes };
                if value.len() > MAX_VALUE {
                    return Err(Status::ValueTooLong);
                }
                let length = (value.len() as u64).to_be_bytes();
                self.write(mutation, before, value, Some(length))
            }
            Change::Remove => match before {
                Some(before) => self.remove(mutation, &before),
                None => self.conclude(mutation, Outcome { status: Status::Ok, version, sum: None }),
            },
            Change::Add(amount) => match sum.unwrap_or_else(|| number::add(None, amount)) {
                Ok((text, sum)) => self.write(mutation, before, text.as_bytes(), Some(sum)),
                Err(status) => self.conclude(mutation, Outcome { status, version, sum: None }),
            },
        }
    }

    fn write(
        &mut self,
        mutation: &Mutation<'_>,
        before: Option<Before>,
        value: &[u8],
        sum: Option<[u8; 8]>,
    ) -> Result<Outcome, Status> {
        let len = OBJECT + mutation.key.len() + value.len();
        if len + RECORD > self.log.longest_entry() {
            return Err(Status::ValueTooLong);
        }
        let old_len = before.as_ref().map_or(0, |before| before.len);
        let grown = self.log.live_bytes() + (len + COMPLETION) as u64 - old_len as u64;
        if len > old_len && grown > self.log.live_limit_with(len + RECORD) {
            return Err(Status::NoSpace);
        }
        let safe_version = self.log.safe_version();
        let next = before.as_ref().map_or(safe_version, |before| Version(before.version.0 + 1));
        let version = next.max(self.tablets.floor(mutation.target.table, mutation.hash));
        if version > Version::MAX {
            return Err(Status::NoSpace);
        }
        let outcome = Outcome { status: Status::Ok, version, sum };
        let object = Object {
            table: mutation.target.table,
            version,
            older: before.as_ref().map_or_else(Span::default, |before| before.older),
            key: mutation.key,
            value,
        };
        let record = Record { once: mutation.once, sum };
        let put = self.put(&object, mutation.hash, before.as_ref(), Some(&record), Purpose::Write);
        let Ok(at) = put else { return Err(Status::Retry) };
        if before.is_none() {
            self.log.use_version();
        }
        self.completed(mutation.once, outcome, at);
        Ok(outcome)
    }

    /// Appends an object, which takes the place of `before`, and its record.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        object: &Object<'_>,
        hash: KeyHash,
        before: Option<&Before>,
        record: Option<&Record>,
        purpose: Purpose,
    ) -> Result<Location, Full> {
        let len = object.entry_len();
        let record_len = record.map_or(0, |record| Record::size(record.sum.is_some()));
        let (at, memory) = self.log.append(len + record_len, purpose)?;
        entry::put_object(memory, object, record);
        self.log.live(at, len);
        match before {
            Some(before) => {
                self.table.set(before.place, at);
                self.log.dead(before.at, before.len);
            }
            None => {
                let (log, tablets) = (&self.log, &self.tablets);
                let hash_of = |at| hash_at(log, tablets, at);
                self.table.insert(spread(object.table, hash), at, hash_of);
            }
        }
        Ok(at)
    }

    fn remove(&mut self, mutation: &Mutation<'_>, before: &Before) -> Result<Outcome, Status> {
        let tombstone = Tombstone {
            table: mutation.target.table,
            version: before.version,
            older: before.older,
            key: mutation.key,
        };
        let record = Record { once: mutation.once, sum: None };
        let buried = self.bury(&tombstone, before, Some(&record), Purpose::Remove);
        let at = buried.map_err(|_| Status::Retry)?;
        let outcome = Outcome { status: Status::Ok, version: before.version, sum: None };
        self.log.raise_safe_version(before.version);
        self.completed(mutation.once, outcome, at);
        Ok(outcome)
    }

    /// Removes the object `before` and appends its tombstone with its record.
    pub(super) fn bury(
        &mut self,
        tombstone: &Tombstone<'_>,
        before: &Before,
        record: Option<&Record>,
        purpose: Purpose,
    ) -> Result<Location, Full> {
        let len = tombstone.entry_len();
        let record_len = record.map_or(0, |record| Record::size(record.sum.is_some()));
        let (at, memory) = self.log.append(len + record_len, purpose)?;
        entry::put_tombstone(memory, tombstone, record);
        self.log.live_tombstone(at, len, tombstone.older);
        self.table.remove(before.place);
        self.log.dead(before.at, before.len);
        Ok(at)
    }

    /// Records the outcome of a mutation that changes no object.
    fn conclude(&mut self, mutation: &Mutation<'_>, outcome: Outcome) -> Result<Outcome, Status> {
        let Mutation { target, once, hash, .. } = *mutation;
        let completion = Completion { once, table: target.table, hash, outcome };
        let appended = self.log.append(completion.entry_len(), Purpose::Remove);
        let (at, memory) = appended.map_err(|_| Status::Retry)?;
        entry::put_completion(memory, &completion);
        self.completed(mutation.once, outcome, at);
        Ok(outcome)
    }

    fn completed(&mut self, once: Once, outcome: Outcome, at: Location) {
        self.log.live_record(at);
        self.results.done(once, outcome, at, self.log.tail());
    }

    /// Lists objects of a tablet in the order of the hash table from `cursor` on, about `limit`
    /// bytes of them, as far as a bounded search finds them. It copies no large value: it ends
    /// after one.
    #[must_use]
    pub fn enumerate(&self, tablet: Tablet, cursor: u64, limit: usize) -> Listing {
        let mut listing = Listing { next: cursor, ..Listing::default() };
        let (mut line, mut sorted) = (Vec::new(), Vec::new());
        for _ in 0..ENUMERATE_LINES {
            line.clear();
            sorted.clear();
            let next_line = self.table.walk(listing.next, &mut line);
            sorted.extend(line.iter().filter_map(|&at| {
                let object = self.log.object(at);
                let hash = self.tablets.hash(object.table, object.key)?;
                let position = spread(object.table, hash);
                (tablet.contains(object.table, hash) && position >= listing.next)
                    .then_some((position, at))
            }));
            sorted.sort_unstable_by_key(|&(position, at)| (position, at.bits()));
            for (index, &(position, at)) in sorted.iter().enumerate() {
                self.list(at, &mut listing);
                // Two keys of one hash stay together, for the cursor cannot tell them apart.
                let same = sorted.get(index + 1).is_some_and(|&(next, _)| next == position);
                if !same && (listing.bytes.len() >= limit || listing.large.is_some()) {
                    listing.next = position.wrapping_add(1);
                    return listing;
                }
            }
            listing.next = next_line.unwrap_or(0);
            if listing.next == 0 {
                break;
            }
        }
        listing
    }

    fn list(&self, at: Location, listing: &mut Listing) {
        // A large value that was left out precedes this object (keys of one hash).
        if let Some((at, len)) = listing.large.take() {
            listing.bytes.extend_from_slice(&self.log.bytes(at)[..len]);
        }
        let Object { version, key, value, .. } = self.log.object(at);
        listing.bytes.extend_from_slice(&object_head(
            key.len() as u32,
            version,
            value.len() as u32,
        ));
        listing.bytes.extend_from_slice(key);
        listing.count += 1;
        if value.len() >= LARGE_VALUE {
            listing.large = Some((at.plus(OBJECT + key.len()), value.len()));
        } else {
            listing.bytes.extend_from_slice(value);
        }
    }

    // In the background.

    /// Moves up to `lines` lines of the hash table while it grows. Returns true if more lines have
    /// to be moved.
    pub fn grow(&mut self, lines: usize) -> bool {
        let (log, tablets) = (&self.log, &self.tablets);
        self.table.grow(lines, |at| hash_at(log, tablets, at))
    }

    /// Removes objects of dropped tablets in up to `lines` lines of the hash table. Returns true if
    /// there is more to do.
    pub fn sweep(&mut self, lines: usize) -> bool {
        let mut line = Vec::new();
        for _ in 0..lines {
            let count = self.tablets.dropped();
            if self.sweep.is_none() && count == 0 {
                return false;
            }
            let (hash, count) = self.sweep.unwrap_or((0, count));
            line.clear();
            let next = self.table.walk(hash, &mut line);
            for &at in &line {
                let object = self.log.object(at);
                let (len, table) = (object.entry_len(), object.table);
                let Some(hash) = self.tablets.hash(table, object.key) else { continue };
                if self.tablets.is_dropped(table, hash)
                    && let Some(place) = self.table.place(spread(table, hash), at)
                {
                    self.table.remove(place);
                    self.log.dead(at, len);
                }
            }
            self.sweep = next.map(|next| (next, count));
            if self.sweep.is_none() {
                self.tablets.swept(count);
            }
        }
        true
    }
}

/// Checks the limits of keys and values.
///
/// # Errors
/// The status to reply with.
pub fn check_sizes(key: &[u8], value: &[u8]) -> Result<(), Status> {
    if key.len() > MAX_KEY {
        return Err(Status::KeyTooLong);
    }
    if value.len() > MAX_VALUE { Err(Status::ValueTooLong) } else { Ok(()) }
}

/// Returns the hash of the object at `at`, for the hash table.
fn hash_at(log: &Log, tablets: &Tablets, at: Location) -> u64 {
    let object = log.object(at);
    let hash = tablets.hash(object.table, object.key);
    debug_assert!(hash.is_some(), "an object in the hash table belongs to a table that is known");
    spread(object.table, hash.unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests;
