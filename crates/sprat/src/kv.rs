//! The store for programs: [`Store`], a client of one cluster.
//!
//! Tables hold objects: a key of up to 64 KiB, a value of up to 1 MiB, and a version that grows with every change and
//! never goes back. Reads and writes can be made conditional on the version ([`RejectRules`]); every mutation happens
//! exactly once, however often the client had to send it. Servers that are slow, restart or move are the client's
//! business until the timeout passes; an [`Error`] is final.
//!
//! A `Store` starts no thread and makes progress while one of its methods runs. It is `Send` and not `Sync`: one thread
//! at a time. The plain methods wait; the `start_` ones return an [`Op`] at once, and any number of them may be under
//! way.
//!
//! ```no_run
//! use sprat::kv::{RejectRules, Store};
//!
//! let mut store = Store::connect("fast+shm:name=sprat")?;
//! let table = store.create_table("birds", 1)?;
//! let version = store.write(table, b"sprat", b"a fish after all")?;
//! assert_eq!(store.read(table, b"sprat")?.value, b"a fish after all");
//!
//! // Only if nobody changed it meanwhile:
//! store.write_if(table, b"sprat", b"Sprattus sprattus", RejectRules::if_version(version))?;
//! assert_eq!(store.increment(table, b"seen", 1)?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Link, Machine, Output};
use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_proto::time::SECOND;
pub use sprat_store::client::{
    Answer, Config, Cursor, Error, Op, Page, PeerId, ServerInfo, TableInfo, Value, WaitedFor,
};
use sprat_store::client::{Client, Done};
pub use sprat_store::message::data::RejectRules;
pub use sprat_store::objects::number::double_text;
pub use sprat_store::types::{MAX_KEY, MAX_VALUE, TableId, Version};

use crate::doors::Doors;
pub use crate::doors::Options;
use crate::locator::Locator;
use crate::open::rng;
use crate::worker::Worker;
use sprat_sys::clock::Clock;

/// Most sessions with one server: with eight channels each, they have 64 operations in progress at a time.
const SESSIONS: u32 = 8;

/// How an operation ended, with everything in it the program's own.
pub type Outcome = Result<Answer<'static>, Error>;

/// What a read found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its version.
    pub version: Version,
    /// Its value.
    pub value: Vec<u8>,
}

/// A client of one cluster.
#[derive(Debug)]
pub struct Store {
    worker: Worker<Asking>,
    timeout_ns: u64,
}

impl Store {
    /// A client of the cluster whose coordinator is at `coordinator` (one locator, or several separated by `;`, the best
    /// first). Each operation may take 10 s.
    ///
    /// Nothing is sent yet: a coordinator that is not there shows as [`Error::Deadline`] of the first operation, which
    /// names each locator with its cause.
    ///
    /// # Errors
    /// The locator is malformed or of a kind that is not built.
    pub fn connect(coordinator: &str) -> io::Result<Self> {
        Self::with(Config::new(coordinator), Options::default())
    }

    /// As [`Store::connect`], with everything that can be set.
    ///
    /// # Errors
    /// As [`Store::connect`].
    pub fn with(config: Config, options: Options) -> io::Result<Self> {
        for locator in Locator::list(&config.coordinator)? {
            locator.kind()?;
        }
        let asking = Asking {
            client: Client::new(config, rng()?),
            done: VecDeque::new(),
            direct: Direct::default(),
        };
        let worker =
            Worker::new(asking, Doors::new(options), None, Clock::new())?.with_strands(SESSIONS);
        Ok(Self { worker, timeout_ns: 10 * SECOND })
    }

    /// How long each operation that starts from now on may take.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    }

    // Tables and servers.

    /// Creates a table whose keys are spread over `span` servers, unless there is one of that name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create_table(&mut self, name: &str, span: u32) -> Result<TableId, Error> {
        match self.ask(|client, deadline| client.create_table(name, span, deadline))? {
            Answer::Table(table) => Ok(table),
            other => Err(unexpected(&other)),
        }
    }

    /// Drops a table with all its objects.
    ///
    /// # Errors
    /// [`Error`].
    pub fn drop_table(&mut self, name: &str) -> Result<(), Error> {
        self.ask(|client, deadline| client.drop_table(name, deadline)).map(|_| ())
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`Error::TableDoesntExist`], and others.
    pub fn table(&mut self, name: &str) -> Result<TableId, Error> {
        match self.ask(|client, deadline| client.table(name, deadline))? {
            Answer::Table(table) => Ok(table),
            other => Err(unexpected(&other)),
        }
    }

    /// All tables.
    ///
    /// # Errors
    /// [`Error`].
    pub fn tables(&mut self) -> Result<Vec<TableInfo>, Error> {
        match self.ask(|client, deadline| client.list_tables(deadline))? {
            Answer::Tables(tables) => Ok(tables),
            other => Err(unexpected(&other)),
        }
    }

    /// The servers of the cluster.
    ///
    /// # Errors
    /// [`Error`].
    pub fn servers(&mut self) -> Result<Vec<ServerInfo>, Error> {
        match self.ask(|client, deadline| client.list_servers(deadline))? {
            Answer::Servers(servers) => Ok(servers),
            other => Err(unexpected(&other)),
        }
    }

    /// What the server at `locators` ([`ServerInfo::data`]; the coordinator if `None`) has counted: a JSON object.
    ///
    /// # Errors
    /// [`Error`].
    pub fn stats(&mut self, locators: Option<&str>) -> Result<Vec<u8>, Error> {
        let peer = self.peer(locators)?;
        match self.ask(|client, deadline| client.stats(peer, deadline))? {
            Answer::Bytes(bytes) => Ok(bytes.into_vec()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends bytes to the server at `locators` (the coordinator if `None`) and back.
    ///
    /// # Errors
    /// [`Error`].
    pub fn echo(&mut self, locators: Option<&str>, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let peer = self.peer(locators)?;
        match self.ask(|client, deadline| client.echo(peer, bytes, deadline))? {
            Answer::Bytes(bytes) => Ok(bytes.into_vec()),
            other => Err(unexpected(&other)),
        }
    }

    fn peer(&mut self, locators: Option<&str>) -> Result<PeerId, Error> {
        locators.map_or(Ok(PeerId::COORDINATOR), |at| self.worker.machine().client.peer(at))
    }

    // Objects.

    /// Reads an object.
    ///
    /// # Errors
    /// [`Error::ObjectDoesntExist`], and others.
    pub fn read(&mut self, table: TableId, key: &[u8]) -> Result<Object, Error> {
        self.read_with(table, key, RejectRules::default(), |version, value| Object {
            version,
            value: value.to_vec(),
        })
    }

    /// Reads an object under conditions and lends its value to `look`: the fastest way. A value that came in one packet is
    /// copied once, into a buffer that this client keeps for all such reads, so that nothing is allocated; a longer one is
    /// lent from the message that it came in.
    ///
    /// # Errors
    /// As [`Store::read`]; `look` is then not called.
    pub fn read_with<R>(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
        look: impl FnOnce(Version, &[u8]) -> R,
    ) -> Result<R, Error> {
        self.read_meanwhile(table, key, rules, look, || ())
    }

    /// As [`Store::read_with`], and `meanwhile` is called before each turn that waits: whoever counts what the processor
    /// does for one read lets the server have its turns there.
    ///
    /// # Errors
    /// As [`Store::read_with`].
    #[doc(hidden)]
    pub fn read_meanwhile<R>(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
        look: impl FnOnce(Version, &[u8]) -> R,
        mut meanwhile: impl FnMut(),
    ) -> Result<R, Error> {
        let (now, deadline) = self.times();
        let asking = self.worker.machine();
        asking.direct.op = Some(asking.client.read(table, key, rules, deadline));
        self.worker.send(now);
        loop {
            let direct = &mut self.worker.machine().direct;
            if let Some(outcome) = direct.outcome.take() {
                return outcome.map(|version| look(version, &direct.bytes[direct.skip..]));
            }
            meanwhile();
            self.worker.turn_and_rest();
        }
    }

    /// Writes an object. Returns its new version.
    ///
    /// # Errors
    /// [`Error`].
    pub fn write(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<Version, Error> {
        self.write_if(table, key, value, RejectRules::default())
    }

    /// Writes an object under conditions. Returns its new version.
    ///
    /// # Errors
    /// [`Error::WrongVersion`], [`Error::ObjectExists`] or [`Error::ObjectDoesntExist`] if a condition fails, and others.
    pub fn write_if(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
    ) -> Result<Version, Error> {
        match self.ask(|client, deadline| client.write(table, key, value, rules, deadline))? {
            Answer::Version(version) => Ok(version),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes an object. Returns the version that it had, 0 if there was none.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove(&mut self, table: TableId, key: &[u8]) -> Result<Version, Error> {
        self.remove_if(table, key, RejectRules::default())
    }

    /// Removes an object under conditions. Returns the version that it had.
    ///
    /// # Errors
    /// As [`Store::write_if`].
    pub fn remove_if(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<Version, Error> {
        match self.ask(|client, deadline| client.remove(table, key, rules, deadline))? {
            Answer::Version(version) => Ok(version),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds to an object that is a 64-bit integer in decimal text (`-5`: no sign but a minus, no
    /// leading zeros, nothing around it); a missing one counts as 0. The object becomes the sum's
    /// text. Returns the sum.
    ///
    /// # Errors
    /// [`Error::NotANumber`] and [`Error::Overflow`], and the object is as it was; others.
    pub fn increment(&mut self, table: TableId, key: &[u8], amount: i64) -> Result<i64, Error> {
        self.increment_if(table, key, amount, RejectRules::default()).map(|(sum, _)| sum)
    }

    /// As [`Store::increment`], under conditions. Returns the sum and the new version.
    ///
    /// # Errors
    /// As [`Store::write_if`], [`Error::NotANumber`] and [`Error::Overflow`].
    pub fn increment_if(
        &mut self,
        table: TableId,
        key: &[u8],
        amount: i64,
        rules: RejectRules,
    ) -> Result<(i64, Version), Error> {
        match self
            .ask(|client, deadline| client.increment_integer(table, key, amount, rules, deadline))?
        {
            Answer::Integer { version, sum } => Ok((sum, version)),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds to an object that is a double in decimal text (`-1.5e3`), under conditions; a missing
    /// one counts as 0. The object becomes the sum as [`double_text`] writes it. Returns the sum
    /// and the new version.
    ///
    /// # Errors
    /// As [`Store::increment_if`], and [`Error::NotFinite`] for an amount that is infinite or not a
    /// number.
    pub fn increment_double(
        &mut self,
        table: TableId,
        key: &[u8],
        amount: f64,
        rules: RejectRules,
    ) -> Result<(f64, Version), Error> {
        match self
            .ask(|client, deadline| client.increment_double(table, key, amount, rules, deadline))?
        {
            Answer::Double { version, sum } => Ok((sum, version)),
            other => Err(unexpected(&other)),
        }
    }

    /// Some objects of a table, from `cursor` on ([`Cursor::default`] at the start); the page says where to go on.
    /// Each object that is not changed meanwhile comes once.
    ///
    /// # Errors
    /// [`Error`].
    pub fn page(&mut self, table: TableId, cursor: Cursor) -> Result<Page<'static>, Error> {
        match self.ask(|client, deadline| client.enumerate(table, cursor, deadline))? {
            Answer::Page(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    }

    // Several operations at once. What is started goes out with the next turn, together and in few system calls.

    /// Starts a read.
    pub fn start_read(&mut self, table: TableId, key: &[u8], rules: RejectRules) -> Op {
        self.start(|client, deadline| client.read(table, key, rules, deadline))
    }

    /// Starts a write.
    pub fn start_write(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
    ) -> Op {
        self.start(|client, deadline| client.write(table, key, value, rules, deadline))
    }

    /// Starts a remove.
    pub fn start_remove(&mut self, table: TableId, key: &[u8], rules: RejectRules) -> Op {
        self.start(|client, deadline| client.remove(table, key, rules, deadline))
    }

    /// Starts an increment of an integer.
    pub fn start_increment(
        &mut self,
        table: TableId,
        key: &[u8],
        amount: i64,
        rules: RejectRules,
    ) -> Op {
        self.start(|client, deadline| client.increment_integer(table, key, amount, rules, deadline))
    }

    /// One turn: sends and receives what there is, never waits. True if there was work.
    pub fn turn(&mut self) -> bool {
        self.worker.turn()
    }

    /// One turn, resting as long as idling has earned: call it in a loop that waits for completions.
    pub fn turn_and_rest(&mut self) {
        self.worker.turn_and_rest();
    }

    /// Any operation that has ended and whose outcome has not been given; no turn is made.
    pub fn completed(&mut self) -> Option<(Op, Outcome)> {
        self.worker.machine().done.pop_front()
    }

    /// The outcome of `op` if it has ended, after one turn; each outcome is given once, and `None` from then on.
    pub fn poll(&mut self, op: Op) -> Option<Outcome> {
        self.worker.turn();
        self.worker.machine().take(op)
    }

    /// Waits for an operation that was started.
    ///
    /// # Errors
    /// [`Error::NotInProgress`] if its outcome was given before or it was cancelled, and others.
    pub fn wait(&mut self, op: Op) -> Outcome {
        loop {
            let asking = self.worker.machine();
            if let Some(outcome) = asking.take(op) {
                return outcome;
            }
            if !asking.client.is_in_progress(op) {
                return Err(Error::NotInProgress);
            }
            self.worker.turn_and_rest();
        }
    }

    /// Gives an operation up: it has no outcome any more. It may have been executed.
    pub fn cancel(&mut self, op: Op) {
        self.worker.told();
        self.worker.machine().client.cancel(op);
        self.worker.machine().take(op);
    }

    fn times(&self) -> (Instant, Instant) {
        let now = self.worker.now();
        (now, now.after(self.timeout_ns))
    }

    fn start(&mut self, begin: impl FnOnce(&mut Client, Instant) -> Op) -> Op {
        self.worker.told();
        let (_, deadline) = self.times();
        begin(&mut self.worker.machine().client, deadline)
    }

    fn ask(&mut self, begin: impl FnOnce(&mut Client, Instant) -> Op) -> Outcome {
        let (now, deadline) = self.times();
        let op = begin(&mut self.worker.machine().client, deadline);
        self.worker.send(now);
        self.wait(op)
    }
}

/// The client's machine pairs every kind of operation with its kind of answer.
fn unexpected(answer: &Answer<'_>) -> Error {
    unreachable!("no operation is answered by {answer:?} but the one that asks for it")
}

/// The read that [`Store::read_with`] waits for, and the buffer for what it finds.
#[derive(Debug, Default)]
struct Direct {
    op: Option<Op>,
    bytes: Vec<u8>,
    skip: usize,
    outcome: Option<Result<Version, Error>>,
}

impl Direct {
    fn ended(&mut self, outcome: Result<Answer<'_>, Error>) {
        self.op = None;
        self.outcome = Some(match outcome {
            Ok(Answer::Object { version, value }) => {
                self.skip = value.keep_in(&mut self.bytes);
                Ok(version)
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(error),
        });
    }
}

/// [`Client`] as a [`Machine`]: what has ended waits here for the program.
#[derive(Debug)]
struct Asking {
    client: Client,
    done: VecDeque<(Op, Outcome)>,
    direct: Direct,
}

impl Asking {
    fn ended(&mut self, done: Done<'_>) {
        if self.direct.op == Some(done.op) {
            self.direct.ended(done.outcome);
            return;
        }
        self.done.push_back((done.op, done.outcome.map(Answer::into_owned)));
    }

    fn take(&mut self, op: Op) -> Option<Outcome> {
        let at = self.done.iter().position(|(o, _)| *o == op)?;
        self.done.remove(at).map(|(_, outcome)| outcome)
    }
}

impl Slices for Asking {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Asking {
    fn request(&mut self, _: Instant, _: Caller, _: Payload<'_>, _: Instant) -> Option<Message> {
        None
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        if let Some(done) = self.client.response(now, tag, result) {
            self.ended(done);
        }
    }

    fn unreachable(&mut self, link: Link, why: &str) {
        self.client.unreachable(link, why);
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        let output = self.client.output(now);
        while let Some(done) = self.client.event() {
            self.ended(done);
        }
        output
    }

    fn spare(&mut self, buffer: Vec<u8>) {
        self.client.spare(buffer);
    }

    fn deadline(&self) -> Option<Instant> {
        self.client.deadline()
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.client.tick(now);
        false
    }
}
