//! Errors of streams: the operation, the peer, the cause and the next step.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use sprat_proto::net::tcp::{Connection, TcpError, TcpOpenError, TcpReport};

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
    /// The connection has ended early. The report may be why its peer has not answered.
    #[error("{0}{report}", report = behind(.1))]
    Ended(TcpError, Option<TcpReport>),
    #[error(transparent)]
    Open(TcpOpenError),
    #[error("the program has ended the connection")]
    Aborted,
    #[error("the program has shut down this direction")]
    Shut,
    #[error("no answer in time{report}", report = behind(.0))]
    Late(Option<TcpReport>),
}

/// Returns what an error says behind its reason of the last report of the network.
fn behind(report: &Option<TcpReport>) -> String {
    report.map_or_else(String::new, |report| format!("; the last report was: {report}"))
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
            Cause::Ended(error, _) => Some(error),
            _ => None,
        }
    }

    /// Returns the last report of the network, if the peer has not answered in time. It may be the
    /// reason.
    #[must_use]
    pub const fn report(&self) -> Option<TcpReport> {
        match self.cause {
            Cause::Ended(_, report) | Cause::Late(report) => report,
            _ => None,
        }
    }

    /// Returns what the user does next.
    fn next(&self) -> Option<&'static str> {
        Some(match self.cause {
            Cause::Ended(TcpError::Refused, _) => "start the program that listens there",
            Cause::Ended(TcpError::TimedOut, _) | Cause::Late(_) => {
                "see whether the host is up, and whether it can answer to this stack's address"
            }
            Cause::Open(TcpOpenError::NoRoute) => {
                "give the locator prefix=… and gateway=…, or a peer on the same network"
            }
            Cause::Open(TcpOpenError::TooMany) => "raise Options::connections",
            Cause::Open(TcpOpenError::InUse | TcpOpenError::NoPort) => "take another port",
            Cause::Ended(TcpError::Reset, _) | Cause::Aborted | Cause::Shut => return None,
        })
    }

    fn kind(&self) -> io::ErrorKind {
        match self.cause {
            Cause::Ended(TcpError::Refused, _) => io::ErrorKind::ConnectionRefused,
            Cause::Ended(TcpError::Reset, _) => io::ErrorKind::ConnectionReset,
            Cause::Ended(TcpError::TimedOut, _) | Cause::Late(_) => io::ErrorKind::TimedOut,
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

/// Returns the error of an operation at a connection that has ended early, if it has.
pub(super) fn ended(
    operation: &'static str,
    peer: SocketAddr,
    connection: &Connection,
) -> Option<io::Error> {
    let error = connection.error()?;
    let report = connection.soft_error().filter(|_| error == TcpError::TimedOut);
    Some(StreamError::io(operation, peer, Cause::Ended(error, report)))
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

pub(super) fn late(
    operation: &'static str,
    peer: SocketAddr,
    report: Option<TcpReport>,
) -> io::Error {
    StreamError::io(operation, peer, Cause::Late(report))
}
