//! Connections of our own TCP that this end opens.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpId, TcpOpenError};

use super::connection::Wire;
use super::{Connections, Utcp, device_port};
use crate::locator::Locator;
use crate::transport::framed::{CONNECT_NS, Connecting};

impl Utcp {
    /// Begins to connect to the first of the addresses `left` where that is possible. Returns the
    /// slot of the new link.
    pub(super) fn open(
        &mut self,
        now: Instant,
        to: &Locator,
        mut left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        let target = device_port(to)?;
        if to.protocol() != self.carrier.protocol {
            let why = format!("no one is reached there by {}", self.carrier.protocol);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.carrier.interface.set_now(now);
        if let Some(mac) = target.mac {
            left.iter().for_each(|addr| self.carrier.interface.set_neighbour(addr.ip(), mac));
        }
        let id = self.carrier.begin(now, &mut left)?;
        let slot = self.insert_opened(Wire::new(id));
        self.opening(now, slot, id, left);
        Ok(slot)
    }

    /// Begins the state of the connection in `slot`, which is being opened.
    fn opening(&mut self, now: Instant, slot: u16, id: TcpId, left: VecDeque<SocketAddr>) {
        self.carrier.set_slot(id, slot);
        let until = now.after(CONNECT_NS);
        if let Some(link) = self.link(slot) {
            link.connecting = Some(Connecting { left, until });
        }
        self.due_by(slot, until);
    }

    /// Notes that the connection in `slot` is open.
    pub(super) fn connected(&mut self, slot: u16) {
        if let Some(link) = self.link(slot) {
            link.connecting = None;
        }
        self.stream_changed(slot);
        self.mark_dirty(slot);
    }

    /// Tries the next addresses for the connection in `slot`, after one failed with `cause`.
    pub(super) fn try_others(&mut self, now: Instant, slot: u16, cause: io::Error) {
        let Some((link, shared)) = self.link_and_shared(slot) else { return };
        let mut left = link.connecting.take().map_or_else(VecDeque::new, |c| c.left);
        if left.is_empty() {
            return self.open_failed(slot, cause);
        }
        shared.carrier.reset(link.wire.id);
        match shared.carrier.begin(now, &mut left) {
            Err(e) => self.open_failed(slot, e),
            Ok(id) => {
                link.wire = Wire::new(id);
                self.opening(now, slot, id, left);
            }
        }
    }
}

impl Connections {
    /// Begins to connect to the first of `addresses` where that is possible, and removes it and
    /// those before it from the list.
    fn begin(&mut self, now: Instant, addresses: &mut VecDeque<SocketAddr>) -> io::Result<TcpId> {
        self.interface.set_now(now);
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        while let Some(addr) = addresses.pop_front() {
            match self.interface.connect_tcp(0, addr) {
                Ok(id) => return Ok(id),
                Err(e) => last = open_error(e),
            }
        }
        Err(last)
    }
}

fn open_error(error: TcpOpenError) -> io::Error {
    let kind = match error {
        TcpOpenError::InUse | TcpOpenError::NoPort => io::ErrorKind::AddrInUse,
        TcpOpenError::NoRoute => io::ErrorKind::HostUnreachable,
        TcpOpenError::TooMany => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, error)
}
