//! The objects that a transaction has read, checked or changed, until it is committed.
//!
//! Both kinds of client have this. An object is in the transaction once. Its reads answer from here
//! after the first one: they show the transaction's own changes, and else the object as it was.
//!
//! Invariants: an object that was read must have the version of that read at the commit, or still
//! be absent. The limits of a transaction hold after every call, so that the memory is limited.

use std::sync::Arc;
use std::time::Duration;

use sprat_store::client::{Change, Error, TransactionPart};
use sprat_store::index::Part;
use sprat_store::message::Status;
use sprat_store::types::{
    Lifetime, MAX_KEY, MAX_TRANSACTION, MAX_TRANSACTION_BYTES, MAX_VALUE, TableId, Version,
};

use super::condition::Condition;
use super::known::{AnyTable, KnownIndexes};
use super::object::{Object, in_ms};

/// The planned change of an object.
#[derive(Debug)]
enum Planned {
    Nothing,
    Write(Vec<u8>, Option<Lifetime>),
    Remove,
}

impl Planned {
    /// Returns the number of bytes of the value.
    fn len(&self) -> usize {
        if let Self::Write(value, _) = self { value.len() } else { 0 }
    }
}

/// An object of a transaction.
#[derive(Debug)]
struct Named {
    table: TableId,
    key: Vec<u8>,
    /// The object as the transaction has read it, `None` if it has not.
    read: Option<Option<Object>>,
    /// The condition that the program has set. It counts until the object is read.
    only: Condition,
    planned: Planned,
    /// The number of the object's first change among those of the transaction, 0 if it has none.
    change: usize,
}

impl Named {
    /// Returns the condition that has to hold at the commit.
    fn condition(&self) -> Condition {
        match &self.read {
            Some(Some(object)) => Condition::if_version(object.version),
            Some(None) => Condition::if_absent(),
            None => self.only,
        }
    }

    /// Returns the object as a part of the commit.
    fn part(&self) -> TransactionPart<'_> {
        let change = match &self.planned {
            Planned::Nothing => Change::Check,
            Planned::Write(value, lifetime) => Change::Write(value, *lifetime),
            Planned::Remove => Change::Remove,
        };
        let (table, key, rules) = (self.table, &*self.key, self.condition().0);
        TransactionPart { table, key, rules, change }
    }

    /// Returns true if this is the object of a key. Compares the ends of the keys first: most keys
    /// that a program numbers differ there.
    fn is(&self, table: TableId, key: &[u8]) -> bool {
        self.table == table
            && self.key.len() == key.len()
            && self.key.last() == key.last()
            && self.key == key
    }

    /// Returns the class of the object in the commit: writes, removals, and what was only read.
    fn rank(&self) -> u8 {
        match self.planned {
            Planned::Write(..) => 0,
            Planned::Remove => 1,
            Planned::Nothing => 2,
        }
    }
}

/// The objects of a transaction, in the order in which the program has named them.
#[derive(Debug, Default)]
pub struct Draft {
    objects: Vec<Named>,
    /// The number of objects that have had a change.
    changes: usize,
    /// The bytes of all keys and planned values.
    bytes: usize,
    /// The tables whose indexes the commit keeps.
    indexed: Vec<Arc<KnownIndexes>>,
}

impl Draft {
    fn find(&self, table: TableId, key: &[u8]) -> Option<&Named> {
        self.objects.get(self.place(table, key)?)
    }

    /// Returns the place of an object. The last ones are the first that programs name again.
    fn place(&self, table: TableId, key: &[u8]) -> Option<usize> {
        self.objects.iter().rposition(|object| object.is(table, key))
    }

    /// Returns the object of this key, which is in the transaction from now on, with a value of
    /// `value` bytes.
    fn name(&mut self, table: TableId, key: &[u8], value: usize) -> Result<&mut Named, Error> {
        let place = self.place(table, key);
        let before = place.map_or(0, |place| key.len() + self.objects[place].planned.len());
        let bytes = self.bytes - before + key.len() + value;
        if key.len() > MAX_KEY {
            return Err(Error::KeyTooLong(key.len()));
        }
        if value > MAX_VALUE {
            return Err(Error::ValueTooLong(value));
        }
        if bytes > MAX_TRANSACTION_BYTES {
            return Err(Error::TransactionTooLong(bytes));
        }
        if place.is_none() && self.objects.len() == MAX_TRANSACTION {
            return Err(Error::BadTransaction(MAX_TRANSACTION + 1));
        }
        self.bytes = bytes;
        let place = place.unwrap_or(self.objects.len());
        if place == self.objects.len() {
            let (key, only, planned) = (key.to_vec(), Condition::always(), Planned::Nothing);
            self.objects.push(Named { table, key, read: None, only, planned, change: 0 });
        }
        Ok(&mut self.objects[place])
    }

    /// Returns the object as the transaction sees it. `None`: it has to be read.
    pub(super) fn seen(&self, table: TableId, key: &[u8]) -> Option<Option<Object>> {
        let named = self.find(table, key)?;
        match &named.planned {
            Planned::Write(value, _) => {
                Some(Some(Object { version: Version(0), value: value.clone() }))
            }
            Planned::Remove => Some(None),
            Planned::Nothing => named.read.clone(),
        }
    }

    /// Checks that an object can be read: one more fits into the transaction.
    pub(super) fn check_room(&self, table: TableId, key: &[u8]) -> Result<(), Error> {
        if key.len() > MAX_KEY {
            return Err(Error::KeyTooLong(key.len()));
        }
        if self.objects.len() == MAX_TRANSACTION && self.find(table, key).is_none() {
            return Err(Error::BadTransaction(MAX_TRANSACTION + 1));
        }
        Ok(())
    }

    /// Takes an object that was read, and returns it as the transaction sees it. Of two reads at
    /// once, the first one counts.
    ///
    /// # Errors
    /// The object does not meet the condition that the program has set.
    pub(super) fn keep(
        &mut self,
        table: TableId,
        key: &[u8],
        object: Option<Object>,
    ) -> Result<Option<Object>, Error> {
        let value = self.find(table, key).map_or(0, |named| named.planned.len());
        let named = self.name(table, key, value)?;
        if named.read.is_none() {
            meets(object.as_ref(), named.only)?;
            named.read = Some(object);
        }
        Ok(self.seen(table, key).flatten())
    }

    /// Sets a condition of an object.
    pub(super) fn check(
        &mut self,
        table: TableId,
        key: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        let value = self.find(table, key).map_or(0, |named| named.planned.len());
        let named = self.name(table, key, value)?;
        match &named.read {
            Some(object) => meets(object.as_ref(), condition),
            None => {
                named.only = condition;
                Ok(())
            }
        }
    }

    /// Plans to write an object.
    pub(super) fn put(
        &mut self,
        table: &impl AnyTable,
        key: &[u8],
        value: &[u8],
        lifetime: Option<Duration>,
    ) -> Result<(), Error> {
        let lifetime = lifetime.map(in_ms);
        if let Some(too_long) = lifetime.filter(|lifetime| *lifetime > Lifetime::MAX) {
            return Err(Error::LifetimeTooLong(too_long));
        }
        self.change(table, key, value.len(), || Planned::Write(value.to_vec(), lifetime))
    }

    /// Plans to remove an object.
    pub(super) fn remove(&mut self, table: &impl AnyTable, key: &[u8]) -> Result<(), Error> {
        self.change(table, key, 0, || Planned::Remove)
    }

    fn change(
        &mut self,
        table: &impl AnyTable,
        key: &[u8],
        value: usize,
        planned: impl FnOnce() -> Planned,
    ) -> Result<(), Error> {
        let number = self.changes + 1;
        let named = self.name(table.table_id(), key, value)?;
        named.planned = planned();
        if named.change == 0 {
            named.change = number;
            self.changes = number;
        }
        if let Some(known) = table.known() {
            self.keep_indexes(known);
        }
        Ok(())
    }

    /// Lets the commit keep the indexes of a table, for all changes of its objects, also for those
    /// that were planned without.
    pub fn keep_indexes(&mut self, known: &Arc<KnownIndexes>) {
        if self.indexed.iter().all(|other| other.table != known.table) {
            self.indexed.push(Arc::clone(known));
        }
    }

    /// Returns the tables whose indexes the commit keeps.
    pub(super) fn indexed(&self) -> &[Arc<KnownIndexes>] {
        &self.indexed
    }

    /// Returns the objects in the order of their places in the commit.
    fn in_order(&self) -> Vec<&Named> {
        let mut objects: Vec<&Named> = self.objects.iter().collect();
        objects.sort_by_key(|object| (object.rank(), object.change));
        objects
    }

    /// Returns the objects of the commit, by table and key.
    pub(super) fn names(&self) -> Vec<(TableId, &[u8])> {
        self.in_order().into_iter().map(|object| (object.table, &*object.key)).collect()
    }

    /// Returns the parts of the commit.
    pub(super) fn parts(&self) -> Vec<TransactionPart<'_>> {
        self.in_order().into_iter().map(Named::part).collect()
    }

    /// Returns the parts of the commit, with the objects that were read.
    pub(super) fn parts_read(&self) -> Vec<Part<'_>> {
        let parts = self.in_order().into_iter().map(|object| {
            let read = object.read.as_ref();
            let read = read.map(|it| it.as_ref().map(|it| (it.version, &it.value[..])));
            Part { part: object.part(), read }
        });
        parts.collect()
    }

    /// Returns the number of objects that the commit writes.
    pub(super) fn writes(&self) -> usize {
        self.objects.iter().filter(|object| object.rank() == 0).count()
    }

    /// Returns true if there is nothing to commit: no change, and at most one object, whose read
    /// alone was from one time.
    pub(super) fn is_settled(&self) -> bool {
        match &self.objects[..] {
            [] => true,
            [only] => only.rank() == 2 && only.read.is_some(),
            _ => false,
        }
    }

    /// Returns true if the conflict `error` may be gone when the transaction is repeated. One with
    /// a condition that the program has set stays.
    pub(super) fn may_pass(&self, error: &Error) -> bool {
        let Error::Conflict { part, why, .. } = error else { return false };
        let is_set = matches!(self.in_order().get(*part), Some(object) if object.read.is_none());
        let is_verdict =
            matches!(why, Status::ObjectExists | Status::ObjectDoesntExist | Status::WrongVersion);
        !(is_set && is_verdict)
    }
}

/// Checks that a condition holds for an object that was read.
fn meets(object: Option<&Object>, condition: Condition) -> Result<(), Error> {
    let version = object.map_or(Version(0), |object| object.version);
    condition.0.check(version).map_err(|why| match why {
        Status::ObjectDoesntExist => Error::ObjectDoesntExist,
        Status::ObjectExists => Error::ObjectExists(version),
        _ => Error::WrongVersion(version),
    })
}

#[cfg(test)]
mod tests {
    use super::super::known::Sealed;
    use super::*;

    const TABLE: TableId = TableId(7);

    impl Sealed for TableId {
        fn table_id(&self) -> TableId {
            *self
        }

        fn known(&self) -> Option<&Arc<KnownIndexes>> {
            None
        }
    }

    fn object(version: u64, value: &[u8]) -> Option<Object> {
        Some(Object { version: Version(version), value: value.to_vec() })
    }

    #[test]
    fn writes_come_first_then_removals_then_reads() {
        let mut draft = Draft::default();
        assert!(draft.is_settled());
        draft.keep(TABLE, b"read", object(3, b"x")).unwrap();
        assert!(draft.is_settled());
        draft.keep(TABLE, b"a", None).unwrap();
        draft.remove(&TABLE, b"removed").unwrap();
        draft.put(&TABLE, b"b", b"1", None).unwrap();
        draft.put(&TABLE, b"a", b"2", Some(Duration::from_secs(1))).unwrap();
        draft.put(&TABLE, b"b", b"3", None).unwrap();
        assert!(!draft.is_settled());
        let keys: Vec<_> = draft.names().into_iter().map(|(_, key)| key).collect();
        assert_eq!((keys, draft.writes()), (vec![&b"b"[..], b"a", b"removed", b"read"], 2));
        let rules: Vec<_> = draft.parts().into_iter().map(|part| Condition(part.rules)).collect();
        let (always, absent) = (Condition::always(), Condition::if_absent());
        assert_eq!(rules, [always, absent, always, Condition::if_version(Version(3))]);
        assert_eq!(draft.keep(TABLE, b"read", object(4, b"y")), Ok(object(3, b"x")));
        let last = draft.parts()[1].change;
        assert_eq!(last, Change::Write(b"2", Some(Lifetime(1000))));
        assert_eq!(draft.seen(TABLE, b"b"), Some(object(0, b"3")));
        assert_eq!(draft.seen(TABLE, b"removed"), Some(None));
        assert_eq!(draft.seen(TableId(8), b"b"), None);
    }

    #[test]
    fn a_condition_counts_until_the_object_is_read() {
        let mut draft = Draft::default();
        let (absent, exists) = (Condition::if_absent(), Condition::if_exists());
        draft.check(TABLE, b"k", absent).unwrap();
        draft.put(&TABLE, b"k", b"v", None).unwrap();
        assert_eq!(draft.parts()[0].rules, absent.0);
        let exists_now = draft.keep(TABLE, b"k", object(5, b"x"));
        assert_eq!(exists_now, Err(Error::ObjectExists(Version(5))));
        draft.check(TABLE, b"other", exists).unwrap();
        draft.keep(TABLE, b"other", object(9, b"x")).unwrap();
        assert_eq!(draft.check(TABLE, b"other", exists), Ok(()));
        let newer = Condition::if_newer_than(Version(9));
        assert_eq!(draft.check(TABLE, b"other", newer), Err(Error::WrongVersion(Version(9))));
        assert_eq!(draft.parts()[1].rules, Condition::if_version(Version(9)).0);
        let gone =
            draft.keep(TABLE, b"third", None).and_then(|_| draft.check(TABLE, b"third", exists));
        assert_eq!(gone, Err(Error::ObjectDoesntExist));
    }

    /// A conflict with a read may pass, one with a condition of the program does not.
    #[test]
    fn a_condition_that_does_not_hold_is_final() {
        let mut draft = Draft::default();
        draft.check(TABLE, b"set", Condition::if_absent()).unwrap();
        draft.keep(TABLE, b"read", None).unwrap();
        let conflict = |part, why| Error::Conflict { part, why, version: Version(1) };
        assert!(!draft.may_pass(&conflict(0, Status::ObjectExists)));
        assert!(draft.may_pass(&conflict(0, Status::Locked)));
        assert!(draft.may_pass(&conflict(1, Status::ObjectExists)));
        assert!(!draft.may_pass(&Error::Unknown));
    }

    #[test]
    fn the_limits_hold_after_every_call() {
        let mut draft = Draft::default();
        let value = vec![7; MAX_VALUE];
        for key in [b"a", b"b", b"c"] {
            draft.put(&TABLE, key, &value, None).unwrap();
        }
        let most = MAX_TRANSACTION_BYTES - 3 * MAX_VALUE - 4;
        draft.put(&TABLE, b"d", &value[..most], None).unwrap();
        let full = Err(Error::TransactionTooLong(MAX_TRANSACTION_BYTES + 1));
        assert_eq!(draft.put(&TABLE, b"d", &value[..most + 1], None), full);
        assert_eq!(draft.check(TABLE, b"e", Condition::if_exists()), full);
        draft.remove(&TABLE, b"a").unwrap();
        draft.put(&TABLE, b"e", &value[1..], None).unwrap();
        let too_long = vec![7; MAX_VALUE + 1];
        let refused = draft.put(&TABLE, b"a", &too_long, None);
        assert_eq!(refused, Err(Error::ValueTooLong(MAX_VALUE + 1)));
        let refused = draft.remove(&TABLE, &too_long[..=MAX_KEY]);
        assert_eq!(refused, Err(Error::KeyTooLong(MAX_KEY + 1)));
        let refused = draft.put(&TABLE, b"a", b"", Some(Duration::MAX));
        assert!(matches!(refused, Err(Error::LifetimeTooLong(_))));
        let mut draft = Draft::default();
        for n in 0..MAX_TRANSACTION as u32 {
            draft.keep(TABLE, &n.to_be_bytes(), None).unwrap();
        }
        let full = Err(Error::BadTransaction(MAX_TRANSACTION + 1));
        assert_eq!(draft.check_room(TABLE, b"one more"), full);
        assert_eq!(draft.put(&TABLE, b"one more", b"", None), full);
        assert_eq!(draft.check_room(TABLE, &7_u32.to_be_bytes()), Ok(()));
        assert_eq!(draft.put(&TABLE, &7_u32.to_be_bytes(), b"v", None), Ok(()));
    }
}
