//! The interface to a packet device of this machine: the protocol's [`Device`], and a file
//! descriptor to sleep on, which the protocol must not see.

use std::os::fd::BorrowedFd;

use sprat_proto::device::Device;

/// A packet device of this machine. It never blocks, and belongs to one thread. No method has a
/// default, which a wrapper could forget.
pub trait Nic: Device + Send {
    /// Returns the descriptor that is readable when `recv_burst` has frames, after [`Nic::arm`]
    /// returned true.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Prepares for a sleep on [`Nic::fd`]: an arriving frame makes it readable. Returns false if a
    /// frame has arrived meanwhile, so that the caller must not sleep; the device is then as after
    /// [`Nic::disarm`].
    fn arm(&mut self) -> bool;

    /// Ends the preparation for a sleep: the caller polls again. It does no harm without
    /// [`Nic::arm`] before it.
    fn disarm(&mut self);

    /// True if each frame carries its time of arrival ([`Device::rx_timestamp_ns`]), by the
    /// kernel's time of day.
    fn has_rx_timestamps(&self) -> bool;

    /// True if the device has a carrier, so that frames may reach the other end. The call costs a
    /// system call or two.
    fn carries(&mut self) -> bool;

    /// Returns the number of queues of its interface or link that the device takes frames from.
    fn queues(&self) -> usize;
}

impl<T: Nic + ?Sized> Nic for Box<T> {
    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }
    fn arm(&mut self) -> bool {
        (**self).arm()
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn has_rx_timestamps(&self) -> bool {
        (**self).has_rx_timestamps()
    }
    fn carries(&mut self) -> bool {
        (**self).carries()
    }
    fn queues(&self) -> usize {
        (**self).queues()
    }
}
