//! The parts of a datagram driver that only production has, and no simulation: names of peers, file
//! descriptors and sleep.
//!
//! Not here: sessions and requests. A driver moves datagrams between addresses.

use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::{Addr, TimedDatagrams};

use crate::locator::Locator;

pub mod fault;
pub mod ip;
pub mod shm;
pub mod udp;

/// Checks that the server at `to` agrees with a driver on checksums: `own` is true if packets of
/// the driver have one, `theirs` if those of the server do.
///
/// # Errors
/// They differ.
fn same_crc(to: &Locator, own: bool, theirs: bool) -> io::Result<()> {
    let word = |crc| if crc { "on" } else { "off" };
    if own == theirs {
        return Ok(());
    }
    let why = format!("{to}: calls here have crc={}, not crc={}", word(own), word(theirs));
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// A driver of this machine: shared memory, kernel UDP, or our own IP layer over a device. Never
/// blocks; belongs to one thread.
///
/// No method has a default, which a wrapper could forget.
pub trait Driver: TimedDatagrams + Send {
    /// The address of the peer at `to`, for [`sprat_proto::Datagrams::send`]. A driver with
    /// connections opens one, unless it has one to that peer already.
    ///
    /// # Errors
    /// The locator names another driver or no host that resolves, no server of that name exists on
    /// this machine, or a system call failed; the error names the host or the server.
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr>;

    /// Returns the locator by which others reach this driver, if it listens. It has each value that
    /// was chosen at the opening, such as the port.
    fn locator(&self) -> Option<String>;

    /// Returns the descriptor that is readable when `recv_burst` or `gone` has a result, while
    /// notification is armed.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Arms notification: peers make [`Driver::fd`] readable from now on. Returns false if
    /// something has arrived, so that the caller must not sleep; notification is then disarmed.
    fn arm(&mut self) -> bool;

    /// Disarms notification: the caller polls from now on. Harmless if notification is not armed.
    fn disarm(&mut self);
}
