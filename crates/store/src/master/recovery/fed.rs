//! The terms that the sources of a recovery share.

/// The most bytes that one tick replays. Clients of this server's other tablets wait meanwhile.
pub(super) const TICK_BYTES: usize = 64 << 10;

/// The progress of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fed {
    /// There is more to replay at once.
    More,
    /// There is nothing to replay until an answer has come.
    Waiting,
    /// Everything is replayed.
    All,
    /// Something cannot be read.
    Lacking,
}
