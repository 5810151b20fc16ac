//! The clients and servers of a simulated RPC world, which know the bytes of every request and
//! reply, and verify the outcome of each request.

use std::collections::BTreeMap;

use sprat_proto::rpc::{
    Config, Endpoint, Event, Message, RpcError, RpcId, ServerRpc, SessionId, Slice, Slices,
};
use sprat_proto::time::{MS, US};
use sprat_proto::tracepoint::NoProbe;
use sprat_proto::{Instant, Rng};
use sprat_sim::queue::Queue;
use sprat_sim::wire::HostId;
use sprat_sim::{Outside, Process, Start};

/// The data of the test: all requests and their outcomes.
#[derive(Debug, Default)]
pub(crate) struct Score {
    /// The requests of all clients, by their numbers.
    pub(crate) requests: Vec<Request>,
    /// The number of slices that each host has lent to its endpoint.
    pub(crate) lent: BTreeMap<HostId, usize>,
    /// The number of requests that each client may still start.
    pub(crate) left: BTreeMap<HostId, u32>,
}

/// A request of a client, with its expected reply and its outcome.
#[derive(Debug)]
pub(crate) struct Request {
    client: HostId,
    life: u64,
    len: usize,
    reply_len: usize,
    forever: bool,
    executed: u32,
    /// The outcome of the client's request, once the request has ended.
    pub(crate) outcome: Option<Result<(), RpcError>>,
}

impl Score {
    fn execute(&mut self, id: u64) {
        let request = &mut self.requests[id as usize];
        request.executed += 1;
        let once = request.executed == 1 || is_idempotent(id);
        assert!(once, "request {id} is executed again: {request:?}");
        if let Some(Err(error)) = request.outcome {
            assert!(error.maybe_executed(), "request {id} is executed after all: {request:?}");
        }
    }

    fn end(&mut self, id: u64, outcome: Result<(), RpcError>) {
        let request = &mut self.requests[id as usize];
        assert!(request.outcome.is_none(), "request {id} ends again with {outcome:?}: {request:?}");
        request.outcome = Some(outcome);
        let executed = request.executed > 0;
        match outcome {
            Ok(()) => assert!(executed, "{request:?}"),
            // The server may have refused what it had executed and forgotten.
            Err(_) if is_idempotent(id) => {}
            Err(error) => assert!(!executed || error.maybe_executed(), "request {id}: {request:?}"),
        }
    }

    /// Returns the requests of live clients that have not ended. `life` returns the current process
    /// of a host.
    pub(crate) fn open(&self, life: impl Fn(HostId) -> u64) -> Vec<usize> {
        let open = |r: &Request| r.outcome.is_none() && r.life == life(r.client);
        (0..self.requests.len()).filter(|&i| open(&self.requests[i])).collect()
    }

    /// Returns the number of requests that got their reply.
    pub(crate) fn answered(&self) -> usize {
        self.requests.iter().filter(|r| r.outcome == Some(Ok(()))).count()
    }
}

/// Returns the unique bytes of message `id`, a request or a reply.
fn filler(id: u64, len: usize) -> Vec<u8> {
    let mut word = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns true if the server says that request `id` is idempotent.
fn is_idempotent(id: u64) -> bool {
    id.is_multiple_of(3)
}

/// Returns the reply to the execution number `nth` of request `id`. Later replies are longer than
/// the first, so that a reply joined of two would be found.
fn reply(id: u64, nth: u32, len: usize) -> Vec<u8> {
    let nth = nth.max(1) - 1;
    filler(!id ^ u64::from(nth) << 40, len + 1_000 * nth as usize)
}

/// The memory of a host's slices: each lent slice has a block of its own, which is erased when the
/// slice is returned.
#[derive(Debug, Default)]
struct Memory {
    blocks: BTreeMap<u32, Vec<u8>>,
    next: u32,
}

impl Slices for Memory {
    fn bytes(&self, slice: Slice) -> &[u8] {
        &self.blocks[&slice.segment][slice.offset as usize..][..slice.len as usize]
    }
}

impl Memory {
    /// Makes a message of these bytes, split at random into a head and slices.
    fn message(&mut self, rng: &mut Rng, bytes: Vec<u8>) -> Message {
        if rng.chance(600_000) {
            return bytes.into();
        }
        let mut rest = &bytes[rng.below(bytes.len() as u64 + 1) as usize..];
        let mut message = Message::from(&bytes[..bytes.len() - rest.len()]);
        for last in [false, false, true] {
            let len = if last { rest.len() } else { rng.below(rest.len() as u64 + 1) as usize };
            let (slice, after) = rest.split_at(len);
            rest = after;
            if !slice.is_empty() {
                message.slices.push(Slice { segment: self.next, offset: 3, len: len as u32 });
                self.blocks.insert(self.next, [&[0xee; 3], slice].concat());
                self.next += 1;
            }
        }
        message
    }

    fn take_back(&mut self, slice: Slice) {
        assert!(self.blocks.remove(&slice.segment).is_some(), "{slice:?} comes back again");
    }
}

fn size(rng: &mut Rng, most: u64) -> usize {
    let most = [0, 20, 300, 1_500, 20_000, most][rng.below(6) as usize].min(most);
    rng.below(most + 1) as usize
}

/// A server that answers every request with the bytes that it asks for: at once, later, or after
/// some refusals. A third of the requests are idempotent.
#[derive(Debug)]
pub(crate) struct Server {
    host: HostId,
    rng: Rng,
    endpoint: Endpoint,
    memory: Memory,
    later: Queue<(ServerRpc, u64)>,
}

impl Server {
    pub(crate) fn new(mut start: Start<'_>, config: Config) -> Self {
        let endpoint = Endpoint::new(config, start.rng.fork(), NoProbe);
        Self {
            host: start.host,
            rng: start.rng,
            endpoint,
            memory: Memory::default(),
            later: Queue::default(),
        }
    }

    fn events(&mut self, outside: &mut Outside<'_, Score>) {
        let now = outside.now;
        let mut replies = Vec::new();
        while let Some(event) = self.endpoint.event(now, &outside.port) {
            let Event::Request { rpc, payload, deadline } = event else { panic!("{event:?}") };
            let id = u64::from_be_bytes(payload[..8].try_into().unwrap());
            let request = &outside.score.requests[id as usize];
            assert_eq!(payload.len(), request.len);
            assert!(payload[8..] == filler(id, request.len - 8), "request {id} is damaged");
            assert_eq!(deadline == Instant::NEVER, request.forever);
            match self.rng.below(20) {
                0 => self.endpoint.refuse(now, rpc, self.rng.below(MS)),
                1..4 => {
                    outside.score.execute(id);
                    self.later.push(now.after(self.rng.below(5 * MS)), (rpc, id));
                }
                _ => {
                    outside.score.execute(id);
                    replies.push((rpc, id));
                }
            }
        }
        for (rpc, id) in replies {
            self.reply(rpc, id, outside);
        }
    }

    fn reply(&mut self, rpc: ServerRpc, id: u64, outside: &mut Outside<'_, Score>) {
        let request = &outside.score.requests[id as usize];
        let bytes = reply(id, request.executed, request.reply_len);
        let mut message = self.memory.message(&mut self.rng, bytes);
        if is_idempotent(id) {
            let port = &mut outside.port;
            self.endpoint.reply_over(outside.now, rpc, &mut message, true, port);
        } else {
            self.endpoint.reply(outside.now, rpc, message);
        }
    }
}

impl Process<Score> for Server {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        let now = outside.now;
        self.endpoint.input(now, &mut outside.port);
        self.events(outside);
        if self.endpoint.deadline().is_some_and(|at| at <= now) {
            self.endpoint.tick(now);
            self.events(outside);
        }
        while self.later.next().is_some_and(|at| at <= now) {
            let Some((_, (rpc, id))) = self.later.pop() else { break };
            self.reply(rpc, id, outside);
        }
        let more = self.endpoint.output(now, &self.memory, &mut outside.port);
        while let Some(slice) = self.endpoint.released() {
            self.memory.take_back(slice);
        }
        outside.score.lent.insert(self.host, self.memory.blocks.len());
        more
    }

    fn deadline(&self) -> Option<Instant> {
        self.endpoint.deadline().into_iter().chain(self.later.next()).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// The workload of a simulated RPC client.
#[derive(Clone, Debug)]
pub(crate) struct Asks {
    /// The servers that the client sends requests to.
    pub(crate) servers: Vec<HostId>,
    /// The longest message of the client's RPCs, in bytes.
    pub(crate) most: u64,
    /// The longest time between two requests of the client, in nanoseconds.
    pub(crate) pause_ns: u64,
}

/// A client that sends requests to random servers, cancels them, closes sessions, and verifies the
/// replies.
#[derive(Debug)]
pub(crate) struct Client {
    host: HostId,
    life: u64,
    rng: Rng,
    endpoint: Endpoint,
    memory: Memory,
    asks: Asks,
    sessions: BTreeMap<HostId, SessionId>,
    open: BTreeMap<u64, (RpcId, Instant)>,
    /// The time of the client's next action, while it has requests to start.
    next: Option<Instant>,
}

impl Client {
    pub(crate) fn new(mut start: Start<'_>, config: Config, asks: Asks) -> Self {
        let endpoint = Endpoint::new(config, start.rng.fork(), NoProbe);
        Self {
            host: start.host,
            life: start.life,
            rng: start.rng,
            endpoint,
            memory: Memory::default(),
            asks,
            sessions: BTreeMap::new(),
            open: BTreeMap::new(),
            next: Some(start.now),
        }
    }

    fn events(&mut self, outside: &mut Outside<'_, Score>) {
        while let Some(event) = self.endpoint.event(outside.now, &outside.port) {
            match event {
                Event::Request { .. } => panic!("a request to a client"),
                Event::Response { rpc, tag, payload } => {
                    assert_eq!(self.open.remove(&tag).map(|o| o.0), Some(rpc));
                    outside.score.end(tag, Ok(()));
                    let Request { reply_len, executed, .. } = outside.score.requests[tag as usize];
                    let is_reply = (1..=executed).any(|nth| *payload == reply(tag, nth, reply_len));
                    assert!(is_reply, "the reply to {tag} is damaged");
                }
                Event::Failed { rpc, tag, error } => {
                    let open = self.open.remove(&tag);
                    assert_eq!(open.map(|o| o.0), Some(rpc));
                    if let (RpcError::Deadline { .. }, Some((_, deadline))) = (error, open) {
                        assert!(deadline <= outside.now, "too early");
                    }
                    outside.score.end(tag, Err(error));
                }
                Event::Closed { session, .. } => self.sessions.retain(|_, s| *s != session),
            }
        }
    }

    fn ask(&mut self, outside: &mut Outside<'_, Score>) {
        let now = outside.now;
        let server = self.asks.servers[self.rng.below(self.asks.servers.len() as u64) as usize];
        let session = match self.sessions.get(&server) {
            Some(session) => *session,
            None => {
                let Some(addr) = outside.port.resolve(server) else { return };
                self.endpoint.connect(now, addr)
            }
        };
        self.sessions.insert(server, session);
        let id = outside.score.requests.len() as u64;
        let (len, reply_len) =
            (8 + size(&mut self.rng, self.asks.most), size(&mut self.rng, self.asks.most));
        let forever = self.rng.chance(600_000);
        let deadline =
            if forever { Instant::NEVER } else { now.after(50 * US + self.rng.below(50 * MS)) };
        let bytes = [&id.to_be_bytes()[..], &filler(id, len - 8)].concat();
        let message = self.memory.message(&mut self.rng, bytes);
        let slices = message.slices.clone();
        match self.endpoint.request(now, session, id, message, deadline) {
            Ok(rpc) => {
                *outside.score.left.entry(self.host).or_default() -= 1;
                self.open.insert(id, (rpc, deadline));
                outside.score.requests.push(Request {
                    client: self.host,
                    life: self.life,
                    len,
                    reply_len,
                    forever,
                    executed: 0,
                    outcome: None,
                });
            }
            Err(_) => slices.into_iter().for_each(|s| self.memory.take_back(s)),
        }
    }

    fn act(&mut self, outside: &mut Outside<'_, Score>) {
        let now = outside.now;
        for _ in 0..self.rng.below(8) {
            if self.open.len() < 40 && outside.score.left[&self.host] > 0 {
                self.ask(outside);
            }
        }
        let nth = self.rng.below(self.open.len() as u64 + 1) as usize;
        if self.rng.chance(50_000)
            && let Some((rpc, _)) = self.open.values().nth(nth)
        {
            self.endpoint.cancel(now, *rpc);
        }
        if self.rng.chance(5_000)
            && let Some((_, session)) = self.sessions.pop_first()
        {
            self.endpoint.close(now, session);
        }
    }
}

impl Process<Score> for Client {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        let now = outside.now;
        self.endpoint.input(now, &mut outside.port);
        self.events(outside);
        if self.endpoint.deadline().is_some_and(|at| at <= now) {
            self.endpoint.tick(now);
            self.events(outside);
        }
        if self.next.is_some_and(|at| at <= now) {
            self.act(outside);
            self.events(outside);
            let more = outside.score.left[&self.host] > 0;
            self.next = more.then(|| now.after(1 + self.rng.below(self.asks.pause_ns)));
        }
        let more = self.endpoint.output(now, &self.memory, &mut outside.port);
        while let Some(slice) = self.endpoint.released() {
            self.memory.take_back(slice);
        }
        outside.score.lent.insert(self.host, self.memory.blocks.len());
        more
    }

    fn deadline(&self) -> Option<Instant> {
        self.endpoint.deadline().into_iter().chain(self.next).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}
