//! Tests of RPC endpoints on a model of a wire in virtual time, whose faults follow from a seed.

mod basic;
mod bulk;
mod faults;
mod limits;
mod lossless;
mod numbers;
mod recovery;
mod single_packet;
mod slow_senders;
mod unknown_sessions;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use super::{
    CloseReason, Config, Endpoint, Event, Message, RpcError, RpcId, ServerRpc, SessionId, Slice,
    Slices, Stats,
};
use crate::datagrams::{BURST, LeftDatagram, PaddedHeader, Sent};
use crate::fault::Fault;
use crate::time::US;
use crate::tracepoint::NoProbe;
use crate::wire::checksum::{Crc32c, crc32c};
use crate::wire::rpc::{CRC, HEADER, Kind, Packet, crc_start, parse};
use crate::{Addr, Datagrams, Instant, Rng};

/// The number of bytes that a port shows of a datagram that it leaves in the memory of the driver.
const LEFT_HEAD: usize = 64;

/// The state of the model network that all ports share.
struct Shared {
    now: Instant,
    rng: Rng,
    fault: Fault,
    latency_ns: u64,
    /// The time in picoseconds that a host's wire takes for a byte; 0 for an instant wire.
    byte_ps: u64,
    /// The time until which each host's wire is busy with the bytes that the host sent.
    busy: BTreeMap<u64, Instant>,
    lossless: bool,
    /// The length of datagrams from which on intact ports leave them in the memory of the driver.
    leave_from: usize,
    max_payload: usize,
    /// The number of datagrams that a lossless port holds before it pushes back.
    capacity: usize,
    order: u64,
    in_flight: BTreeMap<(Instant, u64), (Addr, Addr, Vec<u8>)>,
    inboxes: BTreeMap<u64, VecDeque<(Addr, Vec<u8>)>>,
    gone: Vec<Addr>,
    /// True if every port says that it is full, lossy ones too.
    full: bool,
    /// The number of calls that flushed a port of the network.
    flushes: u32,
    /// Every datagram that a host sent, with its addresses, if the test records them.
    trace: Option<Vec<(Addr, Addr, Vec<u8>)>>,
}

fn local(addr: Addr) -> u64 {
    match addr {
        Addr::Local(n) => n,
        Addr::Net(_) => unreachable!("this wire has local addresses"),
    }
}

/// A port: a host's driver, its end of the model wire.
struct Port {
    shared: Rc<RefCell<Shared>>,
    addr: Addr,
    /// True if the port claims to damage no packets; `None` if that follows from its loss of
    /// packets.
    intact: Option<bool>,
    burst: Vec<(Addr, Vec<u8>)>,
    gone_seen: usize,
}

impl Datagrams for Port {
    fn recv_burst(&mut self) -> usize {
        let mut shared = self.shared.borrow_mut();
        let inbox = shared.inboxes.entry(local(self.addr)).or_default();
        let n = inbox.len().min(BURST);
        self.burst = inbox.drain(..n).collect();
        n
    }

    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        let (from, bytes) = &self.burst[i];
        (*from, if self.left(i).is_some() { &[] } else { bytes })
    }

    fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        let (from, bytes) = (self.shared.borrow().leave_from, &self.burst[i].1);
        let is_left = self.intact() && bytes.len() > from;
        is_left.then(|| LeftDatagram { head: &bytes[..LEFT_HEAD], len: bytes.len() })
    }

    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        assert!(from >= HEADER, "the header is read from where the peer can write it");
        bytes.extend_from_slice(&self.burst[i].1[from..]);
    }

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        let mut shared = self.shared.borrow_mut();
        let mut bytes = parts.concat();
        assert!(bytes.len() <= shared.max_payload && parts.len() <= crate::datagrams::MAX_PARTS);
        if shared.gone.contains(&to) {
            return Sent::Gone;
        }
        let waiting = || {
            shared.inboxes.get(&local(to)).map_or(0, VecDeque::len)
                + shared.in_flight.values().filter(|d| d.1 == to).count()
        };
        if shared.full || shared.lossless && waiting() >= shared.capacity {
            return Sent::Full;
        }
        if let Some(trace) = &mut shared.trace {
            trace.push((self.addr, to, bytes.clone()));
        }
        let fault = shared.fault;
        let fate = fault.fate(&mut shared.rng, bytes.len());
        let now = shared.now;
        let wire_ns = bytes.len() as u64 * shared.byte_ps / 1000;
        let busy = shared.busy.entry(local(self.addr)).or_insert(now);
        *busy = (*busy).max(now).after(wire_ns);
        let leaves = *busy;
        for copy in 0..usize::from(fate.copies) {
            shared.order += 1;
            let at = leaves.after(shared.latency_ns + fate.delay_ns[copy]);
            let key = (at, shared.order);
            let mut copied = bytes.clone();
            if copy == 0 {
                if let Some(bit) = fate.flip_bit {
                    copied[bit / 8] ^= 1 << (bit % 8);
                }
                copied.truncate(fate.cut_to.unwrap_or(usize::MAX));
            }
            shared.in_flight.insert(key, (self.addr, to, copied));
        }
        bytes.clear();
        Sent::Yes
    }

    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[head, body])
    }

    fn flush(&mut self) {
        self.shared.borrow_mut().flushes += 1;
    }

    fn gone(&mut self) -> Option<Addr> {
        let addr = self.shared.borrow().gone.get(self.gone_seen).copied();
        self.gone_seen += usize::from(addr.is_some());
        addr
    }

    fn max_payload(&self) -> usize {
        self.shared.borrow().max_payload
    }

    fn max_loopback_payload(&self) -> usize {
        // Only addresses of an IP network can be loopback's.
        usize::MAX
    }

    fn lossless(&self) -> bool {
        self.shared.borrow().lossless
    }

    fn intact(&self) -> bool {
        self.intact.unwrap_or_else(|| self.lossless())
    }
}

/// An event that the application of a host received from its endpoint.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Seen {
    Request(ServerRpc, Vec<u8>, Instant),
    Response(RpcId, u64, Vec<u8>),
    Failed(RpcId, u64, RpcError),
    Closed(SessionId, CloseReason),
}

/// A test's memory for slices: the bytes of segment `n` follow from their offsets.
struct Memory(Vec<u8>);

impl Slices for Memory {
    fn bytes(&self, slice: Slice) -> &[u8] {
        &self.0[slice.offset as usize..(slice.offset + slice.len) as usize]
    }
}

/// A host: its endpoint, its end of the wire, and the events that its application received.
struct Host {
    endpoint: Endpoint,
    port: Port,
    memory: Memory,
    /// True if the host's application answers each request at once with the request's bytes.
    echo: bool,
    /// The requests that the host's application calls idempotent, of those that it answers at once.
    is_idempotent: fn(&[u8]) -> bool,
    seen: Vec<Seen>,
    released: Vec<Slice>,
    up: bool,
}

impl Host {
    fn turn(&mut self, now: Instant) -> bool {
        if !self.up {
            return false;
        }
        let mut busy = self.endpoint.input(now, &mut self.port) > 0;
        self.drain(now);
        if self.endpoint.deadline().is_some_and(|at| at <= now) {
            self.endpoint.tick(now);
            self.drain(now);
        }
        busy |= self.endpoint.output(now, &self.memory, &mut self.port);
        self.drain(now);
        busy
    }

    fn drain(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.event(now, &self.port) {
            match event {
                Event::Request { rpc, payload, deadline } => {
                    let bytes = payload.into_vec();
                    if self.echo {
                        self.endpoint.reply_over(
                            now,
                            rpc,
                            &mut Message::from(bytes.clone()),
                            (self.is_idempotent)(&bytes),
                            &mut self.port,
                        );
                    }
                    self.seen.push(Seen::Request(rpc, bytes, deadline));
                }
                Event::Response { rpc, tag, payload } => {
                    self.seen.push(Seen::Response(rpc, tag, payload.into_vec()));
                }
                Event::Failed { rpc, tag, error } => self.seen.push(Seen::Failed(rpc, tag, error)),
                Event::Closed { session, reason } => self.seen.push(Seen::Closed(session, reason)),
            }
        }
        while let Some(slice) = self.endpoint.released() {
            self.released.push(slice);
        }
    }
}

/// Hosts on one wire, numbered from 0; host `n` has the address `Local(n)`.
struct Net {
    shared: Rc<RefCell<Shared>>,
    hosts: Vec<Host>,
    now: Instant,
    seed: u64,
}

impl Net {
    /// Makes a wire with 10 µs of latency that loses nothing until `fault` says so; host 0 is a
    /// server that echoes.
    fn new(seed: u64, hosts: usize, lossless: bool) -> Self {
        let shared = Rc::new(RefCell::new(Shared {
            now: Instant::ZERO,
            rng: Rng::seeded(seed),
            fault: Fault::default(),
            latency_ns: 10 * US,
            byte_ps: 0,
            busy: BTreeMap::new(),
            lossless,
            leave_from: usize::MAX,
            max_payload: if lossless { 8192 } else { 1472 },
            capacity: 64,
            order: 0,
            in_flight: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            gone: Vec::new(),
            full: false,
            flushes: 0,
            trace: None,
        }));
        let mut net = Self { shared, hosts: Vec::new(), now: Instant::from_ns(1), seed };
        for n in 0..hosts {
            net.add(Config { serve: n == 0, ..Config::default() });
        }
        net
    }

    fn add(&mut self, config: Config) -> usize {
        let n = self.hosts.len();
        let host = self.host(n, config);
        self.hosts.push(host);
        n
    }

    fn host(&self, n: usize, config: Config) -> Host {
        let rng = Rng::seeded(self.seed ^ (n as u64 + 1) << 32 ^ self.now.as_ns() << 8);
        Host {
            endpoint: Endpoint::new(config, rng, NoProbe),
            port: Port {
                shared: Rc::clone(&self.shared),
                addr: Addr::Local(n as u64),
                intact: None,
                burst: Vec::new(),
                gone_seen: 0,
            },
            memory: Memory((0..1 << 16).map(|i: u32| ((i * 7) >> 3) as u8).collect()),
            echo: n == 0,
            is_idempotent: |_| false,
            seen: Vec::new(),
            released: Vec::new(),
            up: true,
        }
    }

    /// Replaces the endpoint of host `n` by a new one, as after a crash.
    fn restart(&mut self, n: usize, config: Config) {
        let host = self.host(n, config);
        self.hosts[n] = host;
    }

    fn fault(&self, fault: Fault) {
        self.shared.borrow_mut().fault = fault;
    }

    /// Lets every host take turns until nothing more happens at this instant.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut busy = false;
            {
                let mut shared = self.shared.borrow_mut();
                shared.now = self.now;
                while let Some(entry) = shared.in_flight.first_entry() {
                    if entry.key().0 > self.now {
                        break;
                    }
                    let (from, to, bytes) = entry.remove();
                    shared.inboxes.entry(local(to)).or_default().push_back((from, bytes));
                }
            }
            for host in &mut self.hosts {
                busy |= host.turn(self.now);
            }
            let arrived =
                self.shared.borrow().in_flight.keys().next().is_some_and(|k| k.0 <= self.now);
            if !busy && !arrived {
                return;
            }
        }
        panic!("seed {}: no rest at {:?}", self.seed, self.now);
    }

    /// Moves virtual time to the next instant at which something happens; false if nothing ever
    /// will.
    fn step(&mut self) -> bool {
        self.settle();
        let wire = self.shared.borrow().in_flight.keys().next().map(|k| k.0);
        let timers = self.hosts.iter().filter(|h| h.up).filter_map(|h| h.endpoint.deadline());
        let Some(next) = timers.chain(wire).min() else { return false };
        self.now = next.max(self.now.after(1));
        true
    }

    /// Runs the network until `done` or for `limit_ns` of virtual time; true if `done`.
    fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now.after(limit_ns);
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            if !self.step() || self.now > end {
                return false;
            }
        }
    }

    fn connect(&mut self, from: usize, to: usize) -> SessionId {
        self.hosts[from].endpoint.connect(self.now, Addr::Local(to as u64))
    }

    fn request(
        &mut self,
        from: usize,
        session: SessionId,
        tag: u64,
        message: impl Into<Message>,
    ) -> RpcId {
        self.request_by(from, session, tag, message, Instant::NEVER)
    }

    fn request_by(
        &mut self,
        from: usize,
        session: SessionId,
        tag: u64,
        message: impl Into<Message>,
        deadline: Instant,
    ) -> RpcId {
        let Host { endpoint, port, .. } = &mut self.hosts[from];
        let rpc =
            endpoint.request_over(self.now, session, tag, &mut message.into(), deadline, port);
        rpc.expect("the session takes it")
    }

    /// Answers a request of host `from`, by the fast path if possible.
    fn reply(&mut self, from: usize, rpc: ServerRpc, message: impl Into<Message>) {
        let Host { endpoint, port, .. } = &mut self.hosts[from];
        endpoint.reply_over(self.now, rpc, &mut message.into(), false, port);
    }

    /// Puts a datagram on the wire as if `from` had sent it.
    fn inject(&self, from: Addr, to: usize, datagram: Vec<u8>) {
        let mut shared = self.shared.borrow_mut();
        shared.order += 1;
        let key = (self.now, shared.order);
        shared.in_flight.insert(key, (from, Addr::Local(to as u64), datagram));
    }

    /// Makes a datagram of a packet and its body, with its checksum if the wire has one.
    fn datagram(&self, packet: &Packet, body: &[u8]) -> Vec<u8> {
        let mut bytes = [&packet.head()[..], body].concat();
        if !self.shared.borrow().lossless {
            let crc = crc32c(crc_start(bytes.len() + CRC), &bytes);
            bytes.extend_from_slice(&crc.to_be_bytes());
        }
        bytes
    }

    /// Begins to record every datagram sent.
    fn record(&self) {
        self.shared.borrow_mut().trace = Some(Vec::new());
    }

    /// The packets sent from host `from` to host `to` since the last call, or since the record
    /// began.
    fn sent(&self, from: usize, to: usize) -> Vec<(Packet, Vec<u8>)> {
        let mut shared = self.shared.borrow_mut();
        let crc = (!shared.lossless).then_some(crc32c as Crc32c);
        let trace = shared.trace.as_mut().expect("recording");
        let (mine, others) = core::mem::take(trace)
            .into_iter()
            .partition(|d| (d.0, d.1) == (Addr::Local(from as u64), Addr::Local(to as u64)));
        *trace = others;
        let mine: Vec<(Addr, Addr, Vec<u8>)> = mine;
        mine.iter()
            .map(|(_, _, bytes)| {
                let packet = parse(bytes, crc).expect("what an endpoint sends is a packet");
                (packet, packet.body(bytes).to_vec())
            })
            .collect()
    }

    /// The kinds of the packets sent from host `from` to host `to` since the last call, or since
    /// the record began.
    fn sent_kinds(&self, from: usize, to: usize) -> Vec<Kind> {
        self.sent(from, to).iter().map(|(packet, _)| packet.kind).collect()
    }

    fn stats(&self, n: usize) -> Stats {
        *self.hosts[n].endpoint.stats()
    }

    /// The events that host `n` saw since the last call.
    fn seen(&mut self, n: usize) -> Vec<Seen> {
        core::mem::take(&mut self.hosts[n].seen)
    }
}

/// Makes `len` bytes, each of which follows from `seed` and its offset.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 31) >> 7) as u8)
        .collect()
}
