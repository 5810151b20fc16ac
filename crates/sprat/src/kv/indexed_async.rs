//! Tables with indexes for asynchronous programs.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use sprat_proto::Instant;
use sprat_store::client::{
    Client as Machine, Cursor, Error, OwnedTransactionPart, TransactionPart,
};
use sprat_store::index::{
    self, Building, Change, Changed, Cleaning, Definition, Error as IndexError, Found, Indexes,
    Listed, NODE_BYTES, Objects, Page, Range, Seen, Source, State, node_table,
};
use sprat_store::types::{TableId, Version};

use super::asynchronous::{AsyncClient, AsyncTable};
use super::condition::{Condition, is_overtaken};
use super::draft::Draft;
use super::indexed::{
    changed, checked, listed, looking_up, node_options, object, objects, out_of_time, reading,
    versions,
};
use super::known::{KnownIndexes, Sealed};
use super::multi::{OwnedParts, Part};
use super::object::Object;

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
    client: AsyncClient,
    known: Arc<KnownIndexes>,
}

impl Sealed for AsyncIndexedTable {
    fn table_id(&self) -> TableId {
        self.table.id()
    }

    fn known(&self) -> Option<&Arc<KnownIndexes>> {
        Some(&self.known)
    }
}

/// The operations of one change or look-up.
struct Starting<'t> {
    client: &'t AsyncClient,
    known: &'t KnownIndexes,
    /// The deadline of all steps. Each has the client's timeout besides.
    deadline: Instant,
}

impl Starting<'_> {
    fn indexes(&self) -> Indexes<'_, Self> {
        self.known.by(self)
    }
}

/// Commits a transaction that changes objects of tables with indexes.
pub(super) async fn commit(
    client: &AsyncClient,
    draft: &Draft,
    deadline: Instant,
) -> Result<Vec<Version>, Error> {
    let deadline = deadline.min(client.deadline());
    let known = draft.indexed().iter();
    let starting: Vec<_> = known.map(|known| Starting { client, known, deadline }).collect();
    let Some(first) = starting.first() else { return Ok(Vec::new()) };
    let tables: Vec<_> = starting.iter().map(Starting::indexes).collect();
    index::commit(first, &tables, &draft.parts_read()).await
}

impl Objects for Starting<'_> {
    async fn read(&self, keys: &[(TableId, &[u8])]) -> Result<Vec<Option<Seen>>, Error> {
        let (client, deadline) = (self.client, self.deadline);
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

    async fn look_up(
        &self,
        nodes: TableId,
        leaves: &[(&[u8], &[u8])],
    ) -> Result<Vec<Option<Seen>>, Error> {
        let (client, deadline) = (self.client, self.deadline);
        if let &[(key, query)] = leaves {
            let (key, query) = (key.to_vec(), query.to_vec());
            let begin = move |machine: &mut Machine, at: Instant| {
                machine.look_up(nodes, &key, &query, at.min(deadline))
            };
            return Ok(vec![client.start(begin, object).await?]);
        }
        let parts = OwnedParts::new(leaves.iter().map(|leaf| Part(looking_up(nodes, leaf))));
        let start =
            client.start(move |machine, at| machine.multi(parts.iter(), at.min(deadline)), objects);
        start.await
    }

    async fn change(&self, nodes: TableId, part: &TransactionPart<'_>) -> Result<Changed, Error> {
        let (part, deadline) = (OwnedTransactionPart::from(part), self.deadline);
        let begin = move |machine: &mut Machine, at: Instant| {
            machine.change_indexed(nodes, &part.part(), at.min(deadline))
        };
        self.client.start(begin, changed).await
    }

    async fn commit(&self, parts: &[TransactionPart<'_>]) -> Result<Vec<Version>, Error> {
        let deadline = self.deadline;
        let parts: Vec<OwnedTransactionPart> = parts.iter().map(Into::into).collect();
        let begin = move |machine: &mut Machine, at: Instant| {
            machine.transact_owned(&parts, at.min(deadline))
        };
        self.client.start(begin, versions).await
    }

    async fn scan(
        &self,
        table: TableId,
        from: Cursor,
    ) -> Result<(Vec<Listed>, Option<Cursor>), Error> {
        let client = &self.client;
        client.start(move |machine, at| machine.enumerate(table, from, at), listed).await
    }

    async fn pause(&self, tries: u32) -> Result<(), Error> {
        // The client refuses a pause past the deadline.
        self.client.pause(tries, self.deadline).await.map_err(|error| match error {
            Error::NotInProgress => out_of_time(),
            other => other,
        })
    }

    fn nearest(&self, _: (TableId, &[u8]), _: &[(TableId, &[u8])]) -> Option<usize> {
        // The thread of the client has the routes, and a question to it takes longer than it saves.
        None
    }

    fn random(&self) -> u64 {
        self.known.random()
    }

    fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.known.state(f)
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
        let known = KnownIndexes::new(table.id(), nodes, self.fork_rng());
        Ok(AsyncIndexedTable { table: table.clone(), client: self.clone(), known })
    }
}

impl AsyncIndexedTable {
    /// Returns the table without its indexes, for reads. Changes of it leave the indexes as they
    /// are.
    #[must_use]
    pub fn table(&self) -> &AsyncTable {
        &self.table
    }

    fn starting(&self) -> Starting<'_> {
        Starting { client: &self.client, known: &self.known, deadline: self.client.deadline() }
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
        self.starting().indexes().create(name, source, NODE_BYTES).await
    }

    /// Adds some of the objects that existed before the index. Returns true at the end, when
    /// look-ups can use the index.
    ///
    /// # Errors
    /// Errors of the store, after which this may be called again.
    pub async fn build_index(&self, building: &mut Building) -> Result<bool, IndexError> {
        self.starting().indexes().build(building).await
    }

    /// Drops an index. Does nothing to the objects.
    ///
    /// # Errors
    /// [`IndexError::NoIndex`], and errors of the store.
    pub async fn drop_index(&self, name: &str) -> Result<(), IndexError> {
        let dropped = self.starting().indexes().drop_index(name).await;
        // Another client may have ended before it had removed all nodes.
        if matches!(dropped, Ok(()) | Err(IndexError::NoIndex(_))) {
            let mut cleaning = Cleaning::default();
            while !self.starting().indexes().clean(&mut cleaning).await? {}
        }
        dropped
    }

    /// Lists the indexes of the table.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list_indexes(&self) -> Result<Vec<Definition>, IndexError> {
        self.starting().indexes().list().await
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
        self.starting().indexes().change(key, change, condition.0).await
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
        self.starting().indexes().change(key, change, condition.0).await
    }

    /// Reads an object, and writes the value and the lifetime that `f` returns for it, as
    /// [`IndexedTable::update_if`](super::IndexedTable::update_if) does.
    ///
    /// # Errors
    /// Those of [`IndexedTable::update_if`](super::IndexedTable::update_if).
    pub async fn update_if(
        &self,
        key: &[u8],
        condition: Condition,
        mut f: impl FnMut(Option<&Object>, Option<Duration>) -> Option<(Vec<u8>, Option<Duration>)>,
    ) -> Result<Option<Version>, IndexError> {
        let starting = self.starting();
        for tries in 0.. {
            let (object, rest) = self.table.read_expiring(key).await?.unzip();
            let same = condition.of_read(object.as_ref())?;
            let Some((value, lifetime)) = f(object.as_ref(), rest.flatten()) else { break };
            let change = Change::Write(&value, lifetime.map(checked).transpose()?);
            let written = starting.indexes().change(key, change, same.0).await;
            if !is_overtaken(&written) {
                return written.map(Some);
            }
            starting.pause(tries).await?;
        }
        Ok(None)
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
        let removed = self.starting().indexes().change(key, Change::Remove, condition.0).await?;
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
        self.starting().indexes().look_up(index, range, most).await
    }

    /// Returns the last objects of a range in descending order, as
    /// [`IndexedTable::page_back`](super::IndexedTable::page_back) does.
    ///
    /// # Errors
    /// Those of [`IndexedTable::look_up`](super::IndexedTable::look_up).
    pub async fn page_back(
        &self,
        index: &str,
        range: Range,
        most: usize,
    ) -> Result<Page, IndexError> {
        self.starting().indexes().look_up_back(index, range, most).await
    }
}
