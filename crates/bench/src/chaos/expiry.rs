//! The checker's model of an object of a run, which may expire: the simulator's model of an object,
//! and the times between which its lifetime ends.
//!
//! ```text
//!  called      ended             first          last
//! ───┴── write ──┴─── present ─────┴── either ────┴──── absent ───►
//!                                  │◄─ as long ──►│  and both ± APART
//! ```
//!
//! A lifetime starts when the server executes the operation: at some time between its call and its
//! end. An operation of which some moment comes before `last` may find the object, and one of which
//! some moment comes after `first` may find none. All processes of a run read the clock of one
//! machine.
//!
//! Always: the times only restrict what the simulator's model allows. Without a lifetime, both are
//! the same.

use std::fmt;

use sprat_sim::check::Model;
use sprat_sim::check::store::{self, Answer, Object, Op, Value};

/// The most by which the times of servers and clients differ, in nanoseconds: a server counts in
/// milliseconds, from a reading of the wall clock that is up to a second old, and by the time at
/// which its turn began. On a busy machine other processes interrupt a turn.
const APART_NS: u64 = 250_000_000;
const MS: u64 = 1_000_000;

/// An operation of a run with its times.
#[derive(Clone)]
pub struct Timed {
    /// The operation.
    pub op: Op,
    /// The lifetime that the operation gives the object, in milliseconds, if any.
    pub lifetime_ms: Option<u64>,
    /// The times of the call and of the end, in nanoseconds since the start of the run.
    pub times_ns: [u64; 2],
}

/// Equal operations of which none has an answer may change their places: the one that was called
/// first may happen at each time at which the other one may.
impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.op == other.op && self.lifetime_ms == other.lifetime_ms
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.op)?;
        self.lifetime_ms.map_or(Ok(()), |ms| write!(f, " for {ms} ms"))
    }
}

/// The state of an object.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    object: store::State,
    /// The first and the last time at which the object may expire, in nanoseconds since the start
    /// of the run. Both are 0 for an object that does not expire.
    expires_ns: [u64; 2],
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.object)?;
        match self.expires_ns {
            [0, 0] => Ok(()),
            [first, u64::MAX] => write!(f, " until {} ms or later", first / MS),
            [first, last] => write!(f, " until {} to {} ms", first / MS, last / MS),
        }
    }
}

/// The specification of an object that may expire, for the checker.
#[derive(Clone, Copy, Debug)]
pub struct Expiring;

impl Timed {
    /// Returns the time before which the operation has happened. An operation without an answer may
    /// happen at any time.
    fn end_ns(&self, answer: Option<&Answer>) -> u64 {
        answer.map_or(u64::MAX, |_| self.times_ns[1])
    }

    /// Returns the times between which the lifetime ends that the operation has given. `None` if it
    /// has given none.
    fn gives(&self, answer: Option<&Answer>) -> Option<[u64; 2]> {
        let happened = matches!(answer, None | Some(Answer::Version(_) | Answer::Swapped(..)));
        let lifetime_ns = self.lifetime_ms.filter(|_| happened)?.saturating_mul(MS);
        let times_ns = [self.times_ns[0], self.end_ns(answer)];
        Some(times_ns.map(|time| time.saturating_add(lifetime_ns)))
    }
}

impl Model for Expiring {
    type Op = Timed;
    type Answer = Answer;
    type State = State;

    fn initial(&self) -> State {
        State { object: Object.initial(), expires_ns: [0; 2] }
    }

    fn step(&self, state: &State, op: &Timed, answer: Option<&Answer>, next: &mut Vec<State>) {
        let [first, last] = state.expires_ns;
        let here = op.times_ns[0] <= last.saturating_add(APART_NS);
        let gone = op.end_ns(answer).saturating_add(APART_NS) >= first;
        let given = op.gives(answer).unwrap_or(state.expires_ns);
        let mut objects = Vec::new();
        Object.step_while((here, gone), &state.object, &op.op, answer, &mut objects);
        next.extend(objects.into_iter().map(|object| {
            let expires = matches!(object, store::State::Here(_, Value::Expiring(_)));
            State { object, expires_ns: if expires { given } else { [0; 2] } }
        }));
    }

    fn is_idle(&self, op: &Timed, answer: &Answer) -> bool {
        Object.is_idle(&op.op, answer)
    }

    fn covers(&self, state: &State, other: &State) -> bool {
        let ([first, last], [from, to]) = (state.expires_ns, other.expires_ns);
        // The simulator's object may be gone at any time, and this one may not.
        let expires =
            |state: &State| matches!(state.object, store::State::Here(_, Value::Expiring(_)));
        expires(state) == expires(other)
            && first <= from
            && to <= last
            && Object.covers(&state.object, &other.object)
    }
}

#[cfg(test)]
mod tests {
    use sprat_sim::check::store::Reject;
    use sprat_sim::check::{Entry, Verdict, linearizable};

    use super::*;

    const APART_MS: u64 = APART_NS / MS;

    /// An operation with its lifetime, its answer and its times in milliseconds.
    type Step = (Op, Option<u64>, Option<Answer>, [u64; 2]);

    /// Makes a history of operations.
    fn history(steps: &[Step]) -> Vec<Entry<Timed, Answer>> {
        let entry = |(at, (op, lifetime_ms, answer, times)): (u64, &Step)| {
            let times_ns = times.map(|ms| ms * MS);
            let timed = Timed { op: op.clone(), lifetime_ms: *lifetime_ms, times_ns };
            Entry { op: timed, called: 2 * at, answer: answer.map(|answer| (2 * at + 1, answer)) }
        };
        (0..).zip(steps).map(entry).collect()
    }

    fn is_good(steps: &[Step]) -> bool {
        linearizable(Expiring, &history(steps)) == Verdict::Good
    }

    #[test]
    fn an_object_exists_until_its_lifetime_may_have_ended_and_not_after_it_has() {
        let none = Reject::default();
        let version = |version| Some(Answer::Version(version));
        let write =
            |answer, times| (Op::Write(none, Value::Expiring(7)), Some(1_000), answer, times);
        let read = |answer, times| (Op::Read(none), None, Some(answer), times);
        let value = Answer::Read(1, Value::Bytes(7));
        let written = || write(version(1), [100, 150]);
        let (first, last) = (1_100 - APART_MS, 1_150 + APART_MS);
        for (answer, times, good) in [
            (Answer::Missing, [200, first - 1], false),
            (Answer::Missing, [200, first], true),
            (Answer::Missing, [9_000, 9_001], true),
            (value, [200, 300], true),
            (value, [last, 9_000], true),
            (value, [last + 1, 9_000], false),
        ] {
            assert_eq!(is_good(&[written(), read(answer, times)]), good, "{answer:?} {times:?}");
        }
        // Once gone, it is gone. A removal needs no time.
        let between = [first, last];
        assert!(!is_good(&[written(), read(Answer::Missing, between), read(value, between),]));
        let remove = (Op::Remove(none), None, version(1), [160, 170]);
        assert!(is_good(&[written(), remove, read(Answer::Missing, [180, 190])]));
        // A write without an answer happens at any time, but not before its call.
        assert!(is_good(&[write(None, [100, 150]), read(value, [9_000, 9_001])]));
        let other = (Op::Write(none, Value::Bytes(8)), None, version(1), [100, 110]);
        let late = read(Answer::Read(2, Value::Bytes(7)), [120, 130]);
        let unanswered = || write(None, [100, 105]);
        let gone = |end| read(Answer::Missing, [140, end]);
        assert!(is_good(&[other.clone(), unanswered(), late.clone(), gone(first)]));
        assert!(!is_good(&[other, unanswered(), late, gone(first - 1)]));
    }

    #[test]
    fn touches_and_conditions_know_the_lifetime() {
        let none = Reject::default();
        let version = |version| Some(Answer::Version(version));
        let written = || (Op::Write(none, Value::Expiring(7)), Some(1_000), version(1), [100, 150]);
        let read = |answer, times| (Op::Read(none), None, Some(answer), times);
        let touch = |lifetime: Option<u64>, times| {
            (Op::Touch(none, lifetime.is_some()), lifetime, version(2), times)
        };
        let value = Answer::Read(2, Value::Bytes(7));
        // Another lifetime, a shorter one, and none.
        let longer = || touch(Some(5_000), [200, 250]);
        assert!(is_good(&[written(), longer(), read(value, [5_000, 5_001])]));
        assert!(!is_good(&[written(), longer(), read(Answer::Missing, [3_000, 3_001])]));
        assert!(!is_good(&[written(), longer(), read(value, [6_000, 6_001])]));
        let shorter = touch(Some(10), [200, 250]);
        assert!(is_good(&[written(), shorter, read(Answer::Missing, [300, 310])]));
        let endless = || touch(None, [200, 250]);
        assert!(is_good(&[written(), endless(), read(value, [90_000, 90_001])]));
        assert!(!is_good(&[written(), endless(), read(Answer::Missing, [90_000, 90_001])]));
        // What is gone cannot be touched, and is there for no condition.
        let late = [9_000, 9_001];
        assert!(!is_good(&[written(), touch(Some(10), late)]));
        let exists = Reject { exists: true, ..none };
        let add = |answer, times| (Op::Write(exists, Value::Bytes(8)), None, Some(answer), times);
        assert!(is_good(&[written(), add(Answer::Version(2), late)]));
        assert!(!is_good(&[written(), add(Answer::Exists(1), late)]));
        assert!(is_good(&[written(), add(Answer::Exists(1), [300, 301])]));
        assert!(!is_good(&[written(), add(Answer::Version(2), [300, 301])]));
    }
}
