//! Transactions: several objects, of any tables, change together or not at all.

use std::time::Duration;

use sprat_proto::Instant;
use sprat_store::client::Error;
use sprat_store::types::TableId;

use super::answers::{committed, object_or_none};
use super::client::Client;
use super::condition::Condition;
use super::draft::Draft;
use super::indexed;
use super::known::AnyTable;
use super::object::{Committed, Object};
use super::pending::Pending;
use super::shared::Shared;

/// A transaction of a [`Client`]: reads and changes of up to [`MAX_TRANSACTION`] objects, of any
/// tables on any servers.
///
/// Reads go to the store at once, changes stay here until [`Transaction::commit`]. That makes all
/// changes, or fails with [`Error::Conflict`] and makes none if an object that the transaction has
/// read has changed since. Transactions are strictly serializable, also with operations outside of
/// them: each one takes effect as a whole, at a time between its first read and the end of its
/// commit. A scan of a table is not a part of this: it may find some changes of a transaction and
/// miss others.
///
/// Changes of objects of an [`IndexedTable`](super::IndexedTable) change their entries in its
/// indexes, too, also those that the transaction makes through the plain [`Table`](super::Table).
/// The entries count among the objects, up to two for each index of an object and one for the
/// table, and among the bytes. Look-ups do not see the changes before the commit, and the commit
/// does not check what they found: for that, [`Transaction::check`] the version of each object.
/// Such a commit waits for objects that other transactions are about to change, as an operation
/// does: within the client's timeout, [`Error::Deadline`] behind it.
///
/// [`Client::transact`] repeats a transaction after conflicts. Dropping a transaction gives it up:
/// nothing was sent but reads.
///
/// [`MAX_TRANSACTION`]: super::MAX_TRANSACTION
///
/// ```no_run
/// use sprat::kv::{Client, Error};
///
/// let client = Client::connect("fast+shm:name=sprat")?;
/// let (seats, guests) = (client.table("seats")?, client.table("guests")?);
///
/// let mut transaction = client.transaction();
/// if transaction.get(&seats, b"12 A")?.is_none() {
///     transaction.put(&seats, b"12 A", b"Ada")?;
///     transaction.put(&guests, b"Ada", b"12 A")?;
/// }
/// match transaction.commit() {
///     Ok(committed) => println!("versions {:?}", committed.versions),
///     Err(Error::Conflict { .. }) => println!("another guest was faster: begin again"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a transaction that is dropped changes nothing"]
pub struct Transaction<'c> {
    shared: &'c Shared,
    draft: Draft,
    /// The deadline of all operations of the transaction. Each has the client's timeout besides.
    deadline: Instant,
}

impl<'c> Transaction<'c> {
    fn new(shared: &'c Shared, deadline: Instant) -> Self {
        Self { shared, draft: Draft::default(), deadline }
    }

    /// Reads an object. Returns `None` if there is none.
    ///
    /// The first read of an object asks its server, and the commit checks that the object has not
    /// changed since. Later reads return the same. An object that this transaction has written or
    /// removed is as it will be; a written one has version 0 until the commit gives it its version.
    ///
    /// Each object is as it was at the time of its read, which the commit checks. Until then a
    /// program may see two objects as they never were at one time.
    ///
    /// # Errors
    /// [`Error::BadTransaction`] for one object too many, those of a condition of
    /// [`Transaction::check`], and those of [`Table::get`](super::Table::get).
    pub fn get(&mut self, table: &impl AnyTable, key: &[u8]) -> Result<Option<Object>, Error> {
        let id = table.table_id();
        if let Some(seen) = self.draft.seen(id, key) {
            return Ok(seen);
        }
        self.draft.check_room(id, key)?;
        let rules = Condition::always().0;
        let outcome =
            self.shared.ask(|client, at| client.read(id, key, rules, at.min(self.deadline)));
        self.draft.keep(id, key, object_or_none(outcome)?)
    }

    /// Plans to write an object. Without a read of the object or a condition, the commit writes it
    /// in any case.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::BadTransaction`] for one object too
    /// many, and [`Error::TransactionTooLong`]. The transaction stays as it was.
    pub fn put(&mut self, table: &impl AnyTable, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.draft.put(table, key, value, None)
    }

    /// Plans to write an object that expires, as
    /// [`Table::put_expiring`](super::Table::put_expiring) does. The time counts from the commit.
    ///
    /// # Errors
    /// [`Error::LifetimeTooLong`], and those of [`Transaction::put`].
    pub fn put_expiring(
        &mut self,
        table: &impl AnyTable,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
    ) -> Result<(), Error> {
        self.draft.put(table, key, value, Some(lifetime))
    }

    /// Plans to remove an object. Without a read of the object or a condition, the commit removes
    /// it if it exists.
    ///
    /// # Errors
    /// Those of [`Transaction::put`].
    pub fn remove(&mut self, table: &impl AnyTable, key: &[u8]) -> Result<(), Error> {
        self.draft.remove(table, key)
    }

    /// Sets a condition on an object, without a read of it. The commit fails with
    /// [`Error::Conflict`] if the condition does not hold then. A later condition on the object
    /// replaces it. For an object that the transaction reads, the condition has to hold for what
    /// was read.
    ///
    /// # Errors
    /// [`Error::ObjectExists`], [`Error::ObjectDoesntExist`] or [`Error::WrongVersion`] if the
    /// transaction has read the object, and the condition does not hold for it. Those of
    /// [`Transaction::put`].
    pub fn check(
        &mut self,
        table: &impl AnyTable,
        key: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        self.draft.check(table.table_id(), key, condition)
    }

    /// Returns the objects of the transaction, tables and keys, in the order in which
    /// [`Error::Conflict`] numbers them: written ones, removed ones, and those that it only reads.
    #[must_use]
    pub fn objects(&self) -> Vec<(TableId, &[u8])> {
        self.draft.names()
    }

    /// Makes all changes, or none. A transaction without changes is checked: what it has read was
    /// so at one time. If it has read one object at most, that is so anyway, and nothing is sent.
    ///
    /// # Errors
    /// [`Error::Conflict`] if an object has changed since it was read, or another transaction is
    /// about to change it: read the objects again. [`Error::TransactionTooLong`] if the parts for
    /// one server are longer than a segment of its log. [`Error::Unknown`] and
    /// [`Error::Deadline`]: the changes may have been made, all or none.
    /// [`Error::IndexKeyTooLong`], and those of [`Table::put`](super::Table::put).
    pub fn commit(self) -> Result<Committed, Error> {
        self.start_commit().wait()
    }

    /// Returns the transaction without its client, for the C API. [`Client::resume`] goes on.
    #[doc(hidden)]
    #[must_use]
    pub fn suspend(self) -> Draft {
        self.draft
    }

    /// Starts to make all changes, as [`Transaction::commit`] does.
    ///
    /// The answer of [`Client::next_completed`](super::Client::next_completed) has the versions of
    /// written objects first. Those behind them have no meaning. If objects of an
    /// [`IndexedTable`](super::IndexedTable) change, this returns when the commit has ended.
    pub fn start_commit(self) -> Pending<'c, Committed> {
        start(self.shared, &self.draft, self.deadline)
    }
}

/// Starts to commit a transaction.
fn start<'c>(shared: &'c Shared, draft: &Draft, deadline: Instant) -> Pending<'c, Committed> {
    let id = if draft.is_settled() {
        shared.inner().worker.machine().committed(Ok(Vec::new()))
    } else if !draft.indexed().is_empty() {
        let committed = indexed::commit(shared, draft, deadline);
        shared.inner().worker.machine().committed(committed)
    } else {
        let parts = draft.parts();
        shared.start(|client, at| client.transact(&parts, at.min(deadline)))
    };
    Pending::of_first(shared, id, committed, draft.writes())
}

impl Client {
    /// Begins a transaction. Sends nothing.
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::new(self.shared(), Instant::NEVER)
    }

    /// Goes on with a transaction that [`Transaction::suspend`] returned.
    #[doc(hidden)]
    pub fn resume(&self, draft: Draft) -> Transaction<'_> {
        Transaction { draft, ..self.transaction() }
    }

    /// Runs `body` with a transaction and commits that, again and again until no conflict is met.
    /// Returns what `body` returned the last time.
    ///
    /// Between two tries there is a pause of a random time, which grows with their number. All of
    /// this takes the client's timeout at most: then the last [`Error::Conflict`] is returned, or
    /// [`Error::Deadline`] of a commit that keeps indexes. A conflict with a condition of
    /// [`Transaction::check`] on an object that was not read is returned at once.
    ///
    /// `body` may run several times, so it should change nothing but the transaction. It may see
    /// objects as they never were at one time, as long as it returns `Ok`: the commit finds that
    /// out, also without changes. An error of `body` ends the transaction and is returned as it is.
    ///
    /// ```no_run
    /// use sprat::kv::{Client, Error};
    ///
    /// let client = Client::connect("fast+shm:name=sprat")?;
    /// let accounts = client.table("accounts")?;
    /// let paid = client.transact(|transaction| {
    ///     let mut balances = [0_u64; 2];
    ///     for (balance, name) in balances.iter_mut().zip([&b"ada"[..], b"bob"]) {
    ///         let object = transaction.get(&accounts, name)?;
    ///         let text = object.map_or(Vec::new(), |object| object.value);
    ///         *balance = String::from_utf8_lossy(&text).parse().unwrap_or(0);
    ///     }
    ///     let [Some(ada), Some(bob)] = [balances[0].checked_sub(5), balances[1].checked_add(5)]
    ///     else {
    ///         return Ok(false);
    ///     };
    ///     transaction.put(&accounts, b"ada", ada.to_string().as_bytes())?;
    ///     transaction.put(&accounts, b"bob", bob.to_string().as_bytes())?;
    ///     Ok::<bool, Error>(true)
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `body` and of [`Transaction::commit`].
    pub fn transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_versioned(body).map(|(result, _)| result)
    }

    /// Runs and commits a transaction as [`Client::transact`] does. Returns the new versions of
    /// written objects, too.
    ///
    /// # Errors
    /// Those of [`Client::transact`].
    pub fn transact_versioned<T, E: From<Error>>(
        &self,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<(T, Committed), E> {
        let shared = self.shared();
        let (_, deadline) = shared.inner().times();
        let mut tries = 0;
        loop {
            let mut transaction = Transaction::new(shared, deadline);
            let result = body(&mut transaction)?;
            tries += 1;
            let error = match start(shared, &transaction.draft, deadline).wait() {
                Ok(committed) => return Ok((result, committed)),
                Err(error) => error,
            };
            if !transaction.draft.may_pass(&error) || !shared.pause(tries, deadline) {
                return Err(error.into());
            }
        }
    }
}
