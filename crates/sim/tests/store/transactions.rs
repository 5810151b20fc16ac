//! Transactions while tablets move, servers crash and clients end in the middle: every history is
//! strictly serializable, and no lock stays.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};
use sprat_sim::check::history::Name;
use sprat_sim::check::serial;
use sprat_sim::node::{Node, config};
use sprat_sim::wire::HostId;
use sprat_sim::{Chaos, HostFaults, Options, Outside, Process, Start, World, seeds};
use sprat_store::client::{Answer, Change, Client, Config, Done, Error, Op, TransactionPart};
use sprat_store::message::data::RejectRules;
use sprat_store::types::{TableId, Version};

use crate::replicas::Audits;
use crate::score::Score;
use crate::user::{Side, arranged};
use crate::{Shape, finish, locators_of, recovery, world};

/// The number of tables, and of the keys of each.
const TABLES: u64 = 2;
const KEYS: u64 = 5;
/// The most operations and transactions of a trader in progress.
const MOST: usize = 3;

/// An operation that is in progress.
#[derive(Clone, Debug)]
enum Asked {
    Create(u64),
    /// A read of an object for the transaction with this number.
    Read(usize, Name),
    /// The commit of a transaction, with the objects that it changes by the index of their parts.
    Commit(usize, Vec<(usize, Name)>),
    /// A plain read, and a plain change.
    Plain(usize, Name),
    Change(usize, Name),
    Tablets(u64),
    Arrangement,
}

/// A transaction that reads.
#[derive(Debug, Default)]
struct Reading {
    /// The reads that were not answered yet.
    left: usize,
    seen: Vec<(Name, Option<u64>)>,
    failed: bool,
}

/// A program that makes transactions and plain operations on a few objects.
struct Trader {
    host: HostId,
    node: Node<Side>,
    rng: Rng,
    servers: u64,
    span: u32,
    arrange_ppm: u32,
    pause_ns: u64,
    tables: BTreeMap<u64, TableId>,
    asked: BTreeMap<Op, Asked>,
    reading: BTreeMap<usize, Reading>,
    next: Instant,
    read_all: bool,
}

fn key_bytes(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// Returns the value with this tag.
fn value(tag: u64) -> Vec<u8> {
    tag.to_be_bytes().repeat(1 + (tag % 40) as usize)
}

fn tag_of(bytes: &[u8]) -> u64 {
    let tag = u64::from_be_bytes(bytes[..8].try_into().expect("a tag"));
    assert!(value(tag) == bytes, "value {tag} is damaged");
    tag
}

fn table_name(table: u64) -> String {
    format!("traded {table}")
}

impl Trader {
    fn new(start: Start<'_>, coordinators: &[HostId], shape: &Shape) -> Self {
        let mut rng = start.rng;
        let config_ = Config {
            try_timeout_ns: 20 * MS + rng.below(100 * MS),
            ..Config::new(&locators_of(coordinators, &mut rng))
        };
        let side = Side::new(Client::new(config_, rng.fork()));
        Self {
            host: start.host,
            node: Node::new(side, config(false), rng.fork(), start.port),
            rng,
            servers: shape.masters as u64,
            span: shape.habits.span,
            arrange_ppm: shape.habits.arrange_ppm,
            pause_ns: shape.habits.pause_ns,
            tables: BTreeMap::new(),
            asked: BTreeMap::new(),
            reading: BTreeMap::new(),
            // Most masters have joined the cluster by then.
            next: start.now.after(600 * MS),
            read_all: false,
        }
    }

    fn ask(&mut self, asked: Asked, start: impl FnOnce(&mut Client) -> Op) {
        let op = start(self.node.command().client());
        self.asked.insert(op, asked);
    }

    fn deadline(&mut self, now: Instant) -> Instant {
        match self.rng.below(10) {
            0 => now.after(self.rng.below(20 * MS)),
            1 => now.after(self.rng.below(500 * MS)),
            _ => Instant::NEVER,
        }
    }

    // Requests.

    fn act(&mut self, now: Instant, score: &mut Score) {
        self.next = now.after(1 + self.rng.below(self.pause_ns));
        if self.tables.len() < TABLES as usize {
            for table in 0..TABLES {
                let span = self.span;
                let is_asked =
                    self.asked.values().any(|a| matches!(a, Asked::Create(t) if *t == table));
                if !self.tables.contains_key(&table) && !is_asked {
                    let name = table_name(table);
                    self.ask(Asked::Create(table), |client| {
                        client.create_table(&name, span, Instant::NEVER)
                    });
                }
            }
            return;
        }
        if score.finale {
            if !std::mem::replace(&mut self.read_all, true) {
                for name in (0..TABLES).flat_map(|table| (0..KEYS).map(move |key| (table, key))) {
                    self.ask_plain(score, name, Instant::NEVER);
                }
            }
            return;
        }
        let left = score.left.entry(self.host).or_default();
        if *left == 0 || self.asked.len() >= MOST {
            return;
        }
        *left -= 1;
        if self.rng.chance(self.arrange_ppm) {
            let table = self.rng.below(TABLES);
            let id = self.tables[&table];
            return self
                .ask(Asked::Tablets(table), |client| client.list_tablets(id, Instant::NEVER));
        }
        let deadline = self.deadline(now);
        match self.rng.below(10) {
            0 => self.ask_plain_change(score, deadline),
            1 => {
                let name = self.name();
                self.ask_plain(score, name, deadline);
            }
            _ => self.begin(score, deadline),
        }
        // The client gives up a few.
        if self.rng.chance(5_000)
            && let Some((op, asked)) = self.asked.pop_first()
        {
            assert!(self.node.command().client().cancel(op));
            self.failed(score, asked, false);
        }
    }

    fn name(&mut self) -> Name {
        (self.rng.below(TABLES), self.rng.below(KEYS))
    }

    fn ask_plain(&mut self, score: &mut Score, name: Name, deadline: Instant) {
        let number = score.serial.begin();
        let (id, key) = (self.tables[&name.0], key_bytes(name.1));
        self.ask(Asked::Plain(number, name), |client| {
            client.read(id, &key, RejectRules::default(), deadline)
        });
    }

    fn ask_plain_change(&mut self, score: &mut Score, deadline: Instant) {
        let (name, rules) = (self.name(), RejectRules::default());
        let (id, key) = (self.tables[&name.0], key_bytes(name.1));
        if self.rng.chance(300_000) {
            let number = score.serial.remove(name);
            self.ask(Asked::Change(number, name), |client| {
                client.remove(id, &key, rules, deadline)
            });
        } else {
            let tag = score.tag();
            let number = score.serial.write(name, tag);
            self.ask(Asked::Change(number, name), |client| {
                client.write(id, &key, &value(tag), rules, deadline)
            });
        }
    }

    /// Begins a transaction: reads some objects, or none.
    fn begin(&mut self, score: &mut Score, deadline: Instant) {
        let number = score.serial.begin();
        let mut names: Vec<Name> = (0..self.rng.below(4)).map(|_| self.name()).collect();
        names.sort_unstable();
        names.dedup();
        let reading = Reading { left: names.len(), ..Reading::default() };
        self.reading.insert(number, reading);
        for &name in &names {
            let (id, key) = (self.tables[&name.0], key_bytes(name.1));
            self.ask(Asked::Read(number, name), |client| {
                client.read(id, &key, RejectRules::default(), deadline)
            });
        }
        if names.is_empty() {
            self.commit(score, number);
        }
    }

    /// Commits a transaction whose reads are all answered.
    fn commit(&mut self, score: &mut Score, number: usize) {
        let Reading { mut seen, failed, .. } = self.reading.remove(&number).expect("it reads");
        if failed {
            return score.serial.abort(number);
        }
        let read = seen.len();
        // Some objects are changed blindly.
        while seen.is_empty() || self.rng.chance(200_000) {
            let name = self.name();
            if seen.iter().all(|(other, _)| *other != name) {
                seen.push((name, None));
            }
        }
        let is_reader = self.rng.chance(250_000) && read == seen.len();
        let mut changed = Vec::new();
        let mut values = Vec::new();
        for (index, &(name, version)) in seen.iter().enumerate() {
            let rules = match version {
                _ if index >= read => RejectRules::default(),
                None => RejectRules { exists: true, ..RejectRules::default() },
                Some(version) => RejectRules {
                    given_version: Version(version),
                    doesnt_exist: true,
                    version_ne_given: true,
                    ..RejectRules::default()
                },
            };
            let kind = match self.rng.below(5) {
                0 | 1 if index < read => 0,
                _ if is_reader => 0,
                2 => 2,
                _ => 1,
            };
            let tag = if kind == 1 { score.tag() } else { 0 };
            match kind {
                1 => score.serial.add(number, serial::Part::Write { name, tag }),
                2 => score.serial.add(number, serial::Part::Remove { name }),
                _ => {}
            }
            if kind > 0 {
                changed.push((index, name));
            }
            values.push((name, rules, kind, value(tag)));
        }
        let keys: Vec<_> = values.iter().map(|((_, key), ..)| key_bytes(*key)).collect();
        let parts: Vec<_> = values
            .iter()
            .zip(&keys)
            .map(|((name, rules, kind, value), key)| TransactionPart {
                table: self.tables[&name.0],
                key,
                rules: *rules,
                change: match kind {
                    0 => Change::Check,
                    1 => Change::Write(value, None),
                    _ => Change::Remove,
                },
            })
            .collect();
        let op = self.node.command().client().transact(&parts, Instant::NEVER);
        self.asked.insert(op, Asked::Commit(number, changed));
    }

    // Answers.

    fn take_results(&mut self, score: &mut Score) {
        for Done { op, outcome } in self.node.machine().take_done() {
            let asked = self.asked.remove(&op).expect("it was asked");
            match (asked, outcome) {
                (Asked::Create(table), Ok(Answer::Table(id))) => _ = self.tables.insert(table, id),
                // No master has joined the cluster yet.
                (Asked::Create(_), Err(_)) => {}
                (Asked::Tablets(table), outcome) => self.arrange(table, outcome),
                (Asked::Arrangement, outcome) => arranged(&outcome),
                (Asked::Read(number, name), outcome) => self.seen(score, number, name, outcome),
                (Asked::Plain(number, name), outcome) => match seen(outcome) {
                    Ok(seen) => score.serial.read(number, name, seen),
                    Err(_) => score.serial.unknown(number),
                },
                (Asked::Change(number, name), Ok(Answer::Version(version))) => {
                    score.serial.commit(number, &[(name, version.0)]);
                }
                (Asked::Commit(number, changed), Ok(Answer::Committed(versions))) => {
                    COMMITTED.fetch_add(1, Ordering::Relaxed);
                    let version = |&(index, name): &(usize, Name)| (name, versions[index].0);
                    score.serial.commit(number, &changed.iter().map(version).collect::<Vec<_>>());
                }
                (asked, Err(error)) => {
                    let is_conflict = matches!(error, Error::Conflict { .. });
                    CONFLICTS.fetch_add(u64::from(is_conflict), Ordering::Relaxed);
                    let expected = matches!(
                        error,
                        Error::Conflict { .. }
                            | Error::Unknown
                            | Error::NoSpace
                            | Error::TooFewServers
                            | Error::Deadline { .. }
                    );
                    assert!(expected, "{error:?}");
                    self.failed(score, asked, is_conflict || !error.maybe_executed());
                }
                (asked, Ok(answer)) => panic!("{asked:?}: {answer:?}"),
            }
        }
    }

    /// Records the end of an operation without the answer that it was to have. It surely changed
    /// nothing if `sure`.
    fn failed(&mut self, score: &mut Score, asked: Asked, sure: bool) {
        match asked {
            Asked::Read(number, name) => {
                self.seen(score, number, name, Err(Error::NotInProgress));
            }
            Asked::Plain(number, _) => score.serial.unknown(number),
            Asked::Commit(number, _) | Asked::Change(number, _) if sure => {
                score.serial.abort(number);
            }
            Asked::Commit(number, _) | Asked::Change(number, _) => score.serial.unknown(number),
            Asked::Create(_) | Asked::Tablets(_) | Asked::Arrangement => {}
        }
    }

    fn seen(
        &mut self,
        score: &mut Score,
        number: usize,
        name: Name,
        outcome: Result<Answer<'_>, Error>,
    ) {
        let reading = self.reading.get_mut(&number).expect("it reads");
        reading.left -= 1;
        match seen(outcome) {
            Ok(seen) => {
                score.serial.add(number, serial::Part::Read { name, seen });
                reading.seen.push((name, seen.map(|(version, _)| version)));
            }
            Err(_) => reading.failed = true,
        }
        if reading.left == 0 {
            self.commit(score, number);
        }
    }

    fn arrange(&mut self, table: u64, outcome: Result<Answer<'_>, Error>) {
        let Ok(Answer::Tablets(tablets)) = outcome else { return arranged(&outcome) };
        let tablet = &tablets[self.rng.below(tablets.len() as u64) as usize];
        let (first, last, never) = (tablet.first, tablet.last, Instant::NEVER);
        let at = first + self.rng.below((last - first).max(1));
        let kind = if tablets.len() > 5 { self.rng.below(3) + 1 } else { self.rng.below(4) };
        let target = self.rng.below(self.servers) as u32;
        let range = if self.rng.chance(500_000) { (first, at) } else { (first, last) };
        let name = table_name(table);
        self.ask(Asked::Arrangement, |client| match kind {
            0 => client.split_tablet(&name, at, never),
            1 => client.merge_tablets(&name, first, never),
            _ => client.move_tablet(&name, range, target, never),
        });
    }
}

/// Returns the version and the tag that a read saw, or none if the object does not exist.
fn seen(outcome: Result<Answer<'_>, Error>) -> Result<Option<(u64, u64)>, Error> {
    match outcome {
        Ok(Answer::Object { version, value }) => Ok(Some((version.0, tag_of(&value)))),
        Err(Error::ObjectDoesntExist) => Ok(None),
        Err(error) => Err(error),
        Ok(other) => panic!("{other:?}"),
    }
}

/// The numbers of transactions of all worlds that were committed, and that met a conflict.
static COMMITTED: AtomicU64 = AtomicU64::new(0);
static CONFLICTS: AtomicU64 = AtomicU64::new(0);

impl Process<Score> for Trader {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.node.input(outside);
        self.take_results(outside.score);
        if self.next <= outside.now {
            self.act(outside.now, outside.score);
        }
        let more = self.node.output(outside);
        self.take_results(outside.score);
        let open = self.asked.len() + self.reading.len();
        outside.score.open.insert(self.host, (open, self.read_all));
        more
    }

    fn deadline(&self) -> Option<Instant> {
        let next = (!self.read_all).then_some(self.next);
        self.node.deadline().into_iter().chain(next).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// Returns a world with traders in place of its users.
fn traded(seed: u64, options: Options, shape: &Shape, traders: usize) -> World<Score> {
    let shape = Shape { users: 0, ..shape.clone() };
    let mut world = world(seed, options, &shape);
    for _ in 0..traders {
        let (coordinators, its) = (shape.coordinators(), shape.clone());
        let host = world
            .host(shape.faults[2], move |start| Box::new(Trader::new(start, &coordinators, &its)));
        world.score.left.insert(host, shape.operations);
    }
    world
}

/// Returns the shape of a world in which traders split, merge and move tablets.
pub(crate) fn arranged_shape(rng: &mut Rng) -> Shape {
    let mut shape = Shape { masters: 2 + rng.below(3) as usize, ..Shape::default() };
    (shape.habits.span, shape.operations) = (1 + rng.below(4) as u32, 150);
    // A server without replicas that loses its lease takes its tablets along.
    shape.server_term_ns = 2 * SECOND;
    shape.habits.arrange_ppm = [0, 50_000, 300_000][rng.below(3) as usize];
    shape
}

/// Returns the faults of a world in which clients crash or are stopped. Its servers keep their
/// leases, since their log has no replicas.
pub(crate) fn client_faults(rng: &mut Rng) -> Options {
    let mut options = Options::default();
    let (every_ns, down_ns, pause_ns) = (100 * MS, 500 * MS, 500 * MS);
    options.chaos =
        Chaos { every_ns, weights: [2, 1, 0, 0], down_ns, pause_ns, ..Chaos::default() };
    options.wire.fault = recovery::mild_fault(rng);
    options
}

#[test]
fn transactions_are_serializable_while_tablets_move() {
    seeds::each("transactions_are_serializable_while_tablets_move", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x7ac5);
        let mut options = Options::default();
        options.wire.fault = recovery::mild_fault(&mut rng);
        let shape = arranged_shape(&mut rng);
        let traders = 2 + rng.below(4) as usize;
        let mut world = traded(seed, options, &shape, traders);
        assert_eq!(finish(&mut world), Ok(()));
        crate::check(&mut world, &shape);
    });
    let counts = (&COMMITTED, &CONFLICTS);
    assert!(counts.0.load(Ordering::Relaxed) > 0 && counts.1.load(Ordering::Relaxed) > 0);
}

/// Clients crash in the middle of transactions, or are stopped: what they left is decided without
/// them.
#[test]
fn transactions_are_decided_without_their_clients() {
    let (mut silent, mut worlds) = (0, 0);
    seeds::each("transactions_are_decided_without_their_clients", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x7ac6);
        let options = client_faults(&mut rng);
        let mut shape = arranged_shape(&mut rng);
        shape.faults[2] = HostFaults::ALL;
        (shape.habits.span, shape.habits.pause_ns) = (4, 20 * MS);
        let mut world = traded(seed, options, &shape, 4);
        assert_eq!(finish(&mut world), Ok(()));
        crate::check(&mut world, &shape);
        let of = |host| {
            world.state::<sprat_store::master::Master>(host).map(|master| {
                (master.counter("transactions_silent"), master.counter("transactions"))
            })
        };
        for (asked, left) in (1..=shape.masters).filter_map(of).collect::<Vec<_>>() {
            silent += asked;
            assert!(left <= 4, "{left} records are left");
        }
        worlds += 1;
    });
    assert!(silent > 0 || worlds == 1);
}

/// Up to as many servers crash at once as a log has replicas.
#[test]
fn transactions_are_serializable_while_servers_crash() {
    let (mut crashes, mut audits) = (0, Audits::default());
    seeds::each("transactions_are_serializable_while_servers_crash", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x7ac7);
        let mut shape = recovery::crashing(&mut rng, HostFaults::NONE);
        (shape.operations, shape.habits.pause_ns) = (100, 60 * MS);
        shape.habits.span = 1 + rng.below(4) as u32;
        shape.habits.arrange_ppm = [0, 100_000][rng.below(2) as usize];
        let world = traded(seed, Options::default(), &shape, 4);
        let run = recovery::run_crashing(world, &mut rng, &shape, &mut audits);
        assert!(run.held, "no lease ends");
        crashes += run.crashes;
    });
    assert!(crashes > 0);
}
