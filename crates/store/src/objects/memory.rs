//! The memory of a master, and the operations on it: the log, and the tables that point into it.
//!
//! ```text
//!  tablets: table, key → hash            table: hash → location in the log
//!  results: lease, number → outcome      log: the entries
//! ```
//!
//! Invariants: every object in the hash table is live in the log, and is the only live one of its
//! key. The master checks leases and holds replies back until they are durable.
//!
//! Elsewhere: [`mutate`](super::mutate) executes mutations, the [`cleaner`](super::cleaner) and
//! [`expiry`](super::expiry) work in the background.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::black_box;

use crate::message::Status;
use crate::message::list::object_head;
use crate::objects::cache;
use crate::objects::entry::{self, Completion, Entry, OBJECT, Object, Tombstone};
use crate::objects::leaving::Leaving;
use crate::objects::locks::Transactions;
use crate::objects::log::Log;
use crate::objects::rifl::Results;
use crate::objects::segment::Location;
use crate::objects::table::{HashTable, Place, spread};
use crate::objects::tablet::{Tablet, Tablets};
use crate::types::{KeyHash, MAX_KEY, MAX_VALUE, TableId, WallTime};

/// The number of lines of the hash table that one enumeration reads.
const ENUMERATE_LINES: usize = 32;
/// The number of bytes of an object that are loaded ahead: its header, its key, and a small value.
const LOADED: usize = 192;
/// The length from which on a value is not copied into the reply to an enumeration, in bytes.
pub const LARGE_VALUE: usize = 4 << 10;

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
    /// True if a transaction is to change an object at the cursor, so that nothing is listed.
    pub locked: bool,
    /// The objects on the way that have expired: their hashes in the hash table and locations.
    pub expired: Vec<(u64, Location)>,
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
    /// The transactions that are prepared or not known to have ended everywhere, and their locks.
    pub transactions: Transactions,
    /// The number of objects that were removed because they had expired.
    pub expired: u64,
    /// The tablet that another master takes over, if there is one.
    pub leaving: Option<Box<Leaving>>,
    /// The room for leaves that change with an object.
    pub(super) edited: Vec<u8>,
    /// The position of the sweep for dropped tablets, and the number of tablets that it covers.
    sweep: Option<(u64, usize)>,
}

impl Memory {
    /// Returns the memory of a master, without objects, on top of this log.
    #[must_use]
    pub fn new(log: Log) -> Self {
        // A line of the table for every 8 KiB of log; more when there are many small objects.
        let table = HashTable::new(log.capacity_bytes() / 2048);
        let (tablets, results) = (Tablets::default(), Results::default());
        let transactions = Transactions::default();
        let (edited, leaving, sweep) = (Vec::new(), None, None);
        Self { log, table, tablets, results, transactions, expired: 0, leaving, edited, sweep }
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

    /// Loads the lines of the hash table at these positions, and the begins of the objects there,
    /// so that they are in the cache when the objects are looked up soon. Each of the two loops has
    /// few instructions between two reads, for a processor looks ahead by some hundred instructions
    /// only.
    #[inline]
    pub(crate) fn load(&self, positions: &[u64]) {
        // The compiler must not drop the reads.
        black_box(positions.iter().fold(0, |read, at| read ^ self.table.prefetch(*at)));
        for at in positions.iter().filter_map(|at| self.table.first(*at)) {
            let bytes = self.log.bytes(at);
            cache::load(&bytes[..bytes.len().min(LOADED)]);
        }
    }

    /// Lists objects of a tablet in the order of the hash table from `cursor` on, about `limit`
    /// bytes of them, as far as a bounded search finds them. It copies no large value: it ends
    /// after one. It ends before an object that a transaction is to change, for that may be
    /// committed already.
    #[must_use]
    pub fn enumerate(&self, tablet: Tablet, cursor: u64, limit: usize, wall: WallTime) -> Listing {
        let stop = self.first_changing(tablet, cursor);
        let locked = stop == Some(cursor);
        let mut listing = Listing { next: cursor, locked, ..Listing::default() };
        if locked {
            return listing;
        }
        let (mut line, mut sorted) = (Vec::new(), Vec::new());
        // The length of the tombstones of what has expired.
        let mut buried = 0;
        for _ in 0..ENUMERATE_LINES {
            line.clear();
            sorted.clear();
            let next_line = self.table.walk(listing.next, &mut line);
            sorted.extend(line.iter().filter_map(|&at| {
                let object = self.log.object(at);
                let table = Some(object.table).filter(|&table| table == tablet.table)?;
                let hash = self.tablets.hash(table, object.key)?;
                let position = spread(table, hash);
                let is_next = position >= listing.next && stop.is_none_or(|stop| position < stop);
                (tablet.contains(table, hash) && is_next).then_some((position, at))
            }));
            sorted.sort_unstable_by_key(|&(position, at)| (position, at.bits()));
            for (index, &(position, at)) in sorted.iter().enumerate() {
                let object = self.log.object(at);
                if object.expires <= wall {
                    buried += OBJECT + object.key.len();
                    listing.expired.push((position, at));
                } else {
                    self.list(at, wall, &mut listing);
                }
                // Two keys of one hash stay together, for the cursor cannot tell them apart.
                let same = sorted.get(index + 1).is_some_and(|&(next, _)| next == position);
                let is_long = listing.bytes.len() + buried >= limit || listing.large.is_some();
                if !same && is_long {
                    listing.next = position.wrapping_add(1);
                    return listing;
                }
            }
            listing.next = next_line.unwrap_or(0);
            if let Some(stop) = stop
                && (listing.next == 0 || listing.next > stop)
            {
                listing.next = stop;
                break;
            }
            if listing.next == 0 {
                break;
            }
        }
        listing
    }

    /// Returns the first position from `cursor` on of an object of the tablet that a transaction is
    /// to change.
    fn first_changing(&self, tablet: Tablet, cursor: u64) -> Option<u64> {
        if self.transactions.are_none_locked() {
            return None;
        }
        let changing = self.transactions.changing(tablet.table);
        let positions = changing
            .filter(|&hash| tablet.contains(tablet.table, hash))
            .map(|hash| spread(tablet.table, hash));
        positions.filter(|&position| position >= cursor).min()
    }

    fn list(&self, at: Location, wall: WallTime, listing: &mut Listing) {
        // A large value that was left out precedes this object (keys of one hash).
        if let Some((at, len)) = listing.large.take() {
            listing.bytes.extend_from_slice(&self.log.bytes(at)[..len]);
        }
        let Object { version, key, value, expires, .. } = self.log.object(at);
        listing.bytes.extend_from_slice(&object_head(
            key.len() as u32,
            version,
            value.len() as u32,
            expires.rest(wall),
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
                    if table.is_records() {
                        self.transactions.forget(table.base(), object.key);
                    }
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

/// Returns the table and the key hash of the object of the mutation whose record is at `at`. `None`
/// if the table is unknown.
pub(super) fn object_of_record(
    log: &Log,
    tablets: &Tablets,
    at: Location,
) -> Option<(TableId, KeyHash)> {
    match entry::parse(log.bytes(at))? {
        (Entry::Completion(Completion { table, hash, .. }), _) => Some((table.base(), hash)),
        (
            Entry::Object(Object { table, key, .. }, _)
            | Entry::Tombstone(Tombstone { table, key, .. }, _),
            _,
        ) => Some((table.base(), tablets.hash(table, key)?)),
        _ => None,
    }
}

/// Returns the hash of the object at `at`, for the hash table.
pub(super) fn hash_at(log: &Log, tablets: &Tablets, at: Location) -> u64 {
    let object = log.object(at);
    let hash = tablets.hash(object.table, object.key);
    debug_assert!(hash.is_some(), "an object in the hash table belongs to a table that is known");
    spread(object.table, hash.unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests;
