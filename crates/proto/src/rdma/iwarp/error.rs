//! Errors that end a stream.

use crate::wire::ddp::HeaderBytes;
use crate::wire::rdmap::{Cause, Offending};

/// An error that ends the stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamError {
    /// The cause that the Terminate names.
    pub(crate) cause: Cause,
    /// The segment that caused the error, if one did.
    pub(crate) about: Option<Offending>,
}

impl StreamError {
    /// Creates a local error, or one that no segment caused.
    pub(crate) const fn own(cause: Cause) -> Self {
        Self { cause, about: None }
    }
}

impl From<Cause> for StreamError {
    fn from(cause: Cause) -> Self {
        Self::own(cause)
    }
}

/// The segment as a Terminate describes it.
pub(crate) fn offending(header: &HeaderBytes, payload: usize) -> Offending {
    let ulpdu_len = u16::try_from(header.len() + payload).unwrap_or(u16::MAX);
    Offending { ulpdu_len, header: header.clone(), read: None }
}
