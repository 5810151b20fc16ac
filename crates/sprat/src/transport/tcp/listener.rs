//! The listening socket of a TCP transport.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{self, sockopt};
use sprat_proto::Instant;

use super::connection;

/// The most TCP connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) local: SocketAddr,
    /// The time to accept again, while the listener is paused and out of epoll; [`Instant::NEVER`]
    /// if a connection has to end first.
    pub(super) paused_until: Option<Instant>,
}

impl Listener {
    pub(super) fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = connection::open(&addr)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &addr)?;
        net::listen(&socket, BACKLOG)?;
        let local = net::getsockname(&socket)?.try_into()?;
        Ok(Self { socket, local, paused_until: None })
    }
}
