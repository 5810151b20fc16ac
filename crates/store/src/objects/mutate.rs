//! The execution of mutations in a master's memory.
//!
//! Invariants: a mutation is one append of the object or tombstone together with its completion
//! record, and changes nothing if that append is impossible. Versions of a key only grow. A
//! mutation that finds an object that has expired executes as if there were none. If it puts
//! nothing in the object's place, it removes the object first: what one server has reported as gone
//! stays gone, whatever the clock of the next server says.

use crate::message::Status;
use crate::message::data::{Amount, Once, Target};
use crate::objects::entry::{self, COMPLETION, Completion, Object, Outcome, Record, Tombstone};
use crate::objects::log::{Full, Log, Purpose};
use crate::objects::memory::{Memory, hash_at};
use crate::objects::number;
use crate::objects::segment::{Location, Span};
use crate::objects::table::{Place, spread};
use crate::types::{KeyHash, Lifetime, MAX_VALUE, TableId, Version, WallTime};

/// The change that a mutation makes to an object.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change<'a> {
    /// The mutation writes this value to the object, which expires after this lifetime.
    Write(&'a [u8], Option<Lifetime>),
    /// The mutation removes the object.
    Remove,
    /// The mutation adds this amount to the number in the object.
    Add(Amount),
    /// The mutation adds these bytes to the end of the value.
    Append(&'a [u8]),
    /// The mutation gives the object this lifetime, or lets it exist without end.
    Touch(Option<Lifetime>),
    /// The mutation writes as [`Change::Write`], and its outcome has the object as it was.
    Swap(&'a [u8], Option<Lifetime>),
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
    /// The time of the mutation by the master's wall clock.
    pub wall: WallTime,
}

/// An object as it was before a mutation.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub(crate) place: Place,
    pub(crate) at: Location,
    pub(super) len: usize,
    /// The version of the object.
    pub(crate) version: Version,
    /// A span of the segments that have the object and older versions of it.
    pub(super) older: Span,
    /// The time at which the object expires.
    pub(crate) expires: WallTime,
}

impl Before {
    /// Returns `object`, which is at `at` in the log and `place` in the hash table.
    #[inline]
    pub(super) fn new(log: &Log, place: Place, at: Location, object: &Object<'_>) -> Self {
        let older = log.span(at, object.older);
        let Object { version, expires, .. } = *object;
        Self { place, at, len: object.entry_len(), version, older, expires }
    }
}

/// The contents that a mutation puts in the place of an object.
#[derive(Clone, Copy, Debug)]
struct New<'a> {
    value: &'a [u8],
    expires: WallTime,
    /// The sum, the length or the old version for the mutation's reply.
    sum: Option<[u8; 8]>,
}

impl Memory {
    /// Returns the object of a key as it is before a change.
    #[inline]
    pub(crate) fn before(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Option<Before> {
        let (place, at) = self.find(table, hash, key)?;
        Some(Before::new(&self.log, place, at, &self.log.object(at)))
    }

    /// Executes a mutation that is new.
    ///
    /// # Errors
    /// The status to reply with. Nothing changed, apart from an object that had expired, and the
    /// mutation is still new. [`Status::Retry`] means that no segment is free.
    pub fn mutate(&mut self, mutation: &Mutation<'_>) -> Result<Outcome, Status> {
        let Mutation { target, key, hash, wall, .. } = *mutation;
        let before = self.before(target.table, hash, key);
        let old = before.as_ref().filter(|before| wall < before.expires);
        let version = old.map_or(Version(0), |old| old.version);
        let expires = old.map_or(WallTime::NEVER, |old| old.expires);
        let ok = Outcome { status: Status::Ok, version, sum: None };
        if let Err(status) = target.rules.check(version) {
            return self.leave(mutation, before.as_ref(), Outcome { status, ..ok });
        }
        let value = old.map(|old| self.log.object(old.at).value);
        match (mutation.change, value) {
            (Change::Write(value, lifetime), _) => {
                let expires = wall.after(lifetime);
                self.write(mutation, before, New { value, expires, sum: None })
            }
            (Change::Append(bytes), old) => {
                let value = &[old.unwrap_or_default(), bytes].concat()[..];
                if value.len() > MAX_VALUE {
                    return Err(Status::ValueTooLong);
                }
                let sum = Some((value.len() as u64).to_be_bytes());
                self.write(mutation, before, New { value, expires, sum })
            }
            (Change::Add(amount), old) => match number::add(old, amount) {
                Ok((text, sum)) => {
                    let new = New { value: text.as_bytes(), expires, sum: Some(sum) };
                    self.write(mutation, before, new)
                }
                Err(status) => self.leave(mutation, before.as_ref(), Outcome { status, ..ok }),
            },
            (Change::Touch(lifetime), Some(value)) => {
                let value = value.to_vec();
                let new = New { value: &value, expires: wall.after(lifetime), sum: None };
                self.write(mutation, before, new)
            }
            (Change::Touch(_), None) => {
                let status = Status::ObjectDoesntExist;
                self.leave(mutation, before.as_ref(), Outcome { status, ..ok })
            }
            (Change::Swap(value, lifetime), old) => {
                let old = old.unwrap_or_default().to_vec();
                let sum = Some(version.0.to_be_bytes());
                let new = New { value, expires: wall.after(lifetime), sum };
                self.swap(mutation, before, new, &old)
            }
            (Change::Remove, _) => match old {
                Some(old) => self.remove(mutation, old),
                None => self.leave(mutation, before.as_ref(), ok),
            },
        }
    }

    fn write(
        &mut self,
        mutation: &Mutation<'_>,
        before: Option<Before>,
        new: New<'_>,
    ) -> Result<Outcome, Status> {
        self.replace(mutation, before, new, &[])
    }

    #[cold]
    fn swap(
        &mut self,
        mutation: &Mutation<'_>,
        before: Option<Before>,
        new: New<'_>,
        old: &[u8],
    ) -> Result<Outcome, Status> {
        self.replace(mutation, before, new, old)
    }

    /// Writes an object. The mutation's record keeps the value `old`.
    #[inline(always)]
    fn replace(
        &mut self,
        mutation: &Mutation<'_>,
        before: Option<Before>,
        New { value, expires, sum }: New<'_>,
        old: &[u8],
    ) -> Result<Outcome, Status> {
        let safe_version = self.log.safe_version();
        let next = before.as_ref().map_or(safe_version, |before| Version(before.version.0 + 1));
        let version = next.max(self.tablets.floor(mutation.target.table, mutation.hash));
        let older = before.as_ref().map_or_else(Span::default, |before| before.older);
        let Mutation { target: Target { table, .. }, key, .. } = *mutation;
        let object = Object { table, version, older, key, value, expires };
        let record = Record { once: mutation.once, sum, old };
        let (len, longest) = (object.entry_len() + old.len(), record.longest());
        if len + longest > self.log.longest_entry() {
            return Err(Status::ValueTooLong);
        }
        let old_len = before.as_ref().map_or(0, |before| before.len);
        let grown = self.log.live_bytes() + (len + COMPLETION) as u64 - old_len as u64;
        let is_full = len > old_len && grown > self.log.live_limit_with(len + longest);
        if is_full || version > Version::MAX {
            return Err(Status::NoSpace);
        }
        let outcome = Outcome { status: Status::Ok, version, sum };
        let put = self.put(&object, mutation.hash, before.as_ref(), Some(&record), Purpose::Write);
        let Ok(at) = put else { return Err(Status::Retry) };
        if before.is_none() {
            self.log.use_version();
        }
        self.completed(mutation.once, outcome, at, old.len());
        Ok(outcome)
    }

    /// Appends an object, which takes the place of `before`, and its record.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        object: &Object<'_>,
        hash: KeyHash,
        before: Option<&Before>,
        record: Option<&Record<'_>>,
        purpose: Purpose,
    ) -> Result<Location, Full> {
        let len = object.entry_len();
        let record_len = record.map_or(0, Record::entry_len);
        let (at, memory) = self.log.append(len + record_len, purpose)?;
        entry::put_object(memory, object, record);
        self.place(object, hash, before, at);
        Ok(at)
    }

    /// Makes the object whose entry is at `at` the one of its key, in the place of `before`.
    #[inline(always)]
    pub(super) fn place(
        &mut self,
        object: &Object<'_>,
        hash: KeyHash,
        before: Option<&Before>,
        at: Location,
    ) {
        self.log.live(at, object.entry_len());
        self.log.expires(at, object.expires);
        if let Some(leaving) = &mut self.leaving {
            leaving.note_change(object.table, hash);
        }
        if object.table.is_records() {
            self.transactions.add(object.table.base(), object.key, object.value);
        }
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
    }

    fn remove(&mut self, mutation: &Mutation<'_>, before: &Before) -> Result<Outcome, Status> {
        let tombstone = Tombstone {
            table: mutation.target.table,
            version: before.version,
            older: before.older,
            key: mutation.key,
        };
        let record = Record { once: mutation.once, sum: None, old: &[] };
        let buried = self.bury(&tombstone, before, Some(&record), Purpose::Remove);
        let at = buried.map_err(|_| Status::Retry)?;
        let outcome = Outcome { status: Status::Ok, version: before.version, sum: None };
        self.log.raise_safe_version(before.version);
        self.completed(mutation.once, outcome, at, 0);
        Ok(outcome)
    }

    /// Removes the object at `place` in the hash table and `at` in the log, which has expired.
    ///
    /// # Errors
    /// [`Full`], and the object is still there.
    pub fn expire(&mut self, place: Place, at: Location) -> Result<(), Full> {
        let object = self.log.object(at);
        let before = Before::new(&self.log, place, at, &object);
        let (table, key) = (object.table, object.key.to_vec());
        let Before { version, older, .. } = before;
        self.bury(&Tombstone { table, version, older, key: &key }, &before, None, Purpose::Remove)?;
        self.log.raise_safe_version(version);
        self.expired += 1;
        Ok(())
    }

    /// Removes the object `before` and appends its tombstone with its record.
    pub(super) fn bury(
        &mut self,
        tombstone: &Tombstone<'_>,
        before: &Before,
        record: Option<&Record<'_>>,
        purpose: Purpose,
    ) -> Result<Location, Full> {
        let len = tombstone.entry_len();
        let record_len = record.map_or(0, Record::entry_len);
        let (at, memory) = self.log.append(len + record_len, purpose)?;
        entry::put_tombstone(memory, tombstone, record);
        self.buried(tombstone, before, at);
        Ok(at)
    }

    /// Removes the object `before`, whose tombstone is at `at`.
    #[inline]
    pub(super) fn buried(&mut self, tombstone: &Tombstone<'_>, before: &Before, at: Location) {
        self.log.live_tombstone(at, tombstone.entry_len(), tombstone.older);
        self.table.remove(before.place);
        self.log.dead(before.at, before.len);
        if tombstone.table.is_records() {
            self.transactions.forget(tombstone.table.base(), tombstone.key);
        }
        if let Some(leaving) = &mut self.leaving
            && let Some(hash) = self.tablets.hash(tombstone.table, tombstone.key)
        {
            leaving.note_removal(hash, tombstone);
        }
    }

    /// Records the outcome of a mutation that puts nothing in the place of the object `before`.
    pub(super) fn leave(
        &mut self,
        mutation: &Mutation<'_>,
        before: Option<&Before>,
        outcome: Outcome,
    ) -> Result<Outcome, Status> {
        if let Some(expired) = before.filter(|before| before.expires <= mutation.wall) {
            self.expire(expired.place, expired.at).map_err(|_| Status::Retry)?;
        }
        self.conclude((mutation.target.table, mutation.hash), mutation.once, outcome)
    }

    /// Records the outcome of a mutation, or of a part of a transaction, that changes no object.
    pub(super) fn conclude(
        &mut self,
        (table, hash): (TableId, KeyHash),
        once: Once,
        outcome: Outcome,
    ) -> Result<Outcome, Status> {
        let completion = Completion { once, table, hash, outcome, old: &[] };
        let appended = self.log.append(completion.entry_len(), Purpose::Remove);
        let (at, memory) = appended.map_err(|_| Status::Retry)?;
        entry::put_completion(memory, &completion);
        self.completed(once, outcome, at, 0);
        Ok(outcome)
    }

    /// Records the outcome of a mutation. Its record at `at` has an old value of `old` bytes.
    #[inline(always)]
    pub(super) fn completed(&mut self, once: Once, outcome: Outcome, at: Location, old: usize) {
        self.log.live_record(at, old);
        self.results.done(once, outcome, at, self.log.tail());
    }
}
