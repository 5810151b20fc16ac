//! Multi-operations: several operations on objects that start and end together.
//!
//! Each part has a slot and a status of its own, as if it came alone. [`super::bundle`] sends parts
//! to one master in one request.
//!
//! Invariant: a multi-operation ends when its last part has ended.

use sprat_proto::Instant;

use super::answer::{Answer, Done};
use super::error::Error;
use super::op::Op;
use super::parts::{Part, PartAnswer, PartOf, PartRequest, Results};
use super::state::{Client, Kind, State, op};
use crate::message::data::Amount;
use crate::types::MAX_PARTS;

impl Client {
    /// Starts several operations on objects, of any tables. The answer is [`Answer::Parts`]: each
    /// part has its own result. The parts have no order among each other, and one may fail while
    /// another succeeds. Each mutation happens exactly once, as if it came alone.
    pub fn multi<'a, I>(&mut self, parts: I, deadline: Instant) -> Op
    where
        I: IntoIterator<Item = Part<'a>, IntoIter: ExactSizeIterator>,
    {
        let parts = parts.into_iter();
        let op = self.begin_multi(parts.len(), deadline);
        self.add_parts(op, parts);
        self.end_multi(op);
        op
    }

    /// Begins a multi-operation of this number of parts, as [`Client::multi`] starts it at once.
    /// Its parts follow by [`Client::add_parts`]. They may be sent before the last one is added.
    pub fn begin_multi(&mut self, parts: usize, deadline: Instant) -> Op {
        let index = self.begin(Kind::Multi, 0, deadline);
        let op = op(index, &self.slots[index as usize]);
        if parts > MAX_PARTS {
            self.refuse(index, Error::TooManyParts(parts));
        } else {
            // Counts as a part, so that the multi-operation does not end before all have started.
            self.results(index).begin();
        }
        op
    }

    /// Adds parts to a multi-operation that has begun. Ignores them if it has ended.
    pub fn add_parts<'a>(&mut self, op: Op, parts: impl IntoIterator<Item = Part<'a>>) {
        let Some(multi) = self.live(op.0) else { return };
        let deadline = self.slots[multi as usize].deadline;
        for request in parts {
            let part = self.results(multi).begin_part();
            self.starting = Some(PartOf { multi, part });
            self.start_part(&request, deadline);
            self.starting = None;
        }
    }

    /// Ends the start of a multi-operation: it has all parts.
    pub fn end_multi(&mut self, op: Op) {
        if let Some(multi) = self.live(op.0) {
            let done = self.end_part(multi);
            self.events.extend(done);
        }
    }

    fn start_part(&mut self, part: &Part<'_>, deadline: Instant) {
        let &Part { table, key, rules, request } = part;
        match request {
            PartRequest::Read => self.read(table, key, rules, deadline),
            PartRequest::LookUp(query) => self.look_up(table, key, query, deadline),
            PartRequest::Write(value) => self.write(table, key, value, rules, deadline),
            PartRequest::WriteExpiring(value, lifetime) => {
                self.write_expiring(table, key, value, lifetime, rules, deadline)
            }
            PartRequest::Touch(lifetime) => self.touch(table, key, lifetime, rules, deadline),
            PartRequest::Remove => self.remove(table, key, rules, deadline),
            PartRequest::Append(bytes) => self.append(table, key, bytes, rules, deadline),
            PartRequest::Swap(value, lifetime) => {
                self.swap(table, key, value, lifetime, rules, deadline)
            }
            PartRequest::Increment(Amount::Integer(amount)) => {
                self.increment_integer(table, key, amount, rules, deadline)
            }
            PartRequest::Increment(Amount::Double(amount)) => {
                self.increment_double(table, key, amount, rules, deadline)
            }
        };
    }

    pub(super) fn results(&mut self, multi: u32) -> &mut Results {
        &mut self.slots[multi as usize].extra().results
    }

    /// Keeps the outcome of a part. Returns the multi-operation if that was its last part.
    pub(super) fn part_ended(
        &mut self,
        part: PartOf,
        outcome: Result<Answer<'_>, Error>,
    ) -> Option<Done<'static>> {
        let result = match &outcome {
            Ok(Answer::Object { version, value }) => {
                Ok(PartAnswer::Object { version: *version, value })
            }
            Ok(Answer::Version(version)) => Ok(PartAnswer::Version(*version)),
            &Ok(Answer::Integer { version, sum }) => Ok(PartAnswer::Integer { version, sum }),
            &Ok(Answer::Double { version, sum }) => Ok(PartAnswer::Double { version, sum }),
            &Ok(Answer::Length { version, length }) => Ok(PartAnswer::Length { version, length }),
            Ok(Answer::Swapped { version, before, value }) => {
                Ok(PartAnswer::Swapped { version: *version, before: *before, value })
            }
            Ok(other) => unreachable!("no part is answered by {other:?}"),
            Err(error) => Err(error.clone()),
        };
        self.results(part.multi).keep(part.part, result);
        self.end_part(part.multi)
    }

    /// Counts a part that has ended. Returns the multi-operation if that was the last one.
    fn end_part(&mut self, multi: u32) -> Option<Done<'static>> {
        let parts = self.results(multi).end_part()?;
        Some(Done { op: self.end(multi), outcome: Ok(Answer::Parts(parts)) })
    }

    /// Ends the parts of an operation, without outcomes.
    pub(super) fn end_parts(&mut self, multi: u32) {
        if self.slots[multi as usize].kind != Kind::Multi {
            return;
        }
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            let is_part = slot.part_of.is_some_and(|part| part.multi == multi);
            if slot.state != State::Free && is_part {
                self.end(index);
            }
        }
    }
}
