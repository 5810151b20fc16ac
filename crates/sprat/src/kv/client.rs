//! A client of one cluster: tables, servers, and progress.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

use sprat_proto::Instant;
use sprat_proto::rpc::Payload;
use sprat_proto::time::SECOND;
use sprat_store::client::{
    Answer, Client as Machine, Config, Counters, Error, LeaderInfo, MigrationInfo, Parts, PeerId,
    ServerInfo, TableInfo, TableOptions,
};
use sprat_store::message::recovery::Loss;
use sprat_store::types::{ServerId, TableId};
use sprat_sys::clock::Clock;

use super::machine::{Operations, Outcome, unexpected};
use super::multi::{self, Part};
use super::pauses::Pauses;
use super::pending::{OperationId, Pending};
use super::shared::Shared;
use super::table::Table;
use crate::locator::Locator;
use crate::random::rng;
use crate::transports::{Options, Transports};
use crate::worker::Worker;

/// Most sessions of a client with one server. With eight channels each, 64 operations are in
/// progress.
const SESSIONS: u16 = 8;
/// The time that each operation may take unless the program sets another, in nanoseconds.
const TIMEOUT_NS: u64 = 10 * SECOND;

/// Settings of a store's [`Client`].
#[derive(Clone, Debug)]
#[must_use = "call `connect`"]
pub struct Builder {
    config: Config,
    options: Options,
    timeout_ns: u64,
}

impl Builder {
    /// Makes the settings for a client of the cluster whose coordinator is at `coordinator`.
    pub(super) fn new(coordinator: &str) -> Self {
        Self {
            config: Config::new(coordinator),
            options: Options::default(),
            timeout_ns: TIMEOUT_NS,
        }
    }

    /// Sets the time that each operation may take. The default is 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout_ns = nanoseconds(timeout);
        self
    }

    /// Sets the time after which the client repeats a request, at the latest. The default is 2 s.
    pub fn try_timeout(mut self, timeout: Duration) -> Self {
        self.config.try_timeout_ns = nanoseconds(timeout);
        self
    }

    /// Sets the transports towards servers (`"fast+shm"`, `"tcp"`), the preferred one first. The
    /// default is all that a server names, in its order.
    pub fn transports<S: Into<String>>(mut self, transports: impl IntoIterator<Item = S>) -> Self {
        self.config.transports = transports.into_iter().map(Into::into).collect();
        self
    }

    /// Allows addresses other than loopback, although nothing is encrypted. The default is `false`.
    pub fn insecure_network(mut self, allowed: bool) -> Self {
        self.options.insecure_network = allowed;
        self
    }

    /// Sets this client's own end of a packet device: a locator with the device and the address.
    /// Each call adds one, for one protocol.
    pub fn local(mut self, locator: Locator) -> Self {
        self.options.local.push(locator);
        self
    }

    /// Sets the most operations in progress. Further ones fail with [`Error::TooManyOps`]. The
    /// default is 2²⁰.
    pub fn max_operations(mut self, most: u32) -> Self {
        self.config.max_ops = most;
        self
    }

    /// Returns the most operations in progress that the settings allow.
    pub(super) fn most_operations(&self) -> usize {
        self.config.max_ops as usize
    }

    /// Sets the transport options that only this repository's own programs use.
    #[doc(hidden)]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Makes the client. Sends nothing: a coordinator that does not answer shows as
    /// [`Error::Deadline`] of the first operation, which names each locator with its cause.
    ///
    /// # Errors
    /// A locator is malformed or names a transport that this build lacks, or no file descriptor is
    /// left.
    pub fn connect(self) -> io::Result<Client> {
        for locator in Locator::list(&self.config.coordinator)? {
            locator.kind()?;
        }
        let mut rng = rng()?;
        let pauses = Pauses::new(rng.fork());
        let operations = Operations::new(Machine::new(self.config, rng), pauses);
        let transports = Transports::new(self.options);
        let worker = Worker::with_lanes(operations, transports, None, Clock::new(), SESSIONS)?;
        Ok(Client { shared: Shared::new(worker, self.timeout_ns) })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A client of one cluster.
///
/// The methods that wait return a result. The `start_` methods of [`Table`] return a
/// [`Pending`] at once.
#[derive(Debug)]
pub struct Client {
    shared: Shared,
}

impl Client {
    /// Returns the part of the client that its tables and operations share.
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Makes a client of the cluster whose coordinator is at `coordinator`: one locator, or several
    /// with `;` between them, the preferred one first. Sends nothing.
    ///
    /// # Errors
    /// A locator is malformed or names a transport that this build lacks, or no file descriptor is
    /// left.
    pub fn connect(coordinator: &str) -> io::Result<Self> {
        Self::builder(coordinator).connect()
    }

    /// Returns the settings of a client of the cluster whose coordinator is at `coordinator`.
    pub fn builder(coordinator: &str) -> Builder {
        Builder::new(coordinator)
    }

    /// Lets the client end without making decisions on transactions known, for the C API after a
    /// panic.
    #[doc(hidden)]
    pub fn skip_farewell(&self) {
        self.shared.inner().has_farewell = false;
    }

    /// Sets the time that each operation that starts from now on may take.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.inner().timeout_ns = nanoseconds(timeout);
    }

    // Tables and servers.

    /// Creates a table with these options, or with a span: the number of servers that share its
    /// keys. Returns the existing one, whatever its options, if there is a table of that name.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::TooFewServers`], [`Error::NotDurable`], [`Error::Refused`] for
    /// an option that the cluster cannot have, and errors of the network.
    pub fn create_table(
        &self,
        name: &str,
        options: impl Into<TableOptions>,
    ) -> Result<Table<'_>, Error> {
        let options = options.into();
        let outcome = self.shared.ask(|client, at| client.create_table(name, options, at));
        table_id(outcome).map(|id| self.table_by_id(id))
    }

    /// Drops a table with all its objects.
    ///
    /// # Errors
    /// [`Error::TableDoesntExist`], [`Error::NotDurable`], and errors of the network.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.shared.ask(|client, deadline| client.drop_table(name, deadline)).map(|_| ())
    }

    /// Executes several operations on objects of any tables, in few requests. Each part has its own
    /// result, in the order of `parts`. The parts have no order among each other, and one may fail
    /// while another succeeds. Each mutation among them happens exactly once.
    ///
    /// # Errors
    /// [`Error::TooManyParts`]. A part has the errors of its operation.
    pub fn multi<'a>(&self, parts: impl IntoIterator<Item = Part<'a>>) -> Result<Parts, Error> {
        multi::parts(self.shared.ask_parts(&multi::collect(parts), Instant::NEVER))
    }

    /// Starts several operations, which [`Client::multi`] describes.
    pub fn start_multi<'a>(&self, parts: impl IntoIterator<Item = Part<'a>>) -> Pending<'_, Parts> {
        let bare = multi::collect(parts);
        let id = self.shared.start(|client, deadline| client.multi(bare, deadline));
        Pending::new(&self.shared, id, multi::parts)
    }

    /// Finds a table by its name.
    ///
    /// # Errors
    /// [`Error::TableDoesntExist`], and errors of the network.
    pub fn table(&self, name: &str) -> Result<Table<'_>, Error> {
        let outcome = self.shared.ask(|client, deadline| client.table(name, deadline));
        table_id(outcome).map(|id| self.table_by_id(id))
    }

    /// Returns the table with this id. Asks no server: operations on a table that does not exist
    /// fail with [`Error::TableDoesntExist`].
    pub fn table_by_id(&self, id: TableId) -> Table<'_> {
        Table::new(&self.shared, id)
    }

    /// Lists all tables.
    ///
    /// # Errors
    /// Errors of the network.
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        tables(self.shared.ask(|client, deadline| client.list_tables(deadline)))
    }

    /// Divides the tablet of a table that contains the key hash `at`, so that a tablet begins with
    /// it. Does nothing if one begins there. No object moves.
    ///
    /// # Errors
    /// [`Error::TableDoesntExist`], [`Error::NotDurable`], and errors of the network.
    pub fn split_tablet(&self, name: &str, at: u64) -> Result<(), Error> {
        self.shared.ask(|client, deadline| client.split_tablet(name, at, deadline)).map(|_| ())
    }

    /// Unites the tablet of a table that begins with the key hash `at` and the one before it. Does
    /// nothing if none begins there. One server must own both.
    ///
    /// # Errors
    /// [`Error::Refused`] if the tablets cannot be united now, [`Error::TableDoesntExist`],
    /// [`Error::NotDurable`], and errors of the network.
    pub fn merge_tablets(&self, name: &str, at: u64) -> Result<(), Error> {
        self.shared.ask(|client, deadline| client.merge_tablets(name, at, deadline)).map(|_| ())
    }

    /// Begins to move the keys of a table whose hashes are in `range` to the server with this index
    /// ([`ServerId::index`]), while clients use them. One tablet must contain the range. Returns
    /// the number of the migration, `None` if the server owns the keys already.
    /// [`Client::migrations`] shows the progress.
    ///
    /// # Errors
    /// [`Error::Refused`] if the keys are in several tablets, [`Error::TooFewServers`] if there is
    /// no such server, [`Error::TableDoesntExist`], and errors of the network.
    pub fn move_tablet(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
        server: u32,
    ) -> Result<Option<u64>, Error> {
        let range = range.into_inner();
        let ask =
            |client: &mut Machine, deadline| client.move_tablet(name, range, server, deadline);
        migration(self.shared.ask(ask))
    }

    /// Lists the migrations of tablets that are in progress or have ended a short while ago.
    ///
    /// # Errors
    /// Errors of the network.
    pub fn migrations(&self) -> Result<Vec<MigrationInfo>, Error> {
        migrations(self.shared.ask(|client, deadline| client.list_migrations(deadline)))
    }

    /// Lists the servers of the cluster.
    ///
    /// # Errors
    /// Errors of the network.
    pub fn servers(&self) -> Result<Vec<ServerInfo>, Error> {
        servers(self.shared.ask(|client, deadline| client.list_servers(deadline)))
    }

    /// Finds the coordinator that leads.
    ///
    /// # Errors
    /// Errors of the network.
    pub fn leader(&self) -> Result<LeaderInfo, Error> {
        match self.shared.ask(|client, deadline| client.leader(deadline))? {
            Answer::Leader(leader) => Ok(leader),
            other => unexpected(&other),
        }
    }

    /// Returns what the recovery of a crashed server loses that is blocked, because replicas of its
    /// log are missing. If `accept` is true, the recovery goes on without them: the loss is for
    /// good.
    ///
    /// # Errors
    /// [`Error::Refused`] if the recovery is not blocked, [`Error::NotDurable`], and errors of the
    /// network.
    pub fn accept_loss(&self, server: ServerId, accept: bool) -> Result<Loss, Error> {
        let ask = |client: &mut Machine, deadline| client.accept_loss(server, accept, deadline);
        match self.shared.ask(ask)? {
            Answer::Loss(loss) => Ok(loss),
            other => unexpected(&other),
        }
    }

    /// Returns the counters of the server at `locators` ([`ServerInfo::data`]), or of the
    /// coordinator if `None`: a JSON object.
    ///
    /// # Errors
    /// [`Error::NoTransport`], and errors of the network.
    pub fn stats(&self, locators: Option<&str>) -> Result<Vec<u8>, Error> {
        let peer = self.peer(locators)?;
        match self.shared.ask(|client, deadline| client.stats(peer, deadline))? {
            Answer::Bytes(bytes) => Ok(bytes.into_vec()),
            other => unexpected(&other),
        }
    }

    /// Sends bytes to the server at `locators`, or to the coordinator if `None`, and returns its
    /// answer: the same bytes.
    ///
    /// # Errors
    /// [`Error::NoTransport`], and errors of the network.
    pub fn echo(&self, locators: Option<&str>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let peer = self.peer(locators)?;
        match self.shared.ask(|client, deadline| client.echo(peer, bytes, deadline))? {
            Answer::Bytes(bytes) => Ok(bytes.into_vec()),
            other => unexpected(&other),
        }
    }

    fn peer(&self, locators: Option<&str>) -> Result<PeerId, Error> {
        let mut inner = self.shared.inner();
        locators.map_or(Ok(PeerId::COORDINATOR), |at| inner.worker.machine().client.peer(at))
    }

    /// Returns the counters of this client. Asks no server.
    pub fn counters(&self) -> Counters {
        self.shared.inner().worker.machine().client.counters()
    }

    // Progress.

    /// Makes one turn: sends and receives what there is, and never waits. Returns true if there was
    /// work.
    pub fn turn(&self) -> bool {
        self.shared.inner().worker.turn()
    }

    /// Makes one turn. After many turns without work it yields the processor, then sleeps until
    /// something happens. Call it in a loop that waits for completions.
    pub fn turn_and_rest(&self) {
        self.shared.inner().worker.turn_and_rest();
    }

    /// Returns a descriptor for a loop of the program's own (`epoll`, mio): it becomes readable
    /// when there is something to do after [`Client::prepare_to_sleep`] returned a time. Each call
    /// returns another descriptor of the same state.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.shared.inner().worker.descriptor()
    }

    /// Prepares for a wait on [`Client::descriptor`]. Returns the longest wait; then make turns
    /// until one finds no work. `None`: there is work at once, so make turns instead.
    ///
    /// Call it again before each wait, and after each start of an operation.
    pub fn prepare_to_sleep(&self) -> Option<Duration> {
        self.shared.inner().worker.prepare_to_sleep()
    }

    /// Returns the oldest outcome of the operations that [`Pending::queue`](super::Pending::queue)
    /// named. Makes no turn.
    pub fn next_completed(&self) -> Option<(OperationId, Outcome)> {
        let (id, outcome, bytes) = self.shared.inner().worker.machine().next()?;
        Some((OperationId(id), outcome.map(|kept| kept.join(Payload::Owned(bytes)))))
    }

    /// Gives up the operation that [`Pending::queue`](super::Pending::queue) named. The cluster may
    /// have executed it. [`Client::next_completed`] returns no outcome of it.
    pub fn cancel(&self, id: OperationId) {
        self.shared.cancel(id.0);
    }

    /// Lends the oldest outcome of the operations that [`Pending::queue`](super::Pending::queue)
    /// named to `f`, and returns what `f` returns. Makes no turn.
    ///
    /// The value of a read lies in a buffer that the client uses again, so that no memory is
    /// allocated for it.
    #[inline]
    pub fn next_completed_with<R>(
        &self,
        f: impl FnOnce(OperationId, Result<Answer<'_>, Error>) -> R,
    ) -> Option<R> {
        let (id, outcome, bytes) = self.shared.inner().worker.machine().next()?;
        // `f` may use the client, which must not be borrowed then.
        let lent = outcome.map(|kept| kept.join(Payload::Borrowed(&bytes)));
        let result = f(OperationId(id), lent);
        self.shared.inner().worker.machine().completions.give_back(id, bytes);
        Some(result)
    }
}

pub(super) fn table_id(outcome: Outcome) -> Result<TableId, Error> {
    match outcome? {
        Answer::Table(id) => Ok(id),
        other => unexpected(&other),
    }
}

pub(super) fn tables(outcome: Outcome) -> Result<Vec<TableInfo>, Error> {
    match outcome? {
        Answer::Tables(tables) => Ok(tables),
        other => unexpected(&other),
    }
}

pub(super) fn migration(outcome: Outcome) -> Result<Option<u64>, Error> {
    match outcome? {
        Answer::Migration(number) => Ok(number),
        other => unexpected(&other),
    }
}

pub(super) fn migrations(outcome: Outcome) -> Result<Vec<MigrationInfo>, Error> {
    match outcome? {
        Answer::Migrations(migrations) => Ok(migrations),
        other => unexpected(&other),
    }
}

pub(super) fn servers(outcome: Outcome) -> Result<Vec<ServerInfo>, Error> {
    match outcome? {
        Answer::Servers(servers) => Ok(servers),
        other => unexpected(&other),
    }
}
