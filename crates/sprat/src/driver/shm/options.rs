//! The options and the counters of the driver over shared memory.

use std::path::PathBuf;

use sprat_sys::ring;

/// The options of a driver over shared memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// True to accept processes of other users, and to connect to their servers.
    pub other_users: bool,
    /// Bytes of each ring of the connections that this side accepts: a power of two from
    /// [`ring::MIN_SIZE`] to [`ring::MAX_SIZE`].
    pub ring_bytes: usize,
    /// The most connections at a time, at most 65,536. Each takes two file descriptors and two
    /// rings.
    pub max_connections: usize,
    /// The directory of the sockets, if not `$XDG_RUNTIME_DIR/sprat` or `/tmp/sprat-UID`.
    pub directory: Option<PathBuf>,
    /// True if the rings carry Ethernet frames instead of datagrams; both sides must agree.
    pub frames: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            other_users: false,
            ring_bytes: ring::DEFAULT_SIZE,
            max_connections: 1024,
            directory: None,
            frames: false,
        }
    }
}

/// The counters of a driver over shared memory since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The number of datagrams that the driver received.
    pub received: u64,
    /// The number of datagrams that the driver put into a ring.
    pub sent: u64,
    /// The number of datagrams for which a ring had no room; a datagram that is offered again
    /// counts again.
    pub full: u64,
    /// The number of connections that were opened, from either side.
    pub opened: u64,
    /// The number of refused connections: another user's, one too many, or no proper hello in time.
    pub refused: u64,
    /// The number of connections that ended because the peer had damaged a ring.
    pub broken: u64,
    /// The number of times that the driver woke a peer.
    pub wakes: u64,
}
