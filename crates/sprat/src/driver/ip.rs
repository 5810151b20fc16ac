//! The datagram driver over our own IP stack on a packet device: `fast+packet`, `fast+xdp`,
//! `fast+tap`, `fast+memif`, `fast+shmnet`, `fast+dpdk`, and `fast+bond` of two of a kind.
//!
//! ```text
//!  Fast ─► Stack ─► sprat_proto::net::UdpSocket ─► a device
//!           names, sleep        ARP … UDP          frames
//! ```
//!
//! The interface itself, and its addresses: [`crate::interface`].
//!
//! Always holds: device and stack count what they drop, and their errors are losses here.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::datagrams::{LeftDatagram, PaddedHeader, Sent};
use sprat_proto::net::{StackEvent, UdpSocket};
use sprat_proto::{Addr, Datagrams, Device as _, Instant, TimedDatagrams};

use crate::device::{AnyNic, Nic as _};
use crate::driver::{Driver, same_crc};
use crate::interface::{self, Opened, Ports, resolved};
use crate::locator::{DevicePort, Kind, Locator};
use crate::trace::{TraceRing, watch::TracedNic};
use sprat_sys::clock;

/// A UDP port of an IP stack of its own, on a device of its own.
pub struct Stack {
    port: UdpSocket<AnyNic>,
    protocol: String,
    /// True if packets over this device have a checksum.
    crc: bool,
    /// The locator that other machines reach this port by, if it listens.
    locator: Option<String>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port.port();
        f.debug_struct("Stack")
            .field("protocol", &self.protocol)
            .field("port", &port)
            .finish_non_exhaustive()
    }
}

/// Returns the packet device and port that a locator names.
fn device_port(locator: &Locator) -> io::Result<DevicePort> {
    match locator.kind()? {
        Kind::Device(port) => Ok(port),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} names no packet device"),
        )),
    }
}

impl Stack {
    /// Opens a driver that listens at `at`, a locator of a packet device. No other machine may have
    /// its address.
    ///
    /// # Errors
    /// The locator is of another kind, its host does not resolve, is the kernel's own or no host's,
    /// or the device cannot be opened: the error says what is missing.
    pub fn listen(at: &Locator) -> io::Result<Self> {
        let opened = interface::listen(at, &device_port(at)?, Ports::One)?;
        let own = opened.own;
        let mut this = Self::over(at, opened)?;
        this.locator = Some(interface::locator(at, own, this.port.port()));
        Ok(this)
    }

    /// Opens a driver that only calls others such as `to`: at the address and on the device that
    /// one of `local` names for this protocol, otherwise on the device that `to` names.
    ///
    /// # Errors
    /// The errors of [`Stack::listen`].
    pub fn client(to: &Locator, local: &[Locator]) -> io::Result<Self> {
        Self::over(to, interface::towards(to, local, Ports::One, device_port)?)
    }

    fn over(at: &Locator, opened: Opened) -> io::Result<Self> {
        let Opened { interface, own, crc } = opened;
        let port = UdpSocket::new(interface, own.port(), own.is_ipv6())
            .map_err(|e| io::Error::new(io::ErrorKind::AddrInUse, format!("{at}: {e}")))?;
        Ok(Self { port, protocol: at.protocol().to_owned(), crc, locator: None })
    }

    /// Makes the driver trace the device's calls, too.
    pub fn traced(self, trace: &TraceRing) -> Self {
        let watch = |nic| AnyNic::other(TracedNic::new(nic, trace.clone()));
        Self { port: self.port.map(watch), ..self }
    }

    /// The driver's UDP port with its stack, to read counters and to send echo requests.
    pub fn port(&mut self) -> &mut UdpSocket<AnyNic> {
        &mut self.port
    }

    /// The next event of the stack beside datagrams; call until `None`.
    pub fn event(&mut self) -> Option<StackEvent> {
        self.port.interface_mut().event()
    }
}

impl Datagrams for Stack {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        self.port.recv_burst()
    }

    #[inline(always)]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        self.port.datagram(i)
    }

    fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        self.port.left(i)
    }

    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        self.port.append_left(i, from, bytes);
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.port.send(to, parts)
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.port.send_short(to, head, body)
    }

    #[inline]
    fn flush(&mut self) {
        self.port.flush();
    }

    fn gone(&mut self) -> Option<Addr> {
        None
    }

    fn max_payload(&self) -> usize {
        self.port.max_payload()
    }

    fn max_loopback_payload(&self) -> usize {
        self.max_payload()
    }

    fn lossless(&self) -> bool {
        false
    }

    #[inline]
    fn intact(&self) -> bool {
        !self.crc
    }
}

impl TimedDatagrams for Stack {
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.port.interface_mut().set_now(now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.port.interface().deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.port.interface_mut().tick(now);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.port.interface().stack().counters().each(each);
        self.port.interface().device().counters(each);
    }
}

impl Driver for Stack {
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr> {
        let target = device_port(to)?;
        if to.protocol() != self.protocol || target.at.port == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{to}: no one is reached there by {}", self.protocol),
            ));
        }
        same_crc(to, self.crc, target.crc)?;
        let addr = resolved(&target)?;
        if let Some(mac) = target.mac {
            self.port.interface_mut().set_now(clock::now());
            self.port.interface_mut().set_neighbour(addr.ip(), mac);
        }
        Ok(UdpSocket::<AnyNic>::canonical(addr))
    }

    fn locator(&self) -> Option<String> {
        self.locator.clone()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.port.interface().device().fd()
    }

    fn arm(&mut self) -> bool {
        self.port.flush();
        self.port.interface().stack().is_idle() && self.port.interface_mut().device_mut().arm()
    }

    fn disarm(&mut self) {
        self.port.interface_mut().device_mut().disarm();
    }
}
