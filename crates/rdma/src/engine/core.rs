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
use std::net::SocketAddr;
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
use super::regions::Regions;
use super::state::PendingRequest;
use super::stream::{self, Stream};
use sprat_sys::clock::Clock;

/// A call of a program takes a turn if the last one is at least this old.
const STALE_NS: u64 = 20 * US;
/// A heap of deadlines with fewer entries is not cleaned up.
pub(super) const LEAST_TIMED: usize = 1024;
/// Bytes of the buffer: the most that the engine leaves over (72 KiB), and one read (128 KiB).
pub(super) const BUFFER: usize = (72 << 10) + (128 << 10);
/// The epoll's data for listener `n` is this number plus `n`.
pub(super) const LISTENER: u64 = 1 << 32;

/// Copies between the kernel and a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copies {
    /// An FPDU is put together in a buffer of its connection, then placed.
    Two,
    /// The payload is copied from the read buffer into its place.
    #[default]
    One,
    /// Payload is read straight into its region where that is possible: without CRC and markers, in
    /// long messages.
    Direct,
    /// Payload is read straight into its region while answers to Reads are awaited, and else as
    /// [`Copies::One`]. It suits a program whose peers send long payload only as answers.
    DirectReads,
}

/// The thread that sleeps on the sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    /// No thread sleeps on them.
    Unwatched,
    /// A thread of the program that waits for an event. Any change may be that event.
    Program,
    /// The progress thread, until this deadline, or a program's thread that needs to be woken for
    /// nothing that another thread changes.
    Thread(Instant),
    /// The background thread, until this deadline. Another thread may take its place without a word
    /// to it.
    Background(Instant),
}

/// The settings of a core.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The pure engine's.
    pub config: RnicOptions,
    /// The path of received payload.
    pub copies: Copies,
    /// Most connections.
    pub connections: usize,
    /// An FPDU fits a segment that the kernel sends, for a peer that looks at segments; else it is
    /// as long as MPA allows.
    pub fitted: bool,
    /// Logs that an error ended a connection.
    pub on_failure: Option<fn(&Failure)>,
}

/// An error ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The failed connection's queue pair.
    pub pair: Qp,
    /// The peer's address, if it was connected.
    pub peer: Option<SocketAddr>,
    /// The error, as a Terminate says it.
    pub cause: Cause,
    /// We found it, and told the peer; else the peer told us.
    pub ours: bool,
}

/// Counters. Bytes are those of the stream: payload and headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Times that accepting failed or had to wait: no descriptor left, or at the limit.
    pub accept_errors: u64,
    /// Connections closed at once, since their peers are on other machines and that was not
    /// allowed.
    pub accept_refused: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes that the kernel took.
    pub sent: u64,
    /// Reads of sockets that brought something.
    pub reads: u64,
    /// Sends that the kernel took something of.
    pub sends: u64,
    /// Bytes that the kernel put straight into regions.
    pub direct: u64,
    /// Bytes that were copied into regions.
    pub placed: u64,
    /// Bytes that were copied between buffers before.
    pub copied: u64,
    /// Turns that found something to do.
    pub turns: u64,
    /// Those of them that the device's own thread took.
    pub thread_turns: u64,
}

/// The engine, its sockets, and the events for programs.
#[derive(Debug)]
pub struct Core {
    pub(super) rnic: Rnic,
    pub(super) regions: Regions,
    pub(super) events: Events,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) epoll: Arc<OwnedFd>,
    pub(super) listeners: BTreeMap<u32, Listener>,
    pub(super) streams: Vec<Option<Box<Stream>>>,
    pub(super) free: Vec<u32>,
    /// The streams that there are.
    pub(super) live: Vec<u32>,
    /// The stream of a connection, by the connection's index.
    pub(super) by_conn: Vec<u32>,
    /// The deadlines of streams, as heap. An entry may be out of date: the stream knows its own
    /// deadline.
    pub(super) timed: BinaryHeap<Reverse<(Instant, u32)>>,
    /// A heap with more deadlines is cleaned up.
    pub(super) most_timed: usize,
    pub(super) first_timed: Instant,
    /// The streams that wait until their socket is writable, which the epoll reports.
    pub(super) waiting: usize,
    /// Streams that may have something to read.
    pub(super) ready: VecDeque<u32>,
    /// Streams that may have something to send.
    pub(super) dirty: VecDeque<u32>,
    /// The epoll may have something.
    pub(super) ask_epoll: bool,
    pub(super) turns: u32,
    /// The time of the last read of the sockets.
    pub(super) read_at: Instant,
    pub(super) buffer: Box<[u8]>,
    pub(super) spare_buffers: Vec<Box<[u8]>>,
    /// The streams that keep a buffer.
    pub(super) kept_buffers: usize,
    pub(super) record: Record,
    pub(super) counters: Counters,
    /// Threads of the program that sleep until something changes.
    pub(super) sleepers: usize,
    /// The thread that sleeps on the epoll and the wake-up descriptor.
    pub(super) watch: Watch,
    /// The wake-up descriptor was written for the background thread, which has not run since.
    pub(super) background_woken: Cell<bool>,
    /// The progress thread sleeps until the thread that watches the sockets is awake.
    pub(super) thread_follows: bool,
    /// A poll released a completion whose deferral has ended, so the program probably reads its
    /// memory now instead of polling.
    pub(super) poll_missed: bool,
    /// The device's own thread is to end.
    pub(super) stop: bool,
}

impl Core {
    /// A core without connections.
    ///
    /// # Errors
    /// No descriptor, or no random numbers.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let rnic = Rnic::new(settings.config.clone(), Rng::seeded(u64::from_le_bytes(seed)));
        Ok(Self {
            rnic,
            regions: Regions::default(),
            events: Events::default(),
            settings,
            clock: Clock::new(),
            epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
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

    /// Everything that can be done now; true if anything was.
    pub(crate) fn turn(&mut self) -> bool {
        self.turn_at(self.clock.now())
    }

    /// Takes a turn at the time `now`; true if it found anything to do.
    pub fn turn_at(&mut self, now: Instant) -> bool {
        let worked = self.input(now) | self.flush(now);
        self.counters.turns += u64::from(worked);
        worked
    }

    /// The first half of a turn: what came, what is late, and what happened by that.
    pub fn input(&mut self, now: Instant) -> bool {
        let mut worked = self.receive(now);
        if self.deadline() <= now {
            self.tick(now);
            worked = true;
        }
        worked | self.handle_events(now)
    }

    /// Sends what is to be sent and writes down what happened: the second half of a turn.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        self.flush_with(now, &())
    }

    /// Sends pending records and passes events on. Messages among the regions may name `slices`.
    pub fn flush_with(&mut self, now: Instant, slices: &dyn Slices) -> bool {
        self.rnic.set_time(now);
        let worked = self.send(now, slices) | self.handle_events(now);
        // An event may leave a record to send: a rejection, or the end of a connection.
        worked | self.send(now, slices)
    }

    /// True if something waits for nothing but the next [`Core::flush`].
    pub fn has_output(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn handle_events(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Some(event) = self.rnic.event() {
            self.handle_event(now, event);
            worked = true;
        }
        worked
    }

    /// Takes a turn if the last one is too old; true if it did anything. A program that only posts
    /// requests and takes completions that are there would never read its sockets.
    #[inline]
    pub(crate) fn turn_if_stale(&mut self, now: Instant) -> bool {
        now.since(self.read_at) >= STALE_NS && self.turn_at(now)
    }

    /// The time at which a turn is due even if nothing arrives.
    pub fn deadline(&self) -> Instant {
        self.rnic.deadline().unwrap_or(Instant::NEVER).min(self.first_timed)
    }

    /// True if there is more to do that no epoll tells of.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty() || !self.dirty.is_empty()
    }

    /// True if a thread may sleep until the epoll has something.
    pub fn arm(&mut self) -> bool {
        self.ask_epoll = true;
        !self.has_more()
    }

    /// True if another thread may sleep on the sockets.
    pub(super) const fn may_watch(&self) -> bool {
        matches!(self.watch, Watch::Unwatched | Watch::Background(_))
    }

    /// The engine.
    #[inline]
    pub fn rnic(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    /// The oldest completion of a polled queue, unless its deferral has not ended. A completion
    /// whose deferral has ended wakes the progress thread at once.
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

    /// The engine and registered memory, borrowed apart.
    #[inline]
    pub fn parts(&mut self) -> (&mut Rnic, &mut Regions) {
        (&mut self.rnic, &mut self.regions)
    }

    /// Readable when the sockets have something for the next turn.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The caller polls again after a sleep: the next turn asks the sockets.
    pub fn wake(&mut self) {
        self.ask_epoll = true;
    }

    /// Registered memory.
    pub fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// The events that programs wait for.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// The oldest request for a connection at a listener.
    pub fn next_request(&mut self, listener: u32) -> Option<PendingRequest> {
        self.listeners.get_mut(&listener)?.asked.pop_front()
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        Counters { placed: self.regions.written, ..self.counters }
    }

    fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::ConnectRequest { conn, private_data, ird, ord } => {
                let found =
                    self.slot_of(conn).and_then(|slot| self.streams[slot as usize].as_deref());
                let Some(stream) = found else { return };
                let Ok(local) = stream::address(&stream.socket) else {
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

    /// Logs an error that ends a connection; for that the peers' addresses are kept.
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

    /// The stream of a connection.
    pub(super) fn slot_of(&self, conn: Conn) -> Option<u32> {
        let slot = *self.by_conn.get(conn.index())?;
        let stream = self.streams.get(slot as usize)?.as_deref()?;
        (stream.conn() == Some(conn)).then_some(slot)
    }
}
