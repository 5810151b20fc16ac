//! The loop of one client: it keeps a number of operations in progress, and times each from its
//! start to its end. It is the same code for our store and for its peers.

use std::time::Duration;

use sprat_proto::Instant;
use sprat_sys::clock::Clock;

use super::session::Session;
use crate::fail::Fail;
use crate::perf::measure::Sample;
use crate::ycsb::workload::{Chooser, Operation, Records, key};

/// The samples of one client, or of several, in one round.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    /// All operations. A read-modify-write counts as one, from the start of its read to the end of
    /// its update.
    pub(super) all: Sample,
    /// The reads and scans, the reads of read-modify-writes among them.
    pub(super) reads: Sample,
    /// The updates and inserts, the updates of read-modify-writes among them.
    pub(super) updates: Sample,
}

impl Samples {
    /// Makes samples without operations.
    pub(super) fn new() -> Self {
        Self { all: Sample::new(), reads: Sample::new(), updates: Sample::new() }
    }

    /// Adds the operations of another client, which ran at the same time.
    pub(super) fn add(&mut self, other: &Self) {
        self.all.add(&other.all);
        self.reads.add(&other.reads);
        self.updates.add(&other.updates);
    }
}

/// The values that a client writes: parts of a buffer of changing bytes, each of one size.
#[derive(Debug)]
pub(super) struct Values {
    bytes: Vec<u8>,
    size: usize,
    number: usize,
}

impl Values {
    /// Makes values of `size` bytes each.
    pub(super) fn new(size: usize) -> Self {
        // Printable characters, as YCSB writes.
        let bytes = (0..2 * size + 95).map(|i| b' ' + (i * 7 % 95) as u8).collect();
        Self { bytes, size, number: 0 }
    }

    /// Returns the next value.
    pub(super) fn next(&mut self) -> &[u8] {
        self.number = (self.number + 1) % (self.size + 95);
        &self.bytes[self.number..self.number + self.size]
    }
}

/// An operation in progress: its kind, the start of the operation, and the start of its part.
#[derive(Clone, Copy)]
struct Progress {
    operation: Operation,
    /// True while the read of a read-modify-write is in progress.
    reading: bool,
    began: Instant,
    part: Instant,
}

/// The client of one connection: its operations in progress, by their tags.
pub(super) struct Client<'r, S> {
    session: S,
    records: &'r Records,
    values: Values,
    clock: Clock,
    slots: Vec<Option<Progress>>,
    /// Tags without an operation.
    free: Vec<u32>,
}

impl<'r, S: Session> Client<'r, S> {
    /// Makes the client of `session`, with up to `pipeline` operations in progress on `records` of
    /// `size` bytes.
    pub(super) fn new(session: S, records: &'r Records, size: usize, pipeline: usize) -> Self {
        Self {
            session,
            records,
            values: Values::new(size),
            clock: Clock::new(),
            slots: vec![None; pipeline],
            free: (0..pipeline as u32).collect(),
        }
    }

    /// Inserts the records of these numbers.
    pub(super) fn load(&mut self, mut numbers: std::ops::Range<u64>) -> Result<(), Fail> {
        self.run(|_| numbers.next().map(Operation::Insert)).map(drop)
    }

    /// Makes operations of `chooser` for `time`, and at least one.
    pub(super) fn work(&mut self, chooser: &mut Chooser, time: Duration) -> Result<Samples, Fail> {
        let end = self.clock.now().after(time.as_nanos() as u64);
        let (mut any, records) = (false, self.records);
        self.run(|now| {
            let more = now < end || !any;
            any = true;
            more.then(|| chooser.next(records))
        })
    }

    /// Makes the operations that `next` returns, until it returns none and all are complete.
    fn run(&mut self, mut next: impl FnMut(Instant) -> Option<Operation>) -> Result<Samples, Fail> {
        let mut samples = Samples::new();
        let begin = self.clock.now();
        let (mut now, mut more) = (begin, true);
        while more || self.free.len() < self.slots.len() {
            while more && let Some(tag) = self.free.pop() {
                match next(now) {
                    Some(operation) => self.start(operation, tag, now)?,
                    None => {
                        self.free.push(tag);
                        more = false;
                    }
                }
            }
            self.session.turn()?;
            now = self.clock.now();
            while let Some((tag, records)) = self.session.completed()? {
                self.finish(tag, records, now, &mut samples);
            }
        }
        let elapsed = Duration::from_nanos(now.since(begin));
        for sample in [&mut samples.all, &mut samples.reads, &mut samples.updates] {
            sample.elapsed = elapsed;
        }
        Ok(samples)
    }

    fn start(&mut self, operation: Operation, tag: u32, now: Instant) -> Result<(), Fail> {
        let (record, reading) = match operation {
            Operation::Read(record) | Operation::Scan(record, _) => (record, true),
            Operation::ReadModifyWrite(record) => (record, true),
            Operation::Update(record) | Operation::Insert(record) => (record, false),
        };
        self.slots[tag as usize] = Some(Progress { operation, reading, began: now, part: now });
        let key = key(record);
        match operation {
            Operation::Scan(_, count) => self.session.scan(&key, count, tag)?,
            Operation::Insert(_) => self.session.insert(&key, self.values.next(), tag)?,
            _ if reading => self.session.read(&key, tag),
            _ => self.session.write(&key, self.values.next(), tag),
        }
        Ok(())
    }

    fn finish(&mut self, tag: u32, records: u64, now: Instant, samples: &mut Samples) {
        let Some(progress) = &mut self.slots[tag as usize] else { return };
        let bytes = records * self.values.size as u64;
        let part = if progress.reading { &mut samples.reads } else { &mut samples.updates };
        part.record(now.since(progress.part), bytes);
        match progress.operation {
            Operation::ReadModifyWrite(record) if progress.reading => {
                (progress.reading, progress.part) = (false, now);
                self.session.write(&key(record), self.values.next(), tag);
                return;
            }
            Operation::Insert(record) => self.records.acknowledged(record),
            _ => {}
        }
        samples.all.record(now.since(progress.began), bytes);
        self.slots[tag as usize] = None;
        self.free.push(tag);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;
    use crate::ycsb::workload::Workload;

    /// A store in this process, which answers the oldest request of each turn.
    #[derive(Default)]
    struct Map {
        objects: HashMap<Vec<u8>, Vec<u8>>,
        requests: VecDeque<(Vec<u8>, Option<Vec<u8>>, u32)>,
        ready: VecDeque<u32>,
        most: usize,
        reads: u64,
        writes: u64,
    }

    impl Session for Map {
        fn read(&mut self, key: &[u8], tag: u32) {
            self.requests.push_back((key.to_vec(), None, tag));
        }

        fn write(&mut self, key: &[u8], value: &[u8], tag: u32) {
            self.requests.push_back((key.to_vec(), Some(value.to_vec()), tag));
        }

        fn insert(&mut self, key: &[u8], value: &[u8], tag: u32) -> Result<(), Fail> {
            self.write(key, value, tag);
            Ok(())
        }

        fn scan(&mut self, key: &[u8], count: u64, tag: u32) -> Result<(), Fail> {
            assert!((1..=100).contains(&count));
            self.read(key, tag);
            Ok(())
        }

        fn turn(&mut self) -> Result<(), Fail> {
            self.most = self.most.max(self.requests.len());
            let Some((key, value, tag)) = self.requests.pop_front() else { return Ok(()) };
            match value {
                Some(value) => {
                    self.writes += 1;
                    assert_eq!(value.len(), 10);
                    self.objects.insert(key, value);
                }
                None => {
                    self.reads += 1;
                    assert!(self.objects.contains_key(&key), "only records that are there");
                }
            }
            self.ready.push_back(tag);
            Ok(())
        }

        fn completed(&mut self) -> Result<Option<(u32, u64)>, Fail> {
            Ok(self.ready.pop_front().map(|tag| (tag, 1)))
        }
    }

    #[test]
    fn operations_stay_in_progress_and_all_end() {
        let records = Records::new(100);
        for workload in [Workload::A, Workload::C, Workload::D, Workload::E, Workload::F] {
            let mut client = Client::new(Map::default(), &records, 10, 8);
            let there = records.visible();
            client.load(0..there).expect("nothing fails");
            let mut chooser = Chooser::new(workload, 100, 1);
            let mut left = 1000;
            let samples = client
                .run(|_| {
                    left -= 1;
                    (left >= 0).then(|| chooser.next(&records))
                })
                .expect("nothing fails");
            let map = &client.session;
            assert_eq!(samples.all.operations, 1000, "{workload:?}");
            assert_eq!((map.reads, map.most), (samples.reads.operations, 8));
            assert_eq!(map.writes, samples.updates.operations + there);
            let twice = samples.reads.operations + samples.updates.operations;
            assert_eq!(twice > 1000, workload == Workload::F, "a read-modify-write has two parts");
            assert!(map.objects.len() as u64 == records.visible(), "each insert is acknowledged");
        }
    }

    #[test]
    fn values_have_one_size_and_change() {
        let mut values = Values::new(10);
        let first = values.next().to_vec();
        assert_eq!(first.len(), 10);
        assert_ne!(values.next(), first);
        (0..1000).for_each(|_| assert_eq!(values.next().len(), 10));
    }
}
