//! The test `restart`: a cluster with a directory stops and starts again, and its servers restart
//! one after the other under load.
//!
//! ```text
//! start ──► all objects readable                     stop of all, and start again
//! SIGTERM ─► ends ─► starts again ─► whole ─► next   one server after the other
//! ```
//!
//! The floor of the start is the time to read the replicas raw. They come from the kernel's page
//! cache, there and in the cluster, since the machine does not restart. The floor of the rolling
//! restart is the lease: a server that is killed keeps clients waiting at least that long.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sprat::kv::Condition;

use super::basic::{Objects, Set, key};
use super::bench::Bench;
use super::local;
use super::report::Row;
use crate::cluster::{Cluster, LEASE, Plan, frames_file, ports};
use crate::fail::{Fail, Named as _};
use crate::folder::Folder;
use crate::store::Store;
use crate::{out, process};

/// Number of the cluster's servers.
const SERVERS: u16 = 3;
/// Least memory of a server, in bytes.
const LEAST_MEMORY: u64 = 64 << 20;
/// Most bytes of an entry in the log beside the value.
const OVERHEAD: u64 = 80;
/// Number of objects that the test reads after the start.
const READS: u64 = 1000;
/// The number of counters that clients increment during the rolling restart.
const COUNTERS: usize = 30;
/// Longest time that the test waits for a step.
const PATIENCE: Duration = Duration::from_secs(120);
/// The size of a raw read.
const CHUNK: usize = 1 << 20;
/// The size of the blocks that `stat(2)` counts.
const STAT_BLOCK: u64 = 512;

/// The figures of one round.
#[derive(Clone, Copy, Debug)]
struct Times {
    raw: Duration,
    raw_bytes: u64,
    stopped: Duration,
    readable: Duration,
    /// The longest time from one server's SIGTERM until the cluster was whole again.
    whole: Duration,
    /// The longest time that an increment or a read took during the rolling restart.
    longest: Duration,
    operations: u64,
}

/// Runs the test `restart`.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let size = bench.sizes(&[100])[0];
    bench.report.begin(format!(
        "restart: a cluster with {} in objects of {size} B stops and starts; {SERVERS} servers, \
         one replica, in a directory",
        out::bytes(bench.bytes)
    ));
    let mut all = Vec::new();
    for round in 0..bench.rounds {
        all.push(process::unpinned(|| one(bench, round, size))?);
    }
    rows(bench, &all)?;
    bench.report.end()
}

/// Fills a new cluster, and takes the times of its restarts.
fn one(bench: &mut Bench, round: u16, size: usize) -> Result<Times, Fail> {
    let count = (bench.bytes / size as u64).max(1);
    let folder = Folder::new(&std::env::temp_dir(), "sprat-restart-")?;
    let plan = Plan {
        name: &format!("restart-{}-{round}", std::process::id()),
        port: local::free_ports(ports(SERVERS))?,
        servers: SERVERS,
        leaving: 0,
        // A log has a key and heads with each object, and needs room for the cleaner.
        memory: (count * (size as u64 + OVERHEAD) / 2 * 3).max(LEAST_MEMORY),
        replicas: 1,
        durability: None,
        directory: Some(folder.path()),
        state: None,
        core: None,
        host: None,
        etcd: None,
        hosts: Vec::new(),
        besides: Vec::new(),
        lease: LEASE,
        rebalance: None,
        tracepoints: false,
        populate: false,
        scrub: None,
        metrics: None,
        log_format: None,
    };
    let mut cluster = Cluster::start(&plan)?;
    bench.coordinator = Some(cluster.coordinator().to_owned());
    let set = Set::fill(bench, size, count)?;
    let mut store = Store::over(cluster.coordinator(), &[])?;
    wait(&mut cluster, &mut store, |store| store.is_whole(SERVERS.into()))?;
    drop(store);
    let begin = Instant::now();
    cluster.end();
    let stopped = begin.elapsed();
    let (raw, raw_bytes) = read_raw(folder.path())?;
    let begin = Instant::now();
    let mut cluster = Cluster::start(&plan)?;
    let mut store = Store::over(cluster.coordinator(), &[])?;
    wait(&mut cluster, &mut store, |store| {
        let tables = store.tables()?;
        Ok(tables.iter().all(|table| table.lost + table.recovering + table.unheard == 0))
    })?;
    check(&mut set.client(Store::over(cluster.coordinator(), &[])?, 1)?)?;
    let readable = begin.elapsed();
    wait(&mut cluster, &mut store, |store| store.is_whole(SERVERS.into()))?;
    let (whole, longest, operations) = rolling(&mut cluster, &mut store)?;
    set.end()?;
    bench.coordinator = None;
    Ok(Times { raw, raw_bytes, stopped, readable, whole, longest, operations })
}

/// Reads the servers' files from start to end, as far as they have blocks. Returns the time and the
/// number of bytes.
fn read_raw(directory: &Path) -> Result<(Duration, u64), Fail> {
    let mut buffer = vec![0; CHUNK];
    let (begin, mut bytes) = (Instant::now(), 0);
    for index in 1..=SERVERS {
        let path = frames_file(directory, index);
        let file = File::open(&path).named(path.display())?;
        let taken = fs::metadata(&path).named(path.display())?.blocks() * STAT_BLOCK;
        let mut file = file.take(taken);
        loop {
            match file.read(&mut buffer).named(path.display())? {
                0 => break,
                n => bytes += n as u64,
            }
        }
    }
    Ok((begin.elapsed(), bytes))
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

/// Restarts the servers one after the other, each when the cluster is whole again, while a client
/// increments and reads. Returns the longest time until the cluster was whole, the longest time of
/// an operation, and the number of operations.
fn rolling(cluster: &mut Cluster, store: &mut Store) -> Result<(Duration, Duration, u64), Fail> {
    let table = store.create_table("counters", u32::from(SERVERS))?;
    let at = cluster.coordinator().to_owned();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut store = Store::over(&at, &[])?;
            store.set_timeout(PATIENCE);
            let (mut sums, mut longest, mut operations) = ([0; COUNTERS], Duration::ZERO, 0);
            for number in (0..COUNTERS).cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("counter {number}");
                sums[number] += 1;
                let begin = Instant::now();
                let sum = store.increment(table, key.as_bytes(), 1, Condition::always())?.value;
                longest = longest.max(begin.elapsed());
                let begin = Instant::now();
                let (read, _) = store.read(table, key.as_bytes(), Condition::always())?;
                longest = longest.max(begin.elapsed());
                operations += 2;
                if sum != sums[number] || read != sum.to_string().as_bytes() {
                    let wrong = format!("increment {} of {key} has the sum {sum}", sums[number]);
                    return Err(Fail::new(wrong));
                }
            }
            Ok((longest, operations))
        });
        let whole = (1..=SERVERS).try_fold(Duration::ZERO, |longest, index| {
            let before = store.servers()?;
            let begin = Instant::now();
            cluster.terminate(index);
            wait(cluster, store, |store| {
                let now = store.servers()?;
                let is_another = now.iter().any(|s| before.iter().all(|b| b.server != s.server));
                Ok(is_another && store.is_whole(SERVERS.into())?)
            })?;
            Ok(longest.max(begin.elapsed()))
        });
        done.store(true, Ordering::Relaxed);
        let ended = client.join().map_err(|_| Fail::new("the client of the load panicked"))?;
        let (longest, operations) = ended?;
        Ok((whole?, longest, operations))
    })
}

/// Waits until `done` returns true. Starts the cluster's processes again that end meanwhile.
fn wait(
    cluster: &mut Cluster,
    store: &mut Store,
    mut done: impl FnMut(&mut Store) -> Result<bool, Fail>,
) -> Result<(), Fail> {
    let mut last = Ok(false);
    let ended = process::wait_until(PATIENCE, || {
        cluster.restart(Instant::now());
        // A server that ends does not answer.
        last = done(store);
        matches!(last, Ok(true))
    });
    match last {
        _ if ended => Ok(()),
        Err(fail) => Err(fail),
        Ok(_) => Err(Fail::new("the restart does not end").next("see sprat status")),
    }
}

fn rows(bench: &mut Bench, all: &[Times]) -> Result<(), Fail> {
    let median = |of: &dyn Fn(&Times) -> f64| {
        let mut values: Vec<_> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    for (name, value, unit) in [
        ("floor", median(&|t| ms(t.raw)), "ms"),
        ("raw", median(&|t| t.raw_bytes as f64 / t.raw.as_secs_f64().max(1e-6)) / 1e6, "MB/s"),
        ("stopped", median(&|t| ms(t.stopped)), "ms"),
        ("readable", median(&|t| ms(t.readable)), "ms"),
        ("rolling.floor", ms(LEASE), "ms"),
        ("rolling.longest", median(&|t| ms(t.longest)), "ms"),
        ("rolling.whole", median(&|t| ms(t.whole)), "ms"),
        ("rolling.operations", median(&|t| t.operations as f64), ""),
    ] {
        bench.report.row(Row::value(format!("restart.{name}"), "fast+shm", value, unit))?;
    }
    bench.report.print(
        "stopped is the end of all processes; readable the time from the start until all objects \
         can be read.\n\
         floor reads the servers' files raw, from the page cache. rolling: each server ends by \
         SIGTERM and starts\n\
         again, the next one when the cluster is whole: the longest increment or read, and the \
         longest time until\n\
         whole. Its floor is what a killed server costs, the lease. Medians over the rounds.\n",
    )
}
