//! The engine with its sockets. A turn receives, handles deadlines, sends, and passes events on.
//!
//! Payload takes one of three paths from a socket to a region. [`Copies`] chooses the path for the
//! whole device:
//!
//! ```text
//!   Two:     socket ─► buffer ─copy─► the stream's buffer ─copy─► region
//!   One:     socket ─► buffer ─copy─► region
//!   Direct:  socket ─► region, if the header is known and there is no CRC and no marker; else One
//! ```
//!
//! Always holds: the engine gets the bytes of a stream in order and once. Bytes that it did not
//! consume precede the next ones. A stream whose socket is full sends again only when the epoll
//! reports it writable.
//!
//! Not here: the paths themselves (`receive`, `send`), connections (`listen`, `connect`,
//! `streams`), and waiting (`shared`).

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use sprat_proto::rdma::{Completion, Conn, Cq, Event, Polled, Qp, Record, Rnic, RnicOptions};
use sprat_proto::rpc::Slices;
use sprat_proto::time::US;
use sprat_proto::wire::rdmap::Cause;
use sprat_proto::{Instant, Rng};

use super::events::Events;
use super::listener::Listener;
use super::native::{Coupling, Native, NativeInterface};
use super::regions::Regions;
use super::state::PendingRequest;
use super::stream::Stream;
use sprat_sys::clock::Clock;
use sprat_sys::interfaces::Interface;

/// A program's call takes a turn if the last read of the sockets is at least this old.
const STALE_NS: u64 = 20 * US;
/// The least number of entries in the heap of deadlines from which on the core removes outdated
/// ones.
pub(super) const LEAST_TIMED: usize = 1024;
/// The size of the receive buffer: the most bytes that the engine leaves unconsumed (72 KiB), and
/// one read (128 KiB).
pub(super) const BUFFER: usize = (72 << 10) + (128 << 10);
/// The epoll's data for a listener is this number plus the listener's number.
pub(super) const LISTENER: u64 = 1 << 32;
/// The epoll's data for the device of our own TCP.
const DEVICE: u64 = u64::MAX;

/// The path of received payload from the kernel into a memory region, by the number of copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copies {
    /// The payload is copied twice: an FPDU is assembled in a buffer of its connection, then
    /// placed.
    Two,
    /// The payload is copied once, from the read buffer into its place.
    #[default]
    One,
    /// Payload is read straight into its region where that is possible: in long messages without
    /// CRC and markers.
    Direct,
    /// Payload is read straight into its region while this end awaits answers to its Reads, and
    /// otherwise as in [`Copies::One`]. It suits a program whose peers send long payload only as
    /// answers.
    DirectReads,
}

/// The thread that sleeps on the device's sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    /// No thread sleeps on the sockets.
    Unwatched,
    /// A thread of the program that waits for an event sleeps on the sockets. Any change may be
    /// that event.
    Program,
    /// The progress thread sleeps on the sockets until this deadline, or a program's thread does
    /// that no change by another thread needs to wake.
    Thread(Instant),
    /// The background thread sleeps on the sockets until this deadline. Another thread may take its
    /// place without waking it.
    Background(Instant),
}

/// The settings of a core, which is the RDMA engine with its sockets.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The options of the pure engine.
    pub config: RnicOptions,
    /// The path of received payload into memory regions.
    pub copies: Copies,
    /// The coupling with our own TCP, if the engine uses it.
    pub coupling: Coupling,
    /// The most connections at a time.
    pub connections: usize,
    /// True to make an FPDU fit a TCP segment of the kernel, for a peer that expects FPDUs aligned
    /// to segments; false to make an FPDU as long as MPA allows.
    pub fitted: bool,
    /// The function that logs that an error ended a connection.
    pub on_failure: Option<fn(&Failure)>,
}

/// The report of an error that ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The queue pair of the failed connection.
    pub pair: Qp,
    /// The address of the failed connection's peer, if it was connected.
    pub peer: Option<SocketAddr>,
    /// The error of the failed connection, as a Terminate encodes it.
    pub cause: Cause,
    /// True if this end found the error and reported it to the peer; false if the peer reported it.
    pub ours: bool,
}

/// Counters of an RDMA device. Their bytes are those of the stream: payload and headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// The number of connections that the device accepted.
    pub accepted: u64,
    /// The number of times that accepting a connection failed or had to wait: no descriptor was
    /// left, or the device was at its limit.
    pub accept_errors: u64,
    /// The number of connections closed at once, since their peers are on other machines and the
    /// options do not allow that.
    pub accept_refused: u64,
    /// The number of bytes that the device received.
    pub received: u64,
    /// The number of bytes that the kernel took to send.
    pub sent: u64,
    /// The number of socket reads that returned bytes.
    pub reads: u64,
    /// The number of socket sends of which the kernel took some bytes.
    pub sends: u64,
    /// The number of bytes that the kernel put straight into memory regions.
    pub direct: u64,
    /// The number of bytes that were copied into memory regions.
    pub placed: u64,
    /// The number of bytes that were copied into memory regions before their turn, behind missing
    /// bytes of the stream.
    pub ahead: u64,
    /// The number of bytes that were copied between buffers before they were placed.
    pub copied: u64,
    /// The number of turns that found something to do.
    pub turns: u64,
    /// The number of turns with something to do that the device's own thread took.
    pub thread_turns: u64,
}

/// The core of a device: the pure engine, its sockets, and the events for programs.
#[derive(Debug)]
pub struct Core {
    pub(super) rnic: Rnic,
    pub(super) regions: Regions,
    pub(super) events: Events,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) epoll: Arc<OwnedFd>,
    /// Our own TCP, if the engine uses it in place of the kernel's.
    pub(super) native: Option<Box<Native>>,
    pub(super) listeners: BTreeMap<u32, Listener>,
    pub(super) streams: Vec<Option<Box<Stream>>>,
    pub(super) free: Vec<u32>,
    /// The slots of the streams that exist.
    pub(super) live: Vec<u32>,
    /// The slot of each connection's stream, by the connection's index.
    pub(super) by_conn: Vec<u32>,
    /// The deadlines of streams, as a heap. An entry may be out of date: the stream knows its own
    /// deadline.
    pub(super) timed: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The number of entries in the heap of deadlines above which the core removes outdated ones.
    pub(super) most_timed: usize,
    pub(super) first_timed: Instant,
    /// The number of streams that wait until the epoll reports their socket as writable.
    pub(super) waiting: usize,
    /// The slots of streams that may have something to read.
    pub(super) ready: VecDeque<u32>,
    /// The slots of streams that may have something to send.
    pub(super) dirty: VecDeque<u32>,
    /// True if the epoll may have something to report.
    pub(super) ask_epoll: bool,
    pub(super) turns: u32,
    /// The time of the last read of the sockets.
    pub(super) read_at: Instant,
    pub(super) buffer: Box<[u8]>,
    pub(super) spare_buffers: Vec<Box<[u8]>>,
    /// The number of streams that keep a receive buffer.
    pub(super) kept_buffers: usize,
    pub(super) record: Record,
    pub(super) counters: Counters,
    /// The number of the program's threads that sleep until something changes.
    pub(super) sleepers: usize,
    /// The thread that sleeps on the sockets' epoll and the wake-up descriptor.
    pub(super) watch: Watch,
    /// True if the wake-up descriptor was written for the background thread, which has not run
    /// since.
    pub(super) background_woken: Cell<bool>,
    /// True if the progress thread sleeps until the thread that watches the sockets is awake.
    pub(super) thread_follows: bool,
    /// True if a poll released a completion whose deferral has ended, so the program probably reads
    /// its memory now instead of polling.
    pub(super) poll_missed: bool,
    /// True if the device's own thread must end.
    pub(super) stop: bool,
}

impl Core {
    /// Creates a core without connections, on our own TCP over `interface`, or on the kernel's.
    ///
    /// # Errors
    /// No descriptor is left, or there are no random numbers.
    pub fn new(settings: Settings, interface: Option<NativeInterface>) -> io::Result<Self> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let rnic = Rnic::new(settings.config.clone(), Rng::seeded(u64::from_le_bytes(seed)));
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let native =
            interface.map(|i| Box::new(Native::new(i, settings.coupling, settings.connections)));
        if let Some(native) = &native {
            let data = epoll::EventData::new_u64(DEVICE);
            epoll::add(&epoll, native.fd(), data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            rnic,
            regions: Regions::default(),
            events: Events::default(),
            settings,
            clock: Clock::new(),
            epoll,
            native,
            listeners: BTreeMap::new(),
            streams: Vec::new(),
            free: Vec::new(),
            live: Vec::new(),
            by_conn: Vec::new(),
            timed: BinaryHeap::new(),
            most_timed: LEAST_TIMED,
            first_timed: Instant::NEVER,
            waiting: 0,
            ready: VecDeque::new(),
            dirty: VecDeque::new(),
            ask_epoll: true,
            turns: 0,
            read_at: Instant::ZERO,
            buffer: vec![0; BUFFER].into(),
            spare_buffers: Vec::new(),
            kept_buffers: 0,
            record: Record::default(),
            counters: Counters::default(),
            sleepers: 0,
            watch: Watch::Unwatched,
            background_woken: Cell::new(false),
            thread_follows: false,
            poll_missed: false,
            stop: false,
        })
    }

    /// Takes a turn: does everything that can be done now. Returns true if it did anything.
    pub(crate) fn turn(&mut self) -> bool {
        self.turn_at(self.clock.now())
    }

    /// Takes a turn at the time `now`; returns true if it found anything to do.
    pub fn turn_at(&mut self, now: Instant) -> bool {
        let worked = self.input(now) | self.flush(now);
        self.counters.turns += u64::from(worked);
        worked
    }

    /// Takes the first half of a turn: reads the sockets, handles deadlines, and passes on the
    /// resulting events.
    pub fn input(&mut self, now: Instant) -> bool {
        let mut worked = self.receive(now);
        if self.deadline() <= now {
            self.tick(now);
            worked = true;
        }
        worked | self.handle_events(now)
    }

    /// Takes the second half of a turn: sends pending records and passes events on.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        self.flush_with(now, &())
    }

    /// Sends pending records and passes events on. Registered messages may name slices, which
    /// `slices` resolves.
    pub fn flush_with(&mut self, now: Instant, slices: &dyn Slices) -> bool {
        self.rnic.set_time(now);
        let worked = self.send(now, slices) | self.handle_events(now);
        // An event may leave a record to send: a rejection, or the end of a connection.
        let worked = worked | self.send(now, slices);
        self.native.iter_mut().for_each(|native| native.output(now));
        worked
    }

    /// True if something waits only for the next [`Core::flush`].
    pub fn has_output(&self) -> bool {
        !self.dirty.is_empty() || self.native.as_deref().is_some_and(Native::has_output)
    }

    fn handle_events(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Some(event) = self.rnic.event() {
            self.handle_event(now, event);
            worked = true;
        }
        worked
    }

    /// Takes a turn if the last one is too old; returns true if it did anything. A program that
    /// only posts requests and takes completions that are ready would otherwise never read its
    /// sockets.
    #[inline]
    pub(crate) fn turn_if_stale(&mut self, now: Instant) -> bool {
        now.since(self.read_at) >= STALE_NS && self.turn_at(now)
    }

    /// The time at which the core needs a turn even if nothing arrives.
    pub fn deadline(&self) -> Instant {
        let native = self.native.as_ref().map_or(Instant::NEVER, |native| native.deadline());
        self.rnic.deadline().unwrap_or(Instant::NEVER).min(self.first_timed).min(native)
    }

    /// True if there is more to do that the epoll does not report.
    pub(crate) fn has_more(&self) -> bool {
        let is_full = self.native.as_ref().is_some_and(|native| native.is_full());
        !self.ready.is_empty() || !self.dirty.is_empty() || self.rnic.has_ready() || is_full
    }

    /// True if posted requests may wait for the next call of the program. A thread that sleeps on
    /// the sockets, or for a change, would have to be woken to send them.
    #[inline]
    pub(crate) fn may_wait_for_posts(&self) -> bool {
        self.watch == Watch::Unwatched
            && self.sleepers == 0
            && self.dirty.is_empty()
            && self.rnic.may_wait_for_posts()
    }

    /// Makes the next turn ask the epoll; returns true if a thread may sleep until the epoll
    /// reports something.
    pub fn arm(&mut self) -> bool {
        self.ask_epoll = true;
        !self.has_more() && self.native.as_deref_mut().is_none_or(Native::arm)
    }

    /// True if another thread may sleep on the device's sockets.
    pub(super) const fn may_watch(&self) -> bool {
        matches!(self.watch, Watch::Unwatched | Watch::Background(_))
    }

    /// The pure engine of this core.
    #[inline]
    pub fn rnic(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    /// Takes the oldest completion of a polled completion queue, unless its deferral has not ended.
    /// A completion whose deferral has ended wakes the progress thread at once.
    pub(crate) fn poll_deferring(&mut self, cq: Cq) -> Option<Completion> {
        match self.rnic.poll_deferring(cq, || self.clock.now()) {
            Polled::Done(completion) => Some(completion),
            Polled::Expired(completion) => {
                self.poll_missed = true;
                Some(completion)
            }
            Polled::Nothing => None,
        }
    }

    /// The pure engine and the registered memory of this core, borrowed separately.
    #[inline]
    pub fn parts(&mut self) -> (&mut Rnic, &mut Regions) {
        (&mut self.rnic, &mut self.regions)
    }

    /// The descriptor that is readable when the sockets have something for the next turn.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes the next turn ask the epoll, since the caller polls again after a sleep.
    pub fn wake(&mut self) {
        self.ask_epoll = true;
    }

    /// The registered memory of this core.
    pub fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// Describes the interface of our own TCP; none if the engine uses the kernel's.
    pub(crate) fn interface(&mut self) -> Option<Interface> {
        self.native.as_deref_mut().map(Native::describe)
    }

    /// Returns the local address of our own TCP's route to `to`; none if the engine uses the
    /// kernel's TCP.
    ///
    /// # Errors
    /// `NetworkUnreachable`.
    pub(crate) fn route(&self, to: IpAddr) -> io::Result<Option<IpAddr>> {
        self.native.as_deref().map(|native| native.route(to)).transpose()
    }

    /// The events of this core that programs wait for.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Takes the oldest request for a connection at a listener.
    pub fn next_request(&mut self, listener: u32) -> Option<PendingRequest> {
        self.listeners.get_mut(&listener)?.asked.pop_front()
    }

    /// The counters of this core.
    pub fn counters(&self) -> Counters {
        Counters { placed: self.regions.written, ..self.counters }
    }

    fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::ConnectRequest { conn, private_data, ird, ord } => {
                let found =
                    self.slot_of(conn).and_then(|slot| self.streams[slot as usize].as_deref());
                let Some(stream) = found else { return };
                let Ok(local) = stream.socket.address(&mut self.native) else {
                    return;
                };
                let asked =
                    PendingRequest { conn, peer: stream.peer, local, private_data, ird, ord };
                // The listener is gone, or has no room for the request.
                if !self.deliver_request(stream.listener, asked) {
                    let _ = self.rnic.reject(now, conn, &[]);
                }
            }
            Event::Close { conn, reset } => self.close(now, conn, reset),
            other => {
                if let Event::Failed { conn, qp: None, why } = other {
                    self.start_failed(conn, why);
                }
                self.log_failure(&other);
                self.events.put(other);
            }
        }
    }

    /// Logs an error that ends a connection. For this log the core keeps the peers' addresses.
    fn log_failure(&mut self, event: &Event) {
        let Some(log) = self.settings.on_failure else {
            return;
        };
        match *event {
            Event::Established { conn, qp, .. } => {
                let stream =
                    self.slot_of(conn).and_then(|slot| self.streams[slot as usize].as_deref());
                if let Some(stream) = stream {
                    self.events.peers.insert(qp, stream.peer);
                }
            }
            Event::QpFailed { qp, cause, ours } => {
                log(&Failure { pair: qp, peer: self.events.peers.get(&qp).copied(), cause, ours });
            }
            _ => {}
        }
    }

    /// The slot of a connection's stream.
    pub(super) fn slot_of(&self, conn: Conn) -> Option<u32> {
        let slot = *self.by_conn.get(conn.index())?;
        let stream = self.streams.get(slot as usize)?.as_deref()?;
        (stream.conn() == Some(conn)).then_some(slot)
    }
}
