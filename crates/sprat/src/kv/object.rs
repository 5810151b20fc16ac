//! Results of operations on one object, and of transactions.

use std::time::Duration;

use sprat_store::types::{Lifetime, Version};

/// A value read from the store, and its object's version.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Object {
    /// The object's version.
    pub version: Version,
    /// The object's value.
    pub value: Vec<u8>,
}

/// The sum after an increment, or the length after an append, and the object's new version.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Number<T> {
    /// The object's new version.
    pub version: Version,
    /// The sum, which is the object's new value, or the length of the new value in bytes.
    pub value: T,
}

/// The outcome of a transaction that was committed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Committed {
    /// The new versions of the objects that the transaction wrote, in the order of the first change
    /// of each. Objects that it removed or read have none.
    pub versions: Vec<Version>,
}

/// The longest lifetime of an object, 4,459 years.
pub const MAX_LIFETIME: Duration = Duration::from_millis(Lifetime::MAX.0);

/// Returns a lifetime in whole milliseconds, rounded up.
pub(super) fn in_ms(lifetime: Duration) -> Lifetime {
    Lifetime(u64::try_from(lifetime.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}
