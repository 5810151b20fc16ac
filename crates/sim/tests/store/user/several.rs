//! The operations of a simulated user on several objects at once: multi-operations and
//! transactions.
//!
//! The parts of a transaction are recorded as operations on their objects. That they happen
//! together is the concern of [`crate::transactions`].

use sprat_proto::Instant;
use sprat_proto::rpc::Payload;
use sprat_sim::check::store;
use sprat_store::client::{
    Answer, Change as Planned, Error, Part, PartAnswer, PartRequest, TransactionPart,
};
use sprat_store::types::TableId;

use super::{Asked, User};
use crate::draw::{Change, Drawn, key_bytes};
use crate::score::Score;

/// Returns the value with these bytes, as an answer has it.
fn store_value(bytes: &[u8]) -> sprat_store::client::Value<'_> {
    sprat_store::client::Value::new(Payload::Borrowed(bytes), 0)
}

/// Returns the answer that an operation would get if it came alone.
fn whole_answer(part: PartAnswer<'_>) -> Answer<'_> {
    match part {
        PartAnswer::Object { version, value } => {
            Answer::Object { version, value: store_value(value) }
        }
        PartAnswer::Version(version) => Answer::Version(version),
        PartAnswer::Length { version, length } => Answer::Length { version, length },
        PartAnswer::Swapped { version, before, value } => {
            Answer::Swapped { version, before, value: store_value(value) }
        }
        PartAnswer::Integer { version, sum } => Answer::Integer { version, sum },
        PartAnswer::Double { version, sum } => Answer::Double { version, sum },
        other => panic!("{other:?}"),
    }
}

impl User {
    /// Records the ends of the parts of a multi-operation.
    pub(super) fn several_ended(
        &mut self,
        score: &mut Score,
        asked: Vec<(usize, u64, u64)>,
        outcome: Result<Answer<'_>, Error>,
    ) {
        let Ok(Answer::Parts(parts)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(parts.len(), asked.len());
        for (asked, part) in asked.into_iter().zip(parts.iter()) {
            let outcome = part.map(whole_answer).map_err(Clone::clone);
            self.object_ended(score, asked, outcome);
        }
    }

    /// Asks for operations on several objects at once, of the tables that the user knows.
    pub(super) fn ask_several(&mut self, score: &mut Score, deadline: Instant) {
        let count = 2 + self.rng.below(3);
        let drawn: Vec<(u64, Drawn, Vec<u8>)> = (0..count)
            .map(|_| {
                let back = self.rng.below(self.tables.len().min(3) as u64) as usize;
                let table = self.tables[self.tables.len() - 1 - back];
                let drawn = self.draw().draw(score);
                let key = key_bytes(drawn.key);
                (table, drawn, key)
            })
            .collect();
        let parts = drawn.iter().map(|(table, drawn, key)| Part {
            table: TableId(*table),
            key,
            rules: drawn.rules,
            request: match &drawn.change {
                Change::Read => PartRequest::Read,
                Change::Write(value) => PartRequest::Write(value),
                Change::WriteExpiring(value, lifetime) => {
                    PartRequest::WriteExpiring(value, *lifetime)
                }
                Change::Touch(lifetime) => PartRequest::Touch(*lifetime),
                Change::Remove => PartRequest::Remove,
                Change::Append(piece) => PartRequest::Append(piece),
                Change::Swap(value, lifetime) => PartRequest::Swap(value, *lifetime),
                Change::Add(amount) => PartRequest::Increment(*amount),
            },
        });
        let op = self.client().multi(parts, deadline);
        let parts = drawn.into_iter().map(|(table, drawn, _)| {
            (score.history.call((table, drawn.key), drawn.asked), table, drawn.key)
        });
        self.asked.insert(op, Asked::Several(parts.collect()));
    }

    /// Asks for a transaction over objects of the tables that the user knows.
    pub(super) fn ask_transaction(&mut self, score: &mut Score, deadline: Instant) {
        let count = 1 + self.rng.below(4);
        let mut drawn: Vec<(u64, Drawn, Vec<u8>)> = Vec::new();
        for _ in 0..count {
            let back = self.rng.below(self.tables.len().min(3) as u64) as usize;
            let table = self.tables[self.tables.len() - 1 - back];
            let one = self.draw().draw(score);
            let is_there = drawn.iter().any(|(of, other, _)| (*of, other.key) == (table, one.key));
            let fits = matches!(
                one.change,
                Change::Read | Change::Write(_) | Change::WriteExpiring(..) | Change::Remove
            );
            if fits && !is_there {
                let key = key_bytes(one.key);
                drawn.push((table, one, key));
            }
        }
        if drawn.is_empty() {
            return;
        }
        let parts: Vec<_> = drawn
            .iter()
            .map(|(table, drawn, key)| TransactionPart {
                table: TableId(*table),
                key,
                rules: drawn.rules,
                change: match &drawn.change {
                    Change::Write(value) => Planned::Write(value, None),
                    Change::WriteExpiring(value, lifetime) => {
                        Planned::Write(value, Some(*lifetime))
                    }
                    Change::Remove => Planned::Remove,
                    _ => Planned::Check,
                },
            })
            .collect();
        let op = self.client().transact(&parts, deadline);
        let mut numbers = Vec::new();
        for (index, (table, drawn, _)) in drawn.into_iter().enumerate() {
            // A check has no answer of its own.
            if !matches!(drawn.change, Change::Read) {
                numbers.push((index, score.history.call((table, drawn.key), drawn.asked)));
            }
        }
        self.asked.insert(op, Asked::Transaction(numbers));
    }

    /// Records the ends of the parts of a transaction.
    pub(super) fn transaction_ended(
        &mut self,
        score: &mut Score,
        asked: &[(usize, usize)],
        outcome: Result<Answer<'_>, Error>,
    ) {
        let versions = match outcome {
            Ok(Answer::Committed(versions)) => versions,
            Err(
                Error::Conflict { .. }
                | Error::NoSpace
                | Error::TransactionTooLong(_)
                | Error::Deadline { maybe_executed: false, .. },
            ) => {
                let nothing = Some(store::Answer::Nothing);
                return asked.iter().for_each(|&(_, n)| score.history.end(n, nothing));
            }
            // Only some of its tables may be lost or dropped.
            Err(
                Error::Unknown
                | Error::Deadline { .. }
                | Error::NotDurable { .. }
                | Error::TooFewServers
                | Error::TabletLost
                | Error::TableDoesntExist,
            ) => return asked.iter().for_each(|&(_, number)| score.history.end(number, None)),
            other => panic!("{other:?}"),
        };
        for &(index, number) in asked {
            let version = versions[index].0;
            self.versions.push(version);
            score.history.end(number, Some(store::Answer::Version(version)));
        }
    }
}
