//! The verdict of a run: the records of all clients, checked object by object while they come.
//!
//! ```text
//! clients ── records ──► history file
//!                   └──► one Stream for each object ──► the first violation
//! main thread ── faults ──► times until the next answer
//! ```
//!
//! The history of each object is checked alone: a history is linearizable if that of each object is
//! (Herlihy and Wing's locality). Records that have been checked are forgotten.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::json;
use sprat_sim::check::history::Name;
use sprat_sim::check::store::Answer;
use sprat_sim::check::stream::{Stream, Violation};

use super::expiry::{Expiring, Timed};
use super::history::{self, Outcome, Record};
use super::plan::Fault;
use crate::fail::{Fail, Named as _};

/// The time between two advances of the checker.
const ADVANCE_EVERY: Duration = Duration::from_millis(200);
/// The most different causes of operations without an outcome that the summary has.
const MOST_CAUSES: usize = 20;
/// The most operations of a violation that the summary shows.
const MOST_SHOWN: usize = 30;

/// The most messages that wait for the verdict. Clients wait while there are more.
pub(super) const MOST_MESSAGES: usize = 1 << 16;

/// A message to the verdict.
pub(super) enum Message {
    /// An operation has ended; if it failed or its outcome is unknown, with the cause.
    Ended(Record, Option<String>),
    /// A fault was injected at this time, in nanoseconds since the start of the run.
    Fault(Fault, u64),
}

/// The counts and times of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// The number of operations by outcome: ok, failed, unknown.
    pub operations: [u64; 3],
    /// The number of faults by the name of their kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// The violation of linearizability, as text. `None` if there is none.
    pub violation: Option<String>,
    /// The longest time of an operation that was answered, in nanoseconds.
    pub slowest_ns: u64,
    /// The time from each fault to the next answer, in nanoseconds, in ascending order.
    pub to_answer_ns: Vec<u64>,
    /// The causes of operations that failed or whose outcome is unknown, and their numbers.
    pub causes: BTreeMap<String, u64>,
    /// The number of objects.
    pub objects: usize,
    /// The time that the checker has worked.
    pub checked: Duration,
}

/// The verdict while records come.
pub struct Verdict {
    streams: HashMap<Name, Stream<Expiring>>,
    /// The objects whose streams have operations to check.
    waiting: Vec<Name>,
    file: Option<BufWriter<File>>,
    /// The times of faults, and of the first answer after each.
    faults: Vec<(u64, Option<u64>)>,
    summary: Summary,
}

impl Verdict {
    /// Makes the verdict of a run. It writes the history to `file` if there is one.
    pub fn new(file: Option<File>) -> Self {
        Self {
            streams: HashMap::new(),
            waiting: Vec::new(),
            file: file.map(BufWriter::new),
            faults: Vec::new(),
            summary: Summary::default(),
        }
    }

    /// Takes messages until all senders are dropped. `bound` returns a moment before which no
    /// further operation is called; all records of operations called before it have been sent.
    pub(super) fn follow(
        mut self,
        messages: &Receiver<Message>,
        bound: impl Fn() -> u64,
    ) -> Result<Summary, Fail> {
        let mut next = Instant::now() + ADVANCE_EVERY;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                match messages.recv_timeout(left) {
                    Ok(message) => self.take(message)?,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return self.end(),
                }
                continue;
            }
            // Read before the rest of the messages, which has all operations called before.
            let until = bound();
            for message in messages.try_iter().take(MOST_MESSAGES) {
                self.take(message)?;
            }
            self.advance(until);
            next = Instant::now() + ADVANCE_EVERY;
        }
    }

    fn take(&mut self, message: Message) -> Result<(), Fail> {
        let line = match message {
            Message::Ended(record, why) => {
                self.count(&record, why);
                let line = self.file.is_some().then(|| history::line(&record));
                self.add(&record);
                line
            }
            Message::Fault(fault, at_ns) => {
                *self.summary.faults.entry(fault.kind.name()).or_default() += 1;
                self.faults.push((at_ns, None));
                let (name, lasts) = (fault.kind.name(), fault.lasts.as_millis() as u64);
                let line = json!({
                    "fault": name, "servers": fault.servers, "at_ns": at_ns, "lasts_ms": lasts,
                });
                Some(line.to_string())
            }
        };
        match (&mut self.file, line) {
            (Some(file), Some(line)) => writeln!(file, "{line}").named("cannot write the history"),
            _ => Ok(()),
        }
    }

    fn count(&mut self, record: &Record, why: Option<String>) {
        let outcome = record.outcome();
        self.summary.operations[outcome as usize] += 1;
        if let Some(why) = why
            && (self.summary.causes.len() < MOST_CAUSES || self.summary.causes.contains_key(&why))
        {
            *self.summary.causes.entry(why).or_default() += 1;
        }
        let [called, ended] = record.times_ns;
        if outcome == Outcome::Ok {
            self.summary.slowest_ns = self.summary.slowest_ns.max(ended.saturating_sub(called));
            // Records come about in the order of their ends.
            for (at, next) in self
                .faults
                .iter_mut()
                .rev()
                .take_while(|(_, next)| next.is_none_or(|next| next > ended))
            {
                if ended >= *at {
                    *next = Some(next.map_or(ended, |next| next.min(ended)));
                }
            }
        }
    }

    /// Adds an operation to the history of its object.
    fn add(&mut self, record: &Record) {
        if let Some(answer @ (Answer::Lost | Answer::Dropped)) = record.answer {
            let text = format!("an object is {answer:?}: {}", history::line(record));
            self.summary.violation.get_or_insert(text);
            return;
        }
        let Some(entry) = record.entry() else { return };
        let stream = self.streams.entry(record.name).or_insert_with(|| Stream::new(Expiring));
        if stream.waiting() == 0 {
            self.waiting.push(record.name);
        }
        stream.add(entry);
    }

    /// Counts and adds an operation of a history that was written before.
    pub fn read(&mut self, record: &Record) {
        self.count(record, None);
        self.add(record);
    }

    /// Checks all histories up to the moment `until`: all operations called before it were added.
    pub fn advance(&mut self, until: u64) {
        let begin = Instant::now();
        for name in std::mem::take(&mut self.waiting) {
            let Some(stream) = self.streams.get_mut(&name) else { continue };
            if let Err(violation) = stream.advance(until) {
                let text = explain(name, &violation);
                self.summary.violation.get_or_insert(text);
                // The object has no further verdict.
                self.streams.insert(name, Stream::new(Expiring));
                continue;
            }
            if stream.waiting() > 0 {
                self.waiting.push(name);
            }
        }
        self.summary.checked += begin.elapsed();
    }

    /// Checks the rest of the histories, and returns the summary.
    pub fn end(mut self) -> Result<Summary, Fail> {
        self.advance(u64::MAX);
        if let Some(file) = &mut self.file {
            file.flush().named("cannot write the history")?;
        }
        self.summary.objects = self.streams.len();
        let next = self.faults.iter().filter_map(|(at, next)| Some(next.as_ref()? - at));
        self.summary.to_answer_ns = next.collect();
        self.summary.to_answer_ns.sort_unstable();
        Ok(self.summary)
    }
}

/// Returns a violation as text, with the operations that no order explains.
fn explain(name: Name, violation: &Violation<Timed, Answer>) -> String {
    let at = format!("table {}, key{}", name.0, name.1);
    match violation {
        Violation::TooHard => {
            format!("{at}: too many operations without an answer to check the history")
        }
        Violation::Broken { before, part } => {
            let mut text =
                format!("{at}: no order explains these operations; before them: {before}\n");
            let from = part.len().saturating_sub(MOST_SHOWN);
            if from > 0 {
                text += &format!("  ({from} more before these)\n");
            }
            for entry in &part[from..] {
                let [called, ended] = entry.op.times_ns.map(|ns| ns as f64 / 1e6);
                let answer = match &entry.answer {
                    Some((at, answer)) => format!("answered at {at} ({ended:.1} ms): {answer:?}"),
                    None => "no answer".to_owned(),
                };
                let (at, op) = (entry.called, &entry.op);
                text += &format!("  called at {at} ({called:.1} ms): {op:?}; {answer}\n");
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use sprat_sim::check::store::{Op, Reject, Value};

    use super::*;

    fn record(name: Name, op: Op, answer: Option<Answer>, moments: [u64; 2]) -> Record {
        let times_ns = moments.map(|moment| moment * 10);
        Record { client: 0, name, op, lifetime_ms: None, answer, moments, times_ns }
    }

    fn write(version: u64, at: u64) -> Record {
        let op = Op::Write(Reject::default(), Value::Bytes(version));
        record((1, 2), op, Some(Answer::Version(version)), [at, at + 1])
    }

    fn read(version: u64, at: u64) -> Record {
        let answer = Answer::Read(version, Value::Bytes(version));
        record((1, 2), Op::Read(Reject::default()), Some(answer), [at, at + 1])
    }

    fn verdict(records: &[Record]) -> Summary {
        let mut verdict = Verdict::new(None);
        for record in records {
            verdict.count(record, None);
            verdict.add(record);
            verdict.advance(record.moments[1]);
        }
        verdict.end().expect("it writes nothing")
    }

    #[test]
    fn a_lost_write_and_a_stale_read_are_found_and_shown() {
        let good = [write(1, 1), read(1, 3), write(2, 5), read(2, 7)];
        let summary = verdict(&good);
        assert_eq!((summary.violation, summary.operations), (None, [4, 0, 0]));
        // An acknowledged write is gone.
        let text = verdict(&[write(1, 1), write(2, 5), read(1, 7)]).violation.expect("found");
        assert!(text.starts_with("table 1, key2: ") && text.contains("called at 7"), "{text}");
        // A reader goes back in time.
        assert!(verdict(&[&good[..], &[read(1, 9)]].concat()).violation.is_some());
        let lost = record((1, 3), Op::Read(Reject::default()), Some(Answer::Lost), [9, 10]);
        let text = verdict(&[&good[..], &[lost]].concat()).violation.expect("found");
        assert!(text.contains("Lost"), "{text}");
    }

    /// A history that was written by hand may have any numbers. They give some verdict, no panic.
    #[test]
    fn wrong_moments_and_times_do_no_harm() {
        let mut backwards = read(1, 3);
        backwards.times_ns.reverse();
        let records = [write(1, 1), write(2, 1), backwards, read(2, 3), read(1, 2), write(3, 0)];
        assert_eq!(verdict(&records).operations, [6, 0, 0]);
    }

    #[test]
    fn the_time_from_a_fault_to_the_next_answer_is_taken() {
        let mut verdict = Verdict::new(None);
        for at_ns in [15, 25] {
            verdict.faults.push((at_ns, None));
        }
        for record in [write(1, 1), write(2, 3), write(3, 5)] {
            verdict.count(&record, None);
        }
        let summary = verdict.end().expect("it writes nothing");
        assert_eq!(summary.to_answer_ns, [5, 15], "the answers come at 20, 40 and 60");
    }
}
