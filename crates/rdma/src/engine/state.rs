//! The state of a queue pair's connection, and a pending request for a connection.

use std::io;
use std::net::SocketAddr;

use sprat_proto::rdma::{Conn, StartupError};
use sprat_proto::wire::rdmap::Cause;

/// The state of a queue pair's connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ConnectionState {
    /// The queue pair has no connection.
    #[default]
    Idle,
    /// The connection is being opened.
    Opening,
    /// The connection of the queue pair is open.
    Connected {
        /// The private data of the peer's program.
        private_data: Vec<u8>,
        /// The number of Reads and atomics that this end serves at once.
        ird: u16,
        /// The number of Reads and atomics that this end requests at once.
        ord: u16,
    },
    /// The peer's program rejected the connection.
    Rejected {
        /// The private data with which the peer's program rejected the connection.
        private_data: Vec<u8>,
        /// The number of Reads and atomics that the rejecting peer would serve at once, if its
        /// Reply states it.
        ird: Option<u16>,
        /// The number of Reads and atomics that the rejecting peer would request at once, if its
        /// Reply states it.
        ord: Option<u16>,
    },
    /// TCP did not connect to the peer.
    Unreachable(io::ErrorKind),
    /// The start-up of the connection failed.
    Failed(StartupError),
    /// The connection has ended. If an error ended it, its cause; true means that this end found
    /// the error.
    Disconnected(Option<(Cause, bool)>),
}

/// A peer's request for a connection that waits for an answer.
#[derive(Debug)]
pub struct PendingRequest {
    /// The stream of the connection request.
    pub conn: Conn,
    /// The address of the peer that requests the connection.
    pub peer: SocketAddr,
    /// The local address at which the peer requests the connection.
    pub local: SocketAddr,
    /// The private data of the peer's program.
    pub private_data: Vec<u8>,
    /// The number of Reads and atomics that the peer serves at once, if its request states it.
    pub ird: Option<u16>,
    /// The number of Reads and atomics that the peer requests at once, if its request states it.
    pub ord: Option<u16>,
}
