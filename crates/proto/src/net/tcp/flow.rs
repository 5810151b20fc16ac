//! The name of a connection for its peer.

use core::net::SocketAddr;

/// The addresses and ports of both ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpFlow {
    /// The address and port of this end.
    pub local: SocketAddr,
    /// The address and port of the peer.
    pub peer: SocketAddr,
}
