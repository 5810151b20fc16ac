//! The ends of the test `single-thread`: an echo server and its client, and a cluster of one server
//! and its client, each opened within one thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sprat::internals::worker::Worker;
use sprat::kv::{Client as StoreClient, Condition, TableId};
use sprat::rpc::{Client, Server, Session};
use sprat::server::{CoordinatorOptions, ServerOptions, coordinator, shards};
use sprat_proto::node::machine::Machine as _;
use sprat_store::coordinator::Candidate;
use sprat_store::master::Master;
use sprat_sys::clock::Clock;
use sprat_sys::netns::Wire;

use crate::fail::Fail;
use crate::perf::basic::key;
use crate::perf::disk::Copies;
use crate::perf::echo::{EchoService, failure};

/// Number of objects that the test reads.
pub(super) const OBJECTS: u64 = 100;
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// The server's memory for objects, in bytes.
const MEMORY: u64 = 64 << 20;

fn locator(transport: &str, role: &str) -> String {
    let name = format!("single-{}-{role}", std::process::id());
    if transport == "fast+shm" {
        return format!("fast+shm:name={name}");
    }
    if transport == "fast+udp" {
        return "fast+udp:host=127.0.0.1,port=0".to_owned();
    }
    let host = Wire::ours(1, 2);
    if transport.ends_with("+shmnet") {
        return format!("{transport}:name={name},host={host},port=1");
    }
    let socket = std::env::temp_dir().join(format!("sprat-{name}"));
    format!("{transport}:socket={},host={host},port=1", socket.display())
}

/// Calls `work`, and calls `turn` again and again in another thread until `work` returns.
fn meanwhile(mut turn: impl FnMut() + Send, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                turn();
                std::thread::yield_now();
            }
        });
        work();
        done.store(true, Ordering::Relaxed);
    });
}

fn failed(error: std::io::Error) -> Fail {
    Fail::new(format!("cannot measure a single thread: {error}"))
}

/// An echo server and its client, which one thread runs.
pub(super) struct Echo {
    pub(super) server: Server<EchoService>,
    pub(super) client: Client,
    pub(super) sessions: Vec<Session>,
    pub(super) request: Vec<u8>,
    pub(super) reply: Vec<u8>,
}

impl Echo {
    /// Opens an echo server and a client with `sessions` sessions, each of which has answered.
    pub(super) fn open(size: usize, transport: &str, sessions: usize) -> Result<Self, Fail> {
        let mut server =
            Server::listen(&[&locator(transport, "echo")], EchoService).map_err(failed)?;
        let client = Client::new().map_err(failed)?;
        let (request, reply) = (vec![b'e'; size], Vec::with_capacity(size));
        let at = server.locators();
        let mut ends = (client, Vec::new(), reply);
        // The ends of a device find each other in several turns. So the server runs in another
        // thread here, and the client may sleep.
        let mut opened = Ok(());
        let connect = || {
            let (client, open, reply) = &mut ends;
            while open.len() < sessions && opened.is_ok() {
                opened = connect(client, &at, &request, reply).map(|session| open.push(session));
            }
        };
        meanwhile(|| _ = server.turn(), connect);
        let (client, sessions, reply) = ends;
        opened.map(|()| Self { server, client, sessions, request, reply })
    }
}

/// Opens a session and waits for its first answer. It retries, since under valgrind this may take
/// longer than a session waits.
fn connect(
    client: &mut Client,
    at: &str,
    request: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Session, Fail> {
    let begin = Clock::new().now();
    loop {
        let session = client.connect(at).map_err(failed)?;
        match client.call_into(session, request, TIMEOUT, reply) {
            Ok(()) => return Ok(session),
            Err(error) if Clock::new().now().since(begin) > 3 * TIMEOUT.as_nanos() as u64 => {
                return Err(failure(error));
            }
            Err(_) => {}
        }
    }
}

/// A cluster of one server, and its client, which one thread runs. Backups hold the replicas of the
/// server's objects.
pub(super) struct Cluster {
    pub(super) coordinator: Worker<Candidate>,
    /// The server: a worker for each of its cores.
    pub(super) shards: Vec<Worker<Master>>,
    /// The shard of each object, by the number of its key.
    pub(super) owners: Vec<usize>,
    pub(super) backups: Vec<Worker<Master>>,
    pub(super) store: StoreClient,
    pub(super) table: TableId,
    pub(super) size: usize,
}

impl Cluster {
    /// Opens a cluster, and writes the objects.
    pub(super) fn open(size: usize, transport: &str, copies: &Copies) -> Result<Self, Fail> {
        let &Copies { cores, replicas, .. } = copies;
        // The control path stays on shared memory.
        let control = |role: &str| locator("fast+shm", role);
        let at = control("coordinator");
        let mut coordinator = coordinator(&CoordinatorOptions::at(&at)).map_err(failed)?;
        let mut options = ServerOptions::new(&at, &locator(transport, "server"));
        options.control = (transport != "fast+shm").then(|| control("control"));
        options.memory_bytes = MEMORY * u64::from(cores);
        options.replicas = replicas.into();
        let mut shards = shards(&options, cores).map_err(failed)?;
        for shard in &mut shards {
            join(shard, || _ = coordinator.turn())?;
        }
        options.memory_bytes = MEMORY;
        let store = StoreClient::connect(&at).map_err(failed)?;
        let mut backups = Vec::new();
        for number in 0..replicas {
            options.listen = control(&format!("backup{number}"));
            options.control = None;
            let mut backup = sprat::server::server(&options).map_err(failed)?;
            join(&mut backup, || _ = (coordinator.turn(), turn_all(&mut shards)))?;
            backups.push(backup);
        }
        let mut table = None;
        // What is not measured runs beside the client, in another thread.
        meanwhile(
            || {
                coordinator.turn();
                turn_all(&mut shards);
                turn_all(&mut backups);
            },
            // The first tablet of a cluster is on the server that joined first.
            || table = Some(fill(&store, size)),
        );
        let table = table.transpose();
        let table = table.map_err(|error| Fail::new(format!("cannot fill a table: {error}")))?;
        let table = table.ok_or_else(|| Fail::new("no table was created"))?;
        let owners = owners(&store, table, &mut shards)?;
        Ok(Self { coordinator, shards, owners, backups, store, table, size })
    }

    /// Lets the coordinator renew leases, and the backups take what was written.
    pub(super) fn besides(&mut self) {
        self.coordinator.turn();
        turn_all(&mut self.backups);
    }
}

fn turn_all(workers: &mut [Worker<Master>]) {
    workers.iter_mut().for_each(|worker| _ = worker.turn());
}

/// Returns the shard of each object: the one that counts the read of it.
fn owners(
    store: &StoreClient,
    table: TableId,
    shards: &mut [Worker<Master>],
) -> Result<Vec<usize>, Fail> {
    let reads = |shards: &mut [Worker<Master>]| -> Vec<u64> {
        let counters = shards.iter_mut().map(|shard| shard.machine().counters());
        counters
            .map(|all| all.iter().find(|(name, _)| name == "reads").map_or(0, |c| c.1))
            .collect()
    };
    let owner = |index: u64| {
        let before = reads(shards);
        let table = store.table_by_id(table);
        table
            .read(&key(index), Condition::always(), |_, _| (), || turn_all(shards))
            .map_err(|error| Fail::new(format!("a read failed: {error}")))?;
        let after = reads(shards);
        let owner = before.iter().zip(&after).position(|(before, after)| before < after);
        owner.ok_or_else(|| Fail::new("no shard counts a read"))
    };
    (0..OBJECTS).map(owner).collect()
}

/// Waits until `server` has joined the cluster whose other machines `turn` runs.
fn join(server: &mut Worker<Master>, mut turn: impl FnMut()) -> Result<(), Fail> {
    let begin = Clock::new().now();
    while server.machine().server().is_none() {
        if Clock::new().now().since(begin) > TIMEOUT.as_nanos() as u64 {
            return Err(Fail::new(
                "cannot measure a single thread: the server did not join the cluster",
            ));
        }
        turn();
        server.turn();
    }
    Ok(())
}

fn fill(store: &StoreClient, size: usize) -> Result<TableId, sprat::kv::Error> {
    let table = store.create_table("single-thread", 1)?;
    for index in 0..OBJECTS {
        table.put(&key(index), &vec![b'v'; size])?;
    }
    Ok(table.id())
}
