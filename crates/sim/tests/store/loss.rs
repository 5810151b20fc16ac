//! Worlds in which more servers crash at once than the logs survive, and an operator accepts what
//! is lost.
//!
//! Before the loss is accepted no operation is answered by what is left. Afterwards an object may
//! be gone or old, but each version of a key still names one value, and later writes have higher
//! versions than any that was ever seen.

use std::any::Any;
use std::collections::BTreeMap;

use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};
use sprat_sim::node::{Node, config};
use sprat_sim::{HostFaults, Options, Outside, Process, Start, seeds};
use sprat_store::client::{Answer, Client, Config, Error, Op};
use sprat_store::message::control::ServerState;
use sprat_store::message::data::RejectRules;
use sprat_store::types::{TableId, Version};

use crate::recovery::STEP_NS;
use crate::score::Score;
use crate::user::Side;
use crate::{Shape, locators_of, replicas, replicated, world};

/// The number of keys that the operator uses.
const KEYS: u64 = 12;
/// The longest pause between two operations.
const PAUSE_NS: u64 = 8 * MS;
/// The pause between two requests for the list of servers.
const WATCH_NS: u64 = 300 * MS;
/// The longest time in which a blocked cluster serves again.
const PATIENCE_NS: u64 = 60 * SECOND;

/// The answers about a key that the operator has got.
#[derive(Debug, Default)]
struct Known {
    /// The number of the value that each version has had. 0 stands for a removal.
    values: BTreeMap<u64, u64>,
    /// The number of the value that was written or removed last, unless a loss may have taken it.
    last: Option<u64>,
}

/// The operation on an object that is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Create,
    Read(u64),
    Write(u64, u64),
    Remove(u64),
}

/// A program that uses one table, one operation at a time, and accepts each loss.
#[derive(Debug)]
struct Operator {
    node: Node<Side>,
    rng: Rng,
    table: Option<TableId>,
    known: BTreeMap<u64, Known>,
    work: Option<(Op, Work)>,
    work_at: Instant,
    watch: Option<Op>,
    watch_at: Instant,
    /// The numbers of values that were written, of operations that ended, of losses that were
    /// accepted, and of reads that show a loss.
    values: u64,
    ended: u64,
    accepted: u64,
    shown: u64,
}

impl Operator {
    fn new(start: Start<'_>) -> Self {
        let mut rng = start.rng;
        let config_ =
            Config { try_timeout_ns: 50 * MS, ..Config::new(&locators_of(&[0], &mut rng)) };
        let side = Side::new(Client::new(config_, rng.fork()));
        Self {
            node: Node::new(side, config(false), rng.fork(), start.port),
            rng,
            table: None,
            known: BTreeMap::new(),
            work: None,
            work_at: start.now,
            watch: None,
            watch_at: start.now,
            values: 0,
            ended: 0,
            accepted: 0,
            shown: 0,
        }
    }

    /// Starts the next operation on the table.
    fn start(&mut self, now: Instant) {
        let deadline = now.after(1_000 * SECOND);
        let (key, kind) = (self.rng.below(KEYS), self.rng.below(10));
        let client = self.node.command().client();
        let bytes = key.to_be_bytes();
        let (op, work) = match (self.table, kind) {
            (None, _) => (client.create_table("t", 2, deadline), Work::Create),
            (Some(table), 0..5) => {
                (client.read(table, &bytes, RejectRules::default(), deadline), Work::Read(key))
            }
            (Some(table), 5) => {
                let rules = RejectRules::default();
                (client.remove(table, &bytes, rules, deadline), Work::Remove(key))
            }
            (Some(table), _) => {
                self.values += 1;
                let mut value = self.values.to_be_bytes().to_vec();
                value.resize(1_000 + self.rng.below(2_000) as usize, 7);
                let rules = RejectRules::default();
                let op = client.write(table, &bytes, &value, rules, deadline);
                (op, Work::Write(key, self.values))
            }
        };
        self.work = Some((op, work));
    }

    fn ended(&mut self, now: Instant, work: Work, outcome: Result<Answer<'static>, Error>) {
        self.ended += 1;
        match (work, outcome) {
            (Work::Create, Ok(Answer::Table(table))) => self.table = Some(table),
            (Work::Read(key), Ok(Answer::Object { version, value })) => {
                let number = u64::from_be_bytes(value[..8].try_into().expect("8 bytes"));
                self.read(key, Some((version, number)));
            }
            (Work::Read(key), Err(Error::ObjectDoesntExist)) => self.read(key, None),
            (Work::Write(key, number), Ok(Answer::Version(version))) => {
                let known = self.known.entry(key).or_default();
                let highest = known.values.last_key_value().map_or(0, |(version, _)| *version);
                assert!(version.0 > highest, "key {key}: {version:?} after {highest}");
                known.values.insert(version.0, number);
                known.last = Some(number);
            }
            (Work::Remove(key), Ok(Answer::Version(_))) => {
                self.known.entry(key).or_default().last = Some(0);
            }
            (Work::Create, Err(Error::TooFewServers)) => {}
            // The replicas of the survivors have to be made anew first.
            (Work::Write(..), Err(Error::NoSpace)) => {}
            (work, outcome) => panic!("{work:?}: {outcome:?}"),
        }
        self.work_at = now.after(self.rng.below(PAUSE_NS));
    }

    fn read(&mut self, key: u64, found: Option<(Version, u64)>) {
        let known = self.known.entry(key).or_default();
        let number = found.map_or(0, |(_, number)| number);
        if let Some((version, number)) = found
            && let Some(written) = known.values.insert(version.0, number)
        {
            assert_eq!(number, written, "key {key}: two values of {version:?}");
        }
        match known.last {
            Some(last) => assert_eq!(number, last, "key {key}: {found:?}"),
            None => self.shown += 1,
        }
        known.last = Some(number);
    }

    /// Accepts the loss of each blocked server.
    fn watched(&mut self, now: Instant, outcome: Result<Answer<'static>, Error>) {
        let blocked = match outcome {
            Ok(Answer::Servers(servers)) => {
                servers.into_iter().find(|server| server.state == ServerState::Blocked)
            }
            Ok(Answer::Loss(_)) => {
                self.accepted += 1;
                self.known.values_mut().for_each(|known| known.last = None);
                None
            }
            // The recovery goes on by itself meanwhile.
            Err(Error::Refused { .. } | Error::Deadline { .. }) => None,
            other => panic!("{other:?}"),
        };
        self.watch = blocked.map(|server| {
            let client = self.node.command().client();
            client.accept_loss(server.server, true, now.after(SECOND))
        });
        self.watch_at = now.after(WATCH_NS);
    }
}

impl Process<Score> for Operator {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.node.input(outside);
        for done in self.node.command().take_done() {
            if self.watch == Some(done.op) {
                self.watched(outside.now, done.outcome);
            } else if let Some((_, work)) = self.work.take_if(|(op, _)| *op == done.op) {
                self.ended(outside.now, work, done.outcome);
            }
        }
        if self.work.is_none() && self.work_at <= outside.now {
            self.start(outside.now);
        }
        if self.watch.is_none() && self.watch_at <= outside.now {
            let deadline = outside.now.after(SECOND);
            self.watch = Some(self.node.command().client().list_servers(deadline));
        }
        self.node.output(outside)
    }

    fn deadline(&self) -> Option<Instant> {
        let watch = self.watch.is_none().then_some(self.watch_at);
        let work = self.work.is_none().then_some(self.work_at);
        self.node.deadline().into_iter().chain(watch).chain(work).min()
    }

    fn state(&mut self) -> &mut dyn Any {
        self
    }
}

/// More servers than a log survives crash at once, again and again. Each time the cluster serves
/// again once the operator has accepted the loss.
#[test]
fn with_accepted_losses() {
    let (mut accepted, mut shown) = (0, 0);
    seeds::each("with_accepted_losses", 5, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x1055);
        let mut shape = Shape { users: 0, ..replicated(&mut rng, HostFaults::NONE) };
        (shape.masters, shape.replicas) = (4, 1);
        let mut world = world(seed, Options::default(), &shape);
        let operator = world.host(HostFaults::NONE, |start| Box::new(Operator::new(start)));
        let hosts: Vec<_> = (1..=shape.masters).collect();
        for _ in 0..6 {
            let mut whole = Err(String::new());
            for _ in 0..PATIENCE_NS / STEP_NS {
                world.run_for(STEP_NS);
                whole = replicas::whole(&mut world, &hosts, shape.replicas);
                if whole.is_ok() {
                    break;
                }
            }
            assert_eq!(whole, Ok(()), "the cluster serves again");
            world.run_for(rng.below(2 * SECOND));
            let first = rng.below(hosts.len() as u64) as usize;
            for n in 0..2 {
                world.crash(hosts[(first + n) % hosts.len()], Some(SECOND));
            }
        }
        let Some(operator) = world.state::<Operator>(operator) else { panic!("it is up") };
        assert!(operator.ended > 100, "{operator:?}");
        (accepted, shown) = (accepted + operator.accepted, shown + operator.shown);
    });
    assert!(accepted > 0 && shown > 0, "{accepted} {shown}");
}
