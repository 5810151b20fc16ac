//! One port of a stack over its device, as [`Datagrams`]: what the RPC transport runs on.
//!
//! Not here: names and sleep, which are `host`'s.

use core::net::{IpAddr, SocketAddr};

use super::paths::plain;
use super::{BindError, Config, Event, Stack};
use crate::datagrams::{Addr, Datagrams, PaddedHeader, Sent};
use crate::device::{Device, HEADER, Mac};
use crate::wire::{ipv4, ipv6, udp};
use crate::{Instant, Rng};

/// See the file.
#[derive(Debug)]
pub struct Port<D: Device> {
    stack: Stack,
    device: D,
    port: u16,
    now: Instant,
    max_payload: usize,
}

impl<D: Device> Port<D> {
    /// Port `port` (0: any that is free) of a stack of its own over `device`. Datagrams carry what a frame of the device has room
    /// for over IPv6 if `v6`, otherwise over IPv4.
    ///
    /// # Errors
    /// None today: a stack's first port is free.
    pub fn new(
        config: Config,
        device: D,
        port: u16,
        v6: bool,
        rng: Rng,
    ) -> Result<Self, BindError> {
        let info = device.info();
        let mut stack = Stack::new(config, info, rng);
        let port = stack.bind(port)?;
        let headers = if v6 { ipv6::HEADER } else { ipv4::HEADER } + udp::HEADER;
        // A frame that is longer than what the device takes at once is no use, whatever its wire carries.
        let mtu = info.mtu.min(info.max_send.saturating_sub(HEADER));
        Ok(Self {
            stack,
            device,
            port,
            now: Instant::ZERO,
            max_payload: mtu.saturating_sub(headers),
        })
    }

    /// The same with something around the device that does as it does.
    #[must_use]
    pub fn map<E: Device>(self, around: impl FnOnce(D) -> E) -> Port<E> {
        let Self { stack, device, port, now, max_payload } = self;
        Port { stack, device: around(device), port, now, max_payload }
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The stack, to read its counters.
    #[must_use]
    pub const fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The stack, for its commands.
    pub const fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// The device, to put it to sleep and wake it.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// It is `now`, for all that follows.
    #[inline]
    pub const fn turn(&mut self, now: Instant) {
        self.now = now;
    }

    /// When [`Port::tick`] wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.stack.deadline()
    }

    /// It is `now`: what is due is done and sent.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.stack.deadline().is_some_and(|due| due <= now) {
            self.stack.tick(now);
        }
        self.stack.output(now, &mut self.device);
    }

    /// What happened beside datagrams; call until `None`.
    pub fn event(&mut self) -> Option<Event> {
        self.stack.event()
    }

    /// The neighbour `addr` has the hardware address `mac`.
    pub fn neighbour(&mut self, addr: IpAddr, mac: Mac) {
        self.stack.neighbour(self.now, addr, mac);
    }

    /// The address as [`Datagrams::send`] takes it without a detour.
    #[must_use]
    pub fn plain(addr: SocketAddr) -> Addr {
        Addr::Net(plain(addr))
    }
}

impl<D: Device> Datagrams for Port<D> {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        self.stack.input(self.now, &mut self.device)
    }

    #[inline]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let (_, from, bytes) = self.stack.datagram(i, &self.device);
        (Addr::Net(from), bytes)
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        match to {
            Addr::Net(to) => {
                match self.stack.send(self.now, &mut self.device, self.port, to, parts) {
                    Sent::Full => Sent::Full,
                    // That a device has vanished is no news about one peer: what is sent is lost.
                    Sent::Yes | Sent::Gone => Sent::Yes,
                }
            }
            Addr::Local(_) => Sent::Yes,
        }
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[head, body])
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

    fn lossless(&self) -> bool {
        false
    }

    #[inline]
    fn intact(&self) -> bool {
        false
    }
}
