//! Fuzzes the RPC transport's state machine: a client and a server in virtual time, and a wire that
//! obeys the input. The wire delivers, loses, doubles, reorders, replays and damages packets,
//! forges their fields under a right checksum, and delivers packets of a third host. The programs
//! request, reply, refuse, cancel, close and restart.
//!
//! Always holds: nothing panics; every request ends exactly once; every slice is released exactly
//! once, and is not read after that. Unless a packet is forged with a session's token, every
//! request also runs at most once, gets the right reply, and ends by itself as soon as the wire is
//! calm.

#![no_main]

use std::collections::{HashMap, HashSet, VecDeque};

use libfuzzer_sys::fuzz_target;
use sprat_proto::datagrams::{BURST, LeftDatagram, PaddedHeader, Sent};
use sprat_proto::rpc::{
    Config, Endpoint, Event, Message, RpcId, ServerRpc, SessionId, Slice, Slices,
};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::tracepoint::NoProbe;
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::wire::rpc::{CRC, HEADER, crc_start};
use sprat_proto::{Addr, Datagrams, Instant, Rng};

/// The most requests in one run of the fuzzer.
const REQUESTS: u64 = 64;
/// The number of sent packets that the fuzzer remembers, to forge or replay them.
const SEEN: usize = 32;
/// The offset and length in bytes of each field of an RPC packet's header (`wire::rpc`).
const FIELDS: [(usize, usize); 10] =
    [(0, 1), (1, 1), (2, 1), (3, 1), (4, 4), (8, 4), (12, 4), (16, 4), (20, 2), (22, 2)];

/// One end of the fuzzer's wire: a driver with the datagrams that have arrived and those to send.
#[derive(Default)]
struct Port {
    lossless: bool,
    inbox: VecDeque<(Addr, Vec<u8>)>,
    burst: Vec<(Addr, Vec<u8>)>,
    outbox: Vec<(Addr, Vec<u8>)>,
    /// The number of packets that the driver takes before it refuses one as full.
    room: Option<usize>,
    gone: Option<Addr>,
}

impl Datagrams for Port {
    fn recv_burst(&mut self) -> usize {
        let n = self.inbox.len().min(BURST);
        self.burst = self.inbox.drain(..n).collect();
        n
    }

    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        (self.burst[i].0, &self.burst[i].1)
    }

    fn left(&self, _: usize) -> Option<LeftDatagram<'_>> {
        None
    }

    fn append_left(&self, _: usize, _: usize, _: &mut Vec<u8>) {}

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        match &mut self.room {
            Some(0) => {
                self.room = None;
                return Sent::Full;
            }
            Some(room) => *room -= 1,
            None => {}
        }
        let bytes = parts.concat();
        assert!(bytes.len() <= self.max_payload());
        self.outbox.push((to, bytes));
        Sent::Yes
    }

    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.send(to, &[head, body])
    }

    fn flush(&mut self) {}

    fn gone(&mut self) -> Option<Addr> {
        self.gone.take()
    }

    fn max_payload(&self) -> usize {
        if self.lossless { 65_536 } else { 256 }
    }

    fn max_loopback_payload(&self) -> usize {
        self.max_payload()
    }

    fn lossless(&self) -> bool {
        self.lossless
    }

    #[inline]
    fn intact(&self) -> bool {
        self.lossless
    }
}

/// The memory of slices that a side of the fuzzer lends: each lent slice is a segment of its own,
/// and all have the same bytes.
struct Memory {
    bytes: Vec<u8>,
    lent: HashSet<u32>,
    next: u32,
}

impl Memory {
    fn new() -> Self {
        Self {
            bytes: (0..1 << 14).map(|i: u32| (i * 7 >> 3) as u8).collect(),
            lent: HashSet::new(),
            next: 0,
        }
    }

    fn lend(&mut self, len: usize) -> Slice {
        self.next += 1;
        self.lent.insert(self.next);
        Slice { segment: self.next, offset: 0, len: len as u32 }
    }

    fn take_back(&mut self, slice: Slice) {
        assert!(self.lent.remove(&slice.segment), "slice {} came back twice", slice.segment);
    }
}

impl Slices for Memory {
    fn bytes(&self, slice: Slice) -> &[u8] {
        assert!(
            self.lent.contains(&slice.segment),
            "slice {} is read after it came back",
            slice.segment
        );
        &self.bytes[slice.offset as usize..][..slice.len as usize]
    }
}

struct Side {
    endpoint: Endpoint,
    port: Port,
    memory: Memory,
    addr: Addr,
}

impl Side {
    fn new(n: u64, life: u64, lossless: bool) -> Self {
        let config = Config {
            serve: n == 1,
            queue_limit: 16,
            max_executing: 12,
            max_kept: 8,
            max_kept_bytes: 32 << 10,
            max_assembling_bytes: 32 << 10,
            idle_expiry_ns: 2 * SECOND,
            stale_request_ns: SECOND,
            unscheduled_bytes: 1 << 10,
            credit_bytes: 4 << 10,
            ..Config::default()
        };
        Self {
            endpoint: Endpoint::new(config, Rng::seeded(n | life << 8), NoProbe),
            port: Port { lossless, ..Port::default() },
            memory: Memory::new(),
            addr: Addr::Local(n),
        }
    }
}

/// A request that the fuzzer's client has made.
struct Asked {
    bytes: Vec<u8>,
    rpc: Option<RpcId>,
    ended: bool,
}

/// The fuzzer's world: a client (side 0), a server (side 1), and the packets between them.
struct World {
    now: Instant,
    lossless: bool,
    sides: [Side; 2],
    session: SessionId,
    wire: VecDeque<(usize, Vec<u8>)>,
    /// The last packets sent, with their receivers.
    seen: VecDeque<(usize, Vec<u8>)>,
    /// True if the fuzzer has sent a packet that only a peer can send.
    forged: bool,
    asked: Vec<Asked>,
    /// The requests that the server's program has not answered.
    executing: Vec<(ServerRpc, Vec<u8>)>,
    /// The number of times that the server executed each request, those of the third host included.
    executed: HashMap<Vec<u8>, u32>,
    lives: u64,
}

/// The number of bytes that the server appends to its reply to `request`, from its own memory.
fn appended(request: &[u8]) -> usize {
    request.get(15).map_or(0, |&n| usize::from(n) * 61 % 4096)
}

impl World {
    fn new(lossless: bool) -> Self {
        let mut sides = [Side::new(0, 0, lossless), Side::new(1, 0, lossless)];
        let now = Instant::from_ns(SECOND);
        let session = sides[0].endpoint.connect(now, Addr::Local(1));
        let (wire, seen, executed) = Default::default();
        let (asked, executing) = Default::default();
        Self {
            now,
            lossless,
            sides,
            session,
            wire,
            seen,
            forged: false,
            asked,
            executing,
            executed,
            lives: 0,
        }
    }

    // The programs.

    fn request(&mut self, how: u8, len: usize) {
        let tag = self.asked.len() as u64;
        if tag == REQUESTS {
            return;
        }
        let Side { endpoint, memory, .. } = &mut self.sides[0];
        let mut bytes = [Rng::seeded(tag).u64().to_be_bytes(), tag.to_be_bytes()].concat();
        bytes.resize(16 + len, tag as u8);
        let mut message = Message::from(bytes.clone());
        for n in 0..usize::from(how & 3) {
            let slice = memory.lend(1 + n * 300 + len / 2);
            bytes.extend(memory.bytes(slice));
            message.slices.push(slice);
        }
        let slices = message.slices.clone();
        let deadline = match how >> 2 & 3 {
            0 => Instant::NEVER,
            1 => self.now.after(MS),
            2 => self.now.after(100 * MS),
            _ => self.now.after(10 * SECOND),
        };
        let rpc = endpoint.request(self.now, self.session, tag, message, deadline).ok();
        if rpc.is_none() {
            slices.into_iter().for_each(|slice| memory.take_back(slice));
        }
        self.asked.push(Asked { bytes, rpc, ended: rpc.is_none() });
    }

    fn cancel(&mut self, n: usize) {
        if let Some(rpc) = self.asked.get(n % REQUESTS as usize).and_then(|asked| asked.rpc) {
            self.sides[0].endpoint.cancel(self.now, rpc);
        }
    }

    fn answer(&mut self, n: usize, refuse: bool) {
        if self.executing.is_empty() {
            return;
        }
        let (rpc, request) = self.executing.swap_remove(n % self.executing.len());
        let Side { endpoint, memory, .. } = &mut self.sides[1];
        if refuse {
            // It did not run, and may come again.
            self.executed.entry(request).and_modify(|times| *times -= 1);
            return endpoint.refuse(self.now, rpc, MS);
        }
        let len = appended(&request);
        let mut message = Message::from(request);
        if len > 0 {
            message.slices.push(memory.lend(len));
        }
        endpoint.reply(self.now, rpc, message);
    }

    /// Replaces the server by a new one, as if its process had restarted.
    fn restart(&mut self) {
        self.lives += 1;
        self.sides[1] = Side::new(1, self.lives, self.lossless);
        self.executing.clear();
        if self.lossless {
            self.wire.clear();
            self.sides[0].port.inbox.clear();
            self.sides[0].port.gone = Some(Addr::Local(1));
        }
    }

    fn events(&mut self, side: usize) {
        loop {
            let Side { endpoint, port, .. } = &mut self.sides[side];
            let Some(event) = endpoint.event(self.now, port) else { break };
            match event {
                Event::Request { rpc, payload, .. } => {
                    let payload = payload.into_vec();
                    *self.executed.entry(payload.clone()).or_default() += 1;
                    self.executing.push((rpc, payload));
                }
                Event::Response { rpc, tag, payload } => {
                    let bytes = payload.into_vec();
                    let request = self.ended(rpc, tag);
                    let (echo, rest) = bytes.split_at(request.len().min(bytes.len()));
                    let memory = &self.sides[1].memory.bytes;
                    let right = echo == request && rest == &memory[..appended(&request)];
                    assert!(right || self.forged, "request {tag} has the reply of another");
                }
                Event::Failed { rpc, tag, .. } => drop(self.ended(rpc, tag)),
                Event::Closed { session, .. } => {
                    assert_eq!(session, self.session);
                    self.session = endpoint.connect(self.now, Addr::Local(1));
                }
            }
        }
        let Side { endpoint, memory, .. } = &mut self.sides[side];
        while let Some(slice) = endpoint.released() {
            memory.take_back(slice);
        }
    }

    /// Records that a request of the client ended. Returns the bytes of the request.
    fn ended(&mut self, rpc: RpcId, tag: u64) -> Vec<u8> {
        let asked = &mut self.asked[tag as usize];
        assert_eq!(asked.rpc, Some(rpc));
        assert!(!asked.ended, "request {tag} ended twice");
        asked.ended = true;
        asked.bytes.clone()
    }

    // The wire.

    /// Runs one turn of the fuzzer's client and of its server.
    fn turn(&mut self) {
        for side in 0..2 {
            let Side { endpoint, port, .. } = &mut self.sides[side];
            endpoint.input(self.now, port);
            self.events(side);
            let endpoint = &mut self.sides[side].endpoint;
            if endpoint.deadline().is_some_and(|at| at <= self.now) {
                endpoint.tick(self.now);
            }
            self.events(side);
            let Side { endpoint, port, memory, .. } = &mut self.sides[side];
            endpoint.output(self.now, memory, port);
            let sent = std::mem::take(&mut port.outbox);
            self.events(side);
            // Packets to the third host are dropped.
            for (_, bytes) in sent.into_iter().filter(|(to, _)| *to == Addr::Local(1 - side as u64))
            {
                if self.seen.len() == SEEN {
                    self.seen.pop_front();
                }
                self.seen.push_back((1 - side, bytes.clone()));
                self.wire.push_back((1 - side, bytes));
            }
        }
    }

    fn deliver(&mut self, to: usize, bytes: Vec<u8>) {
        let from = self.sides[1 - to].addr;
        self.sides[to].port.inbox.push_back((from, bytes));
    }

    /// Delivers any bytes as a packet with a correct checksum, as if the peer or a third host had
    /// sent them.
    fn inject(&mut self, to: usize, as_peer: bool, bytes: &[u8]) {
        // The fuzzer sees what is compared: it knows tokens, and what our requests begin with.
        let copies = |asked: &Asked| bytes.windows(16).any(|window| window == &asked.bytes[..16]);
        self.forged |= as_peer || self.asked.iter().any(copies);
        let bytes = self.sealed(bytes.to_vec());
        if as_peer {
            return self.deliver(to, bytes);
        }
        self.sides[to].port.inbox.push_back((Addr::Local(2), bytes));
    }

    fn sealed(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if !self.lossless {
            let crc = crc32c(crc_start(bytes.len() + CRC), &bytes);
            bytes.extend(crc.to_be_bytes());
        }
        bytes
    }

    /// Delivers a packet that was sent before, with some fields changed.
    fn forge(&mut self, n: usize, input: &mut &[u8]) {
        if self.seen.is_empty() {
            return;
        }
        let (to, mut bytes) = self.seen[n % self.seen.len()].clone();
        bytes.truncate(bytes.len() - if self.lossless { 0 } else { CRC });
        let edits = take(input);
        for _ in 0..=edits % 3 {
            let place = usize::from(take(input));
            match FIELDS.get(place) {
                Some(&(at, len)) => change(&mut bytes[at..at + len], input),
                None if bytes.len() > HEADER => {
                    let at = HEADER + place / 4 * 4 % (bytes.len() - HEADER);
                    let end = bytes.len().min(at + 4);
                    change(&mut bytes[at..end], input);
                }
                None => {}
            }
        }
        if edits & 0x80 != 0 {
            bytes.truncate(HEADER + usize::from(take(input)));
        }
        self.forged = true;
        let bytes = self.sealed(bytes);
        self.deliver(to, bytes);
    }

    // The script.

    fn step(&mut self, op: u8, input: &mut &[u8]) {
        let byte = take(input);
        let arg = usize::from(byte);
        match op % 16 {
            0 => self.request(op >> 4, arg * arg / 8),
            1 if arg < 128 => self.now = self.now.after(arg as u64 * 100 * US),
            1 => self.now = self.now.after((arg as u64 - 127) * 20 * MS),
            2 => self.cancel(arg),
            3 => self.answer(arg, false),
            4 => self.answer(arg, true),
            5 if arg == 0 => self.restart(),
            5 => self.sides[0].endpoint.close(self.now, self.session),
            6 => self.sides[arg & 1].port.room = Some(arg >> 1),
            7 => {
                let (mine, rest) = input.split_at((arg >> 2).min(input.len()));
                *input = rest;
                self.inject(arg & 1, arg & 2 != 0, mine);
            }
            8 => self.forge(arg, input),
            9..=13 if !self.lossless => self.lose(op % 16, arg),
            _ => {
                for _ in 0..=arg % 16 {
                    if let Some((to, bytes)) = self.wire.pop_front() {
                        self.deliver(to, bytes);
                    }
                }
            }
        }
        if arg < 192 || op % 16 < 7 {
            self.turn();
        }
    }

    /// Loses, doubles, reorders, replays or damages a packet, as an unreliable wire does.
    fn lose(&mut self, op: u8, arg: usize) {
        match op {
            9 => drop(self.wire.pop_front()),
            10 => {
                if let Some((to, bytes)) = self.wire.front().cloned() {
                    self.deliver(to, bytes);
                }
            }
            11 => {
                if let Some((to, mut bytes)) = self.wire.pop_front() {
                    let at = arg * 7 % bytes.len();
                    bytes[at] ^= 1 << (arg % 8);
                    self.deliver(to, bytes);
                }
            }
            12 if !self.wire.is_empty() => {
                let len = self.wire.len();
                self.wire.swap(0, arg % len);
            }
            13 if !self.seen.is_empty() => {
                let (to, bytes) = self.seen[arg % self.seen.len()].clone();
                self.deliver(to, bytes);
            }
            _ => {}
        }
    }

    /// Ends all faults, and advances time until `done` returns true. Returns false if that takes
    /// too many turns.
    fn calm(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        for side in &mut self.sides {
            side.port.room = None;
        }
        for _ in 0..4_000 {
            while let Some((to, bytes)) = self.wire.pop_front() {
                self.deliver(to, bytes);
            }
            while !self.executing.is_empty() {
                self.answer(0, false);
            }
            self.turn();
            if done(self) {
                return true;
            }
            if self.wire.is_empty() && self.executing.is_empty() {
                let next = self.sides.iter().filter_map(|side| side.endpoint.deadline()).min();
                self.now = next.unwrap_or(self.now).max(self.now.after(10 * US));
            }
        }
        false
    }

    fn all_ended(&self) -> bool {
        self.asked.iter().all(|asked| asked.ended)
    }

    fn finish(mut self) {
        let calmed = self.calm(Self::all_ended);
        assert!(calmed || self.forged, "requests that never end");
        self.sides[0].endpoint.close(self.now, self.session);
        self.events(0);
        assert!(self.all_ended(), "requests of a closed session that have not ended");
        assert!(self.sides[0].memory.lent.is_empty(), "the client's slices have not come back");
        let released = self.calm(|world| world.sides[1].memory.lent.is_empty());
        assert!(released, "the server's slices have not come back");
        if !self.forged {
            for (tag, asked) in self.asked.iter().enumerate() {
                let times = self.executed.get(&asked.bytes).copied().unwrap_or(0);
                assert!(times <= 1, "request {tag} ran {times} times");
            }
        }
    }
}

/// Changes a field of a header to another value: near the old one, at an end of its range, or any.
fn change(field: &mut [u8], input: &mut &[u8]) {
    let old = field.iter().fold(0u32, |value, &byte| value << 8 | u32::from(byte));
    let how = take(input);
    let new = match how % 8 {
        0 => 0,
        1 => u32::MAX,
        2 => old.wrapping_add(1 + u32::from(how >> 3)),
        3 => old.wrapping_sub(1 + u32::from(how >> 3)),
        4 => old ^ 1 << (how >> 3),
        5 => old ^ 1 << (how >> 3 & 7),
        6 => u32::from(take(input)),
        _ => u32::from_be_bytes([0; 4].map(|_: u8| take(input))),
    };
    field.copy_from_slice(&new.to_be_bytes()[4 - field.len()..]);
}

fn take(input: &mut &[u8]) -> u8 {
    let Some((&first, rest)) = input.split_first() else { return 0 };
    *input = rest;
    first
}

fuzz_target!(|input: &[u8]| {
    let mut input = input;
    let mut world = World::new(take(&mut input) & 1 == 1);
    while !input.is_empty() {
        let op = take(&mut input);
        world.step(op, &mut input);
    }
    world.finish();
});
