//! The errors of indexes.

use alloc::string::String;

use crate::client;
use crate::types::{MAX_INDEX_NAME, MAX_INDEXES};

/// The reason why an operation on a table with indexes failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the store failed. If that may have been executed, so may this one: as a
    /// whole or not at all.
    #[error(transparent)]
    Store(#[from] client::Error),
    /// The table has no index of this name.
    #[error("the table has no index \"{0}\"")]
    NoIndex(String),
    /// The index does not have all objects yet. Wait until it is built, or build it again if the
    /// client that did has ended.
    #[error(
        "the index \"{0}\" is being built: wait for the end, or create it again if that was broken \
         off"
    )]
    Unready(String),
    /// The table has an index of this name already, with another definition.
    #[error("the table has another index \"{0}\": drop it first, or use another name")]
    Exists(String),
    /// The name of an index is empty or too long, or has control characters.
    #[error("\"{0}\" is no name for an index: it must have 1 to {MAX_INDEX_NAME} bytes of text")]
    BadName(String),
    /// The size of nodes is out of range.
    #[error("nodes of {0} bytes are too small or too large: 64 to 65536 are possible")]
    BadNodeBytes(u32),
    /// The table has too many indexes, or 255 were created in all.
    #[error("the table has {MAX_INDEXES} indexes, or 255 were created in all; it can have no more")]
    TooManyIndexes,
    /// An object has too many index keys.
    #[error("the object has {0} index keys, the limit is 255")]
    TooManyKeys(usize),
}

impl Error {
    /// The error of a malformed node or catalog.
    pub(super) const DAMAGED: Self = Self::Store(client::Error::DamagedIndex);
}
