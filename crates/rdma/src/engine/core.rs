//! ONE turn: what came is understood, what is late is done, what is to be sent is sent, what happened is written down.
//!
//! Receiving has three paths, chosen for the whole device ([`Copies`]) so that they can be compared:
//!
//! ```text
//!   Two:     socket ─► buffer ─copy─► the stream's own ─copy─► region
//!   One:     socket ─► buffer ─copy─► region
//!   Direct:  socket ─► region, where the header is known and neither CRC nor markers are in the way; else as One
//! ```
//!
//! Always holds: the engine sees the octets of a stream in order and once; what it did not consume is in front of what
//! comes next; a stream whose socket is full is sent to again only when the epoll says so.
//!
//! Not here: making and ending connections (`door`), waiting (`shared`).

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use sprat_proto::rdma::{
    Completion, Conn, Cq, Event, Polled, Qp, Record, Rnic, RnicOptions, StreamEnd,
};
use sprat_proto::rpc::Slices;
use sprat_proto::time::US;
use sprat_proto::wire::rdmap::Cause;
use sprat_proto::{Instant, Rng};

use super::events::{Asked, Desk};
use super::listen::Listener;
use super::regions::{Reach, Regions};
use super::socket;
use super::stream::{self, Kept, Pending, Stage, Stream, took};
use sprat_sys::clock::Clock;

/// Up to so many connections each is polled by reading it; more are polled through the epoll.
const DIRECT: usize = 8;
/// With few connections, how many turns pass between looks at the epoll (for new connections).
const EPOLL_EVERY: u32 = 32;
/// Octets of the buffer: what the engine may leave over, and one read.
const BUFFER: usize = MOST_LEFT + READ;
/// Octets of one read: some FPDUs, few enough to be still near when they are checked and placed.
const READ: usize = 128 << 10;
/// An FPDU's start up to this length is copied out of the buffer; a longer one keeps it.
const FEW: usize = 16 << 10;
/// So many streams may keep a buffer; others copy.
const MOST_KEPT: usize = 64;
/// Octets that are handed to the kernel in one call while others wait to send.
const BATCH: usize = 256 << 10;
/// The same while no other waits: the kernel moves 1 MB in less time if it gets it at once.
const BATCH_ALONE: usize = 1 << 20;
/// Of those so many are put together for it (with CRC or markers): the peer waits meanwhile.
const COPIED: usize = 64 << 10;
/// Octets that one connection sends in a turn while others wait to send.
const WORK: usize = 1 << 20;
/// The most that the engine leaves over: an FPDU that is not whole.
const MOST_LEFT: usize = 72 << 10;
/// What is read directly is read so much further: the CRC's place and the next FPDU's header.
const BEHIND: usize = 32;
/// What came waits no longer than this for a program that calls, whatever it calls.
const STALE_NS: u64 = 20 * US;
/// What is read at once in search of a header, where payload is then read directly; more while only short messages come.
pub(super) const AHEAD: usize = 4 << 10;
/// So many entries of [`Core::timed`] are never looked through.
pub(super) const LEAST_TIMED: usize = 1024;
/// So often is read from a peer that has gone: more than the kernel keeps.
const MOST_REST: usize = 1024;
/// What the epoll calls listener `n`: this and `n`.
pub(super) const LISTENER: u64 = 1 << 32;

/// Copies between the kernel and a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copies {
    /// An FPDU is put together in a buffer of its connection, then placed.
    Two,
    /// It is placed out of the buffer that was read into.
    #[default]
    One,
    /// Payload is read straight into its region where that is possible: without CRC and markers, in long messages.
    Direct,
    /// The same while answers to Reads are awaited, and else as [`Copies::One`]: for who sends nothing long unasked.
    Asked,
}

/// Who sleeps on the sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    /// Nobody.
    Nobody,
    /// Who waits for something: any change may be it.
    Program,
    /// The device's own thread, up to this time, or who waits for nothing else: he cares for what nobody else does.
    Thread(Instant),
    /// The guard, likewise; it gives way to whoever wants to, and is told of that by nobody.
    Guard(Instant),
}

/// How a core is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The pure engine's.
    pub config: RnicOptions,
    /// How payload gets to its place.
    pub copies: Copies,
    /// Most connections.
    pub connections: usize,
    /// An FPDU fits a segment that the kernel sends, for a peer that looks at segments; else it is as long as MPA allows.
    pub fitted: bool,
    /// Logs that an error ended a connection.
    pub on_failure: Option<fn(&Failure)>,
}

/// An error ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its queue pair.
    pub pair: Qp,
    /// The peer's address, if it was connected.
    pub peer: Option<SocketAddr>,
    /// The error, as a Terminate says it.
    pub cause: Cause,
    /// We found it, and told the peer; else the peer told us.
    pub ours: bool,
}

/// What has been counted. All octets are payload and headers together, as the stream has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Times that accepting failed or had to wait: no descriptor left, or at the limit.
    pub accept_errors: u64,
    /// Connections closed at once, since their peers are on other machines and that was not allowed.
    pub accept_refused: u64,
    /// Octets received.
    pub received: u64,
    /// Octets that the kernel took.
    pub sent: u64,
    /// Reads of sockets that brought something.
    pub reads: u64,
    /// Sends that the kernel took something of.
    pub sends: u64,
    /// Octets that the kernel put straight into regions.
    pub direct: u64,
    /// Octets that were copied into regions.
    pub placed: u64,
    /// Octets that were copied between buffers before.
    pub copied: u64,
    /// Turns that found something to do.
    pub turns: u64,
    /// Those of them that the device's own thread took.
    pub thread_turns: u64,
}

/// See the file.
#[derive(Debug)]
pub struct Core {
    pub(super) rnic: Rnic,
    pub(super) regions: Regions,
    pub(super) desk: Desk,
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
    /// When to look at which stream: whether something is due there it knows itself.
    pub(super) timed: BinaryHeap<Reverse<(Instant, u32)>>,
    /// When there are more of these, those with nothing due are sorted out.
    pub(super) most_timed: usize,
    pub(super) first_timed: Instant,
    /// How many wait until their socket is writable, which only the epoll knows.
    pub(super) waiting: usize,
    /// Who may have something to read.
    pub(super) ready: VecDeque<u32>,
    /// Who may have something to send.
    pub(super) dirty: VecDeque<u32>,
    /// The epoll may have something.
    pub(super) look: bool,
    turns: u32,
    /// When the sockets were last read.
    read_at: Instant,
    buffer: Box<[u8]>,
    spare_buffers: Vec<Box<[u8]>>,
    /// How many streams keep a buffer.
    pub(super) kept_buffers: usize,
    record: Record,
    pub(super) counters: Counters,
    /// Threads of the program that sleep until something changes.
    pub(super) sleepers: usize,
    /// Who sleeps on the epoll and the bell.
    pub(super) watch: Watch,
    /// The bell has rung for the guard, which has not looked since: it may nap beside a program that polls.
    pub(super) rung: Cell<bool>,
    /// The device's own thread sleeps until who watches is back.
    pub(super) follows: bool,
    /// Who polled has probably turned to his memory.
    pub(super) deserted: bool,
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
            desk: Desk::default(),
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
            look: true,
            turns: 0,
            read_at: Instant::ZERO,
            buffer: vec![0; BUFFER].into(),
            spare_buffers: Vec::new(),
            kept_buffers: 0,
            record: Record::default(),
            counters: Counters::default(),
            sleepers: 0,
            watch: Watch::Nobody,
            rung: Cell::new(false),
            follows: false,
            deserted: false,
            stop: false,
        })
    }

    /// Everything that can be done now; true if anything was.
    pub(crate) fn turn(&mut self) -> bool {
        self.turn_at(self.clock.now())
    }

    /// The same at a time that the caller has read.
    pub fn turn_at(&mut self, now: Instant) -> bool {
        let worked = self.take_in(now) | self.flush(now);
        self.counters.turns += u64::from(worked);
        worked
    }

    /// The first half of a turn: what came, what is late, and what happened by that.
    pub fn take_in(&mut self, now: Instant) -> bool {
        let mut worked = self.receive(now);
        if self.deadline() <= now {
            self.tick(now);
            worked = true;
        }
        worked | self.write_down(now)
    }

    /// Sends what is to be sent and writes down what happened: the second half of a turn.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        self.flush_from(now, &())
    }

    /// The same where messages among the regions have slices.
    pub fn flush_from(&mut self, now: Instant, slices: &dyn Slices) -> bool {
        self.rnic.set_time(now);
        let worked = self.send(now, slices) | self.write_down(now);
        // What happened may have left more to send (a refusal, an end).
        worked | self.send(now, slices)
    }

    /// True if something waits for nothing but the next [`Core::flush`].
    pub fn has_output(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn write_down(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Some(event) = self.rnic.event() {
            self.happened(now, event);
            worked = true;
        }
        worked
    }

    /// A turn for whoever calls for something else, if nobody has taken one for a while; true if it did anything. A program
    /// that posts and takes what is there already would read its sockets never, and it may look in its memory meanwhile for
    /// what is to come.
    #[inline]
    pub(crate) fn turn_perhaps(&mut self, now: Instant) -> bool {
        now.since(self.read_at) >= STALE_NS && self.turn_at(now)
    }

    /// When a turn is due even if nothing comes.
    pub fn deadline(&self) -> Instant {
        self.rnic.deadline().unwrap_or(Instant::NEVER).min(self.first_timed)
    }

    /// True if there is more to do that no epoll tells of.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty() || !self.dirty.is_empty()
    }

    /// True if a thread may sleep until the epoll has something.
    pub fn doze(&mut self) -> bool {
        self.look = true;
        !self.has_more()
    }

    /// Nobody sleeps on the sockets who has to be waited for.
    pub(super) const fn may_watch(&self) -> bool {
        matches!(self.watch, Watch::Nobody | Watch::Guard(_))
    }

    /// The engine.
    #[inline]
    pub fn rnic(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    /// The oldest completion of a queue that is polled, if it is not one that is held. One that was held in vain makes the
    /// device's thread look after the program's memory at once.
    pub(crate) fn poll_deferring(&mut self, cq: Cq) -> Option<Completion> {
        match self.rnic.poll_deferring(cq, || self.clock.now()) {
            Polled::Done(completion) => Some(completion),
            Polled::Expired(completion) => {
                self.deserted = true;
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
        self.look = true;
    }

    /// Registered memory.
    pub fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// What programs wait for.
    pub fn desk(&mut self) -> &mut Desk {
        &mut self.desk
    }

    /// Who asked next at a listener.
    pub fn asked(&mut self, listener: u32) -> Option<Asked> {
        self.listeners.get_mut(&listener)?.asked.pop_front()
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        Counters { placed: self.regions.written, ..self.counters }
    }

    fn happened(&mut self, now: Instant, event: Event) {
        match event {
            Event::ConnectRequest { conn, private_data, ird, ord } => {
                let found =
                    self.slot_of(conn).and_then(|slot| self.streams[slot as usize].as_deref());
                let Some(stream) = found else { return };
                let Ok(local) = stream::address(&stream.socket) else { return };
                let asked = Asked { conn, peer: stream.peer, local, private_data, ird, ord };
                // Nobody listens (any more), or nobody hears.
                if !self.hears(stream.listener, asked) {
                    let _ = self.rnic.reject(now, conn, &[]);
                }
            }
            Event::Close { conn, reset } => self.close(now, conn, reset),
            other => {
                if let Event::Failed { conn, qp: None, why } = other {
                    self.start_failed(conn, why);
                }
                self.log_failure(&other);
                self.desk.take(other);
            }
        }
    }

    /// Logs an error that ends a connection; for that the peers' addresses are kept.
    fn log_failure(&mut self, event: &Event) {
        let Some(log) = self.settings.on_failure else { return };
        match *event {
            Event::Established { conn, qp, .. } => {
                let stream =
                    self.slot_of(conn).and_then(|slot| self.streams[slot as usize].as_deref());
                if let Some(stream) = stream {
                    self.desk.peers.insert(qp, stream.peer);
                }
            }
            Event::QpFailed { qp, cause, ours } => {
                log(&Failure { pair: qp, peer: self.desk.peers.get(&qp).copied(), cause, ours });
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

    // ---- receiving ----

    fn receive(&mut self, now: Instant) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.read_at = now;
        let many = self.live.len() > DIRECT || self.waiting > 0;
        let mut worked = false;
        if self.look || many || self.turns.is_multiple_of(EPOLL_EVERY) {
            worked |= self.look(now);
        }
        if !many {
            // By index: a read may end a stream and so change the list.
            let mut at = 0;
            while let Some(&slot) = self.live.get(at) {
                worked |= self.receive_one(now, slot);
                at += 1;
            }
            self.ready.clear();
            return worked;
        }
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else { break };
            worked |= self.receive_one(now, slot);
        }
        worked
    }

    /// Asks the epoll who has something.
    fn look(&mut self, now: Instant) -> bool {
        self.look = false;
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 64];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut events, Some(&none)).unwrap_or(0);
        // There may be more than fit.
        self.look = count == events.len();
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if data >= LISTENER {
                self.accept_from(now, data as u32);
                continue;
            }
            let slot = data as u32;
            let Some(stream) = self.streams.get(slot as usize).and_then(Option::as_deref) else {
                continue;
            };
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            let opening = matches!(stream.stage, Stage::Opening { .. });
            if opening {
                self.opened(now, slot);
                continue;
            }
            if stream.stalled && (broken || flags.contains(epoll::EventFlags::RDHUP)) {
                self.left(now, slot, flags.contains(epoll::EventFlags::ERR));
                continue;
            }
            if broken || flags.contains(epoll::EventFlags::OUT) {
                self.soil(slot);
            }
            if broken || flags.contains(epoll::EventFlags::IN) {
                self.ready.push_back(slot);
            }
        }
        count > 0
    }

    /// Reads once from the stream in `slot` and hands in what came.
    fn receive_one(&mut self, now: Instant, slot: u32) -> bool {
        let Some(stream) = self.streams.get_mut(slot as usize).and_then(Option::as_deref_mut)
        else {
            return false;
        };
        let conn = match stream.stage {
            _ if stream.finished => return false,
            Stage::Live(_) if stream.stalled => return false,
            Stage::Live(conn) => conn,
            Stage::Lingering(_) => return self.drain(slot),
            Stage::Opening { .. } => return false,
        };
        let direct = match self.settings.copies {
            Copies::Two | Copies::One => false,
            Copies::Direct => true,
            Copies::Asked => self.rnic.awaits_responses(conn),
        };
        if direct
            && stream.kept.len() == 0
            && let Some(span) = self.rnic.direct_span(conn)
            && span.len as usize >= AHEAD
        {
            stream.ahead = AHEAD;
            let behind = &mut self.buffer[..BEHIND];
            let read = socket::receive_into(stream.socket.as_fd(), span, &mut self.regions, behind);
            // Memory that is gone is found again by placing what comes through the buffer, and told as the engine tells it.
            if !matches!(&read, Err(e) if socket::is_unmapped(e)) {
                return self.received_directly(now, slot, conn, span.len as usize, read);
            }
        }
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return false };
        // Long payload whose header is in this read would be copied; where none comes, more is read at once.
        let kept = stream.kept.len();
        let most = if direct { READ.min(stream.ahead) } else { READ };
        let read = stream.read(&mut self.buffer, kept + most);
        if read == Some(Ok(most)) {
            stream.ahead = READ.min(2 * stream.ahead);
        }
        match read {
            None => return false,
            Some(Ok(0)) => self.ended(now, slot, conn, StreamEnd::Finished),
            Some(Err(_)) => self.ended(now, slot, conn, StreamEnd::Reset),
            Some(Ok(n)) => {
                self.count_read(n);
                self.hand_in(now, slot, conn, n);
                if self.rnic.is_stalled(conn) {
                    self.stall(slot, true);
                }
            }
        }
        true
    }

    /// Reads a stream no further, or does again.
    #[cold]
    fn stall(&mut self, slot: u32, stalls: bool) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        (stream.stalled, stream.unread) = (stalls, false);
        self.register(slot);
        if !stalls {
            self.ready.push_back(slot);
        }
    }

    /// The peer of a stream that is not read has left, by a reset or in order.
    #[cold]
    fn left(&mut self, now: Instant, slot: u32, reset: bool) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        let Some(conn) = stream.conn() else { return };
        if reset {
            return self.ended(now, slot, conn, StreamEnd::Reset);
        }
        stream.unread = true;
        self.register(slot);
        self.rnic.ended(now, conn, StreamEnd::Unread);
    }

    fn count_read(&mut self, n: usize) {
        self.counters.reads += 1;
        self.counters.received += n as u64;
    }

    fn received_directly(
        &mut self,
        now: Instant,
        slot: u32,
        conn: Conn,
        span: usize,
        read: io::Result<usize>,
    ) -> bool {
        match took(
            read.and_then(
                |n| if n == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(n) },
            ),
        ) {
            Ok(0) => return false,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                self.ended(now, slot, conn, StreamEnd::Finished)
            }
            Err(_) => self.ended(now, slot, conn, StreamEnd::Reset),
            Ok(n) => {
                self.count_read(n);
                let placed = n.min(span);
                self.counters.direct += placed as u64;
                self.rnic.placed_directly(now, conn, placed as u32, &mut self.regions);
                if n > span {
                    self.hand_in(now, slot, conn, n - span);
                }
            }
        }
        true
    }

    /// Hands `n` new octets to the engine, behind those that the stream kept.
    fn hand_in(&mut self, now: Instant, slot: u32, conn: Conn, n: usize) {
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        let kept = stream.kept.len();
        match std::mem::take(&mut stream.kept) {
            Kept::Nothing => {}
            Kept::Few(bytes) if self.settings.copies == Copies::Two => {
                return self.hand_in_assembled(now, slot, conn, bytes, n);
            }
            Kept::Few(bytes) => self.buffer[..kept].copy_from_slice(&bytes),
            Kept::Many(buffer, _) => {
                // What came was read behind it.
                self.spare_buffers.push(std::mem::replace(&mut self.buffer, buffer));
                self.kept_buffers -= 1;
            }
        }
        if self.settings.copies == Copies::Two {
            return self.hand_in_assembled(now, slot, conn, Vec::new(), n);
        }
        let filled = kept + n;
        let used = self.rnic.input(now, conn, &self.buffer[..filled], &mut self.regions);
        if used < filled {
            self.keep(now, slot, conn, used..filled);
        }
    }

    /// The same by a copy of everything into a buffer of the stream's own, `bytes`.
    fn hand_in_assembled(
        &mut self,
        now: Instant,
        slot: u32,
        conn: Conn,
        mut bytes: Vec<u8>,
        n: usize,
    ) {
        let from = bytes.len();
        bytes.extend_from_slice(&self.buffer[from..from + n]);
        self.counters.copied += n as u64;
        let used = self.rnic.input(now, conn, &bytes, &mut self.regions);
        bytes.drain(..used);
        if bytes.len() > MOST_LEFT {
            return self.ended(now, slot, conn, StreamEnd::Reset);
        }
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        // Few connections may keep their buffer; ten thousand idle ones own nothing.
        if !bytes.is_empty() || self.live.len() <= DIRECT {
            stream.kept = Kept::Few(bytes);
        }
    }

    /// Keeps what the engine left over of the buffer.
    fn keep(&mut self, now: Instant, slot: u32, conn: Conn, rest: Range<usize>) {
        if rest.len() > MOST_LEFT {
            return self.ended(now, slot, conn, StreamEnd::Reset);
        }
        let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
        self.counters.copied += rest.len() as u64;
        if rest.len() <= FEW || self.kept_buffers == MOST_KEPT {
            stream.kept = Kept::Few(self.buffer[rest].to_vec());
            return;
        }
        let len = rest.len();
        self.buffer.copy_within(rest, 0);
        let other = self.spare_buffers.pop().unwrap_or_else(|| vec![0; BUFFER].into());
        stream.kept = Kept::Many(std::mem::replace(&mut self.buffer, other), len);
        self.kept_buffers += 1;
    }

    // ---- sending ----

    fn send(&mut self, now: Instant, slices: &dyn Slices) -> bool {
        while let Some(conn) = self.rnic.ready() {
            if let Some(slot) = self.slot_of(conn) {
                self.soil(slot);
            }
        }
        let many = self.dirty.len();
        for _ in 0..many {
            let Some(slot) = self.dirty.pop_front() else { break };
            if let Some(stream) = self.streams[slot as usize].as_deref_mut() {
                stream.dirty = false;
                let (conn, stalled) = (stream.conn(), stream.stalled);
                if let Some(conn) = conn {
                    // Even if nothing can be sent: the peer may not read before it is read from.
                    self.rnic.place_unexpected(now, conn, &mut self.regions);
                    if stalled && !self.rnic.is_stalled(conn) {
                        self.stall(slot, false);
                    }
                }
                self.send_on(now, slot, slices);
            }
        }
        many > 0
    }

    /// Marks a stream as one that may have something to send.
    pub(super) fn soil(&mut self, slot: u32) {
        if let Some(stream) = self.streams[slot as usize].as_deref_mut()
            && !stream.dirty
        {
            stream.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// Sends what the stream in `slot` has to send, until the kernel takes no more or others should have a turn.
    fn send_on(&mut self, now: Instant, slot: u32, slices: &dyn Slices) {
        if !self.send_rest(now, slot, slices) {
            return;
        }
        let Some(conn) = self.streams[slot as usize].as_deref().and_then(Stream::conn) else {
            return;
        };
        let batch = if self.dirty.is_empty() { BATCH_ALONE } else { BATCH };
        let mut work = 0;
        loop {
            let (mut len, mut more) = (0, true);
            let within = |record: &Record, len| {
                !record.push
                    && len < batch
                    && record.bytes.len() < COPIED
                    && record.parts.len() < socket::PIECES / 2
            };
            while more && within(&self.record, len) {
                let mut reach = Reach { regions: &mut self.regions, slices };
                more = self.rnic.output(now, conn, &mut self.record, &mut reach);
                len = self.record.len();
            }
            if len == 0 {
                return;
            }
            let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
            let n = match took(socket::send(
                stream.socket.as_fd(),
                &self.record,
                0,
                &self.regions,
                slices,
            )) {
                Ok(n) => n,
                Err(error) => {
                    let record = std::mem::take(&mut self.record);
                    return self.not_sent(now, slot, conn, &error, (&record, 0), slices);
                }
            };
            if n < len {
                let record = std::mem::take(&mut self.record);
                stream.pending = Some(Box::new(Pending { record, sent: n }));
                self.register(slot);
            } else {
                self.record.clear();
            }
            self.count_sent(Some(conn), n);
            work += n;
            if n < len || !more {
                return;
            }
            if work >= WORK {
                return self.soil(slot);
            }
        }
    }

    /// The kernel has taken nothing of what follows the first octets of a record: the connection has ended, or memory has.
    #[cold]
    fn not_sent(
        &mut self,
        now: Instant,
        slot: u32,
        conn: Conn,
        error: &io::Error,
        (record, sent): (&Record, usize),
        slices: &dyn Slices,
    ) {
        if socket::is_unmapped(error)
            && let Some(span) = self.regions.unreadable(record, sent, slices)
        {
            self.rnic.source_unmapped(now, conn, span);
        } else {
            self.take_in_rest(now, slot, conn);
            self.ended(now, slot, conn, StreamEnd::Reset);
        }
    }

    /// Takes in what a peer said that takes nothing any more: a program that is done says so and exits, whereby the octets that
    /// it did not care for make the kernel end the connection abruptly. The kernel here still has what came before.
    fn take_in_rest(&mut self, now: Instant, slot: u32, conn: Conn) {
        for _ in 0..MOST_REST {
            let Some(stream) = self.streams[slot as usize].as_deref_mut() else { return };
            if stream.finished || stream.stalled || stream.conn() != Some(conn) {
                return;
            }
            let kept = stream.kept.len();
            let Some(Ok(n @ 1..)) = stream.read(&mut self.buffer, kept + READ) else { return };
            self.count_read(n);
            self.hand_in(now, slot, conn, n);
        }
    }

    fn count_sent(&mut self, conn: Option<Conn>, n: usize) {
        if n == 0 {
            return;
        }
        self.counters.sends += 1;
        self.counters.sent += n as u64;
        if let Some(conn) = conn {
            self.rnic.sent(conn, n);
        }
    }

    /// Sends what is left over from earlier; true if all of it has gone and the stream is still there.
    fn send_rest(&mut self, now: Instant, slot: u32, slices: &dyn Slices) -> bool {
        let Some(stream) = self.streams.get_mut(slot as usize).and_then(Option::as_deref_mut)
        else {
            return false;
        };
        if stream.pending.is_none() {
            return true;
        }
        let conn = stream.conn();
        match stream.send_pending(&self.regions, slices) {
            Ok(n) => self.count_sent(conn, n),
            Err(error) => {
                let left = stream.pending.take();
                match (conn, left) {
                    (Some(conn), Some(left)) => {
                        self.not_sent(now, slot, conn, &error, (&left.record, left.sent), slices);
                    }
                    _ => self.remove(slot),
                }
                return false;
            }
        }
        let all = self.streams[slot as usize].as_deref().is_some_and(|s| s.pending.is_none());
        if all {
            self.register(slot);
            if conn.is_none() {
                self.said_all(slot);
            }
        }
        all
    }
}
