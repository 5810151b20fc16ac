//! What one object of the store may do: a register with versions, which may also be a number; and what its tablet's end
//! means.
//!
//! What always holds, and is checked here: versions of a key only grow, also across its removal; one version has one
//! value; a rejected operation changes nothing; once the tablet is lost or its table dropped, nothing else is ever
//! answered.

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
    /// The version written.
    Written(u64),
    /// Removed: the version that was there, 0 if none.
    Removed(u64),
    /// The sum, and the version written.
    Sum(u64, Value),
    /// There is none.
    Missing,
    /// There is one.
    Exists,
    /// Its version is another.
    WrongVersion,
    /// It cannot be added to.
    NotANumber,
    /// The tablet is lost.
    Lost,
    /// The table is dropped.
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
    /// Nothing, for ever.
    Dropped,
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

    fn may_differ_from(self, version: u64) -> bool {
        self != Self::Is(version)
    }
}

/// How conditions may fail or hold.
enum Rule {
    /// They hold, and the version is then known to be this.
    Holds(Version),
    /// They fail with this answer.
    Fails(Answer),
}

impl Reject {
    /// How the conditions may turn out in `state`. More than one if the version is not known.
    fn may(self, state: &State, mut found: impl FnMut(Rule)) {
        let State::Here(version, _) = *state else {
            return found(if self.missing {
                Rule::Fails(Answer::Missing)
            } else {
                Rule::Holds(Version::Is(0))
            });
        };
        if self.exists {
            return found(Rule::Fails(Answer::Exists));
        }
        let mut held = Some(version);
        if let Some(le) = self.version_le {
            if version.least() <= le {
                found(Rule::Fails(Answer::WrongVersion));
            }
            held = match version {
                Version::Is(v) => (v > le).then_some(version),
                Version::Above(v) => Some(Version::Above(v.max(le))),
            };
        }
        if let (Some(ne), Some(version)) = (self.version_ne, held) {
            if version.may_differ_from(ne) {
                found(Rule::Fails(Answer::WrongVersion));
            }
            held = version.may_be(ne).then_some(Version::Is(ne));
        }
        if let Some(version) = held {
            found(Rule::Holds(version));
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
            (State::Lost, Some(Answer::Lost)) | (State::Dropped, Some(Answer::Dropped)) => {
                return next.push(*state);
            }
            // A table with a lost tablet is dropped to be rid of it.
            (_, Some(Answer::Dropped)) => return next.push(State::Dropped),
            (State::Dropped | State::Lost, _) => return,
            (_, Some(Answer::Lost)) => return next.push(State::Lost),
            _ => {}
        }
        op.reject().may(state, |rule| match rule {
            Rule::Fails(with) => {
                if answer == Some(&with) {
                    next.push(*state);
                }
            }
            Rule::Holds(version) => happen(state, version, op, answer, next),
        });
    }
}

/// `op` is not rejected and happens in `state`, whose object, if any, has this `version`.
fn happen(state: &State, version: Version, op: &Op, answer: Option<&Answer>, next: &mut Vec<State>) {
    let (here, floor) = match *state {
        State::Here(_, value) => (Some(value), version.least()),
        State::Missing(version) => (None, version.least()),
        State::Lost | State::Dropped => return,
    };
    match (op, here) {
        (Op::Read(_), None) => next.extend((answer == Some(&Answer::Missing)).then_some(*state)),
        (Op::Read(_), Some(value)) => {
            if let Some(&Answer::Read(v, read)) = answer
                && read == value
                && version.may_be(v)
            {
                next.push(State::Here(Version::Is(v), value));
            }
        }
        (Op::Write(_, value), _) => match answer {
            None => next.push(State::Here(Version::Above(floor), *value)),
            Some(&Answer::Written(v)) if v > floor => next.push(State::Here(Version::Is(v), *value)),
            Some(_) => {}
        },
        (Op::Remove(_), None) => next.extend((answer == Some(&Answer::Removed(0))).then_some(*state)),
        (Op::Remove(_), Some(_)) => match answer {
            None => next.push(State::Missing(version)),
            Some(&Answer::Removed(v)) if v != 0 && version.may_be(v) => {
                next.push(State::Missing(Version::Is(v)));
            }
            Some(_) => {}
        },
        (Op::AddInteger(..) | Op::AddDouble(..), _) => match (sum(here, op), answer) {
            (None, Some(Answer::NotANumber)) => next.push(*state),
            (Some(sum), None) => next.push(State::Here(Version::Above(floor), sum)),
            (Some(sum), Some(&Answer::Sum(v, s))) if s == sum && v > floor => {
                next.push(State::Here(Version::Is(v), sum));
            }
            _ => {}
        },
    }
}

/// What the object becomes; a missing one counts as zero. `None` if it is no number.
fn sum(here: Option<Value>, op: &Op) -> Option<Value> {
    let Value::Word(word) = here.unwrap_or(Value::Word(0)) else { return None };
    match op {
        Op::AddInteger(_, by) => Some(Value::Word(word.wrapping_add_signed(*by))),
        Op::AddDouble(_, by) => Some(Value::Word((f64::from_bits(word) + f64::from_bits(*by)).to_bits())),
        _ => None,
    }
}
