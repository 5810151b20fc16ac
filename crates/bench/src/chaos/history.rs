//! The history of a run: each operation of each client with its call and its end, as a record in
//! memory and as a line of JSON (docs/chaos.md).
//!
//! A record has two clocks. *Moments* are numbers of one counter that all clients share: no two
//! moments are equal, and an operation that ended before another one was called has the lower
//! moment. The checkers use them. *Times* are nanoseconds of one monotonic clock, for people.

use serde::{Deserialize, Serialize};
use sprat_sim::check::Entry;
use sprat_sim::check::history::Name;
use sprat_sim::check::store::{Answer, Op, Reject, Value};

use super::expiry::Timed;

/// One operation of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The number of the client.
    pub client: u16,
    /// The object: the number of its table, and of its key.
    pub name: Name,
    /// The operation.
    pub op: Op,
    /// The lifetime that the operation gives the object, in milliseconds. `None` if the object then
    /// does not expire, or if the operation leaves the lifetime as it is.
    pub lifetime_ms: Option<u64>,
    /// The answer. `None` if the outcome is unknown.
    pub answer: Option<Answer>,
    /// The moments of the call and of the end.
    pub moments: [u64; 2],
    /// The times of the call and of the end, in nanoseconds since the start of the run.
    pub times_ns: [u64; 2],
}

impl Record {
    /// Returns the operation as the checker takes it. `None` if it proves nothing: a read whose
    /// outcome is unknown.
    pub fn entry(&self) -> Option<Entry<Timed, Answer>> {
        let answer = self.answer.map(|answer| (self.moments[1], answer));
        let proves = answer.is_some() || !matches!(self.op, Op::Read(_));
        let (lifetime_ms, times_ns) = (self.lifetime_ms, self.times_ns);
        let timed = || Timed { op: self.op.clone(), lifetime_ms, times_ns };
        proves.then(|| Entry { op: timed(), called: self.moments[0], answer })
    }

    /// Returns the outcome as one word.
    pub fn outcome(&self) -> Outcome {
        match self.answer {
            None => Outcome::Unknown,
            Some(Answer::Nothing | Answer::Lost | Answer::Dropped) => Outcome::Failed,
            Some(_) => Outcome::Ok,
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The store answered.
    Ok,
    /// The operation did not happen, and never will.
    Failed,
    /// The operation happened once or not at all, or may still happen.
    Unknown,
}

/// The name of an operation in a line of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Read,
    Write,
    Remove,
    Add,
    Append,
    Swap,
    Touch,
}

/// The name of an answer in a line of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Said {
    Value,
    Written,
    Sum,
    Swapped,
    Missing,
    Exists,
    WrongVersion,
    NotANumber,
    Overflow,
    Lost,
    Dropped,
    Nothing,
}

/// The value of an object in a line of the history: a number, the number that identifies its bytes,
/// or the one that identifies the pieces appended to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Content {
    Bytes(u64),
    Integer(i64),
    Chain(u64),
}

/// A line of the history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    client: u16,
    table: u64,
    key: u64,
    op: Verb,
    /// The value to write, or the number to add.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    value: Option<Content>,
    /// The lifetime that the operation gives the object.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    lifetime_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    if_exists: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    if_absent: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    if_version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    if_newer_than: Option<u64>,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    answer: Option<Said>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    version: Option<u64>,
    /// The value that was read, or the sum.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    result: Option<Content>,
    /// The version and the value that a swap has replaced.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    old_version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    old: Option<Content>,
    called: u64,
    ended: u64,
    called_ns: u64,
    ended_ns: u64,
}

impl From<Value> for Content {
    fn from(value: Value) -> Self {
        match value {
            Value::Bytes(tag) | Value::Expiring(tag) => Self::Bytes(tag),
            Value::Word(word) => Self::Integer(word.cast_signed()),
            Value::Chain(chain) => Self::Chain(chain),
        }
    }
}

impl From<Content> for Value {
    fn from(content: Content) -> Self {
        match content {
            Content::Bytes(tag) => Self::Bytes(tag),
            Content::Integer(number) => Self::Word(number.cast_unsigned()),
            Content::Chain(chain) => Self::Chain(chain),
        }
    }
}

/// Returns the record as a line of JSON, without a newline.
pub fn line(record: &Record) -> String {
    let (op, value, reject) = match record.op {
        Op::Read(reject) => (Verb::Read, None, reject),
        Op::Write(reject, value) => (Verb::Write, Some(value.into()), reject),
        Op::Remove(reject) => (Verb::Remove, None, reject),
        Op::AddInteger(reject, by) => (Verb::Add, Some(Content::Integer(by)), reject),
        Op::Append(reject, tag) => (Verb::Append, Some(Content::Bytes(tag)), reject),
        Op::Swap(reject, value) => (Verb::Swap, Some(value.into()), reject),
        Op::Touch(reject, _) => (Verb::Touch, None, reject),
        // No client adds doubles.
        Op::AddDouble(reject, bits) => (Verb::Add, Some(Content::Bytes(bits)), reject),
    };
    let (answer, version, result) = match record.answer {
        None => (None, None, None),
        Some(Answer::Read(v, value)) => (Some(Said::Value), Some(v), Some(value.into())),
        Some(Answer::Version(v)) => (Some(Said::Written), Some(v), None),
        Some(Answer::Sum(v, value)) => (Some(Said::Sum), Some(v), Some(value.into())),
        Some(Answer::Swapped(v, _)) => (Some(Said::Swapped), Some(v), None),
        Some(Answer::Missing) => (Some(Said::Missing), None, None),
        Some(Answer::Exists(v)) => (Some(Said::Exists), Some(v), None),
        Some(Answer::WrongVersion(v)) => (Some(Said::WrongVersion), Some(v), None),
        Some(Answer::NotANumber(v)) => (Some(Said::NotANumber), Some(v), None),
        Some(Answer::Overflow(v)) => (Some(Said::Overflow), Some(v), None),
        Some(Answer::Lost) => (Some(Said::Lost), None, None),
        Some(Answer::Dropped) => (Some(Said::Dropped), None, None),
        Some(Answer::Nothing) => (Some(Said::Nothing), None, None),
    };
    let old = match record.answer {
        Some(Answer::Swapped(_, old)) => old,
        _ => None,
    };
    let line = Line {
        client: record.client,
        table: record.name.0,
        key: record.name.1,
        op,
        value,
        lifetime_ms: record.lifetime_ms,
        if_exists: reject.missing,
        if_absent: reject.exists,
        if_version: reject.version_ne,
        if_newer_than: reject.version_le,
        outcome: record.outcome(),
        answer,
        version,
        result,
        old_version: old.map(|(version, _)| version),
        old: old.map(|(_, value)| value.into()),
        called: record.moments[0],
        ended: record.moments[1],
        called_ns: record.times_ns[0],
        ended_ns: record.times_ns[1],
    };
    serde_json::to_string(&line).unwrap_or_default()
}

/// Returns the record of a line of JSON. `None` if the line is about a fault.
///
/// # Errors
/// The line is no line of a history; the text says why.
pub fn record(text: &str) -> Result<Option<Record>, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if value.get("fault").is_some() {
        return Ok(None);
    }
    let line: Line = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let lacks = |what: &str| format!("the line lacks the field {what}");
    let reject = Reject {
        missing: line.if_exists,
        exists: line.if_absent,
        version_ne: line.if_version,
        version_le: line.if_newer_than,
    };
    let expires = line.lifetime_ms.is_some();
    let written = |value: Content| match (value.into(), expires) {
        (Value::Bytes(tag), true) => Value::Expiring(tag),
        (value, _) => value,
    };
    let op = match (line.op, line.value) {
        (Verb::Read, _) => Op::Read(reject),
        (Verb::Touch, _) => Op::Touch(reject, expires),
        (Verb::Write, Some(value)) => Op::Write(reject, written(value)),
        (Verb::Swap, Some(value)) => Op::Swap(reject, written(value)),
        (Verb::Remove, _) => Op::Remove(reject),
        (Verb::Add, Some(Content::Integer(by))) => Op::AddInteger(reject, by),
        (Verb::Append, Some(Content::Bytes(tag))) => Op::Append(reject, tag),
        _ => return Err(lacks("value")),
    };
    let version = || line.version.ok_or_else(|| lacks("version"));
    let result = || line.result.map(Value::from).ok_or_else(|| lacks("result"));
    let answer = line.answer.map(|said| {
        Ok::<_, String>(match said {
            Said::Value => Answer::Read(version()?, result()?),
            Said::Written => Answer::Version(version()?),
            Said::Sum => Answer::Sum(version()?, result()?),
            Said::Swapped => {
                Answer::Swapped(version()?, line.old_version.zip(line.old.map(Value::from)))
            }
            Said::Missing => Answer::Missing,
            Said::Exists => Answer::Exists(version()?),
            Said::WrongVersion => Answer::WrongVersion(version()?),
            Said::NotANumber => Answer::NotANumber(version()?),
            Said::Overflow => Answer::Overflow(version()?),
            Said::Lost => Answer::Lost,
            Said::Dropped => Answer::Dropped,
            Said::Nothing => Answer::Nothing,
        })
    });
    if line.called >= line.ended {
        return Err("the operation ends before its call".to_owned());
    }
    let record = Record {
        client: line.client,
        name: (line.table, line.key),
        op,
        lifetime_ms: line.lifetime_ms,
        answer: answer.transpose()?,
        moments: [line.called, line.ended],
        times_ns: [line.called_ns, line.ended_ns],
    };
    if record.outcome() != line.outcome {
        return Err("the outcome and the answer differ".to_owned());
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(op: Op, answer: Option<Answer>) -> Record {
        let expires = match op {
            Op::Write(_, value) | Op::Swap(_, value) => matches!(value, Value::Expiring(_)),
            Op::Touch(_, expires) => expires,
            _ => false,
        };
        let (moments, times_ns) = ([4, 9], [40, 95]);
        let lifetime_ms = expires.then_some(700);
        Record { client: 3, name: (1, 17), op, lifetime_ms, answer, moments, times_ns }
    }

    #[test]
    fn the_lines_of_a_history_are_fixed() {
        let reject = Reject { version_ne: Some(5), ..Reject::default() };
        let write = sample(Op::Write(reject, Value::Bytes(7)), Some(Answer::WrongVersion(6)));
        assert_eq!(
            line(&write),
            "{\"client\":3,\"table\":1,\"key\":17,\"op\":\"write\",\"value\":{\"bytes\":7},\
             \"if_version\":5,\"outcome\":\"ok\",\"answer\":\"wrong-version\",\"version\":6,\
             \"called\":4,\"ended\":9,\"called_ns\":40,\"ended_ns\":95}"
        );
        let add = sample(Op::AddInteger(Reject::default(), -2), None);
        assert_eq!(
            line(&add),
            "{\"client\":3,\"table\":1,\"key\":17,\"op\":\"add\",\"value\":{\"integer\":-2},\
             \"outcome\":\"unknown\",\"called\":4,\"ended\":9,\"called_ns\":40,\"ended_ns\":95}"
        );
        let touch = sample(Op::Touch(Reject::default(), true), Some(Answer::Missing));
        assert_eq!(
            line(&touch),
            "{\"client\":3,\"table\":1,\"key\":17,\"op\":\"touch\",\"lifetime_ms\":700,\
             \"outcome\":\"ok\",\"answer\":\"missing\",\"called\":4,\"ended\":9,\"called_ns\":40,\
             \"ended_ns\":95}"
        );
    }

    #[test]
    fn every_record_comes_back_from_its_line() {
        let reject = Reject { missing: true, version_le: Some(3), ..Reject::default() };
        let exists = Reject { exists: true, ..Reject::default() };
        let ops = [
            Op::Read(reject),
            Op::Write(exists, Value::Bytes(u64::MAX)),
            Op::Write(reject, Value::Word(1_u64.wrapping_neg())),
            Op::Remove(Reject::default()),
            Op::AddInteger(reject, i64::MIN),
            Op::Swap(exists, Value::Bytes(3)),
            Op::Write(reject, Value::Expiring(4)),
            Op::Swap(exists, Value::Expiring(5)),
            Op::Touch(reject, true),
            Op::Touch(exists, false),
        ];
        let answers = [
            Answer::Read(1, Value::Word(5)),
            Answer::Read(1, Value::Bytes(5)),
            Answer::Version(0),
            Answer::Sum(2, Value::Word(9)),
            Answer::Swapped(2, None),
            Answer::Swapped(3, Some((2, Value::Bytes(8)))),
            Answer::Missing,
            Answer::Exists(4),
            Answer::WrongVersion(4),
            Answer::NotANumber(4),
            Answer::Overflow(4),
            Answer::Lost,
            Answer::Dropped,
            Answer::Nothing,
        ];
        for op in ops {
            for answer in answers.into_iter().map(Some).chain([None]) {
                let sample = sample(op.clone(), answer);
                assert_eq!(record(&line(&sample)), Ok(Some(sample)));
            }
        }
    }

    #[test]
    fn a_wrong_line_says_what_is_wrong() {
        let good = line(&sample(Op::Remove(Reject::default()), Some(Answer::Version(2))));
        assert_eq!(record("{\"fault\":\"kill\"}"), Ok(None));
        for (from, to, why) in [
            ("\"version\":2,", "", "lacks the field version"),
            ("\"remove\"", "\"write\"", "lacks the field value"),
            ("\"remove\"", "\"move\"", "move"),
            ("\"ended\":9", "\"ended\":4", "before its call"),
            ("\"ok\"", "\"unknown\"", "differ"),
            ("\"client\":3", "\"clients\":3", "clients"),
            ("}", "", "EOF"),
        ] {
            let error = record(&good.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(why), "{error}");
        }
    }
}
