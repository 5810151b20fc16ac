//! The bytes of a request on their way from the caller to the endpoint.

use super::types::Message;

/// The bytes of a request as the caller hands them in.
pub(super) enum Request<'a> {
    /// Bytes that stay the caller's.
    Bytes(&'a [u8]),
    /// A message; the endpoint takes what it has to keep.
    Message(&'a mut Message),
}

impl Request<'_> {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Message(message) => message.len(),
        }
    }

    /// All bytes, if none are in slices.
    #[inline(always)]
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Message(message) => message.slices.is_empty().then_some(&message.bytes),
        }
    }

    pub(super) fn into_message(self) -> Message {
        match self {
            Self::Bytes(bytes) => bytes.into(),
            Self::Message(message) => core::mem::take(message),
        }
    }
}
