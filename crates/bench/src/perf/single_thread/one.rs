//! The measurement of one operation in progress. valgrind counts the instructions of [`one_echo`]
//! and [`one_read`], which run both ends.

use std::time::Duration;

use sprat::kv::{Condition, Table};
use sprat::rpc::{Client, Session};
use sprat_sys::clock::Clock;

use super::ends::{Cluster, Echo, OBJECTS, TIMEOUT};
use crate::fail::Fail;
use crate::perf::basic::key;
use crate::perf::disk::Copies;
use crate::perf::echo::failure;
use crate::perf::measure::Sample;

/// The number of operations in one round of the benchmark; a round has no time limit.
const OPERATIONS: u64 = 1000;
/// Number of reads between two turns of the coordinator, which renews the server's lease, and of
/// the backups.
const BESIDES_EVERY: u64 = 16;

/// Runs [`OPERATIONS`] operations and times each.
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

/// Echoes one after the other, between an echo server and a client in one thread.
pub(super) struct Echoes(Echo);

impl Echoes {
    /// Opens the echo server and its client.
    pub(super) fn open(size: usize, transport: &str) -> Result<Self, Fail> {
        Echo::open(size, transport, 1).map(Self)
    }

    /// Runs one round of echoes.
    pub(super) fn run(&mut self) -> Result<Sample, Fail> {
        let Echo { server, client, sessions, request, reply } = &mut self.0;
        times(request.len(), |_| {
            one_echo(client, sessions[0], request, reply, || _ = server.turn())
        })
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

/// Reads of objects one after the other, from a cluster in the client's thread.
pub(super) struct Reads(Cluster);

impl Reads {
    /// Opens the cluster and its client, and fills the table.
    pub(super) fn open(size: usize, transport: &str, copies: &Copies) -> Result<Self, Fail> {
        Cluster::open(size, transport, copies).map(Self)
    }

    /// Runs one round of reads.
    pub(super) fn run(&mut self) -> Result<Sample, Fail> {
        let size = self.0.size;
        let cluster = &mut self.0;
        times(size, |i| {
            if i.is_multiple_of(BESIDES_EVERY) {
                cluster.besides();
            }
            let Cluster { shards, owners, store, table, .. } = &mut *cluster;
            let index = i * 37 % OBJECTS;
            // The other shards have nothing to do, on their own cores.
            let owner = &mut shards[owners[index as usize]];
            one_read(store.table_by_id(*table), &key(index), size, || _ = owner.turn())
        })
    }
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
