//! A port that a socket of our own TCP reserves before it is connected or listens.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A socket of our own TCP that is not connected yet. It reserves its port.
#[derive(Debug)]
pub(crate) struct Reserved {
    /// The address of the socket, or the one that stands for any.
    pub(super) ip: IpAddr,
    /// The port of the socket; none if it gets one when it connects.
    pub(super) port: Option<Arc<u16>>,
}

impl Reserved {
    /// A socket that gets its port when it connects.
    pub(super) const fn any(ip: IpAddr) -> Self {
        Self { ip, port: None }
    }

    /// The address of the socket, with the port 0 if it has none.
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.as_deref().copied().unwrap_or_default())
    }
}
