//! Why a call on the engine is refused.

/// Why a request was not taken. Nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The queue is full.
    #[error("the queue is full")]
    Full,
    /// No such object, or it is in a state that does not allow this.
    #[error("no such object, or not in its present state")]
    Invalid,
    /// More elements than the queue was made for.
    #[error("too many scatter/gather elements")]
    TooManyElements,
    /// More inline data than the queue was made for, or inline data for an operation that takes none.
    #[error("inline data is too long or not allowed")]
    Inline,
    /// More than 2³¹ bytes.
    #[error("the message is longer than 2 GiB")]
    TooLong,
    /// The object is still in use by others.
    #[error("the object is still in use")]
    Busy,
    /// Access rights that exclude each other, or a range that wraps.
    #[error("the rights or the range are not valid")]
    Rights,
    /// There are too many objects of this kind.
    #[error("too many objects of this kind")]
    NoRoom,
}
