//! Tests of the node that production runs, in simulated worlds with every fault: clients with many
//! calls in progress on several lanes, and servers with several locators of which some lead
//! nowhere. No request is executed twice unless it is idempotent, each call ends once with the
//! reply to its own request, and no call is refused while a lane has an idle channel.

use std::collections::{BTreeMap, VecDeque};

use sprat_proto::node::machine::{Caller, Link, Machine, Output, Replied};
use sprat_proto::rpc::{CHANNELS, Config, Message, Payload, RpcError, Slice, Slices};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Instant, Rng};
use sprat_sim::node::{Node, config, locators};
use sprat_sim::queue::Queue;
use sprat_sim::wire::HostId;
use sprat_sim::{Chaos, HostFaults, Options, Outside, Process, Start, World, seeds, wire};

const SERVERS: usize = 2;
const CLIENTS: usize = 3;
/// The number of calls that each client makes.
const CALLS: u32 = 400;

/// A call of a client, and its outcome.
#[derive(Debug)]
struct Call {
    client: HostId,
    life: u64,
    len: usize,
    executed: u32,
    outcome: Option<Result<(), RpcError>>,
}

/// The data of the test: all calls by number, and the number of calls that each client has left.
#[derive(Debug, Default)]
struct Score {
    calls: Vec<Call>,
    left: BTreeMap<HostId, u32>,
}

impl Score {
    fn execute(&mut self, id: u64, len: usize) {
        let call = &mut self.calls[id as usize];
        call.executed += 1;
        let once = call.executed == 1 || is_idempotent(id);
        assert!(once && call.len == len, "call {id}: {call:?}");
        if let Some(Err(error)) = call.outcome {
            assert!(error.maybe_executed(), "call {id} is executed after all: {call:?}");
        }
    }

    fn end(&mut self, id: u64, result: &Result<Vec<u8>, RpcError>) {
        let call = &mut self.calls[id as usize];
        assert!(call.outcome.is_none(), "call {id} ends again with {result:?}: {call:?}");
        match result {
            Ok(reply) => {
                assert!(*reply == filler(!id, reply_len(id)), "call {id} gets another reply");
                assert!(call.executed > 0, "call {id}: {call:?}");
            }
            Err(RpcError::Busy { .. }) => panic!("call {id} is refused: {call:?}"),
            Err(_) if is_idempotent(id) => {}
            Err(error) => assert!(call.executed == 0 || error.maybe_executed(), "call {id}"),
        }
        call.outcome = Some(result.as_ref().map(|_| ()).map_err(|error| *error));
    }
}

/// Returns the bytes of message `id`, which no other message has.
fn filler(id: u64, len: usize) -> Vec<u8> {
    let mut word = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = id.to_be_bytes().to_vec();
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns true if the server says that call `id` is idempotent.
fn is_idempotent(id: u64) -> bool {
    id % 4 == 1
}

/// Returns the length in bytes of the reply to call `id`. Most replies fit a packet.
fn reply_len(id: u64) -> usize {
    8 + [100, 10, 1000, 200, 50, 5_000][id as usize % 6]
}

/// The machine of a client or a server: answers requests, and makes the calls that its program
/// wants.
#[derive(Debug, Default)]
struct Peer {
    executed: Vec<(u64, usize)>,
    ended: Vec<(u64, Result<Vec<u8>, RpcError>)>,
    wants: VecDeque<Output>,
    later: Queue<(Caller, u64)>,
}

impl Slices for Peer {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Peer {
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        _: Instant,
        reply: &mut Message,
    ) -> Replied {
        let id = u64::from_be_bytes(payload[..8].try_into().unwrap());
        assert!(*payload == filler(id, payload.len()), "request {id} is damaged");
        self.executed.push((id, payload.len()));
        if id % 10 == 3 {
            self.later.push(now.after(id % 7 * 100 * US), (caller, id));
            return Replied::Later;
        }
        *reply = filler(!id, reply_len(id)).into();
        if is_idempotent(id) { Replied::Idempotent } else { Replied::Now }
    }

    fn response(&mut self, _: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        self.ended.push((tag, result.map(Payload::into_vec)));
    }

    fn has_output(&self) -> bool {
        !self.wants.is_empty()
    }

    fn output(&mut self, _: Instant) -> Option<Output> {
        self.wants.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        self.later.next()
    }

    fn tick(&mut self, now: Instant) -> bool {
        while self.later.next().is_some_and(|at| at <= now) {
            let Some((_, (caller, id))) = self.later.pop() else { break };
            let message = filler(!id, reply_len(id)).into();
            self.wants.push_back(Output::Reply { caller, message });
        }
        false
    }
}

/// A simulated process: a server, or a client that calls all servers.
struct Program {
    host: HostId,
    life: u64,
    rng: Rng,
    node: Node<Peer>,
    lanes: usize,
    /// The number of calls in progress to each server.
    open: [usize; SERVERS],
    links: BTreeMap<u64, usize>,
    next: Option<Instant>,
}

impl Program {
    fn new(start: Start<'_>, config: Config) -> Self {
        let mut rng = start.rng;
        let lanes = 1 + rng.below(4) as u16;
        let patience = [0, 2, 30][rng.below(3) as usize];
        let mut peer = Peer::default();
        let is_client = start.host >= SERVERS;
        for server in (0..SERVERS).filter(|_| is_client) {
            let (link, locator) = (Link(server as u32), locators(server, &mut rng));
            peer.wants.push_back(Output::Connect { link, locator });
        }
        let node = Node::with(peer, config, rng.fork(), start.port, lanes, patience);
        Self {
            host: start.host,
            life: start.life,
            rng,
            node,
            lanes: lanes.into(),
            open: [0; SERVERS],
            links: BTreeMap::new(),
            next: is_client.then_some(start.now),
        }
    }

    /// Reports the requests that were executed and the calls that ended to the test's score.
    fn report(&mut self, score: &mut Score) {
        let peer = self.node.machine();
        for (id, len) in peer.executed.drain(..) {
            score.execute(id, len);
        }
        for (id, result) in peer.ended.drain(..) {
            score.end(id, &result);
            if let Some(link) = self.links.remove(&id) {
                self.open[link] -= 1;
            }
        }
    }

    /// Starts some calls: on each link at most as many as its lanes have channels.
    fn call(&mut self, score: &mut Score) {
        for _ in 0..self.rng.below(40) {
            let link = self.rng.below(SERVERS as u64) as usize;
            let left = score.left.entry(self.host).or_default();
            if *left == 0 || self.open[link] >= self.lanes * CHANNELS {
                continue;
            }
            *left -= 1;
            self.open[link] += 1;
            let id = score.calls.len() as u64;
            self.links.insert(id, link);
            let most = [20, 100, 1_200, 4_000][self.rng.below(4) as usize];
            let len = 8 + self.rng.below(most);
            let (client, life, len) = (self.host, self.life, len as usize);
            score.calls.push(Call { client, life, len, executed: 0, outcome: None });
            self.node.command().wants.push_back(Output::Call {
                link: Link(link as u32),
                tag: id,
                message: filler(id, len).into(),
                deadline: Instant::NEVER,
            });
        }
    }
}

impl Process<Score> for Program {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.node.input(outside);
        self.report(outside.score);
        if self.next.is_some_and(|at| at <= outside.now) {
            self.call(outside.score);
            let more = outside.score.left[&self.host] > 0;
            self.next = more.then(|| outside.now.after(1 + self.rng.below(500 * US)));
        }
        let more = self.node.output(outside);
        self.report(outside.score);
        more
    }

    fn deadline(&self) -> Option<Instant> {
        self.node.deadline().into_iter().chain(self.next).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

fn run(seed: u64, options: Options, faults: HostFaults) {
    let mut world = World::new(seed, options, Score::default());
    let config = Config { queue_limit: CHANNELS, ..config(true) };
    for host in 0..SERVERS + CLIENTS {
        if host >= SERVERS {
            world.score.left.insert(host, CALLS);
        }
        let config = Config { serve: host < SERVERS, ..config.clone() };
        world.host(faults, move |start| Box::new(Program::new(start, config.clone())));
    }
    world.run_until(20 * SECOND, |w| w.score.left.values().all(|left| *left == 0));
    world.end_faults();
    let is_over = |w: &World<Score>| {
        let lives = |call: &&Call| call.life == w.life(call.client);
        w.score.left.values().all(|left| *left == 0)
            && w.score.calls.iter().filter(lives).all(|call| call.outcome.is_some())
    };
    assert!(world.run_until(120 * SECOND, is_over), "seed {seed}: some calls never end");
    let answered = world.score.calls.iter().filter(|c| c.outcome == Some(Ok(()))).count();
    assert!(answered > 0, "seed {seed}: no call was answered");
}

fn any_chaos(rng: &mut Rng) -> Chaos {
    let most = Chaos {
        every_ns: 30 * MS,
        down_ns: 50 * MS,
        pause_ns: 100 * MS,
        partition_ns: 100 * MS,
        ..Chaos::default()
    };
    seeds::chaos(rng, most)
}

#[test]
fn calls_under_faults_of_the_wire() {
    seeds::each("calls_under_faults_of_the_wire", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x10de);
        let mut options = Options::default();
        options.wire.fault = seeds::fault(&mut rng, 3 * MS);
        run(seed, options, HostFaults::NONE);
    });
}

#[test]
fn calls_under_crashes_pauses_and_partitions() {
    seeds::each("calls_under_crashes_pauses_and_partitions", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x20de);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.wire.fault = seeds::fault(&mut rng, 3 * MS);
        run(seed, options, HostFaults::ALL);
    });
}

#[test]
fn calls_over_rings() {
    seeds::each("calls_over_rings", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x30de);
        let wire = wire::Options { room: 4 + rng.below(100) as usize, ..wire::Options::lossless() };
        let options = Options { chaos: any_chaos(&mut rng), wire, ..Options::default() };
        run(seed, options, HostFaults::ALL);
    });
}
