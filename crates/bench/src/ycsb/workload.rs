//! YCSB's core workloads: their mixes of operations, the keys of records, and the order in which
//! inserted records become visible.
//!
//! ```text
//! A  50 % read, 50 % update              zipfian        D  95 % read, 5 % insert     latest
//! B  95 % read,  5 % update              zipfian        E  95 % scan, 5 % insert     zipfian
//! C 100 % read                           zipfian        F  50 % read, 50 % read-modify-write
//! ```
//!
//! As in YCSB, records have numbers, and the key of a record is "user" and the hash of its number.
//! An operation chooses among the records up to the newest one below which all inserts have been
//! acknowledged, so that no read finds an absent record.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_proto::Rng;

use super::zipf::{Latest, Scrambled, hash, uniform};

/// The longest scan of workload E, in records. The lengths from 1 on are equally frequent.
pub const LONGEST_SCAN: u64 = 100;

/// A workload of YCSB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Workload {
    /// Reads and updates, half each.
    A,
    /// Reads, and one update in 20 operations.
    B,
    /// Reads alone.
    C,
    /// Reads of new records, and one insert in 20 operations.
    D,
    /// Short scans, and one insert in 20 operations.
    E,
    /// Reads, and reads that are followed by an update of the same record, half each.
    F,
}

/// The percentages of the operations of a workload.
struct Mix {
    read: u64,
    update: u64,
    insert: u64,
    scan: u64,
}

impl Workload {
    /// All workloads, in order.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];

    /// Returns the workload's letter on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
        }
    }

    /// Returns the workload's operations in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::A => "50 % read, 50 % update, zipfian",
            Self::B => "95 % read, 5 % update, zipfian",
            Self::C => "100 % read, zipfian",
            Self::D => "95 % read, 5 % insert, latest",
            Self::E => "95 % scan of 1 to 100 records, 5 % insert, zipfian",
            Self::F => "50 % read, 50 % read-modify-write, zipfian",
        }
    }

    /// True if the workload inserts records, so that its table grows.
    #[must_use]
    pub const fn inserts(self) -> bool {
        self.mix().insert > 0
    }

    /// True if the workload reads records in the order of their keys.
    #[must_use]
    pub const fn scans(self) -> bool {
        self.mix().scan > 0
    }

    /// Returns the percentages of the workload. What is left of 100 are read-modify-writes.
    const fn mix(self) -> Mix {
        let (read, update, insert, scan) = match self {
            Self::A => (50, 50, 0, 0),
            Self::B => (95, 5, 0, 0),
            Self::C => (100, 0, 0, 0),
            Self::D => (95, 0, 5, 0),
            Self::E => (0, 0, 5, 95),
            Self::F => (50, 0, 0, 0),
        };
        Mix { read, update, insert, scan }
    }
}

/// An operation of a workload, on records by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A read of a record.
    Read(u64),
    /// An update of a record.
    Update(u64),
    /// An insert of a new record.
    Insert(u64),
    /// A scan of a number of records, from this one on in the order of keys.
    Scan(u64, u64),
    /// A read of a record, and then an update of it.
    ReadModifyWrite(u64),
}

/// Returns the key of a record: "user" and the hash of its number in decimal.
#[must_use]
pub fn key(record: u64) -> Vec<u8> {
    format!("user{}", hash(record)).into_bytes()
}

/// The records of one table, which clients share: how many there are, and which of the inserted
/// ones the table has acknowledged.
#[derive(Debug)]
pub struct Records {
    next: AtomicU64,
    /// Number of records below which all are acknowledged.
    visible: AtomicU64,
    /// Acknowledged records above that.
    ahead: Mutex<BTreeSet<u64>>,
}

impl Records {
    /// Makes the state of a table with `loaded` records.
    #[must_use]
    pub fn new(loaded: u64) -> Self {
        Self { next: loaded.into(), visible: loaded.into(), ahead: Mutex::default() }
    }

    /// Returns the number of records that reads may choose among.
    #[must_use]
    pub fn visible(&self) -> u64 {
        self.visible.load(Ordering::Relaxed)
    }

    /// Takes the number of a new record, which the caller inserts.
    fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that the table has acknowledged the insert of `record`. Records that were loaded count
    /// as acknowledged.
    pub fn acknowledged(&self, record: u64) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let mut visible = self.visible();
        if record >= visible {
            ahead.insert(record);
        }
        while ahead.remove(&visible) {
            visible += 1;
        }
        self.visible.store(visible, Ordering::Relaxed);
    }
}

/// The distribution of a workload's records.
#[derive(Clone, Debug)]
enum Choice {
    Zipfian(Scrambled),
    Latest(Latest),
}

/// The sequence of a client's operations.
#[derive(Clone, Debug)]
pub struct Chooser {
    workload: Workload,
    choice: Choice,
    rng: Rng,
}

impl Chooser {
    /// Makes the sequence of operations on a table that had `loaded` records at the beginning, from
    /// a seed.
    #[must_use]
    pub fn new(workload: Workload, loaded: u64, seed: u64) -> Self {
        let choice = match workload {
            Workload::D => Choice::Latest(Latest::new(loaded)),
            // YCSB's range ends with the number of records, and so has a record too many.
            _ => Choice::Zipfian(Scrambled::new(loaded + 1)),
        };
        Self { workload, choice, rng: Rng::seeded(seed) }
    }

    /// Returns the sequence of another client of the same workload.
    #[must_use]
    pub fn for_client(&self, seed: u64) -> Self {
        Self { rng: Rng::seeded(seed), ..self.clone() }
    }

    /// Returns the next operation.
    pub fn next(&mut self, records: &Records) -> Operation {
        let Mix { read, update, insert, scan } = self.workload.mix();
        let at = (uniform(&mut self.rng) * 100.0) as u64;
        if at < insert {
            return Operation::Insert(records.take());
        }
        let record = self.record(records);
        let at = at - insert;
        if at < read {
            Operation::Read(record)
        } else if at < read + update {
            Operation::Update(record)
        } else if at < read + update + scan {
            Operation::Scan(record, 1 + self.rng.below(LONGEST_SCAN))
        } else {
            Operation::ReadModifyWrite(record)
        }
    }

    /// Draws a visible record. A drawn record that is not visible yet is drawn anew.
    fn record(&mut self, records: &Records) -> u64 {
        loop {
            let visible = records.visible();
            let record = match &mut self.choice {
                Choice::Zipfian(scrambled) => scrambled.draw(&mut self.rng),
                Choice::Latest(latest) => latest.draw(visible.saturating_sub(1), &mut self.rng),
            };
            if record < visible {
                return record;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts reads, updates, inserts, scans and read-modify-writes among 100,000 operations, in
    /// percent.
    fn shares(workload: Workload) -> [f64; 5] {
        let records = Records::new(1000);
        let mut chooser = Chooser::new(workload, 1000, 5);
        let mut counts = [0.0; 5];
        for _ in 0..100_000 {
            let kind = match chooser.next(&records) {
                Operation::Read(_) => 0,
                Operation::Update(_) => 1,
                Operation::Insert(record) => {
                    records.acknowledged(record);
                    2
                }
                Operation::Scan(_, length) => {
                    assert!((1..=LONGEST_SCAN).contains(&length));
                    3
                }
                Operation::ReadModifyWrite(_) => 4,
            };
            counts[kind] += 0.001;
        }
        counts
    }

    #[test]
    fn the_mixes_are_those_of_ycsb() {
        for (workload, expected) in [
            (Workload::A, [50.0, 50.0, 0.0, 0.0, 0.0]),
            (Workload::B, [95.0, 5.0, 0.0, 0.0, 0.0]),
            (Workload::C, [100.0, 0.0, 0.0, 0.0, 0.0]),
            (Workload::D, [95.0, 0.0, 5.0, 0.0, 0.0]),
            (Workload::E, [0.0, 0.0, 5.0, 95.0, 0.0]),
            (Workload::F, [50.0, 0.0, 0.0, 0.0, 50.0]),
        ] {
            let shares = shares(workload);
            let close = shares.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.6);
            assert!(close, "{workload:?}: {shares:?}");
        }
    }

    #[test]
    fn a_record_is_visible_once_all_below_it_are_acknowledged() {
        let records = Records::new(10);
        let taken = [records.take(), records.take(), records.take()];
        assert_eq!(taken, [10, 11, 12]);
        records.acknowledged(12);
        records.acknowledged(11);
        assert_eq!(records.visible(), 10);
        records.acknowledged(10);
        assert_eq!(records.visible(), 13);
    }

    #[test]
    fn no_operation_chooses_a_record_that_is_not_there() {
        let records = Records::new(20);
        for workload in [Workload::A, Workload::D] {
            let mut chooser = Chooser::new(workload, 20, 6);
            for _ in 0..10_000 {
                match chooser.next(&records) {
                    Operation::Read(record) | Operation::Update(record) => assert!(record < 20),
                    Operation::Insert(_) => {}
                    other => unreachable!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn clients_draw_their_own_sequences_again_and_again() {
        let records = Records::new(1000);
        let first = Chooser::new(Workload::C, 1000, 1);
        let draw = |mut chooser: Chooser| -> Vec<Operation> {
            (0..20).map(|_| chooser.next(&records)).collect()
        };
        assert_eq!(draw(first.for_client(1)), draw(first.clone()));
        assert_ne!(draw(first.for_client(2)), draw(first));
    }

    #[test]
    fn keys_are_those_of_ycsb() {
        assert_eq!(key(0), b"user6284781860667377211");
    }
}
