//! The datagram driver over shared memory: a pair of rings ([`sprat_sys::ring`]) to every process
//! that this one talks to.
//!
//! A server listens on a Unix socket whose file has its name ([`path`]). A client connects, both
//! exchange hellos ([`hello`]), and then datagrams go through memory that only these two processes
//! share ([`connection`]). The socket stays open: a byte on it wakes the other side, and its end is
//! the death of the other process ([`connected`], [`sockets`]).
//!
//! One driver may listen, and may connect to any number of servers ([`table`]). Records are copied
//! out of the rings into the burst, which no other process can write, some from each connection in
//! turn ([`burst`]); the bytes of long ones wait in the ring for their place in a message. Sockets
//! are polled every few hundred or thousand turns, all by one system call.
//!
//! Always holds: whatever a peer writes and whenever it dies, only its own connection ends. Records
//! that a dead peer has published are delivered before its end is reported.

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use sprat_proto::datagrams::{LeftDatagram, PaddedHeader, Sent};
use sprat_proto::device::Headers;
use sprat_proto::{Addr, Datagrams, Instant, TimedDatagrams};

use crate::driver::Driver;
use crate::locator::{Kind, Locator};
use burst::Burst;
use connection::State;
use sockets::Sockets;
use sprat_sys::ring::{self, Broken, MAX_PAYLOAD, Producer, Push};
use table::{Connection, PATIENCE_OPENING, QUIET_EVERY, SLOT_BITS, Table, slot_in};

mod burst;
pub(crate) mod connected;
mod connection;
mod hello;
mod options;
mod path;
mod sockets;
mod table;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub(crate) use hello::fuzz as fuzz_hello;
pub use options::{Counters, Options};
pub(crate) use path::{Call, Listener, connect_at, is_deserted};

/// The datagram driver over shared memory.
pub struct Shm {
    directory: PathBuf,
    locator: Option<String>,
    sockets: Sockets,
    table: Table,
    burst: Burst,
    /// The number of turns since the last poll of the sockets.
    turns: u32,
    /// The number of turns after which the driver polls the sockets.
    patience: u32,
    armed: bool,
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
    /// Opens a driver that listens at `fast+shm:name=N` and may connect too.
    ///
    /// # Errors
    /// The locator is of another kind; `AddrInUse` if a living server has the name,
    /// `PermissionDenied` if the directory of the sockets is not this user's alone, each naming the
    /// path; a system call failed.
    pub fn listen(locator: &Locator, options: Options) -> io::Result<Self> {
        let name = name_of(locator)?;
        let mut shm = Self::client(options)?;
        shm.sockets.listen(&shm.table, &shm.directory, &name)?;
        shm.locator = Some(format!("fast+shm:name={name}"));
        Ok(shm)
    }

    /// Opens a driver over shared memory that connects only.
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
        ring::has_barrier();
        Ok(Self {
            sockets: Sockets::new(&options)?,
            directory: options.directory.unwrap_or_else(path::default_directory),
            locator: None,
            table: Table::new(options.max_connections)?,
            // A frame is read in place.
            burst: Burst::new(!options.frames),
            turns: 0,
            patience: 0,
            armed: false,
            counters: Counters::default(),
        })
    }

    /// Returns the counters of the driver over shared memory.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of connections that are open or being opened.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// The numbers of all open connections of the driver.
    pub(crate) fn peers(&self) -> impl Iterator<Item = u64> {
        self.table.open()
    }

    /// Polls the sockets of all connections, and sorts the rings by their use.
    #[cold]
    fn poll_sockets(&mut self) {
        // First, since these turns say nothing about a connection that is opened now.
        self.table.sort(mem::take(&mut self.turns));
        self.sockets.poll(&mut self.table, &mut self.counters);
        self.patience = self.table.patience();
    }

    /// The ring that carries data to the peer of the connection `id`.
    #[inline(always)]
    fn ring_to(&mut self, id: u64) -> Result<&mut Producer, Sent> {
        match self.table.get(id) {
            Some(Connection { state: State::Open(rings), ended: false, .. }) => Ok(&mut rings.tx),
            Some(Connection { ended: false, .. }) => Err(Sent::Full),
            _ => Err(Sent::Gone),
        }
    }

    /// Counts the result of a push into the ring to the peer of the connection `id`, and returns it
    /// as a result of sending.
    #[inline(always)]
    fn pushed(&mut self, id: u64, pushed: Result<Push, Broken>) -> Sent {
        match pushed {
            Ok(Push::Done { wake }) => {
                self.counters.sent += 1;
                if wake {
                    self.wake(id);
                }
                Sent::Yes
            }
            Ok(Push::Full) => self.not_sent(id, Sent::Full),
            Err(Broken) => self.not_sent(id, Sent::Gone),
        }
    }

    #[cold]
    fn wake(&mut self, id: u64) {
        self.counters.wakes += 1;
        if let Some(connection) = self.table.get(id) {
            connection::wake(&connection.socket);
        }
    }

    /// Handles a ring that takes no datagram of the connection `id`, because it is full or broken.
    #[cold]
    fn not_sent(&mut self, id: u64, why: Sent) -> Sent {
        let slot = slot_in(id);
        if why == Sent::Full {
            self.counters.full += 1;
            // Only of polled connections does `arm` ask for room.
            self.table.activate(slot);
        } else {
            self.counters.broken += 1;
            self.table.remove(slot);
        }
        why
    }

    /// Sends an Ethernet frame on the connection `id`: `headers`, and `parts` of `len` bytes
    /// together behind them.
    #[inline]
    pub(crate) fn send_with_headers(
        &mut self,
        id: u64,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
    ) -> Sent {
        let pushed = match self.ring_to(id) {
            Ok(ring) => ring.push_behind(headers, parts, len),
            Err(sent) => return sent,
        };
        self.pushed(id, pushed)
    }

    /// The record with index `i` of the burst, with the number of its connection.
    #[inline]
    pub(crate) fn record(&self, i: usize) -> (u64, &[u8]) {
        self.burst.record(i)
    }
}

impl Datagrams for Shm {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        self.turns += 1;
        if self.turns >= self.patience {
            self.poll_sockets();
        }
        let all = self.turns.is_multiple_of(QUIET_EVERY);
        self.burst.fill(&mut self.table, all, &mut self.counters);
        self.burst.len()
    }

    #[inline]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let (from, bytes) = self.burst.record(i);
        (Addr::Local(from), bytes)
    }

    fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        self.burst.left(i)
    }

    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        self.burst.append_left(i, from, bytes);
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        let Addr::Local(id) = to else { return Sent::Gone };
        let pushed = match self.ring_to(id) {
            Ok(ring) => ring.push(parts),
            Err(sent) => return sent,
        };
        self.pushed(id, pushed)
    }

    #[inline(always)]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        let Addr::Local(id) = to else { return Sent::Gone };
        let pushed = match self.ring_to(id) {
            Ok(ring) => ring.push_short(head, body),
            Err(sent) => return sent,
        };
        self.pushed(id, pushed)
    }

    #[inline]
    fn flush(&mut self) {}

    #[inline]
    fn gone(&mut self) -> Option<Addr> {
        self.table.next_gone().map(Addr::Local)
    }

    #[inline]
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn max_loopback_payload(&self) -> usize {
        self.max_payload()
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
        Some(self.table.hello_due()).filter(|due| *due != Instant::NEVER)
    }

    fn tick(&mut self, now: Instant) {
        self.counters.refused += self.table.expire(now);
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
        if let Some(id) = self.table.named(&name) {
            return Ok(Addr::Local(id));
        }
        let id = self.sockets.connect(&mut self.table, &self.directory, name)?;
        self.patience = PATIENCE_OPENING;
        Ok(Addr::Local(id))
    }

    fn locator(&self) -> Option<String> {
        self.locator.clone()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.table.epoll().as_fd()
    }

    fn arm(&mut self) -> bool {
        // A producer that waits for the room of a record that is left would wait for ever.
        if self.table.has_ends() || self.burst.holds() {
            return false;
        }
        self.armed = true;
        self.table.polled_rings(|rings| {
            rings.rx.arm();
            if rings.tx.is_waiting() {
                rings.tx.arm();
            }
        });
        ring::barrier();
        let mut arrived = false;
        self.table.polled_rings(|rings| {
            arrived |= rings.rx.is_ready() || rings.tx.is_waiting() && rings.tx.has_room();
        });
        if arrived {
            self.disarm();
        }
        !arrived
    }

    fn disarm(&mut self) {
        if !mem::take(&mut self.armed) {
            return;
        }
        self.table.polled_rings(|rings| {
            rings.rx.disarm();
            rings.tx.disarm();
        });
        // Whatever ended the sleep is most likely a socket's.
        self.patience = 0;
    }
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
