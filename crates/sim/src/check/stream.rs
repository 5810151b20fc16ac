//! The linearizability checker for a history that is still being recorded: memory and time stay
//! bounded however long the history becomes.
//!
//! ```text
//! add(entry) ──► moments: calls and answers ── advance(until) ──► Checker
//!                                                    └──► recent: since a settled moment
//! ```
//!
//! The recorder promises that all operations called before `until` have been added, with their
//! answers. So each call that the checker handles has its answer, as the search needs it.
//!
//! A moment is settled if no operation with an answer is open and one configuration is left. A
//! violation is explained by the operations since the last settled moment, without those that can
//! be left out: removing an operation without effect never makes a linearizable history wrong.

use std::collections::BTreeMap;

use super::{Checker, Entry, Model, Verdict};

/// The most operations since a settled moment that explain a violation.
const MAX_RECENT: usize = 1024;

/// A violation of linearizability that the checker found in a stream of operations.
#[derive(Clone, Debug)]
pub enum Violation<O, A> {
    /// No order of the operations explains the answers.
    Broken {
        /// The state of the object before the operations, as text.
        before: String,
        /// The operations that no order explains, in the order of their calls.
        part: Vec<Entry<O, A>>,
    },
    /// The checker does not know whether the history is linearizable: too many operations without
    /// an answer are open.
    TooHard,
}

/// A moment of a history: an operation, and true at its answer.
type Moment<M> = (Entry<<M as Model>::Op, <M as Model>::Answer>, bool);

/// The checker of one object whose operations come one by one.
#[derive(Clone, Debug)]
pub struct Stream<M: Model> {
    checker: Checker<M>,
    /// The calls and answers that the checker has not handled yet.
    moments: BTreeMap<u64, Moment<M>>,
    /// The checker at the last settled moment.
    settled: Checker<M>,
    /// The operations whose calls the checker has handled since the last settled moment.
    recent: Vec<Entry<M::Op, M::Answer>>,
    /// The number of open operations that have an answer.
    open: usize,
}

impl<M: Model + Clone> Stream<M> {
    /// Makes a checker for an object in the model's initial state.
    pub fn new(model: M) -> Self {
        let checker = Checker::new(model);
        let settled = checker.clone();
        Self { checker, moments: BTreeMap::new(), settled, recent: Vec::new(), open: 0 }
    }

    /// Adds an operation that has ended. Its call is not before a moment up to which the stream has
    /// advanced. All moments differ; otherwise the verdict means nothing.
    pub fn add(&mut self, entry: Entry<M::Op, M::Answer>) {
        if let Some((at, _)) = entry.answer {
            self.moments.insert(at, (entry.clone(), true));
        }
        self.moments.insert(entry.called, (entry, false));
    }

    /// Returns the number of calls and answers that wait for [`Stream::advance`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.moments.len()
    }

    /// Checks the history up to the moment `until`. All operations called before it have been
    /// added.
    ///
    /// # Errors
    /// The history is not linearizable, or too hard to check. The stream has no further use then.
    pub fn advance(&mut self, until: u64) -> Result<(), Violation<M::Op, M::Answer>> {
        while let Some(first) = self.moments.first_entry().filter(|first| *first.key() < until) {
            let (entry, answered) = first.remove();
            if answered {
                match self.checker.close(&entry) {
                    Verdict::Good => self.open = self.open.saturating_sub(1),
                    Verdict::Broken(_) => return Err(self.violation()),
                    Verdict::TooHard => return Err(Violation::TooHard),
                }
                if self.open == 0 && self.checker.configurations.len() == 1 {
                    self.settled.clone_from(&self.checker);
                    self.recent.clear();
                }
                continue;
            }
            if !self.checker.open(&entry) {
                return Err(Violation::TooHard);
            }
            self.open += usize::from(entry.answer.is_some());
            if self.recent.len() < MAX_RECENT {
                self.recent.push(entry);
            }
        }
        Ok(())
    }

    /// Explains why the checker has no configuration left.
    fn violation(&self) -> Violation<M::Op, M::Answer> {
        let broken = |part: &[_]| {
            matches!(self.settled.clone().extend(part), Verdict::Broken(_) | Verdict::TooHard)
        };
        let mut part = self.recent.clone();
        for i in (0..part.len()).rev() {
            let entry = &part[i];
            let idle = match &entry.answer {
                Some((_, answer)) => self.checker.model.is_idle(&entry.op, answer),
                None => false,
            };
            if idle {
                let entry = part.remove(i);
                if !broken(&part) {
                    part.insert(i, entry);
                }
            }
        }
        Violation::Broken { before: self.settled.describe(), part }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::{Answer, Object, Op, Reject, Value};
    use super::*;

    fn entry(called: u64, op: Op, answer: Option<(u64, Answer)>) -> Entry<Op, Answer> {
        Entry { op, called, answer }
    }

    fn write(called: u64, version: u64) -> Entry<Op, Answer> {
        let op = Op::Write(Reject::default(), Value::Bytes(version));
        entry(called, op, Some((called + 1, Answer::Version(version))))
    }

    fn read(called: u64, version: u64) -> Entry<Op, Answer> {
        let answer = Answer::Read(version, Value::Bytes(version));
        entry(called, Op::Read(Reject::default()), Some((called + 1, answer)))
    }

    /// The memory of the stream does not grow with the history.
    #[test]
    fn a_long_history_is_forgotten_as_it_is_checked() {
        let mut stream = Stream::new(Object);
        for i in 1..10_000 {
            stream.add(write(i * 10, i));
            stream.add(read(i * 10 + 2, i));
            stream.advance(i * 10 + 3).expect("it is good");
            assert!(stream.waiting() <= 1 && stream.recent.len() <= 2, "{stream:?}");
        }
    }

    /// The stale read is shown with the write that it misses, and nothing else is: neither the
    /// operations before, nor the reads beside it.
    #[test]
    fn a_violation_is_explained_by_its_own_operations() {
        let mut stream = Stream::new(Object);
        for i in 1..100 {
            stream.add(write(i * 10, i));
        }
        // All overlap the write.
        let newest = Op::Write(Reject::default(), Value::Bytes(100));
        stream.add(entry(1000, newest, Some((1020, Answer::Version(100)))));
        stream.add(read(1002, 99));
        stream.add(read(1010, 100));
        stream.add(read(1012, 99));
        stream.add(read(1014, 100));
        let Err(Violation::Broken { before, part }) = stream.advance(2000) else {
            panic!("the read at 1012 is stale")
        };
        let calls: Vec<_> = part.iter().map(|entry| entry.called).collect();
        assert_eq!(calls, [1000, 1010, 1012], "{before}: {part:#?}");
        assert!(before.contains("99"), "{before}");
    }

    /// An operation without an answer stays open and may explain a read much later.
    #[test]
    fn an_operation_without_an_answer_stays_open() {
        let mut stream = Stream::new(Object);
        stream.add(entry(1, Op::Write(Reject::default(), Value::Bytes(7)), None));
        stream.add(write(2, 1));
        stream.advance(10).expect("it is good");
        stream.add(entry(
            20,
            Op::Read(Reject::default()),
            Some((21, Answer::Read(2, Value::Bytes(7)))),
        ));
        stream.advance(30).expect("the write happened late");
        stream.add(read(40, 1));
        assert!(matches!(stream.advance(50), Err(Violation::Broken { .. })));
    }
}
