//! Many operations in progress: each end is counted apart.
//!
//! ```text
//!   client turn: starts until 64 are in progress, one turn, takes what ended
//!   server turn: takes a burst of up to 32 requests and answers them
//! ```
//! The ends take turns, each shard one of its own, so that each finds the largest burst that a turn
//! takes. The functions `*_client` and `*_server` are counted; `*_ended` has one call for each
//! operation that ended.

use std::hint::black_box;
use std::time::Duration;

use sprat::internals::worker::Worker;
use sprat::kv::{Answer as Found, Client as StoreClient, TableId};
use sprat::rpc::{Client, Server, Session};
use sprat_proto::rpc::CHANNELS;
use sprat_store::master::Master;
use sprat_sys::clock::Clock;

use super::ends::{Cluster, Echo, OBJECTS, TIMEOUT};
use crate::fail::Fail;
use crate::perf::basic::key;
use crate::perf::disk::Copies;
use crate::perf::echo::{EchoService, failure};
use crate::perf::measure::Sample;

/// Number of operations that the benchmark keeps in progress.
const IN_PROGRESS: u64 = 64;
/// The number of operations in one round of the benchmark; a round has no time limit.
const OPERATIONS: u64 = 3200;

/// The progress of one round: the numbers of operations started and ended.
#[derive(Default)]
struct Progress {
    started: u64,
    ended: u64,
}

impl Progress {
    /// Returns the number of the next operation. `None` if no operation may start now.
    fn next(&mut self) -> Option<u64> {
        let free = self.started < OPERATIONS && self.started - self.ended < IN_PROGRESS;
        free.then(|| {
            self.started += 1;
            self.started - 1
        })
    }
}

/// Calls `turns`, which makes one turn of each end, until all operations of a round have ended.
fn round(
    bytes: usize,
    mut turns: impl FnMut(&mut Progress) -> Result<(), Fail>,
) -> Result<Sample, Fail> {
    let (mut progress, mut sample, clock) = (Progress::default(), Sample::new(), Clock::new());
    let begin = clock.now();
    while progress.ended < OPERATIONS {
        turns(&mut progress)?;
    }
    sample.operations = OPERATIONS;
    sample.bytes = OPERATIONS * bytes as u64;
    sample.elapsed = Duration::from_nanos(clock.now().since(begin));
    Ok(sample)
}

/// Echoes with many requests in progress, between an echo server and a client in one thread.
pub(super) struct Echoes(Echo);

impl Echoes {
    /// Opens the echo server and its client.
    pub(super) fn open(size: usize, transport: &str) -> Result<Self, Fail> {
        let mut all = Self(Echo::open(size, transport, (IN_PROGRESS as usize).div_ceil(CHANNELS))?);
        // Buffers and tables grow in a round that is not counted.
        let Echo { server, client, sessions, request, .. } = &mut all.0;
        round(size, |progress| {
            echo_turn(client, sessions, request, progress)?;
            server.turn();
            Ok(())
        })?;
        Ok(all)
    }

    /// Runs one round of echoes.
    pub(super) fn run(&mut self) -> Result<Sample, Fail> {
        let Echo { server, client, sessions, request, .. } = &mut self.0;
        round(request.len(), |progress| {
            let before = progress.ended;
            echo_client(client, sessions, request, progress)?;
            (before..progress.ended).for_each(echo_ended);
            echo_server(server);
            Ok(())
        })
    }
}

#[inline(never)]
fn echo_client(
    client: &mut Client,
    sessions: &[Session],
    request: &[u8],
    progress: &mut Progress,
) -> Result<(), Fail> {
    echo_turn(client, sessions, request, progress)
}

#[inline(always)]
fn echo_turn(
    client: &mut Client,
    sessions: &[Session],
    request: &[u8],
    progress: &mut Progress,
) -> Result<(), Fail> {
    while let Some(i) = progress.next() {
        client.start(sessions[i as usize % sessions.len()], request, TIMEOUT);
    }
    client.turn();
    while let Some((_, outcome)) = client.completed() {
        let reply = outcome.map_err(failure)?;
        assert_eq!(reply.len(), request.len(), "an echo has the request's length");
        progress.ended += 1;
    }
    Ok(())
}

#[inline(never)]
fn echo_server(server: &mut Server<EchoService>) {
    server.turn();
}

#[inline(never)]
fn echo_ended(number: u64) {
    black_box((number, "echo"));
}

/// Reads of objects, many in progress, from a cluster in the client's thread.
pub(super) struct Reads(Cluster);

impl Reads {
    /// Opens the cluster and its client, and fills the table.
    pub(super) fn open(size: usize, transport: &str, copies: &Copies) -> Result<Self, Fail> {
        let mut all = Self(Cluster::open(size, transport, copies)?);
        // Buffers and tables grow, and sessions open, in a round that is not counted.
        round(size, |progress| {
            read_turn(&all.0.store, all.0.table, size, progress)?;
            all.0.shards.iter_mut().for_each(|shard| _ = shard.turn());
            all.0.besides();
            Ok(())
        })?;
        Ok(all)
    }

    /// Runs one round of reads.
    pub(super) fn run(&mut self) -> Result<Sample, Fail> {
        let size = self.0.size;
        let cluster = &mut self.0;
        round(size, |progress| {
            let before = progress.ended;
            read_client(&cluster.store, cluster.table, size, progress)?;
            (before..progress.ended).for_each(read_ended);
            cluster.shards.iter_mut().for_each(read_server);
            cluster.besides();
            Ok(())
        })
    }
}

#[inline(never)]
fn read_client(
    store: &StoreClient,
    table: TableId,
    size: usize,
    progress: &mut Progress,
) -> Result<(), Fail> {
    read_turn(store, table, size, progress)
}

#[inline(always)]
fn read_turn(
    store: &StoreClient,
    table: TableId,
    size: usize,
    progress: &mut Progress,
) -> Result<(), Fail> {
    let table = store.table_by_id(table);
    while let Some(i) = progress.next() {
        table.start_get(&key(i * 37 % OBJECTS)).queue();
    }
    store.turn();
    let check = |outcome: Result<Found<'_>, _>| match outcome {
        Ok(Found::Object { value, .. }) if value.len() == size => Ok(()),
        Ok(other) => Err(Fail::new(format!("a read returned {other:?}"))),
        Err(error) => Err(Fail::new(format!("a read failed: {error}"))),
    };
    while let Some(checked) = store.next_completed_with(|_, outcome| check(outcome)) {
        checked?;
        progress.ended += 1;
    }
    Ok(())
}

#[inline(never)]
fn read_server(server: &mut Worker<Master>) {
    server.turn();
}

#[inline(never)]
fn read_ended(number: u64) {
    black_box((number, "read"));
}
