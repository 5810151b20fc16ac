//! The test `writeAsyncSync`: a write that waits for its replicas follows one that does not.
//!
//! ```text
//! first    a table of durability async, or one that waits ── values of several sizes
//! second   a table that waits, on the same server         ── 100 B
//! ```
//!
//! The second write shares its server and its log with the first one, so its time shows what the
//! first one has left to do. In ClusterPerf a write itself is asynchronous; here its table is.

use std::time::Duration;

use sprat::kv::{TableDurability, TableId, TableOptions};
use sprat_sys::clock::Clock;

use super::super::bench::Bench;
use super::super::measure::Sample;
use super::super::migration::relocate;
use super::super::temporary::Temporary;
use super::plan::writing;
use super::tables::key;
use crate::fail::Fail;
use crate::store::Store;

/// Bytes of the first value, if the options name none.
const SIZES: [usize; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
/// Bytes of the second value.
const SECOND: usize = 100;
/// Bytes of a key.
const KEY: usize = 30;

/// The write of a pair whose time counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timed {
    First,
    Second,
}

/// Runs the test over all transports.
pub(super) fn run(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    let sizes = bench.sizes(&SIZES);
    bench.report.begin(format!(
        "{name}: a write of {SECOND} B that waits for replicas, behind one that waits (sync) and \
         one that does not (async)"
    ));
    let (sync, mut store, sync_table) = Temporary::create(bench, "sync")?;
    let options = TableOptions { span: 1, durability: TableDurability::Async };
    let (lagging, _, async_table) = Temporary::over(bench, "async", options)?;
    let server = store.tablets(sync.name())?[0].server;
    if store.tablets(lagging.name())?[0].server != server {
        relocate(&mut store, lagging.name(), server.index)?;
    }
    for transport in bench.transports.clone() {
        let store = bench.store(std::slice::from_ref(&transport))?;
        for (kind, first) in [("sync", sync_table), ("async", async_table)] {
            for &size in &sizes {
                let pair = Pair { store: &store, tables: [first, sync_table], size };
                for (which, timed, bytes) in
                    [("first", Timed::First, size), ("second", Timed::Second, SECOND)]
                {
                    let lane = Box::new(|time| pair.write_for(time, timed));
                    let compared = bench.compare(&transport, writing(KEY, bytes), lane)?;
                    let test = format!("{name}.{kind}.{which}");
                    bench.report.row(compared.row(&test, &transport, size))?;
                }
            }
        }
    }
    bench.report.end()?;
    lagging.end()?;
    sync.end()
}

/// Two writes, one after the other.
struct Pair<'a> {
    store: &'a Store,
    /// The tables of the first and of the second write.
    tables: [TableId; 2],
    /// Bytes of the first value.
    size: usize,
}

impl Pair<'_> {
    /// Repeats the pair for `time`. Returns a sample with the times of one of its writes.
    fn write_for(&self, time: Duration, timed: Timed) -> Result<Sample, Fail> {
        let clock = Clock::new();
        let (first, second) = (vec![b'1'; self.size], [b'2'; SECOND]);
        let keys = [key(0, KEY), key(1, KEY)];
        let mut sample = Sample::new();
        let begin = clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut now = begin;
        while now < end || sample.operations == 0 {
            let before = clock.now();
            self.write(self.tables[0], &keys[0], &first)?;
            let between = clock.now();
            self.write(self.tables[1], &keys[1], &second)?;
            now = clock.now();
            match timed {
                Timed::First => sample.record(between.since(before), first.len() as u64),
                Timed::Second => sample.record(now.since(between), second.len() as u64),
            }
        }
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }

    fn write(&self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Fail> {
        let written = self.store.raw().table_by_id(table).put(key, value);
        written.map(drop).map_err(|error| self.store.explain(error, "a write"))
    }
}
