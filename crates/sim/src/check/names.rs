//! The specification of a table's name: a register that holds the id of a table, or nothing.
//!
//! Always, and the checker verifies it: an id is never reused, and a creation of an existing table
//! returns its id.
//!
//! A creation has no RIFL number (only mutations of objects have). If it happened, its answer was
//! lost, and another client dropped the table before the retry, it happens again. Both answers are
//! true then, but neither operation alone precedes the other. So a creation may happen any number
//! of times between its call and its answer, and the answer is that of the last time.

use super::Model;

/// The specification of one table name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Name;

/// An operation on a table name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Create a table with this name unless it exists.
    Create,
    /// Look up the table with this name.
    Lookup,
    /// Drop the table with this name.
    Drop {
        /// True if other clients drop the table at the same time, so that one of their drops may
        /// take effect instead.
        shared: bool,
    },
}

/// The answer to an operation on a table name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The id of the table with this name.
    Table(u64),
    /// No table has this name.
    Missing,
    /// The table with this name is dropped.
    Dropped,
    /// The operation on the table name certainly did not happen.
    Nothing,
}

/// The state of a table name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The table that has this name.
    pub table: Table,
    /// The highest table id that any answer reported for this name.
    pub highest: u64,
}

/// The table that a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Table {
    /// No table has the name that the checker follows.
    None,
    /// The table with this id has the name that the checker follows.
    Is(u64),
    /// A table whose id no answer has reported has the name that the checker follows.
    New,
}

impl Model for Name {
    type Op = Op;
    type Answer = Answer;
    type State = State;

    fn initial(&self) -> State {
        State { table: Table::None, highest: 0 }
    }

    fn step(&self, state: &State, op: &Op, answer: Option<&Answer>, next: &mut Vec<State>) {
        let State { table, highest } = *state;
        if answer == Some(&Answer::Nothing) {
            return next.push(*state);
        }
        match (op, answer) {
            (Op::Create | Op::Lookup, Some(&Answer::Table(id))) => {
                let found = table == Table::Is(id) || (table == Table::New && id > highest);
                let created = *op == Op::Create && table == Table::None && id > highest;
                if found || created {
                    next.push(State { table: Table::Is(id), highest: highest.max(id) });
                }
            }
            (Op::Lookup | Op::Drop { .. }, Some(Answer::Missing)) => {
                next.extend((table == Table::None).then_some(*state));
            }
            (Op::Drop { shared }, Some(Answer::Dropped)) => {
                if table != Table::None {
                    next.push(State { table: Table::None, highest });
                }
                if *shared {
                    next.push(*state);
                }
            }
            (Op::Drop { .. }, None) if table != Table::None => {
                next.push(State { table: Table::None, highest });
            }
            _ => {}
        }
    }

    fn earlier_try(&self, state: &State, op: &Op, answer: Option<&Answer>, next: &mut Vec<State>) {
        if *op == Op::Create && state.table == Table::None && answer != Some(&Answer::Nothing) {
            next.push(State { table: Table::New, ..*state });
        }
    }

    fn is_idle(&self, _op: &Op, answer: &Answer) -> bool {
        // A creation that found its table cannot create it later, because ids are not reused.
        *answer != Answer::Dropped
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, Verdict, linearizable};
    use super::*;

    fn check(good: bool, steps: &[(Op, Option<Answer>)]) {
        let history: Vec<_> = (0..)
            .step_by(2)
            .zip(steps)
            .map(|(at, &(op, answer))| Entry {
                op,
                called: at,
                answer: answer.map(|a| (at + 1, a)),
            })
            .collect();
        assert_eq!(linearizable(Name, &history) == Verdict::Good, good, "{history:#?}");
    }

    #[test]
    fn a_name_has_one_table_at_a_time() {
        let (create, lookup, drop) = (Op::Create, Op::Lookup, Op::Drop { shared: false });
        let table = |id| Some(Answer::Table(id));
        check(true, &[(create, table(1)), (create, table(1)), (lookup, table(1))]);
        check(false, &[(create, table(1)), (create, table(2))]);
        check(true, &[(create, table(1)), (drop, Some(Answer::Dropped)), (create, table(2))]);
        check(false, &[(create, table(1)), (drop, Some(Answer::Dropped)), (create, table(1))]);
        check(false, &[(create, table(1)), (drop, Some(Answer::Dropped)), (lookup, table(1))]);
        check(false, &[(create, table(1)), (lookup, Some(Answer::Missing))]);
        check(false, &[(drop, Some(Answer::Dropped))]);
        check(
            true,
            &[
                (create, None),
                (lookup, Some(Answer::Missing)),
                (lookup, table(4)),
                (lookup, table(4)),
            ],
        );
        check(false, &[(create, None), (lookup, table(4)), (lookup, table(5))]);
        check(
            true,
            &[
                (create, table(1)),
                (drop, None),
                (lookup, table(1)),
                (lookup, Some(Answer::Missing)),
            ],
        );
    }

    #[test]
    fn a_creation_may_happen_again_until_its_answer() {
        let (create, drop) = (Op::Create, Op::Drop { shared: false });
        let verdict = |created: u64, lookup: Answer| {
            let entry = |op, called, at, answer| Entry { op, called, answer: Some((at, answer)) };
            let history = [
                entry(create, created, created + 10, Answer::Table(4)),
                entry(drop, 2, 8, Answer::Dropped),
                entry(Op::Lookup, 30, 31, lookup),
            ];
            linearizable(Name, &history)
        };
        assert_eq!(verdict(1, Answer::Table(4)), Verdict::Good);
        assert_eq!(verdict(3, Answer::Table(4)), Verdict::Good);
        assert!(
            matches!(verdict(9, Answer::Table(4)), Verdict::Broken(_)),
            "the drop had no table"
        );
        assert!(
            matches!(verdict(3, Answer::Table(5)), Verdict::Broken(_)),
            "the table was created once"
        );
        assert!(matches!(verdict(9, Answer::Missing), Verdict::Broken(_)));
    }
}
