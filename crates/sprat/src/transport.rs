//! The parts of a node's transport that only production has, and no simulation: locators, file
//! descriptors and sleep.

use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::node::{Fast, Transport};
use sprat_proto::rpc::SessionId;
use sprat_proto::tracepoint::Probe;

use crate::driver::Driver;
use crate::locator::Locator;

pub(crate) mod any;
pub(crate) mod framed;
pub(crate) mod qp;
pub(crate) mod tcp;
pub(crate) mod utcp;

/// A [`Transport`] of this machine: connected by locator, and with a descriptor to sleep on.
///
/// No method has a default, which a wrapper could forget.
pub trait SystemTransport: Transport + Send {
    /// Begins a session with the server at `to`.
    ///
    /// # Errors
    /// The locator names no host that resolves, no server of that name exists on this machine, or a
    /// system call failed.
    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId>;

    /// Returns the descriptor that is readable when [`Transport::input`] has input, while
    /// notification is armed.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Arms notification: peers make [`SystemTransport::fd`] readable from now on. Returns false if
    /// something has arrived or waits to be sent, so that the caller must not sleep.
    fn arm(&mut self) -> bool;

    /// Disarms notification: the caller polls from now on.
    fn disarm(&mut self);

    /// Returns the locator by which others reach this transport, if it listens. It has each value
    /// that was chosen at the opening, such as the port.
    fn locator(&self) -> Option<String>;
}

impl<D: Driver, P: Probe + Send> SystemTransport for Fast<D, P> {
    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        let addr = self.driver_mut().resolve(to)?;
        Ok(self.open(now, addr))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.driver().fd()
    }

    fn arm(&mut self) -> bool {
        self.driver_mut().arm()
    }

    fn disarm(&mut self) {
        self.driver_mut().disarm();
    }

    fn locator(&self) -> Option<String> {
        self.driver().locator()
    }
}
