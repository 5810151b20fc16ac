//! The datagram driver over shared memory: a pair of rings ([`sprat_sys::ring`]) to every process
//! that this one talks to.
//!
//! A server listens on a Unix socket whose file has its name ([`path`]). A client connects, both
//! exchange hellos ([`hello`]), and then datagrams go through memory that only these two processes
//! share ([`connection`]). The socket stays open: a byte on it wakes the other side, and its end is
//! the death of the other process ([`connected`]).
//!
//! One driver may listen, and may connect to any number of servers. Records are copied out of the
//! rings into the burst, which no other process can write, up to [`SHARE`] records from each
//! connection in turn. Sockets are polled every [`PATIENCE`] turns, all by one system call. Of many
//! connections, those that have been silent for long are *inactive*: their rings are not polled,
//! and their peers wake this side as if it slept.
//!
//! Always holds: whatever a peer writes and whenever it dies, only its own connection ends. Records
//! that a dead peer has published are delivered before its end is reported.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{Timespec, epoll};
use sprat_proto::datagrams::{BURST, PaddedHeader, Sent};
use sprat_proto::device::Headers;
use sprat_proto::time::SECOND;
use sprat_proto::{Addr, Datagrams, Instant, Rng, TimedDatagrams};

use crate::driver::Driver;
use crate::locator::{Kind, Locator};
use connected::Connected;
use connection::State;
use sprat_sys::clock;
use sprat_sys::ring::{self, Broken, MAX_PAYLOAD, Producer, Push};

pub(crate) mod connected;
mod connection;
mod hello;
mod path;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub(crate) use hello::fuzz as fuzz_hello;
pub(crate) use path::{Call, Listener, connect_at};

/// Turns between two looks at the sockets.
const PATIENCE: u32 = 256;
/// Turns between two polls of the sockets while a connection is being opened.
const PATIENCE_OPENING: u32 = 16;
/// Records taken from one connection before it is the next one's turn.
const SHARE: usize = 8;
/// Bytes of a burst: it ends when the longest record would not fit any more. Small enough for the
/// second-level cache.
const ARENA: usize = 4 * MAX_PAYLOAD;
/// Up to this many connections are polled even if they are silent.
const ALWAYS_POLLED: usize = 32;
/// Looks at the sockets without a record in between, after which a connection goes cold.
const SILENT_LOOKS: u8 = 16;
/// Connections accepted and socket events handled in one look.
const EVENTS: usize = 64;
/// The time that a client has for its hello, which it sends right behind the connection.
const HELLO_NS: u64 = 2 * SECOND;
/// The epoll's data for the listening socket; no connection has this number.
const LISTENER: u64 = u64::MAX;
/// Set in a connection's number, it means among the epoll events that the peer's process has ended.
const ENDED: u64 = 1 << 63;
const SLOT_BITS: u32 = 16;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Options of a driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Accept processes of other users, and connect to their servers.
    pub other_users: bool,
    /// Bytes of each ring of the connections that this side accepts: a power of two from
    /// [`ring::MIN_SIZE`] to [`ring::MAX_SIZE`].
    pub ring_bytes: usize,
    /// The most connections at a time, at most 65,536. Each takes two file descriptors and two
    /// rings.
    pub max_connections: usize,
    /// The directory of the sockets, if not `$XDG_RUNTIME_DIR/sprat` or `/tmp/sprat-UID`.
    pub directory: Option<PathBuf>,
    /// The rings carry Ethernet frames instead of datagrams; both sides must say so.
    pub frames: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            other_users: false,
            ring_bytes: ring::DEFAULT_SIZE,
            max_connections: 1024,
            directory: None,
            frames: false,
        }
    }
}

/// Counters since the driver was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams put into a ring.
    pub sent: u64,
    /// Datagrams for which a ring had no room; offered again, they count again.
    pub full: u64,
    /// Connections opened, from either side.
    pub opened: u64,
    /// Connections refused: another user's, one too many, or no proper hello in time.
    pub refused: u64,
    /// Connections ended because the peer had damaged a ring.
    pub broken: u64,
    /// Peers woken.
    pub wakes: u64,
}

struct Connection {
    /// The number in [`Addr::Local`]: a serial number, and below it the slot.
    id: u64,
    socket: Connected,
    state: State,
    /// The caller has, or may have, this address: tell it when the connection ends.
    known: bool,
    /// Its rings are polled; else it is cold or not open.
    polled: bool,
    /// The peer is dead, and what it had published is being delivered.
    ended: bool,
    /// Looks at the sockets since the last record.
    silent: u8,
    /// The time at which it is given up if the client has sent no hello.
    until: Instant,
}

/// A datagram of the burst.
#[derive(Clone, Copy)]
struct Piece {
    from: u64,
    start: usize,
    len: usize,
}

/// The driver.
pub struct Shm {
    options: Options,
    directory: PathBuf,
    listener: Option<Listener>,
    locator: Option<String>,
    epoll: OwnedFd,
    rng: Rng,
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    serial: u64,
    /// Servers that this side is connected to.
    names: BTreeMap<String, u64>,
    /// Slots of the connections that are polled; `next` is the place in it where the next burst
    /// begins.
    polled: Vec<u32>,
    next: usize,
    /// Connections whose hello is awaited.
    opening: usize,
    /// No client's hello is due before.
    hello_due: Instant,
    /// Connections whose peer has ended and whose ring is not yet read to its end.
    ending: usize,
    gone: VecDeque<u64>,
    arena: Box<[u8]>,
    used: usize,
    burst: Vec<Piece>,
    /// The last burst was not empty.
    streak: bool,
    turns: u32,
    dozing: bool,
    counters: Counters,
}

impl fmt::Debug for Shm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shm")
            .field("locator", &self.locator)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Shm {
    /// A driver that listens at `fast+shm:name=N` and may connect too.
    ///
    /// # Errors
    /// The locator is of another kind; `AddrInUse` if a living server has the name,
    /// `PermissionDenied` if the directory of the sockets is not this user's alone, each naming the
    /// path; a system call failed.
    pub fn listen(locator: &Locator, options: Options) -> io::Result<Self> {
        let name = name_of(locator)?;
        let mut shm = Self::client(options)?;
        let listener = Listener::bind(&shm.directory, &name)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&shm.epoll, &listener, data, epoll::EventFlags::IN)?;
        shm.listener = Some(listener);
        shm.locator = Some(format!("fast+shm:name={name}"));
        Ok(shm)
    }

    /// A driver that connects only.
    ///
    /// # Errors
    /// `InvalidInput` if an option is out of its bounds; a system call failed.
    pub fn client(options: Options) -> io::Result<Self> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !options.ring_bytes.is_power_of_two()
            || !(ring::MIN_SIZE..=ring::MAX_SIZE).contains(&options.ring_bytes)
        {
            return Err(bad("ring_bytes must be a power of two from 256 KiB to 64 MiB"));
        }
        if options.max_connections > 1 << SLOT_BITS {
            return Err(bad("max_connections is at most 65536"));
        }
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        ring::has_barrier();
        Ok(Self {
            directory: options.directory.clone().unwrap_or_else(path::default_directory),
            options,
            listener: None,
            locator: None,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            rng: Rng::new(seed),
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
            names: BTreeMap::new(),
            polled: Vec::new(),
            next: 0,
            opening: 0,
            hello_due: Instant::NEVER,
            ending: 0,
            gone: VecDeque::new(),
            arena: vec![0; ARENA].into(),
            used: 0,
            burst: Vec::with_capacity(BURST),
            streak: false,
            turns: 0,
            dozing: false,
            counters: Counters::default(),
        })
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Connections that are open or being opened.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The numbers of all open connections.
    pub(crate) fn peers(&self) -> impl Iterator<Item = u64> {
        let open = |c: &&Connection| matches!(c.state, State::Open(_));
        self.slots.iter().flatten().filter(open).map(|c| c.id)
    }

    fn kind(&self) -> hello::Kind {
        if self.options.frames { hello::Kind::Frames } else { hello::Kind::Datagrams }
    }

    // The table of connections.

    fn slot_of(&self, id: u64) -> Option<usize> {
        let slot = slot_in(id);
        matches!(self.slots.get(slot), Some(Some(c)) if c.id == id).then_some(slot)
    }

    fn insert(&mut self, socket: Connected, state: State, known: bool) -> io::Result<u64> {
        if self.connections() >= self.options.max_connections {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections"));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.serial += 1;
        let id = (self.serial << SLOT_BITS) | u64::from(slot);
        if let Err(e) = socket.watch(&self.epoll, id, id | ENDED) {
            self.free.push(slot);
            return Err(e);
        }
        let until = match state {
            State::Accepted => clock::now().after(HELLO_NS),
            _ => Instant::NEVER,
        };
        self.hello_due = self.hello_due.min(until);
        self.slots[slot as usize] = Some(Connection {
            id,
            socket,
            state,
            known,
            polled: false,
            ended: false,
            silent: 0,
            until,
        });
        self.opening += 1;
        Ok(id)
    }

    /// Ends a connection: closes its socket, unmaps its memory, tells the caller.
    #[cold]
    fn remove(&mut self, slot: usize) {
        let Some(connection) = self.slots[slot].take() else { return };
        connection.socket.unwatch(&self.epoll);
        self.free.push(slot as u32);
        if connection.polled {
            self.polled.retain(|&s| s as usize != slot);
        }
        if !matches!(connection.state, State::Open(_)) {
            self.opening -= 1;
        }
        if connection.ended {
            self.ending -= 1;
        }
        if connection.known {
            self.names.retain(|_, id| *id != connection.id);
            self.gone.push_back(connection.id);
        }
    }

    /// Begins to poll the connection, if it is open.
    fn warm(&mut self, slot: usize) {
        let Some(connection) = &mut self.slots[slot] else { return };
        let State::Open(rings) = &connection.state else { return };
        connection.silent = 0;
        if !connection.polled {
            connection.polled = true;
            rings.rx.get_up();
            self.polled.push(slot as u32);
        }
    }

    // Sockets.

    /// Looks at all sockets.
    #[cold]
    fn look(&mut self) {
        self.turns = 0;
        let mut space = [MaybeUninit::uninit(); EVENTS];
        let mut calls = false;
        // An interrupted call is as good as one without events: the next look comes soon.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&NOW)) {
            for event in events {
                match event.data.u64() {
                    LISTENER => calls = true,
                    id if id & ENDED != 0 => self.process_ended(id & !ENDED),
                    id => self.socket_event(id),
                }
            }
        }
        if self.hello_due != Instant::NEVER {
            self.give_up(clock::now());
        }
        // Last, since a client that calls may need the place of one that said nothing.
        if calls {
            self.accept();
        }
        if self.polled.len() > ALWAYS_POLLED {
            self.cool();
        }
    }

    /// Ends the connections whose clients have said no hello by `now`.
    fn give_up(&mut self, now: Instant) {
        if now < self.hello_due {
            return;
        }
        self.hello_due = Instant::NEVER;
        for slot in 0..self.slots.len() {
            let Some(Connection { state: State::Accepted, until, .. }) = self.slots[slot] else {
                continue;
            };
            if until <= now {
                self.counters.refused += 1;
                self.remove(slot);
            } else {
                self.hello_due = self.hello_due.min(until);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..EVENTS {
            match self.listener.as_mut().map_or(Call::None, Listener::take) {
                Call::Client(socket) => self.admit(socket),
                Call::TurnedAway => self.counters.refused += 1,
                Call::None => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let admitted = Connected::new(socket).and_then(|socket| {
            self.check_user(&socket)?;
            self.insert(socket, State::Accepted, false)
        });
        match admitted {
            // The hello is most likely there already.
            Ok(id) => self.socket_event(id),
            Err(_) => self.counters.refused += 1,
        }
    }

    fn check_user(&self, socket: &Connected) -> io::Result<()> {
        let peer = socket.user();
        if peer == rustix::process::geteuid() || self.options.other_users {
            return Ok(());
        }
        let why = format!("the process at the other end belongs to user {}", peer.as_raw());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn socket_event(&mut self, id: u64) {
        let (Some(slot), kind) = (self.slot_of(id), self.kind()) else { return };
        let Some(connection) = &mut self.slots[slot] else { return };
        let socket = &connection.socket;
        let opened = match connection.state {
            State::Accepted => {
                let secrets = [self.rng.u64(), self.rng.u64()];
                connection::answer(socket, kind, self.options.ring_bytes, secrets)
            }
            State::Opening => connection::accept(socket, kind),
            State::Open(_) => {
                if !connection::take_wakes(socket) {
                    self.end(slot);
                }
                return self.warm(slot);
            }
        };
        match opened {
            Ok(None) => {}
            Ok(Some(rings)) => {
                connection.state = State::Open(rings);
                connection.known = true;
                self.opening -= 1;
                self.counters.opened += 1;
                self.warm(slot);
            }
            Err(_) => {
                self.counters.refused += 1;
                self.remove(slot);
            }
        }
    }

    /// The peer's process has ended. What it said before is heard first.
    fn process_ended(&mut self, id: u64) {
        self.socket_event(id);
        let Some(slot) = self.slot_of(id) else { return };
        if matches!(&self.slots[slot], Some(Connection { state: State::Open(_), .. })) {
            self.end(slot);
        } else {
            self.counters.refused += 1;
            self.remove(slot);
        }
    }

    /// The peer is dead: what it had published is delivered, then the connection is removed.
    fn end(&mut self, slot: usize) {
        let Some(connection) = &mut self.slots[slot] else { return };
        if !connection.ended {
            connection.ended = true;
            self.ending += 1;
            connection.socket.unwatch(&self.epoll);
        }
    }

    /// Stops polling connections that have been silent for long; their peers are asked to wake this
    /// side.
    fn cool(&mut self) {
        let mut cooling = Vec::new();
        for &slot in &self.polled {
            let Some(connection) = &mut self.slots[slot as usize] else { continue };
            let State::Open(rings) = &connection.state else { continue };
            connection.silent = connection.silent.saturating_add(1);
            if connection.silent > SILENT_LOOKS && !connection.ended && !rings.tx.is_waiting() {
                rings.rx.lie_down();
                cooling.push(slot);
            }
        }
        if cooling.is_empty() {
            return;
        }
        ring::barrier();
        for slot in cooling {
            let Some(connection) = &mut self.slots[slot as usize] else { continue };
            let State::Open(rings) = &connection.state else { continue };
            if rings.rx.is_ready() {
                rings.rx.get_up();
                connection.silent = 0;
            } else {
                connection.polled = false;
            }
        }
        let slots = &self.slots;
        self.polled.retain(|&s| slots[s as usize].as_ref().is_some_and(|c| c.polled));
    }

    // Rings.

    /// Puts a record into the ring towards `to`.
    #[inline(always)]
    fn push(
        &mut self,
        to: Addr,
        record: impl FnOnce(&mut Producer) -> Result<Push, Broken>,
    ) -> Sent {
        match to {
            Addr::Local(id) => self.push_to(id, record),
            Addr::Net(_) => Sent::Gone,
        }
    }

    #[inline(always)]
    fn push_to(
        &mut self,
        id: u64,
        record: impl FnOnce(&mut Producer) -> Result<Push, Broken>,
    ) -> Sent {
        let Some(Some(connection)) = self.slots.get_mut(slot_in(id)) else { return Sent::Gone };
        if connection.id != id {
            return Sent::Gone;
        }
        let State::Open(rings) = &mut connection.state else { return Sent::Full };
        if connection.ended {
            return Sent::Gone;
        }
        match record(&mut rings.tx) {
            Ok(Push::Done { wake }) => {
                self.counters.sent += 1;
                if wake {
                    self.counters.wakes += 1;
                    connection::wake(&connection.socket);
                }
                Sent::Yes
            }
            Ok(Push::Full) => self.not_sent(slot_in(id), Sent::Full),
            Err(Broken) => self.not_sent(slot_in(id), Sent::Gone),
        }
    }

    /// Sends a frame to connection `id`: `headers`, and `parts` of `len` bytes together behind
    /// them.
    #[inline]
    pub(crate) fn send_with_headers(
        &mut self,
        id: u64,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
    ) -> Sent {
        self.push_to(id, |ring| ring.push_behind(headers, parts, len))
    }

    /// The `i`th record of the burst, with the connection's number.
    #[inline]
    pub(crate) fn record(&self, i: usize) -> (u64, &[u8]) {
        let piece = self.burst[i];
        (piece.from, &self.arena[piece.start..piece.start + piece.len])
    }

    /// The ring of a connection takes nothing: it is full, or broken.
    #[cold]
    fn not_sent(&mut self, slot: usize, why: Sent) -> Sent {
        if why == Sent::Full {
            self.counters.full += 1;
            // Only of polled connections does `arm` ask for room.
            self.warm(slot);
        } else {
            self.counters.broken += 1;
            self.remove(slot);
        }
        why
    }

    /// Moves up to `most` records of a connection to the burst; true if there may be more.
    #[inline]
    fn take(&mut self, slot: usize, most: usize) -> bool {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return false };
        let State::Open(rings) = &mut connection.state else { return false };
        let before = self.burst.len();
        let end = (before + most).min(BURST);
        let mut over = false;
        while self.burst.len() < end && self.used + MAX_PAYLOAD <= ARENA {
            match rings.rx.pop(&mut self.arena[self.used..]) {
                Ok(Some(len)) => {
                    self.burst.push(Piece { from: connection.id, start: self.used, len });
                    self.used += (len + 15) & !15;
                }
                Ok(None) => {
                    // The end is reported in a later burst than the last records.
                    over = connection.ended && !self.burst.iter().any(|p| p.from == connection.id);
                    break;
                }
                Err(Broken) => {
                    self.counters.broken += 1;
                    over = true;
                    break;
                }
            }
        }
        if rings.rx.take_wake() {
            self.counters.wakes += 1;
            connection::wake(&connection.socket);
        }
        let taken = self.burst.len() - before;
        if taken > 0 {
            connection.silent = 0;
        }
        if over {
            self.remove(slot);
        }
        taken == most
    }

    /// Fills the burst from several connections, round after round while one may have more. A ring
    /// that was found empty is not polled again, since polling a line that the peer is about to
    /// write costs both sides.
    #[inline(never)]
    fn take_in_turns(&mut self) {
        let share = if self.streak { SHARE } else { 1 };
        let mut more = true;
        while mem::take(&mut more) {
            for _ in 0..self.polled.len() {
                if self.next >= self.polled.len() {
                    self.next = 0;
                }
                let Some(&slot) = self.polled.get(self.next) else { return };
                if self.has_something(slot as usize) {
                    if self.burst.len() >= BURST || self.used + MAX_PAYLOAD > ARENA {
                        return;
                    }
                    more |= self.take(slot as usize, share);
                }
                self.next += 1;
            }
            more &= self.streak;
        }
    }

    /// True if the connection has a record, or its end is to be told.
    #[inline(always)]
    fn has_something(&self, slot: usize) -> bool {
        let Some(Some(connection)) = self.slots.get(slot) else { return false };
        let State::Open(rings) = &connection.state else { return false };
        connection.ended || rings.rx.is_ready()
    }
}

impl Datagrams for Shm {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        self.used = 0;
        self.turns += 1;
        if self.turns >= PATIENCE_OPENING && (self.opening > 0 || self.turns >= PATIENCE) {
            self.look();
        }
        match self.polled[..] {
            [only] => {
                // A record that comes alone is not kept waiting by a look for the next one.
                let most = if self.streak { BURST } else { 1 };
                self.take(only as usize, most);
            }
            _ => self.take_in_turns(),
        }
        self.streak = !self.burst.is_empty();
        self.counters.received += self.burst.len() as u64;
        self.burst.len()
    }

    #[inline]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let piece = self.burst[i];
        (Addr::Local(piece.from), &self.arena[piece.start..piece.start + piece.len])
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.push(to, |ring| ring.push(parts))
    }

    #[inline(always)]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.push(to, |ring| ring.push_short(head, body))
    }

    #[inline]
    fn flush(&mut self) {}

    #[inline]
    fn gone(&mut self) -> Option<Addr> {
        self.gone.pop_front().map(Addr::Local)
    }

    #[inline]
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    #[inline]
    fn lossless(&self) -> bool {
        true
    }

    #[inline]
    fn intact(&self) -> bool {
        true
    }
}

impl TimedDatagrams for Shm {
    #[inline]
    fn set_now(&mut self, _: Instant) {}

    fn deadline(&self) -> Option<Instant> {
        Some(self.hello_due).filter(|due| *due != Instant::NEVER)
    }

    fn tick(&mut self, now: Instant) {
        self.give_up(now);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("ring_full", self.counters.full);
        each("rings_opened", self.counters.opened);
        each("rings_refused", self.counters.refused);
        each("rings_broken", self.counters.broken);
        each("wakes", self.counters.wakes);
    }
}

impl Driver for Shm {
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr> {
        let name = name_of(to)?;
        if let Some(&id) = self.names.get(&name) {
            return Ok(Addr::Local(id));
        }
        let socket = path::connect(&self.directory, &name)?;
        self.check_user(&socket)?;
        connection::greet(&socket, self.kind())?;
        let id = self.insert(socket, State::Opening, true)?;
        self.names.insert(name, id);
        Ok(Addr::Local(id))
    }

    fn locator(&self) -> Option<String> {
        self.locator.clone()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        if self.ending > 0 || !self.gone.is_empty() {
            return false;
        }
        self.dozing = true;
        for &slot in &self.polled {
            if let Some(Connection { state: State::Open(rings), .. }) = &self.slots[slot as usize] {
                rings.rx.lie_down();
                if rings.tx.is_waiting() {
                    rings.tx.wait_for_room();
                }
            }
        }
        ring::barrier();
        let mut arrived = false;
        for &slot in &self.polled {
            if let Some(Connection { state: State::Open(rings), .. }) =
                &mut self.slots[slot as usize]
            {
                arrived |= rings.rx.is_ready() || rings.tx.is_waiting() && rings.tx.has_room();
            }
        }
        if arrived {
            self.disarm();
        }
        !arrived
    }

    fn disarm(&mut self) {
        if !mem::take(&mut self.dozing) {
            return;
        }
        for &slot in &self.polled {
            if let Some(Connection { state: State::Open(rings), .. }) = &self.slots[slot as usize] {
                rings.rx.get_up();
                rings.tx.stop_waiting();
            }
        }
        // Whatever ended the sleep is most likely a socket's.
        self.turns = PATIENCE;
    }
}

/// The slot of the connection with this number, if it still exists.
#[inline]
fn slot_in(id: u64) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}

fn name_of(locator: &Locator) -> io::Result<String> {
    match locator.kind()? {
        Kind::Shm { name } => Ok(name),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} is no locator of shared memory"),
        )),
    }
}
