//! The device: the engine, its sockets, and the thread that drives it, if there is one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sprat_proto::Instant;
use sprat_proto::rdma::{Cq, Event, Limits, PostError, Qp, RnicOptions, Srq};
use sprat_proto::wire::rdmap::Cause;

use super::channel::{BoundAddress, ConnectionChannel};
use super::listen::Listener;
use super::memory::ProtectionDomain;
use super::queue::{CompletionChannel, CompletionQueue, NoticeChannel};
use crate::engine::{
    Copies, Counters, Failure, Patience, Settings, Shared, SocketOptions, Threading,
};
use sprat_sys::interfaces::interfaces;
use sprat_sys::signals::without_signals;

/// How to open a device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Who makes progress.
    pub threading: Threading,
    /// How payload comes into regions.
    pub copies: Copies,
    /// Protect every FPDU by a CRC32C. Without it only TCP's own checksum is left, which is weak; a peer that wants it gets
    /// it in any case.
    pub crc: bool,
    /// Ask the peer for markers. They are of use to receivers that take octets out of order, which this one does not.
    pub markers: bool,
    /// The MPA revision spoken first: 1 or 2.
    pub revision: u8,
    /// Allow peers that are not on loopback. Nothing is encrypted.
    pub insecure_network: bool,
    /// How long the peer's engine may take to start up.
    pub start_timeout: Duration,
    /// How long the peer's program may take to answer a request.
    pub reply_timeout: Duration,
    /// The most connections at a time, and queue pairs for them. Beyond it none is accepted.
    pub connections: usize,
    /// Logs that an error ended a connection: called once for each by the thread that finds it, before any program can know.
    /// The device is locked meanwhile, so the function must not use it.
    pub on_failure: Option<fn(&Failure)>,
}

impl Options {
    /// What the engine of a device that is opened so is set to.
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

    /// What a device that is opened so allows: what is beyond is refused.
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

/// What happened that no completion and no connection's state tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A completion found no room: the queue and the queue pairs that use it are in error.
    Overflow(Cq),
    /// An error ended a connection.
    Failed {
        /// The queue pair.
        pair: Qp,
        /// The error, as a Terminate says it.
        cause: Cause,
        /// We found it; else the peer told us.
        ours: bool,
    },
    /// A shared receive queue fell below its limit.
    Limit(Srq),
    /// A queue pair in error takes nothing more from its shared receive queue.
    LastWorkRequest(Qp),
}

impl Notice {
    pub(super) const fn of(event: &Event) -> Option<Self> {
        match *event {
            Event::CqOverflow(cq) => Some(Self::Overflow(cq)),
            Event::QpFailed { qp, cause, ours } => Some(Self::Failed { pair: qp, cause, ours }),
            Event::SrqLimit(srq) => Some(Self::Limit(srq)),
            Event::LastWqe(qp) => Some(Self::LastWorkRequest(qp)),
            _ => None,
        }
    }
}

/// A software RDMA device. Clones are the same device, which lives as long as any object that came from it.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) handle: Arc<Handle>,
}

/// What every object of a device holds.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) insecure_network: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.shared.stop();
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// `PermissionDenied` if `addr` is not on loopback and that was not allowed.
    pub(super) fn allow(&self, addr: SocketAddr) -> io::Result<()> {
        if addr.ip().to_canonical().is_loopback() || self.insecure_network {
            return Ok(());
        }
        let why = format!(
            "{} is not on loopback: traffic is not encrypted, so it has to be allowed",
            addr.ip()
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

impl Handle {
    /// `PermissionDenied` if a peer at `addr` is on another machine and that was not allowed. What is sent to an address of
    /// this machine never leaves it.
    pub(super) fn allow_peer(&self, addr: SocketAddr) -> io::Result<()> {
        let allowed = self.allow(addr);
        if allowed.is_err()
            && interfaces()?.iter().any(|i| i.addresses.contains(&addr.ip().to_canonical()))
        {
            return Ok(());
        }
        allowed
    }

    /// Has the device's own thread run, if it is to have one: before anything listens or connects.
    pub(super) fn start(&self) -> io::Result<()> {
        if self.shared.threading == Threading::Caller {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let named = std::thread::Builder::new().name("sprat-rdma".to_owned());
            *thread = Some(without_signals(|| named.spawn(move || shared.run()))?);
        }
        Ok(())
    }
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
        if options.threading != Threading::Guard {
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

    /// A completion queue with room for `depth` completions that wait. A completion that finds no room is an error of the
    /// queue and of all its queue pairs.
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

    /// What tells of things that happen to objects. `fd`, an eventfd that counts down by one, is readable while there is
    /// something.
    #[must_use]
    pub fn notice_channel(&self, fd: Arc<OwnedFd>) -> NoticeChannel {
        NoticeChannel::new(Arc::clone(&self.handle), fd)
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

    /// What tells what happens to connections, in order: for programs that wait for many of them at once.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn connection_channel(&self) -> io::Result<ConnectionChannel> {
        ConnectionChannel::new(Arc::clone(&self.handle))
    }

    /// Takes an address, to listen there or to connect from there. Where other machines are not allowed, peers of this
    /// machine alone are served there.
    ///
    /// # Errors
    /// The address is in use, or not ours.
    pub fn bind(&self, addr: SocketAddr, options: SocketOptions) -> io::Result<BoundAddress> {
        BoundAddress::new(&self.handle, addr, options)
    }

    /// Whether peers at `addr` may be connected with.
    ///
    /// # Errors
    /// `PermissionDenied`: it is another machine's, and that was not allowed.
    pub fn allows(&self, addr: SocketAddr) -> io::Result<()> {
        self.handle.allow_peer(addr)
    }

    /// What happened that no completion and no connection's state tells, in order.
    #[must_use]
    pub fn notice(&self) -> Option<Notice> {
        self.handle.shared.poll(|core| {
            loop {
                let event = core.desk().notices.pop_front()?;
                if let Some(notice) = Notice::of(&event) {
                    return Some(notice);
                }
            }
        })
    }

    /// Does what can be done now; true if there was anything. For programs that wait on [`Device::fd`] themselves; all that
    /// polls or waits does it too, and with a thread of its own a device needs nobody.
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

    /// Waits until `done`, at most for `limit`; true if it is. For programs that look for what a peer writes into their
    /// memory: `done` is asked whenever something has happened, and may use memory, but no other object of the device.
    pub fn wait(&self, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        self.handle.shared.wait(limit, Patience::Spin, |_| done().then_some(())).is_some()
    }

    /// The same, asleep from the beginning.
    pub fn sleep(&self, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        self.handle.shared.wait(limit, Patience::Sleep, |_| done().then_some(())).is_some()
    }

    /// The present time, as [`Completion::at`](super::Completion::at) counts it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.handle.shared.now()
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.handle.shared.look(|core| core.counters())
    }
}
