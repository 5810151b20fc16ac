//! The limits of the transport.

/// Channels of a session: the RPCs that it can have in progress. Further requests wait in the
/// session's queue.
pub const CHANNELS: usize = 8;
/// The longest request or reply, in bytes.
pub const MAX_MESSAGE: usize = 16 << 20;
/// The maximum of slices in one message.
pub const MAX_SLICES: usize = 3;
