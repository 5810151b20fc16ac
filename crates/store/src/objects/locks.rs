//! The transactions that a master has records of, and the locks that prepared objects have.
//!
//! This is an index of the records ([`super::record`]). [`Memory`](super::memory::Memory) keeps it
//! in step with them.
//!
//! ```text
//!  an object is to change:   reads, mutations and other transactions wait or are refused
//!  an object was read:       mutations wait; transactions that read it too may go on
//! ```
//!
//! Invariants: a lock exists as long as its record. A record that nothing decides on becomes due.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

use super::record::{Planned, Record, RecordKey};
use crate::message::transaction::Participant;
use crate::types::{KeyHash, TableId};

/// The time after which a master takes care of the record of a prepared object itself, in
/// nanoseconds. A client decides within a few round trips.
const SILENT_NS: u64 = 200 * MS;
/// The time after which a master takes care of the record of a commit itself, in nanoseconds. It
/// locks nothing, and a client that rests ends it with its next operation.
const IDLE_NS: u64 = SECOND;

/// The kind of access that an operation needs, or a lock keeps from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The operation reads the object.
    Read,
    /// The operation reads the object, and nothing may change it until the decision.
    Keep,
    /// The operation changes the object.
    Change,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lock {
    /// The number of prepared transactions that have read the object.
    kept: u32,
    /// The number of prepared transactions that are to change the object. There is one at most,
    /// apart from a replay, which may meet old records before their tombstones.
    changing: u32,
}

/// A record: the table of the object that it is about, and its key.
type Name = (TableId, RecordKey);

/// The records of transactions.
#[derive(Debug, Default)]
pub struct Transactions {
    /// Each record with the lock that it gives its object. A commit gives none.
    known: HashMap<Name, Option<Access>>,
    locks: HashMap<(TableId, KeyHash), Lock>,
    /// The records that are new since [`Transactions::note`].
    fresh: VecDeque<Name>,
    /// The records that become due, in the order of the times: those of prepared objects, and
    /// those of commits.
    due: [VecDeque<(Instant, Name)>; 2],
}

/// A record that is due: nothing has decided on it, or ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// The table of the object that the record is about.
    pub table: TableId,
    /// The key of the record.
    pub key: RecordKey,
}

impl Due {
    /// Returns the object that the record is about.
    #[must_use]
    pub fn object(self) -> Participant {
        let RecordKey { hash, rpc, .. } = self.key;
        Participant { table: self.table, hash, rpc }
    }
}

impl Transactions {
    /// Returns true if no object is locked.
    #[must_use]
    #[inline]
    pub fn are_none_locked(&self) -> bool {
        self.locks.is_empty()
    }

    /// Returns true if a lock keeps an operation from an object.
    #[must_use]
    #[inline]
    pub fn is_locked(&self, table: TableId, hash: KeyHash, access: Access) -> bool {
        !self.locks.is_empty() && self.blocks(table, hash, access)
    }

    #[cold]
    fn blocks(&self, table: TableId, hash: KeyHash, access: Access) -> bool {
        let Some(lock) = self.locks.get(&(table, hash)) else { return false };
        lock.changing > 0 || access == Access::Change && lock.kept > 0
    }

    /// Returns true if the record with this key, about an object of `table`, is here.
    #[must_use]
    pub fn knows(&self, table: TableId, key: RecordKey) -> bool {
        self.known.contains_key(&(table, key))
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns true if there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Iterates over the hashes of the objects of `table` that prepared transactions are to change.
    pub(super) fn changing(&self, table: TableId) -> impl Iterator<Item = KeyHash> {
        let locks =
            self.locks.iter().filter(move |((of, _), lock)| *of == table && lock.changing > 0);
        locks.map(|((_, hash), _)| *hash)
    }

    /// Adds the record of an object of `table` that has this key and value.
    #[cold]
    pub(super) fn add(&mut self, table: TableId, key: &[u8], value: &[u8]) {
        let (Some(key), Some(record)) = (RecordKey::parse(key), Record::parse(value)) else {
            return;
        };
        let lock = match record {
            Record::Prepared { planned: Planned::Check, .. } => Some(Access::Keep),
            Record::Prepared { .. } => Some(Access::Change),
            Record::Committed(_) => None,
        };
        if self.known.insert((table, key), lock).is_some() {
            return;
        }
        if let Some(access) = lock {
            let lock = self.locks.entry((table, key.hash)).or_default();
            match access {
                Access::Change => lock.changing += 1,
                Access::Keep | Access::Read => lock.kept += 1,
            }
        }
        self.fresh.push_back((table, key));
    }

    /// Removes the record with this key, about an object of `table`.
    #[cold]
    pub(super) fn forget(&mut self, table: TableId, key: &[u8]) {
        let Some(key) = RecordKey::parse(key) else { return };
        let Some(lock) = self.known.remove(&(table, key)) else { return };
        let of = (table, key.hash);
        if let (Some(access), Some(lock)) = (lock, self.locks.get_mut(&of)) {
            match access {
                Access::Change => lock.changing -= 1,
                Access::Keep | Access::Read => lock.kept -= 1,
            }
            if lock.changing == 0 && lock.kept == 0 {
                self.locks.remove(&of);
            }
        }
    }

    /// Notes the records that are new at `now`: they become due if nothing ends them.
    pub fn note(&mut self, now: Instant) {
        while let Some(name) = self.fresh.pop_front() {
            self.wait(now, name);
        }
    }

    /// Lets a record become due after a while, if it is still there.
    fn wait(&mut self, now: Instant, name: Name) {
        match self.known.get(&name) {
            Some(Some(_)) => self.due[0].push_back((now.after(SILENT_NS), name)),
            Some(None) => self.due[1].push_back((now.after(IDLE_NS), name)),
            None => {}
        }
    }

    /// Returns true if no record is new, and none will become due.
    #[must_use]
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.fresh.is_empty() && self.due.iter().all(VecDeque::is_empty)
    }

    /// Returns the time of the next call of [`Transactions::note`] or [`Transactions::next_due`].
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Instant {
        if !self.fresh.is_empty() {
            return Instant::ZERO;
        }
        let first = |due: &VecDeque<(Instant, Name)>| due.front().map(|(at, _)| *at);
        self.due.iter().filter_map(first).min().unwrap_or(Instant::NEVER)
    }

    /// Takes the next record that is due at `now`, if it is still there.
    pub fn next_due(&mut self, now: Instant) -> Option<Due> {
        for due in &mut self.due {
            while let Some((_, name)) = due.pop_front_if(|(at, _)| *at <= now) {
                if self.known.contains_key(&name) {
                    let (table, key) = name;
                    return Some(Due { table, key });
                }
            }
        }
        None
    }

    /// Lets a record that is still there become due again later.
    pub fn again(&mut self, now: Instant, due: Due) {
        self.wait(now, (due.table, due.key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LeaseId;

    const TABLE: TableId = TableId(3);
    const HASH: KeyHash = KeyHash(9);

    fn key(rpc: u64) -> [u8; 24] {
        RecordKey { hash: HASH, lease: LeaseId(1), rpc }.bytes()
    }

    fn record(planned: Planned<'_>) -> alloc::vec::Vec<u8> {
        Record::Prepared { key: b"k", planned, first: Participant::default() }.bytes()
    }

    fn locked(it: &Transactions) -> [bool; 3] {
        [Access::Read, Access::Keep, Access::Change].map(|access| it.is_locked(TABLE, HASH, access))
    }

    /// A replay may meet an old record of an object after the one that locks it, and then its
    /// tombstone.
    #[test]
    fn a_lock_stays_until_its_own_record_goes() {
        let mut it = Transactions::default();
        it.add(TABLE, &key(1), &record(Planned::Remove));
        it.add(TABLE, &key(2), &record(Planned::Remove));
        it.forget(TABLE, &key(2));
        it.forget(TABLE, &key(2));
        assert_eq!(locked(&it), [true; 3]);
        it.add(TABLE, &key(3), &record(Planned::Check));
        it.add(TABLE, &key(4), &record(Planned::Check));
        it.forget(TABLE, &key(1));
        assert_eq!(locked(&it), [false, false, true]);
        it.forget(TABLE, &key(3));
        assert_eq!(locked(&it), [false, false, true]);
        it.forget(TABLE, &key(4));
        assert_eq!(locked(&it), [false; 3]);
        assert!(it.is_empty() && it.are_none_locked());
    }

    #[test]
    fn a_record_becomes_due_if_nothing_ends_it() {
        let mut it = Transactions::default();
        let (start, silent) = (Instant::from_ns(5), Instant::from_ns(5 + SILENT_NS));
        it.add(TABLE, &key(1), &record(Planned::Remove));
        it.add(TABLE, &key(2), &record(Planned::Remove));
        assert_eq!(it.deadline(), Instant::ZERO);
        it.note(start);
        it.forget(TABLE, &key(1));
        assert_eq!((it.deadline(), it.next_due(start)), (silent, None));
        let due = it.next_due(silent).unwrap();
        assert_eq!((due.key.rpc, it.next_due(silent), it.deadline()), (2, None, Instant::NEVER));
        it.again(silent, due);
        assert_eq!(it.deadline(), silent.after(SILENT_NS));
    }
}
