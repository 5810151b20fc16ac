//! The part of a transport of frames that touches the machine: connecting to a locator, and the
//! descriptor to sleep on.

use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::rpc::SessionId;
use sprat_proto::rpc::stream::Role;

use super::Framed;
use super::carrier::Carrier;
use crate::locator::Locator;
use crate::transport::SystemTransport;

impl<C: Carrier> SystemTransport for Framed<C> {
    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{to}: {e}"));
        let at = C::host_port(to)?;
        if at.port == 0 {
            return Err(named(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no server listens at port 0",
            )));
        }
        let addresses = at.allowed(self.options.insecure_network)?.into();
        if self.is_full() {
            return Err(named(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "too many connections",
            )));
        }
        let slot = C::open(self, now, to, addresses).map_err(named)?;
        match self.link(slot).map(|link| link.stream.role()) {
            Some(Role::Client(session)) => Ok(session),
            _ => Err(named(io::ErrorKind::NotConnected.into())),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.carrier.fd()
    }

    fn arm(&mut self) -> bool {
        let idle = self.current.is_none() && self.found.is_none();
        let settled = self.dirty.is_empty() && self.owing.is_empty() && self.resumed.is_empty();
        self.carrier.arm() && idle && settled
    }

    fn disarm(&mut self) {
        self.carrier.disarm();
    }

    fn locator(&self) -> Option<String> {
        self.carrier.locator()
    }
}
