//! The test `single-thread`: an echo and a read with client and server in one thread, which run one
//! after the other. No side waits. The time of such an operation says little, its number of
//! instructions is the same on every machine: `make instructions` counts them in [`one_echo`] and
//! [`one_read`], by these names. Over memif and shmnet, frames, IP and the lossy half of the
//! transport come on top.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sprat::internals::worker::Worker;
use sprat::kv::{Client as StoreClient, Condition, Table, TableId};
use sprat::rpc::{Call, Client, Server, Session};
use sprat::server::{CoordinatorOptions, ServerOptions, coordinator, server};
use sprat_store::coordinator::Coordinator;
use sprat_store::master::Master;
use sprat_sys::clock::Clock;
use sprat_sys::netns::Wire;

use super::basic::key;
use super::bench::Bench;
use super::echo::{answer, failure};
use super::measure::{Lane, Sample, in_turns};
use super::report::Row;
use crate::fail::Fail;

/// Operations of one round, which ignores the time.
const OPERATIONS: u64 = 1000;
/// Objects to read.
const OBJECTS: u64 = 100;
/// Reads between two turns of the coordinator, which renews the server's lease.
const COORDINATOR_EVERY: u64 = 16;
/// Transports that need no kernel between two ends in one thread.
const MEMORIES: [&str; 3] = ["fast+shm", "fast+memif", "fast+shmnet"];
const TIMEOUT: Duration = Duration::from_secs(10);
/// Memory for the objects, in bytes.
const MEMORY: u64 = 64 << 20;

/// Runs the test.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    bench
        .report
        .begin("single-thread: client and server in one thread, their turns one after the other");
    for size in bench.sizes(&[100]) {
        for transport in bench.transports.clone().iter().filter(|t| MEMORIES.contains(&t.as_str()))
        {
            let mut echo = Echo::open(size, transport)?;
            let mut lanes: [Lane<'_>; 1] = [Box::new(|_| echo.run())];
            let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
            bench.report.row(Row::new("singleThread.echo", transport, Some(size), &figures[0]))?;
            let mut reads = Reads::open(size, transport)?;
            let mut lanes: [Lane<'_>; 1] = [Box::new(|_| reads.run())];
            let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
            bench.report.row(Row::new("singleThread.read", transport, Some(size), &figures[0]))?;
        }
    }
    bench.report.end()
}

/// Times [`OPERATIONS`] operations.
fn times(bytes: usize, mut one: impl FnMut(u64) -> Result<(), Fail>) -> Result<Sample, Fail> {
    let (mut sample, clock) = (Sample::new(), Clock::new());
    let begin = clock.now();
    let mut last = begin;
    for i in 0..OPERATIONS {
        one(i)?;
        let now = clock.now();
        sample.record(now.since(last), bytes as u64);
        last = now;
    }
    sample.elapsed = Duration::from_nanos(last.since(begin));
    Ok(sample)
}

fn locator(transport: &str, role: &str) -> String {
    let name = format!("single-{}-{role}", std::process::id());
    if transport == "fast+shm" {
        return format!("fast+shm:name={name}");
    }
    let host = Wire::ours(1, 2);
    if transport == "fast+shmnet" {
        return format!("fast+shmnet:name={name},host={host},port=1");
    }
    let socket = std::env::temp_dir().join(format!("sprat-{name}"));
    format!("{transport}:socket={},host={host},port=1", socket.display())
}

/// Calls `work`, and meanwhile `turn` again and again in another thread.
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

type Answer = fn(Call<'_>) -> Option<Vec<u8>>;

/// An echo server and its client.
struct Echo {
    server: Server<Answer>,
    client: Client,
    session: Session,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Echo {
    fn open(size: usize, transport: &str) -> Result<Self, Fail> {
        let mut server =
            Server::listen(&[&locator(transport, "echo")], answer as Answer).map_err(failed)?;
        let mut client = Client::new().map_err(failed)?;
        let at = server.locators();
        let mut session = client.connect(&at).map_err(failed)?;
        let (request, mut reply) = (vec![b'e'; size], Vec::with_capacity(size));
        // The ends of a device find each other in several turns. So the server runs in another
        // thread here, and the client may sleep. Under valgrind that may take longer than a session
        // waits.
        let mut opened = Ok(());
        let connect = || {
            let begin = Clock::new().now();
            while let Err(error) = client.call_into(session, &request, TIMEOUT, &mut reply) {
                opened = Err(failure(error));
                if Clock::new().now().since(begin) > 3 * TIMEOUT.as_nanos() as u64 {
                    return;
                }
                match client.connect(&at) {
                    Ok(another) => session = another,
                    Err(error) => return opened = Err(failed(error)),
                }
            }
            opened = Ok(());
        };
        meanwhile(|| _ = server.turn(), connect);
        opened.map(|()| Self { server, client, session, request, reply })
    }

    fn run(&mut self) -> Result<Sample, Fail> {
        let Self { server, client, session, request, reply } = self;
        times(request.len(), |_| one_echo(client, *session, request, reply, || _ = server.turn()))
    }
}

/// Makes one echo: the function whose instructions are counted. The server runs where the client
/// would wait.
#[inline(never)]
fn one_echo(
    client: &mut Client,
    session: Session,
    request: &[u8],
    reply: &mut Vec<u8>,
    server: impl FnMut(),
) -> Result<(), Fail> {
    client.call_meanwhile(session, request, TIMEOUT, reply, server).map_err(failure)
}

/// A cluster of one server, and its client.
struct Reads {
    coordinator: Worker<Coordinator>,
    server: Worker<Master>,
    store: StoreClient,
    table: TableId,
    size: usize,
}

impl Reads {
    fn open(size: usize, transport: &str) -> Result<Self, Fail> {
        // The control path stays on shared memory.
        let control = |role| locator("fast+shm", role);
        let at = control("coordinator");
        let mut coordinator = coordinator(&CoordinatorOptions::at(&at)).map_err(failed)?;
        let mut options = ServerOptions::new(&at, &locator(transport, "server"));
        options.control = (transport != "fast+shm").then(|| control("control"));
        options.memory_bytes = MEMORY;
        let mut server = server(&options).map_err(failed)?;
        let begin = Clock::new().now();
        while server.machine().server().is_none() {
            if Clock::new().now().since(begin) > TIMEOUT.as_nanos() as u64 {
                return Err(Fail::new(
                    "cannot measure a single thread: the server did not join the cluster",
                ));
            }
            coordinator.turn();
            server.turn();
        }
        let store = StoreClient::connect(&at).map_err(failed)?;
        // The filling is not measured, so coordinator and server run in another thread.
        let mut filled = Err(Fail::new("nothing was written"));
        meanwhile(
            || {
                coordinator.turn();
                server.turn();
            },
            || {
                filled =
                    fill(&store, size).map_err(|e| Fail::new(format!("cannot fill a table: {e}")))
            },
        );
        let table = filled?;
        Ok(Self { coordinator, server, store, table, size })
    }

    fn run(&mut self) -> Result<Sample, Fail> {
        let Self { coordinator, server, store, table, size } = self;
        times(*size, |i| {
            if i.is_multiple_of(COORDINATOR_EVERY) {
                coordinator.turn();
            }
            one_read(store.table_by_id(*table), &key(i * 37 % OBJECTS), *size, || _ = server.turn())
        })
    }
}

fn fill(store: &StoreClient, size: usize) -> Result<TableId, sprat::kv::Error> {
    let table = store.create_table("single-thread", 1)?;
    for index in 0..OBJECTS {
        table.put(&key(index), &vec![b'v'; size])?;
    }
    Ok(table.id())
}

/// Makes one read: the function whose instructions are counted. The server runs where the client
/// would wait.
#[inline(never)]
fn one_read(table: Table<'_>, key: &[u8], size: usize, server: impl FnMut()) -> Result<(), Fail> {
    let read = table.read(key, Condition::always(), |_, value| value.len(), server);
    match read {
        Ok(found) if found == size => Ok(()),
        Ok(found) => Err(Fail::new(format!("an object has {found} bytes instead of {size}"))),
        Err(error) => Err(Fail::new(format!("a read failed: {error}"))),
    }
}
