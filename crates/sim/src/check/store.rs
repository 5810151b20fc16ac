//! The specification of one object of the store: a register with versions that may also be a
//! number and that may expire, and the end of its tablet.
//!
//! An object with a lifetime may be gone at any time. Once an answer has said so, it stays gone.
//! The time itself is the test's to check: [`Object::step_while`] takes what it says.
//!
//! Always, and the checker verifies it: the versions of a key only grow, also across its removal;
//! one version has one value; a rejected operation changes nothing; a lost tablet gives no other
//! answer. A drop of a table does not take effect for all clients at once: see [`super::history`].

use super::Model;

/// The specification of one object of the store, for the linearizability checker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Object;

/// The value of an object of the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// Bytes that are not a number. The test identifies them by this tag.
    Bytes(u64),
    /// The eight bytes of a number: an integer, or the bits of a double, as the operation
    /// interprets it.
    Word(u64),
    /// Pieces that were appended one after the other, as [`chain`] mixes their tags.
    Chain(u64),
    /// Bytes as in `Bytes`, of an object that may expire.
    Expiring(u64),
}

impl Value {
    /// Returns the value as an answer to a read reports it.
    fn read(self) -> Self {
        if let Self::Expiring(tag) = self { Self::Bytes(tag) } else { self }
    }
}

/// Returns the chain of `before`, 0 at first, with one more piece that `tag` identifies.
#[must_use]
pub fn chain(before: u64, tag: u64) -> u64 {
    (before ^ tag).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) | 1
}

/// The reject rules of an operation on an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reject {
    /// Reject the operation if the object does not exist.
    pub missing: bool,
    /// Reject the operation if the object exists.
    pub exists: bool,
    /// Reject the operation if the object has another version.
    pub version_ne: Option<u64>,
    /// Reject the operation if the object has this version or a lower one.
    pub version_le: Option<u64>,
}

/// An operation on an object of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read the object, unless the reject rules reject it.
    Read(Reject),
    /// Write the object, unless the reject rules reject it.
    Write(Reject, Value),
    /// Remove the object, unless the reject rules reject it.
    Remove(Reject),
    /// Add a number to the object, which is an integer.
    AddInteger(Reject, i64),
    /// Add a double to the object, which is a double. The number is the bits of the summand.
    AddDouble(Reject, u64),
    /// Append the piece with this tag to the object, which is a chain.
    Append(Reject, u64),
    /// Give the object, which is bytes, a lifetime if true, or let it exist without end.
    Touch(Reject, bool),
    /// Write the object and return the one before, unless the reject rules reject it.
    Swap(Reject, Value),
}

/// The answer to an operation on an object of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The version and the value of the object that was read.
    Read(u64, Value),
    /// The version of the object that was written or removed (0 if there was no object).
    Version(u64),
    /// The version that an addition has written, and the sum.
    Sum(u64, Value),
    /// The version that a swap has written, and the version and the value of the object before, if
    /// there was one.
    Swapped(u64, Option<(u64, Value)>),
    /// The answer that the object does not exist.
    Missing,
    /// The answer that the object exists, with this version.
    Exists(u64),
    /// The object has another version than the reject rules require: this one.
    WrongVersion(u64),
    /// The answer that the object with this version is not a number.
    NotANumber(u64),
    /// The sum of an addition with the object of this version overflows.
    Overflow(u64),
    /// The tablet of the object is lost.
    Lost,
    /// The table of the object is dropped or being dropped.
    Dropped,
    /// The operation on the object certainly did not happen.
    Nothing,
}

/// The state of an object of the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// The object does not exist. Versions of earlier objects with its key were at most this one.
    Missing(Version),
    /// The object exists, with this version and value.
    Here(Version, Value),
    /// The tablet of the object is lost for good.
    Lost,
}

/// The checker's knowledge of an object's version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Version {
    /// The checker knows the object's version: this one.
    Is(u64),
    /// The checker knows only that the object's version is higher than this one; no answer has
    /// reported it.
    Above(u64),
}

impl Version {
    fn least(self) -> u64 {
        match self {
            Self::Is(v) => v,
            Self::Above(v) => v + 1,
        }
    }

    fn may_be(self, version: u64) -> bool {
        match self {
            Self::Is(v) => v == version,
            Self::Above(v) => version > v,
        }
    }
}

impl Reject {
    /// Returns true if a reject rule about versions rejects an object with this version.
    fn breaks(self, version: u64) -> bool {
        self.version_le.is_some_and(|le| version <= le)
            || self.version_ne.is_some_and(|ne| version != ne)
    }

    /// Returns the knowledge of an object's version after no reject rule has rejected it; none if a
    /// rule certainly rejects it.
    fn holds(self, version: Version) -> Option<Version> {
        match (version, self.version_ne) {
            (Version::Is(v), _) => (!self.breaks(v)).then_some(version),
            (Version::Above(_), Some(ne)) => {
                (version.may_be(ne) && !self.breaks(ne)).then_some(Version::Is(ne))
            }
            (Version::Above(v), None) => Some(Version::Above(v.max(self.version_le.unwrap_or(0)))),
        }
    }
}

impl Object {
    /// Does what [`Model::step`] does, for an operation at a time when an object that expires may
    /// still be `here`, and may be `gone`.
    pub fn step_while(
        &self,
        (here, gone): (bool, bool),
        state: &State,
        op: &Op,
        answer: Option<&Answer>,
        next: &mut Vec<State>,
    ) {
        match (state, answer) {
            (_, Some(Answer::Nothing)) => return next.push(*state),
            (_, Some(Answer::Lost)) => return next.push(State::Lost),
            (State::Lost, _) => return,
            _ => {}
        }
        let State::Here(version, Value::Expiring(_)) = *state else {
            return apply_rules(state, op, answer, next);
        };
        if here {
            apply_rules(state, op, answer, next);
        }
        if gone {
            apply_rules(&State::Missing(version), op, answer, next);
        }
    }
}

impl Op {
    fn reject(&self) -> Reject {
        match self {
            Self::Read(r) | Self::Write(r, _) | Self::Remove(r) | Self::Touch(r, _) => *r,
            Self::AddInteger(r, _) | Self::AddDouble(r, _) | Self::Append(r, _) => *r,
            Self::Swap(r, _) => *r,
        }
    }
}

impl Model for Object {
    type Op = Op;
    type Answer = Answer;
    type State = State;

    fn initial(&self) -> State {
        State::Missing(Version::Is(0))
    }

    fn step(&self, state: &State, op: &Op, answer: Option<&Answer>, next: &mut Vec<State>) {
        self.step_while((true, true), state, op, answer, next);
    }

    fn is_idle(&self, op: &Op, answer: &Answer) -> bool {
        match answer {
            Answer::Version(v) => *v == 0 && matches!(op, Op::Remove(_)),
            Answer::Sum(..) | Answer::Swapped(..) | Answer::Dropped => false,
            // After one answer that the tablet is lost, the others have no effect: the state stays
            // as it is. Without this, the orders of many such answers exceed the checker's limit.
            _ => true,
        }
    }

    fn is_over(&self, state: &State, op: &Op, answer: &Answer) -> bool {
        let (State::Missing(version) | State::Here(version, _)) = *state else { return false };
        let least = version.least();
        match *answer {
            // A removal and a removal of nothing write no version.
            Answer::Version(v) if matches!(op, Op::Remove(_)) => 0 < v && v < least,
            Answer::Version(v) | Answer::Sum(v, _) | Answer::Swapped(v, _) => v <= least,
            Answer::Read(v, _) | Answer::Exists(v) | Answer::WrongVersion(v) => v < least,
            Answer::NotANumber(v) | Answer::Overflow(v) => v < least,
            Answer::Missing | Answer::Lost | Answer::Dropped | Answer::Nothing => false,
        }
    }

    fn covers(&self, state: &State, other: &State) -> bool {
        match (*state, *other) {
            // Only the lower bound of the next version matters.
            (State::Missing(a) | State::Here(a, Value::Expiring(_)), State::Missing(b)) => {
                a.least() <= b.least()
            }
            (State::Here(a, value), State::Here(b, other)) if value == other => match (a, b) {
                (Version::Above(_), _) => a.least() <= b.least(),
                _ => a == b,
            },
            _ => state == other,
        }
    }
}

/// Applies the reject rules of `op` to an object, then `op`.
fn apply_rules(state: &State, op: &Op, answer: Option<&Answer>, next: &mut Vec<State>) {
    let reject = op.reject();
    let State::Here(version, value) = *state else {
        match (reject.missing, answer) {
            (true, Some(Answer::Missing)) => next.push(*state),
            (true, _) => {}
            (false, _) => apply(state, Version::Is(0), op, answer, next),
        }
        return;
    };
    // An answer that reports the version determines it.
    let is = |v: u64| version.may_be(v).then_some(State::Here(Version::Is(v), value));
    match answer {
        Some(&Answer::Exists(v)) => next.extend(is(v).filter(|_| reject.exists)),
        Some(&Answer::WrongVersion(v)) => {
            next.extend(is(v).filter(|_| !reject.exists && reject.breaks(v)))
        }
        _ if reject.exists => {}
        _ => {
            if let Some(version) = reject.holds(version) {
                apply(state, version, op, answer, next);
            }
        }
    }
}

/// Applies `op`, which no reject rule rejects, to `state`, whose object, if any, has this
/// `version`.
fn apply(state: &State, version: Version, op: &Op, answer: Option<&Answer>, next: &mut Vec<State>) {
    let (here, floor) = match *state {
        State::Here(_, value) => (Some(value), version.least()),
        State::Missing(version) => (None, version.least()),
        State::Lost => return,
    };
    let written = |value| match answer {
        None => Some(State::Here(Version::Above(floor), value)),
        Some(&Answer::Version(v)) if v > floor => Some(State::Here(Version::Is(v), value)),
        Some(&Answer::Sum(v, sum)) if v > floor && sum == value => {
            Some(State::Here(Version::Is(v), value))
        }
        Some(_) => None,
    };
    match (op, here) {
        (Op::Read(_), None) => next.extend((answer == Some(&Answer::Missing)).then_some(*state)),
        (Op::Read(_), Some(value)) => match answer {
            Some(&Answer::Read(v, read)) if read == value.read() && version.may_be(v) => {
                next.push(State::Here(Version::Is(v), value));
            }
            _ => {}
        },
        (Op::Write(_, value), _) => {
            next.extend(written(*value).filter(|_| !matches!(answer, Some(Answer::Sum(..)))));
        }
        (Op::Swap(_, value), here) => {
            next.extend(swapped(here, (version, floor), answer).map(|v| State::Here(v, *value)));
        }
        (Op::Touch(..), None) => next.extend((answer == Some(&Answer::Missing)).then_some(*state)),
        (Op::Touch(_, expires), Some(Value::Bytes(tag) | Value::Expiring(tag))) => {
            let value = if *expires { Value::Expiring(tag) } else { Value::Bytes(tag) };
            next.extend(written(value).filter(|_| !matches!(answer, Some(Answer::Sum(..)))));
        }
        (Op::Touch(..), Some(_)) => {}
        (Op::Append(_, tag), here) => {
            let before = match here {
                Some(Value::Chain(before)) => before,
                None => 0,
                Some(_) => return,
            };
            let value = Value::Chain(chain(before, *tag));
            next.extend(written(value).filter(|_| !matches!(answer, Some(Answer::Sum(..)))));
        }
        (Op::Remove(_), None) => {
            next.extend((answer == Some(&Answer::Version(0))).then_some(*state))
        }
        (Op::Remove(_), Some(_)) => match answer {
            None => next.push(State::Missing(version)),
            Some(&Answer::Version(v)) if version.may_be(v) => {
                next.push(State::Missing(Version::Is(v)))
            }
            Some(_) => {}
        },
        (Op::AddInteger(..) | Op::AddDouble(..), _) => match (sum(here, op), answer) {
            (Err(Refused::NotANumber), Some(&Answer::NotANumber(v)))
            | (Err(Refused::Overflow), Some(&Answer::Overflow(v)))
                if version.may_be(v) =>
            {
                next.extend(here.map(|value| State::Here(Version::Is(v), value)));
            }
            (Ok(sum), answer) if !matches!(answer, Some(Answer::Version(_))) => {
                next.extend(written(sum))
            }
            _ => {}
        },
    }
}

/// Returns the version that a swap has written over the object `here` of this `version`, or where
/// versions were at most `floor`; none if the swap cannot have got this answer.
fn swapped(
    here: Option<Value>,
    (version, floor): (Version, u64),
    answer: Option<&Answer>,
) -> Option<Version> {
    let Some(answer) = answer else { return Some(Version::Above(floor)) };
    let &Answer::Swapped(new, old) = answer else { return None };
    let fits = match (here, old) {
        (None, None) => new > floor,
        (Some(here), Some((before, old))) => {
            version.may_be(before) && old == here.read() && new > before
        }
        _ => false,
    };
    fits.then_some(Version::Is(new))
}

/// The reason why an addition to an object is refused.
enum Refused {
    NotANumber,
    Overflow,
}

/// Returns the value of an object after an addition. A missing object counts as zero.
fn sum(here: Option<Value>, op: &Op) -> Result<Value, Refused> {
    let Value::Word(word) = here.unwrap_or(Value::Word(0)) else { return Err(Refused::NotANumber) };
    match op {
        Op::AddInteger(_, by) => {
            let sum = word.cast_signed().checked_add(*by).ok_or(Refused::Overflow)?;
            Ok(Value::Word(sum.cast_unsigned()))
        }
        Op::AddDouble(_, by) => {
            Ok(Value::Word((f64::from_bits(word) + f64::from_bits(*by)).to_bits()))
        }
        _ => Err(Refused::NotANumber),
    }
}
