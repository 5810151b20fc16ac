//! The tests `read-write`, `read-throughput` and `write-throughput` (ClusterPerf's `basic`,
//! `readThroughput` and `writeThroughput`): random reads and writes of objects.
//!
//! Keys have 30 bytes. Each size has a table, which the test fills first. A read sends a key and
//! conditions and receives the object; a write sends the object. Kernel TCP and the baselines move
//! as many bytes each way.

use std::time::Duration;

use sprat::kv::{Table, TableId};
use sprat::trace::TraceRing;
use sprat_proto::Rng;
use sprat_sys::clock::Clock;

use super::bench::Bench;
use super::lanes::{self, Exchange};
use super::measure::{Lane, Sample, in_turns};
use super::report::Row;
use super::temporary::Temporary;
use crate::fail::Fail;
use crate::store::Store;
use crate::{memory, out};

/// Bytes of an object's key.
pub(super) const KEY: usize = 30;
/// Bytes of a read request before its key, of a write request before its key, and of a reply before
/// its value.
const HEADS: [usize; 3] = [32, 60, 12];
/// Times that each object of a large set is written before the measurement. The log takes new
/// memory until it has twice the live bytes, and the first access to a page takes the kernel or the
/// hypervisor longer than a write.
pub(super) const FILLINGS: u64 = 3;
/// Bytes of values from which on a set is large.
pub(super) const LARGE_SET: u64 = 64 << 20;
/// Bytes of writes in progress while a table is filled: as many as one server accepts without a
/// long queue.
pub(super) const FILLING_BYTES: usize = 4 << 20;

/// Returns the number of bytes that a read of an object of `size` bytes moves in each direction.
pub(crate) fn reading(size: usize) -> Exchange {
    Exchange { request: HEADS[0] + KEY, reply: HEADS[2] + size }
}

fn writing(size: usize) -> Exchange {
    Exchange { request: HEADS[1] + KEY + size, reply: HEADS[2] }
}

/// Runs the test `read-write` over all sizes and transports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    for size in bench.sizes(&[100, 1000, 10_000, 100_000, 1_000_000]) {
        let count = bench.objects(size);
        bench.report.begin(format!(
            "basic: random reads and writes among {count} objects of {size} B, keys of {KEY} B"
        ));
        let footprint = count as usize * (size + 50);
        if footprint as u64 > memory::available() {
            let (needed, there) = (out::bytes(footprint as u64), out::bytes(memory::available()));
            return Err(Fail::usage(format!(
                "{count} objects of {size} B take {needed}, and there are {there}"
            ))
            .next("choose fewer with --objects"));
        }
        let mut lanes: [Lane<'_>; 1] = [lanes::memory(footprint)];
        let memory = in_turns(&mut lanes, bench.rounds, bench.time / 5)?;
        bench.report.row(Row::new("floor.memory", "memory", Some(footprint), &memory[0]))?;
        one_size(bench, size, count)?;
        bench.report.end()?;
    }
    Ok(())
}

/// Fills a table, and measures reads and writes of its objects over each transport.
pub(crate) fn one_size(bench: &mut Bench, size: usize, count: u64) -> Result<(), Fail> {
    let set = Set::fill(bench, size, count)?;
    for transport in bench.transports.clone() {
        let mut objects = set.over(bench, &transport)?;
        let reads: Lane<'_> = Box::new(|time| objects.read(time));
        let compared = bench.compare(&transport, reading(size), reads)?;
        bench.report.row(compared.row("basic.read", &transport, size))?;
        let writes: Lane<'_> = Box::new(|time| objects.write(time));
        if let Some(floors) = bench.local.copies().floors(KEY + size, 1) {
            let durable = floors.compare(writes, bench.rounds, bench.time)?;
            durable.report(&mut bench.report, ("basic.write", &transport), size)?;
            continue;
        }
        let compared = bench.compare(&transport, writing(size), writes)?;
        bench.report.row(compared.row("basic.write", &transport, size))?;
    }
    set.end()
}

/// A table of objects of one size, which is dropped with this value.
pub(crate) struct Set {
    temporary: Temporary,
    size: usize,
    count: u64,
}

/// The seed of a test with one client. A fixed one makes runs alike.
const SEED: u64 = 7;

impl Set {
    /// Creates the table and fills it, over the first transport that the server offers. The
    /// measurement does not include this.
    pub(crate) fn fill(bench: &mut Bench, size: usize, count: u64) -> Result<Self, Fail> {
        let (temporary, store, table) = Temporary::create(bench, &size.to_string())?;
        let set = Self { temporary, size, count };
        let value = vec![b'v'; size];
        let window = (FILLING_BYTES / (size + 200)).clamp(1, 64) as u64;
        let writes = if count * size as u64 >= LARGE_SET { FILLINGS * count } else { count };
        let (mut started, mut finished) = (0, 0);
        while finished < writes {
            while started < writes && started - finished < window {
                let table = store.raw().table_by_id(table);
                table.start_put(&key(started % count), &value).queue();
                started += 1;
            }
            store.raw().turn_and_rest();
            while let Some((_, outcome)) = store.raw().next_completed() {
                outcome.map_err(|error| store.explain(error, "filling the table"))?;
                finished += 1;
            }
        }
        Ok(set)
    }

    /// Opens a client that reads and writes this table over `transport`.
    pub(crate) fn over(&self, bench: &mut Bench, transport: &str) -> Result<Objects, Fail> {
        let store = bench.store(&[transport.to_owned()])?;
        self.client(store, SEED)
    }

    /// Opens a client that reads and writes this table over `transport` and records tracepoints.
    pub(crate) fn over_traced(
        &self,
        bench: &mut Bench,
        transport: &str,
        trace: &TraceRing,
    ) -> Result<Objects, Fail> {
        let store = bench.traced_store(transport, trace)?;
        self.client(store, SEED)
    }

    /// Makes a client of this table, which draws its objects from `seed`.
    pub(crate) fn client(&self, mut store: Store, seed: u64) -> Result<Objects, Fail> {
        let table = store.table(self.temporary.name())?;
        let (rng, clock) = (Rng::seeded(seed), Clock::new());
        Ok(Objects { store, table, count: self.count, value: vec![b'w'; self.size], rng, clock })
    }

    /// Returns the name of the table.
    pub(crate) fn name(&self) -> &str {
        self.temporary.name()
    }

    /// Drops the table of the measurement.
    pub(crate) fn end(self) -> Result<(), Fail> {
        self.temporary.end()
    }
}

/// Returns the key of object `index`.
pub(crate) fn key(index: u64) -> [u8; KEY] {
    let mut key = [b'0'; KEY];
    let (mut rest, mut at) = (index, KEY);
    while rest > 0 && at > 0 {
        at -= 1;
        key[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A client that reads and writes the objects of one table.
pub(crate) struct Objects {
    pub(crate) store: Store,
    pub(crate) table: TableId,
    pub(crate) count: u64,
    pub(crate) value: Vec<u8>,
    pub(crate) rng: Rng,
    pub(crate) clock: Clock,
}

impl Objects {
    /// Returns the client's handle of the measured table.
    pub(crate) fn table(&self) -> Table<'_> {
        self.store.raw().table_by_id(self.table)
    }

    /// Reads random objects, one after the other, for `time`.
    pub(crate) fn read(&mut self, time: Duration) -> Result<Sample, Fail> {
        self.each(time, |objects, key| {
            let read = objects.table().get_with(key, |_, value| value.len());
            let found = read.map_err(|error| objects.store.explain(error, "a read"))?;
            if found != Some(objects.value.len()) {
                return Err(Fail::new(format!(
                    "an object has {} bytes instead of {}",
                    found.unwrap_or_default(),
                    objects.value.len()
                )));
            }
            Ok(())
        })
    }

    /// Overwrites random objects, one after the other, for `time`.
    pub(crate) fn write(&mut self, time: Duration) -> Result<Sample, Fail> {
        self.each(time, |objects, key| {
            let written = objects.table().put(key, &objects.value);
            written.map(|_| ()).map_err(|error| objects.store.explain(error, "a write"))
        })
    }

    fn each(
        &mut self,
        time: Duration,
        mut one: impl FnMut(&mut Self, &[u8]) -> Result<(), Fail>,
    ) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let bytes = self.value.len() as u64;
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut now = begin;
        while now < end || sample.operations == 0 {
            let key = key(self.rng.below(self.count));
            let before = self.clock.now();
            one(self, &key)?;
            now = self.clock.now();
            sample.record(now.since(before), bytes);
        }
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }

    /// Reads random objects for `time`, with `outstanding` reads in progress. It counts the reads
    /// and does not time them.
    pub(crate) fn read_many(&mut self, outstanding: usize, time: Duration) -> Result<Sample, Fail> {
        self.many(Kind::Reads, outstanding, time)
    }

    /// Reads or overwrites random objects for `time`, with `outstanding` operations in progress. It
    /// counts the operations and does not time them.
    fn many(&mut self, kind: Kind, outstanding: usize, time: Duration) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let (mut now, mut in_flight) = (begin, 0);
        while now < end || in_flight > 0 {
            while now < end && in_flight < outstanding {
                let key = key(self.rng.below(self.count));
                match kind {
                    Kind::Reads => self.table().start_get(&key).queue(),
                    Kind::Writes => self.table().start_put(&key, &self.value).queue(),
                };
                in_flight += 1;
            }
            self.store.raw().turn_and_rest();
            while let Some((_, outcome)) = self.store.raw().next_completed() {
                outcome.map_err(|error| self.store.explain(error, kind.one()))?;
                in_flight -= 1;
                sample.operations += 1;
            }
            now = self.clock.now();
        }
        sample.bytes = sample.operations * self.value.len() as u64;
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }
}

/// The operations of a test that has many in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Reads,
    Writes,
}

impl Kind {
    /// Returns the name of one operation for an error message.
    const fn one(self) -> &'static str {
        match self {
            Self::Reads => "a read",
            Self::Writes => "a write",
        }
    }
}

/// Runs the test `read-throughput` or `write-throughput`: operations a second of one client that
/// has many in progress.
pub(crate) fn throughput(bench: &mut Bench, kind: Kind) -> Result<(), Fail> {
    let outstanding = bench.outstanding;
    let (name, operations) = match kind {
        Kind::Reads => ("readThroughput", "reads"),
        Kind::Writes => ("writeThroughput", "overwrites"),
    };
    bench.report.begin(format!("{name}: random {operations}, {outstanding} in progress"));
    for size in bench.sizes(&[100]) {
        let set = Set::fill(bench, size, bench.objects(size))?;
        for transport in bench.transports.clone() {
            let mut objects = set.over(bench, &transport)?;
            let lane: Lane<'_> = Box::new(|time| objects.many(kind, outstanding, time));
            let floors = bench.local.copies().floors(KEY + size, outstanding);
            if let Some(floors) = floors.filter(|_| kind == Kind::Writes) {
                let durable = floors.compare(lane, bench.rounds, bench.time)?;
                durable.report(&mut bench.report, (name, &transport), size)?;
                continue;
            }
            let mut lanes = [lane];
            let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
            bench.report.row(Row::new(name, &transport, Some(size), &figures[0]))?;
        }
        set.end()?;
    }
    bench.report.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_thirty_bytes_and_differ() {
        assert_eq!(&key(0), b"000000000000000000000000000000");
        assert_eq!(&key(1_234_567), b"000000000000000000000001234567");
        assert_eq!(&key(u64::MAX), b"000000000018446744073709551615");
    }
}
