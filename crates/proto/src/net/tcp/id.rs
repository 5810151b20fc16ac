//! The names of connections for programs, their changes, and the reasons why there is none.

/// The name of a connection of a host. It is never used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TcpId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl TcpId {
    /// Returns a small number that no other connection has at the same time, for tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// The changes at a connection since its last event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpChanges {
    /// The handshake is over.
    pub opened: bool,
    /// Bytes can be read, or the peer's direction has ended.
    pub readable: bool,
    /// The peer has acknowledged data, so that more can be written: told after a write for which
    /// there was not enough room, or one that took the last of it.
    pub writable: bool,
    /// The connection has ended in both directions, or early. `TcpHost::release` forgets it.
    pub ended: bool,
    /// The network reports a problem, which `TcpHost::soft_error` returns, or the peer has been
    /// silent for three retransmissions. The connection goes on.
    pub warned: bool,
}

/// The reason why there is no new connection or listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TcpOpenError {
    /// A listener, or a connection to the same peer, has the port.
    #[error("the port is in use")]
    InUse,
    /// Connections to that peer use all dynamic ports.
    #[error("no port is free")]
    NoPort,
    /// There is no route to the peer.
    #[error("no route to the peer")]
    NoRoute,
    /// The host has as many connections as it may have.
    #[error("too many connections")]
    TooMany,
}
