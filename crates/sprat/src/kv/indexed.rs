//! Tables with indexes: objects in the order of keys that are parts of them.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sprat_proto::Instant;
use sprat_store::client::{
    Answer, Cursor, Error, Part, PartRequest, TableInfo, TableOptions, TransactionPart, WaitedFor,
};
use sprat_store::index::{
    self, Building, Change, Changed, Cleaning, Definition, Error as IndexError, Found, Indexes,
    Listed, NODE_BYTES, Objects, Page, Range, Seen, Source, State, node_table,
};
use sprat_store::types::{Lifetime, TableId, Version};

use super::answers::{found, object_or_none, page, version};
use super::client::Client;
use super::condition::{Condition, is_overtaken};
use super::draft::Draft;
use super::known::{KnownIndexes, Sealed};
use super::machine::{Outcome, unexpected};
use super::multi;
use super::object::{Object, in_ms};
use super::shared::Shared;
use super::table::Table;

/// A table whose objects a client also finds by other keys, and in their order.
///
/// An index has the objects of the table in the order of a part of them ([`Source`]): their own
/// keys, some bytes or a field of their values, or keys that [`pack`](super::pack) has put before
/// the values. A change through this type changes an object and its entries in one transaction, so
/// that each look-up finds exactly the objects that have the key. A change through [`Table`] leaves
/// the entries as they are: then look-ups do not find the object by its new key, and never return
/// it by the old one. Indexes have the object again when its key changes, or when they are created
/// anew. A [`Transaction`](super::Transaction) changes several objects with their entries.
///
/// The entries are objects of a table of their own, which is spread over the servers as the
/// indexed table is.
///
/// ```no_run
/// use sprat::kv::{Client, Source};
///
/// let client = Client::connect("fast+shm:name=sprat")?;
/// let people = client.indexed(&client.create_table("people", 1)?)?;
/// // The second field of values such as `Ada,Paris`. Objects that exist get into it, too.
/// people.create_index("by city", Source::Field { number: 1, separator: b',' })?;
///
/// people.put(b"17", b"Ada,Paris")?;
/// people.put(b"23", b"Bob,Oslo")?;
/// for found in people.look_up("by city", b"Paris")? {
///     println!("{}", String::from_utf8_lossy(&found.value));
/// }
/// for found in people.range("by city", "M"..) {
///     println!("{:?}", found?.index_key);
/// }
/// // The last one in the order of the cities.
/// let last = people.range::<&str>("by city", ..).next_back().transpose()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct IndexedTable<'c> {
    table: Table<'c>,
    shared: &'c Shared,
    known: Arc<KnownIndexes>,
}

impl Sealed for IndexedTable<'_> {
    fn table_id(&self) -> TableId {
        self.table.id()
    }

    fn known(&self) -> Option<&Arc<KnownIndexes>> {
        Some(&self.known)
    }
}

/// The operations of a client that waits for each one.
#[derive(Debug)]
struct Waiting<'w> {
    shared: &'w Shared,
    known: &'w KnownIndexes,
    /// The deadline of all steps. Each has the client's timeout besides.
    deadline: Instant,
}

impl Waiting<'_> {
    fn indexes(&self) -> Indexes<'_, Self> {
        self.known.by(self)
    }
}

/// Commits a transaction that changes objects of tables with indexes.
pub(super) fn commit(
    shared: &Shared,
    draft: &Draft,
    deadline: Instant,
) -> Result<Vec<Version>, Error> {
    let (_, at) = shared.inner().times();
    let deadline = deadline.min(at);
    let known = draft.indexed().iter();
    let waiting: Vec<_> = known.map(|known| Waiting { shared, known, deadline }).collect();
    let Some(first) = waiting.first() else { return Ok(Vec::new()) };
    let tables: Vec<_> = waiting.iter().map(Waiting::indexes).collect();
    now(index::commit(first, &tables, &draft.parts_read()))
}

/// Returns the error of a change that met other ones until its deadline.
pub(super) fn out_of_time() -> Error {
    let why = Some("other clients change the same objects or nodes of the index".into());
    Error::Deadline { maybe_executed: false, waited_for: WaitedFor::Server, why }
}

/// Returns the objects of a multi-read.
pub(super) fn objects(outcome: Outcome) -> Result<Vec<Option<Seen>>, Error> {
    let parts = multi::parts(outcome)?;
    let seen = |answer| {
        let Object { version, value } = multi::object(answer);
        (version, value)
    };
    parts.iter().map(|part| found(part.map(seen).map_err(Clone::clone))).collect()
}

pub(super) fn object(outcome: Outcome) -> Result<Option<Seen>, Error> {
    Ok(object_or_none(outcome)?.map(|Object { version, value }| (version, value)))
}

/// Returns the objects of a page, and the position behind it.
pub(super) fn listed(outcome: Outcome) -> Result<(Vec<Listed>, Option<Cursor>), Error> {
    let page = page(outcome)?;
    let objects = page.objects().map(|it| (it.key.to_vec(), it.version, it.value.to_vec()));
    Ok((objects.collect(), page.next.clone()))
}

/// Returns the outcome of a change that one operation makes.
pub(super) fn changed(outcome: Outcome) -> Result<Changed, Error> {
    Changed::of(version(outcome))
}

pub(super) fn versions(outcome: Outcome) -> Result<Vec<Version>, Error> {
    match outcome? {
        Answer::Committed(versions) => Ok(versions),
        other => unexpected(&other),
    }
}

/// Returns the options of the table of the nodes of a table's indexes: those of the table itself.
pub(super) fn node_options(tables: &[TableInfo], table: TableId) -> Result<TableOptions, Error> {
    let info = tables.iter().find(|info| info.table == table).ok_or(Error::TableDoesntExist)?;
    Ok(TableOptions { span: info.tablets.clamp(1, 256).into(), durability: info.durability })
}

/// Returns a lifetime that is not too long.
pub(super) fn checked(lifetime: Duration) -> Result<Lifetime, Error> {
    let lifetime = in_ms(lifetime);
    if lifetime > Lifetime::MAX { Err(Error::LifetimeTooLong(lifetime)) } else { Ok(lifetime) }
}

/// Returns the part of a multi-operation that reads an object.
pub(super) fn reading<'a>(&(table, key): &(TableId, &'a [u8])) -> Part<'a> {
    Part { table, key, rules: Condition::always().0, request: PartRequest::Read }
}

/// Returns the part of a multi-operation that looks up entries of a leaf.
pub(super) fn looking_up<'a>(table: TableId, &(key, query): &(&'a [u8], &'a [u8])) -> Part<'a> {
    Part { table, key, rules: Condition::always().0, request: PartRequest::LookUp(query) }
}

impl Objects for Waiting<'_> {
    async fn read(&self, keys: &[(TableId, &[u8])]) -> Result<Vec<Option<Seen>>, Error> {
        let deadline = self.deadline;
        if let &[(table, key)] = keys {
            let rules = Condition::always().0;
            let ask =
                self.shared.ask(|client, at| client.read(table, key, rules, at.min(deadline)));
            return Ok(vec![object(ask)?]);
        }
        let parts: Vec<Part<'_>> = keys.iter().map(reading).collect();
        objects(self.shared.ask_parts(&parts, deadline))
    }

    async fn look_up(
        &self,
        nodes: TableId,
        leaves: &[(&[u8], &[u8])],
    ) -> Result<Vec<Option<Seen>>, Error> {
        let deadline = self.deadline;
        if let &[(key, query)] = leaves {
            let ask =
                self.shared.ask(|client, at| client.look_up(nodes, key, query, at.min(deadline)));
            return Ok(vec![object(ask)?]);
        }
        let parts: Vec<Part<'_>> = leaves.iter().map(|leaf| looking_up(nodes, leaf)).collect();
        objects(self.shared.ask_parts(&parts, deadline))
    }

    async fn change(&self, nodes: TableId, part: &TransactionPart<'_>) -> Result<Changed, Error> {
        let deadline = self.deadline;
        changed(self.shared.ask(|client, at| client.change_indexed(nodes, part, at.min(deadline))))
    }

    async fn commit(&self, parts: &[TransactionPart<'_>]) -> Result<Vec<Version>, Error> {
        let deadline = self.deadline;
        versions(self.shared.ask(|client, at| client.transact(parts, at.min(deadline))))
    }

    async fn scan(
        &self,
        table: TableId,
        from: Cursor,
    ) -> Result<(Vec<Listed>, Option<Cursor>), Error> {
        listed(self.shared.ask(|client, at| client.enumerate(table, from, at)))
    }

    async fn pause(&self, tries: u32) -> Result<(), Error> {
        let deadline = self.deadline;
        if self.shared.pause(tries, deadline) { Ok(()) } else { Err(out_of_time()) }
    }

    fn nearest(&self, of: (TableId, &[u8]), among: &[(TableId, &[u8])]) -> Option<usize> {
        self.shared.inner().worker.machine().client.nearest(of, among)
    }

    fn random(&self) -> u64 {
        self.known.random()
    }

    fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.known.state(f)
    }
}

/// Returns the output of a future whose operations have all ended when they return.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

impl Client {
    /// Returns a table as one with indexes. Prepares it for them if that has not been done.
    ///
    /// # Errors
    /// [`Error::TableDoesntExist`], and those of [`Client::create_table`].
    pub fn indexed<'c>(&'c self, table: &Table<'_>) -> Result<IndexedTable<'c>, IndexError> {
        let id = table.id();
        let options = node_options(&self.tables()?, id)?;
        let nodes = self.create_table(&node_table(id), options)?.id();
        Ok(self.with_nodes(id, nodes))
    }

    /// Returns a table as one with indexes if it has some.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn if_indexed<'c>(
        &'c self,
        table: &Table<'_>,
    ) -> Result<Option<IndexedTable<'c>>, IndexError> {
        match self.table(&node_table(table.id())) {
            Ok(nodes) => {
                let indexed = self.with_nodes(table.id(), nodes.id());
                let has_indexes = !indexed.list_indexes()?.is_empty();
                Ok(has_indexes.then_some(indexed))
            }
            Err(Error::TableDoesntExist) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn with_nodes(&self, table: TableId, nodes: TableId) -> IndexedTable<'_> {
        self.with_known(KnownIndexes::new(table, nodes, self.shared().fork_rng()))
    }

    /// Returns a table of this client of which indexes are known, for the C API. Sends nothing.
    #[doc(hidden)]
    pub fn with_known(&self, known: Arc<KnownIndexes>) -> IndexedTable<'_> {
        IndexedTable { table: self.table_by_id(known.table), shared: self.shared(), known }
    }
}

impl<'c> IndexedTable<'c> {
    /// Returns the table without its indexes, for reads. Changes of it leave the indexes as they
    /// are.
    #[must_use]
    pub fn table(&self) -> &Table<'c> {
        &self.table
    }

    /// Returns what the client keeps of the indexes, for the C API. [`Client::with_known`] returns
    /// the table again.
    #[doc(hidden)]
    #[must_use]
    pub fn known(&self) -> &Arc<KnownIndexes> {
        &self.known
    }

    /// Returns the client's operations for one that begins now.
    fn waiting(&self) -> Waiting<'_> {
        let (_, deadline) = self.shared.inner().times();
        Waiting { shared: self.shared, known: &self.known, deadline }
    }

    // Indexes.

    /// Creates an index and waits until it has all objects of the table. If there is one of this
    /// name and source that another client did not finish, goes on with it. Returns the number of
    /// objects of the table, and of those that are not in the index since their index key is
    /// longer than [`MAX_INDEX_KEY`](super::MAX_INDEX_KEY).
    ///
    /// # Errors
    /// [`IndexError::Exists`] for another index of this name, [`IndexError::BadName`],
    /// [`IndexError::TooManyIndexes`], and errors of the store.
    pub fn create_index(&self, name: &str, source: Source) -> Result<(u64, u64), IndexError> {
        let mut building = self.begin_index(name, source)?;
        while !self.build_index(&mut building)? {}
        Ok((building.objects(), building.skipped()))
    }

    /// Begins to create an index as [`IndexedTable::create_index`] does. From now on each change
    /// through an [`IndexedTable`] keeps it. [`IndexedTable::build_index`] adds the objects that
    /// exist.
    ///
    /// # Errors
    /// Those of [`IndexedTable::create_index`].
    pub fn begin_index(&self, name: &str, source: Source) -> Result<Building, IndexError> {
        now(self.waiting().indexes().create(name, source, NODE_BYTES))
    }

    /// Adds some of the objects that existed before the index. Returns true at the end, when
    /// look-ups can use the index.
    ///
    /// # Errors
    /// Errors of the store, after which this may be called again.
    pub fn build_index(&self, building: &mut Building) -> Result<bool, IndexError> {
        now(self.waiting().indexes().build(building))
    }

    /// Drops an index. Does nothing to the objects.
    ///
    /// # Errors
    /// [`IndexError::NoIndex`], and errors of the store.
    pub fn drop_index(&self, name: &str) -> Result<(), IndexError> {
        let dropped = now(self.waiting().indexes().drop_index(name));
        // Another client may have ended before it had removed all nodes.
        if matches!(dropped, Ok(()) | Err(IndexError::NoIndex(_))) {
            let mut cleaning = Cleaning::default();
            while !now(self.waiting().indexes().clean(&mut cleaning))? {}
        }
        dropped
    }

    /// Lists the indexes of the table.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn list_indexes(&self) -> Result<Vec<Definition>, IndexError> {
        now(self.waiting().indexes().list())
    }

    // Objects.

    /// Writes an object. Returns its new version.
    ///
    /// # Errors
    /// [`Error::IndexKeyTooLong`], and those of a write and of a transaction.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version, IndexError> {
        self.put_if(key, value, Condition::always())
    }

    /// Writes an object if a condition holds. Returns its new version.
    ///
    /// [`Condition::if_absent`] is the least work for a new object where several servers have the
    /// table and its indexes: the client does not read the object for its old entries.
    ///
    /// # Errors
    /// As the condition says, and those of [`IndexedTable::put`].
    pub fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition,
    ) -> Result<Version, IndexError> {
        now(self.waiting().indexes().change(key, Change::Write(value, None), condition.0))
    }

    /// Writes an object that expires, if a condition holds, as
    /// [`Table::put_expiring_if`] does. Its entries go when a look-up meets them.
    ///
    /// # Errors
    /// Those of [`IndexedTable::put_if`], and [`Error::LifetimeTooLong`].
    pub fn put_expiring_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
        condition: Condition,
    ) -> Result<Version, IndexError> {
        let change = Change::Write(value, Some(checked(lifetime)?));
        now(self.waiting().indexes().change(key, change, condition.0))
    }

    /// Reads an object and the rest of its lifetime, and writes the value and the lifetime that `f`
    /// returns for them, if a condition holds. Begins again if another change came between. The
    /// new lifetime counts from the write. Returns the new version; `None` if `f` returned `None`
    /// and the object stays as it is.
    ///
    /// ```no_run
    /// # fn example(people: &sprat::kv::IndexedTable<'_>) -> Result<(), sprat::kv::IndexError> {
    /// use sprat::kv::Condition;
    ///
    /// people.update_if(b"17", Condition::if_exists(), |person, rest| {
    ///     let mut value = person?.value.clone();
    ///     value.extend_from_slice(b",retired");
    ///     Some((value, rest))
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As the condition says, and those of [`IndexedTable::put_expiring_if`].
    pub fn update_if(
        &self,
        key: &[u8],
        condition: Condition,
        mut f: impl FnMut(Option<&Object>, Option<Duration>) -> Option<(Vec<u8>, Option<Duration>)>,
    ) -> Result<Option<Version>, IndexError> {
        let waiting = self.waiting();
        for tries in 0.. {
            let (object, rest) = self.table.read_expiring(key)?.unzip();
            let same = condition.of_read(object.as_ref())?;
            let Some((value, lifetime)) = f(object.as_ref(), rest.flatten()) else { break };
            let change = Change::Write(&value, lifetime.map(checked).transpose()?);
            let written = now(waiting.indexes().change(key, change, same.0));
            if !is_overtaken(&written) {
                return written.map(Some);
            }
            now(waiting.pause(tries))?;
        }
        Ok(None)
    }

    /// Removes an object. Returns the version that it had, `None` if there was none.
    ///
    /// # Errors
    /// Those of a removal and of a transaction.
    pub fn remove(&self, key: &[u8]) -> Result<Option<Version>, IndexError> {
        self.remove_if(key, Condition::always())
    }

    /// Removes an object if a condition holds. Returns the version that it had, `None` if there was
    /// none.
    ///
    /// # Errors
    /// As the condition says, and those of [`IndexedTable::remove`].
    pub fn remove_if(
        &self,
        key: &[u8],
        condition: Condition,
    ) -> Result<Option<Version>, IndexError> {
        let removed = now(self.waiting().indexes().change(key, Change::Remove, condition.0))?;
        Ok((removed != Version(0)).then_some(removed))
    }

    // Look-ups.

    /// Returns all objects that have this index key, in the order of their own keys.
    ///
    /// # Errors
    /// [`IndexError::NoIndex`], [`IndexError::Unready`], and errors of the store.
    pub fn look_up(&self, index: &str, key: &[u8]) -> Result<Vec<Found>, IndexError> {
        let mut page = self.page(index, Range::new(key..=key), usize::MAX)?;
        while let Some(rest) = page.rest.take() {
            let next = self.page(index, rest, usize::MAX)?;
            page.found.extend(next.found);
            page.rest = next.rest;
        }
        Ok(page.found)
    }

    /// Iterates over the objects whose index keys are in a range, in their order, or in the
    /// opposite one by [`rev`](Iterator::rev). An object that keeps its key meanwhile comes exactly
    /// once.
    pub fn range<K: AsRef<[u8]>>(
        &self,
        index: &str,
        keys: impl RangeBounds<K>,
    ) -> IndexScan<'_, 'c> {
        self.scan(index, Range::new(keys))
    }

    /// Iterates over the objects whose index keys begin with these bytes, as
    /// [`IndexedTable::range`] does.
    pub fn prefix(&self, index: &str, prefix: &[u8]) -> IndexScan<'_, 'c> {
        self.scan(index, Range::prefix(prefix))
    }

    fn scan(&self, index: &str, range: Range) -> IndexScan<'_, 'c> {
        let (first, last) = (VecDeque::new(), VecDeque::new());
        IndexScan { table: self, index: index.into(), rest: Some(range), first, last }
    }

    /// Returns the first objects of a range of index keys, at most `most` of them, with the rest of
    /// the range. There may be less, and even none, although there is a rest.
    ///
    /// # Errors
    /// Those of [`IndexedTable::look_up`].
    pub fn page(&self, index: &str, range: Range, most: usize) -> Result<Page, IndexError> {
        now(self.waiting().indexes().look_up(index, range, most))
    }

    /// Returns the last objects of a range of index keys, in descending order, as
    /// [`IndexedTable::page`] returns the first ones. The rest of the range is what lies before
    /// them.
    ///
    /// # Errors
    /// Those of [`IndexedTable::look_up`].
    pub fn page_back(&self, index: &str, range: Range, most: usize) -> Result<Page, IndexError> {
        now(self.waiting().indexes().look_up_back(index, range, most))
    }
}

/// An iterator over the objects of a range of an index, from both of its ends. It ends after the
/// first error.
#[derive(Debug)]
pub struct IndexScan<'t, 'c> {
    table: &'t IndexedTable<'c>,
    index: String,
    /// The range between the objects that were read.
    rest: Option<Range>,
    /// Objects that the program has not taken: in ascending order those before the rest, and in
    /// descending order those behind it.
    first: VecDeque<Found>,
    last: VecDeque<Found>,
}

impl IndexScan<'_, '_> {
    /// Ends the scan with an error.
    fn fail(&mut self, error: IndexError) -> Result<Found, IndexError> {
        self.first.clear();
        self.last.clear();
        Err(error)
    }
}

impl Iterator for IndexScan<'_, '_> {
    type Item = Result<Found, IndexError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.first.pop_front() {
                return Some(Ok(found));
            }
            let Some(range) = self.rest.take() else { return self.last.pop_back().map(Ok) };
            match self.table.page(&self.index, range, usize::MAX) {
                Ok(page) => {
                    self.first.extend(page.found);
                    self.rest = page.rest;
                }
                Err(error) => return Some(self.fail(error)),
            }
        }
    }
}

impl DoubleEndedIterator for IndexScan<'_, '_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.last.pop_front() {
                return Some(Ok(found));
            }
            let Some(range) = self.rest.take() else { return self.first.pop_back().map(Ok) };
            match self.table.page_back(&self.index, range, usize::MAX) {
                Ok(page) => {
                    self.last.extend(page.found);
                    self.rest = page.rest;
                }
                Err(error) => return Some(self.fail(error)),
            }
        }
    }
}

impl FusedIterator for IndexScan<'_, '_> {}
