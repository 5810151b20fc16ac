//! The purposes of appends to the log, and why one may not be possible.

/// The purpose of an append, which decides how much of the reserve it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The append is of a new value.
    Write,
    /// The append is of a removal, or of a completion alone.
    Remove,
    /// The append is of an entry that the cleaner copies.
    Survive,
    /// The append is of an entry of another log, which is recovered.
    Recover,
    /// The append is of a digest without which the cleaner cannot go on.
    Digest,
}

impl Purpose {
    /// Returns true if the append goes to a survivor segment, outside the order of the log.
    pub(super) fn is_aside(self) -> bool {
        matches!(self, Self::Survive | Self::Recover)
    }
}

/// The reason why an append to the log is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    /// The entry to append is longer than a segment.
    #[error("the entry is longer than a segment")]
    TooLong,
    /// No segment is free for the append's purpose. The cleaner may free one.
    #[error("no free segment")]
    NoSegment,
}
