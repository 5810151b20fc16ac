//! Errors of streams: the operation, the peer, the cause and the next step.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use sprat_proto::net::tcp::{TcpError, TcpOpenError};

/// The reason why an operation of a stream has failed. It is inside an [`io::Error`].
#[derive(Debug, thiserror::Error)]
pub struct StreamError {
    /// The operation that has failed, as in `connect`.
    operation: &'static str,
    peer: SocketAddr,
    #[source]
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Ended(TcpError),
    #[error(transparent)]
    Open(TcpOpenError),
    #[error("the program has ended the connection")]
    Aborted,
    #[error("the program has shut down this direction")]
    Shut,
    #[error("no answer in time")]
    Late,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.peer, self.cause)?;
        match self.next() {
            Some(next) => write!(f, " ({next})"),
            None => Ok(()),
        }
    }
}

impl StreamError {
    /// Returns the peer of the stream.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the reason why the connection has ended early, if that is the cause.
    #[must_use]
    pub const fn ended(&self) -> Option<TcpError> {
        match self.cause {
            Cause::Ended(error) => Some(error),
            _ => None,
        }
    }

    /// Returns what the user does next.
    fn next(&self) -> Option<&'static str> {
        Some(match self.cause {
            Cause::Ended(TcpError::Refused) => "start the program that listens there",
            Cause::Ended(TcpError::TimedOut) | Cause::Late => {
                "see whether the host is up, and whether it can answer to this stack's address"
            }
            Cause::Open(TcpOpenError::NoRoute) => {
                "give the locator prefix=… and gateway=…, or a peer on the same network"
            }
            Cause::Open(TcpOpenError::TooMany) => "raise Options::connections",
            Cause::Open(TcpOpenError::InUse | TcpOpenError::NoPort) => "take another port",
            Cause::Ended(TcpError::Reset) | Cause::Aborted | Cause::Shut => return None,
        })
    }

    fn kind(&self) -> io::ErrorKind {
        match self.cause {
            Cause::Ended(TcpError::Refused) => io::ErrorKind::ConnectionRefused,
            Cause::Ended(TcpError::Reset) => io::ErrorKind::ConnectionReset,
            Cause::Ended(TcpError::TimedOut) | Cause::Late => io::ErrorKind::TimedOut,
            Cause::Open(TcpOpenError::InUse | TcpOpenError::NoPort) => io::ErrorKind::AddrInUse,
            Cause::Open(TcpOpenError::NoRoute) => io::ErrorKind::HostUnreachable,
            Cause::Open(TcpOpenError::TooMany) => io::ErrorKind::QuotaExceeded,
            Cause::Aborted => io::ErrorKind::ConnectionAborted,
            Cause::Shut => io::ErrorKind::BrokenPipe,
        }
    }

    fn io(operation: &'static str, peer: SocketAddr, cause: Cause) -> io::Error {
        let error = Self { operation, peer, cause };
        io::Error::new(error.kind(), error)
    }
}

pub(super) fn ended(operation: &'static str, peer: SocketAddr, error: TcpError) -> io::Error {
    StreamError::io(operation, peer, Cause::Ended(error))
}

pub(super) fn not_open(peer: SocketAddr, error: TcpOpenError) -> io::Error {
    StreamError::io("connect", peer, Cause::Open(error))
}

pub(super) fn not_listening(at: SocketAddr, error: TcpOpenError) -> io::Error {
    StreamError::io("listen", at, Cause::Open(error))
}

pub(super) fn aborted(operation: &'static str, peer: SocketAddr) -> io::Error {
    StreamError::io(operation, peer, Cause::Aborted)
}

pub(super) fn shut(operation: &'static str, peer: SocketAddr) -> io::Error {
    StreamError::io(operation, peer, Cause::Shut)
}

pub(super) fn late(operation: &'static str, peer: SocketAddr) -> io::Error {
    StreamError::io(operation, peer, Cause::Late)
}
