//! Tables with indexes for asynchronous programs.

use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sprat_proto::{Instant, Rng};
use sprat_store::client::{Change as Planned, Client as Machine, Cursor, Error, TransactionPart};
use sprat_store::index::{
    Building, Change, Cleaning, Definition, Error as IndexError, Found, Indexes, Listed,
    NODE_BYTES, Objects, Page, Range, Seen, Source, State, node_table,
};
use sprat_store::message::data::RejectRules;
use sprat_store::types::{Lifetime, TableId, Version};

use super::asynchronous::{AsyncClient, AsyncTable};
use super::condition::Condition;
use super::indexed::{
    checked, listed, node_options, object, objects, out_of_time, reading, versions,
};
use super::multi::{OwnedParts, Part};

/// A table of an [`AsyncClient`] with indexes, as [`IndexedTable`](super::IndexedTable) describes
/// it.
///
/// Clones share what the client knows of the indexes.
///
/// ```no_run
/// use sprat::kv::{Client, Source};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder("fast+shm:name=sprat").connect_async()?;
/// let people = client.indexed(&client.table("people").await?).await?;
/// people.create_index("by name", Source::Field { number: 0, separator: b',' }).await?;
/// people.put(b"17", b"Ada,Paris").await?;
/// assert_eq!(people.look_up("by name", b"Ada").await?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncIndexedTable {
    table: AsyncTable,
    nodes: TableId,
    client: AsyncClient,
    known: Arc<Mutex<(State, Rng)>>,
}

/// The operations of one change or look-up.
struct Starting<'t> {
    table: &'t AsyncIndexedTable,
    /// The deadline of all steps. Each has the client's timeout besides.
    deadline: Instant,
}

/// A part of a transaction with bytes of its own, for the client's thread.
struct OwnedPart {
    table: TableId,
    key: Vec<u8>,
    rules: RejectRules,
    /// The value and the lifetime of an object that is written.
    written: Option<(Vec<u8>, Option<Lifetime>)>,
    is_removed: bool,
}

impl OwnedPart {
    fn new(part: &TransactionPart<'_>) -> Self {
        let (table, key, rules) = (part.table, part.key.to_vec(), part.rules);
        let written = match part.change {
            Planned::Write(value, lifetime) => Some((value.to_vec(), lifetime)),
            Planned::Check | Planned::Remove => None,
        };
        let is_removed = part.change == Planned::Remove;
        Self { table, key, rules, written, is_removed }
    }

    fn part(&self) -> TransactionPart<'_> {
        let change = match &self.written {
            Some((value, lifetime)) => Planned::Write(value, *lifetime),
            None if self.is_removed => Planned::Remove,
            None => Planned::Check,
        };
        TransactionPart { table: self.table, key: &self.key, rules: self.rules, change }
    }
}

impl Objects for Starting<'_> {
    async fn read(&self, keys: &[(TableId, &[u8])]) -> Result<Vec<Option<Seen>>, Error> {
        let (client, deadline) = (&self.table.client, self.deadline);
        if let &[(table, key)] = keys {
            let (key, rules) = (key.to_vec(), Condition::always().0);
            let start = client.start(
                move |machine, at| machine.read(table, &key, rules, at.min(deadline)),
                object,
            );
            return Ok(vec![start.await?]);
        }
        let parts = OwnedParts::new(keys.iter().map(|key| Part(reading(key))));
        let start =
            client.start(move |machine, at| machine.multi(parts.iter(), at.min(deadline)), objects);
        start.await
    }

    async fn commit(&self, parts: &[TransactionPart<'_>]) -> Result<Vec<Version>, Error> {
        let deadline = self.deadline;
        let owned: Vec<OwnedPart> = parts.iter().map(OwnedPart::new).collect();
        let begin = move |machine: &mut Machine, at: Instant| {
            let parts: Vec<_> = owned.iter().map(OwnedPart::part).collect();
            machine.transact(&parts, at.min(deadline))
        };
        self.table.client.start(begin, versions).await
    }

    async fn scan(
        &self,
        table: TableId,
        from: Cursor,
    ) -> Result<(Vec<Listed>, Option<Cursor>), Error> {
        let client = &self.table.client;
        client.start(move |machine, at| machine.enumerate(table, from, at), listed).await
    }

    async fn pause(&self, tries: u32) -> Result<(), Error> {
        // The client refuses a pause past the deadline.
        self.table.client.pause(tries, self.deadline).await.map_err(|error| match error {
            Error::NotInProgress => out_of_time(),
            other => other,
        })
    }

    fn nearest(&self, _: (TableId, &[u8]), _: &[(TableId, &[u8])]) -> Option<usize> {
        // The thread of the client has the routes, and a question to it takes longer than it saves.
        None
    }

    fn random(&self) -> u64 {
        self.table.known().1.below(u64::MAX)
    }

    fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.table.known().0)
    }
}

impl AsyncClient {
    /// Returns a table as one with indexes. Prepares it for them if that has not been done.
    ///
    /// # Errors
    /// Those of [`Client::indexed`](super::Client::indexed).
    pub async fn indexed(&self, table: &AsyncTable) -> Result<AsyncIndexedTable, IndexError> {
        let options = node_options(&self.tables().await?, table.id())?;
        let nodes = self.create_table(&node_table(table.id()), options).await?.id();
        let known = Arc::new(Mutex::new((State::default(), self.fork_rng())));
        Ok(AsyncIndexedTable { table: table.clone(), nodes, client: self.clone(), known })
    }
}

impl AsyncIndexedTable {
    /// Returns the table without its indexes, for reads. Changes of it leave the indexes as they
    /// are.
    #[must_use]
    pub fn table(&self) -> &AsyncTable {
        &self.table
    }

    /// Returns what the client knows of the indexes, locked. No code of the program runs meanwhile.
    fn known(&self) -> MutexGuard<'_, (State, Rng)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn starting(&self) -> Starting<'_> {
        Starting { table: self, deadline: self.client.deadline() }
    }

    fn indexes<'o, 't>(&self, objects: &'o Starting<'t>) -> Indexes<'o, Starting<'t>> {
        Indexes::new(objects, self.table.id(), self.nodes)
    }

    /// Creates an index, as [`IndexedTable::create_index`](super::IndexedTable::create_index) does.
    ///
    /// # Errors
    /// Those of [`IndexedTable::create_index`](super::IndexedTable::create_index).
    pub async fn create_index(&self, name: &str, source: Source) -> Result<(u64, u64), IndexError> {
        let mut building = self.begin_index(name, source).await?;
        while !self.build_index(&mut building).await? {}
        Ok((building.objects(), building.skipped()))
    }

    /// Begins to create an index, as
    /// [`IndexedTable::begin_index`](super::IndexedTable::begin_index) does.
    ///
    /// # Errors
    /// Those of [`IndexedTable::create_index`](super::IndexedTable::create_index).
    pub async fn begin_index(&self, name: &str, source: Source) -> Result<Building, IndexError> {
        self.indexes(&self.starting()).create(name, source, NODE_BYTES).await
    }

    /// Adds some of the objects that existed before the index. Returns true at the end, when
    /// look-ups can use the index.
    ///
    /// # Errors
    /// Errors of the store, after which this may be called again.
    pub async fn build_index(&self, building: &mut Building) -> Result<bool, IndexError> {
        self.indexes(&self.starting()).build(building).await
    }

    /// Drops an index. Does nothing to the objects.
    ///
    /// # Errors
    /// [`IndexError::NoIndex`], and errors of the store.
    pub async fn drop_index(&self, name: &str) -> Result<(), IndexError> {
        let dropped = self.indexes(&self.starting()).drop_index(name).await;
        // Another client may have ended before it had removed all nodes.
        if matches!(dropped, Ok(()) | Err(IndexError::NoIndex(_))) {
            let mut cleaning = Cleaning::default();
            while !self.indexes(&self.starting()).clean(&mut cleaning).await? {}
        }
        dropped
    }

    /// Lists the indexes of the table.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list_indexes(&self) -> Result<Vec<Definition>, IndexError> {
        self.indexes(&self.starting()).list().await
    }

    /// Writes an object. Returns its new version.
    ///
    /// # Errors
    /// Those of [`IndexedTable::put`](super::IndexedTable::put).
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Version, IndexError> {
        self.put_if(key, value, Condition::always()).await
    }

    /// Writes an object if a condition holds. Returns its new version.
    ///
    /// # Errors
    /// Those of [`IndexedTable::put_if`](super::IndexedTable::put_if).
    pub async fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition,
    ) -> Result<Version, IndexError> {
        let change = Change::Write(value, None);
        self.indexes(&self.starting()).change(key, change, condition.0).await
    }

    /// Writes an object that expires, if a condition holds, as
    /// [`IndexedTable::put_expiring_if`](super::IndexedTable::put_expiring_if) does.
    ///
    /// # Errors
    /// Those of [`IndexedTable::put_expiring_if`](super::IndexedTable::put_expiring_if).
    pub async fn put_expiring_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
        condition: Condition,
    ) -> Result<Version, IndexError> {
        let lifetime = Some(checked(lifetime)?);
        let change = Change::Write(value, lifetime);
        self.indexes(&self.starting()).change(key, change, condition.0).await
    }

    /// Removes an object. Returns the version that it had, `None` if there was none.
    ///
    /// # Errors
    /// Those of [`IndexedTable::remove`](super::IndexedTable::remove).
    pub async fn remove(&self, key: &[u8]) -> Result<Option<Version>, IndexError> {
        self.remove_if(key, Condition::always()).await
    }

    /// Removes an object if a condition holds. Returns the version that it had, `None` if there was
    /// none.
    ///
    /// # Errors
    /// Those of [`IndexedTable::remove_if`](super::IndexedTable::remove_if).
    pub async fn remove_if(
        &self,
        key: &[u8],
        condition: Condition,
    ) -> Result<Option<Version>, IndexError> {
        let indexes = self.starting();
        let removed = self.indexes(&indexes).change(key, Change::Remove, condition.0).await?;
        Ok((removed != Version(0)).then_some(removed))
    }

    /// Returns all objects that have this index key, in the order of their own keys.
    ///
    /// # Errors
    /// Those of [`IndexedTable::look_up`](super::IndexedTable::look_up).
    pub async fn look_up(&self, index: &str, key: &[u8]) -> Result<Vec<Found>, IndexError> {
        self.all(index, Range::new(key..=key)).await
    }

    /// Returns all objects whose index keys are in a range, in their order. For ranges with many
    /// objects use [`AsyncIndexedTable::page`].
    ///
    /// # Errors
    /// Those of [`IndexedTable::look_up`](super::IndexedTable::look_up).
    pub async fn range<K: AsRef<[u8]>>(
        &self,
        index: &str,
        keys: impl RangeBounds<K>,
    ) -> Result<Vec<Found>, IndexError> {
        self.all(index, Range::new(keys)).await
    }

    async fn all(&self, index: &str, range: Range) -> Result<Vec<Found>, IndexError> {
        let (mut found, mut rest) = (Vec::new(), Some(range));
        while let Some(range) = rest {
            let page = self.page(index, range, usize::MAX).await?;
            found.extend(page.found);
            rest = page.rest;
        }
        Ok(found)
    }

    /// Returns the first objects of a range, as [`IndexedTable::page`](super::IndexedTable::page)
    /// does.
    ///
    /// # Errors
    /// Those of [`IndexedTable::look_up`](super::IndexedTable::look_up).
    pub async fn page(&self, index: &str, range: Range, most: usize) -> Result<Page, IndexError> {
        self.indexes(&self.starting()).look_up(index, range, most).await
    }
}
