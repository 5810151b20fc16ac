//! The IP stack of one device. It owns the state of all layers.
//!
//! `input` handles received frames and `output` sends datagrams, each in a file of its own.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::context::Context;
use super::counters::StackCounters;
use super::event::StackEvent;
use super::ip::echo::{EchoRequests, MAX_DATA, PingError, SECRET};
use super::ip::icmp::ErrorLimit;
use super::ip::output::{Head, IpOutput, next_hop};
use super::ip::paths::Paths;
use super::ip::reassembly::Reassembly;
use super::link::Link;
use super::options::{Ipv4Assignment, StackOptions};
use super::packet::LentData;
use super::tcp::TcpHost;
use super::udp::fast_path::FastPath;
use super::udp::gso::GsoBatch;
use super::udp::ports::{BindError, Ports};
use super::udp::received::Burst;
use super::udp::routes::RouteCache;
use crate::datagrams::LeftDatagram;
use crate::device::{Device, Info, Mac};
use crate::{Instant, Rng};

/// The IP stack of one device.
#[derive(Debug)]
pub struct Stack {
    pub(super) cx: Context,
    pub(super) link: Link,
    pub(super) ip: IpOutput,
    pub(super) reassembly: Reassembly,
    pub(super) echo: EchoRequests,
    pub(super) error_limit: ErrorLimit,
    pub(super) ports: Ports,
    pub(super) routes: RouteCache,
    pub(super) paths: Paths,
    pub(super) batch: GsoBatch,
    /// The receive fast path for the address and port of the last datagram over IPv4.
    pub(super) fast_path: Option<FastPath>,
    pub(super) burst: Burst,
    pub(super) tcp: Option<Box<TcpHost>>,
    /// The received data that is lent to programs until `output`.
    pub(super) lent: Vec<LentData>,
    /// The received data behind gaps that programs may use until `output`, each with the number of
    /// bytes of its stream before it.
    pub(super) ahead: Vec<(u32, LentData)>,
}

impl Stack {
    /// Makes an IP stack for a device with the properties `info`. It sends nothing before the first
    /// [`Stack::tick`].
    #[must_use]
    pub fn new(options: StackOptions, info: Info, mut rng: Rng) -> Self {
        let routes = RouteCache::new(&mut rng);
        let echo = EchoRequests::new(&mut rng);
        let ip = IpOutput::new(&mut rng);
        let paths = Paths::new(&mut rng);
        let cx = Context::new(options, info, rng);
        Self {
            link: Link::new(&cx),
            ip,
            reassembly: Reassembly::new(&cx.options),
            echo,
            error_limit: ErrorLimit::default(),
            ports: Ports::default(),
            routes,
            paths,
            batch: GsoBatch::new(),
            fast_path: None,
            burst: Burst::default(),
            tcp: None,
            lent: Vec::new(),
            ahead: Vec::new(),
            cx,
        }
    }

    /// Returns the counters of the IP stack.
    #[must_use]
    pub const fn counters(&self) -> &StackCounters {
        &self.cx.counters
    }

    /// Returns the stack's IPv4 address if it is in use.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.link.addresses.v4()
    }

    /// Returns the stack's address of one version of IP, if it is in use.
    #[must_use]
    pub fn address(&self, is_v4: bool) -> Option<IpAddr> {
        if is_v4 { self.ipv4().map(IpAddr::V4) } else { self.link.addresses.v6().map(IpAddr::V6) }
    }

    /// Returns true if `addr` is an own address of the stack in use.
    #[must_use]
    pub fn has_address(&self, addr: IpAddr) -> bool {
        self.link.addresses.has(addr)
    }

    /// Returns the address from which packets to `to` leave; none if there is no route to it, or it
    /// is an own address of the stack.
    #[must_use]
    pub fn source(&self, to: IpAddr) -> Option<IpAddr> {
        next_hop(&self.cx.options, &self.link, to).map(|hop| hop.from)
    }

    /// Returns true if no received datagram and no frame to send waits inside the IP stack.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.burst.is_done()
            && self.link.queue.is_empty()
            && self.batch.is_empty()
            && !self.has_lent()
            && !self.has_tcp_output()
    }

    /// Returns UDP datagram `i` of the last `input`: the local port, the sender, and the payload,
    /// which is empty if the device has left its end.
    ///
    /// # Panics
    /// If `i` is not below the number that `input` returned, or `device` is not the device that it
    /// read.
    #[inline(always)]
    pub fn datagram<'b, D: Device>(
        &'b self,
        i: usize,
        device: &'b D,
    ) -> (u16, SocketAddr, &'b [u8]) {
        self.burst.datagram(i, device)
    }

    /// Returns the beginning of UDP datagram `i` of the last `input` if the device has left its end
    /// in memory that the peer can write.
    pub(super) fn left<'b, D: Device>(&self, i: usize, device: &'b D) -> Option<LeftDatagram<'b>> {
        self.burst.left(i, device)
    }

    /// Appends the bytes from `from` on of UDP datagram `i`, whose end the device has left, to
    /// `bytes`.
    pub(super) fn append_left<D: Device>(
        &self,
        i: usize,
        from: usize,
        device: &D,
        bytes: &mut Vec<u8>,
    ) {
        self.burst.append_left(i, from, device, bytes);
    }

    /// Takes the next event of the IP stack. Call it after `input` and `tick` until it returns
    /// none.
    pub fn event(&mut self) -> Option<StackEvent> {
        self.cx.event()
    }

    /// Returns the time at which the IP stack's next timer expires, when to call `tick`, and
    /// `output` after it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let link = self.link.addresses.deadline().min(self.link.neighbours.deadline());
        let tcp = self.tcp.as_ref().and_then(|tcp| tcp.deadline()).unwrap_or(Instant::NEVER);
        let next = link.min(self.reassembly.deadline()).min(tcp);
        (next < Instant::NEVER).then_some(next)
    }

    /// Handles expired timers of the IP stack: probes and announces addresses, solicits neighbours
    /// again, drops incomplete datagrams.
    pub fn tick(&mut self, now: Instant) {
        let cx = &mut self.cx;
        cx.now = now;
        for event in self.link.addresses.tick(now, &mut cx.rng) {
            self.ip.generation = self.ip.generation.wrapping_add(1);
            cx.report(event);
        }
        self.link.neighbours.tick(now, &mut cx.counters);
        self.reassembly.tick(now, &mut cx.counters);
        self.tcp.iter_mut().for_each(|tcp| tcp.tick(now));
    }

    /// Binds the UDP port `port`, or a free dynamic port if it is 0, and returns the port. The
    /// stack delivers its datagrams from then on.
    ///
    /// # Errors
    /// [`BindError`] if the port is in use or too many ports are bound.
    pub fn bind(&mut self, port: u16) -> Result<u16, BindError> {
        self.ports.bind(port, &mut self.cx.rng)
    }

    /// Unbinds the UDP port `port`. The stack no longer delivers its datagrams.
    pub fn unbind(&mut self, port: u16) {
        self.fast_path = None;
        self.ports.unbind(port);
    }

    /// Sets the MAC address of a neighbour permanently, so that the stack never solicits it.
    pub fn set_neighbour(&mut self, now: Instant, addr: IpAddr, mac: Mac) {
        let counters = &mut self.cx.counters;
        self.link.neighbours.set_permanent(now, addr.to_canonical(), mac, counters);
    }

    /// Sends an echo request with `len` bytes of data and returns its sequence number, which the
    /// event of the reply repeats.
    ///
    /// # Errors
    /// [`PingError`] if `len` is out of range or the stack cannot send to that address.
    pub fn ping(&mut self, now: Instant, to: IpAddr, len: usize) -> Result<u16, PingError> {
        self.cx.now = now;
        let to = to.to_canonical();
        if !(SECRET..=MAX_DATA).contains(&len) {
            return Err(PingError::Length);
        }
        let options = &self.cx.options;
        let unassigned = options.ipv4 != Ipv4Assignment::None && self.ipv4().is_none();
        let error =
            if to.is_ipv4() && unassigned { PingError::NoAddress } else { PingError::NoRoute };
        let from = next_hop(options, &self.link, to).ok_or(error)?.from;
        let (seq, protocol, message) = self.echo.request(&mut self.cx, from, to, len);
        self.ip.send(&mut self.cx, &mut self.link, &Head::new(from, to, protocol), &message);
        Ok(seq)
    }

    /// Returns true if connections lend data of the last burst, or show data behind gaps.
    #[inline]
    pub(super) const fn has_lent(&self) -> bool {
        !self.lent.is_empty() || !self.ahead.is_empty()
    }

    /// Returns true if a TCP connection may have something to send.
    #[inline]
    pub(super) fn has_tcp_output(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.has_output())
    }

    /// Returns the generation of valid routes: it changes with neighbours, addresses and path MTUs.
    #[inline]
    pub(super) const fn generation(&self) -> u32 {
        self.link.neighbours.generation().wrapping_add(self.ip.generation)
    }
}
