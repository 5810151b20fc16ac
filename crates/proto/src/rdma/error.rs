//! The error of a call on the RDMA engine.

/// The RDMA engine refused a call. The engine's state is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The work queue is full.
    #[error("the queue is full")]
    Full,
    /// The object that the call names does not exist, or its state does not allow the call.
    #[error("there is no such object, or its state does not allow the call")]
    Invalid,
    /// The scatter/gather list has more elements than the work queue was created for.
    #[error("too many scatter/gather elements")]
    TooManyElements,
    /// The work request has more inline data than the queue was created for, or its operation takes
    /// none.
    #[error("the inline data is too long, or the operation takes none")]
    Inline,
    /// The message has more than 2³¹ bytes.
    #[error("the message is longer than 2 GiB")]
    TooLong,
    /// Other objects still use the object that the call names.
    #[error("the object is still in use")]
    Busy,
    /// The access rights exclude each other, or the address range wraps.
    #[error("the rights or the range are not valid")]
    Rights,
    /// The engine has no room for another object of this kind.
    #[error("too many objects of this kind")]
    NoRoom,
}
