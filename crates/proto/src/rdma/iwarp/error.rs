//! Errors that end an iWARP stream.

use crate::wire::ddp::HeaderBytes;
use crate::wire::rdmap::{Cause, Offending};

/// An error that ends an iWARP stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamError {
    /// The cause that the Terminate for this error names.
    pub(crate) cause: Cause,
    /// The segment that caused the stream's error, if one did.
    pub(crate) about: Option<Offending>,
}

impl StreamError {
    /// Creates an error of the stream that no segment of the peer caused.
    pub(crate) const fn own(cause: Cause) -> Self {
        Self { cause, about: None }
    }
}

impl From<Cause> for StreamError {
    fn from(cause: Cause) -> Self {
        Self::own(cause)
    }
}

/// Describes the segment at fault as a Terminate does.
pub(crate) fn offending(header: &HeaderBytes, payload: usize) -> Offending {
    let ulpdu_len = u16::try_from(header.len() + payload).unwrap_or(u16::MAX);
    Offending { ulpdu_len, header: header.clone(), read: None }
}
