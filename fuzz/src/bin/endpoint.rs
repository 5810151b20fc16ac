//! The transport's state machine: a client and a server whose packets the input delivers, loses, doubles, damages and
//! mixes with those of a stranger. Whatever it does, every request runs at most once and ends exactly once.

#![no_main]

use std::collections::{HashMap, HashSet, VecDeque};

use libfuzzer_sys::fuzz_target;
use sprat_proto::datagrams::{BURST, Sent};
use sprat_proto::probe::NoProbe;
use sprat_proto::rpc::{Config, Endpoint, Event, Message, SessionId};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::wire::rpc::crc_start;
use sprat_proto::{Addr, Datagrams, Instant, Rng};

/// Requests in one run.
const REQUESTS: u64 = 64;

/// One end of the wire: what has arrived, what leaves.
#[derive(Default)]
struct Port {
    lossless: bool,
    inbox: VecDeque<(Addr, Vec<u8>)>,
    burst: Vec<(Addr, Vec<u8>)>,
    outbox: Vec<(Addr, Vec<u8>)>,
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

    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.outbox.push((to, parts.concat()));
        Sent::Yes
    }

    fn flush(&mut self) {}

    fn gone(&mut self) -> Option<Addr> {
        None
    }

    fn max_payload(&self) -> usize {
        if self.lossless { 65_536 } else { 256 }
    }

    fn lossless(&self) -> bool {
        self.lossless
    }
}

struct Side {
    endpoint: Endpoint,
    port: Port,
    addr: Addr,
}

/// A client (0), a server (1), and the packets between them.
struct World {
    now: Instant,
    lossless: bool,
    sides: [Side; 2],
    session: SessionId,
    wire: VecDeque<(usize, Vec<u8>)>,
    asked: u64,
    ended: HashSet<u64>,
    /// How often each request ran, the stranger's too.
    executed: HashMap<Vec<u8>, u32>,
}

impl World {
    fn new(lossless: bool) -> Self {
        let side = |n: u64| {
            let config = Config { serve: n == 1, ..Config::default() };
            let endpoint = Endpoint::new(config, Rng::seeded(n), NoProbe);
            Side { endpoint, port: Port { lossless, ..Port::default() }, addr: Addr::Local(n) }
        };
        let mut sides = [side(0), side(1)];
        let now = Instant::from_ns(SECOND);
        let to = sides[1].addr;
        let session = sides[0].endpoint.connect(now, to);
        let (wire, ended, executed) = Default::default();
        Self { now, lossless, sides, session, wire, asked: 0, ended, executed }
    }

    fn request(&mut self, len: usize) {
        if self.asked == REQUESTS {
            return;
        }
        let tag = self.asked;
        self.asked += 1;
        // Nothing that a stranger sends looks like this by chance.
        let mut bytes = [Rng::seeded(tag).u64().to_be_bytes(), tag.to_be_bytes()].concat();
        bytes.resize(16 + len, tag as u8);
        let deadline = self.now.after(10 * SECOND);
        let end = &mut self.sides[0].endpoint;
        if end.request(self.now, self.session, tag, Message::from(bytes), deadline).is_err() {
            self.ended.insert(tag);
        }
    }

    /// One turn of both sides.
    fn turn(&mut self) {
        for n in 0..2 {
            let Side { endpoint, port, .. } = &mut self.sides[n];
            endpoint.input(self.now, port);
            if endpoint.deadline().is_some_and(|at| at <= self.now) {
                endpoint.tick(self.now);
            }
            loop {
                let Some(event) = endpoint.event(self.now, port) else { break };
                match event {
                    Event::Request { rpc, payload, .. } => {
                        let payload = payload.into_vec();
                        *self.executed.entry(payload.clone()).or_default() += 1;
                        endpoint.reply(self.now, rpc, payload.into());
                    }
                    Event::Response { tag, .. } | Event::Failed { tag, .. } => {
                        assert!(self.ended.insert(tag), "request {tag} ended twice");
                    }
                    Event::Closed { .. } => {
                        let to = Addr::Local(1);
                        self.session = endpoint.connect(self.now, to);
                    }
                }
            }
            endpoint.output(self.now, &(), port);
            let sent = std::mem::take(&mut port.outbox);
            for (to, bytes) in sent {
                // What goes to the stranger goes nowhere.
                if let Some(to) = [0, 1].into_iter().find(|&n| to == Addr::Local(n)) {
                    self.wire.push_back((to as usize, bytes));
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, bytes: Vec<u8>) {
        let from = self.sides[1 - to].addr;
        self.sides[to].port.inbox.push_back((from, bytes));
    }

    /// A stranger's packet, with a right checksum.
    fn inject(&mut self, to: usize, mut bytes: Vec<u8>) {
        if !self.lossless {
            let crc = crc32c(crc_start(crc32c, bytes.len() + 4), &bytes);
            bytes.extend(crc.to_be_bytes());
        }
        self.sides[to].port.inbox.push_back((Addr::Local(2), bytes));
    }

    fn step(&mut self, op: u8, input: &mut &[u8]) {
        let arg = usize::from(take(input));
        match op % 8 {
            0 => self.request(arg * arg / 16),
            1 => self.now = self.now.after(arg as u64 * 100 * US),
            2 if !self.lossless => drop(self.wire.pop_front()),
            3 if !self.lossless => {
                if let Some((to, bytes)) = self.wire.front().cloned() {
                    self.deliver(to, bytes);
                }
            }
            4 if !self.lossless => {
                if let Some((to, mut bytes)) = self.wire.pop_front() {
                    let at = arg % bytes.len().max(1);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << (arg % 8);
                    }
                    self.deliver(to, bytes);
                }
            }
            5 if !self.lossless && !self.wire.is_empty() => {
                let len = self.wire.len();
                self.wire.swap(0, arg % len);
            }
            6 => {
                let (mine, rest) = input.split_at(arg.min(input.len()));
                *input = rest;
                self.inject(arg & 1, mine.to_vec());
            }
            _ => {
                for _ in 0..=arg % 16 {
                    if let Some((to, bytes)) = self.wire.pop_front() {
                        self.deliver(to, bytes);
                    }
                }
            }
        }
        self.turn();
    }

    /// Nothing goes wrong any more: every request must end.
    fn calm(&mut self) {
        for _ in 0..20_000 {
            if self.ended.len() as u64 == self.asked {
                return;
            }
            while let Some((to, bytes)) = self.wire.pop_front() {
                self.deliver(to, bytes);
            }
            self.turn();
            if self.wire.is_empty() {
                self.now = self.now.after(MS);
            }
        }
        panic!("{} of {} requests ended", self.ended.len(), self.asked);
    }
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
    world.calm();
    for tag in 0..world.asked {
        let prefix = Rng::seeded(tag).u64().to_be_bytes();
        let times: u32 = world.executed.iter().filter(|(r, _)| r.starts_with(&prefix)).map(|(_, n)| n).sum();
        assert!(times <= 1, "request {tag} ran {times} times");
    }
});
