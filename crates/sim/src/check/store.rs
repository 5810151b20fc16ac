//! What one object of the store may do: a register with versions, which may also be a number; and what its tablet's end
//! means.
//!
//! What always holds, and is checked here: versions of a key only grow, also across its removal; one version has one
//! value; a rejected operation changes nothing; once the tablet is lost, nothing else is ever answered. While a table is
//! being dropped some may hear of it before others: see [`super::history`].

use super::Model;

/// One object, from its creation on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Object;

/// What an object holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// Bytes that are no number; the test knows them by this one.
    Bytes(u64),
    /// Eight bytes: an integer, or the bits of a double, as one likes to see it.
    Word(u64),
}

/// The conditions of an operation: what must not be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reject {
    /// Reject if there is no object.
    pub missing: bool,
    /// Reject if there is one.
    pub exists: bool,
    /// Reject if its version is not this one.
    pub version_ne: Option<u64>,
    /// Reject if its version is this one or less.
    pub version_le: Option<u64>,
}

/// What is asked of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read it.
    Read(Reject),
    /// Write it.
    Write(Reject, Value),
    /// Remove it.
    Remove(Reject),
    /// Add to an integer.
    AddInteger(Reject, i64),
    /// Add to a double a double with these bits.
    AddDouble(Reject, u64),
}

/// What is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The object read.
    Read(u64, Value),
    /// To a write: the version written; to a removal: the version that was there, 0 if none.
    Version(u64),
    /// The sum, and the version written.
    Sum(u64, Value),
    /// There is none.
    Missing,
    /// There is one, of this version.
    Exists(u64),
    /// Its version is another one: this.
    WrongVersion(u64),
    /// It cannot be added to; its version.
    NotANumber(u64),
    /// The sum would not fit; its version.
    Overflow(u64),
    /// The tablet is lost.
    Lost,
    /// The table is dropped, or being dropped.
    Dropped,
    /// The operation surely did not happen.
    Nothing,
}

/// What there is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// No object; if there was one, its version was at most this.
    Missing(Version),
    /// An object.
    Here(Version, Value),
    /// Nothing, for ever.
    Lost,
}

/// What is known of a version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Version {
    /// It is this.
    Is(u64),
    /// It is more than this: its writer never heard.
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
    /// Whether an object of this version breaks a rule about versions.
    fn breaks(self, version: u64) -> bool {
        self.version_le.is_some_and(|le| version <= le)
            || self.version_ne.is_some_and(|ne| version != ne)
    }

    /// What is known of an object's version if it breaks no rule; `None` if it surely breaks one.
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

impl Op {
    fn reject(&self) -> Reject {
        match self {
            Self::Read(r) | Self::Write(r, _) | Self::Remove(r) => *r,
            Self::AddInteger(r, _) | Self::AddDouble(r, _) => *r,
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
        match (state, answer) {
            (_, Some(Answer::Nothing)) => return next.push(*state),
            (_, Some(Answer::Lost)) => return next.push(State::Lost),
            (State::Lost, _) => return,
            _ => {}
        }
        judge(state, op, answer, next);
    }

    fn is_idle(&self, op: &Op, answer: &Answer) -> bool {
        match answer {
            Answer::Version(v) => *v == 0 && matches!(op, Op::Remove(_)),
            Answer::Sum(..) | Answer::Lost | Answer::Dropped => false,
            _ => true,
        }
    }

    fn covers(&self, state: &State, other: &State) -> bool {
        match (*state, *other) {
            // Only what the next version must exceed matters.
            (State::Missing(a), State::Missing(b)) => a.least() <= b.least(),
            (State::Here(a, value), State::Here(b, other)) if value == other => match (a, b) {
                (Version::Above(_), _) => a.least() <= b.least(),
                _ => a == b,
            },
            _ => state == other,
        }
    }
}

/// Applies the conditions of `op`, then `op`.
fn judge(state: &State, op: &Op, answer: Option<&Answer>, next: &mut Vec<State>) {
    let reject = op.reject();
    let State::Here(version, value) = *state else {
        match (reject.missing, answer) {
            (true, Some(Answer::Missing)) => next.push(*state),
            (true, _) => {}
            (false, _) => happen(state, Version::Is(0), op, answer, next),
        }
        return;
    };
    // An answer that names the version as it is settles what that is.
    let is = |v: u64| version.may_be(v).then_some(State::Here(Version::Is(v), value));
    match answer {
        Some(&Answer::Exists(v)) => next.extend(is(v).filter(|_| reject.exists)),
        Some(&Answer::WrongVersion(v)) => {
            next.extend(is(v).filter(|_| !reject.exists && reject.breaks(v)))
        }
        _ if reject.exists => {}
        _ => {
            if let Some(version) = reject.holds(version) {
                happen(state, version, op, answer, next);
            }
        }
    }
}

/// `op` is not rejected and happens in `state`, whose object, if any, has this `version`.
fn happen(
    state: &State,
    version: Version,
    op: &Op,
    answer: Option<&Answer>,
    next: &mut Vec<State>,
) {
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
            Some(&Answer::Read(v, read)) if read == value && version.may_be(v) => {
                next.push(State::Here(Version::Is(v), value));
            }
            _ => {}
        },
        (Op::Write(_, value), _) => {
            next.extend(written(*value).filter(|_| !matches!(answer, Some(Answer::Sum(..)))));
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

/// Why nothing is added.
enum Refused {
    NotANumber,
    Overflow,
}

/// What the object becomes; a missing one counts as zero.
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
