//! A table whose objects have index keys in their values, and a client that repeats operations on
//! it.
//!
//! ```text
//! value   index key 0 (30 bytes) | index key 1 | … | a counter | the rest
//! ```
//!
//! Index keys are random, so that each new one of an object belongs elsewhere in the order. The
//! client that fills the table notes those of each object. It is the only one that changes the
//! table; others only look objects up.

use std::borrow::Cow;
use std::time::Duration;

use sprat::kv::{Condition, Found, IndexRange, IndexedTable, Part, Source, Table, TableId};
use sprat_proto::Rng;
use sprat_sys::clock::Clock;

use super::super::basic::{FILLING_BYTES, KEY, key};
use super::super::measure::Sample;
use crate::fail::Fail;
use crate::store::Store;

/// The most indexes of a table.
pub(super) const MOST: usize = 10;
/// Bytes of the counter that each write changes.
const COUNTER: usize = 8;
/// Number of objects of a scan, and of the multi-read beside it.
pub(super) const SCANNED: usize = 100;
/// The seed of the client that fills a table. A fixed one makes runs alike.
const SEED: u64 = 7;
/// The names of the indexes.
pub(super) const NAMES: [&str; MOST] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// An operation of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Finds one object by its key in the first index.
    LookUp,
    /// Reads two random objects, one after the other.
    TwoReads,
    /// Overwrites a random object, which gets other keys in all indexes.
    Change,
    /// Overwrites a random object, which keeps its keys in all indexes.
    Keep,
    /// Writes an object that does not exist. It was removed before, so that the table keeps its
    /// size.
    Insert,
    /// Writes such an object on condition that it does not exist.
    InsertAbsent,
    /// Overwrites two random objects without the indexes, one after the other. They keep their
    /// index keys.
    TwoWrites,
    /// Reads objects in the order of the first index, from a random place on.
    Scan(usize),
    /// Reads random objects in one operation.
    MultiRead(usize),
}

/// The number and the sizes of a table's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) objects: u64,
    /// Bytes of each value.
    pub(super) size: usize,
    /// Number of index keys in each value, at most [`MOST`].
    pub(super) keys: usize,
}

/// Returns the least bytes of a value with this number of index keys.
pub(super) const fn least(keys: usize) -> usize {
    keys * KEY + COUNTER
}

/// Checks that a look-up has found one object, that with this number.
pub(super) fn only(found: &[Found], object: u64) -> Result<(), Fail> {
    match found {
        [one] if one.key == key(object) => Ok(()),
        _ => Err(Fail::new(format!("a look-up found {} objects instead of one", found.len()))),
    }
}

/// The index keys of an object, as numbers.
pub(super) type Keys = [u64; MOST];

/// A client of a table with indexes.
pub(super) struct Client<'c> {
    store: &'c Store,
    indexed: IndexedTable<'c>,
    table: Table<'c>,
    /// The index keys of each object.
    keys: Cow<'c, [Keys]>,
    /// Number of index keys in each value.
    in_value: usize,
    /// Number of indexes so far.
    indexes: usize,
    value: Vec<u8>,
    rng: Rng,
    clock: Clock,
}

impl<'c> Client<'c> {
    /// Makes a client of a table without indexes, and writes the objects.
    pub(super) fn fill(store: &'c Store, table: TableId, shape: Shape) -> Result<Self, Fail> {
        let Shape { objects, size, .. } = shape;
        let mut client = Self::open(store, table, shape, SEED)?;
        let window = (FILLING_BYTES / (size + 200)).clamp(1, 64) as u64;
        let (mut started, mut finished) = (0, 0);
        while finished < objects {
            while started < objects && started - finished < window {
                let keys = client.draw();
                client.keys.to_mut().push(keys);
                client.set_value(started as usize);
                client.table.start_put(&key(started), &client.value).queue();
                started += 1;
            }
            store.raw().turn_and_rest();
            while let Some((_, outcome)) = store.raw().next_completed() {
                outcome.map_err(|error| store.explain(error, "filling the table"))?;
                finished += 1;
            }
        }
        Ok(client)
    }

    /// Makes a client of a table that another one has filled, with an index. It reads only: `keys`
    /// are those of the other one, and `number` tells clients apart.
    pub(super) fn reader(
        store: &'c Store,
        table: TableId,
        shape: Shape,
        keys: &'c [Keys],
        number: usize,
    ) -> Result<Self, Fail> {
        let client = Self::open(store, table, shape, SEED + 1 + number as u64)?;
        Ok(Self { keys: Cow::Borrowed(keys), indexes: 1, ..client })
    }

    /// Makes a client that knows no objects, and draws random numbers from `seed`.
    fn open(store: &'c Store, table: TableId, shape: Shape, seed: u64) -> Result<Self, Fail> {
        let table = store.raw().table_by_id(table);
        let indexed = store.raw().indexed(&table);
        let indexed = indexed.map_err(|error| store.explain_index(error, "a table"))?;
        let (rng, clock, value) = (Rng::seeded(seed), Clock::new(), vec![b'v'; shape.size]);
        let (keys, in_value, indexes) = (Cow::Owned(Vec::new()), shape.keys, 0);
        Ok(Self { store, indexed, table, keys, in_value, indexes, value, rng, clock })
    }

    /// Returns the index keys of each object.
    pub(super) fn keys(&self) -> &[Keys] {
        &self.keys
    }

    /// Creates the next index. Returns the time and the number of its objects.
    pub(super) fn create_index(&mut self) -> Result<(Duration, u64), Fail> {
        let source = Source::Bytes { at: (self.indexes * KEY) as u32, len: KEY as u32 };
        let before = self.clock.now();
        let built = self.indexed.create_index(NAMES[self.indexes], source);
        let ns = self.clock.now().since(before);
        let (objects, _) = built.map_err(|error| self.store.explain_index(error, "an index"))?;
        self.indexes += 1;
        Ok((Duration::from_nanos(ns), objects))
    }

    /// Repeats an operation for `time`, and does it at least once.
    pub(super) fn repeat(&mut self, work: Work, time: Duration) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let objects = match work {
            Work::LookUp | Work::Change | Work::Keep | Work::Insert | Work::InsertAbsent => 1,
            Work::TwoReads | Work::TwoWrites => 2,
            Work::Scan(count) | Work::MultiRead(count) => count,
        };
        let bytes = (objects * self.value.len()) as u64;
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut now = begin;
        while now < end || sample.operations == 0 {
            sample.record(self.one(work)?, bytes);
            now = self.clock.now();
        }
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }

    /// Makes one operation. Returns its time in nanoseconds.
    fn one(&mut self, work: Work) -> Result<u64, Fail> {
        match work {
            Work::LookUp => self.look_up(),
            Work::TwoReads => self.two_reads(),
            Work::Change | Work::Keep | Work::Insert | Work::InsertAbsent => self.write(work),
            Work::TwoWrites => self.two_writes(),
            Work::Scan(count) => self.scan(count),
            Work::MultiRead(count) => self.multi_read(count),
        }
    }

    /// Returns the number of a random object.
    fn object(&mut self) -> usize {
        self.rng.below(self.keys.len() as u64) as usize
    }

    fn draw(&mut self) -> Keys {
        std::array::from_fn(|_| self.rng.u64())
    }

    /// Makes the next value of an object.
    fn set_value(&mut self, object: usize) {
        let keys = &self.keys[object][..self.in_value];
        for (bytes, number) in self.value.chunks_mut(KEY).zip(keys) {
            bytes.copy_from_slice(&key(*number));
        }
        let count = self.rng.u64();
        self.value[self.in_value * KEY..][..COUNTER].copy_from_slice(&count.to_be_bytes());
    }

    fn look_up(&mut self) -> Result<u64, Fail> {
        let object = self.object();
        let index_key = key(self.keys[object][0]);
        let before = self.clock.now();
        let found = self.indexed.look_up(NAMES[0], &index_key);
        let ns = self.clock.now().since(before);
        let found = found.map_err(|error| self.store.explain_index(error, "a look-up"))?;
        only(&found, object as u64).map(|()| ns)
    }

    fn two_reads(&mut self) -> Result<u64, Fail> {
        let keys = [self.object(), self.object()].map(|object| key(object as u64));
        let before = self.clock.now();
        for key in &keys {
            let read = self.table.get_with(key, |_, value| value.len());
            let found = read.map_err(|error| self.store.explain(error, "a read"))?;
            if found != Some(self.value.len()) {
                return Err(Fail::new("an object is absent or has another size"));
            }
        }
        Ok(self.clock.now().since(before))
    }

    /// Writes an object with its entries.
    fn write(&mut self, work: Work) -> Result<u64, Fail> {
        let object = self.object();
        let key = key(object as u64);
        if matches!(work, Work::Insert | Work::InsertAbsent) {
            let removed = self.indexed.remove(&key);
            removed.map_err(|error| self.store.explain_index(error, "a removal"))?;
        }
        if work != Work::Keep {
            let (new, indexes) = (self.draw(), self.indexes);
            self.keys.to_mut()[object][..indexes].copy_from_slice(&new[..indexes]);
        }
        self.set_value(object);
        let is_new = work == Work::InsertAbsent;
        let condition = if is_new { Condition::if_absent() } else { Condition::always() };
        let before = self.clock.now();
        let written = self.indexed.put_if(&key, &self.value, condition);
        let ns = self.clock.now().since(before);
        written.map_err(|error| self.store.explain_index(error, "an indexed write"))?;
        Ok(ns)
    }

    fn two_writes(&mut self) -> Result<u64, Fail> {
        let mut ns = 0;
        for object in [self.object(), self.object()] {
            self.set_value(object);
            let key = key(object as u64);
            let before = self.clock.now();
            let written = self.table.put(&key, &self.value);
            ns += self.clock.now().since(before);
            written.map_err(|error| self.store.explain(error, "a write"))?;
        }
        Ok(ns)
    }

    fn scan(&mut self, count: usize) -> Result<u64, Fail> {
        // Behind the place come at least as many objects, since their keys are random.
        let objects = self.keys.len() as u64;
        let before = objects.saturating_sub(2 * count as u64 + 40);
        let from = key(if before == 0 { 0 } else { self.rng.below(u64::MAX / objects * before) });
        let before = self.clock.now();
        let mut rest = Some(IndexRange::new(&from[..]..));
        let mut found = 0;
        while let Some(range) = rest.filter(|_| found < count) {
            let page = self.indexed.page(NAMES[0], range, count - found);
            let page = page.map_err(|error| self.store.explain_index(error, "a scan"))?;
            found += page.found.len();
            rest = page.rest;
        }
        let ns = self.clock.now().since(before);
        if found == count {
            return Ok(ns);
        }
        Err(Fail::new(format!("a scan found {found} objects instead of {count}")))
    }

    fn multi_read(&mut self, count: usize) -> Result<u64, Fail> {
        let keys: Vec<_> = (0..count).map(|_| key(self.object() as u64)).collect();
        let table = self.table.id();
        let before = self.clock.now();
        let parts = self.store.raw().multi(keys.iter().map(|key| Part::get(table, key)));
        let ns = self.clock.now().since(before);
        let parts = parts.map_err(|error| self.store.explain(error, "a multi-read"))?;
        match parts.iter().find(Result::is_err) {
            Some(Err(error)) => {
                Err(self.store.explain(error.clone(), "a part of a multi-operation"))
            }
            _ => Ok(ns),
        }
    }
}
