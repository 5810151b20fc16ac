//! The parts of a multi-operation, and their results.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use super::error::Error;
use crate::message::data::{Amount, RejectRules};
use crate::types::{Lifetime, TableId, Version};

/// A part of a multi-operation: an operation on one object.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part<'a> {
    /// The table of the part's object.
    pub table: TableId,
    /// The key of the part's object.
    pub key: &'a [u8],
    /// The conditions under which the master refuses the part.
    pub rules: RejectRules,
    /// The part's operation.
    pub request: PartRequest<'a>,
}

/// The operation of a part of a multi-operation.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum PartRequest<'a> {
    /// The part reads the object. Its answer is [`PartAnswer::Object`].
    Read,
    /// The part looks up entries of a leaf by this query, as
    /// [`Client::look_up`](super::Client::look_up) does. Its answer is [`PartAnswer::Object`] with
    /// the version of the leaf.
    LookUp(&'a [u8]),
    /// The part writes this value. Its answer is [`PartAnswer::Version`].
    Write(&'a [u8]),
    /// The part writes this value; the object expires after the lifetime. Its answer is
    /// [`PartAnswer::Version`].
    WriteExpiring(&'a [u8], Lifetime),
    /// The part gives the object another lifetime, or lets it exist without end. Its answer is
    /// [`PartAnswer::Version`].
    Touch(Option<Lifetime>),
    /// The part removes the object. Its answer is [`PartAnswer::Version`].
    Remove,
    /// The part adds this amount. Its answer is [`PartAnswer::Integer`] or [`PartAnswer::Double`].
    Increment(Amount),
    /// The part adds these bytes to the end of the value. Its answer is [`PartAnswer::Length`].
    Append(&'a [u8]),
    /// The part writes this value, as [`PartRequest::Write`] or [`PartRequest::WriteExpiring`]. Its
    /// answer is [`PartAnswer::Swapped`].
    Swap(&'a [u8], Option<Lifetime>),
}

/// The answer to a part of a multi-operation.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum PartAnswer<'a> {
    /// The object that the part read.
    Object {
        /// The object's version.
        version: Version,
        /// The object's value.
        value: &'a [u8],
    },
    /// The new version of a written object, or the old version of a removed one, 0 if there was
    /// none.
    Version(Version),
    /// The part added to an integer.
    Integer {
        /// The object's new version.
        version: Version,
        /// The sum of the object's old value and the amount.
        sum: i64,
    },
    /// The part added to a double.
    Double {
        /// The object's new version.
        version: Version,
        /// The sum of the object's old value and the amount.
        sum: f64,
    },
    /// The part appended to an object.
    Length {
        /// The object's new version.
        version: Version,
        /// The new length of the object's value in bytes.
        length: u64,
    },
    /// The part wrote an object and returned the one before.
    Swapped {
        /// The object's new version.
        version: Version,
        /// The version of the object before, 0 if there was none.
        before: Version,
        /// The value of the object before, empty if there was none.
        value: &'a [u8],
    },
}

/// The results of a multi-operation's parts, in the order of the parts.
#[derive(Debug, Default)]
pub struct Parts {
    results: Vec<Result<Kept, Box<Error>>>,
    /// The values of all objects that were read, or that swaps have replaced.
    values: Vec<u8>,
}

/// The answer to a part as [`Parts`] keeps it.
#[derive(Debug)]
enum Kept {
    Object { version: Version, value: Range<usize> },
    Version(Version),
    Integer { version: Version, sum: i64 },
    Double { version: Version, sum: f64 },
    Length { version: Version, length: u64 },
    Swapped { version: Version, before: Version, value: Range<usize> },
}

impl Parts {
    /// Returns the number of parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Returns true if the multi-operation had no part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// Returns the result of the part with this index.
    ///
    /// # Errors
    /// The part's own error.
    ///
    /// # Panics
    /// If there is no part with this index.
    #[inline]
    pub fn get(&self, index: usize) -> Result<PartAnswer<'_>, &Error> {
        match &self.results[index] {
            Ok(Kept::Object { version, value }) => {
                Ok(PartAnswer::Object { version: *version, value: &self.values[value.clone()] })
            }
            Ok(Kept::Version(version)) => Ok(PartAnswer::Version(*version)),
            &Ok(Kept::Integer { version, sum }) => Ok(PartAnswer::Integer { version, sum }),
            &Ok(Kept::Double { version, sum }) => Ok(PartAnswer::Double { version, sum }),
            &Ok(Kept::Length { version, length }) => Ok(PartAnswer::Length { version, length }),
            &Ok(Kept::Swapped { version, before, ref value }) => {
                let value = &self.values[value.clone()];
                Ok(PartAnswer::Swapped { version, before, value })
            }
            Err(error) => Err(error),
        }
    }

    /// Iterates over the results of all parts.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<PartAnswer<'_>, &Error>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// The multi-operation that an operation is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PartOf {
    /// The slot of the multi-operation.
    pub(super) multi: u32,
    /// The index of the part in it.
    pub(super) part: u32,
}

/// The results that a multi-operation in progress has so far.
#[derive(Debug, Default)]
pub(super) struct Results {
    parts: Parts,
    /// The number of parts in progress.
    left: usize,
    /// The number of parts that have started.
    started: u32,
}

impl Results {
    /// Counts the start of the parts as a part in progress.
    pub(super) fn begin(&mut self) {
        self.left += 1;
    }

    /// Counts a part that starts. Returns its index.
    pub(super) fn begin_part(&mut self) -> u32 {
        self.left += 1;
        self.started += 1;
        self.started - 1
    }

    /// Counts a part that has ended. Returns all results if it was the last one.
    pub(super) fn end_part(&mut self) -> Option<Parts> {
        self.left -= 1;
        (self.left == 0).then(|| core::mem::take(&mut self.parts))
    }

    /// Makes room for values of this number of bytes.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.parts.values.reserve(bytes);
    }

    /// Keeps the result of the part with this index.
    pub(super) fn keep(&mut self, index: u32, result: Result<PartAnswer<'_>, Error>) {
        let Parts { results, values } = &mut self.parts;
        if results.len() <= index as usize {
            results.resize_with(index as usize + 1, || Ok(Kept::Version(Version(0))));
        }
        results[index as usize] = match result {
            Ok(PartAnswer::Object { version, value }) => {
                let from = values.len();
                values.extend_from_slice(value);
                Ok(Kept::Object { version, value: from..values.len() })
            }
            Ok(PartAnswer::Version(version)) => Ok(Kept::Version(version)),
            Ok(PartAnswer::Integer { version, sum }) => Ok(Kept::Integer { version, sum }),
            Ok(PartAnswer::Double { version, sum }) => Ok(Kept::Double { version, sum }),
            Ok(PartAnswer::Length { version, length }) => Ok(Kept::Length { version, length }),
            Ok(PartAnswer::Swapped { version, before, value }) => {
                let from = values.len();
                values.extend_from_slice(value);
                Ok(Kept::Swapped { version, before, value: from..values.len() })
            }
            Err(error) => Err(Box::new(error)),
        };
    }
}
