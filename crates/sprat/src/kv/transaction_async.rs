//! Transactions for asynchronous programs.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sprat_proto::Instant;
use sprat_store::client::{Answer, Error};
use sprat_store::types::TableId;

use super::answers::{committed, object_or_none};
use super::asynchronous::AsyncClient;
use super::condition::Condition;
use super::draft::Draft;
use super::indexed_async;
use super::known::AnyTable;
use super::object::{Committed, Object};
use super::operation::Operation;

/// A transaction of an [`AsyncClient`], as [`Transaction`](super::Transaction) describes it.
///
/// Clones are the same transaction, so that several reads can be in progress.
///
/// ```no_run
/// use sprat::kv::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder("fast+shm:name=sprat").connect_async()?;
/// let seats = client.table("seats").await?;
/// let transaction = client.transaction();
/// let (first, second) = (transaction.get(&seats, b"12 A"), transaction.get(&seats, b"12 B"));
/// if first.await?.is_none() && second.await?.is_none() {
///     transaction.put(&seats, b"12 A", b"Ada")?;
///     transaction.put(&seats, b"12 B", b"kept free")?;
/// }
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a transaction that is dropped changes nothing"]
pub struct AsyncTransaction {
    client: AsyncClient,
    draft: Arc<Mutex<Draft>>,
    /// The deadline of all operations of the transaction. Each has the client's timeout besides.
    deadline: Instant,
}

impl AsyncTransaction {
    fn new(client: AsyncClient, deadline: Instant) -> Self {
        Self { client, draft: Arc::default(), deadline }
    }

    /// Returns the draft, locked. No code of the program runs meanwhile.
    fn draft(&self) -> MutexGuard<'_, Draft> {
        lock(&self.draft)
    }

    /// Reads an object, as [`Transaction::get`](super::Transaction::get) does. Returns `None` if
    /// there is none.
    ///
    /// # Errors
    /// Those of [`Transaction::get`](super::Transaction::get).
    pub fn get(&self, table: &impl AnyTable, key: &[u8]) -> Operation<Option<Object>> {
        let (id, deadline, rules) = (table.table_id(), self.deadline, Condition::always().0);
        if let Some(seen) = self.draft().seen(id, key) {
            return Operation::ended(Ok(seen));
        }
        if let Err(full) = self.draft().check_room(id, key) {
            return Operation::ended(Err(full));
        }
        let (asked, key, draft) = (key.to_vec(), key.to_vec(), Arc::clone(&self.draft));
        self.client.start(
            move |machine, at| machine.read(id, &asked, rules, at.min(deadline)),
            move |outcome| lock(&draft).keep(id, &key, object_or_none(outcome)?),
        )
    }

    /// Plans to write an object.
    ///
    /// # Errors
    /// Those of [`Transaction::put`](super::Transaction::put).
    pub fn put(&self, table: &impl AnyTable, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.draft().put(table, key, value, None)
    }

    /// Plans to write an object that expires.
    ///
    /// # Errors
    /// Those of [`Transaction::put_expiring`](super::Transaction::put_expiring).
    pub fn put_expiring(
        &self,
        table: &impl AnyTable,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
    ) -> Result<(), Error> {
        self.draft().put(table, key, value, Some(lifetime))
    }

    /// Plans to remove an object.
    ///
    /// # Errors
    /// Those of [`Transaction::remove`](super::Transaction::remove).
    pub fn remove(&self, table: &impl AnyTable, key: &[u8]) -> Result<(), Error> {
        self.draft().remove(table, key)
    }

    /// Sets a condition on an object, as [`Transaction::check`](super::Transaction::check) does.
    ///
    /// # Errors
    /// Those of [`Transaction::check`](super::Transaction::check).
    pub fn check(
        &self,
        table: &impl AnyTable,
        key: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        self.draft().check(table.table_id(), key, condition)
    }

    /// Returns the objects of the transaction, tables and keys, in the order in which
    /// [`Error::Conflict`] numbers them: written ones, removed ones, and those that it only reads.
    #[must_use]
    pub fn objects(&self) -> Vec<(TableId, Vec<u8>)> {
        let draft = self.draft();
        draft.names().into_iter().map(|(table, key)| (table, key.to_vec())).collect()
    }

    /// Makes all changes, or none. The commit starts without a poll of its future, unless objects
    /// of an [`AsyncIndexedTable`](super::AsyncIndexedTable) change: then it goes on with each
    /// poll. Changes and reads by clones from now on belong to no transaction.
    ///
    /// # Errors
    /// Those of [`Transaction::commit`](super::Transaction::commit).
    pub fn commit(self) -> Operation<Committed> {
        let draft = mem::take(&mut *self.draft());
        start(&self.client, Arc::new(draft), self.deadline)
    }
}

/// Locks a draft, which no panic of the program can poison.
fn lock(draft: &Mutex<Draft>) -> MutexGuard<'_, Draft> {
    draft.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to commit a transaction.
fn start(client: &AsyncClient, draft: Arc<Draft>, deadline: Instant) -> Operation<Committed> {
    if draft.is_settled() {
        return Operation::ended(Ok(Committed { versions: Vec::new() }));
    }
    let writes = draft.writes();
    if !draft.indexed().is_empty() {
        let client = client.clone();
        return Operation::of_steps(async move {
            let versions = indexed_async::commit(&client, &draft, deadline).await;
            committed(versions.map(Answer::Committed), writes)
        });
    }
    client.start(
        move |machine, at| machine.transact(&draft.parts(), at.min(deadline)),
        move |outcome| committed(outcome, writes),
    )
}

impl AsyncClient {
    /// Begins a transaction. Sends nothing.
    pub fn transaction(&self) -> AsyncTransaction {
        AsyncTransaction::new(self.clone(), Instant::NEVER)
    }

    /// Runs `body` with a transaction and commits that, again and again until no conflict is met,
    /// as [`Client::transact`](super::Client::transact) describes. Returns what `body` returned the
    /// last time.
    ///
    /// ```no_run
    /// use sprat::kv::{Client, Error};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Client::builder("fast+shm:name=sprat").connect_async()?;
    /// let (new, done) = (client.table("new").await?, client.table("done").await?);
    /// let (from, to) = (&new, &done);
    /// let moved = client.transact(|transaction| async move {
    ///     let Some(order) = transaction.get(from, b"order 7").await? else { return Ok(false) };
    ///     transaction.put(to, b"order 7", &order.value)?;
    ///     transaction.remove(from, b"order 7")?;
    ///     Ok::<bool, Error>(true)
    /// });
    /// println!("{}", moved.await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Client::transact`](super::Client::transact).
    pub async fn transact<T, E, F>(&self, body: impl FnMut(AsyncTransaction) -> F) -> Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        self.transact_versioned(body).await.map(|(result, _)| result)
    }

    /// Runs and commits a transaction as [`AsyncClient::transact`] does. Returns the new versions
    /// of written objects, too.
    ///
    /// # Errors
    /// Those of [`AsyncClient::transact`].
    pub async fn transact_versioned<T, E, F>(
        &self,
        mut body: impl FnMut(AsyncTransaction) -> F,
    ) -> Result<(T, Committed), E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let deadline = self.deadline();
        let mut tries = 0;
        loop {
            let transaction = AsyncTransaction::new(self.clone(), deadline);
            let result = body(transaction.clone()).await?;
            tries += 1;
            let draft = Arc::new(mem::take(&mut *transaction.draft()));
            let error = match start(self, Arc::clone(&draft), deadline).await {
                Ok(committed) => return Ok((result, committed)),
                Err(error) => error,
            };
            if !draft.may_pass(&error) || self.pause(tries, deadline).await.is_err() {
                return Err(error.into());
            }
        }
    }
}
