//! The test `indexScalability`: look-ups a second by the number of servers that hold the index, and
//! by the number of clients.
//!
//! ```text
//! servers 1 … N   a table with a tablet on each, and its index with as many
//! clients         connect · start · look-ups for the time of the round · one sample each
//! ```
//!
//! ClusterPerf divides the index into indexlets, whose number it is given, by the index keys. Ours
//! spreads the nodes of an index over as many tablets as the table has, by the hash of a node's
//! key, so that the tablets take the place of the indexlets. Each client is a thread with a
//! connection of its own. With one look-up in progress it is a blocking client, with several an
//! asynchronous one, whose look-ups are tasks.

use std::time::Duration;

use sprat::kv::{AsyncClient, AsyncIndexedTable, AsyncTable};
use sprat_proto::{Instant, Rng};
use sprat_sys::clock::Clock;

use super::super::basic::key;
use super::super::bench::{Bench, in_threads, one_of_many, one_of_many_async};
use super::super::measure::{Lane, Sample, in_turns};
use super::super::row::{Distribution, Row};
use super::super::tasks::{Tasks, block_on};
use super::super::temporary::Temporary;
use super::objects::{Client, Keys, NAMES, Shape, Work, only};
use super::sizes;
use crate::fail::Fail;
use crate::store::Store;

/// Runs the test with each number of servers and of clients, over all transports.
pub(crate) fn run(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    for size in sizes(bench, 1)? {
        let objects = bench.objects(size);
        bench.report.begin(format!(
            "{name}: look-ups among {objects} objects of {size} B, {} in progress from each \
             client, by the number of servers that hold the index and of clients",
            bench.outstanding
        ));
        let shape = Shape { objects, size, keys: 1 };
        for servers in 1..=bench.servers {
            bench.local.serve(servers);
            for transport in bench.transports.clone() {
                measure(bench, (name, servers), shape, &transport)?;
            }
        }
        bench.report.end()?;
    }
    Ok(())
}

/// Measures one number of servers with each number of clients, over one transport.
fn measure(
    bench: &mut Bench,
    (name, servers): (&str, u16),
    shape: Shape,
    transport: &str,
) -> Result<(), Fail> {
    let coordinator = bench.coordinator()?;
    let (temporary, _, table) = Temporary::over(bench, "indexed", u32::from(servers))?;
    let store = bench.store(&[transport.to_owned()])?;
    let mut owner = Client::fill(&store, table, shape)?;
    owner.create_index()?;
    let (keys, outstanding) = (owner.keys(), bench.outstanding);
    for count in bench.clients.clone() {
        let lane: Lane<'_> = Box::new(|time| {
            let samples = in_threads(count, |number, start| {
                let store = one_of_many(&coordinator, transport)?;
                if outstanding > 1 {
                    let client = one_of_many_async(&coordinator, transport)?;
                    let table = client.table_by_id(table);
                    let mut looker = Looker::open(&store, &client, &table, (keys, shape), number)?;
                    looker.repeat(1, Duration::ZERO)?;
                    start.wait();
                    return looker.repeat(outstanding, time);
                }
                let mut client = Client::reader(&store, table, shape, keys, number)?;
                client.repeat(Work::LookUp, Duration::ZERO)?;
                start.wait();
                client.repeat(Work::LookUp, time)
            })?;
            Ok(Sample::of_all(&samples))
        });
        let figures = in_turns(&mut [lane], bench.rounds, bench.time)?;
        let test = format!("{name}.{servers}.{count}");
        let row = Row::new(test, transport, Some(shape.size), &figures[0]).under_load();
        bench.report.row_with(row, &Distribution::of(&figures[0]))?;
    }
    drop(owner);
    drop(store);
    temporary.end()
}

/// An asynchronous client that looks up random keys.
struct Looker<'l> {
    /// The store that explains errors.
    store: &'l Store,
    table: AsyncIndexedTable,
    /// The index keys of each object.
    keys: &'l [Keys],
    /// Bytes of a value.
    size: usize,
    rng: Rng,
    clock: Clock,
}

impl<'l> Looker<'l> {
    /// Makes the client with this number of a table that another client has filled.
    fn open(
        store: &'l Store,
        client: &AsyncClient,
        table: &AsyncTable,
        (keys, shape): (&'l [Keys], Shape),
        number: usize,
    ) -> Result<Self, Fail> {
        let table = block_on(client.indexed(table));
        let table = table.map_err(|error| store.explain_index(error, "a table"))?;
        let (rng, clock) = (Rng::seeded(number as u64), Clock::new());
        Ok(Self { store, table, keys, size: shape.size, rng, clock })
    }

    /// Makes look-ups for `time`, and at least one, with `outstanding` in progress.
    fn repeat(&mut self, outstanding: usize, time: Duration) -> Result<Sample, Fail> {
        let Self { store, table, keys, size, rng, clock } = self;
        let (mut sample, mut tasks) = (Sample::new(), Tasks::new());
        let begin = clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut since: Vec<Instant> = vec![begin; outstanding];
        let mut free: Vec<u32> = (0..outstanding as u32).collect();
        let (mut now, mut started) = (begin, 0);
        loop {
            while (now < end || started == 0)
                && let Some(tag) = free.pop()
            {
                let object = rng.below(keys.len() as u64);
                let index_key = key(keys[object as usize][0]);
                let (store, table) = (&*store, &*table);
                since[tag as usize] = clock.now();
                tasks.start(tag, async move {
                    let found = table.look_up(NAMES[0], &index_key).await;
                    let found = found.map_err(|error| store.explain_index(error, "a look-up"))?;
                    only(&found, object).map(|()| object)
                });
                started += 1;
            }
            if free.len() == outstanding {
                break;
            }
            tasks.turn();
            now = clock.now();
            while let Some((tag, found)) = tasks.ended() {
                found?;
                sample.record(now.since(since[tag as usize]), *size as u64);
                free.push(tag);
            }
        }
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }
}
