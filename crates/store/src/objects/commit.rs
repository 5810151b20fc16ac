//! The execution of transactions in a master's memory.
//!
//! ```text
//!  prepare   a record with the planned change: the object is locked
//!  decide    the planned change, then the tombstone of the record
//!  commit    all changes of this master, and a record if other masters have prepared: one group
//! ```
//!
//! Invariants:
//! - The group of a commit counts in a replay whole or not at all
//!   ([`Entry::Group`](super::entry::Entry::Group)).
//! - A decision that is executed again, also after half of it, has the same effect: the record goes
//!   last, and nothing else changes the object before.
//! - Each part that a client has numbered has a completion record, from the prepare or the commit:
//!   it is executed once.

use alloc::vec::Vec;

use crate::message::Status;
use crate::message::data::{Once, RejectRules};
use crate::message::transaction::{Conflict, Participant, Participants, Resolution};
use crate::objects::entry::{
    self, COMPLETION, Completion, GROUP, Object, Outcome, Record, Tombstone,
};
use crate::objects::locks::Access;
use crate::objects::log::Purpose;
use crate::objects::memory::Memory;
use crate::objects::mutate::Before;
use crate::objects::record::{self, Planned, RecordKey};
use crate::objects::rifl::Need;
use crate::objects::segment::{Location, Span};
use crate::objects::table::spread;
use crate::types::{KeyHash, LeaseId, TableId, Version, WallTime};

/// An object of a transaction that this master serves.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The table of the object.
    pub table: TableId,
    /// The hash of the object's key.
    pub hash: KeyHash,
    /// The key of the object.
    pub key: &'a [u8],
    /// The conditions under which the transaction is refused.
    pub rules: RejectRules,
    /// The identity of the part. With the number 0, the part gets no completion record: another
    /// one of the same group has that of the operation.
    pub once: Once,
    /// The change of the object.
    pub planned: Planned<'a>,
    /// The object before the change, if it exists. It was found in this turn.
    pub before: Option<Before>,
}

impl Item<'_> {
    /// Returns the version of the object before the change, 0 if it does not exist.
    #[must_use]
    pub fn version(&self) -> Version {
        self.before.map_or(Version(0), |before| before.version)
    }

    /// Returns the key of the record about the object.
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        let Once { lease, rpc, .. } = self.once;
        RecordKey { hash: self.hash, lease, rpc }
    }

    /// Returns the completion record of the part, if it gets one.
    fn record(&self) -> Option<Record<'static>> {
        (self.once.rpc != 0).then_some(Record { once: self.once, sum: None, old: &[] })
    }

    /// Returns the access to the object that the part needs.
    #[must_use]
    pub fn access(&self) -> Access {
        if self.planned == Planned::Check { Access::Keep } else { Access::Change }
    }
}

/// A part of a commit: what is written for it.
struct Step<'a> {
    /// The object that is replaced or removed, if there is one.
    before: Option<Before>,
    /// The new version of the object, or the version that is removed or was checked.
    version: Version,
    /// The planned change, as a write of bytes, a removal of what exists, or nothing.
    planned: Planned<'a>,
    /// The length of the entry and its record.
    len: usize,
}

impl Step<'_> {
    /// Returns the span of the segments that have older versions of the object.
    fn older(&self) -> Span {
        self.before.as_ref().map_or_else(Span::default, |before| before.older)
    }

    /// Returns true if the part adds an entry to the hash table or removes one, so that others may
    /// move there.
    fn moves(&self) -> bool {
        match self.planned {
            Planned::Write(..) => self.before.is_none(),
            Planned::Remove => true,
            Planned::Check => false,
        }
    }
}

impl Memory {
    /// Checks that an object is as a transaction needs it, and that no lock keeps the transaction
    /// from it.
    ///
    /// # Errors
    /// The verdict.
    pub fn check(&self, item: &Item<'_>, access: Access) -> Result<(), Status> {
        if self.transactions.is_locked(item.table, item.hash, access) {
            return Err(Status::Locked);
        }
        item.rules.check(item.version())
    }

    /// Finds the objects of some items again, after background work that may have moved them.
    pub fn find_again(&self, items: &mut [Item<'_>]) {
        for item in items {
            item.before = self.before(item.table, item.hash, item.key);
        }
    }

    /// Returns the version that the next write of an object has.
    fn next_version(&self, item: &Item<'_>) -> Version {
        let safe_version = self.log.safe_version();
        let next = item.before.map_or(safe_version, |before| Version(before.version.0 + 1));
        next.max(self.tablets.floor(item.table, item.hash))
    }

    /// Prepares an object whose part is new and was checked: locks it until the decision. Returns
    /// the version that it will have.
    ///
    /// # Errors
    /// The status to reply with, and nothing changed. [`Status::Retry`] means that no segment is
    /// free.
    pub fn prepare(&mut self, item: &Item<'_>, first: Participant) -> Result<Version, Status> {
        let before = item.before;
        let version = match item.planned {
            Planned::Write(..) => self.next_version(item),
            Planned::Check | Planned::Remove => before.map_or(Version(1), |before| before.version),
        };
        let key = item.record_key().bytes();
        let value = record::Record::Prepared { key: item.key, planned: item.planned, first };
        let value = value.bytes();
        let object = Object {
            table: item.table.records(),
            version,
            older: Span::default(),
            key: &key,
            value: &value,
            expires: WallTime::NEVER,
        };
        // A record's version is at least 1. A sum says that there is no object.
        let is_absent = before.is_none() && !matches!(item.planned, Planned::Write(..));
        let sum = is_absent.then_some([0; 8]);
        let record = Record { once: item.once, sum, old: &[] };
        let (len, longest) = (object.entry_len(), record.longest());
        if len + longest > self.log.longest_entry() {
            return Err(Status::ValueTooLong);
        }
        let grown = self.log.live_bytes() + (len + COMPLETION) as u64;
        let is_full = grown > self.log.live_limit_with(len + longest);
        // A removal makes room, at the latest after the decision.
        let grows = matches!(item.planned, Planned::Write(..));
        if grows && is_full || version > Version::MAX {
            return Err(Status::NoSpace);
        }
        let purpose = if grows { Purpose::Write } else { Purpose::Remove };
        let put = self.put(&object, item.hash, None, Some(&record), purpose);
        let at = put.map_err(|_| Status::Retry)?;
        if before.is_none() {
            self.log.use_version();
        }
        let outcome = Outcome { status: Status::Ok, version, sum };
        self.completed(item.once, outcome, at, 0);
        Ok(version_of(outcome))
    }

    // Deciding.

    /// Makes the planned change of a prepared object if `commit`, and unlocks it. Does nothing if
    /// that is done already.
    ///
    /// # Errors
    /// [`Status::Retry`]: no segment is free. The object is still locked.
    pub fn decide(
        &mut self,
        object: Participant,
        lease: LeaseId,
        commit: bool,
    ) -> Result<(), Status> {
        let Participant { table, hash, .. } = object;
        let key = RecordKey::of(object, lease).bytes();
        let Some(record) = self.before(table.records(), hash, &key) else { return Ok(()) };
        let value = self.log.object(record.at).value.to_vec();
        let Some(record::Record::Prepared { key: of, planned, .. }) = record::Record::parse(&value)
        else {
            return Ok(());
        };
        if commit {
            self.carry_out((table, hash, of), planned, record.version)?;
        }
        self.end_record((table, hash), &key)
    }

    /// Removes the record of a transaction that is committed, and whose changes are made on all
    /// servers. Does nothing if that is done already.
    ///
    /// # Errors
    /// [`Status::Retry`]: no segment is free.
    pub fn finish(&mut self, first: Participant, lease: LeaseId) -> Result<(), Status> {
        let Participant { table, hash, .. } = first;
        let key = RecordKey::of(first, lease).bytes();
        let Some((_, at)) = self.find(table.records(), hash, &key) else { return Ok(()) };
        match record::Record::parse(self.log.object(at).value) {
            Some(record::Record::Committed(_)) => self.end_record((table, hash), &key),
            _ => Ok(()),
        }
    }

    /// Removes a record.
    fn end_record(&mut self, (table, hash): (TableId, KeyHash), key: &[u8]) -> Result<(), Status> {
        let table = table.records();
        let Some(record) = self.before(table, hash, key) else { return Ok(()) };
        let (version, older) = (record.version, record.older);
        let tombstone = Tombstone { table, version, older, key };
        self.bury(&tombstone, &record, None, Purpose::Remove).map_err(|_| Status::Retry)?;
        Ok(())
    }

    /// Makes a planned change, unless that is done already.
    fn carry_out(
        &mut self,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        planned: Planned<'_>,
        version: Version,
    ) -> Result<(), Status> {
        let before = self.before(table, hash, key);
        match (planned, before) {
            (Planned::Write(value, expires), before) => {
                if before.as_ref().is_some_and(|before| before.version >= version) {
                    return Ok(());
                }
                let older = before.as_ref().map_or_else(Span::default, |before| before.older);
                let version = version.max(self.tablets.floor(table, hash));
                let object = Object { table, version, older, key, value, expires };
                let put = self.put(&object, hash, before.as_ref(), None, Purpose::Remove);
                put.map_err(|_| Status::Retry)?;
            }
            (Planned::Remove, Some(before)) => {
                let (version, older) = (before.version, before.older);
                let tombstone = Tombstone { table, version, older, key };
                self.bury(&tombstone, &before, None, Purpose::Remove).map_err(|_| Status::Retry)?;
                self.log.raise_safe_version(version);
            }
            (Planned::Check, _) | (Planned::Remove, None) => {}
        }
        Ok(())
    }

    // Committing.

    fn step<'a>(&self, item: &Item<'a>) -> Step<'a> {
        let with = item.record().map_or(0, |_| Record::size(false));
        let (version, planned, len) = match (item.planned, item.before) {
            (Planned::Write(value, expires), _) => {
                let version = self.next_version(item);
                let (table, key, older) = (item.table, item.key, Span::default());
                let object = Object { table, version, older, key, value, expires };
                (version, item.planned, object.entry_len() + with)
            }
            (Planned::Remove, Some(before)) => {
                (before.version, Planned::Remove, entry::OBJECT + item.key.len() + with)
            }
            (Planned::Check | Planned::Remove, _) => {
                (item.version(), Planned::Check, COMPLETION - size_of::<u64>())
            }
        };
        let before = item.before.filter(|_| planned != Planned::Check);
        Step { before, version, planned, len }
    }

    /// Commits a transaction whose parts `items` are new and were checked, and whose other objects,
    /// `others`, are prepared. The first item decides. Returns the versions of the objects.
    ///
    /// # Errors
    /// The status to reply with, and nothing changed. [`Status::Retry`] means that no segment is
    /// free, [`Status::ValueTooLong`] that the transaction is longer than a segment.
    pub fn commit(
        &mut self,
        items: &[Item<'_>],
        others: Participants<'_>,
    ) -> Result<Vec<Version>, Status> {
        let steps: Vec<Step<'_>> = items.iter().map(|item| self.step(item)).collect();
        let (first, is_alone) = (&items[0], others.is_empty());
        let value = if is_alone { Vec::new() } else { record::Record::Committed(others).bytes() };
        let key = first.record_key().bytes();
        let record = Object {
            table: first.table.records(),
            version: Version(1),
            older: Span::default(),
            key: &key,
            value: &value,
            expires: WallTime::NEVER,
        };
        let record_len = if is_alone { 0 } else { record.entry_len() };
        let body = steps.iter().map(|step| step.len).sum::<usize>() + record_len;
        let head = if steps.len() == 1 && is_alone { 0 } else { GROUP };
        self.check_room(&steps, head + body)?;
        let grows = steps.iter().any(|step| matches!(step.planned, Planned::Write(..)));
        let purpose = if grows { Purpose::Write } else { Purpose::Remove };
        let longest = steps.iter().map(|step| step.len).max().unwrap_or(0).max(record_len);
        let appended = self.log.append_group(head + body, longest, purpose);
        let (at, memory) = appended.map_err(|_| Status::Retry)?;
        let (group, mut rest) = memory.split_at_mut(head);
        if head > 0 {
            entry::put_group(group, body);
        }
        for (item, step) in items.iter().zip(&steps) {
            let (out, behind) = rest.split_at_mut(step.len);
            put_step(out, item, step);
            rest = behind;
        }
        if !is_alone {
            entry::put_object(rest, &record, None);
        }
        let versions = steps.iter().map(|step| step.version).collect();
        let (mut at, mut moved) = (at.plus(head), false);
        for (item, step) in items.iter().zip(steps) {
            let (len, moves) = (step.len, step.moves());
            self.settle(item, step, at, moved);
            moved |= moves;
            at = at.plus(len);
        }
        if !is_alone {
            let before = self.before(record.table, first.hash, record.key);
            self.place(&record, first.hash, before.as_ref(), at);
        }
        Ok(versions)
    }

    /// Checks that the log has room for a commit of `len` bytes.
    fn check_room(&self, steps: &[Step<'_>], len: usize) -> Result<(), Status> {
        if len > self.log.longest_entry() {
            return Err(Status::ValueTooLong);
        }
        let old: usize = steps.iter().filter_map(|step| Some(step.before.as_ref()?.len)).sum();
        let grown = self.log.live_bytes() + (len + steps.len() * COMPLETION) as u64 - old as u64;
        let is_full = len > old && grown > self.log.live_limit_with(len);
        let grows = steps.iter().any(|step| matches!(step.planned, Planned::Write(..)));
        let is_last = steps.iter().any(|step| step.version > Version::MAX);
        if grows && is_full || is_last { Err(Status::NoSpace) } else { Ok(()) }
    }

    /// Counts the entry of a committed part at `at`, and makes it the object's. Finds its place in
    /// the hash table again if entries may have `moved` there since.
    fn settle(&mut self, item: &Item<'_>, step: Step<'_>, at: Location, moved: bool) {
        let Item { table, key, hash, once, .. } = *item;
        let (version, older) = (step.version, step.older());
        let mut before = step.before;
        if let Some(before) = before.as_mut().filter(|_| moved) {
            let place = self.table.place(spread(table, hash), before.at);
            before.place = place.expect("an object that was found is in the hash table");
        }
        match step.planned {
            Planned::Write(value, expires) => {
                let object = Object { table, version, older, key, value, expires };
                self.place(&object, hash, before.as_ref(), at);
                if before.is_none() {
                    self.log.use_version();
                }
            }
            Planned::Remove => {
                if let Some(before) = before {
                    self.buried(&Tombstone { table, version, older, key }, &before, at);
                }
                self.log.raise_safe_version(version);
            }
            Planned::Check => {}
        }
        if item.record().is_some() {
            let outcome = Outcome { status: Status::Ok, version, sum: None };
            self.completed(once, outcome, at, 0);
        }
    }

    // Refusing.

    /// Records that a transaction is not committed, and never will be: its first part is refused.
    ///
    /// # Errors
    /// [`Status::Retry`]: no segment is free.
    pub fn refuse(
        &mut self,
        (table, hash): (TableId, KeyHash),
        once: Once,
        conflict: Conflict,
    ) -> Result<(), Status> {
        let (status, version) = (Status::Conflict, conflict.version);
        let outcome = Outcome { status, version, sum: Some(conflict.to_sum()) };
        self.conclude((table, hash), once, outcome).map(|_| ())
    }

    /// Returns whether the transaction with this first object is committed. If it is not, it never
    /// will be.
    ///
    /// # Errors
    /// [`Status::Retry`]: no segment is free.
    pub fn resolve(&mut self, first: Participant, lease: LeaseId) -> Result<Resolution, Status> {
        let Participant { table, hash, rpc } = first;
        let key = RecordKey::of(first, lease).bytes();
        if let Some((_, at)) = self.find(table.records(), hash, &key) {
            let record = record::Record::parse(self.log.object(at).value);
            let is_committed = matches!(record, Some(record::Record::Committed(_)));
            // Our clients do not prepare the first object: such a lock is given up.
            return Ok(Resolution::of(is_committed));
        }
        let once = Once { lease, rpc, ack: 0 };
        let log = &mut self.log;
        match self.results.replay(once, |at| log.dead_record(at)) {
            Need::Acknowledged => Ok(Resolution::Aborted),
            Need::Known(_) => {
                let outcome = self.results.record(once).map(|(outcome, _)| outcome.status);
                Ok(Resolution::of(outcome == Some(Status::Ok)))
            }
            Need::New => {
                let conflict = Conflict { why: Status::Aborted, part: 0, version: Version(0) };
                self.refuse((table, hash), once, conflict)?;
                Ok(Resolution::Aborted)
            }
        }
    }
}

/// Returns the version that the reply to a part has: 0 if a transaction checks or removes an object
/// that does not exist.
#[must_use]
pub fn version_of(outcome: Outcome) -> Version {
    if outcome.sum.is_some() { Version(0) } else { outcome.version }
}

/// Writes the entry of a committed part, which fills `out`.
fn put_step(out: &mut [u8], item: &Item<'_>, step: &Step<'_>) {
    let (version, older) = (step.version, step.older());
    let Item { table, key, hash, once, .. } = *item;
    let record = item.record();
    match step.planned {
        Planned::Write(value, expires) => {
            let object = Object { table, version, older, key, value, expires };
            entry::put_object(out, &object, record.as_ref());
        }
        Planned::Remove => {
            let tombstone = Tombstone { table, version, older, key };
            entry::put_tombstone(out, &tombstone, record.as_ref());
        }
        Planned::Check => {
            let outcome = Outcome { status: Status::Ok, version, sum: None };
            entry::put_completion(out, &Completion { once, table, hash, outcome, old: &[] });
        }
    }
}

#[cfg(test)]
mod tests;
