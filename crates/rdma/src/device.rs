//! The device: the engine, its sockets, and the thread that drives it, if there is one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprat_proto::Instant;
use sprat_proto::rdma::{Limits, PostError, RnicOptions};

use super::async_event::AsyncEvent;
use super::channel::{BoundAddress, ConnectionChannel};
use super::handle::Handle;
use super::listen::Listener;
use super::memory::ProtectionDomain;
use super::queue::{AsyncEventChannel, CompletionChannel, CompletionQueue};
use crate::engine::{
    Copies, Counters, Failure, Patience, Settings, Shared, SocketOptions, Threading,
};

/// Options of a device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The thread that makes progress.
    pub threading: Threading,
    /// The path of payload into regions.
    pub copies: Copies,
    /// Protect every FPDU by a CRC32C. Without it only TCP's own checksum is left, which is weak; a
    /// peer that wants it gets it in any case.
    pub crc: bool,
    /// Ask the peer for markers. They are of use to receivers that take bytes out of order, which
    /// this one does not.
    pub markers: bool,
    /// The MPA revision spoken first: 1 or 2.
    pub revision: u8,
    /// Allow peers that are not on loopback. Nothing is encrypted.
    pub insecure_network: bool,
    /// The time that the peer's engine has to start up.
    pub start_timeout: Duration,
    /// The time that the peer's program has to answer a request.
    pub reply_timeout: Duration,
    /// The most connections at a time, and queue pairs for them. Beyond it none is accepted.
    pub connections: usize,
    /// Logs that an error ended a connection: called once for each by the thread that finds it,
    /// before any program can know. The device is locked meanwhile, so the function must not use
    /// it.
    pub on_failure: Option<fn(&Failure)>,
}

impl Options {
    /// The engine's options.
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

    /// The limits of a device with these options.
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
    /// Opens a device of its own.
    ///
    /// # Errors
    /// No descriptors, threads or random numbers left.
    pub fn open(options: Options) -> io::Result<Self> {
        let settings = Settings {
            config: options.config(),
            copies: options.copies,
            connections: options.connections,
            fitted: true,
            on_failure: options.on_failure,
        };
        let shared = Arc::new(Shared::new(settings, options.threading)?);
        let insecure_network = options.insecure_network;
        let handle = Handle { shared, insecure_network, thread: Mutex::default() };
        if options.threading != Threading::Background {
            handle.start()?;
        }
        Ok(Self { handle: Arc::new(handle) })
    }

    /// A protection domain: regions and queue pairs work with each other only within one.
    ///
    /// # Errors
    /// There are too many.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, PostError> {
        ProtectionDomain::new(Arc::clone(&self.handle))
    }

    /// A completion queue with room for `depth` completions that wait. A completion that finds no
    /// room is an error of the queue and of all its queue pairs.
    ///
    /// # Errors
    /// There are too many, or the depth is 0 or too large.
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue, PostError> {
        CompletionQueue::new(Arc::clone(&self.handle), depth, None)
    }

    /// A channel that tells which of several completion queues have something.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn completion_channel(&self) -> io::Result<CompletionChannel> {
        CompletionChannel::new(Arc::clone(&self.handle))
    }

    /// A channel for asynchronous events of objects. `fd`, an eventfd that counts down by one, is
    /// readable while an event waits.
    #[must_use]
    pub fn async_event_channel(&self, fd: Arc<OwnedFd>) -> AsyncEventChannel {
        AsyncEventChannel::new(Arc::clone(&self.handle), fd)
    }

    /// Listens at `addr`; port 0 takes any that is free.
    ///
    /// # Errors
    /// The address is in use, not ours, or not allowed.
    pub fn listen(&self, addr: SocketAddr) -> io::Result<Listener> {
        self.handle.allow(addr)?;
        self.handle.start()?;
        Listener::new(Arc::clone(&self.handle), addr)
    }

    /// A channel for events of connections, in order: for programs that wait for many of them at
    /// once.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn connection_channel(&self) -> io::Result<ConnectionChannel> {
        ConnectionChannel::new(Arc::clone(&self.handle))
    }

    /// Takes an address, to listen there or to connect from there. Where other machines are not
    /// allowed, peers of this machine alone are served there.
    ///
    /// # Errors
    /// The address is in use, or not ours.
    pub fn bind(&self, addr: SocketAddr, options: SocketOptions) -> io::Result<BoundAddress> {
        BoundAddress::new(&self.handle, addr, options)
    }

    /// Checks that peers at `addr` may be connected with.
    ///
    /// # Errors
    /// `PermissionDenied`: it is an address of another machine, and that was not allowed.
    pub fn allows(&self, addr: SocketAddr) -> io::Result<()> {
        self.handle.allow_peer(addr)
    }

    /// Takes the oldest asynchronous event of objects without a channel.
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

    /// Makes progress; true if there was anything to do. For programs that wait on [`Device::fd`]
    /// themselves: polling and waiting make progress too, and so does a thread of the device.
    pub fn progress(&self) -> bool {
        if self.handle.shared.threading != Threading::Caller {
            return false;
        }
        let before = self.handle.shared.epoch();
        self.handle.shared.poll(|_| None::<()>);
        self.handle.shared.epoch() != before
    }

    /// Readable when [`Device::progress`] has something to do, timers aside.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.handle.shared.epoll().as_fd()
    }

    /// Waits until `done`, at most for `limit`; true if it is. For programs that look for what a
    /// peer writes into their memory: `done` is asked whenever something has happened, and may use
    /// memory, but no other object of the device.
    pub fn wait(&self, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        self.handle.shared.wait(limit, Patience::Spin, |_| done().then_some(())).is_some()
    }

    /// Waits as [`Device::wait`], asleep from the beginning.
    pub fn sleep(&self, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        self.handle.shared.wait(limit, Patience::Sleep, |_| done().then_some(())).is_some()
    }

    /// The present time, as [`Completion::at`](super::Completion::at) counts it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.handle.shared.now()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.handle.shared.with(|core| core.counters())
    }
}
