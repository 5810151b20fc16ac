//! The test `recovery`: a server with objects is killed, and other servers recover them from their
//! replicas.
//!
//! ```text
//! SIGKILL ──► noticed ──────────► recovered ─────────────────► whole
//!    by the kernel        replay     all objects readable         all replicas exist again
//! ```
//!
//! Each round has a cluster of its own: three servers, with one replica of each object. All objects
//! are in one table of one server. The coordinator runs on the same machine, so that the kernel
//! tells it of the end of the server. On another machine it would wait for the end of the lease and
//! its margin, which the report names.

use std::time::{Duration, Instant};

use sprat::kv::{Condition, ServerInfo};
use sprat_store::coordinator;

use super::basic::{Objects, Set, key};
use super::bench::Bench;
use super::local;
use super::report::Row;
use crate::cluster::{Cluster, Plan, ports};
use crate::fail::Fail;
use crate::store::Store;
use crate::{memory, out, process};

/// Number of the cluster's servers.
const SERVERS: u16 = 3;
/// Term of the servers' leases.
const SHORT_LEASE: Duration = Duration::from_millis(500);
/// Bytes of an object that is filled when the options name no size.
const SIZE: usize = 100;
/// Least memory of a server, in bytes.
const LEAST_MEMORY: u64 = 64 << 20;
/// Most bytes of an entry in the log beside the value.
const OVERHEAD: u64 = 80;
/// Number of objects that the test reads after the recovery.
const READS: u64 = 1000;
/// Longest time that the test waits for a recovery, and for the replicas after it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The times of one recovery since the kill, and the number of recovered objects.
#[derive(Clone, Copy, Debug)]
struct Times {
    noticed: Duration,
    recovered: Duration,
    whole: Duration,
    objects: u64,
}

/// Runs the test `recovery`.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let size = bench.sizes(&[SIZE])[0];
    let bytes = bench.bytes;
    bench.report.begin(format!(
        "recovery: a server with {} in objects of {size} B is killed; {SERVERS} servers, one \
         replica",
        out::bytes(bytes)
    ));
    let count = (bytes / size as u64).max(1);
    // A log has a key and heads with each object, and needs room for the cleaner.
    let needed = (count * (size as u64 + OVERHEAD) / 2 * 3).max(LEAST_MEMORY);
    memory::check(2 * needed, SERVERS)?;
    let mut all = Vec::new();
    for round in 0..bench.rounds {
        all.push(process::unpinned(|| one(bench, round, size, count, needed))?);
    }
    rows(bench, size, &all)?;
    bench.report.end()
}

/// Fills a server of a new cluster, kills it, and takes the times of its recovery.
fn one(bench: &mut Bench, round: u16, size: usize, count: u64, memory: u64) -> Result<Times, Fail> {
    let plan = Plan {
        name: &format!("recovery-{}-{round}", std::process::id()),
        port: local::free_ports(ports(SERVERS))?,
        servers: SERVERS,
        memory,
        leaving: 0,
        replicas: 1,
        durability: None,
        directory: None,
        state: None,
        core: None,
        host: None,
        etcd: None,
        hosts: Vec::new(),
        besides: Vec::new(),
        lease: SHORT_LEASE,
        rebalance: None,
        tracepoints: false,
        populate: true,
        scrub: None,
        metrics: None,
        log_format: None,
    };
    let mut cluster = Cluster::start(&plan)?;
    bench.coordinator = Some(cluster.coordinator().to_owned());
    let set = Set::fill(bench, size, count)?;
    let mut store = Store::over(cluster.coordinator(), &[])?;
    let mut objects = set.client(Store::over(cluster.coordinator(), &[])?, 1)?;
    let owner = store.servers()?.into_iter().find(|server| server.tablets > 0);
    let owner = owner.ok_or_else(|| Fail::new("no server has the table"))?;
    wait(&mut store, |store| store.is_whole(SERVERS.into()))?;
    let killed = Instant::now();
    cluster.kill(&owner.data)?;
    let is_owner = |server: &ServerInfo| server.server == owner.server;
    let noticed = wait(&mut store, |store| Ok(!store.servers()?.iter().any(is_owner)))? - killed;
    let recovered = wait(&mut store, |store| {
        let tables = store.tables()?;
        if tables.iter().any(|table| table.lost > 0) {
            return Err(Fail::new("the objects are lost"));
        }
        Ok(tables.iter().all(|table| table.recovering == 0))
    })? - killed;
    check(&mut objects)?;
    let whole = wait(&mut store, |store| store.is_whole(usize::from(SERVERS) - 1))? - killed;
    set.end()?;
    bench.coordinator = None;
    Ok(Times { noticed, recovered, whole, objects: count })
}

/// Reads objects that are spread over the table.
fn check(objects: &mut Objects) -> Result<(), Fail> {
    for index in 0..READS.min(objects.count) {
        let index = index * objects.count / READS.min(objects.count);
        let (value, _) = objects.store.read(objects.table, &key(index), Condition::always())?;
        if value.len() != objects.value.len() {
            return Err(Fail::new(format!("object {index} reads back other than it was written")));
        }
    }
    Ok(())
}

/// Waits until `done` returns true. Returns that time.
fn wait(
    store: &mut Store,
    mut done: impl FnMut(&mut Store) -> Result<bool, Fail>,
) -> Result<Instant, Fail> {
    let mut result = Ok(false);
    let ended = process::wait_until(PATIENCE, || {
        result = done(store);
        !matches!(result, Ok(false))
    });
    match result {
        Err(fail) => Err(fail),
        Ok(_) if ended => Ok(Instant::now()),
        Ok(_) => Err(Fail::new("the recovery does not end").next("see sprat status")),
    }
}

fn rows(bench: &mut Bench, size: usize, all: &[Times]) -> Result<(), Fail> {
    let terms = coordinator::Config::default();
    let lease_ms = SHORT_LEASE.as_secs_f64() * 1e3 + terms.server_margin_ns as f64 / 1e6;
    let median = |of: &dyn Fn(&Times) -> f64| {
        let mut values: Vec<_> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let replay_s = |t: &Times| (t.recovered - t.noticed).as_secs_f64().max(1e-3);
    let objects = all[0].objects as f64;
    for (name, value, unit) in [
        ("lease", lease_ms, "ms"),
        ("noticed", median(&|t| ms(t.noticed)), "ms"),
        ("recovered", median(&|t| ms(t.recovered)), "ms"),
        ("whole", median(&|t| ms(t.whole)), "ms"),
        ("bytes", median(&|t| objects * size as f64 / replay_s(t)) / 1e6, "MB/s"),
        ("objects", median(&|t| objects / replay_s(t)), "1/s"),
    ] {
        bench.report.row(Row::value(format!("recovery.{name}"), "fast+shm", value, unit))?;
    }
    bench.report.print(
        "Times since the kill: noticed by the coordinator, all objects readable, and all replicas \
         made anew.\n\
         A coordinator on another machine notices when the lease and its margin have passed. bytes \
         and objects are\n\
         those of the values, over the time from noticed to recovered. Medians over the rounds. \
         The servers\n\
         touch their memory at the start (--populate).\n",
    )
}
