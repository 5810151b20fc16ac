//! A UDP socket over a stack and a device of its own, for the RPC transport.
//!
//! Not here: locators and sleep, which `sprat` adds.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::ports::BindError;
use super::routes::canonical;
use crate::datagrams::{Addr, Datagrams, LeftDatagram, PaddedHeader, Sent};
use crate::device::{Device, HEADER};
use crate::net::interface::Interface;
use crate::wire::{ipv4, ipv6, udp};

/// A UDP socket that owns its network interface.
#[derive(Debug)]
pub struct UdpSocket<D: Device> {
    interface: Interface<D>,
    port: u16,
    max_payload: usize,
}

impl<D: Device> UdpSocket<D> {
    /// Binds the UDP port `port` of an interface, or any free port if it is 0.
    /// The longest datagram is that of an unfragmented IPv6 packet if `v6`, otherwise of an IPv4
    /// packet.
    ///
    /// # Errors
    /// [`BindError`] if the port is in use or too many ports are bound.
    pub fn new(mut interface: Interface<D>, port: u16, v6: bool) -> Result<Self, BindError> {
        let info = interface.device().info();
        let port = interface.stack_mut().bind(port)?;
        let headers = if v6 { ipv6::HEADER } else { ipv4::HEADER } + udp::HEADER;
        // The device may take shorter frames than its wire carries.
        let mtu = info.mtu.min(info.max_send.saturating_sub(HEADER));
        Ok(Self { interface, port, max_payload: mtu.saturating_sub(headers) })
    }

    /// Replaces the UDP socket's device by a wrapper around it.
    #[must_use]
    pub fn map<E: Device>(self, wrap: impl FnOnce(D) -> E) -> UdpSocket<E> {
        let Self { interface, port, max_payload } = self;
        UdpSocket { interface: interface.map(wrap), port, max_payload }
    }

    /// Returns the local port of the UDP socket.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the UDP socket's interface, for its counters.
    #[must_use]
    pub const fn interface(&self) -> &Interface<D> {
        &self.interface
    }

    /// Returns the UDP socket's interface: its time, its timers, its IP stack and its device.
    pub const fn interface_mut(&mut self) -> &mut Interface<D> {
        &mut self.interface
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
        self.interface.input()
    }

    #[inline(always)]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let (_, from, bytes) = self.interface.stack().datagram(i, self.interface.device());
        (Addr::Net(from), bytes)
    }

    fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        self.interface.stack().left(i, self.interface.device())
    }

    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        self.interface.stack().append_left(i, from, self.interface.device(), bytes);
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        // The stack has no route to local addresses: the datagram is lost.
        let Addr::Net(to) = to else { return Sent::Yes };
        let now = self.interface.now();
        let (stack, device) = self.interface.parts();
        match stack.send(now, device, self.port, to, parts) {
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
        self.interface.output();
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
