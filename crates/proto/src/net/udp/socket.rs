//! A UDP socket over a stack and a device of its own, for the RPC transport.
//!
//! Not here: locators and sleep, which `sprat` adds.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::ports::BindError;
use super::routes::canonical;
use crate::datagrams::{Addr, Datagrams, LeftDatagram, PaddedHeader, Sent};
use crate::device::{Device, HEADER, Mac};
use crate::net::event::StackEvent;
use crate::net::options::StackOptions;
use crate::net::stack::Stack;
use crate::wire::{ipv4, ipv6, udp};
use crate::{Instant, Rng};

/// A UDP socket that owns its IP stack and its device.
#[derive(Debug)]
pub struct UdpSocket<D: Device> {
    stack: Stack,
    device: D,
    port: u16,
    now: Instant,
    max_payload: usize,
}

impl<D: Device> UdpSocket<D> {
    /// Makes an IP stack over `device` and binds the UDP port `port`, or any free port if it is 0.
    /// The longest datagram is that of an unfragmented IPv6 packet if `v6`, otherwise of an IPv4
    /// packet.
    ///
    /// # Errors
    /// None today, because the first port of a stack is free.
    pub fn new(
        options: StackOptions,
        device: D,
        port: u16,
        v6: bool,
        rng: Rng,
    ) -> Result<Self, BindError> {
        let info = device.info();
        let mut stack = Stack::new(options, info, rng);
        let port = stack.bind(port)?;
        let headers = if v6 { ipv6::HEADER } else { ipv4::HEADER } + udp::HEADER;
        // The device may take shorter frames than its wire carries.
        let mtu = info.mtu.min(info.max_send.saturating_sub(HEADER));
        let (now, max_payload) = (Instant::ZERO, mtu.saturating_sub(headers));
        Ok(Self { stack, device, port, now, max_payload })
    }

    /// Replaces the UDP socket's device by a wrapper around it.
    #[must_use]
    pub fn map<E: Device>(self, wrap: impl FnOnce(D) -> E) -> UdpSocket<E> {
        let Self { stack, device, port, now, max_payload } = self;
        UdpSocket { stack, device: wrap(device), port, now, max_payload }
    }

    /// Returns the local port of the UDP socket.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the UDP socket's IP stack, for its counters.
    #[must_use]
    pub const fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the UDP socket's IP stack, for its commands.
    pub const fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Returns the UDP socket's device.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Returns the UDP socket's device, to arm and disarm its notifications.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Sets the UDP socket's time for all calls that follow.
    #[inline]
    pub const fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the time at which the UDP socket's next timer expires, when to call
    /// [`UdpSocket::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.stack.deadline()
    }

    /// Sets the UDP socket's time, handles expired timers and sends the packets that result.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.stack.deadline().is_some_and(|due| due <= now) {
            self.stack.tick(now);
        }
        self.stack.output(now, &mut self.device);
    }

    /// Takes the next event of the UDP socket's IP stack.
    pub fn event(&mut self) -> Option<StackEvent> {
        self.stack.event()
    }

    /// Sets the MAC address of a neighbour permanently, so that the stack never solicits it.
    pub fn set_neighbour(&mut self, addr: IpAddr, mac: Mac) {
        self.stack.set_neighbour(self.now, addr, mac);
    }

    /// Returns the peer's address in the form that [`Datagrams::send`] looks up fastest.
    #[must_use]
    pub fn canonical(addr: SocketAddr) -> Addr {
        Addr::Net(canonical(addr))
    }
}

impl<D: Device> Datagrams for UdpSocket<D> {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        self.stack.input(self.now, &mut self.device)
    }

    #[inline(always)]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let (_, from, bytes) = self.stack.datagram(i, &self.device);
        (Addr::Net(from), bytes)
    }

    fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        self.stack.left(i, &self.device)
    }

    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        self.stack.append_left(i, from, &self.device, bytes);
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        // The stack has no route to local addresses: the datagram is lost.
        let Addr::Net(to) = to else { return Sent::Yes };
        match self.stack.send(self.now, &mut self.device, self.port, to, parts) {
            Sent::Full => Sent::Full,
            // A vanished device loses datagrams; it does not mean that this peer has disappeared.
            Sent::Yes | Sent::Gone => Sent::Yes,
        }
    }

    #[inline]
    fn send_short(&mut self, to: Addr, header: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[header, body])
    }

    #[inline]
    fn flush(&mut self) {
        self.stack.output(self.now, &mut self.device);
    }

    fn gone(&mut self) -> Option<Addr> {
        None
    }

    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn max_loopback_payload(&self) -> usize {
        self.max_payload()
    }

    fn lossless(&self) -> bool {
        false
    }

    #[inline]
    fn intact(&self) -> bool {
        false
    }
}
