//! A network interface: an IP stack and the device that it owns.

use core::net::IpAddr;
use core::net::SocketAddr;

use super::event::StackEvent;
use super::options::StackOptions;
use super::stack::Stack;
use super::tcp::{TcpHost, TcpId, TcpOpenError};
use crate::device::{Device, Mac};
use crate::{Instant, Rng};

/// A network interface: an IP stack and the device that it owns.
///
/// A turn is [`Interface::set_now`], [`Interface::input`] until it returns false, the events and
/// the lent data of each, and [`Interface::output`].
#[derive(Debug)]
pub struct Interface<D: Device> {
    stack: Stack,
    device: D,
    now: Instant,
}

impl<D: Device> Interface<D> {
    /// Makes an IP stack over `device`.
    #[must_use]
    pub fn new(options: StackOptions, device: D, rng: Rng) -> Self {
        let stack = Stack::new(options, device.info(), rng);
        Self { stack, device, now: Instant::ZERO }
    }

    /// Replaces the device by a wrapper around it.
    #[must_use]
    pub fn map<E: Device>(self, wrap: impl FnOnce(D) -> E) -> Interface<E> {
        let Self { stack, device, now } = self;
        Interface { stack, device: wrap(device), now }
    }

    /// Returns the IP stack, for its counters.
    #[must_use]
    pub const fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the IP stack, for its commands.
    pub const fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Returns the device.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, to arm and disarm its notifications.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the IP stack and the device.
    pub const fn parts(&mut self) -> (&mut Stack, &mut D) {
        (&mut self.stack, &mut self.device)
    }

    /// Returns the time of all calls.
    #[inline]
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Sets the time of all calls that follow.
    #[inline]
    pub const fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Receives a burst of frames. Returns the number of UDP datagrams in it.
    #[inline]
    pub fn input(&mut self) -> usize {
        self.stack.input(self.now, &mut self.device)
    }

    /// Sends what waits. Returns true if some of it still waits.
    #[inline]
    pub fn output(&mut self) -> bool {
        self.stack.output(self.now, &mut self.device)
    }

    /// Returns the time at which the next timer expires, when to call [`Interface::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.stack.deadline()
    }

    /// Sets the time, handles expired timers and sends the packets that result.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.stack.deadline().is_some_and(|due| due <= now) {
            self.stack.tick(now);
        }
        self.output();
    }

    /// Takes the next event of the IP stack.
    pub fn event(&mut self) -> Option<StackEvent> {
        self.stack.event()
    }

    /// Sets the MAC address of a neighbour permanently, so that the stack never solicits it.
    pub fn set_neighbour(&mut self, addr: IpAddr, mac: Mac) {
        self.stack.set_neighbour(self.now, addr, mac);
    }

    /// Returns the TCP connections, if the stack may have any.
    #[inline]
    pub fn tcp(&mut self) -> Option<&mut TcpHost> {
        self.stack.tcp()
    }

    /// Begins a TCP connection to `peer` from a port, or from a free dynamic port if it is 0.
    ///
    /// # Errors
    /// [`TcpOpenError`]: also if there is no route to the peer, or the stack has no TCP.
    pub fn connect_tcp(&mut self, port: u16, peer: SocketAddr) -> Result<TcpId, TcpOpenError> {
        self.stack.connect_tcp(self.now, port, peer)
    }

    /// Returns piece `i` of the data that TCP connections lend ([`Stack::tcp_data`]).
    ///
    /// # Panics
    /// If `i` is not below [`Stack::lent_tcp`].
    #[inline]
    #[must_use]
    pub fn tcp_data(&self, i: usize) -> (TcpId, &[u8]) {
        self.stack.tcp_data(i, &self.device)
    }

    /// Takes `count` bytes of piece `i` of the data that TCP connections lend.
    #[inline]
    pub fn take_tcp(&mut self, i: usize, count: usize) {
        self.stack.take_tcp(i, count);
    }

    /// Returns piece `i` of the data behind gaps of TCP connections ([`Stack::tcp_ahead`]).
    ///
    /// # Panics
    /// If `i` is not below [`Stack::ahead_tcp`].
    #[must_use]
    pub fn tcp_ahead(&self, i: usize) -> (TcpId, u32, &[u8]) {
        self.stack.tcp_ahead(i, &self.device)
    }
}
