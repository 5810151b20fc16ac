//! The network between the hosts of a world: what is sent arrives late, doubled, damaged, out of order or never, as the
//! seed says.
//!
//! ```text
//!  turn of host a:  Port(a).send ─► fate drawn ─► flights, by arrival ─► inbox(b) ─► Port(b).recv_burst  :turn of host b
//! ```
//!
//! The wire owns every queue; a host sees it through a [`Port`], which lives for one turn. There are two kinds of wire:
//! a lossy one (kernel UDP: a host keeps its address across restarts, and what is on the way when it dies still
//! arrives, perhaps at its next life) and a lossless one (shared memory: a bounded ring for each direction of each
//! pair, first in first out, and a life's address dies with it).
//!
//! What always holds: a datagram arrives only at the address that it was sent to; on a lossless wire none is lost between
//! two processes that both live, and [`Sent::Full`] is said exactly while the ring is full.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use sprat_proto::datagrams::{BURST, PaddedHeader, Sent};
use sprat_proto::fault::Fault;
use sprat_proto::time::{MS, US};
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::{Addr, Datagrams, Instant, Rng};

use crate::queue::Queue;

/// The number of a host in its world.
pub type HostId = usize;

/// What the network is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shared memory rather than UDP.
    pub lossless: bool,
    /// The shortest way from one host to another, in nanoseconds.
    pub delay_ns: u64,
    /// How much longer it may be, in nanoseconds.
    pub jitter_ns: u64,
    /// What else may happen on a lossy wire.
    pub fault: Fault,
    /// The largest datagram, in bytes.
    pub max_payload: usize,
    /// Datagrams that a host's inbox (lossy) or the ring between two hosts (lossless) holds.
    pub room: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lossless: false,
            delay_ns: 3 * US,
            jitter_ns: 2 * US,
            fault: Fault { reorder_ns: MS, ..Fault::default() },
            max_payload: 1472,
            room: 1024,
        }
    }
}

impl Options {
    /// A wire of shared-memory rings.
    #[must_use]
    pub fn lossless() -> Self {
        Self {
            lossless: true,
            delay_ns: 200,
            jitter_ns: 300,
            max_payload: 16 << 10,
            room: 64,
            ..Self::default()
        }
    }
}

/// What the wire has done, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Given to the wire.
    pub sent: u64,
    /// Put into an inbox, copies included.
    pub delivered: u64,
    /// Lost by the seed's will.
    pub dropped: u64,
    /// Lost to a partition.
    pub cut: u64,
    /// Lost to a full inbox.
    pub overflowed: u64,
    /// Lost because nobody lived at the address.
    pub nobody: u64,
    /// Refused with [`Sent::Full`].
    pub full: u64,
}

/// The network.
#[derive(Debug)]
pub struct Wire {
    options: Options,
    rng: Rng,
    now: Instant,
    hosts: Vec<Host>,
    flights: Queue<Flight>,
    /// Pairs (from, to) between which nothing passes.
    cut: BTreeSet<(HostId, HostId)>,
    /// The rings of a lossless wire, by the lives (from, to).
    rings: BTreeMap<(u64, u64), Ring>,
    lives: u64,
    count: Count,
    trace: u64,
}

#[derive(Debug, Default)]
struct Host {
    /// Which life it is in; none while it is down.
    life: Option<u64>,
    inbox: VecDeque<Arrived>,
    gone: VecDeque<Addr>,
}

#[derive(Debug)]
struct Arrived {
    from: Addr,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Ring {
    used: usize,
    last: Instant,
    /// The receiver has been told, or will be told, that the sender is gone.
    closed: bool,
}

#[derive(Debug)]
enum Flight {
    Datagram { from: Addr, to: Addr, bytes: Vec<u8> },
    Gone { from: Addr, to: Addr },
}

impl Wire {
    /// A wire without hosts.
    #[must_use]
    pub fn new(options: Options, rng: Rng) -> Self {
        Self {
            options,
            rng,
            now: Instant::ZERO,
            hosts: Vec::new(),
            flights: Queue::default(),
            cut: BTreeSet::new(),
            rings: BTreeMap::new(),
            lives: 0,
            count: Count::default(),
            trace: 0,
        }
    }

    /// One more host, down.
    pub fn host(&mut self) -> HostId {
        self.hosts.push(Host::default());
        self.hosts.len() - 1
    }

    /// A process begins to live at `host`; its address.
    pub fn up(&mut self, host: HostId) -> Addr {
        self.lives += 1;
        let state = &mut self.hosts[host];
        *state = Host { life: Some(self.lives), ..Host::default() };
        self.addr(host).unwrap_or(Addr::Local(0))
    }

    /// The process at `host` dies, and with it everything that it has not taken out of its inbox.
    pub fn down(&mut self, host: HostId) {
        let Some(life) = self.hosts[host].life.take() else { return };
        self.hosts[host].inbox.clear();
        self.hosts[host].gone.clear();
        if !self.options.lossless {
            return;
        }
        let peers: BTreeSet<u64> = (self.rings.keys())
            .filter(|(from, to)| *from == life || *to == life)
            .map(|&(from, to)| if from == life { to } else { from })
            .collect();
        for peer in peers {
            self.hang_up(life, peer);
        }
    }

    fn hang_up(&mut self, dead: u64, peer: u64) {
        let delay_ns = self.delay();
        let ring = self.rings.entry((dead, peer)).or_default();
        if std::mem::replace(&mut ring.closed, true) {
            return;
        }
        ring.last = ring.last.max(self.now.after(delay_ns));
        let at = ring.last;
        self.flights.push(at, Flight::Gone { from: Addr::Local(dead), to: Addr::Local(peer) });
    }

    /// Where the process at `host` is reached: a fixed address on a lossy wire, that of its life (none while it is down)
    /// on a lossless one.
    #[must_use]
    pub fn addr(&self, host: HostId) -> Option<Addr> {
        if self.options.lossless {
            return self.hosts.get(host)?.life.map(Addr::Local);
        }
        let ip = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + host as u32);
        Some(Addr::Net(SocketAddr::from((ip, 11_000 + host as u16))))
    }

    fn host_at(&self, addr: Addr) -> Option<HostId> {
        match addr {
            Addr::Local(life) => self.hosts.iter().position(|h| h.life == Some(life)),
            Addr::Net(net) => {
                let host = usize::from(net.port()).checked_sub(11_000)?;
                (host < self.hosts.len() && self.addr(host) == Some(addr)).then_some(host)
            }
        }
    }

    /// What `host` sees of the wire in the turn at `now`.
    pub fn port(&mut self, host: HostId, now: Instant) -> Port<'_> {
        self.now = self.now.max(now);
        Port { wire: self, host, burst: Vec::new() }
    }

    /// When the next datagram arrives.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.flights.next()
    }

    /// Lets the next datagram arrive; the host that has something to receive now, if any.
    pub fn deliver(&mut self) -> Option<HostId> {
        let (at, flight) = self.flights.pop()?;
        self.now = self.now.max(at);
        match flight {
            Flight::Gone { from, to } => {
                let host = self.host_at(to)?;
                self.hosts[host].gone.push_back(from);
                Some(host)
            }
            Flight::Datagram { from, to, bytes } => {
                let host = self.host_at(to).filter(|&h| self.hosts[h].life.is_some());
                let Some(host) = host else {
                    self.count.nobody += 1;
                    return None;
                };
                if !self.options.lossless && self.hosts[host].inbox.len() >= self.options.room {
                    self.count.overflowed += 1;
                    return None;
                }
                self.count.delivered += 1;
                self.trace(at.as_ns() ^ (host as u64) << 56, &bytes);
                self.hosts[host].inbox.push_back(Arrived { from, bytes });
                Some(host)
            }
        }
    }

    /// Cuts (or, with `open`, restores) the way from `from` to `to`. A lossless wire is not cut.
    pub fn cut(&mut self, from: HostId, to: HostId, open: bool) {
        if open {
            self.cut.remove(&(from, to));
        } else if !self.options.lossless {
            self.cut.insert((from, to));
        }
    }

    /// Restores every way.
    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// From now on, this is what goes wrong.
    pub fn set_fault(&mut self, fault: Fault) {
        self.options.fault = fault;
    }

    /// What it has done so far.
    #[must_use]
    pub fn count(&self) -> Count {
        self.count
    }

    /// A number that depends on every delivery so far: its time, place and bytes.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace
    }

    fn trace(&mut self, at: u64, bytes: &[u8]) {
        let mixed = (self.trace ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        self.trace = mixed ^ u64::from(crc32c(bytes.len() as u32, bytes));
    }

    fn delay(&mut self) -> u64 {
        self.options.delay_ns + self.rng.below(self.options.jitter_ns + 1)
    }

    fn send(&mut self, host: HostId, to: Addr, parts: &[&[u8]]) -> Sent {
        let bytes = parts.concat();
        assert!(bytes.len() <= self.options.max_payload, "a datagram of {} bytes", bytes.len());
        let from = self.addr(host).unwrap_or(Addr::Local(0));
        if self.options.lossless {
            return self.send_ring(from, to, bytes);
        }
        self.count.sent += 1;
        if self.host_at(to).is_none_or(|to| self.cut.contains(&(host, to))) {
            self.count.cut += 1;
            return Sent::Yes;
        }
        let fate = self.options.fault.fate(&mut self.rng, bytes.len());
        if fate.copies == 0 {
            self.count.dropped += 1;
        }
        for copy in 0..usize::from(fate.copies) {
            let mut bytes = bytes.clone();
            if copy == 0 {
                if let Some(bit) = fate.flip_bit {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                if let Some(len) = fate.cut_to {
                    bytes.truncate(len);
                }
            }
            let at = self.now.after(self.delay() + fate.delay_ns[copy]);
            self.flights.push(at, Flight::Datagram { from, to, bytes });
        }
        Sent::Yes
    }

    fn send_ring(&mut self, from: Addr, to: Addr, bytes: Vec<u8>) -> Sent {
        let (Addr::Local(a), Addr::Local(b)) = (from, to) else { return Sent::Gone };
        if self.host_at(to).is_none() {
            // A peer whose life ended before the first word: nobody has told this side yet.
            self.hang_up(b, a);
            return Sent::Gone;
        }
        let delay_ns = self.delay();
        let ring = self.rings.entry((a, b)).or_default();
        if ring.used >= self.options.room {
            self.count.full += 1;
            return Sent::Full;
        }
        ring.used += 1;
        ring.last = ring.last.max(self.now.after(delay_ns));
        self.count.sent += 1;
        let at = ring.last;
        self.flights.push(at, Flight::Datagram { from, to, bytes });
        Sent::Yes
    }

    fn take(&mut self, host: HostId) -> Option<Arrived> {
        let arrived = self.hosts[host].inbox.pop_front()?;
        if let (Addr::Local(from), Some(to)) = (arrived.from, self.hosts[host].life)
            && let Some(ring) = self.rings.get_mut(&(from, to))
        {
            ring.used -= 1;
        }
        Some(arrived)
    }

    /// Whether `host` has something to receive.
    #[must_use]
    pub fn waiting(&self, host: HostId) -> bool {
        !self.hosts[host].inbox.is_empty() || !self.hosts[host].gone.is_empty()
    }
}

/// One host's driver, for one turn.
#[derive(Debug)]
pub struct Port<'w> {
    wire: &'w mut Wire,
    host: HostId,
    burst: Vec<Arrived>,
}

impl Port<'_> {
    /// The address of the process that lives at `host`.
    #[must_use]
    pub fn resolve(&self, host: HostId) -> Option<Addr> {
        self.wire.addr(host)
    }
}

impl Datagrams for Port<'_> {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        while self.burst.len() < BURST
            && let Some(arrived) = self.wire.take(self.host)
        {
            self.burst.push(arrived);
        }
        self.burst.len()
    }

    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        (self.burst[i].from, &self.burst[i].bytes)
    }

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.wire.send(self.host, to, parts)
    }

    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[head, body])
    }

    fn flush(&mut self) {}

    fn gone(&mut self) -> Option<Addr> {
        // What the dead peer had put into the ring is read first.
        let state = &mut self.wire.hosts[self.host];
        if state.inbox.is_empty() { state.gone.pop_front() } else { None }
    }

    fn max_payload(&self) -> usize {
        self.wire.options.max_payload
    }

    fn lossless(&self) -> bool {
        self.wire.options.lossless
    }

    #[inline]
    fn intact(&self) -> bool {
        self.lossless()
    }
}

#[cfg(test)]
mod tests;
