//! A second opinion about the histories of `sprat chaos`: the crate porcupine-rs searches an order
//! of the operations of each object, by a model of its own. It shares no code with the product or
//! the simulator: it reads the lines as docs/chaos.md describes them.

use std::collections::BTreeMap;

use porcupine_rs::{Model, Operation, check_operations};
use serde_json::Value as Json;

/// The value of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Value {
    Bytes(u64),
    Integer(i64),
    Chain(u64),
}

/// The version of an object, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Version {
    Exactly(u64),
    Above(u64),
}

impl Version {
    fn may_be(self, version: u64) -> bool {
        match self {
            Self::Exactly(v) => v == version,
            Self::Above(v) => version > v,
        }
    }

    /// Returns a bound that every next version exceeds.
    fn floor(self) -> u64 {
        match self {
            Self::Exactly(v) => v,
            Self::Above(v) => v + 1,
        }
    }
}

/// An object: the version of the last change, and the value unless it does not exist.
type Object = (Version, Option<Value>);

/// The times between which an object expires, in nanoseconds. `None` if it does not.
type Expiry = Option<(u64, u64)>;

/// The most by which clocks differ, in nanoseconds.
const APART_NS: u64 = 250_000_000;

/// An operation with its answer.
#[derive(Clone, Debug)]
struct Op {
    line: Json,
}

impl Op {
    fn number(&self, field: &str) -> Option<u64> {
        self.line[field].as_u64()
    }

    fn is(&self, field: &str, value: &str) -> bool {
        self.line[field].as_str() == Some(value)
    }

    fn value(&self, field: &str) -> Option<Value> {
        let value = &self.line[field];
        let bytes = value["bytes"].as_u64().map(Value::Bytes);
        let chain = value["chain"].as_u64().map(Value::Chain);
        bytes.or(chain).or_else(|| value["integer"].as_i64().map(Value::Integer))
    }

    /// Returns the value that the operation gives the object, and `None` if the operation fails.
    fn effect(&self, before: Option<Value>) -> Option<Option<Value>> {
        match (self.line["op"].as_str()?, before, self.value("value")) {
            ("read", before, _) => Some(before),
            ("write" | "swap", _, Some(value)) => Some(Some(value)),
            ("touch", Some(value @ Value::Bytes(_)), _) => Some(Some(value)),
            ("remove", ..) => Some(None),
            ("add", before, Some(Value::Integer(by))) => {
                match before.unwrap_or(Value::Integer(0)) {
                    Value::Integer(number) => Some(Some(Value::Integer(number.checked_add(by)?))),
                    Value::Bytes(_) | Value::Chain(_) => None,
                }
            }
            ("append", before, Some(Value::Bytes(tag))) => {
                match before.unwrap_or(Value::Chain(0)) {
                    Value::Chain(chain) => {
                        let mixed = (chain ^ tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        Some(Some(Value::Chain(mixed.rotate_left(29) | 1)))
                    }
                    Value::Bytes(_) | Value::Integer(_) => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the answer that the conditions give in the place of the operation: its name.
    fn refusal(&self, version: u64, exists: bool) -> Option<&'static str> {
        let set = |field: &str| self.line[field].as_bool() == Some(true);
        if !exists {
            return set("if_exists").then_some("missing");
        }
        if set("if_absent") {
            return Some("exists");
        }
        let other = self.number("if_version").is_some_and(|wanted| wanted != version);
        let old = self.number("if_newer_than").is_some_and(|than| version <= than);
        (other || old).then_some("wrong-version")
    }

    /// Executes an operation whose outcome is unknown.
    fn perhaps(&self, (version, value): Object) -> Object {
        // The one version under which the conditions may hold, or any above the known one.
        let guess = match (version, self.number("if_version")) {
            (Version::Exactly(v), _) => v,
            (Version::Above(_), Some(wanted)) if version.may_be(wanted) => wanted,
            (Version::Above(v), _) => 1 + v.max(self.number("if_newer_than").unwrap_or(0)),
        };
        if self.refusal(guess, value.is_some()).is_some() {
            return (version, value);
        }
        let floor = version.floor().max(guess);
        match self.effect(value) {
            Some(None) if value.is_some() => (version, None),
            Some(Some(after)) => (Version::Above(floor), Some(after)),
            _ => (version, value),
        }
    }
}

/// The model of one object.
#[derive(Clone, Debug)]
struct Store;

impl Model for Store {
    type State = (Object, Expiry);
    type Op = Op;
    type Metadata = ();

    fn init() -> Self::State {
        ((Version::Exactly(0), None), None)
    }

    fn step(&(before, expiry): &Self::State, op: &Op) -> (bool, Self::State) {
        let time = |field: &str| op.number(field).unwrap_or_default();
        let is_open = op.is("outcome", "unknown");
        let (called, ended) =
            (time("called_ns"), if is_open { u64::MAX } else { time("ended_ns") });
        let here = expiry.is_none_or(|(_, last)| called <= last.saturating_add(APART_NS));
        let gone = expiry.is_some_and(|(first, _)| ended.saturating_add(APART_NS) >= first);
        // What an operation without an answer does to an object that it does not find is nothing,
        // or the same. With an answer, at most one of both is right, or both have the same end.
        for before in [here.then_some(before), gone.then_some((before.0, None))] {
            let Some(before) = before else { continue };
            let (right, after) = Self::happen(&before, op);
            if right && (!is_open || after != before || !gone) {
                let lifetime = op.number("lifetime_ms").map(|ms| ms.saturating_mul(1_000_000));
                let gives = ["write", "swap", "touch"].iter().any(|name| op.is("op", name))
                    && (is_open || op.is("answer", "written") || op.is("answer", "swapped"));
                let given = lifetime.map(|lifetime| {
                    (called.saturating_add(lifetime), ended.saturating_add(lifetime))
                });
                let expiry = if gives { given } else { expiry };
                return (true, (after, expiry.filter(|_| after.1.is_some())));
            }
        }
        (is_open, (before, expiry))
    }
}

impl Store {
    /// Executes an operation on an object that exists or does not. Returns false if it cannot have
    /// had its answer.
    fn happen(&(version, value): &Object, op: &Op) -> (bool, Object) {
        let state = (version, value);
        let wrong = (false, state);
        if op.is("outcome", "unknown") {
            return (true, op.perhaps(state));
        }
        let Some(answer) = op.line["answer"].as_str() else { return wrong };
        let said = op.number("version");
        // The version of the object before the operation, if the answer tells or implies it.
        let told = match answer {
            "value" | "exists" | "wrong-version" | "not-a-number" => said,
            "written" if op.is("op", "remove") && value.is_some() => said,
            "swapped" => op.number("old_version"),
            _ => op.number("if_version").filter(|v| version.may_be(*v)),
        };
        let before = match (version, told) {
            (_, Some(told)) if value.is_some() => {
                if !version.may_be(told) {
                    return wrong;
                }
                told
            }
            (Version::Exactly(v), _) => v,
            (Version::Above(v), _) => 1 + v.max(op.number("if_newer_than").unwrap_or(0)),
        };
        let refusal = op.refusal(before, value.is_some());
        let known = (Version::Exactly(before), value);
        match answer {
            "nothing" => (true, state),
            "missing" if value.is_none() => {
                let needs_one = op.is("op", "read") || op.is("op", "touch");
                (refusal == Some("missing") || needs_one, state)
            }
            "exists" | "wrong-version" => (refusal == Some(answer) && value.is_some(), known),
            _ if refusal.is_some() => wrong,
            "value" => {
                (op.is("op", "read") && value.is_some() && op.value("result") == value, known)
            }
            "not-a-number" => (matches!(value, Some(Value::Bytes(_))), known),
            "written" if op.is("op", "remove") => match value {
                Some(_) => (true, (Version::Exactly(before), None)),
                None => (said == Some(0), state),
            },
            "swapped" if op.value("old") != value || !op.is("op", "swap") => wrong,
            "swapped" if op.number("old_version").is_some() != value.is_some() => wrong,
            "written" if op.is("op", "swap") => wrong,
            "written" | "sum" | "swapped" => {
                let (Some(after), Some(said)) = (op.effect(value).flatten(), said) else {
                    return wrong;
                };
                let right = answer != "sum" || op.value("result") == Some(after);
                let grows = said > version.floor().max(before * u64::from(value.is_some()));
                (right && grows, (Version::Exactly(said), Some(after)))
            }
            _ => wrong,
        }
    }
}

/// Returns true if an order explains the history of each object. Lines about faults are left out.
pub(crate) fn is_linearizable(history: &[&str]) -> bool {
    let mut objects: BTreeMap<(u64, u64), Vec<Operation<Store>>> = BTreeMap::new();
    for text in history {
        let line: Json = serde_json::from_str(text).expect("a line of JSON");
        if line.get("fault").is_some() {
            continue;
        }
        let op = Op { line };
        let is_open = op.is("outcome", "unknown");
        if is_open && op.is("op", "read") {
            continue;
        }
        let time = |field: &str| op.number(field).expect("a moment") as i64;
        let operation = Operation {
            client_id: op.number("client").map(|client| client as u32),
            call_time: time("called"),
            // It may happen at any later time; at the end it has no effect that anyone sees.
            return_time: if is_open { i64::MAX } else { time("ended") },
            metadata: None,
            op: op.clone(),
        };
        let object = (op.number("table").expect("a table"), op.number("key").expect("a key"));
        objects.entry(object).or_default().push(operation);
    }
    objects.values().all(|operations| check_operations(operations))
}
