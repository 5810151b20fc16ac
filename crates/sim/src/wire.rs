//! The simulated network between the hosts of a world.
//!
//! ```text
//!  turn of host a                                                  turn of host b
//!  Port(a).send ─► fate drawn ─► in flight, by time ─► inbox(b) ─► Port(b).recv_burst
//! ```
//!
//! The wire owns every queue. A host accesses it through a [`Port`]. There are two kinds of wire. A
//! lossy wire is like kernel UDP: a host keeps its address across restarts, and datagrams in flight
//! when its process dies are still delivered, perhaps to the next process. A lossless wire is like
//! shared memory: a bounded FIFO ring for each direction of each pair, and an address that dies
//! with its process.
//!
//! Always: a datagram is delivered only to its destination. A lossless wire loses no datagram
//! between two live processes, and returns [`Sent::Full`] if and only if the ring is full.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use sprat_proto::datagrams::{BURST, LeftDatagram, PaddedHeader, Sent};
use sprat_proto::fault::Fault;
use sprat_proto::time::{MS, US};
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::{Addr, Datagrams, Instant, Rng, TimedDatagrams};

use crate::queue::Queue;

/// The number of a host in its simulated world.
pub type HostId = usize;

/// The options of a simulated wire.
#[derive(Clone, Debug)]
pub struct Options {
    /// The wire is lossless, like shared memory; otherwise lossy, like UDP.
    pub lossless: bool,
    /// The minimum delay from one host to another on the wire, in nanoseconds.
    pub delay_ns: u64,
    /// The maximum jitter added to the wire's delay, in nanoseconds.
    pub jitter_ns: u64,
    /// The faults of the simulated wire, if it is lossy.
    pub fault: Fault,
    /// The largest datagram that the wire carries, in bytes.
    pub max_payload: usize,
    /// The capacity in datagrams of a host's inbox (lossy) or of a ring (lossless).
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
    /// Returns the options of a simulated wire of shared-memory rings.
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

/// Counters of a simulated wire, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Datagrams that hosts sent on the simulated wire.
    pub sent: u64,
    /// Datagrams delivered to an inbox of the simulated wire, duplicates included.
    pub delivered: u64,
    /// Datagrams of the simulated wire lost by its faults.
    pub dropped: u64,
    /// Datagrams of the simulated wire lost to a partition.
    pub cut: u64,
    /// Datagrams of the simulated wire lost to a full inbox.
    pub overflowed: u64,
    /// Datagrams of the simulated wire lost because no process had the address.
    pub unreachable: u64,
    /// Datagrams refused with [`Sent::Full`], because the ring was full.
    pub full: u64,
}

/// The simulated network. A clone is the same network.
#[derive(Clone, Debug)]
pub struct Wire(Rc<RefCell<State>>);

/// The state of a simulated network.
#[derive(Debug)]
struct State {
    options: Options,
    rng: Rng,
    now: Instant,
    hosts: Vec<Host>,
    in_flight: Queue<Flight>,
    /// The pairs of hosts (from, to) between which a partition stops delivery.
    cut: BTreeSet<(HostId, HostId)>,
    /// The rings of a lossless wire, by the numbers of the processes (from, to).
    rings: BTreeMap<(u64, u64), Ring>,
    processes: u64,
    count: Count,
    trace: u64,
}

#[derive(Debug, Default)]
struct Host {
    /// The number of the process that lives at the host; none while the host is down.
    process: Option<u64>,
    inbox: VecDeque<Received>,
    gone: VecDeque<Addr>,
}

#[derive(Debug)]
struct Received {
    from: Addr,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Ring {
    used: usize,
    last: Instant,
    /// True if the ring's receiver got or will get the event that the sender is gone.
    closed: bool,
}

#[derive(Debug)]
enum Flight {
    Datagram { from: Addr, to: Addr, bytes: Vec<u8> },
    Gone { from: Addr, to: Addr },
}

impl Wire {
    /// Makes a simulated wire without hosts.
    #[must_use]
    pub fn new(options: Options, rng: Rng) -> Self {
        Self(Rc::new(RefCell::new(State {
            options,
            rng,
            now: Instant::ZERO,
            hosts: Vec::new(),
            in_flight: Queue::default(),
            cut: BTreeSet::new(),
            rings: BTreeMap::new(),
            processes: 0,
            count: Count::default(),
            trace: 0,
        })))
    }

    /// Adds a host to the wire, which is down, and returns its number.
    pub fn host(&mut self) -> HostId {
        let mut state = self.0.borrow_mut();
        state.hosts.push(Host::default());
        state.hosts.len() - 1
    }

    /// Starts a process at `host` of the wire and returns its address.
    pub fn up(&mut self, host: HostId) -> Addr {
        self.0.borrow_mut().up(host)
    }

    /// Ends the process at `host`, and drops the datagrams in its inbox.
    pub fn down(&mut self, host: HostId) {
        self.0.borrow_mut().down(host);
    }

    /// Returns the address of the process at `host`. On a lossy wire it is a fixed one. On a
    /// lossless wire it is that of the process (none while the host is down).
    #[must_use]
    pub fn addr(&self, host: HostId) -> Option<Addr> {
        self.0.borrow().addr(host)
    }

    /// Returns the driver of `host` on the wire, and advances the wire's time to `now`.
    pub fn port(&mut self, host: HostId, now: Instant) -> Port {
        let mut state = self.0.borrow_mut();
        state.now = state.now.max(now);
        Port { wire: self.clone(), host, burst: Vec::new() }
    }

    /// Returns the time of the wire's next delivery.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.0.borrow().in_flight.next()
    }

    /// Delivers the wire's next datagram or event. Returns the host that received it, if any.
    pub fn deliver(&mut self) -> Option<HostId> {
        self.0.borrow_mut().deliver()
    }

    /// Stops the wire's delivery from host `from` to host `to`, or restores it if `open`. A
    /// lossless wire is never cut.
    pub fn cut(&mut self, from: HostId, to: HostId, open: bool) {
        let mut state = self.0.borrow_mut();
        if open {
            state.cut.remove(&(from, to));
        } else if !state.options.lossless {
            state.cut.insert((from, to));
        }
    }

    /// Ends all partitions of the simulated network.
    pub fn heal(&mut self) {
        self.0.borrow_mut().cut.clear();
    }

    /// Sets the faults of all datagrams that hosts send on the wire from now on.
    pub fn set_fault(&mut self, fault: Fault) {
        self.0.borrow_mut().options.fault = fault;
    }

    /// Returns the counters of the simulated wire.
    #[must_use]
    pub fn count(&self) -> Count {
        self.0.borrow().count
    }

    /// Returns a hash of all deliveries on the wire so far: their times, hosts and bytes.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.borrow().trace
    }

    /// Returns true if the wire has a datagram or an event for `host` to receive.
    #[must_use]
    pub fn waiting(&self, host: HostId) -> bool {
        let state = self.0.borrow();
        !state.hosts[host].inbox.is_empty() || !state.hosts[host].gone.is_empty()
    }
}

impl State {
    fn up(&mut self, host: HostId) -> Addr {
        self.processes += 1;
        let state = &mut self.hosts[host];
        *state = Host { process: Some(self.processes), ..Host::default() };
        self.addr(host).unwrap_or(Addr::Local(0))
    }

    fn down(&mut self, host: HostId) {
        let Some(process) = self.hosts[host].process.take() else { return };
        self.hosts[host].inbox.clear();
        self.hosts[host].gone.clear();
        if !self.options.lossless {
            return;
        }
        let peers: BTreeSet<u64> = (self.rings.keys())
            .filter(|(from, to)| *from == process || *to == process)
            .map(|&(from, to)| if from == process { to } else { from })
            .collect();
        for peer in peers {
            self.close_ring(process, peer);
        }
    }

    fn close_ring(&mut self, dead: u64, peer: u64) {
        let delay_ns = self.delay();
        let ring = self.rings.entry((dead, peer)).or_default();
        if std::mem::replace(&mut ring.closed, true) {
            return;
        }
        ring.last = ring.last.max(self.now.after(delay_ns));
        let at = ring.last;
        self.in_flight.push(at, Flight::Gone { from: Addr::Local(dead), to: Addr::Local(peer) });
    }

    fn addr(&self, host: HostId) -> Option<Addr> {
        if self.options.lossless {
            return self.hosts.get(host)?.process.map(Addr::Local);
        }
        let ip = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + host as u32);
        Some(Addr::Net(SocketAddr::from((ip, 11_000 + host as u16))))
    }

    fn host_at(&self, addr: Addr) -> Option<HostId> {
        match addr {
            Addr::Local(process) => self.hosts.iter().position(|h| h.process == Some(process)),
            Addr::Net(net) => {
                let host = usize::from(net.port()).checked_sub(11_000)?;
                (host < self.hosts.len() && self.addr(host) == Some(addr)).then_some(host)
            }
        }
    }

    fn deliver(&mut self) -> Option<HostId> {
        let (at, flight) = self.in_flight.pop()?;
        self.now = self.now.max(at);
        match flight {
            Flight::Gone { from, to } => {
                let host = self.host_at(to)?;
                self.hosts[host].gone.push_back(from);
                Some(host)
            }
            Flight::Datagram { from, to, bytes } => {
                let host = self.host_at(to).filter(|&h| self.hosts[h].process.is_some());
                let Some(host) = host else {
                    self.count.unreachable += 1;
                    return None;
                };
                if !self.options.lossless && self.hosts[host].inbox.len() >= self.options.room {
                    self.count.overflowed += 1;
                    return None;
                }
                self.count.delivered += 1;
                self.trace(at.as_ns() ^ (host as u64) << 56, &bytes);
                self.hosts[host].inbox.push_back(Received { from, bytes });
                Some(host)
            }
        }
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
            self.in_flight.push(at, Flight::Datagram { from, to, bytes });
        }
        Sent::Yes
    }

    fn send_ring(&mut self, from: Addr, to: Addr, bytes: Vec<u8>) -> Sent {
        let (Addr::Local(a), Addr::Local(b)) = (from, to) else { return Sent::Gone };
        if self.host_at(to).is_none() {
            // The peer ended before the first datagram, so this side got no event yet.
            self.close_ring(b, a);
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
        self.in_flight.push(at, Flight::Datagram { from, to, bytes });
        Sent::Yes
    }

    fn take(&mut self, host: HostId) -> Option<Received> {
        let received = self.hosts[host].inbox.pop_front()?;
        if let (Addr::Local(from), Some(to)) = (received.from, self.hosts[host].process)
            && let Some(ring) = self.rings.get_mut(&(from, to))
        {
            ring.used -= 1;
        }
        Some(received)
    }
}

/// The driver of a simulated host: its process's access to the wire.
#[derive(Debug)]
pub struct Port {
    wire: Wire,
    host: HostId,
    burst: Vec<Received>,
}

impl Port {
    /// Returns the address of the process that lives at `host`.
    #[must_use]
    pub fn resolve(&self, host: HostId) -> Option<Addr> {
        self.wire.addr(host)
    }

    /// Returns an address of the wire at which no process ever lives.
    #[must_use]
    pub fn nowhere(&self) -> Addr {
        if self.lossless() {
            return Addr::Local(u64::MAX);
        }
        Addr::Net(SocketAddr::from((Ipv4Addr::new(10, 255, 255, 254), 9)))
    }
}

impl Datagrams for Port {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        let mut state = self.wire.0.borrow_mut();
        while self.burst.len() < BURST
            && let Some(received) = state.take(self.host)
        {
            self.burst.push(received);
        }
        self.burst.len()
    }

    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        (self.burst[i].from, &self.burst[i].bytes)
    }

    fn left(&self, _: usize) -> Option<LeftDatagram<'_>> {
        None
    }

    fn append_left(&self, _: usize, _: usize, _: &mut Vec<u8>) {}

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.wire.0.borrow_mut().send(self.host, to, parts)
    }

    fn send_short(&mut self, to: Addr, header: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[header, body])
    }

    fn flush(&mut self) {}

    fn gone(&mut self) -> Option<Addr> {
        // The receiver reads the datagrams of a dead peer before the event of its end.
        let mut state = self.wire.0.borrow_mut();
        let host = &mut state.hosts[self.host];
        if host.inbox.is_empty() { host.gone.pop_front() } else { None }
    }

    fn max_payload(&self) -> usize {
        self.wire.0.borrow().options.max_payload
    }

    fn max_loopback_payload(&self) -> usize {
        self.max_payload()
    }

    fn lossless(&self) -> bool {
        self.wire.0.borrow().options.lossless
    }

    fn intact(&self) -> bool {
        self.lossless()
    }
}

impl TimedDatagrams for Port {
    fn set_now(&mut self, _: Instant) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _: Instant) {}

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[cfg(test)]
mod tests;
