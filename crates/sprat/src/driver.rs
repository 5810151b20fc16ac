//! The door that a datagram driver of this machine opens to [`Fast`](crate::fast::Fast): [`Datagrams`], and beside it
//! what the protocol must not see: names, and how to sleep.
//!
//! Not here: anything about sessions or requests. A driver moves datagrams between addresses.

use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::{Addr, Datagrams, Instant};

use crate::locator::Locator;

pub mod fault;
pub mod ip;
pub mod shm;
pub mod udp;

/// A [`Datagrams`] of the real world: shared memory or kernel UDP. Never blocks; belongs to one thread. No method has a
/// default, which a wrapper could forget.
pub trait Driver: Datagrams + Send {
    /// The address of the peer at `to`, for [`Datagrams::send`]. A driver with connections opens one, unless it has one
    /// to that peer already.
    ///
    /// # Errors
    /// The locator names another driver or no host that resolves, no server of that name exists on this machine, or a
    /// system call failed; the error names what was looked for.
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr>;

    /// Where others reach this driver, if it listens: a locator with every chosen value filled in.
    fn locator(&self) -> Option<String>;

    /// It is `now`, for all that follows until the next call. Only drivers with timers of their own mind.
    fn turn(&mut self, now: Instant);

    /// When [`Driver::tick`] wants to be called, if nothing happens before.
    fn deadline(&self) -> Option<Instant>;

    /// It is `now`: what is due is done.
    fn tick(&mut self, now: Instant);

    /// What it has counted itself.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));

    /// Readable when there is something for `recv_burst` or `gone` after [`Driver::doze`] said yes.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The worker wants to sleep on [`Driver::fd`]: arrange that peers wake it. False if something has arrived meanwhile,
    /// so that the worker must not sleep; it then goes on as after [`Driver::wake`].
    fn doze(&mut self) -> bool;

    /// The worker is awake again and polls: peers need not wake it. Harmless without a `doze` before it.
    fn wake(&mut self);
}
