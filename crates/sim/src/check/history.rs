//! The history of a simulation: the operations of all clients on all objects, and their answers.

use std::collections::{BTreeMap, BTreeSet};

use super::store::{Answer, Object, Op, Reject};
use super::{Entry, Verdict, linearizable};

/// The name of an object: its table and its key, as numbers that the test chooses.
pub type Name = (u64, u64);

/// The history of a simulation: all operations and their answers.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
    time: u64,
    /// The dropped tables, and the time since which each is dropped.
    dropped: BTreeMap<u64, u64>,
    /// The tables whose last changes may be lost.
    lossy: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
struct Record {
    name: Name,
    entry: Entry<Op, Answer>,
    ended: bool,
}

impl History {
    /// Records the call of the operation `op` on the object `name` and returns the operation's
    /// number.
    pub fn call(&mut self, name: Name, op: Op) -> usize {
        self.time += 2;
        let entry = Entry { op, called: self.time, answer: None };
        self.records.push(Record { name, entry, ended: false });
        self.records.len() - 1
    }

    /// Records the answer to operation `number`, or none if the client gave up: then the operation
    /// may have happened, or may happen later.
    ///
    /// # Panics
    /// If the operation's end was recorded before.
    pub fn end(&mut self, number: usize, answer: Option<Answer>) {
        let record = &mut self.records[number];
        assert!(!record.ended, "operation {number} ends again with {answer:?}: {record:?}");
        record.ended = true;
        self.time += 1;
        record.entry.answer = answer.map(|answer| (self.time, answer));
    }

    /// Records that a client got the answer that `table` is dropped. From then on no operation on
    /// its objects may succeed. While the table is being dropped, some operations succeed and
    /// others do not.
    pub fn drop_table(&mut self, table: u64) {
        self.time += 1;
        self.dropped.entry(table).or_insert(self.time);
    }

    /// Records that the last changes of `table` may be lost: the histories of its objects need not
    /// be linearizable.
    pub fn may_lose(&mut self, table: u64) {
        self.lossy.insert(table);
    }

    /// Returns the number of operations in the history.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if the history has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the number of operations in the history for whose answer `matches` returns true.
    pub fn count(&self, matches: impl Fn(&Answer) -> bool) -> usize {
        let answers = self.records.iter().filter_map(|r| r.entry.answer.as_ref());
        answers.filter(|(_, answer)| matches(answer)).count()
    }

    /// Returns the history of each object, by the object's name.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<Name, Vec<Entry<Op, Answer>>> {
        let mut objects: BTreeMap<Name, Vec<_>> = BTreeMap::new();
        for Record { name, entry, .. } in &self.records {
            let reads = matches!(entry.op, Op::Read(_));
            let history = objects.entry(*name).or_default();
            match entry.answer {
                // A read without an answer proves nothing.
                None | Some((_, Answer::Dropped)) if reads => {}
                // It may have happened and lost its answer before a retry found the table dropped.
                Some((_, Answer::Dropped)) => history.push(Entry { answer: None, ..entry.clone() }),
                Some((_, Answer::Lost)) if !reads => {
                    history.push(Entry { answer: None, ..entry.clone() });
                    let end = Entry {
                        op: Op::Read(Reject::default()),
                        called: entry.called + 1,
                        ..entry.clone()
                    };
                    history.push(end);
                }
                _ => history.push(entry.clone()),
            }
        }
        objects
    }

    /// Checks that every object's history is linearizable, and that the end of a tablet is the same
    /// for all of its objects. `tablet` returns the tablet of an object. Returns the first verdict
    /// that is not [`Verdict::Good`], with its object.
    pub fn verdict<T: Ord>(&self, tablet: impl Fn(Name) -> T) -> Verdict {
        if let Some(why) = self.ends_apart(tablet) {
            return Verdict::Broken(why);
        }
        for (name, history) in self.objects() {
            if self.lossy.contains(&name.0) {
                continue;
            }
            match linearizable(Object, &history) {
                Verdict::Good => {}
                Verdict::Broken(why) => return Verdict::Broken(format!("object {name:?}: {why}")),
                Verdict::TooHard => return Verdict::TooHard,
            }
        }
        Verdict::Good
    }

    /// Returns an explanation if an operation succeeded on an object of a tablet although its call
    /// came after an answer that the tablet is lost or its table dropped.
    fn ends_apart<T: Ord>(&self, tablet: impl Fn(Name) -> T) -> Option<String> {
        let mut lost: BTreeMap<T, u64> = BTreeMap::new();
        for record in &self.records {
            if let Some((at, Answer::Lost)) = record.entry.answer {
                let end = lost.entry(tablet(record.name)).or_insert(at);
                *end = at.min(*end);
            }
        }
        self.records.iter().find_map(|Record { name, entry, .. }| {
            let is_dropped = self.dropped.get(&name.0).is_some_and(|end| entry.called > *end);
            let is_lost = lost.get(&tablet(*name)).is_some_and(|end| entry.called > *end);
            let wrong = match entry.answer {
                // After a drop, a client may still report the tablet as lost. Either end is valid.
                None | Some((_, Answer::Dropped | Answer::Lost | Answer::Nothing)) => false,
                Some(_) => is_dropped || is_lost,
            };
            wrong.then(|| {
                format!("the tablet of {name:?} has ended, but an operation succeeded: {entry:?}")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::Value;
    use super::*;

    #[test]
    fn a_tablet_ends_for_all_its_objects() {
        let read = || Op::Read(Reject::default());
        let mut history = History::default();
        let early = history.call((1, 1), read());
        let lost = history.call((1, 2), read());
        history.end(lost, Some(Answer::Lost));
        history.end(early, Some(Answer::Missing));
        let elsewhere = history.call((2, 1), read());
        history.end(elsewhere, Some(Answer::Missing));
        assert_eq!(history.verdict(|name| name.0), Verdict::Good);
        let late = history.call((1, 1), read());
        history.end(late, Some(Answer::Missing));
        assert!(matches!(history.verdict(|name| name.0), Verdict::Broken(_)));
        assert_eq!(history.count(|a| *a == Answer::Missing), 3);
    }

    #[test]
    fn a_write_may_have_happened_before_its_table_was_dropped() {
        let mut history = History::default();
        let write = history.call((1, 1), Op::Write(Reject::default(), Value::Bytes(1)));
        let read = history.call((1, 1), Op::Read(Reject::default()));
        history.end(read, Some(Answer::Read(5, Value::Bytes(1))));
        history.end(write, Some(Answer::Dropped));
        let again = |history: &mut History| {
            let read = history.call((1, 1), Op::Read(Reject::default()));
            history.end(read, Some(Answer::Read(5, Value::Bytes(1))));
            history.verdict(|name| name.0)
        };
        assert_eq!(again(&mut history), Verdict::Good, "the table is still being dropped");
        history.drop_table(1);
        assert!(matches!(again(&mut history), Verdict::Broken(_)));
    }

    #[test]
    fn objects_do_not_disturb_each_other() {
        let mut history = History::default();
        for key in 0..3 {
            let n = history.call((1, key), Op::Write(Reject::default(), Value::Bytes(key)));
            history.end(n, Some(Answer::Version(1)));
            let n = history.call((1, key), Op::Read(Reject::default()));
            history.end(n, Some(Answer::Read(1, Value::Bytes(key))));
        }
        assert_eq!((history.objects().len(), history.verdict(|_| ())), (3, Verdict::Good));
        let n = history.call((1, 0), Op::Read(Reject::default()));
        history.end(n, Some(Answer::Read(1, Value::Bytes(1))));
        let verdict = history.verdict(|_| ());
        assert!(matches!(verdict, Verdict::Broken(why) if why.starts_with("object (1, 0)")));
    }
}
