//! What a table's name may stand for: a register that holds the id of a table, or nothing.
//!
//! What always holds, and is checked here: an id is never used twice; who creates what exists gets its id.
//!
//! A creation carries no number (only mutations of objects do). If it happened, its answer was lost, and somebody dropped
//! the table before it was asked again, then it happens again: the drop and the creation are both told the truth, but
//! none of the two alone precedes the other. So it may happen any number of times between its call and its answer, the
//! last of which is answered.

use super::Model;

/// One name, from the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Name;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Create a table of this name, unless there is one.
    Create,
    /// Which table has this name?
    Lookup,
    /// Drop the table that has this name.
    Drop {
        /// Others are dropping it too: it may be one of them who does it.
        shared: bool,
    },
}

/// What is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The table.
    Table(u64),
    /// There is none.
    Missing,
    /// It is dropped.
    Dropped,
    /// The operation surely did not happen.
    Nothing,
}

/// What there is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The table.
    pub table: Table,
    /// The greatest id that was ever seen under this name.
    pub highest: u64,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Table {
    /// Nothing.
    None,
    /// This table.
    Is(u64),
    /// A table whose creator never heard its id.
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
        // A creation that found its table could not have created it later: no id is used twice.
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
        assert_eq!(linearizable(&Name, &history) == Verdict::Good, good, "{history:#?}");
    }

    #[test]
    fn a_name_stands_for_one_table_at_a_time() {
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
    fn a_creation_may_happen_again_until_it_is_answered() {
        let (create, drop) = (Op::Create, Op::Drop { shared: false });
        let verdict = |created: u64, lookup: Answer| {
            let told = |op, called, at, answer| Entry { op, called, answer: Some((at, answer)) };
            let history = [
                told(create, created, created + 10, Answer::Table(4)),
                told(drop, 2, 8, Answer::Dropped),
                told(Op::Lookup, 30, 31, lookup),
            ];
            linearizable(&Name, &history)
        };
        assert_eq!(verdict(1, Answer::Table(4)), Verdict::Good);
        assert_eq!(verdict(3, Answer::Table(4)), Verdict::Good);
        assert!(
            matches!(verdict(9, Answer::Table(4)), Verdict::Broken(_)),
            "there was nothing to drop"
        );
        assert!(
            matches!(verdict(3, Answer::Table(5)), Verdict::Broken(_)),
            "nobody asked for another one"
        );
        assert!(matches!(verdict(9, Answer::Missing), Verdict::Broken(_)));
    }
}
