//! Tests of clients, a coordinator and small masters, which exchange messages in one loop in
//! virtual time. A seed selects the faults of calls. Every increment happens as often as its client
//! knows.

use alloc::collections::BTreeMap;

use sprat_proto::rpc::ServerRpc;

use super::*;
use crate::coordinator::{self, Coordinator};
use crate::durability::Durability;
use crate::site::Site;
use sprat_proto::node::machine::{Caller, Machine};

/// The sender of a call: a life of the coordinator, or a client.
#[derive(Clone, Copy, PartialEq, Debug)]
enum From {
    Coordinator(u64),
    Client(usize),
}

enum Event {
    /// A request arrives at the server with the locator `locator`.
    Arrive { locator: String, request: Vec<u8>, answer: Option<(From, u64)> },
    /// A call ends with a reply or an error at its sender.
    End { from: From, tag: u64, result: Result<Vec<u8>, RpcError> },
    /// The coordinator's disk has written a change.
    Written { life: u64, seq: u64, puts: Vec<(Vec<u8>, Vec<u8>)>, deletes: Vec<Vec<u8>> },
    /// The masters renew their leases at the coordinator.
    Renew,
    /// The coordinator's process restarts.
    Restart,
    /// The process of the master with this index ends, and another one begins at the same locator.
    Crash(usize),
    /// The client with this index starts its next operation, or has slept long enough.
    Work(usize),
}

/// A master without a log: it has its tablets, the values of objects, and its replies by client.
#[derive(Default)]
struct Master {
    id: ServerId,
    tablets: Vec<(TableId, u64, u64)>,
    values: BTreeMap<Vec<u8>, (u64, i64)>,
    answers: BTreeMap<u64, (u64, BTreeMap<u64, Vec<u8>>)>,
}

struct World {
    now: Instant,
    rng: Rng,
    queue: BTreeMap<(Instant, u64), Event>,
    queued: u64,
    life: u64,
    coordinator: Coordinator,
    disk: BTreeMap<Vec<u8>, Vec<u8>>,
    links: [BTreeMap<u32, String>; 9],
    /// The requests that the coordinator has not answered, with their senders.
    asked: BTreeMap<u64, (From, u64)>,
    asks: u64,
    masters: Vec<Master>,
    clients: Vec<Client>,
    asleep: Vec<Instant>,
    table: Option<TableId>,
    ops: BTreeMap<(usize, Op), i64>,
    left: Vec<u32>,
    /// The amounts that masters added to objects, in any life of a master.
    executed: Vec<i64>,
    done: BTreeMap<i64, Result<i64, Error>>,
    crashed: bool,
}

const CLIENTS: usize = 3;
const MASTERS: usize = 2;
const INCREMENTS: u32 = 40;

fn config() -> coordinator::Config {
    coordinator::Config { client_term_ns: 5 * SECOND, ..Default::default() }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let coordinator = Coordinator::restore(Instant::ZERO, config(), rng.fork(), []).unwrap();
        let clients = (0..CLIENTS).map(|_| Client::new(Config::new("coordinator"), rng.fork()));
        let clients = clients.collect();
        let mut w = Self {
            now: Instant::ZERO,
            rng,
            queue: BTreeMap::new(),
            queued: 0,
            life: 0,
            coordinator,
            disk: BTreeMap::new(),
            links: Default::default(),
            asked: BTreeMap::new(),
            asks: 0,
            masters: Vec::new(),
            clients,
            asleep: vec![Instant::ZERO; CLIENTS],
            table: None,
            ops: BTreeMap::new(),
            left: vec![INCREMENTS; CLIENTS],
            executed: Vec::new(),
            done: BTreeMap::new(),
            crashed: false,
        };
        w.pump();
        w.masters.resize_with(MASTERS, Master::default);
        w.after(0, Event::Renew);
        w
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.queued += 1;
        self.queue.insert((self.now.after(ns), self.queued), event);
    }

    fn delay(&mut self) -> u64 {
        10 * US + self.rng.below(200 * US)
    }

    /// Sends a call. The seed decides if the request or its reply is lost, late or refused.
    fn send(&mut self, from: From, tag: u64, locator: String, request: Vec<u8>, deadline: Instant) {
        let (there, back) = (self.delay(), self.delay());
        let failure = match self.rng.below(100) {
            0..3 => Some((there, RpcError::NotExecuted, None)),
            3..6 => Some((there, RpcError::Busy { retry_after_ns: MS }, None)),
            // Lost, and noticed or not.
            6..9 => Some((there + back, RpcError::MaybeExecuted, None)),
            9..11 => {
                let error = RpcError::Deadline { maybe_executed: true };
                Some((deadline.since(self.now), error, None))
            }
            // The request is executed, perhaps long after the client has given up, and the reply is
            // lost.
            11..16 => Some((there + back, RpcError::MaybeExecuted, Some(there))),
            16..19 => Some((there, RpcError::MaybeExecuted, Some(self.rng.below(4 * SECOND)))),
            _ => None,
        };
        match failure {
            None => {
                self.after(there, Event::Arrive { locator, request, answer: Some((from, tag)) })
            }
            Some((at, error, executed)) => {
                self.after(at, Event::End { from, tag, result: Err(error) });
                if let Some(at) = executed {
                    self.after(at, Event::Arrive { locator, request, answer: None });
                }
            }
        }
    }

    /// Carries out the output of all machines.
    fn pump(&mut self) {
        while let Some(output) = self.coordinator.output(self.now) {
            self.perform(From::Coordinator(self.life), output);
        }
        for i in 0..self.clients.len() {
            if self.asleep[i] > self.now {
                continue;
            }
            while let Some(output) = self.clients[i].output(self.now) {
                self.perform(From::Client(i), output);
            }
            while let Some(done) = self.clients[i].event() {
                self.ended(i, done.op, done.outcome);
            }
        }
    }

    fn perform(&mut self, from: From, output: Output) {
        let links = match from {
            From::Coordinator(_) => &mut self.links[8],
            From::Client(i) => &mut self.links[i],
        };
        match output {
            Output::Connect { link, locator } => {
                links.insert(link.0, locator);
            }
            Output::Disconnect { link } => {
                links.remove(&link.0);
            }
            Output::Call { link, tag, message, deadline } => {
                let locator = links.get(&link.0).cloned().unwrap_or_default();
                self.send(from, tag, locator, message.bytes, deadline);
            }
            Output::Reply { caller, message } => self.replied(caller.rpc.0, message.bytes),
            Output::Persist { seq, puts, deletes } => {
                // One after the other, as a disk does.
                let at = (self.now.as_ns() / MS + 1) * MS - self.now.as_ns();
                self.after(at, Event::Written { life: self.life, seq, puts, deletes });
            }
            other => panic!("{other:?}"),
        }
    }

    fn replied(&mut self, asked: u64, reply: Vec<u8>) {
        if let Some((from, tag)) = self.asked.remove(&asked) {
            let delay = self.delay();
            self.after(delay, Event::End { from, tag, result: Ok(reply) });
        }
    }

    /// Sends a master's request to the coordinator; `None` if the reply would take time.
    fn ask(&mut self, request: Vec<u8>) -> Option<Vec<u8>> {
        self.asks += 1;
        let caller = Caller { transport: 0, rpc: ServerRpc(self.asks), at: Instant::ZERO };
        let reply = crate::testing::request(
            &mut self.coordinator,
            self.now,
            caller,
            Payload::Owned(request),
            Instant::NEVER,
        );
        reply.map(|message| message.bytes)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { locator, request, answer } => self.arrive(&locator, request, answer),
            Event::End { from: From::Coordinator(life), tag, result } if life == self.life => {
                self.coordinator.response(self.now, tag, result.map(Payload::Owned));
            }
            Event::End { from: From::Coordinator(_), .. } => {}
            Event::End { from: From::Client(i), tag, result } => {
                if self.asleep[i] > self.now {
                    let event = Event::End { from: From::Client(i), tag, result };
                    return self.after(self.asleep[i].since(self.now), event);
                }
                let done = self.clients[i].response(self.now, tag, result.map(Payload::Owned));
                if let Some(done) = done {
                    self.ended(i, done.op, done.outcome);
                }
            }
            Event::Written { life, seq, puts, deletes } if life == self.life => {
                self.disk.extend(puts);
                for key in deletes {
                    self.disk.remove(&key);
                }
                self.coordinator.persisted(self.now, seq);
            }
            Event::Written { .. } => {}
            Event::Renew => self.renew(),
            Event::Restart => {
                self.life += 1;
                let pairs = self.disk.clone();
                let rng = self.rng.fork();
                self.coordinator = Coordinator::restore(self.now, config(), rng, pairs).unwrap();
                self.links[8].clear();
                for (from, tag) in core::mem::take(&mut self.asked).into_values() {
                    self.after(US, Event::End { from, tag, result: Err(RpcError::MaybeExecuted) });
                }
            }
            Event::Crash(i) => {
                self.masters[i] = Master::default();
                self.crashed = true;
            }
            Event::Work(i) => self.work(i),
        }
    }

    fn renew(&mut self) {
        for i in 0..MASTERS {
            if self.masters[i].id.generation == 0 {
                let control = format!("m{i}");
                let data = control.clone();
                let nonce = ((i as u64) << 32) | (self.life + u64::from(self.crashed));
                let request = Enlist {
                    nonce,
                    capacity_bytes: 0,
                    replicas: 0,
                    durability: Durability::None,
                    site: Site::default(),
                    cluster: 0,
                    replaces: ServerId::default(),
                    control: &control,
                    data: &data,
                };
                if let Some(reply) = self.ask(request.emit()) {
                    self.masters[i].id = Enlisted::parse(&reply).unwrap().server;
                }
            } else {
                let (cluster, server) = (self.coordinator.cluster(), self.masters[i].id);
                let usage = Usage::default();
                let reply = self.ask(RenewServer { cluster, server, usage }.emit()).unwrap();
                assert!(Renewed::parse(&reply).is_ok(), "a master that lives was declared dead");
            }
        }
        self.after(500 * MS, Event::Renew);
    }

    fn arrive(&mut self, locator: &str, request: Vec<u8>, answer: Option<(From, u64)>) {
        let reply = match locator {
            "coordinator" => {
                self.asks += 1;
                let asked = self.asks;
                if let Some(answer) = answer {
                    self.asked.insert(asked, answer);
                }
                let caller = Caller { transport: 0, rpc: ServerRpc(asked), at: Instant::ZERO };
                let payload = Payload::Owned(request);
                if let Some(message) = crate::testing::request(
                    &mut self.coordinator,
                    self.now,
                    caller,
                    payload,
                    Instant::NEVER,
                ) {
                    self.replied(asked, message.bytes);
                }
                return;
            }
            "m0" => self.master(0, &request),
            "m1" => self.master(1, &request),
            _ => return,
        };
        if let Some((from, tag)) = answer {
            let delay = self.delay();
            self.after(delay, Event::End { from, tag, result: Ok(reply) });
        }
    }

    fn master(&mut self, i: usize, request: &[u8]) -> Vec<u8> {
        let cluster = self.coordinator.cluster();
        let master = &mut self.masters[i];
        match opcode(request).unwrap() {
            Opcode::TakeTablet => {
                let take = TakeTablet::parse(request).unwrap();
                if take.server != master.id {
                    return no(Status::NotInCluster);
                }
                if !master.tablets.contains(&(take.table, take.first, take.last)) {
                    master.tablets.push((take.table, take.first, take.last));
                }
                done()
            }
            Opcode::Ping if Ping::parse(request).unwrap().server == master.id => done(),
            Opcode::Ping => no(Status::NotInCluster),
            Opcode::IncrementInteger => {
                let Increment { target, once, amount, key } = Increment::parse(request).unwrap();
                assert_eq!(target.cluster, cluster);
                if !master.tablets.iter().any(|tablet| tablet.0 == target.table) {
                    return no(Status::UnknownTablet);
                }
                let check = CheckLease { cluster, leases: vec![once.lease] };
                let valid =
                    self.ask(check.emit()).map(|reply| LeaseTimes::parse(&reply).unwrap().valid_ns);
                match valid {
                    None => return no(Status::Retry),
                    Some(valid) if valid[0] == 0 => return no(Status::ExpiredLease),
                    Some(_) => {}
                }
                let Amount::Integer(amount) = amount else { panic!() };
                self.increment(i, once, key, amount)
            }
            other => panic!("{other:?}"),
        }
    }

    fn increment(&mut self, i: usize, once: Once, key: &[u8], amount: i64) -> Vec<u8> {
        let master = &mut self.masters[i];
        let (acked, answers) = master.answers.entry(once.lease.0).or_default();
        *acked = (*acked).max(once.ack);
        *answers = answers.split_off(&(*acked + 1));
        assert!(answers.len() as u64 <= WINDOW);
        if once.rpc <= *acked {
            return no(Status::StaleRpc);
        }
        answers
            .entry(once.rpc)
            .or_insert_with(|| {
                let (version, sum) = master.values.entry(key.to_vec()).or_default();
                *version += 1;
                *sum += amount;
                self.executed.push(amount);
                ok(*version, &sum.to_be_bytes())
            })
            .clone()
    }

    /// Lets the client with index `i` take its next steps.
    fn work(&mut self, i: usize) {
        if self.asleep[i] > self.now {
            return;
        }
        let Some(table) = self.table else {
            self.clients[i].create_table("counters", 2, Instant::NEVER);
            return;
        };
        if self.left[i] == 0 {
            return;
        }
        self.left[i] -= 1;
        let amount = ((i as i64) << 32) | (i64::from(self.left[i]) + 1);
        let deadline = self.now.after(self.rng.below(20 * SECOND) + MS);
        let key = [amount as u8 % 4];
        let op = self.clients[i].increment_integer(table, &key, amount, NO_RULES, deadline);
        self.ops.insert((i, op), amount);
        if self.rng.chance(20_000) {
            // Long enough for its lease to end, with operations under way.
            self.pump();
            self.asleep[i] = self.now.after(7 * SECOND);
        }
        let pause =
            if self.rng.chance(700_000) { self.rng.below(MS) } else { self.rng.below(SECOND) };
        self.after(self.asleep[i].since(self.now).max(pause), Event::Work(i));
    }

    fn ended(&mut self, i: usize, op: Op, outcome: Result<Answer<'_>, Error>) {
        let Some(amount) = self.ops.remove(&(i, op)) else {
            let Ok(Answer::Table(table)) = outcome else { panic!("{outcome:?}") };
            assert!(self.table.is_none_or(|known| known == table), "created twice");
            self.table = Some(table);
            return self.after(MS, Event::Work(i));
        };
        let result = outcome.map(|answer| match answer {
            Answer::Integer { sum, .. } => sum,
            other => panic!("{other:?}"),
        });
        assert!(self.done.insert(amount, result).is_none(), "ended twice");
    }

    fn run(&mut self) {
        let total = CLIENTS * INCREMENTS as usize;
        for _ in 0..1_000_000 {
            self.pump();
            if self.done.len() == total
                && self.queue.values().all(|event| matches!(event, Event::Renew))
            {
                return;
            }
            let mut next = *self.queue.first_key_value().expect("masters renew").0;
            let machines = (0..CLIENTS).filter(|&i| self.asleep[i] <= self.now);
            let timers = machines.filter_map(|i| self.clients[i].deadline());
            let timer = timers.chain(self.coordinator.deadline()).min();
            if let Some(timer) = timer.filter(|timer| *timer < next.0) {
                self.now = self.now.max(timer);
                while self.coordinator.tick(self.now) {}
                for i in 0..CLIENTS {
                    if self.asleep[i] <= self.now {
                        self.clients[i].tick(self.now);
                    }
                }
                continue;
            }
            next.0 = next.0.max(self.now);
            self.now = next.0;
            let (_, event) = self.queue.pop_first().unwrap();
            self.happen(event);
        }
        panic!("it does not come to an end; left: {:?}", self.ops);
    }

    fn check(&self) {
        let mut counts = BTreeMap::new();
        for amount in &self.executed {
            *counts.entry(*amount).or_insert(0) += 1;
        }
        for (amount, result) in &self.done {
            let count = counts.get(amount).copied().unwrap_or(0);
            match result {
                Ok(_) => assert_eq!(count, 1, "{amount:x} ended well"),
                Err(error) if error.maybe_executed() => assert!(count <= 1, "{amount:x}: {error}"),
                Err(Error::TabletLost) if self.crashed => assert!(count <= 1, "{amount:x}"),
                Err(error) => assert_eq!(count, 0, "{amount:x}: {error}"),
            }
        }
        // No two of one key had the same sum.
        let mut sums: Vec<_> = self
            .done
            .iter()
            .filter_map(|(amount, result)| Some((amount % 4, *result.as_ref().ok()?)))
            .collect();
        let all = sums.len();
        sums.sort_unstable();
        sums.dedup();
        assert!(sums.len() == all || self.crashed);
    }
}

fn world(seed: u64) -> World {
    let mut w = World::new(seed);
    for i in 0..CLIENTS {
        w.after(SECOND, Event::Work(i));
    }
    w
}

#[test]
fn every_increment_happens_as_often_as_its_client_was_told() {
    let (mut good, mut unknown) = (0, 0);
    for seed in 0..60 {
        let mut w = world(seed);
        w.run();
        w.check();
        good += w.done.values().filter(|result| result.is_ok()).count();
        unknown += w.done.values().filter(|result| *result == &Err(Error::Unknown)).count();
    }
    // There are enough faults to end leases, and few enough that operations succeed.
    assert!(good > 60 * 60 && unknown > 0, "{good} good, {unknown} unknown");
}

#[test]
fn so_it_does_while_the_coordinator_restarts() {
    for seed in 100..130 {
        let mut w = world(seed);
        for i in 1..12 {
            let at = i * SECOND + w.rng.below(SECOND);
            w.after(at, Event::Restart);
        }
        w.run();
        w.check();
    }
}

#[test]
fn so_it_does_while_a_master_crashes() {
    let mut lost = 0;
    for seed in 200..230 {
        let mut w = world(seed);
        let at = 2 * SECOND + w.rng.below(10 * SECOND);
        w.after(at, Event::Crash(0));
        w.run();
        w.check();
        lost += w.done.values().filter(|result| *result == &Err(Error::TabletLost)).count();
    }
    assert!(lost > 30, "{lost} operations found their tablet lost");
}
