//! The RDMA device: the engine, its sockets, and the thread that drives it, if there is one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprat_proto::Instant;
use sprat_proto::rdma::{Limits, PostError, RnicOptions};

use sprat_sys::interfaces::Interface;

use super::async_event::AsyncEvent;
use super::channel::{BoundAddress, ConnectionChannel};
use super::handle::Handle;
use super::listen::Listener;
use super::memory::ProtectionDomain;
use super::queue::{AsyncEventChannel, CompletionChannel, CompletionQueue};
use crate::engine::{
    Copies, Counters, Coupling, Failure, NativeInterface, Patience, Settings, Shared,
    SocketOptions, Threading,
};

/// Options of an RDMA device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The thread that makes progress for the device.
    pub threading: Threading,
    /// The path of received payload into memory regions.
    pub copies: Copies,
    /// The coupling with our own TCP, for a device on it.
    pub coupling: Coupling,
    /// True to protect every FPDU by a CRC32C. Without it only TCP's own checksum is left, which is
    /// weak. A peer that requests the CRC gets it in any case.
    pub crc: bool,
    /// True to request markers from the peer. With them and a CRC, a device on our own TCP places
    /// the payload of Writes and of responses to Reads as soon as it arrives, also behind missing
    /// bytes. Memory then shows later bytes before earlier ones until a message is delivered.
    pub markers: bool,
    /// The MPA revision that the device tries first: 1 or 2.
    pub revision: u8,
    /// True to allow peers that are not on loopback. Nothing is encrypted.
    pub insecure_network: bool,
    /// The time that the peer's engine has to start a connection.
    pub start_timeout: Duration,
    /// The time that the peer's program has to answer a connection request.
    pub reply_timeout: Duration,
    /// The most connections at a time, and the most queue pairs for them. The device accepts no
    /// connection beyond it.
    pub connections: usize,
    /// A function that logs that an error ended a connection. The thread that finds the error calls
    /// it once, before any program can know of the error. The device is locked meanwhile, so the
    /// function must not use it.
    pub on_failure: Option<fn(&Failure)>,
}

impl Options {
    /// Converts the device's options to those of its engine.
    fn config(&self) -> RnicOptions {
        let ns = |of: Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
        RnicOptions {
            crc32c: sprat_sys::crc::crc32c,
            crc: self.crc,
            markers: self.markers,
            revision: self.revision,
            start_timeout_ns: ns(self.start_timeout),
            reply_timeout_ns: ns(self.reply_timeout),
            max_conns: self.connections,
            max_qps: self.connections,
            ..RnicOptions::default()
        }
    }

    /// The limits of an RDMA device with these options.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.config().limits()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threading: Threading::default(),
            copies: Copies::default(),
            coupling: Coupling::default(),
            crc: true,
            markers: false,
            revision: 2,
            insecure_network: false,
            start_timeout: Duration::from_nanos(RnicOptions::default().start_timeout_ns),
            reply_timeout: Duration::from_nanos(RnicOptions::default().reply_timeout_ns),
            connections: 65_536,
            on_failure: None,
        }
    }
}

/// A software RDMA device. A clone is the same device, which lives as long as any object made from
/// it.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) handle: Arc<Handle>,
}

impl Device {
    /// Opens an RDMA device of the program's own.
    ///
    /// # Errors
    /// No descriptors, threads or random numbers are left.
    pub fn open(options: Options) -> io::Result<Self> {
        Self::open_by(options, None)
    }

    /// Opens an RDMA device on an interface of this process: our own TCP carries its connections,
    /// and each FPDU is a segment. [`Options::insecure_network`] and [`Copies::Direct`] have no
    /// effect: every host that reaches the device may connect.
    ///
    /// # Errors
    /// No descriptors, threads or random numbers are left.
    pub fn open_on(options: Options, interface: NativeInterface) -> io::Result<Self> {
        Self::open_by(options, Some(interface))
    }

    fn open_by(options: Options, interface: Option<NativeInterface>) -> io::Result<Self> {
        let insecure_network = options.insecure_network || interface.is_some();
        let settings = Settings {
            config: options.config(),
            copies: options.copies,
            coupling: options.coupling,
            connections: options.connections,
            fitted: true,
            on_failure: options.on_failure,
        };
        let shared = Arc::new(Shared::new(settings, options.threading, interface)?);
        let handle = Handle { shared, insecure_network, thread: Mutex::default() };
        if options.threading != Threading::Background {
            handle.start()?;
        }
        Ok(Self { handle: Arc::new(handle) })
    }

    /// Allocates a protection domain. Regions and queue pairs work with each other only within one.
    ///
    /// # Errors
    /// The device has too many protection domains.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, PostError> {
        ProtectionDomain::new(Arc::clone(&self.handle))
    }

    /// Creates a completion queue with room for `depth` completions that wait. A completion that
    /// finds no room is an error of the queue and of all its queue pairs.
    ///
    /// # Errors
    /// The device has too many completion queues, or the depth is 0 or too large.
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue, PostError> {
        CompletionQueue::new(Arc::clone(&self.handle), depth, None)
    }

    /// Creates a channel that reports which of several completion queues have completions.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn completion_channel(&self) -> io::Result<CompletionChannel> {
        CompletionChannel::new(Arc::clone(&self.handle))
    }

    /// Creates a channel for asynchronous events of verbs objects. `fd`, an eventfd that counts
    /// down by one, is readable while an event waits.
    #[must_use]
    pub fn async_event_channel(&self, fd: Arc<OwnedFd>) -> AsyncEventChannel {
        AsyncEventChannel::new(Arc::clone(&self.handle), fd)
    }

    /// Listens for RDMA connections at `addr`; port 0 takes any free port.
    ///
    /// # Errors
    /// The address is in use, not one of this machine, or not allowed.
    pub fn listen(&self, addr: SocketAddr) -> io::Result<Listener> {
        self.handle.allow(addr)?;
        self.handle.start()?;
        Listener::new(Arc::clone(&self.handle), addr)
    }

    /// Creates a channel for the events of connections, in order. It is for programs that wait for
    /// many connections at once.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn connection_channel(&self) -> io::Result<ConnectionChannel> {
        ConnectionChannel::new(Arc::clone(&self.handle))
    }

    /// Binds a socket to an address, to listen there or to connect from there. Where other machines
    /// are not allowed, only peers of this machine are served there.
    ///
    /// # Errors
    /// The address is in use, or not one of this machine.
    pub fn bind(&self, addr: SocketAddr, options: SocketOptions) -> io::Result<BoundAddress> {
        BoundAddress::new(&self.handle, addr, options)
    }

    /// Checks that the device may connect to peers at `addr`.
    ///
    /// # Errors
    /// `PermissionDenied`: it is an address of another machine, and that was not allowed.
    pub fn allows(&self, addr: SocketAddr) -> io::Result<()> {
        self.handle.allow_peer(addr)
    }

    /// Describes the interface of a device that [`Device::open_on`] opened: the addresses of its
    /// stack, and the hardware address and MTU of what is below. None for a device over the
    /// kernel's TCP, which uses all interfaces of the machine.
    #[must_use]
    pub fn interface(&self) -> Option<Interface> {
        self.handle.shared.with(|core| core.interface())
    }

    /// Returns the local address of the route to `to` on the interface of a device that
    /// [`Device::open_on`] opened; none for a device over the kernel's TCP.
    ///
    /// # Errors
    /// `NetworkUnreachable`: no host on the link or behind a gateway has that address.
    pub fn route(&self, to: IpAddr) -> io::Result<Option<IpAddr>> {
        self.handle.shared.with(|core| core.route(to))
    }

    /// Ends the connections of a device that [`Device::open_on`] opened, as the kernel ends the
    /// sockets of a process: sends what was posted, closes, and waits at most for `limit` until the
    /// peers have closed them too. It is for a program that is about to exit: the device is of no
    /// use afterwards. It does nothing on a device over the kernel's TCP.
    pub fn leave(&self, limit: Duration) {
        self.handle.shared.leave(Some(limit));
    }

    /// Takes the oldest asynchronous event of those objects that have no channel.
    #[must_use]
    pub fn async_event(&self) -> Option<AsyncEvent> {
        self.handle.shared.poll(|core| {
            loop {
                let event = core.events().async_events.pop_front()?;
                if let Some(notice) = AsyncEvent::of(&event) {
                    return Some(notice);
                }
            }
        })
    }

    /// Makes progress on the device's connections; returns true if there was anything to do. It is
    /// for programs that wait on [`Device::fd`] themselves: polling and waiting make progress too,
    /// and so does a thread of the device.
    pub fn progress(&self) -> bool {
        if self.handle.shared.threading != Threading::Caller {
            return false;
        }
        let before = self.handle.shared.epoch();
        self.handle.shared.poll(|_| None::<()>);
        self.handle.shared.epoch() != before
    }

    /// The descriptor that is readable when [`Device::progress`] has something to do, timers aside.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.handle.shared.epoll().as_fd()
    }

    /// Waits until `done` returns true, at most for `limit`; returns true if it did. It is for
    /// programs that read what a peer writes into their memory. The device calls `done` whenever
    /// something has happened. `done` may use memory, but no other object of the device.
    pub fn wait(&self, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        self.handle.shared.wait(limit, Patience::Spin, |_| done().then_some(())).is_some()
    }

    /// Waits as [`Device::wait`] does, but sleeps from the beginning.
    pub fn sleep(&self, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        self.handle.shared.wait(limit, Patience::Sleep, |_| done().then_some(())).is_some()
    }

    /// The present time on the clock of [`Completion::at`](super::Completion::at).
    #[must_use]
    pub fn now(&self) -> Instant {
        self.handle.shared.now()
    }

    /// The counters of the device: connections, bytes, reads, sends, turns.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.handle.shared.with(|core| core.counters())
    }
}
