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
use sprat_store::client::{
    Answer, Client, Config, Done, Error, Op, Part, PartAnswer, PartRequest, TableOptions,
};
use sprat_store::durability::TableDurability;
use sprat_store::message::data::{Amount, RejectRules};
use sprat_store::types::{TableId, Version};

use crate::locators_of;
use crate::score::Score;

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

/// The number of keys that users use in a table.
const KEYS: u64 = 6;
/// The key whose object only appends change.
const CHAIN: u64 = 5;

/// Returns the bytes of the object key with the number `key`.
fn key_bytes(key: u64) -> Vec<u8> {
    let len = [3, 30, 31, 300, 2_000, 8][key as usize];
    (0..len).map(|i| (key as usize * 31 + i) as u8).collect()
}

/// Returns the bytes of the value that `tag` identifies. The upper half of the tag is their length.
/// They begin with 0, so they are never the text of a number.
fn value_bytes(tag: u64) -> Vec<u8> {
    let len = 9 + (tag >> 32) as usize;
    let mut word = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = tag.to_be_bytes().to_vec();
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the checker's value for the bytes of the object with `key`. Text is a number: a double
/// for key 3, otherwise an integer.
fn value_of(key: u64, bytes: &[u8]) -> Value {
    if key == CHAIN {
        let (pieces, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "a piece of {} bytes", rest.len());
        let tags = pieces.iter().map(|piece| u64::from_be_bytes(*piece));
        return Value::Chain(tags.fold(0, store::chain));
    }
    if bytes[0] != 0 {
        let text = std::str::from_utf8(bytes).expect("text of a number");
        let integer = || text.parse::<i64>().expect("an integer") as u64;
        return Value::Word(if key == 3 {
            text.parse::<f64>().expect("a double").to_bits()
        } else {
            integer()
        });
    }
    let tag = u64::from_be_bytes(bytes[..8].try_into().expect("no value is shorter"));
    assert!(value_bytes(tag) == bytes, "the value with tag {tag:x} is damaged");
    Value::Bytes(tag)
}

/// An operation of a user in progress, by its number in the score.
#[derive(Clone, Debug)]
enum Asked {
    /// An operation on an object: its number in the score, its table and its key.
    Object(usize, u64, u64),
    Name(usize, u64),
    /// A multi-operation: the same of each part.
    Several(Vec<(usize, u64, u64)>),
}

impl Asked {
    /// The number of operations in progress.
    fn len(&self) -> usize {
        if let Self::Several(parts) = self { parts.len() } else { 1 }
    }
}

/// The change that an operation on an object makes.
#[derive(Clone, Debug)]
enum Change {
    Read,
    Write(Vec<u8>),
    Remove,
    Add(Amount),
    Append(Vec<u8>),
}

/// An operation on an object that a user has drawn.
#[derive(Clone, Debug)]
struct Drawn {
    key: u64,
    rules: RejectRules,
    change: Change,
    /// The operation for the checker.
    asked: store::Op,
}

/// Returns the value with these bytes, as an answer has it.
fn store_value(bytes: &[u8]) -> sprat_store::client::Value<'_> {
    sprat_store::client::Value::new(Payload::Borrowed(bytes), 0)
}

/// Returns the answer that an operation would get if it came alone.
fn whole_answer(part: PartAnswer<'_>) -> Answer<'_> {
    match part {
        PartAnswer::Object { version, value } => {
            Answer::Object { version, value: store_value(value) }
        }
        PartAnswer::Version(version) => Answer::Version(version),
        PartAnswer::Length { version, length } => Answer::Length { version, length },
        PartAnswer::Integer { version, sum } => Answer::Integer { version, sum },
        PartAnswer::Double { version, sum } => Answer::Double { version, sum },
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
                    self.object_ended(score, (number, table, key), outcome);
                }
                Some(Asked::Several(asked)) => {
                    let Ok(Answer::Parts(parts)) = outcome else { panic!("{outcome:?}") };
                    assert_eq!(parts.len(), asked.len());
                    for (asked, part) in asked.into_iter().zip(parts.iter()) {
                        let outcome = part.map(whole_answer).map_err(Clone::clone);
                        self.object_ended(score, asked, outcome);
                    }
                }
                Some(Asked::Name(number, name)) => self.name_answer(score, number, name, outcome),
                None => panic!("{op:?} ends again, or was never asked: {outcome:?}"),
            }
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
                Asked::Several(parts) => {
                    parts.iter().for_each(|&(number, ..)| score.history.end(number, None));
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
        // A user forgets old tables slowly, so that it uses dropped ones for a while.
        let young = self.tables.len() - 1;
        let back = self.rng.below(4) * self.rng.below(2);
        let table = self.tables[young.saturating_sub(back as usize)];
        if self.rng.chance(100_000) {
            self.ask_several(score, deadline);
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

    fn ask_object(&mut self, score: &mut Score, table: u64, deadline: Instant) {
        let Drawn { key, rules, change, asked } = self.draw(score);
        let (bytes, id) = (key_bytes(key), TableId(table));
        let client = self.client();
        let op = match change {
            Change::Read => client.read(id, &bytes, rules, deadline),
            Change::Write(value) => client.write(id, &bytes, &value, rules, deadline),
            Change::Append(piece) => client.append(id, &bytes, &piece, rules, deadline),
            Change::Remove => client.remove(id, &bytes, rules, deadline),
            Change::Add(Amount::Integer(by)) => {
                client.increment_integer(id, &bytes, by, rules, deadline)
            }
            Change::Add(Amount::Double(by)) => {
                client.increment_double(id, &bytes, by, rules, deadline)
            }
        };
        let number = score.history.call((table, key), asked);
        self.asked.insert(op, Asked::Object(number, table, key));
    }

    /// Asks for operations on several objects at once, of the tables that the user knows.
    fn ask_several(&mut self, score: &mut Score, deadline: Instant) {
        let count = 2 + self.rng.below(3);
        let drawn: Vec<(u64, Drawn, Vec<u8>)> = (0..count)
            .map(|_| {
                let back = self.rng.below(self.tables.len().min(3) as u64) as usize;
                let table = self.tables[self.tables.len() - 1 - back];
                let drawn = self.draw(score);
                let key = key_bytes(drawn.key);
                (table, drawn, key)
            })
            .collect();
        let parts = drawn.iter().map(|(table, drawn, key)| Part {
            table: TableId(*table),
            key,
            rules: drawn.rules,
            request: match &drawn.change {
                Change::Read => PartRequest::Read,
                Change::Write(value) => PartRequest::Write(value),
                Change::Remove => PartRequest::Remove,
                Change::Append(piece) => PartRequest::Append(piece),
                Change::Add(amount) => PartRequest::Increment(*amount),
            },
        });
        let op = self.client().multi(parts, deadline);
        let parts = drawn.into_iter().map(|(table, drawn, _)| {
            (score.history.call((table, drawn.key), drawn.asked), table, drawn.key)
        });
        self.asked.insert(op, Asked::Several(parts.collect()));
    }

    /// Draws an operation on an object.
    fn draw(&mut self, score: &mut Score) -> Drawn {
        // Rarely the chain: the order of appends matters, so that each one whose outcome is unknown
        // doubles the states that the checker has to follow.
        let key = if self.rng.chance(50_000) { CHAIN } else { self.rng.below(CHAIN) };
        let (rules, reject) = self.rules();
        let draw = self.rng.below(10);
        let (asked, change) = match (key, draw) {
            (_, 0..3) => (store::Op::Read(reject), Change::Read),
            (_, 3) => (store::Op::Remove(reject), Change::Remove),
            (CHAIN, 4..) => {
                let tag = score.tag();
                (store::Op::Append(reject, tag), Change::Append(tag.to_be_bytes().into()))
            }
            (2 | 4, 4..8) => {
                // Sometimes the sum is so large that the next one overflows.
                let by = if self.rng.chance(20_000) {
                    i64::MAX - 2
                } else {
                    1 + self.rng.below(3) as i64
                };
                (store::Op::AddInteger(reject, by), Change::Add(Amount::Integer(by)))
            }
            (3, 4..8) => {
                let by = 0.5 + self.rng.below(3) as f64;
                (store::Op::AddDouble(reject, by.to_bits()), Change::Add(Amount::Double(by)))
            }
            (2, 8) => {
                let number = self.rng.below(1000) as i64 - 500;
                let value = number.to_string().into_bytes();
                (store::Op::Write(reject, Value::Word(number as u64)), Change::Write(value))
            }
            _ if key == 2 || key == 3 => (store::Op::Read(reject), Change::Read),
            _ => {
                let len = [10, 200, self.habits.longest][self.rng.below(3) as usize];
                let tag = self.rng.below(len) << 32 | score.tag();
                let change = Change::Write(value_bytes(tag));
                (store::Op::Write(reject, Value::Bytes(tag)), change)
            }
        };
        Drawn { key, rules, change, asked }
    }

    /// Draws reject rules at random, as the client and as the checker takes them.
    fn rules(&mut self) -> (RejectRules, Reject) {
        let (mut rules, mut reject) = (RejectRules::default(), Reject::default());
        let seen = self.versions.len();
        let version = self.versions[seen - 1 - self.rng.below(seen.min(4) as u64) as usize];
        rules.given_version = Version(version);
        match self.rng.below(12) {
            0 => (rules.doesnt_exist, reject.missing) = (true, true),
            1 => (rules.exists, reject.exists) = (true, true),
            2 => (rules.version_ne_given, reject.version_ne) = (true, Some(version)),
            3 => (rules.version_le_given, reject.version_le) = (true, Some(version)),
            _ => {}
        }
        (rules, reject)
    }
}

impl Process<Score> for User {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
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
