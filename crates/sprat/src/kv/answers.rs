//! The results of operations on one object and of transactions, from the answers of the client's
//! machine.

use std::time::Duration;

use sprat_store::client::{Answer, Error, Page, TabletInfo};
use sprat_store::types::{Lifetime, Version};

use super::machine::{Outcome, unexpected};
use super::object::{Committed, Number, Object};

/// Turns the error that there is no such object into `None`.
#[inline]
pub(super) fn found<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::ObjectDoesntExist) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn object_or_none(outcome: Outcome) -> Result<Option<Object>, Error> {
    found(outcome.map(|answer| match answer {
        Answer::Object { version, value } => Object { version, value: value.into_vec() },
        other => unexpected(&other),
    }))
}

pub(super) fn expiring_or_none(
    outcome: Outcome,
) -> Result<Option<(Object, Option<Duration>)>, Error> {
    found(outcome.map(|answer| match answer {
        Answer::Expiring { version, lifetime, value } => {
            let object = Object { version, value: value.into_vec() };
            (object, lifetime.map(|Lifetime(ms)| Duration::from_millis(ms)))
        }
        other => unexpected(&other),
    }))
}

pub(super) fn version(outcome: Outcome) -> Result<Version, Error> {
    match outcome? {
        Answer::Version(version) => Ok(version),
        other => unexpected(&other),
    }
}

pub(super) fn removed(outcome: Outcome) -> Result<Option<Version>, Error> {
    version(outcome).map(|version| (version != Version(0)).then_some(version))
}

pub(super) fn length(outcome: Outcome) -> Result<Number<u64>, Error> {
    match outcome? {
        Answer::Length { version, length } => Ok(Number { version, value: length }),
        other => unexpected(&other),
    }
}

pub(super) fn integer(outcome: Outcome) -> Result<Number<i64>, Error> {
    match outcome? {
        Answer::Integer { version, sum } => Ok(Number { version, value: sum }),
        other => unexpected(&other),
    }
}

pub(super) fn swapped(outcome: Outcome) -> Result<(Version, Option<Object>), Error> {
    match outcome? {
        Answer::Swapped { version, before, value } => {
            let object = || Object { version: before, value: value.into_vec() };
            Ok((version, (before != Version(0)).then(object)))
        }
        other => unexpected(&other),
    }
}

pub(super) fn tablets(outcome: Outcome) -> Result<Vec<TabletInfo>, Error> {
    match outcome? {
        Answer::Tablets(tablets) => Ok(tablets),
        other => unexpected(&other),
    }
}

pub(super) fn page(outcome: Outcome) -> Result<Page<'static>, Error> {
    match outcome? {
        Answer::Page(page) => Ok(page),
        other => unexpected(&other),
    }
}

/// Returns the result of a transaction whose first `writes` objects are those that it wrote.
pub(super) fn committed(outcome: Outcome, writes: usize) -> Result<Committed, Error> {
    match outcome? {
        Answer::Committed(mut versions) => {
            versions.truncate(writes);
            Ok(Committed { versions })
        }
        other => unexpected(&other),
    }
}
