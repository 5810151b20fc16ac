//! The state of a queue pair's connection, and a request for one.

use std::io;
use std::net::SocketAddr;

use sprat_proto::rdma::{Conn, StartupError};
use sprat_proto::wire::rdmap::Cause;

/// The state of a queue pair's connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ConnectionState {
    /// There is none.
    #[default]
    Idle,
    /// The connection is being opened.
    Opening,
    /// The connection is open.
    Connected {
        /// From the peer's program.
        private_data: Vec<u8>,
        /// Reads and atomics served at once.
        ird: u16,
        /// Reads and atomics asked at once.
        ord: u16,
    },
    /// The peer's program refused.
    Rejected {
        /// From the peer's program.
        private_data: Vec<u8>,
        /// Reads and atomics that the peer would serve at once.
        ird: Option<u16>,
        /// Reads and atomics that the peer would ask at once.
        ord: Option<u16>,
    },
    /// TCP did not connect.
    Unreachable(io::ErrorKind),
    /// The start-up failed.
    Failed(StartupError),
    /// The connection has ended, by an error if there is a cause. True if this side found the
    /// error.
    Disconnected(Option<(Cause, bool)>),
}

/// A peer asks for a connection.
#[derive(Debug)]
pub struct PendingRequest {
    /// The request's stream.
    pub conn: Conn,
    /// The client's address.
    pub peer: SocketAddr,
    /// The address that it asks at.
    pub local: SocketAddr,
    /// From its program.
    pub private_data: Vec<u8>,
    /// Reads and atomics that it serves at once, if it says so.
    pub ird: Option<u16>,
    /// Reads and atomics that it asks at once, if it says so.
    pub ord: Option<u16>,
}
