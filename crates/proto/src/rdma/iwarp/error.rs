//! Errors that end a stream.

use crate::wire::ddp::HeaderBytes;
use crate::wire::rdmap::{Cause, Offending};

/// An error that ends the stream.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// What the Terminate says,
    pub(crate) cause: Cause,
    /// and of which segment.
    pub(crate) about: Option<Offending>,
}

impl Fault {
    /// An error of our own, or one that no segment caused.
    pub(crate) const fn own(cause: Cause) -> Self {
        Self { cause, about: None }
    }
}

impl From<Cause> for Fault {
    fn from(cause: Cause) -> Self {
        Self::own(cause)
    }
}

/// What a Terminate tells of a segment.
pub(crate) fn offending(header: &HeaderBytes, payload: usize) -> Offending {
    let ulpdu_len = u16::try_from(header.len() + payload).unwrap_or(u16::MAX);
    Offending { ulpdu_len, header: header.clone(), read: None }
}
