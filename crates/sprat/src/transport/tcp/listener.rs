//! A socket that listens.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{self, sockopt};
use sprat_proto::Instant;

use super::connection;

/// How many connections wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) local: SocketAddr,
    /// While it is out of the epoll: when to try again, or never before a connection ends.
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
