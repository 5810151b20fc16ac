//! Tests of two sides that exchange requests over a model of a queue pair. The connection ends
//! after each number of steps in turn. Further tests have hostile peers.
//!
//! The model keeps order and loses nothing, as a reliable connection does. Two things can go wrong:
//! the connection ends, and the peer breaks a rule.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use super::super::*;
use crate::rpc::stream::{Announced, Ids, Role, Stream};
use crate::rpc::{CloseReason, Event, Message, RpcError, ServerRpc, SessionId};
use crate::{Instant, Rng};

const NOW: Instant = Instant::from_ns(1_000_000);
/// The length of each receive in bytes: the least that is allowed.
const ROOM: usize = 256;

/// A piece of data on its way to one side of the queue pair. The pieces keep their order.
#[derive(Debug)]
enum Flying {
    Send(Vec<u8>),
    /// The bytes that an RDMA Read returns, or nothing if its steering tag was invalid.
    Read(Option<Vec<u8>>),
}

/// A message that the peer announced and that this side is to read.
struct Fetch {
    announced: Announced,
    location: Location,
    wanted: bool,
    asked: bool,
}

/// One side of the queue pair's connection, with the program above it.
struct End {
    flow: FlowControl,
    stream: Stream,
    ids: Ids,
    /// The number of receives that this side has posted.
    posted: u16,
    /// The messages that this side announced, with their steering tags.
    announced: VecDeque<(u32, Vec<u8>)>,
    tags: u32,
    fetches: VecDeque<Fetch>,
    /// The received requests that wait for a reply of the program.
    asked: Vec<(ServerRpc, Vec<u8>)>,
    /// The requests that the program executed.
    executed: Vec<Vec<u8>>,
    /// The result of each request that this side sent, by the request's tag.
    ends: BTreeMap<u64, Result<Vec<u8>, RpcError>>,
    closed: bool,
}

impl End {
    fn new(role: Role, receives: u16, peers: u16) -> Self {
        let mut flow = FlowControl::new(receives);
        flow.open(&Hello { receives: peers, receive_bytes: ROOM as u32 });
        Self {
            flow,
            stream: Stream::new(7, role, 64),
            ids: Ids::default(),
            posted: receives,
            announced: VecDeque::new(),
            tags: 0,
            fetches: VecDeque::new(),
            asked: Vec::new(),
            executed: Vec::new(),
            ends: BTreeMap::new(),
            closed: false,
        }
    }

    fn happened(&mut self, event: Event<'_>) {
        match event {
            Event::Request { rpc, payload, .. } => {
                let request = payload.into_vec();
                self.executed.push(request.clone());
                self.asked.push((rpc, request));
            }
            Event::Response { tag, payload, .. } => self.over(tag, Ok(payload.into_vec())),
            Event::Failed { tag, error, .. } => self.over(tag, Err(error)),
            Event::Closed { .. } => self.closed = true,
        }
    }

    fn over(&mut self, tag: u64, end: Result<Vec<u8>, RpcError>) {
        assert!(self.ends.insert(tag, end).is_none(), "{tag} has ended twice");
    }

    fn owed(&mut self) {
        while let Some(event) = self.stream.event() {
            self.happened(event);
        }
    }

    /// Takes the next piece of data that arrives from the peer.
    fn take(&mut self, flying: Flying) -> Result<(), Violation> {
        match flying {
            Flying::Send(send) => {
                self.posted -= 1;
                self.take_send(&send)?;
            }
            Flying::Read(brought) => {
                let fetch = self.fetches.pop_front().ok_or(Violation)?;
                self.flow.finish();
                let message =
                    brought.filter(|m| m.len() == fetch.announced.len()).ok_or(Violation)?;
                if let Some(event) = self.stream.whole(NOW, fetch.announced, message, &mut self.ids)
                {
                    self.happened(event);
                }
            }
        }
        self.owed();
        Ok(())
    }

    fn take_send(&mut self, send: &[u8]) -> Result<(), Violation> {
        self.posted += 1;
        let (finished, received) = self.flow.receive(send, &mut self.stream)?;
        assert!(finished <= self.announced.len());
        self.announced.drain(..finished);
        match received {
            Received::Nothing => {}
            Received::Frames(frames) => {
                let mut at = 0;
                while let Some(arrived) = self.stream.input(NOW, frames, &mut at, &mut self.ids) {
                    self.happened(arrived.event(frames));
                }
                if !self.stream.is_between() {
                    return Err(Violation);
                }
            }
            Received::Announced { announced, location, wanted } => {
                assert!(self.fetches.len() < MAX_ANNOUNCED && !announced.is_empty());
                self.fetches.push_back(Fetch { announced, location, wanted, asked: false });
            }
        }
        Ok(())
    }

    /// The next Send to the peer, if there is one and flow control allows it.
    fn send(&mut self) -> Option<Vec<u8>> {
        while self.fetches.front().is_some_and(|p| !p.wanted) {
            self.fetches.pop_front();
            self.flow.finish();
        }
        let (mut rest, mut kind) = (Vec::new(), SendKind::Credits);
        while self.flow.may_send() && kind != SendKind::Rendezvous {
            let Some(front) = self.stream.front(NOW) else { break };
            let (header, len) = (front.header.to_vec(), front.header.len() + front.message.len());
            if HEADER + rest.len() + len <= ROOM {
                rest.extend(header);
                rest.extend_from_slice(&front.message.bytes);
                self.stream.written(len);
                kind = SendKind::Eager;
            } else if HEADER + len <= ROOM || !self.flow.may_announce() || kind == SendKind::Eager {
                break;
            } else {
                let message = self.stream.take_front()?;
                self.tags += 1;
                self.announced.push_back((self.tags, message.bytes));
                rest = [&Location { stag: self.tags, address: 0 }.to_bytes()[..], &header].concat();
                kind = SendKind::Rendezvous;
            }
        }
        let report = self.flow.has_finished() && self.flow.may_send();
        if kind == SendKind::Credits && !report && !self.flow.must_grant() {
            return None;
        }
        Some([&self.flow.next_header(kind).to_bytes()[..], &rest].concat())
    }
}

/// The two sides of a connection, and the data on its way to each.
struct World {
    ends: [End; 2],
    to: [VecDeque<Flying>; 2],
    dead: bool,
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        let receives = [4 + rng.below(13) as u16, 4 + rng.below(13) as u16];
        let client = End::new(Role::Client(SessionId::new(1, 1)), receives[0], receives[1]);
        let server = End::new(Role::Server, receives[1], receives[0]);
        Self { ends: [client, server], to: [VecDeque::new(), VecDeque::new()], dead: false }
    }

    /// Ends the connection for both sides, and loses the data on its way.
    fn break_connection(&mut self) {
        self.dead = true;
        for (end, to) in self.ends.iter_mut().zip(&mut self.to) {
            to.clear();
            end.stream.end(CloseReason::Reset);
            end.owed();
        }
    }

    /// Delivers one piece of data to the side `me`. Returns true if there was one.
    fn arrive(&mut self, me: usize) -> bool {
        let Some(flying) = self.to[me].pop_front() else { return false };
        assert_eq!(self.ends[me].take(flying), Ok(()), "an honest peer");
        true
    }

    /// Lets the side `me` send one piece of data. Returns true if it had one.
    fn leave(&mut self, me: usize) -> bool {
        let other = 1 - me;
        if let Some(fetch) = self.ends[me].fetches.front_mut().filter(|p| p.wanted && !p.asked) {
            fetch.asked = true;
            let tag = fetch.location.stag;
            let found =
                self.ends[other].announced.iter().find(|(t, _)| *t == tag).map(|(_, m)| m.clone());
            // The peer sends the bytes of a Read behind everything that it sent before.
            self.to[me].push_back(Flying::Read(found));
            return true;
        }
        let Some(send) = self.ends[me].send() else { return false };
        assert!(send.len() <= ROOM);
        self.to[other].push_back(Flying::Send(send));
        let sends = self.to[other].iter().filter(|f| matches!(f, Flying::Send(_))).count();
        assert!(sends <= usize::from(self.ends[other].posted), "a Send finds a receive");
        true
    }

    fn check(&self, sent: &BTreeMap<u64, Vec<u8>>) {
        let [client, server] = &self.ends;
        assert_eq!(client.ends.len(), sent.len(), "everything ends");
        for (tag, end) in &client.ends {
            let times = server.executed.iter().filter(|request| **request == sent[tag]).count();
            assert!(times <= 1, "{tag} was executed {times} times");
            match end {
                Ok(reply) => assert!(times == 1 && *reply == answer(&sent[tag])),
                Err(RpcError::NotExecuted | RpcError::Busy { .. }) => {
                    assert_eq!(times, 0, "{tag}: {end:?}")
                }
                Err(RpcError::Deadline { maybe_executed: false }) => {
                    assert_eq!(times, 0, "{tag}: {end:?}")
                }
                Err(RpcError::MaybeExecuted | RpcError::Cancelled | RpcError::Deadline { .. }) => {}
            }
            assert!(
                self.dead
                    || end.is_ok()
                    || matches!(end, Err(RpcError::Cancelled | RpcError::Busy { .. }))
            );
        }
    }
}

/// Makes the message of a request that differs from all others.
fn request(tag: u64, rng: &mut Rng) -> Vec<u8> {
    let most = if rng.chance(300_000) { 3_000 } else { 150 };
    let len = 8 + rng.below(most) as usize;
    let mut bytes = vec![tag as u8; len];
    bytes[..8].copy_from_slice(&tag.to_be_bytes());
    bytes
}

fn answer(request: &[u8]) -> Vec<u8> {
    let len = 1 + request.iter().map(|&b| usize::from(b)).sum::<usize>() % 700;
    request.iter().rev().copied().cycle().take(len).collect()
}

/// Runs an exchange of 25 requests between two sides for at most `steps` steps. Returns the number
/// of steps it took.
fn exchange(seed: u64, steps: usize) -> usize {
    let mut rng = Rng::seeded(seed);
    let mut world = World::new(&mut rng);
    let (mut sent, mut step) = (BTreeMap::new(), 0);
    loop {
        let [client, server] = &mut world.ends;
        let more = sent.len() < 25;
        let over = !more && client.ends.len() == sent.len();
        if over || step == steps {
            world.break_connection();
            // An exchange that is over has no request that the end could fail.
            world.dead = !over;
            world.check(&sent);
            return step;
        }
        step += 1;
        match rng.below(8) {
            0 if more => {
                let tag = sent.len() as u64;
                let asked = request(tag, &mut rng);
                let rpc = client.stream.request(
                    tag,
                    asked.clone().into(),
                    Instant::NEVER,
                    &mut client.ids,
                );
                sent.insert(tag, asked);
                if rng.chance(50_000) {
                    client.stream.cancel(rpc.unwrap());
                    client.owed();
                }
            }
            1 if !server.asked.is_empty() => {
                let at = rng.below(server.asked.len() as u64) as usize;
                let (rpc, asked) = server.asked.swap_remove(at);
                if rng.chance(50_000) {
                    server.executed.retain(|executed| *executed != asked);
                    server.stream.refuse(rpc, 1_000);
                } else {
                    server.stream.reply(rpc, Message::from(answer(&asked)));
                }
            }
            act => {
                let me = (act % 2) as usize;
                let moved = if rng.below(2) == 0 { world.arrive(me) } else { world.leave(me) };
                let still =
                    world.to.iter().all(VecDeque::is_empty) && world.ends[1].asked.is_empty();
                if !moved && !more && still {
                    let any = world.leave(0) || world.leave(1);
                    let done = world.ends[0].ends.len() == sent.len();
                    assert!(any || done, "seed {seed}: both wait");
                }
            }
        }
    }
}

#[test]
fn every_request_ends_once_whenever_the_connection_dies() {
    for seed in 0..12 {
        let whole = exchange(seed, usize::MAX);
        for steps in 0..whole {
            exchange(seed, steps);
        }
    }
}

#[test]
fn exchanges_end_by_themselves() {
    for seed in 100..400 {
        exchange(seed, usize::MAX);
    }
}

/// Makes a server's side of a queue pair, whose peer has 16 receives.
fn server() -> End {
    End::new(Role::Server, 16, 16)
}

fn send(kind: SendKind, granted: u16, finished: u16, rest: &[u8]) -> Flying {
    Flying::Send([&SendHeader { kind, granted, finished }.to_bytes()[..], rest].concat())
}

/// Encodes the header of a frame with a request of `len` bytes.
fn header(seq: u32, len: u32) -> Vec<u8> {
    let mut header = vec![0; 32];
    header[0] = 1 << 5 | 1;
    header[8..12].copy_from_slice(&seq.to_be_bytes());
    header[12..16].copy_from_slice(&len.to_be_bytes());
    header
}

fn announced(seq: u32, len: u32) -> Flying {
    send(
        SendKind::Rendezvous,
        0,
        0,
        &[&Location { stag: 5, address: 9 }.to_bytes()[..], &header(seq, len)].concat(),
    )
}

#[test]
fn a_peer_that_never_grants_is_disconnected() {
    let mut end = server();
    // The server sends everything that it may at once.
    let mut heard = 0;
    while end.take(send(SendKind::Credits, 0, 0, &[])) == Ok(()) {
        while end.send().is_some() {}
        heard += 1;
        assert!(heard < 1_000, "it has sent {heard} times and granted nothing");
    }
    // The server has granted all receives while it had credits for that.
    assert!(heard >= 16);
}

#[test]
fn announcements_have_limits() {
    let mut end = server();
    for seq in 1..=MAX_ANNOUNCED as u32 {
        assert_eq!(end.take(announced(seq, 1000)), Ok(()));
        while end.send().is_some() {}
    }
    assert_eq!(end.take(announced(17, 1000)), Err(Violation), "one too many");
    for len in [0, (16 << 20) + 1] {
        assert_eq!(server().take(announced(1, len)), Err(Violation), "{len} bytes");
    }
    assert_eq!(
        server().take(send(SendKind::Credits, 0, 1, &[])),
        Err(Violation),
        "nothing was announced to it"
    );
    assert_eq!(
        server().take(send(SendKind::Credits, 1, 0, &[])),
        Err(Violation),
        "it has not so many"
    );
    // Half a frame at the end of a Send.
    assert_eq!(server().take(send(SendKind::Eager, 0, 0, &header(1, 5))), Err(Violation));
}

#[test]
fn a_message_that_is_not_there_or_not_as_long_is_the_peers_fault() {
    for brought in [None, Some(vec![1; 999]), Some(vec![1; 1001]), Some(Vec::new())] {
        let mut end = server();
        assert_eq!(end.take(announced(1, 1000)), Ok(()));
        assert_eq!(end.take(Flying::Read(brought)), Err(Violation));
        assert!(end.executed.is_empty());
    }
    let mut end = server();
    assert_eq!(end.take(Flying::Read(Some(vec![1]))), Err(Violation), "it was not announced");
}

/// Random bytes that look like Sends cause no panic, and no queue grows beyond its limits.
#[test]
fn noise_is_survived() {
    for seed in 0..3_000 {
        let mut rng = Rng::seeded(seed);
        let client = rng.below(2) == 0;
        let mut end =
            if client { End::new(Role::Client(SessionId::new(1, 1)), 16, 16) } else { server() };
        for tag in 0..u64::from(client) * 5 {
            end.stream.request(tag, vec![1; 300].into(), Instant::NEVER, &mut end.ids).unwrap();
        }
        for _ in 0..60 {
            let mut head = header(rng.below(8) as u32, rng.below(40) as u32);
            head[1] = u8::from(client);
            head.resize(32 + rng.below(60) as usize, 7);
            let rest: Vec<u8> = match rng.below(4) {
                0 => Vec::new(),
                1 => head,
                2 => [&Location { stag: 1, address: 2 }.to_bytes()[..], &head[..32]].concat(),
                _ => (0..rng.below(80)).map(|_| rng.below(256) as u8).collect(),
            };
            let kind =
                [SendKind::Credits, SendKind::Eager, SendKind::Rendezvous][rng.below(3) as usize];
            let flying = match rng.below(6) {
                0 => Flying::Read(Some(vec![3; rng.below(40) as usize])),
                _ => send(kind, rng.below(3) as u16, rng.below(2) as u16, &rest),
            };
            if end.take(flying).is_err() || end.stream.ended().is_some() {
                end.stream.carrier_error();
                break;
            }
            while end.send().is_some() {}
            assert!(end.fetches.len() <= MAX_ANNOUNCED && end.announced.len() <= MAX_ANNOUNCED);
        }
        end.stream.end(CloseReason::Local);
        end.owed();
        assert_eq!(end.ends.len(), usize::from(client) * 5);
        assert_eq!(end.closed, client);
    }
}
