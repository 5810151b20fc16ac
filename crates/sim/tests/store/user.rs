//! A simulated program that uses the store at random, and records its operations and their answers
//! in the score.

use std::collections::BTreeMap;

use sprat_proto::node::machine::{Caller, Machine, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_proto::time::MS;
use sprat_proto::{Instant, Rng};
use sprat_sim::check::names;
use sprat_sim::check::store::{self, Reject, Value};
use sprat_sim::node::{Node, config};
use sprat_sim::wire::HostId;
use sprat_sim::{Outside, Process, Start};
use sprat_store::client::{Answer, Client, Config, Done, Error, Op, TableOptions, TabletInfo};
use sprat_store::durability::TableDurability;
use sprat_store::message::Status;
use sprat_store::message::data::{Amount, RejectRules};
use sprat_store::types::TableId;

use crate::draw::{Change, Draw, Drawn, EXPIRING, KEYS, key_bytes, value_of};
use crate::locators_of;
use crate::score::Score;

mod several;

/// The workload of a simulated user of the store.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// The number of table names that the user chooses from.
    pub(crate) names: u64,
    /// The number of tablets of each table.
    pub(crate) span: u32,
    /// The longest time between two operations of the user, in nanoseconds.
    pub(crate) pause_ns: u64,
    /// The longest value that the user writes, in bytes.
    pub(crate) longest: u64,
    /// The probability that a user drops a table instead of using it, in parts per million.
    pub(crate) drop_ppm: u32,
    /// The number of servers of the cluster.
    pub(crate) servers: u64,
    /// The probability that a user splits, merges or moves tablets instead of using one, in parts
    /// per million.
    pub(crate) arrange_ppm: u32,
    /// True if changes of the tables with odd names do not wait for their replicas.
    pub(crate) hasty: bool,
}

impl Habits {
    /// Returns the options of a new table of this name.
    fn options(&self, name: u64) -> TableOptions {
        let durability = if self.hasty && name % 2 == 1 {
            TableDurability::Async
        } else {
            TableDurability::Cluster
        };
        TableOptions { durability, ..self.span.into() }
    }
}

/// An operation of a user in progress, by its number in the score.
#[derive(Clone, Debug)]
enum Asked {
    /// An operation on an object: its number in the score, its table and its key.
    Object(usize, u64, u64),
    Name(usize, u64),
    /// A listing of the tablets of a table with this name, for a change of them.
    Tablets(u64),
    /// A change of the tablets of a table.
    Arrangement,
    /// A multi-operation: the same of each part.
    Several(Vec<(usize, u64, u64)>),
    /// A transaction: the number in the score of each part that is recorded, by the index of the
    /// part.
    Transaction(Vec<(usize, usize)>),
}

impl Asked {
    /// The number of operations in progress.
    fn len(&self) -> usize {
        match self {
            Self::Several(parts) => parts.len(),
            Self::Transaction(parts) => parts.len(),
            _ => 1,
        }
    }
}

/// Checks the answer to a change of tablets: it may fail, but not in any way.
pub(crate) fn arranged(outcome: &Result<Answer<'_>, Error>) {
    match outcome {
        Ok(Answer::Arranged | Answer::Migration(_))
        | Err(
            Error::TableDoesntExist
            | Error::TooFewServers
            | Error::NotDurable { .. }
            | Error::Deadline { .. }
            | Error::Refused { status: Status::WrongTablets, .. },
        ) => {}
        other => panic!("{other:?}"),
    }
}

/// The store's client as a machine that receives no requests.
#[derive(Debug)]
pub(crate) struct Side {
    client: Client,
    done: Vec<Done<'static>>,
}

impl Side {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, done: Vec::new() }
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Returns the client's operations that completed since the last call.
    pub(crate) fn take_done(&mut self) -> Vec<Done<'static>> {
        while let Some(done) = self.client.event() {
            self.done.push(done);
        }
        std::mem::take(&mut self.done)
    }
}

impl Slices for Side {
    fn bytes(&self, slice: Slice) -> &[u8] {
        self.client.bytes(slice)
    }
}

impl Machine for Side {
    fn request(
        &mut self,
        _: Instant,
        _: Caller,
        _: Payload<'_>,
        _: Instant,
        _: &mut Message,
    ) -> Replied {
        panic!("a request to a client")
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        if let Some(Done { op, outcome }) = self.client.response(now, tag, result) {
            self.done.push(Done { op, outcome: outcome.map(Answer::into_owned) });
        }
    }

    fn has_output(&self) -> bool {
        self.client.has_output()
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        self.client.output(now)
    }

    fn released(&mut self, slice: Slice) {
        self.client.released(slice);
    }

    fn deadline(&self) -> Option<Instant> {
        self.client.deadline()
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.client.tick(now);
        false
    }
}

/// A simulated program that uses the store.
#[derive(Debug)]
pub(crate) struct User {
    host: HostId,
    rng: Rng,
    node: Node<Side>,
    habits: Habits,
    asked: BTreeMap<Op, Asked>,
    /// The ids of the tables that the user knows.
    tables: Vec<u64>,
    /// The versions of objects that the user has seen.
    versions: Vec<u64>,
    next: Instant,
    /// The true time of the turn.
    truth: Instant,
    /// True if the user has read all objects at the end.
    read_all: bool,
}

impl User {
    pub(crate) fn new(start: Start<'_>, habits: Habits, coordinators: &[HostId]) -> Self {
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
            habits,
            asked: BTreeMap::new(),
            tables: Vec::new(),
            versions: vec![0, 1],
            next: start.now,
            truth: start.truth,
            read_all: false,
        }
    }

    fn client(&mut self) -> &mut Client {
        self.node.command().client()
    }

    // Answers.

    fn take_results(&mut self, score: &mut Score) {
        for Done { op, outcome } in self.node.machine().take_done() {
            match self.asked.remove(&op) {
                Some(Asked::Object(number, table, key)) => {
                    self.check_time(score, (number, key), &outcome);
                    self.object_ended(score, (number, table, key), outcome);
                }
                Some(Asked::Several(asked)) => self.several_ended(score, asked, outcome),
                Some(Asked::Transaction(asked)) => {
                    self.transaction_ended(score, &asked, outcome);
                }
                Some(Asked::Name(number, name)) => self.name_answer(score, number, name, outcome),
                Some(Asked::Tablets(name)) => self.arrange(name, outcome),
                Some(Asked::Arrangement) => arranged(&outcome),
                None => panic!("{op:?} ends again, or was never asked: {outcome:?}"),
            }
        }
    }

    /// Checks that a read or a swap got no value that had expired when it was called.
    fn check_time(
        &self,
        score: &mut Score,
        (number, key): (usize, u64),
        outcome: &Result<Answer<'_>, Error>,
    ) {
        if let Some((tag, lifetime)) = score.lifetimes.remove(&number)
            && let Ok(Answer::Version(_) | Answer::Swapped { .. }) = outcome
        {
            score.expires.insert(tag, self.truth.after((lifetime + crate::CLOCKS_APART_MS) * MS));
        }
        let called = score.reads.remove(&number);
        let got = match outcome {
            Ok(Answer::Object { value, .. }) => Some(value),
            Ok(Answer::Swapped { before, value, .. }) if before.0 != 0 => Some(value),
            _ => None,
        };
        if let (Some(called), EXPIRING, Some(value)) = (called, key, got)
            && let Value::Bytes(tag) = value_of(key, value)
            && let Some(&last) = score.expires.get(&tag)
        {
            assert!(called <= last, "read {number} at {called:?} got value {tag:x} of {last:?}");
        }
    }

    /// Records the end of an operation on an object: its number, its table and its key.
    fn object_ended(
        &mut self,
        score: &mut Score,
        (number, table, key): (usize, u64, u64),
        outcome: Result<Answer<'_>, Error>,
    ) {
        let answer = self.object_answer(key, outcome);
        let is_dropped = answer == Some(store::Answer::Dropped);
        assert!(!is_dropped || score.may_be_dropped(table), "no user has dropped table {table}");
        score.history.end(number, answer);
    }

    fn object_answer(
        &mut self,
        key: u64,
        outcome: Result<Answer<'_>, Error>,
    ) -> Option<store::Answer> {
        let answer = match outcome {
            Ok(Answer::Object { version, value }) => {
                store::Answer::Read(version.0, value_of(key, &value))
            }
            Ok(Answer::Length { version, .. }) => store::Answer::Version(version.0),
            // The version of a write is never 0.
            Ok(Answer::Version(version)) => store::Answer::Version(version.0),
            Ok(Answer::Integer { version, sum }) => {
                store::Answer::Sum(version.0, Value::Word(sum as u64))
            }
            Ok(Answer::Double { version, sum }) => {
                store::Answer::Sum(version.0, Value::Word(sum.to_bits()))
            }
            Ok(Answer::Swapped { version, before, value }) => {
                let old = (before.0 != 0).then(|| (before.0, value_of(key, &value)));
                store::Answer::Swapped(version.0, old)
            }
            Err(Error::ObjectDoesntExist) => store::Answer::Missing,
            Err(Error::ObjectExists(version)) => store::Answer::Exists(version.0),
            Err(Error::WrongVersion(version)) => store::Answer::WrongVersion(version.0),
            Err(Error::NotANumber(version)) => store::Answer::NotANumber(version.0),
            Err(Error::Overflow(version)) => store::Answer::Overflow(version.0),
            Err(Error::TabletLost) => store::Answer::Lost,
            Err(Error::TableDoesntExist) => store::Answer::Dropped,
            Err(
                Error::NoSpace
                | Error::TooFewServers
                | Error::Deadline { maybe_executed: false, .. }
                | Error::NotDurable { maybe_executed: false, .. },
            ) => store::Answer::Nothing,
            Err(Error::Unknown | Error::Deadline { .. } | Error::NotDurable { .. }) => return None,
            other => panic!("{other:?}"),
        };
        let (store::Answer::Read(version, _)
        | store::Answer::Version(version)
        | store::Answer::Sum(version, _)
        | store::Answer::Swapped(version, _)
        | store::Answer::Exists(version)
        | store::Answer::WrongVersion(version)) = answer
        else {
            return Some(answer);
        };
        self.versions.push(version);
        Some(answer)
    }

    fn name_answer(
        &mut self,
        score: &mut Score,
        number: usize,
        name: u64,
        outcome: Result<Answer<'_>, Error>,
    ) {
        let answer = match outcome {
            Ok(Answer::Table(TableId(id))) => {
                score.tables.insert(id, name);
                if self.habits.options(name).durability == TableDurability::Async {
                    score.hasty.insert(id);
                }
                self.tables.push(id);
                Some(names::Answer::Table(id))
            }
            Ok(Answer::Dropped) => Some(names::Answer::Dropped),
            Err(Error::TableDoesntExist) => Some(names::Answer::Missing),
            Err(
                Error::Deadline { maybe_executed: false, .. }
                | Error::NotDurable { maybe_executed: false, .. },
            ) => Some(names::Answer::Nothing),
            // The table exists, perhaps by an earlier try of this operation, but has no servers. A
            // table of a cluster without servers is created when one joins.
            Err(
                Error::TabletLost
                | Error::TooFewServers
                | Error::Deadline { .. }
                | Error::NotDurable { .. },
            ) => None,
            other => panic!("{other:?}"),
        };
        score.end_name(number, answer);
    }

    // Requests.

    fn act(&mut self, now: Instant, score: &mut Score) {
        self.next = now.after(1 + self.rng.below(self.habits.pause_ns));
        if score.finale {
            return self.read_all(score);
        }
        for _ in 0..1 + self.rng.below(3) {
            let in_progress: usize = self.asked.values().map(Asked::len).sum();
            let left = score.left.entry(self.host).or_default();
            if *left > 0 && in_progress < 6 {
                *left -= 1;
                self.ask(now, score);
            }
        }
        if self.rng.chance(10_000)
            && let Some((op, asked)) = self.asked.pop_first()
        {
            assert!(self.client().cancel(op));
            match asked {
                Asked::Object(number, ..) => score.history.end(number, None),
                Asked::Name(number, _) => score.end_name(number, None),
                Asked::Tablets(_) | Asked::Arrangement => {}
                Asked::Several(parts) => {
                    parts.iter().for_each(|&(number, ..)| score.history.end(number, None));
                }
                Asked::Transaction(parts) => {
                    parts.iter().for_each(|&(_, number)| score.history.end(number, None));
                }
            }
        }
    }

    fn read_all(&mut self, score: &mut Score) {
        if std::mem::replace(&mut self.read_all, true) {
            return;
        }
        for table in score.tables.keys().copied().collect::<Vec<_>>() {
            for key in 0..KEYS {
                let rules = RejectRules::default();
                let op = self.client().read(TableId(table), &key_bytes(key), rules, Instant::NEVER);
                let number = score.history.call((table, key), store::Op::Read(Reject::default()));
                self.asked.insert(op, Asked::Object(number, table, key));
            }
        }
    }

    fn ask(&mut self, now: Instant, score: &mut Score) {
        let deadline = match self.rng.below(12) {
            0 => now.after(self.rng.below(5 * MS)),
            1 => now.after(self.rng.below(500 * MS)),
            _ => Instant::NEVER,
        };
        if self.tables.is_empty() || self.rng.chance(50_000) {
            return self.ask_name(score, deadline);
        }
        if self.habits.arrange_ppm > 0 && self.rng.chance(self.habits.arrange_ppm) {
            let table = self.tables[self.rng.below(self.tables.len() as u64) as usize];
            let op = self.client().list_tablets(TableId(table), deadline);
            self.asked.insert(op, Asked::Tablets(score.tables[&table]));
            return;
        }
        // A user forgets old tables slowly, so that it uses dropped ones for a while.
        let young = self.tables.len() - 1;
        let back = self.rng.below(4) * self.rng.below(2);
        let table = self.tables[young.saturating_sub(back as usize)];
        if self.rng.chance(100_000) {
            self.ask_several(score, deadline);
        } else if self.rng.chance(100_000) {
            self.ask_transaction(score, deadline);
        } else {
            self.ask_object(score, table, deadline);
        }
    }

    fn ask_name(&mut self, score: &mut Score, deadline: Instant) {
        let name = self.rng.below(self.habits.names);
        let text = format!("table {name}");
        let (asked, op) = match self.rng.below(4) {
            _ if self.rng.chance(self.habits.drop_ppm) => {
                (names::Op::Drop { shared: false }, self.client().drop_table(&text, deadline))
            }
            0 => (names::Op::Lookup, self.client().table(&text, deadline)),
            _ => {
                let options = self.habits.options(name);
                (names::Op::Create, self.client().create_table(&text, options, deadline))
            }
        };
        let number = score.call_name(name, asked);
        self.asked.insert(op, Asked::Name(number, name));
    }

    /// Splits or merges tablets, or moves one or a part of one to another server.
    fn arrange(&mut self, name: u64, outcome: Result<Answer<'_>, Error>) {
        let tablets = match outcome {
            Ok(Answer::Tablets(tablets)) => tablets,
            other => return arranged(&other),
        };
        let name = format!("table {name}");
        let TabletInfo { first, last, .. } = tablets[self.rng.below(tablets.len() as u64) as usize];
        let at = first + self.rng.below((last - first).saturating_add(1).max(1));
        let deadline = Instant::NEVER;
        let op = match self.rng.below(8) {
            0 => self.client().split_tablet(&name, at, deadline),
            1..=3 => self.client().merge_tablets(&name, first, deadline),
            part => {
                let range = match part {
                    4 => (first, at),
                    5 => (at, last),
                    _ => (first, last),
                };
                let target = self.rng.below(self.habits.servers);
                self.client().move_tablet(&name, range, target as u32, deadline)
            }
        };
        self.asked.insert(op, Asked::Arrangement);
    }

    fn draw(&mut self) -> Draw<'_> {
        Draw { rng: &mut self.rng, longest: self.habits.longest, versions: &self.versions }
    }

    fn ask_object(&mut self, score: &mut Score, table: u64, deadline: Instant) {
        let Drawn { key, rules, change, asked } = self.draw().draw(score);
        let (bytes, id) = (key_bytes(key), TableId(table));
        let client = self.client();
        let lifetime = change.expires();
        let is_read = matches!(change, Change::Read | Change::Swap(..));
        let op = match change {
            Change::Read => client.read(id, &bytes, rules, deadline),
            Change::WriteExpiring(value, lifetime) => {
                client.write_expiring(id, &bytes, &value, lifetime, rules, deadline)
            }
            Change::Touch(lifetime) => client.touch(id, &bytes, lifetime, rules, deadline),
            Change::Write(value) => client.write(id, &bytes, &value, rules, deadline),
            Change::Append(piece) => client.append(id, &bytes, &piece, rules, deadline),
            Change::Swap(value, lifetime) => {
                client.swap(id, &bytes, &value, lifetime, rules, deadline)
            }
            Change::Remove => client.remove(id, &bytes, rules, deadline),
            Change::Add(Amount::Integer(by)) => {
                client.increment_integer(id, &bytes, by, rules, deadline)
            }
            Change::Add(Amount::Double(by)) => {
                client.increment_double(id, &bytes, by, rules, deadline)
            }
        };
        let tag = match asked {
            store::Op::Write(_, Value::Expiring(tag))
            | store::Op::Swap(_, Value::Expiring(tag)) => tag,
            _ => 0,
        };
        let number = score.history.call((table, key), asked);
        score.lifetimes.extend(lifetime.map(|ms| (number, (tag, ms))));
        score.reads.extend(is_read.then_some((number, self.truth)));
        self.asked.insert(op, Asked::Object(number, table, key));
    }
}

impl Process<Score> for User {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.truth = outside.truth;
        self.node.input(outside);
        self.take_results(outside.score);
        if self.next <= outside.now {
            self.act(outside.now, outside.score);
        }
        let more = self.node.output(outside);
        self.take_results(outside.score);
        outside.score.open.insert(self.host, (self.asked.len(), self.read_all));
        more
    }

    fn deadline(&self) -> Option<Instant> {
        self.node.deadline().into_iter().chain((!self.read_all).then_some(self.next)).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}
