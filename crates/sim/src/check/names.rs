//! What a table's name may stand for: a register that holds the id of a table, or nothing.
//!
//! What always holds, and is checked here: an id is never used twice; who creates what exists gets its id.

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
        /// Others are dropping or creating it too: it may seem to have dropped nothing.
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
            (Op::Create, None) => {
                next.extend((table == Table::None).then_some(State { table: Table::New, highest }))
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
            .map(|(at, &(op, answer))| Entry { op, called: at, answer: answer.map(|a| (at + 1, a)) })
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
            &[(create, None), (lookup, Some(Answer::Missing)), (lookup, table(4)), (lookup, table(4))],
        );
        check(false, &[(create, None), (lookup, table(4)), (lookup, table(5))]);
        check(true, &[(create, table(1)), (drop, None), (lookup, table(1)), (lookup, Some(Answer::Missing))]);
    }
}
