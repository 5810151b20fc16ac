//! A client that does one kind of operation over and over, and several such clients at the same
//! time.
//!
//! ```text
//! thread 1 … N   connect · barrier · operations for the time of the round · one sample each
//! ```
//!
//! Each client is a thread with a connection of its own and one operation in progress. All of them
//! share the core of this process.

use std::time::Duration;

use sprat::kv::{Part, TableId};
use sprat_proto::Rng;
use sprat_sys::clock::Clock;

use super::super::bench::{in_threads, one_of_many};
use super::super::measure::Sample;
use super::tables::{Filled, Shape, key};
use crate::fail::Fail;
use crate::store::Store;

/// The operation that a client repeats.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Reads a random object of a random table.
    Read,
    /// Overwrites a random object of a random table.
    Write,
    /// Reads an object that does not exist.
    Missing,
    /// Reads one object of each table, one after the other.
    Around,
    /// Reads the object of one table, of which each client has another one.
    Own,
    /// Reads several objects in one operation: as many random objects of each table as the list
    /// says. If `shuffled`, those of the tables are mixed.
    Several { of_each: Vec<usize>, shuffled: bool },
}

/// Several clients that do the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Load {
    pub(super) clients: usize,
    pub(super) work: Work,
}

/// A client of the tables of a test.
struct Client<'f> {
    store: Store,
    tables: &'f [Filled],
    /// The client's number, from 0 on.
    number: usize,
    value: Vec<u8>,
    rng: Rng,
    clock: Clock,
    /// Number of operations so far.
    count: u64,
}

/// The key of a read that finds nothing. ClusterPerf has this one.
const ABSENT: &[u8] = b"55";

impl Client<'_> {
    /// Repeats `work` for `time`, and does it at least once.
    fn repeat(&mut self, work: &Work, time: Duration) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut now = begin;
        while now < end || sample.operations == 0 {
            let (ns, bytes) = match work {
                Work::Several { of_each, shuffled } => self.several(of_each, *shuffled)?,
                _ => self.one(work)?,
            };
            now = self.clock.now();
            self.count += 1;
            sample.record(ns, bytes);
        }
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }

    /// Returns the table and the shape for the next operation.
    fn choose(&mut self, work: &Work) -> (TableId, Shape) {
        let many = self.tables.len();
        let at = match work {
            Work::Around => self.count as usize % many,
            Work::Own => self.number % many,
            _ => self.rng.below(many as u64) as usize,
        };
        (self.tables[at].table, self.tables[at].shape)
    }

    /// Makes one operation on one object. Returns its time in nanoseconds, and the bytes of the
    /// value.
    fn one(&mut self, work: &Work) -> Result<(u64, u64), Fail> {
        let (table, shape) = self.choose(work);
        let key = match work {
            Work::Missing => ABSENT.to_vec(),
            _ => key(self.rng.below(shape.objects), shape.key),
        };
        let table = self.store.raw().table_by_id(table);
        let before = self.clock.now();
        if *work == Work::Write {
            let written = table.put(&key, &self.value[..shape.size]);
            let ns = self.clock.now().since(before);
            written.map_err(|error| self.store.explain(error, "a write"))?;
            return Ok((ns, shape.size as u64));
        }
        let found = table.get_with(&key, |_, value| value.len());
        let ns = self.clock.now().since(before);
        let found = found.map_err(|error| self.store.explain(error, "a read"))?;
        let expected = (*work != Work::Missing).then_some(shape.size);
        if found != expected {
            return Err(Fail::new(format!("a read found {found:?} instead of {expected:?} bytes")));
        }
        Ok((ns, found.unwrap_or_default() as u64))
    }

    /// Reads several objects in one operation. Returns its time in nanoseconds, and the bytes of
    /// all values.
    fn several(&mut self, of_each: &[usize], shuffled: bool) -> Result<(u64, u64), Fail> {
        let mut keys = Vec::new();
        let mut bytes = 0;
        for (filled, count) in self.tables.iter().zip(of_each) {
            for _ in 0..*count {
                let object = self.rng.below(filled.shape.objects);
                keys.push((filled.table, key(object, filled.shape.key)));
                bytes += filled.shape.size as u64;
            }
        }
        if shuffled {
            for last in (1..keys.len()).rev() {
                keys.swap(last, self.rng.below(last as u64 + 1) as usize);
            }
        }
        let before = self.clock.now();
        let parts = self.store.raw().multi(keys.iter().map(|(table, key)| Part::get(*table, key)));
        let ns = self.clock.now().since(before);
        let parts = parts.map_err(|error| self.store.explain(error, "a multi-operation"))?;
        if let Some(Err(error)) = parts.iter().find(Result::is_err) {
            return Err(self.store.explain(error.clone(), "a part of a multi-operation"));
        }
        Ok((ns, bytes))
    }
}

/// Runs the clients of `load` over `transport` for `time`. Returns a sample of each client.
pub(super) fn run(
    (coordinator, transport): (&str, &str),
    tables: &[Filled],
    load: &Load,
    time: Duration,
) -> Result<Vec<Sample>, Fail> {
    let longest = tables.iter().map(|filled| filled.shape.size).max().unwrap_or_default();
    in_threads(load.clients, |number, start| {
        let store = one_of_many(coordinator, transport)?;
        let (value, rng) = (vec![b'w'; longest], Rng::seeded(number as u64));
        let (clock, count) = (Clock::new(), 0);
        let mut client = Client { store, tables, number, value, rng, clock, count };
        client.repeat(&load.work, Duration::ZERO)?;
        start.wait();
        client.repeat(&load.work, time)
    })
}
