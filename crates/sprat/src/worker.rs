//! A worker: a [`Node`] with a clock and a thread of its own, which sleeps if there is no work.
//!
//! ```text
//!   now ─► node: one turn ─► idle long enough? pause, yield, or sleep in poll(2)
//! ```
//! A worker is single-threaded and owns all that it uses, so it takes no locks. Another thread
//! reaches it only by a [`Waker`], also for its counters ([`Snapshots`]). Turns that take long are
//! counted and reported ([`Stall`]).
//!
//! Not here: what a turn does (the node), how messages travel (the transports), when to stop (the
//! caller of `turn`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Machine};
use sprat_proto::node::{ConnectError, Node};
use sprat_proto::time::SECOND;
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};

use crate::disk::Disk;
use crate::transports::Transports;

mod snapshots;
mod stalls;
mod system;
mod waker;

pub use snapshots::Snapshots;
pub use stalls::Stall;
pub use waker::{Stop, Waker};

use snapshots::Requests;
use stalls::{Stalls, Turns};
use system::System;

/// The longest sleep, so that no lost wake-up lasts longer.
const LONGEST_SLEEP_NS: u64 = SECOND;

/// A machine with its transports and disk, and the loop that drives them.
#[derive(Debug)]
pub struct Worker<M: Machine> {
    node: Node<M, System>,
    clock: Clock,
    idle: Idle,
    waker: Waker,
    stop: Arc<AtomicBool>,
    /// The descriptor that the program's own loop waits for, once the program has asked for it.
    watched: Option<OwnedFd>,
    /// True if notification is armed, so that the program's loop may wait.
    armed: bool,
    stalls: Stalls,
    snapshots: Requests,
}

impl<M: Machine> Worker<M> {
    /// Makes a worker for `machine` that serves by `transports`; `disk` keeps what the machine
    /// persists.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(
        machine: M,
        transports: Transports,
        disk: Option<Box<dyn Disk>>,
        clock: Clock,
    ) -> io::Result<Self> {
        Self::with_lanes(machine, transports, disk, clock, 1)
    }

    /// Makes a worker as [`Worker::new`] does, which opens up to `lanes` sessions for each link, as
    /// many as its calls need.
    pub(crate) fn with_lanes(
        machine: M,
        transports: Transports,
        disk: Option<Box<dyn Disk>>,
        clock: Clock,
        lanes: u16,
    ) -> io::Result<Self> {
        let started = (clock, clock.now());
        let system = System { transports, disk, turns: Turns::default(), started };
        Ok(Self {
            node: Node::new(machine, system, lanes),
            clock,
            idle: Idle::new(),
            waker: Waker::new()?,
            stop: Arc::new(AtomicBool::new(false)),
            watched: None,
            armed: false,
            stalls: Stalls::off(),
            snapshots: Requests::new(),
        })
    }

    /// Returns the state machine that the worker drives.
    pub fn machine(&mut self) -> &mut M {
        self.node.machine()
    }

    /// Returns the worker's node, for calls between turns.
    #[inline]
    pub(crate) fn node(&mut self) -> &mut Node<M, System> {
        &mut self.node
    }

    /// Returns the worker's transports, to read their locators.
    pub fn transports(&self) -> &Transports {
        &self.node.host().transports
    }

    /// Returns the time now, on the clock that the machine sees.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns a handle by which other threads wake this worker.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns a handle that ends [`Worker::run`].
    pub fn stop(&self) -> Stop {
        Stop::new(Arc::clone(&self.stop), self.waker())
    }

    /// Returns a handle by which another thread gets the worker's counters.
    pub fn snapshots(&self) -> Snapshots {
        self.snapshots.handle(self.waker())
    }

    /// Calls `report` for turns of [`Worker::run`] that take long, once a second at most. It runs
    /// on the worker's thread and must not wait.
    pub fn report_stalls(&mut self, report: impl FnMut(&Stall) + Send + 'static) {
        self.stalls.report_to(Box::new(report));
    }

    /// Makes one turn of the worker without sleep. Returns true if there was work.
    pub fn turn(&mut self) -> bool {
        let now = self.clock.now();
        self.turn_at(now, &[])
    }

    #[inline]
    fn turn_at(&mut self, now: Instant, lent: &[u8]) -> bool {
        if self.armed {
            self.disarm();
        }
        // A wake-up counts as work: the thread that made it may have left something where only the
        // caller looks, after its last look and before this turn.
        let woken = self.waker.clear();
        if woken {
            self.woken();
        }
        self.node.turn(now, lent) || woken
    }

    /// Handles a call of [`Waker::wake`].
    #[cold]
    fn woken(&mut self) {
        self.node.mark_unsent();
        self.snapshots.answer(|| self.node.counters());
    }

    /// Judges the turn that has ended at `now`.
    #[cold]
    fn turn_ended(&mut self, now: Instant) {
        let turns = &mut self.node.host_mut().turns;
        let ended = self.stalls.ended(now, sprat_sys::clock::thread_ns(), turns);
        if let Some((began, processor_ns, preempted_ns)) = ended {
            let mut done = Vec::new();
            self.node.machine().done(began, &mut done);
            self.stalls.report(processor_ns, preempted_ns, done);
        }
    }

    /// Reports a time outside of turns in which the thread did not run, if there is one.
    #[inline]
    fn report_lost(&mut self, lost_ns: Option<u64>) {
        if let Some(ns) = lost_ns {
            self.stalls.report(0, ns, Vec::new());
        }
    }

    /// Makes one turn of the worker. After turns without work it pauses, yields, or sleeps until
    /// something happens.
    #[inline]
    pub fn turn_and_rest(&mut self) {
        self.turn_and_rest_lending(&[]);
    }

    /// A turn and rest as of [`Worker::turn_and_rest`], with the memory of slices of
    /// [`Slice::LENT`](sprat_proto::rpc::Slice::LENT).
    pub(crate) fn turn_and_rest_lending(&mut self, lent: &[u8]) {
        let now = self.clock.now();
        if self.stalls.is_due(now) {
            self.turn_ended(now);
        }
        self.stalls.begin(now);
        if self.turn_at(now, lent) {
            self.idle.worked();
            return;
        }
        match self.idle.rest(self.node.is_awaiting(), || now) {
            Rest::Spun => {}
            Rest::Yielded => {
                let after = self.clock.now();
                let lost = self.stalls.yielded(now, after, &mut self.node.host_mut().turns);
                self.report_lost(lost);
            }
            Rest::Sleep => self.sleep(lent),
        }
    }

    /// Makes turns of the worker until [`Stop::stop`].
    ///
    /// # Errors
    /// The machine must stop for good; the text says why.
    pub fn run(&mut self) -> Result<(), String> {
        self.stalls.start(self.clock.now(), sprat_sys::clock::thread_ns());
        while !self.stop.load(Ordering::Relaxed) {
            self.turn_and_rest();
            if let Some(reason) = self.node.take_stopped() {
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Binds `link` to the server at these locators and connects at once, so that a mistake in them
    /// is found here.
    pub(crate) fn connect(&mut self, link: Link, locators: &str) -> io::Result<()> {
        let now = self.clock.now();
        self.node.connect(now, link, locators).map_err(|error| match error {
            ConnectError::Locators(error) => error,
            ConnectError::Unreachable { first, why } => {
                let kind = first.map_or(io::ErrorKind::TimedOut, |error| error.kind());
                io::Error::new(kind, why)
            }
        })
    }

    // Loops of the program's own.

    /// Returns a descriptor that becomes readable when the worker has something to do after
    /// [`Worker::prepare_to_sleep`].
    ///
    /// # Errors
    /// No file descriptor is left.
    pub(crate) fn descriptor(&mut self) -> io::Result<OwnedFd> {
        if self.watched.is_none() {
            let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let System { disk, .. } = self.node.host();
            watch(&watched, self.waker.fd())?;
            if let Some(disk) = disk {
                watch(&watched, disk.fd())?;
            }
            self.watched = Some(watched);
        }
        self.watch_all()?;
        self.watched.as_ref().map_or(Err(Errno::BADF.into()), OwnedFd::try_clone)
    }

    /// Arms notification, and returns how long the program's loop may wait for
    /// [`Worker::descriptor`]. `None`: there is something to do at once. The next turn disarms
    /// notification.
    pub(crate) fn prepare_to_sleep(&mut self) -> Option<Duration> {
        if self.armed {
            self.disarm();
        }
        let now = self.clock.now();
        let wake_at = self.node.pause(now, &[])?;
        self.armed = true;
        if !self.node.host_mut().transports.arm() || self.watch_all().is_err() {
            self.disarm();
            return None;
        }
        Some(Duration::from_nanos(wake_at.since(now).min(LONGEST_SLEEP_NS)))
    }

    /// Watches the transports that were opened since the descriptor was made.
    fn watch_all(&self) -> io::Result<()> {
        let Some(watched) = &self.watched else { return Ok(()) };
        self.node.host().transports.fds().try_for_each(|fd| watch(watched, fd))
    }

    #[cold]
    fn disarm(&mut self) {
        self.armed = false;
        self.waker.drain();
        let System { transports, disk, .. } = self.node.host_mut();
        transports.disarm();
        if let Some(disk) = disk {
            disk.clear();
        }
        self.node.resume();
    }

    /// Sleeps until a transport, the disk, another thread or a timer has something.
    fn sleep(&mut self, lent: &[u8]) {
        let now = self.clock.now();
        // The pause is a turn of its own, with background work.
        if self.stalls.is_due(now) {
            self.turn_ended(now);
        }
        self.stalls.begin(now);
        let Some(wake_at) = self.node.pause(now, lent) else { return };
        if self.node.host_mut().transports.arm() {
            let from = self.clock.now();
            if self.stalls.is_due(from) {
                self.turn_ended(from);
            }
            let limit_ns = wake_at.since(from).min(LONGEST_SLEEP_NS);
            self.wait(limit_ns);
            let now = self.clock.now();
            let turns = &mut self.node.host_mut().turns;
            let lost = self.stalls.slept(from, limit_ns, now, turns);
            self.report_lost(lost);
        }
        self.node.host_mut().transports.disarm();
        self.node.resume();
    }

    fn wait(&self, ns: u64) {
        let timeout = Timespec { tv_sec: (ns / SECOND) as i64, tv_nsec: (ns % SECOND) as i64 };
        let System { transports, disk, .. } = self.node.host();
        let mut fds = Vec::with_capacity(transports.len() + 2);
        fds.push(PollFd::from_borrowed_fd(self.waker.fd(), PollFlags::IN));
        if let Some(disk) = disk {
            fds.push(PollFd::from_borrowed_fd(disk.fd(), PollFlags::IN));
        }
        fds.extend(transports.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // An interrupted wait ends early, which does no harm.
        let _ = poll(&mut fds, Some(&timeout));
        if fds[0].revents().contains(PollFlags::IN) {
            self.waker.drain();
        }
        if let Some(disk) = disk {
            disk.clear();
        }
    }
}

/// Adds a descriptor to those that make `watched` readable, unless it is one of them.
fn watch(watched: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    match epoll::add(watched, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
