//! Multi-operations: several operations on objects in few requests, for both kinds of client.

use std::time::Duration;

use sprat_store::client::{Answer, Error, Part as Bare, PartAnswer, PartRequest, Parts};
use sprat_store::message::data::Amount;
use sprat_store::types::{Lifetime, TableId, Version};

use super::condition::Condition;
use super::machine::{Outcome, unexpected};
use super::object::{Number, Object, in_ms};

/// A part of a multi-operation: an operation on one object of any table.
///
/// ```
/// use sprat::kv::{Condition, Part, TableId};
/// let birds = TableId(7);
/// let parts = [
///     Part::get(birds, b"sprat"),
///     Part::put(birds, b"eagle", b"a bird").only(Condition::if_absent()),
/// ];
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part<'a>(pub(super) Bare<'a>);

impl<'a> Part<'a> {
    fn new(table: TableId, key: &'a [u8], request: PartRequest<'a>) -> Self {
        Self(Bare { table, key, rules: Condition::always().0, request })
    }

    /// Makes a part that reads an object. Its answer is [`PartAnswer::Object`].
    #[must_use]
    pub fn get(table: TableId, key: &'a [u8]) -> Self {
        Self::new(table, key, PartRequest::Read)
    }

    /// Makes a part that writes an object. Its answer is [`PartAnswer::Version`].
    #[must_use]
    pub fn put(table: TableId, key: &'a [u8], value: &'a [u8]) -> Self {
        Self::new(table, key, PartRequest::Write(value))
    }

    /// Makes a part that writes an object that expires, as
    /// [`Table::put_expiring`](super::Table::put_expiring) does. Its answer is
    /// [`PartAnswer::Version`].
    #[must_use]
    pub fn put_expiring(
        table: TableId,
        key: &'a [u8],
        value: &'a [u8],
        lifetime: Duration,
    ) -> Self {
        Self::new(table, key, PartRequest::WriteExpiring(value, in_ms(lifetime)))
    }

    /// Makes a part that gives an object another lifetime, as
    /// [`Table::touch`](super::Table::touch) does. Its answer is [`PartAnswer::Version`].
    #[must_use]
    pub fn touch(table: TableId, key: &'a [u8], lifetime: Option<Duration>) -> Self {
        Self::new(table, key, PartRequest::Touch(lifetime.map(in_ms)))
    }

    /// Makes a part that removes an object. Its answer is [`PartAnswer::Version`], 0 if there was
    /// no object.
    #[must_use]
    pub fn remove(table: TableId, key: &'a [u8]) -> Self {
        Self::new(table, key, PartRequest::Remove)
    }

    /// Makes a part that adds to an integer as [`Table::increment`](super::Table::increment) does.
    /// Its answer is [`PartAnswer::Integer`].
    #[must_use]
    pub fn increment(table: TableId, key: &'a [u8], amount: i64) -> Self {
        Self::new(table, key, PartRequest::Increment(Amount::Integer(amount)))
    }

    /// Makes a part that adds to a double as
    /// [`Table::increment_double`](super::Table::increment_double) does. Its answer is
    /// [`PartAnswer::Double`].
    #[must_use]
    pub fn increment_double(table: TableId, key: &'a [u8], amount: f64) -> Self {
        Self::new(table, key, PartRequest::Increment(Amount::Double(amount)))
    }

    /// Makes a part that adds bytes to the end of a value as
    /// [`Table::append`](super::Table::append) does. Its answer is [`PartAnswer::Length`].
    #[must_use]
    pub fn append(table: TableId, key: &'a [u8], bytes: &'a [u8]) -> Self {
        Self::new(table, key, PartRequest::Append(bytes))
    }

    /// Makes a part that writes an object and returns the one before, as
    /// [`Table::swap_if`](super::Table::swap_if) does. Its answer is [`PartAnswer::Swapped`].
    #[must_use]
    pub fn swap(
        table: TableId,
        key: &'a [u8],
        value: &'a [u8],
        lifetime: Option<Duration>,
    ) -> Self {
        Self::new(table, key, PartRequest::Swap(value, lifetime.map(in_ms)))
    }

    /// Returns the part with a condition: it fails if the condition does not hold.
    #[must_use]
    pub fn only(mut self, condition: Condition) -> Self {
        self.0.rules = condition.0;
        self
    }
}

/// The request of a part with bytes of its own.
#[derive(Debug)]
enum Request {
    Read,
    LookUp(Vec<u8>),
    Write(Vec<u8>),
    WriteExpiring(Vec<u8>, Lifetime),
    Touch(Option<Lifetime>),
    Remove,
    Increment(Amount),
    Append(Vec<u8>),
    Swap(Vec<u8>, Option<Lifetime>),
}

/// The parts of a multi-operation with bytes of their own, for another thread.
#[derive(Debug)]
pub(super) struct OwnedParts(Vec<(Part<'static>, Vec<u8>, Request)>);

impl OwnedParts {
    /// Copies the parts.
    pub(super) fn new<'a>(parts: impl IntoIterator<Item = Part<'a>>) -> Self {
        let parts = parts.into_iter().map(|Part(part)| {
            let request = match part.request {
                PartRequest::LookUp(query) => Request::LookUp(query.to_vec()),
                PartRequest::Write(value) => Request::Write(value.to_vec()),
                PartRequest::WriteExpiring(value, lifetime) => {
                    Request::WriteExpiring(value.to_vec(), lifetime)
                }
                PartRequest::Touch(lifetime) => Request::Touch(lifetime),
                PartRequest::Remove => Request::Remove,
                PartRequest::Append(bytes) => Request::Append(bytes.to_vec()),
                PartRequest::Increment(amount) => Request::Increment(amount),
                PartRequest::Swap(value, lifetime) => Request::Swap(value.to_vec(), lifetime),
                _ => Request::Read,
            };
            let bare =
                Bare { table: part.table, key: &[], rules: part.rules, request: PartRequest::Read };
            (Part(bare), part.key.to_vec(), request)
        });
        Self(parts.collect())
    }

    /// Iterates over the parts.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Bare<'_>> {
        self.0.iter().map(|(Part(part), key, request)| {
            let request = match request {
                Request::Read => PartRequest::Read,
                Request::LookUp(query) => PartRequest::LookUp(query),
                Request::Write(value) => PartRequest::Write(value),
                Request::WriteExpiring(value, lifetime) => {
                    PartRequest::WriteExpiring(value, *lifetime)
                }
                Request::Touch(lifetime) => PartRequest::Touch(*lifetime),
                Request::Remove => PartRequest::Remove,
                Request::Append(bytes) => PartRequest::Append(bytes),
                Request::Increment(amount) => PartRequest::Increment(*amount),
                Request::Swap(value, lifetime) => PartRequest::Swap(value, *lifetime),
            };
            Bare { key, request, ..*part }
        })
    }
}

/// Collects the parts. The program's iterator may use the client, so it runs before the client is
/// borrowed.
pub(super) fn collect<'a>(parts: impl IntoIterator<Item = Part<'a>>) -> Vec<Bare<'a>> {
    parts.into_iter().map(|part| part.0).collect()
}

/// Returns the results of a multi-operation's parts.
pub(super) fn parts(outcome: Outcome) -> Result<Parts, Error> {
    match outcome? {
        Answer::Parts(parts) => Ok(parts),
        other => unexpected(&other),
    }
}

/// Converts the results of all parts.
fn each<T>(
    outcome: Outcome,
    convert: impl Fn(PartAnswer<'_>) -> T,
) -> Result<Vec<Result<T, Error>>, Error> {
    let parts = parts(outcome)?;
    Ok(parts.iter().map(|part| part.map(&convert).map_err(Clone::clone)).collect())
}

/// Panics: the client pairs every part with one kind of answer, and this answer is of another kind.
fn unexpected_part(answer: PartAnswer<'_>) -> ! {
    unreachable!("the part is not answered by {answer:?}")
}

/// Converts the answer to a part that reads.
pub(super) fn object(answer: PartAnswer<'_>) -> Object {
    match answer {
        PartAnswer::Object { version, value } => Object { version, value: value.to_vec() },
        other => unexpected_part(other),
    }
}

/// Converts the results of reads.
pub(super) fn objects(outcome: Outcome) -> Result<Vec<Result<Option<Object>, Error>>, Error> {
    let mut results = each(outcome, |answer| Some(object(answer)))?;
    for result in &mut results {
        if matches!(result, Err(Error::ObjectDoesntExist)) {
            *result = Ok(None);
        }
    }
    Ok(results)
}

/// Converts the results of writes.
pub(super) fn versions(outcome: Outcome) -> Result<Vec<Result<Version, Error>>, Error> {
    each(outcome, |answer| match answer {
        PartAnswer::Version(version) => version,
        other => unexpected_part(other),
    })
}

/// Converts the results of removals.
pub(super) fn removals(outcome: Outcome) -> Result<Vec<Result<Option<Version>, Error>>, Error> {
    each(outcome, |answer| match answer {
        PartAnswer::Version(version) => (version != Version(0)).then_some(version),
        other => unexpected_part(other),
    })
}

/// Converts the results of increments of integers.
pub(super) fn integers(outcome: Outcome) -> Result<Vec<Result<Number<i64>, Error>>, Error> {
    each(outcome, |answer| match answer {
        PartAnswer::Integer { version, sum } => Number { version, value: sum },
        other => unexpected_part(other),
    })
}
