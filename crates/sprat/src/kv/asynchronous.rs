//! The store's client for asynchronous programs, on any runtime.
//!
//! A thread owns the [`Client`] and makes its progress. Tasks send it operations through a queue
//! and wait for the outcome that it promised. The thread ends with the last [`AsyncClient`] and the
//! last operation in progress. If it panics, what is in progress ends with [`Error::ClientEnded`].

use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sprat_proto::{Instant, Rng};
use sprat_store::client::{
    Client as Machine, Cursor, Error, MigrationInfo, Op, Page, Parts, ServerInfo, TableInfo,
    TableOptions, TabletInfo,
};
use sprat_store::types::{TableId, Version};

use super::answers::{
    expiring_or_none, integer, length, object_or_none, page, removed, swapped, tablets, version,
};
use super::client::{Builder, Client, migration, migrations, servers, table_id, tables};
use super::condition::Condition;
use super::known::{KnownIndexes, Sealed};
use super::machine::Outcome;
use super::multi::{self, OwnedParts, Part};
use super::object::{Number, Object, in_ms};
use super::operation::Operation;
use super::pending::OperationId;
use crate::promise::{Promise, Queue, Requests, promise, requests};

/// A function that starts an operation in the client's thread.
type Begin = Box<dyn FnOnce(&mut Machine, Instant) -> Op + Send>;

/// The work that a task asks the client's thread for.
enum Work {
    /// The start of an operation of the store.
    Operation(Begin),
    /// A pause behind a number of tries of a transaction, before its deadline.
    Pause(u32, Instant),
}

/// A request of a task to the client's thread: work to start, and the promise of its outcome.
struct Request {
    work: Work,
    promise: Promise<Outcome>,
}

/// A client of one cluster for asynchronous programs.
///
/// It belongs to no runtime: its futures wake their task from a thread of the client. It is `Send`
/// and `Sync`. Clones share the thread and its sessions.
///
/// ```no_run
/// use sprat::kv::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder("fast+shm:name=sprat").connect_async()?;
/// let birds = client.create_table("birds", 1).await?;
/// birds.put(b"sprat", b"a fish after all").await?;
/// assert!(birds.get(b"eagle").await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncClient {
    requests: Requests<Request>,
    timeout_ns: u64,
    rng: Arc<Mutex<Rng>>,
}

impl Builder {
    /// Makes a client for asynchronous programs and starts its thread. Sends nothing.
    ///
    /// # Errors
    /// Those of [`Builder::connect`], or the thread could not be started.
    pub fn connect_async(self) -> io::Result<AsyncClient> {
        let most = self.most_operations();
        let client = self.connect()?;
        let timeout_ns = client.shared().inner().timeout_ns;
        let rng = Arc::new(Mutex::new(client.shared().fork_rng()));
        let waker = client.shared().inner().worker.waker();
        let (requests, queue) = requests(waker, most);
        thread::Builder::new().name("sprat-kv".into()).spawn(move || run(&client, &queue))?;
        Ok(AsyncClient { requests, timeout_ns, rng })
    }
}

/// Serves the tasks until no client is left and no operation is in progress.
fn run(client: &Client, queue: &Queue<Request>) {
    let mut promises: Vec<Option<(OperationId, Promise<Outcome>)>> = Vec::new();
    let mut in_progress = 0_usize;
    loop {
        let open = loop {
            match queue.take() {
                Ok(Some(Request { promise, .. })) if promise.is_abandoned() => {}
                Ok(Some(Request { work, promise })) => {
                    let id = match work {
                        Work::Operation(begin) => Some(client.shared().start_queued(begin)),
                        Work::Pause(tries, deadline) => {
                            client.shared().start_pause(tries, deadline)
                        }
                    };
                    let Some(id) = id.map(OperationId) else {
                        promise.give(Err(Error::NotInProgress));
                        continue;
                    };
                    if id.index() >= promises.len() {
                        promises.resize_with(id.index() + 1, || None);
                    }
                    promises[id.index()] = Some((id, promise));
                    in_progress += 1;
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if !open && in_progress == 0 {
            return;
        }
        client.turn_and_rest();
        while let Some((id, outcome)) = client.next_completed() {
            let promise = promises.get_mut(id.index()).and_then(|p| p.take_if(|p| p.0 == id));
            if let Some((_, promise)) = promise {
                in_progress -= 1;
                promise.give(outcome);
            }
        }
    }
}

impl AsyncClient {
    pub(super) fn start<T>(
        &self,
        begin: impl FnOnce(&mut Machine, Instant) -> Op + Send + 'static,
        convert: impl FnOnce(Outcome) -> Result<T, Error> + Send + 'static,
    ) -> Operation<T> {
        self.ask(Work::Operation(Box::new(begin)), convert)
    }

    fn ask<T>(
        &self,
        work: Work,
        convert: impl FnOnce(Outcome) -> Result<T, Error> + Send + 'static,
    ) -> Operation<T> {
        let (promise, promised) = promise();
        if self.requests.send(Request { work, promise }) {
            Operation::new(promised, convert)
        } else {
            Operation::new(promised, |_| Err(Error::TooManyOps))
        }
    }

    /// Returns a source of random numbers.
    pub(super) fn fork_rng(&self) -> Rng {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).fork()
    }

    /// Returns the deadline of an operation that starts now.
    pub(super) fn deadline(&self) -> Instant {
        sprat_sys::clock::now().after(self.timeout_ns)
    }

    /// Pauses behind this number of tries of a transaction. Fails at once if the pause would end
    /// past the deadline.
    pub(super) fn pause(&self, tries: u32, deadline: Instant) -> Operation<()> {
        self.ask(Work::Pause(tries, deadline), |outcome| outcome.map(|_| ()))
    }

    /// Creates a table with these options, or with a span: the number of servers that share its
    /// keys. Returns the existing one, whatever its options, if there is a table of that name.
    ///
    /// # Errors
    /// Those of [`Client::create_table`].
    pub fn create_table(
        &self,
        name: &str,
        options: impl Into<TableOptions>,
    ) -> Operation<AsyncTable> {
        let (client, name, options) = (self.clone(), name.to_owned(), options.into());
        self.start(
            move |machine, deadline| machine.create_table(&name, options, deadline),
            move |outcome| table_id(outcome).map(|id| client.table_by_id(id)),
        )
    }

    /// Finds a table by its name.
    ///
    /// # Errors
    /// Those of [`Client::table`].
    pub fn table(&self, name: &str) -> Operation<AsyncTable> {
        let (client, name) = (self.clone(), name.to_owned());
        self.start(
            move |machine, deadline| machine.table(&name, deadline),
            move |outcome| table_id(outcome).map(|id| client.table_by_id(id)),
        )
    }

    /// Returns the table with this id. Asks no server.
    #[must_use]
    pub fn table_by_id(&self, id: TableId) -> AsyncTable {
        AsyncTable { client: self.clone(), id }
    }

    /// Drops a table with all its objects.
    ///
    /// # Errors
    /// Those of [`Client::drop_table`].
    pub fn drop_table(&self, name: &str) -> Operation<()> {
        let name = name.to_owned();
        self.start(
            move |machine, deadline| machine.drop_table(&name, deadline),
            |outcome| outcome.map(|_| ()),
        )
    }

    /// Executes several operations on objects of any tables, in few requests. Each part has its own
    /// result, in the order of `parts`.
    ///
    /// # Errors
    /// Those of [`Client::multi`].
    pub fn multi<'a>(&self, parts: impl IntoIterator<Item = Part<'a>>) -> Operation<Parts> {
        let parts = OwnedParts::new(parts);
        self.start(move |machine, deadline| machine.multi(parts.iter(), deadline), multi::parts)
    }

    /// Lists all tables.
    ///
    /// # Errors
    /// Those of [`Client::tables`].
    pub fn tables(&self) -> Operation<Vec<TableInfo>> {
        self.start(|machine, deadline| machine.list_tables(deadline), tables)
    }

    /// Divides a tablet of a table in two.
    ///
    /// # Errors
    /// Those of [`Client::split_tablet`].
    pub fn split_tablet(&self, name: &str, at: u64) -> Operation<()> {
        let name = name.to_owned();
        self.start(
            move |machine, deadline| machine.split_tablet(&name, at, deadline),
            |outcome| outcome.map(|_| ()),
        )
    }

    /// Unites two tablets of a table.
    ///
    /// # Errors
    /// Those of [`Client::merge_tablets`].
    pub fn merge_tablets(&self, name: &str, at: u64) -> Operation<()> {
        let name = name.to_owned();
        self.start(
            move |machine, deadline| machine.merge_tablets(&name, at, deadline),
            |outcome| outcome.map(|_| ()),
        )
    }

    /// Begins to move keys of a table to another server.
    ///
    /// # Errors
    /// Those of [`Client::move_tablet`].
    pub fn move_tablet(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
        server: u32,
    ) -> Operation<Option<u64>> {
        let (name, range) = (name.to_owned(), range.into_inner());
        self.start(
            move |machine, deadline| machine.move_tablet(&name, range, server, deadline),
            migration,
        )
    }

    /// Lists the migrations of tablets.
    ///
    /// # Errors
    /// Those of [`Client::migrations`].
    pub fn migrations(&self) -> Operation<Vec<MigrationInfo>> {
        self.start(|machine, deadline| machine.list_migrations(deadline), migrations)
    }

    /// Lists the servers of the cluster.
    ///
    /// # Errors
    /// Those of [`Client::servers`].
    pub fn servers(&self) -> Operation<Vec<ServerInfo>> {
        self.start(|machine, deadline| machine.list_servers(deadline), servers)
    }
}

impl std::fmt::Debug for AsyncClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncClient").finish_non_exhaustive()
    }
}

/// One table of an [`AsyncClient`]'s cluster.
#[derive(Clone, Debug)]
pub struct AsyncTable {
    client: AsyncClient,
    id: TableId,
}

impl Sealed for AsyncTable {
    fn table_id(&self) -> TableId {
        self.id()
    }

    fn known(&self) -> Option<&Arc<KnownIndexes>> {
        None
    }
}

impl AsyncTable {
    /// Returns the table's id.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Lists the tablets of the table with their owners.
    ///
    /// # Errors
    /// Those of [`Table::tablets`](super::Table::tablets).
    pub fn tablets(&self) -> Operation<Vec<TabletInfo>> {
        let id = self.id;
        self.client.start(move |machine, deadline| machine.list_tablets(id, deadline), tablets)
    }

    /// Reads some of the table's objects, from `cursor` on ([`Cursor::default`] at the start).
    /// [`Page::next`] is the cursor of the next page.
    ///
    /// # Errors
    /// Those of [`Table::page`](super::Table::page).
    pub fn page(&self, cursor: Cursor) -> Operation<Page<'static>> {
        let id = self.id;
        self.client.start(move |machine, deadline| machine.enumerate(id, cursor, deadline), page)
    }

    /// Reads an object. Returns `None` if there is none.
    ///
    /// # Errors
    /// Those of [`Table::get`](super::Table::get).
    pub fn get(&self, key: &[u8]) -> Operation<Option<Object>> {
        self.get_if(key, Condition::always())
    }

    /// Reads an object if a condition holds.
    ///
    /// # Errors
    /// Those of [`Table::get_if`](super::Table::get_if).
    pub fn get_if(&self, key: &[u8], condition: Condition) -> Operation<Option<Object>> {
        let (id, key) = (self.id, key.to_vec());
        self.client.start(
            move |machine, deadline| machine.read(id, &key, condition.0, deadline),
            object_or_none,
        )
    }

    /// Reads an object and the rest of its lifetime, which is `None` if the object does not expire.
    ///
    /// # Errors
    /// Those of [`Table::read_expiring`](super::Table::read_expiring).
    pub fn read_expiring(&self, key: &[u8]) -> Operation<Option<(Object, Option<Duration>)>> {
        let (id, key, rules) = (self.id, key.to_vec(), Condition::always().0);
        self.client.start(
            move |machine, deadline| machine.read_expiring(id, &key, rules, deadline),
            expiring_or_none,
        )
    }

    /// Writes an object. Returns its new version.
    ///
    /// # Errors
    /// Those of [`Table::put`](super::Table::put).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Operation<Version> {
        self.put_if(key, value, Condition::always())
    }

    /// Writes an object if a condition holds. Returns its new version.
    ///
    /// # Errors
    /// Those of [`Table::put_if`](super::Table::put_if).
    pub fn put_if(&self, key: &[u8], value: &[u8], condition: Condition) -> Operation<Version> {
        let (id, key, value) = (self.id, key.to_vec(), value.to_vec());
        self.client.start(
            move |machine, deadline| machine.write_owned(id, &key, value, condition.0, deadline),
            version,
        )
    }

    /// Writes an object that expires. Returns its new version.
    ///
    /// # Errors
    /// Those of [`Table::put_expiring`](super::Table::put_expiring).
    pub fn put_expiring(&self, key: &[u8], value: &[u8], lifetime: Duration) -> Operation<Version> {
        self.put_expiring_if(key, value, lifetime, Condition::always())
    }

    /// Writes an object that expires if a condition holds. Returns its new version.
    ///
    /// # Errors
    /// Those of [`Table::put_expiring_if`](super::Table::put_expiring_if).
    pub fn put_expiring_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
        condition: Condition,
    ) -> Operation<Version> {
        let (id, key, value, lifetime) = (self.id, key.to_vec(), value.to_vec(), in_ms(lifetime));
        let rules = condition.0;
        self.client.start(
            move |machine, deadline| {
                machine.write_expiring(id, &key, &value, lifetime, rules, deadline)
            },
            version,
        )
    }

    /// Gives an object another lifetime, from now on. With `None` it does not expire any more.
    /// Returns its new version.
    ///
    /// # Errors
    /// Those of [`Table::touch`](super::Table::touch).
    pub fn touch(&self, key: &[u8], lifetime: Option<Duration>) -> Operation<Version> {
        self.touch_if(key, lifetime, Condition::always())
    }

    /// Gives an object another lifetime as [`AsyncTable::touch`] does, if a condition holds.
    ///
    /// # Errors
    /// Those of [`Table::touch_if`](super::Table::touch_if).
    pub fn touch_if(
        &self,
        key: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Operation<Version> {
        let (id, key, lifetime) = (self.id, key.to_vec(), lifetime.map(in_ms));
        self.client.start(
            move |machine, deadline| machine.touch(id, &key, lifetime, condition.0, deadline),
            version,
        )
    }

    /// Removes an object. Returns the version that it had, `None` if there was none.
    ///
    /// # Errors
    /// Those of [`Table::remove`](super::Table::remove).
    pub fn remove(&self, key: &[u8]) -> Operation<Option<Version>> {
        self.remove_if(key, Condition::always())
    }

    /// Removes an object if a condition holds. Returns the version that it had, `None` if there was
    /// none.
    ///
    /// # Errors
    /// Those of [`Table::remove_if`](super::Table::remove_if).
    pub fn remove_if(&self, key: &[u8], condition: Condition) -> Operation<Option<Version>> {
        let (id, key) = (self.id, key.to_vec());
        self.client.start(
            move |machine, deadline| machine.remove(id, &key, condition.0, deadline),
            removed,
        )
    }

    /// Writes an object. Returns its new version, and the object that was there before.
    ///
    /// # Errors
    /// Those of [`Table::swap`](super::Table::swap).
    pub fn swap(&self, key: &[u8], value: &[u8]) -> Operation<(Version, Option<Object>)> {
        self.swap_if(key, value, None, Condition::always())
    }

    /// Writes an object as [`AsyncTable::swap`] does, if a condition holds. It expires after this
    /// time, unless that is `None`.
    ///
    /// # Errors
    /// Those of [`Table::swap_if`](super::Table::swap_if).
    pub fn swap_if(
        &self,
        key: &[u8],
        value: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Operation<(Version, Option<Object>)> {
        let (id, key, value, lifetime) =
            (self.id, key.to_vec(), value.to_vec(), lifetime.map(in_ms));
        let rules = condition.0;
        self.client.start(
            move |machine, deadline| machine.swap(id, &key, &value, lifetime, rules, deadline),
            swapped,
        )
    }

    /// Adds bytes to the end of an object's value. Returns the new length and the new version.
    ///
    /// # Errors
    /// Those of [`Table::append`](super::Table::append).
    pub fn append(&self, key: &[u8], bytes: &[u8]) -> Operation<Number<u64>> {
        let (id, key, bytes, rules) =
            (self.id, key.to_vec(), bytes.to_vec(), Condition::always().0);
        self.client.start(
            move |machine, deadline| machine.append(id, &key, &bytes, rules, deadline),
            length,
        )
    }

    /// Reads several objects in few requests. Returns a result for each key, in the order of the
    /// keys.
    ///
    /// # Errors
    /// Those of [`Table::multi_get`](super::Table::multi_get).
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Operation<Vec<Result<Option<Object>, Error>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let parts = keys.iter().map(|key| Part::get(self.id, key.as_ref()));
        self.start_many(parts, multi::objects)
    }

    /// Writes several objects, pairs of key and value, in few requests. Returns a result for each,
    /// in the order of the pairs.
    ///
    /// # Errors
    /// Those of [`Table::multi_put`](super::Table::multi_put).
    pub fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        objects: impl IntoIterator<Item = (K, V)>,
    ) -> Operation<Vec<Result<Version, Error>>> {
        let objects: Vec<(K, V)> = objects.into_iter().collect();
        let parts = objects.iter();
        let parts = parts.map(|(key, value)| Part::put(self.id, key.as_ref(), value.as_ref()));
        self.start_many(parts, multi::versions)
    }

    /// Removes several objects in few requests. Returns a result for each key, in the order of the
    /// keys.
    ///
    /// # Errors
    /// Those of [`Table::multi_remove`](super::Table::multi_remove).
    pub fn multi_remove<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Operation<Vec<Result<Option<Version>, Error>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let parts = keys.iter().map(|key| Part::remove(self.id, key.as_ref()));
        self.start_many(parts, multi::removals)
    }

    /// Adds to several objects, pairs of key and amount, in few requests. Returns a result for
    /// each, in the order of the pairs.
    ///
    /// # Errors
    /// Those of [`Table::multi_increment`](super::Table::multi_increment).
    pub fn multi_increment<K: AsRef<[u8]>>(
        &self,
        amounts: impl IntoIterator<Item = (K, i64)>,
    ) -> Operation<Vec<Result<Number<i64>, Error>>> {
        let amounts: Vec<(K, i64)> = amounts.into_iter().collect();
        let parts = amounts.iter().map(|(key, by)| Part::increment(self.id, key.as_ref(), *by));
        self.start_many(parts, multi::integers)
    }

    fn start_many<'a, T: 'static>(
        &self,
        parts: impl Iterator<Item = Part<'a>>,
        convert: fn(Outcome) -> Result<T, Error>,
    ) -> Operation<T> {
        let parts = OwnedParts::new(parts);
        self.client.start(move |machine, deadline| machine.multi(parts.iter(), deadline), convert)
    }

    /// Adds to an object that is a 64-bit integer in decimal text. Returns the sum and the new
    /// version.
    ///
    /// # Errors
    /// Those of [`Table::increment`](super::Table::increment).
    pub fn increment(&self, key: &[u8], amount: i64) -> Operation<Number<i64>> {
        let (id, key, rules) = (self.id, key.to_vec(), Condition::always().0);
        self.client.start(
            move |machine, deadline| machine.increment_integer(id, &key, amount, rules, deadline),
            integer,
        )
    }
}
