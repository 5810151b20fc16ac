//! The connections of a driver, by number, and the list of those whose rings are polled.
//!
//! ```text
//! number   serial number (47 bits) · slot (16 bits)
//! polled   [ busy: every turn … | quiet: every QUIET_EVERY-th turn … ]
//! ```
//!
//! A connection is quiet after [`QUIET_AFTER`] turns without a record. Of more than
//! [`ALWAYS_POLLED`] connections, those without a record for [`INACTIVE_AFTER`] turns are
//! *inactive*: no turn polls their rings, and their peers wake this side as if it slept.
//!
//! Always holds: each connection knows its own place in the list, so that its end costs the same
//! however many there are. Not here: what moves through the rings, and why a connection ends.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use sprat_proto::Instant;
use sprat_proto::time::SECOND;

use super::connected::Connected;
use super::connection::{Rings, State};
use sprat_sys::clock;
use sprat_sys::ring;

/// The number of connections up to which all are polled even if they are silent.
pub(super) const ALWAYS_POLLED: usize = 32;
/// The number of turns without a record after which a connection is quiet.
pub(super) const QUIET_AFTER: u32 = 1024;
/// The number of turns, a power of two, after which the rings of quiet connections are polled.
pub(super) const QUIET_EVERY: u32 = 8;
/// The number of turns without a record after which a connection goes inactive, if there are many
/// connections.
pub(super) const INACTIVE_AFTER: u32 = 4096;
/// The number of turns between two polls of the sockets if all connections are open and polled. The
/// sockets then report new clients and dead peers only, which can wait for a millisecond.
pub(super) const PATIENCE: u32 = 4096;
/// The number of turns between two polls of the sockets while a connection is inactive, since its
/// peer's datagrams wait for the next poll, or while there is no connection.
pub(super) const PATIENCE_INACTIVE: u32 = 256;
/// The number of turns between two polls of the sockets while a connection is being opened.
pub(super) const PATIENCE_OPENING: u32 = 16;
/// The time in nanoseconds that a client has to send its hello after it connected.
const HELLO_NS: u64 = 2 * SECOND;
/// A bit of epoll's data for a connection. It says that the event is the end of the peer's process.
pub(super) const ENDED: u64 = 1 << 63;
/// The number of bits of a connection's number that are its slot.
pub(super) const SLOT_BITS: u32 = 16;
/// The place in the list of polled connections that stands for a connection which is not polled.
const NOT_POLLED: usize = usize::MAX;

/// A connection over shared memory, open or being opened.
pub(super) struct Connection {
    /// The number of the connection, as in `Addr::Local`.
    pub(super) id: u64,
    pub(super) socket: Connected,
    pub(super) state: State,
    /// True if the peer is dead, while the records that it had published are delivered.
    pub(super) ended: bool,
    /// True if a record of the connection has arrived since the last poll of the sockets.
    pub(super) spoke: bool,
    /// The name of the server that this side connected to.
    name: Option<String>,
    /// True if the caller has, or may have, the connection's address: the driver then reports the
    /// connection's end.
    known: bool,
    /// The connection's place in the list of polled connections.
    place: usize,
    /// The number of turns since the connection's last record, as of the last poll of the sockets.
    silent: u32,
    /// The time at which the connection is given up if the client has sent no hello.
    until: Instant,
}

impl Connection {
    /// The rings of the connection, if it is open.
    #[inline(always)]
    pub(super) fn rings(&self) -> Option<&Rings> {
        match &self.state {
            State::Open(rings) => Some(rings),
            _ => None,
        }
    }
}

/// The connections of a driver over shared memory.
pub(super) struct Table {
    epoll: OwnedFd,
    most: usize,
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    serial: u64,
    /// The connections that this side opened, by the names of their servers.
    names: BTreeMap<String, u64>,
    /// The slots of the connections that are polled: the busy ones, and behind them the quiet ones.
    polled: Vec<u32>,
    busy: usize,
    /// The number of connections of which a hello has not arrived.
    opening: usize,
    /// The earliest time at which the hello of a client is overdue, or an earlier time.
    hello_due: Instant,
    /// The number of connections whose peer has ended and whose ring is not yet read to its end.
    ending: usize,
    gone: VecDeque<u64>,
}

impl Table {
    /// Makes a table for at most `most` connections.
    pub(super) fn new(most: usize) -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            most,
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
            names: BTreeMap::new(),
            polled: Vec::new(),
            busy: 0,
            opening: 0,
            hello_due: Instant::NEVER,
            ending: 0,
            gone: VecDeque::new(),
        })
    }

    /// The epoll that watches the sockets of all connections.
    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// The number of connections that are open or being opened.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Iterates over the sockets of all connections in the table.
    #[cfg(test)]
    pub(super) fn sockets(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        self.slots.iter().flatten().map(|c| std::os::fd::AsFd::as_fd(&c.socket))
    }

    /// Iterates over the numbers of all open connections.
    pub(super) fn open(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().flatten().filter(|c| c.rings().is_some()).map(|c| c.id)
    }

    /// The number of the connection to the server `name`.
    pub(super) fn named(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// Takes the number of the next ended connection from those whose address the caller knows.
    #[inline]
    pub(super) fn next_gone(&mut self) -> Option<u64> {
        self.gone.pop_front()
    }

    /// True if the end of a connection waits to be reported, or will when its ring is read.
    pub(super) fn has_ends(&self) -> bool {
        self.ending > 0 || !self.gone.is_empty()
    }

    /// The earliest time at which [`Table::expire`] may find a client that has sent no hello.
    pub(super) fn hello_due(&self) -> Instant {
        self.hello_due
    }

    /// The number of turns until the next poll of the sockets.
    pub(super) fn patience(&self) -> u32 {
        if self.opening > 0 {
            PATIENCE_OPENING
        } else if self.polled.len() < self.len() || self.polled.is_empty() {
            PATIENCE_INACTIVE
        } else {
            PATIENCE
        }
    }

    /// The slot of the connection `id`, if the connection still exists.
    pub(super) fn slot_of(&self, id: u64) -> Option<usize> {
        let slot = slot_in(id);
        matches!(self.slots.get(slot), Some(Some(c)) if c.id == id).then_some(slot)
    }

    /// Returns the connection in `slot`, if there is one.
    #[inline(always)]
    pub(super) fn at(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Returns the connection with the number `id`, if it still exists.
    #[inline(always)]
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Connection> {
        self.at(slot_in(id)).filter(|c| c.id == id)
    }

    /// Adds a connection that a client opened, or that this side opened to the server `name`.
    pub(super) fn insert(&mut self, socket: Connected, name: Option<String>) -> io::Result<u64> {
        if self.len() >= self.most {
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
        let (state, until) = match &name {
            Some(name) => {
                self.names.insert(name.clone(), id);
                (State::Opening, Instant::NEVER)
            }
            None => (State::Accepted, clock::now().after(HELLO_NS)),
        };
        self.hello_due = self.hello_due.min(until);
        self.slots[slot as usize] = Some(Connection {
            id,
            socket,
            state,
            ended: false,
            spoke: false,
            known: name.is_some(),
            name,
            place: NOT_POLLED,
            silent: 0,
            until,
        });
        self.opening += 1;
        Ok(id)
    }

    /// Makes the connection in `slot` an open one with these rings.
    pub(super) fn opened(&mut self, slot: usize, rings: Rings) {
        let Some(connection) = self.at(slot) else { return };
        connection.state = State::Open(rings);
        connection.known = true;
        self.opening -= 1;
        self.activate(slot);
    }

    /// Marks the peer of a connection as dead: the records that it had published are delivered,
    /// then the connection is removed.
    pub(super) fn end(&mut self, slot: usize) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        if !mem::replace(&mut connection.ended, true) {
            self.ending += 1;
            connection.socket.unwatch(&self.epoll);
        }
    }

    /// Removes a connection: closes its socket, unmaps its memory, and reports its end to the
    /// caller.
    #[cold]
    pub(super) fn remove(&mut self, slot: usize) {
        self.deactivate(slot);
        let Some(connection) = self.slots[slot].take() else { return };
        connection.socket.unwatch(&self.epoll);
        self.free.push(slot as u32);
        if connection.rings().is_none() {
            self.opening -= 1;
        }
        if connection.ended {
            self.ending -= 1;
        }
        if let Some(name) = &connection.name {
            self.names.remove(name);
        }
        if connection.known {
            self.gone.push_back(connection.id);
        }
    }

    /// Removes the connections whose clients have sent no hello by `now`; returns their number.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        if now < self.hello_due {
            return 0;
        }
        let mut expired = 0;
        self.hello_due = Instant::NEVER;
        for slot in 0..self.slots.len() {
            let Some(Connection { state: State::Accepted, until, .. }) = self.slots[slot] else {
                continue;
            };
            if until <= now {
                expired += 1;
                self.remove(slot);
            } else {
                self.hello_due = self.hello_due.min(until);
            }
        }
        expired
    }

    // The polled ones.

    /// The number of connections that this turn polls: all in the list, or the busy ones.
    #[inline(always)]
    pub(super) fn due(&self, all: bool) -> usize {
        if all { self.polled.len() } else { self.busy }
    }

    /// The connection at a place in the list of polled ones.
    #[inline(always)]
    pub(super) fn polled_at(&mut self, place: usize) -> Option<&mut Connection> {
        let slot = *self.polled.get(place)?;
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// True if the connection at a place in the list of polled ones has a record, or its end is to
    /// be reported.
    #[inline(always)]
    pub(super) fn is_ready_at(&self, place: usize) -> bool {
        let Some(slot) = self.polled.get(place) else { return false };
        let Some(Some(connection)) = self.slots.get(*slot as usize) else { return false };
        let State::Open(rings) = &connection.state else { return false };
        rings.rx.is_ready() || connection.ended
    }

    /// Calls `each` with the rings of each connection that is polled.
    pub(super) fn polled_rings(&mut self, mut each: impl FnMut(&mut Rings)) {
        for slot in &self.polled {
            if let Some(Connection { state: State::Open(rings), .. }) =
                &mut self.slots[*slot as usize]
            {
                each(rings);
            }
        }
    }

    /// Polls the connection at every turn from now on, if it is open.
    pub(super) fn activate(&mut self, slot: usize) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        let State::Open(rings) = &connection.state else { return };
        connection.silent = 0;
        if connection.place == NOT_POLLED {
            connection.place = self.polled.len();
            rings.rx.disarm();
            self.polled.push(slot as u32);
        }
        let place = connection.place;
        if place >= self.busy {
            self.swap(place, self.busy);
            self.busy += 1;
        }
    }

    /// True if the connection at `place` in the list of polled ones is quiet: turns that poll the
    /// busy connections alone skip it.
    #[inline]
    pub(super) fn is_quiet(&self, place: usize) -> bool {
        place >= self.busy
    }

    /// Makes the quiet connection at `place` busy: every turn polls it.
    #[cold]
    pub(super) fn activate_at(&mut self, place: usize) {
        if let Some(slot) = self.polled.get(place) {
            self.activate(*slot as usize);
        }
    }

    /// Removes the connection from the list of polled ones.
    fn deactivate(&mut self, slot: usize) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        let place = connection.place;
        if place == NOT_POLLED {
            return;
        }
        let place = self.quieten(place);
        self.swap(place, self.polled.len() - 1);
        self.polled.pop();
        if let Some(connection) = self.at(slot) {
            connection.place = NOT_POLLED;
        }
    }

    /// Moves the connection at `place` in the list of polled ones to the quiet ones; returns its
    /// new place.
    fn quieten(&mut self, place: usize) -> usize {
        if place >= self.busy {
            return place;
        }
        self.busy -= 1;
        self.swap(place, self.busy);
        self.busy
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.polled.swap(a, b);
        for place in [a, b] {
            if let Some(connection) = &mut self.slots[self.polled[place] as usize] {
                connection.place = place;
            }
        }
    }

    /// Sorts the polled connections by the records that arrived from them in the last `turns`
    /// turns, at the end of which it is called.
    pub(super) fn sort(&mut self, turns: u32) {
        let many = self.polled.len() > ALWAYS_POLLED;
        let mut inactive = Vec::new();
        // From the end, since a connection that becomes quiet changes places with a busy one.
        for place in (0..self.polled.len()).rev() {
            let slot = self.polled[place];
            let Some(connection) = &mut self.slots[slot as usize] else { continue };
            let State::Open(rings) = &connection.state else { continue };
            let spoke = mem::take(&mut connection.spoke);
            connection.silent = if spoke { 0 } else { connection.silent.saturating_add(turns) };
            let silent = connection.silent;
            if many && silent > INACTIVE_AFTER && !connection.ended && !rings.tx.is_waiting() {
                rings.rx.arm();
                inactive.push(slot as usize);
            }
            if silent >= QUIET_AFTER {
                self.quieten(place);
            }
        }
        if !inactive.is_empty() {
            ring::barrier();
        }
        for slot in inactive {
            let Some(Some(connection)) = self.slots.get(slot) else { continue };
            match connection.rings().filter(|rings| rings.rx.is_ready()) {
                Some(rings) => {
                    rings.rx.disarm();
                    self.activate(slot);
                }
                None => self.deactivate(slot),
            }
        }
    }
}

/// The slot in the connection number `id`.
#[inline]
pub(super) fn slot_in(id: u64) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}
