//! The test `migration`: a table moves to another server while a client reads it.
//!
//! ```text
//! idle: to the second server ─► peak ─► before: half of the peak
//!   ─► during the migration to the third server: the same load ─► after
//! ```
//!
//! Each round has a cluster of its own: three servers without replicas. The load is open: each read
//! has its time, whatever became of those before, and its latency counts from there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sprat::kv::{MigrationState, OperationId};
use sprat_proto::Instant as Time;

use super::basic::{Objects, Set, key};
use super::bench::Bench;
use super::local;
use super::measure::{Figures, Sample, median};
use super::report::Row;
use crate::cluster::{Cluster, Plan, ports};
use crate::fail::Fail;
use crate::store::Store;
use crate::{memory, out, process};

/// Number of the cluster's servers.
const SERVERS: u16 = 3;
/// Bytes of an object when the options name no size.
const SIZE: usize = 1000;
/// Least memory of a server, in bytes.
const LEAST_MEMORY: u64 = 64 << 20;
/// Most bytes of an entry in the log beside the value.
const OVERHEAD: u64 = 80;
/// Most reads in progress.
const READS: usize = 64;
/// Time of the loads before and after the migration.
const PHASE: Duration = Duration::from_secs(1);
/// Longest time that the test waits for the migration.
const PATIENCE: Duration = Duration::from_secs(120);

/// The figures of one migration.
struct Figure {
    /// Reads a second with [`READS`] in progress.
    peak: f64,
    /// The reads before, during and after the migration.
    reads: [Sample; 3],
    /// The times of the migration without and with the load.
    idle: Duration,
    took: Duration,
}

/// Runs the test `migration`.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let size = bench.sizes(&[SIZE])[0];
    let bytes = bench.bytes;
    bench.report.begin(format!(
        "migration: a table with {} in objects of {size} B moves to another server, under reads at \
         half of the peak rate",
        out::bytes(bytes)
    ));
    let count = (bytes / size as u64).max(1);
    let needed = (count * (size as u64 + OVERHEAD) / 2 * 3).max(LEAST_MEMORY);
    memory::check(needed, SERVERS)?;
    let mut all = Vec::new();
    for round in 0..bench.rounds {
        all.push(process::unpinned(|| one(bench, round, size, count, needed))?);
    }
    rows(bench, size, count, &all)?;
    bench.report.end()
}

/// Fills a table of a new cluster and moves it to the other server.
fn one(
    bench: &mut Bench,
    round: u16,
    size: usize,
    count: u64,
    memory: u64,
) -> Result<Figure, Fail> {
    let name = format!("migration-{}-{round}", std::process::id());
    let plan = Plan {
        memory,
        populate: true,
        ..Plan::new(&name, local::free_ports(ports(SERVERS))?, SERVERS)
    };
    let cluster = Cluster::start(&plan)?;
    bench.coordinator = Some(cluster.coordinator().to_owned());
    let set = Set::fill(bench, size, count)?;
    let mut objects = set.client(Store::over(cluster.coordinator(), &[])?, 1)?;
    let mut store = Store::over(cluster.coordinator(), &[])?;
    let owner = store.tablets(set.name())?[0].server;
    let others = store.servers()?.into_iter().map(|server| server.server);
    let others: Vec<_> = others.filter(|&server| server != owner).collect();
    let [second, third] = others[..] else {
        return Err(Fail::new("the other servers are not up"));
    };
    let idle = relocate(&mut store, set.name(), second.index)?;

    let mut load = |rate, more: &dyn Fn() -> bool| reads(&mut objects, rate, more);
    let for_a_while = || {
        let end = Instant::now() + PHASE;
        move || Instant::now() < end
    };
    let peak = load(None, &for_a_while())?;
    let peak = peak.operations as f64 / peak.elapsed.as_secs_f64();
    let rate = Some(peak / 2.0);
    let before = load(rate, &for_a_while())?;
    let is_moving = AtomicBool::new(true);
    let (during, took) = thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let took = relocate(&mut store, set.name(), third.index);
            is_moving.store(false, Ordering::Release);
            took
        });
        let during = load(rate, &|| is_moving.load(Ordering::Acquire));
        Ok::<_, Fail>((during?, mover.join().expect("it panics nowhere")?))
    })?;
    let after = load(rate, &for_a_while())?;
    set.end()?;
    bench.coordinator = None;
    Ok(Figure { peak, reads: [before, during, after], idle, took })
}

/// Moves a table to another server. Returns the time that this takes.
pub(super) fn relocate(store: &mut Store, name: &str, target: u32) -> Result<Duration, Fail> {
    let begin = Instant::now();
    let number = store.move_tablet(name, 0..=u64::MAX, target)?;
    let mut result = Ok(None);
    let ended = process::wait_until(PATIENCE, || {
        let all = store.migrations();
        result = all.map(|all| all.into_iter().find(|one| Some(one.number) == number));
        match &result {
            Ok(Some(one)) => matches!(one.state, MigrationState::Done | MigrationState::Failed),
            _ => true,
        }
    });
    let took = begin.elapsed();
    match result? {
        Some(one) if one.state == MigrationState::Done => Ok(took),
        Some(one) if ended => Err(Fail::new(format!("the migration failed: {}", one.reason))),
        _ => Err(Fail::new("the migration does not end").next("see sprat table migrations")),
    }
}

/// Reads random objects while `more` returns true: `rate` a second, or as many as possible.
fn reads(
    objects: &mut Objects,
    rate: Option<f64>,
    more: &dyn Fn() -> bool,
) -> Result<Sample, Fail> {
    let mut sample = Sample::new();
    let mut since: Vec<Option<(OperationId, Time)>> = Vec::new();
    let begin = objects.clock.now();
    let (mut now, mut started, mut in_flight) = (begin, 0u64, 0);
    let mut goes_on = true;
    while goes_on || in_flight > 0 {
        goes_on = goes_on && more();
        while goes_on && in_flight < READS {
            let due = match rate {
                Some(rate) => begin.after((started as f64 / rate * 1e9) as u64),
                None => now,
            };
            if due > now {
                break;
            }
            let object = objects.rng.below(objects.count);
            let op = objects.table().start_get(&key(object)).queue();
            if op.index() >= since.len() {
                since.resize(op.index() + 1, None);
            }
            since[op.index()] = Some((op, due));
            (started, in_flight) = (started + 1, in_flight + 1);
        }
        objects.store.raw().turn();
        now = objects.clock.now();
        while let Some((op, outcome)) = objects.store.raw().next_completed() {
            outcome.map_err(|error| objects.store.explain(error, "a read"))?;
            in_flight -= 1;
            if let Some((_, since)) = since.get_mut(op.index()).and_then(Option::take) {
                sample.record(now.since(since), objects.value.len() as u64);
            }
        }
    }
    sample.elapsed = Duration::from_nanos(now.since(begin));
    Ok(sample)
}

fn rows(bench: &mut Bench, size: usize, count: u64, all: &[Figure]) -> Result<(), Fail> {
    let of = |value: &dyn Fn(&Figure) -> f64| median(all.iter().map(value)).unwrap_or_default();
    let seconds = |figure: &Figure| figure.took.as_secs_f64().max(1e-6);
    let idle = |figure: &Figure| figure.idle.as_secs_f64().max(1e-6);
    let mb = count as f64 * size as f64 / 1e6;
    for (name, value, unit) in [
        ("peak", of(&|figure| figure.peak), "1/s"),
        ("time", of(&|figure| seconds(figure) * 1e3), "ms"),
        ("idle.bytes", of(&|figure| mb / idle(figure)), "MB/s"),
        ("bytes", of(&|figure| mb / seconds(figure)), "MB/s"),
        ("objects", of(&|figure| count as f64 / seconds(figure)), "1/s"),
    ] {
        bench.report.row(Row::value(format!("migration.{name}"), "fast+shm", value, unit))?;
    }
    for (i, phase) in ["before", "during", "after"].iter().enumerate() {
        let samples: Vec<_> = all.iter().map(|figure| figure.reads[i].clone()).collect();
        let name = format!("migration.read.{phase}");
        bench.report.row(Row::new(name, "fast+shm", Some(size), &Figures::of(&samples)))?;
    }
    bench.report.print(
        "bytes and objects are those of the values over the time of the migration, idle that \
         without reads. Reads are at\n\
         half of the peak rate, each counted from its time. Client, coordinator and servers share \
         the cores of this machine.\n",
    )
}
