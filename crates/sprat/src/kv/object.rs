//! Results of operations on one object.

use sprat_store::types::Version;

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
