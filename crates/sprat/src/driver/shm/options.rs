//! The options and the counters of the driver over shared memory.

use std::path::PathBuf;

use sprat_sys::ring;

/// Options of a driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Accept processes of other users, and connect to their servers.
    pub other_users: bool,
    /// Bytes of each ring of the connections that this side accepts: a power of two from
    /// [`ring::MIN_SIZE`] to [`ring::MAX_SIZE`].
    pub ring_bytes: usize,
    /// The most connections at a time, at most 65,536. Each takes two file descriptors and two
    /// rings.
    pub max_connections: usize,
    /// The directory of the sockets, if not `$XDG_RUNTIME_DIR/sprat` or `/tmp/sprat-UID`.
    pub directory: Option<PathBuf>,
    /// The rings carry Ethernet frames instead of datagrams; both sides must say so.
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

/// Counters since the driver was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams put into a ring.
    pub sent: u64,
    /// Datagrams for which a ring had no room; offered again, they count again.
    pub full: u64,
    /// Connections opened, from either side.
    pub opened: u64,
    /// Connections refused: another user's, one too many, or no proper hello in time.
    pub refused: u64,
    /// Connections ended because the peer had damaged a ring.
    pub broken: u64,
    /// Peers woken.
    pub wakes: u64,
}
