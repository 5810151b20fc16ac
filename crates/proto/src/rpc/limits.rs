//! The limits of the RPC transport.

/// The number of channels of a session, each of which carries one RPC at a time. Further requests
/// wait in the session's queue.
pub const CHANNELS: usize = 8;
/// The longest request or reply, in bytes.
pub const MAX_MESSAGE: usize = 16 << 20;
/// The maximum of slices in one message.
pub const MAX_SLICES: usize = 3;
