//! One table of a cluster: operations on its objects.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use sprat_proto::Instant;
use sprat_store::client::{Answer, Cursor, Error, Page, TabletInfo};
use sprat_store::types::{TableId, Version};

use super::answers::{
    self, expiring_or_none, found, integer, length, object_or_none, removed, swapped, tablets,
    version,
};
use super::condition::Condition;
use super::known::{KnownIndexes, Sealed};
use super::machine::{Outcome, unexpected};
use super::multi::{self, Part};
use super::object::{Number, Object, in_ms};
use super::pending::Pending;
use super::shared::Shared;

/// One table of a [`Client`](super::Client)'s cluster. It costs nothing to copy.
///
/// Every method also fails with [`Error::Deadline`] after the client's timeout, and with
/// [`Error::TableDoesntExist`] once the table is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Table<'c> {
    shared: &'c Shared,
    id: TableId,
}

impl Sealed for Table<'_> {
    fn table_id(&self) -> TableId {
        self.id()
    }

    fn known(&self) -> Option<&Arc<KnownIndexes>> {
        None
    }
}

impl<'c> Table<'c> {
    pub(super) fn new(shared: &'c Shared, id: TableId) -> Self {
        Self { shared, id }
    }

    /// Returns the table's id.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.id
    }

    // Reads.

    /// Reads an object. Returns `None` if there is none.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::TabletLost`], and errors of the network.
    pub fn get(&self, key: &[u8]) -> Result<Option<Object>, Error> {
        self.get_with(key, |version, value| Object { version, value: value.to_vec() })
    }

    /// Reads an object if a condition holds. Returns `None` if there is no object.
    ///
    /// # Errors
    /// As the condition says; [`Error::KeyTooLong`], [`Error::TabletLost`], and errors of the
    /// network.
    pub fn get_if(&self, key: &[u8], condition: Condition) -> Result<Option<Object>, Error> {
        let object = |version, value: &[u8]| Object { version, value: value.to_vec() };
        found(self.read(key, condition, object, || ()))
    }

    /// Reads an object and lends its version and value to `f`. Returns `None`, without a call of
    /// `f`, if there is none.
    ///
    /// This is the fastest read. A value that came in one packet is copied once, into a buffer that
    /// the client keeps for such reads. A longer one is lent from the message that it came in.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::TabletLost`], and errors of the network.
    #[inline]
    pub fn get_with<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Version, &[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        found(self.read(key, Condition::always(), f, || ()))
    }

    /// Reads as [`Table::get_with`] does, and calls `meanwhile` before each turn that waits. A test
    /// that counts instructions runs the server's turns there. `meanwhile` must not use the client.
    ///
    /// # Errors
    /// [`Error::ObjectDoesntExist`], and those of [`Table::get_with`].
    #[doc(hidden)]
    #[inline]
    pub fn read<R>(
        &self,
        key: &[u8],
        condition: Condition,
        f: impl FnOnce(Version, &[u8]) -> R,
        mut meanwhile: impl FnMut(),
    ) -> Result<R, Error> {
        let mut inner = self.shared.inner();
        let (now, deadline) = inner.times();
        let machine = inner.worker.machine();
        let op = machine.start_direct(|client| client.read(self.id, key, condition.0, deadline));
        inner.send(now, op);
        inner.worker.node().finish(now, &[]);
        let outcome = loop {
            if let Some(outcome) = inner.worker.machine().direct.outcome.take() {
                break outcome;
            }
            meanwhile();
            inner.worker.turn_and_rest();
        };
        let version = outcome?;
        // `f` may use the client, which must not be borrowed then.
        let direct = &mut inner.worker.machine().direct;
        let (bytes, skip) = (mem::take(&mut direct.bytes), direct.skip);
        drop(inner);
        let result = f(version, &bytes[skip..]);
        self.shared.inner().worker.machine().direct.bytes = bytes;
        Ok(result)
    }

    /// Starts a read of an object.
    pub fn start_get(&self, key: &[u8]) -> Pending<'c, Option<Object>> {
        self.start_get_if(key, Condition::always())
    }

    /// Starts a read of an object under a condition.
    pub fn start_get_if(&self, key: &[u8], condition: Condition) -> Pending<'c, Option<Object>> {
        let id =
            self.shared.start(|client, deadline| client.read(self.id, key, condition.0, deadline));
        Pending::new(self.shared, id, object_or_none)
    }

    /// Reads an object and the rest of its lifetime, which is `None` if the object does not expire.
    /// Returns `None` if there is no object.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn read_expiring(&self, key: &[u8]) -> Result<Option<(Object, Option<Duration>)>, Error> {
        self.start_read_expiring_if(key, Condition::always()).wait()
    }

    /// Starts a read of an object and the rest of its lifetime, as [`Table::read_expiring`] does,
    /// under a condition.
    pub fn start_read_expiring_if(
        &self,
        key: &[u8],
        condition: Condition,
    ) -> Pending<'c, Option<(Object, Option<Duration>)>> {
        let id = self
            .shared
            .start(|client, deadline| client.read_expiring(self.id, key, condition.0, deadline));
        Pending::new(self.shared, id, expiring_or_none)
    }

    // Mutations.

    /// Writes an object. Returns its new version.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::NoSpace`], [`Error::TabletLost`],
    /// [`Error::TooFewServers`] for its replicas, [`Error::Unknown`], and errors of the network.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version, Error> {
        self.put_if(key, value, Condition::always())
    }

    /// Writes an object if a condition holds. Returns its new version.
    ///
    /// # Errors
    /// As the condition says, and those of [`Table::put`].
    pub fn put_if(&self, key: &[u8], value: &[u8], condition: Condition) -> Result<Version, Error> {
        version(self.shared.ask_lending(value, |client, deadline| {
            client.write_lent(self.id, key, value, condition.0, deadline)
        }))
    }

    /// Writes an object that expires: after this time, rounded up to milliseconds, it does not
    /// exist. An increment and an append leave the time as it is, a later write sets it anew.
    /// Returns the new version.
    ///
    /// The server that executes the write counts the time, by its wall clock. If another server
    /// takes the object over, its clock decides when the object expires; what one server has
    /// reported as gone stays gone.
    ///
    /// # Errors
    /// [`Error::LifetimeTooLong`], and those of [`Table::put`].
    pub fn put_expiring(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
    ) -> Result<Version, Error> {
        self.put_expiring_if(key, value, lifetime, Condition::always())
    }

    /// Writes an object as [`Table::put_expiring`] does, if a condition holds.
    ///
    /// # Errors
    /// As the condition says, and those of [`Table::put_expiring`].
    pub fn put_expiring_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
        condition: Condition,
    ) -> Result<Version, Error> {
        self.start_put_expiring_if(key, value, lifetime, condition).wait()
    }

    /// Starts a write of an object that expires under a condition.
    pub fn start_put_expiring_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
        condition: Condition,
    ) -> Pending<'c, Version> {
        let (lifetime, rules) = (in_ms(lifetime), condition.0);
        let id = self.shared.start(|client, deadline| {
            client.write_expiring(self.id, key, value, lifetime, rules, deadline)
        });
        Pending::new(self.shared, id, version)
    }

    /// Gives an object another lifetime, from now on, and leaves its value. With `None` it does not
    /// expire any more. Returns the object's new version.
    ///
    /// # Errors
    /// [`Error::ObjectDoesntExist`], [`Error::LifetimeTooLong`], and those of [`Table::put`].
    pub fn touch(&self, key: &[u8], lifetime: Option<Duration>) -> Result<Version, Error> {
        self.touch_if(key, lifetime, Condition::always())
    }

    /// Gives an object another lifetime as [`Table::touch`] does, if a condition holds.
    ///
    /// # Errors
    /// As the condition says, and those of [`Table::touch`].
    pub fn touch_if(
        &self,
        key: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Result<Version, Error> {
        self.start_touch_if(key, lifetime, condition).wait()
    }

    /// Starts a change of an object's lifetime under a condition.
    pub fn start_touch_if(
        &self,
        key: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Pending<'c, Version> {
        let (lifetime, rules) = (lifetime.map(in_ms), condition.0);
        let id = self
            .shared
            .start(|client, deadline| client.touch(self.id, key, lifetime, rules, deadline));
        Pending::new(self.shared, id, version)
    }

    /// Starts a write of an object.
    pub fn start_put(&self, key: &[u8], value: &[u8]) -> Pending<'c, Version> {
        self.start_put_if(key, value, Condition::always())
    }

    /// Starts a write of an object under a condition.
    pub fn start_put_if(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition,
    ) -> Pending<'c, Version> {
        let id = self
            .shared
            .start(|client, deadline| client.write(self.id, key, value, condition.0, deadline));
        Pending::new(self.shared, id, version)
    }

    /// Removes an object. Returns the version that it had, `None` if there was none.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::NoSpace`], [`Error::TabletLost`], [`Error::TooFewServers`]
    /// for its replicas, [`Error::Unknown`], and errors of the network.
    pub fn remove(&self, key: &[u8]) -> Result<Option<Version>, Error> {
        self.remove_if(key, Condition::always())
    }

    /// Removes an object if a condition holds. Returns the version that it had, `None` if there was
    /// none.
    ///
    /// # Errors
    /// As the condition says, and those of [`Table::remove`].
    pub fn remove_if(&self, key: &[u8], condition: Condition) -> Result<Option<Version>, Error> {
        let remove = |client: &mut sprat_store::client::Client, deadline| {
            client.remove(self.id, key, condition.0, deadline)
        };
        removed(self.shared.ask(remove))
    }

    /// Starts a remove of an object.
    pub fn start_remove(&self, key: &[u8]) -> Pending<'c, Option<Version>> {
        self.start_remove_if(key, Condition::always())
    }

    /// Starts a remove of an object under a condition.
    pub fn start_remove_if(
        &self,
        key: &[u8],
        condition: Condition,
    ) -> Pending<'c, Option<Version>> {
        let id = self
            .shared
            .start(|client, deadline| client.remove(self.id, key, condition.0, deadline));
        Pending::new(self.shared, id, removed)
    }

    /// Adds to an object that is a 64-bit integer in decimal text: digits with a minus before them
    /// if it is negative, without leading zeros. An absent object counts as 0. The object becomes
    /// the text of the sum. Returns the sum.
    ///
    /// # Errors
    /// [`Error::NotANumber`] and [`Error::Overflow`], which leave the object unchanged, and those
    /// of [`Table::put`].
    pub fn increment(&self, key: &[u8], amount: i64) -> Result<i64, Error> {
        self.increment_if(key, amount, Condition::always()).map(|number| number.value)
    }

    /// Adds to an object as [`Table::increment`] does, if a condition holds.
    ///
    /// # Errors
    /// As the condition says, and those of [`Table::increment`].
    pub fn increment_if(
        &self,
        key: &[u8],
        amount: i64,
        condition: Condition,
    ) -> Result<Number<i64>, Error> {
        integer(self.shared.ask(|client, deadline| {
            client.increment_integer(self.id, key, amount, condition.0, deadline)
        }))
    }

    /// Starts an increment of an object that is an integer.
    pub fn start_increment(&self, key: &[u8], amount: i64) -> Pending<'c, Number<i64>> {
        let rules = Condition::always().0;
        let id = self.shared.start(|client, deadline| {
            client.increment_integer(self.id, key, amount, rules, deadline)
        });
        Pending::new(self.shared, id, integer)
    }

    /// Adds to an object that is a double in decimal text (`-1.5e3`). An absent object counts as 0.
    /// The object becomes the sum as [`double_text`](super::double_text) writes it. Returns the
    /// sum.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for an amount that is infinite or not a number, and those of
    /// [`Table::increment`].
    pub fn increment_double(&self, key: &[u8], amount: f64) -> Result<f64, Error> {
        self.increment_double_if(key, amount, Condition::always()).map(|number| number.value)
    }

    /// Adds to an object as [`Table::increment_double`] does, if a condition holds.
    ///
    /// # Errors
    /// As the condition says, and those of [`Table::increment_double`].
    pub fn increment_double_if(
        &self,
        key: &[u8],
        amount: f64,
        condition: Condition,
    ) -> Result<Number<f64>, Error> {
        let answer = self.shared.ask(|client, deadline| {
            client.increment_double(self.id, key, amount, condition.0, deadline)
        })?;
        match answer {
            Answer::Double { version, sum } => Ok(Number { version, value: sum }),
            other => unexpected(&other),
        }
    }

    /// Adds bytes to the end of an object's value. A missing object counts as empty. Returns the
    /// new length of the value in bytes.
    ///
    /// # Errors
    /// [`Error::NoRoomToAppend`], and those of [`Table::put`].
    pub fn append(&self, key: &[u8], bytes: &[u8]) -> Result<u64, Error> {
        self.append_if(key, bytes, Condition::always()).map(|length| length.value)
    }

    /// Appends to an object as [`Table::append`] does, if a condition holds.
    ///
    /// # Errors
    /// As the condition says, and those of [`Table::append`].
    pub fn append_if(
        &self,
        key: &[u8],
        bytes: &[u8],
        condition: Condition,
    ) -> Result<Number<u64>, Error> {
        length(
            self.shared
                .ask(|client, deadline| client.append(self.id, key, bytes, condition.0, deadline)),
        )
    }

    /// Starts an append to an object.
    pub fn start_append(&self, key: &[u8], bytes: &[u8]) -> Pending<'c, Number<u64>> {
        let rules = Condition::always().0;
        let append = |client: &mut sprat_store::client::Client, deadline| {
            client.append(self.id, key, bytes, rules, deadline)
        };
        Pending::new(self.shared, self.shared.start(append), length)
    }

    /// Writes an object and returns its new version with the object that was there before, `None`
    /// if there was none (get-and-set). No other change comes between the two.
    ///
    /// # Errors
    /// Those of [`Table::put`].
    pub fn swap(&self, key: &[u8], value: &[u8]) -> Result<(Version, Option<Object>), Error> {
        self.swap_if(key, value, None, Condition::always())
    }

    /// Writes an object, which expires after this time unless it is `None`, if a condition holds.
    /// Returns as [`Table::swap`] does.
    ///
    /// # Errors
    /// As the condition says, [`Error::LifetimeTooLong`], and those of [`Table::put`].
    pub fn swap_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Result<(Version, Option<Object>), Error> {
        self.start_swap_if(key, value, lifetime, condition).wait()
    }

    /// Starts a swap of an object, as [`Table::swap_if`] does.
    pub fn start_swap_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Pending<'c, (Version, Option<Object>)> {
        let (lifetime, rules) = (lifetime.map(in_ms), condition.0);
        let id = self
            .shared
            .start(|client, deadline| client.swap(self.id, key, value, lifetime, rules, deadline));
        Pending::new(self.shared, id, swapped)
    }

    // Several objects.

    /// Reads several objects in few requests. Returns a result for each key, in the order of the
    /// keys: `None` if there is no such object.
    ///
    /// # Errors
    /// [`Error::TooManyParts`]. A result has the errors of [`Table::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Result<Option<Object>, Error>>, Error> {
        let keys: Vec<K> = keys.into_iter().collect();
        multi::objects(self.ask_many(keys.iter().map(|key| Part::get(self.id, key.as_ref()))))
    }

    /// Writes several objects, pairs of key and value, in few requests. Returns a result for each,
    /// in the order of the pairs: its new version. The writes have no order among each other.
    ///
    /// # Errors
    /// [`Error::TooManyParts`]. A result has the errors of [`Table::put`].
    pub fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        objects: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Vec<Result<Version, Error>>, Error> {
        let objects: Vec<(K, V)> = objects.into_iter().collect();
        multi::versions(self.ask_many(
            objects.iter().map(|(key, value)| Part::put(self.id, key.as_ref(), value.as_ref())),
        ))
    }

    /// Removes several objects in few requests. Returns a result for each key, in the order of the
    /// keys: the version that the object had, `None` if there was none.
    ///
    /// # Errors
    /// [`Error::TooManyParts`]. A result has the errors of [`Table::remove`].
    pub fn multi_remove<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Result<Option<Version>, Error>>, Error> {
        let keys: Vec<K> = keys.into_iter().collect();
        multi::removals(self.ask_many(keys.iter().map(|key| Part::remove(self.id, key.as_ref()))))
    }

    /// Adds to several objects, pairs of key and amount, as [`Table::increment`] does, in few
    /// requests. Returns a result for each, in the order of the pairs.
    ///
    /// # Errors
    /// [`Error::TooManyParts`]. A result has the errors of [`Table::increment`].
    pub fn multi_increment<K: AsRef<[u8]>>(
        &self,
        amounts: impl IntoIterator<Item = (K, i64)>,
    ) -> Result<Vec<Result<Number<i64>, Error>>, Error> {
        let amounts: Vec<(K, i64)> = amounts.into_iter().collect();
        multi::integers(
            self.ask_many(
                amounts.iter().map(|(key, by)| Part::increment(self.id, key.as_ref(), *by)),
            ),
        )
    }

    fn ask_many<'a>(&self, parts: impl Iterator<Item = Part<'a>>) -> Outcome {
        self.shared.ask_parts(&multi::collect(parts), Instant::NEVER)
    }

    /// Lists the tablets of the table with their owners.
    ///
    /// # Errors
    /// [`Error::TableDoesntExist`], and errors of the network.
    pub fn tablets(&self) -> Result<Vec<TabletInfo>, Error> {
        tablets(self.shared.ask(|client, deadline| client.list_tablets(self.id, deadline)))
    }

    // Enumeration.

    /// Iterates over all objects of the table. An object that does not change meanwhile comes
    /// exactly once.
    pub fn scan(&self) -> Scan<'c> {
        Scan { table: *self, next: Some(Cursor::default()), objects: VecDeque::new() }
    }

    /// Reads some of the table's objects, from `cursor` on ([`Cursor::default`] at the start).
    /// [`Page::next`] is the cursor of the next page.
    ///
    /// # Errors
    /// [`Error::TabletLost`], and errors of the network.
    pub fn page(&self, cursor: Cursor) -> Result<Page<'static>, Error> {
        answers::page(
            self.shared.ask(|client, deadline| client.enumerate(self.id, cursor, deadline)),
        )
    }
}

/// An iterator over the objects of a table with their keys. It ends after the first error.
#[derive(Debug)]
pub struct Scan<'c> {
    table: Table<'c>,
    next: Option<Cursor>,
    /// Objects of the last page that the program has not taken.
    objects: VecDeque<(Vec<u8>, Object)>,
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Object), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(object) = self.objects.pop_front() {
                return Some(Ok(object));
            }
            let page = match self.table.page(self.next.take()?) {
                Ok(page) => page,
                Err(error) => return Some(Err(error)),
            };
            self.next = page.next.clone();
            self.objects.extend(page.objects().map(|listed| {
                let object = Object { version: listed.version, value: listed.value.to_vec() };
                (listed.key.to_vec(), object)
            }));
        }
    }
}
