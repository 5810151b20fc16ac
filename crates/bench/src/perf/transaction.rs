//! The test `transaction` (ClusterPerf's `transaction_oneMaster`, and over several servers): the
//! time of a commit by the number of its objects, in turns with the same writes one after the
//! other.
//!
//! Both know the versions of the objects: the commit and each write fail if one has changed.

use std::cell::RefCell;
use std::time::Duration;

use sprat::kv::{Condition, TableId, Version};
use sprat_proto::Rng;
use sprat_sys::clock::Clock;

use super::basic::key;
use super::bench::Bench;
use super::measure::{Lane, Sample, in_turns};
use super::report::Row;
use super::temporary::Temporary;
use crate::fail::Fail;
use crate::store::Store;

/// Numbers of objects of one transaction.
const COUNTS: [usize; 4] = [1, 5, 10, 30];
/// Numbers of servers that have the objects.
const SERVERS: [u16; 2] = [1, 3];
/// Number of objects of each table.
const OBJECTS: u64 = 1000;

/// A client of tables on different servers.
struct Traders {
    store: Store,
    tables: Vec<TableId>,
    /// The versions of each table's objects.
    versions: Vec<Vec<Version>>,
    value: Vec<u8>,
    rng: Rng,
    clock: Clock,
}

/// Runs the test over all sizes and transports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    for servers in SERVERS {
        bench.local.serve(servers);
        for size in bench.sizes(&[100]) {
            bench.report.begin(format!(
                "transaction: commits of several objects of {size} B on {servers} servers, and as \
                 many conditional writes one after the other"
            ));
            for transport in bench.transports.clone() {
                measure(bench, servers, size, &transport)?;
            }
            bench.report.end()?;
        }
    }
    Ok(())
}

/// Measures over one transport. The coordinator places each new table on the server with the fewest
/// tablets.
fn measure(bench: &mut Bench, servers: u16, size: usize, transport: &str) -> Result<(), Fail> {
    let tables = (0..servers)
        .map(|number| Temporary::create(bench, &format!("traded{number}")))
        .collect::<Result<Vec<_>, Fail>>()?;
    let of_tables = tables.iter().map(|&(_, _, table)| table).collect();
    let traders = Traders::new(bench, of_tables, size, transport)?;
    let traders = RefCell::new(traders);
    for count in COUNTS {
        let commit = |time| traders.borrow_mut().each(time, count, Traders::commit);
        let writes = |time| traders.borrow_mut().each(time, count, Traders::write);
        let mut lanes: [Lane<'_>; 2] = [Box::new(commit), Box::new(writes)];
        let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
        for (what, figures) in ["commit", "writes"].iter().zip(&figures) {
            let test = format!("transaction.{what}.{servers}.{count}");
            bench.report.row(Row::new(test, transport, Some(count * size), figures))?;
        }
    }
    tables.into_iter().try_for_each(|(temporary, ..)| temporary.end())
}

impl Traders {
    /// Returns a client that has written all objects.
    fn new(
        bench: &mut Bench,
        tables: Vec<TableId>,
        size: usize,
        transport: &str,
    ) -> Result<Self, Fail> {
        let store = bench.store(&[transport.to_owned()])?;
        let value = vec![b'w'; size];
        let mut versions = Vec::new();
        for &table in &tables {
            let write = |object| {
                let written = store.raw().table_by_id(table).put(&key(object), &value);
                written.map_err(|error| store.explain(error, "a write"))
            };
            versions.push((0..OBJECTS).map(write).collect::<Result<_, Fail>>()?);
        }
        let (rng, clock) = (Rng::seeded(7), Clock::new());
        Ok(Self { store, tables, versions, value, rng, clock })
    }

    /// Makes one of several operations on `count` objects each, one after the other, for `time`.
    fn each(
        &mut self,
        time: Duration,
        count: usize,
        one: impl Fn(&mut Self, &[(usize, u64)]) -> Result<(), Fail>,
    ) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let bytes = (count * self.value.len()) as u64;
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut now = begin;
        while now < end || sample.operations == 0 {
            let first = self.rng.below(OBJECTS);
            // The tables take turns, and no object comes twice.
            let object = |n: usize| (n % self.tables.len(), (first + n as u64) % OBJECTS);
            let objects: Vec<_> = (0..count).map(object).collect();
            let before = self.clock.now();
            one(self, &objects)?;
            now = self.clock.now();
            sample.record(now.since(before), bytes);
        }
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }

    fn commit(&mut self, objects: &[(usize, u64)]) -> Result<(), Fail> {
        let store = &self.store;
        let explain = |error| store.explain(error, "a transaction");
        let mut transaction = store.raw().transaction();
        for &(of, object) in objects {
            let table = store.raw().table_by_id(self.tables[of]);
            let condition = Condition::if_version(self.versions[of][object as usize]);
            transaction.check(&table, &key(object), condition).map_err(explain)?;
            transaction.put(&table, &key(object), &self.value).map_err(explain)?;
        }
        let committed = transaction.commit().map_err(explain)?;
        for (&(of, object), &version) in objects.iter().zip(&committed.versions) {
            self.versions[of][object as usize] = version;
        }
        Ok(())
    }

    fn write(&mut self, objects: &[(usize, u64)]) -> Result<(), Fail> {
        for &(of, object) in objects {
            let table = self.store.raw().table_by_id(self.tables[of]);
            let version = &mut self.versions[of][object as usize];
            let written = table.put_if(&key(object), &self.value, Condition::if_version(*version));
            *version = written.map_err(|error| self.store.explain(error, "a write"))?;
        }
        Ok(())
    }
}
