//! The UDP ports that an IP stack receives datagrams for.

use arrayvec::ArrayVec;

use crate::Rng;

/// The most bound UDP ports. Each received datagram is compared with all of them.
const MAX_PORTS: usize = 64;
/// The first of the dynamic ports (RFC 6335 section 6).
const DYNAMIC: u16 = 49_152;

/// The reason why a UDP port cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The UDP port is bound already.
    #[error("the port is in use: choose another, or 0 for any free one")]
    InUse,
    /// The IP stack has as many bound UDP ports as it can.
    #[error("too many ports are in use: unbind one first")]
    TooMany,
}

/// The bound UDP ports of an IP stack.
#[derive(Debug, Default)]
pub(in crate::net) struct Ports(ArrayVec<u16, MAX_PORTS>);

impl Ports {
    /// Returns true if the UDP port `port` is bound.
    #[inline]
    pub(in crate::net) fn contains(&self, port: u16) -> bool {
        self.0.contains(&port)
    }

    /// Binds the UDP port `port`, or a free dynamic port if it is 0, and returns the port.
    pub(in crate::net) fn bind(&mut self, port: u16, rng: &mut Rng) -> Result<u16, BindError> {
        if self.0.is_full() {
            return Err(BindError::TooMany);
        }
        let mut chosen = port;
        while port == 0 && (chosen == 0 || self.contains(chosen)) {
            chosen = DYNAMIC + rng.below(u64::from(u16::MAX - DYNAMIC) + 1) as u16;
        }
        if self.contains(chosen) {
            return Err(BindError::InUse);
        }
        self.0.push(chosen);
        Ok(chosen)
    }

    /// Unbinds the UDP port `port`.
    pub(in crate::net) fn unbind(&mut self, port: u16) {
        self.0.retain(|p| *p != port);
    }
}
