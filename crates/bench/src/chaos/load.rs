//! The load of a run of `sprat chaos`: client threads that read, write, remove and increment a few
//! hot and many cold objects of several tables, some of which expire, and record each operation.
//!
//! ```text
//! client 0 ─┐
//! client 1 ─┼─ records ──► the verdict         bounds: no client calls an operation before its own
//! client n ─┘
//! ```
//!
//! Hot keys change every [`GENERATION`], so that the history of one object stays short enough to
//! check, although some operations never get an answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sprat::internals::transports::Options;
use sprat::kv::{Client, Condition, Error, Table, TableId, Version};
use sprat_proto::Rng;
use sprat_sim::check::history::Name;
use sprat_sim::check::store::{self, Answer, Op, Reject, Value};
use sprat_store::message::data::RejectRules;

use super::history::Record;
use super::verdict::Message;
use crate::fail::{Fail, Named as _};

/// The time for which hot keys are used.
const GENERATION: Duration = Duration::from_secs(10);
/// The number of hot keys of a table at a time.
const HOT: u64 = 3;
/// The number of cold keys of a table.
const COLD: u64 = 1_000;
/// The longest pause between two operations of a client, in microseconds. The faults matter, not
/// the throughput; servers and the checker share two cores.
const PAUSE_US: u64 = 2_000;
/// The time that an operation may take: longer than a recovery.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest time of an operation whose client is in a hurry: many of these have no answer while
/// a fault lasts.
const HURRY_MS: u64 = 400;
/// The number of operations after which a client begins anew, with a new lease and new sessions.
const LIFE: u64 = 5_000;
/// The transports of the clients, in turns. The empty one takes the first that a server has.
const TRANSPORTS: [&str; 3] = ["", "fast+udp", "tcp"];
/// The longest values, in bytes beside their first eight.
const LENGTHS: [u64; 3] = [10, 200, 8_000];
/// The probability that a client swaps a value of bytes and does not write it, in parts per
/// million.
const SWAP_PPM: u32 = 250_000;
/// The longest lifetime of an object, in milliseconds: many end while the object's key is hot.
const LONGEST_LIFETIME_MS: u64 = 3_000;
/// The probability that a client gives an object a lifetime where it may, in parts per million.
const EXPIRES_PPM: u32 = 750_000;
/// The probability that a client gives such an object another lifetime instead of another value, in
/// parts per million.
const TOUCH_PPM: u32 = 250_000;

/// The state that the clients of a run share.
pub(super) struct Shared {
    start: Instant,
    moment: AtomicU64,
    /// A moment for each client: the client's next operation is called later.
    bounds: Vec<AtomicU64>,
    /// The number of the last value that was written.
    tag: AtomicU64,
    /// The time of the last answer, and the longest time without one, in nanoseconds.
    answered_ns: AtomicU64,
    longest_gap_ns: AtomicU64,
}

impl Shared {
    /// Makes the state that `clients` clients share.
    pub(super) fn new(clients: u16) -> Self {
        Self {
            start: Instant::now(),
            moment: AtomicU64::new(1),
            bounds: (0..clients).map(|_| AtomicU64::new(0)).collect(),
            tag: AtomicU64::new(0),
            answered_ns: AtomicU64::new(0),
            longest_gap_ns: AtomicU64::new(0),
        }
    }

    /// Returns the time since the start of the run, in nanoseconds.
    pub(super) fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns a moment before which no further operation is called. The records of all operations
    /// called before it have been sent.
    pub(super) fn bound(&self) -> u64 {
        self.bounds.iter().map(|bound| bound.load(Ordering::SeqCst)).min().unwrap_or(u64::MAX)
    }

    /// Returns the longest time in which no operation was answered, in nanoseconds.
    pub(super) fn longest_gap_ns(&self) -> u64 {
        self.longest_gap_ns.load(Ordering::Relaxed)
    }

    fn answered(&self, at_ns: u64) {
        let last = self.answered_ns.fetch_max(at_ns, Ordering::Relaxed);
        if last > 0 {
            self.longest_gap_ns.fetch_max(at_ns.saturating_sub(last), Ordering::Relaxed);
        }
    }
}

/// The clients' way to the cluster, and the tables that they use.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) coordinator: String,
    pub(super) tables: Vec<TableId>,
    /// True if the servers can be reached over UDP and TCP alone.
    pub(super) remote: bool,
}

/// The running clients of a load.
pub(super) struct Load {
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts one client thread for each number below the count of clients that `shared` has room
    /// for, except for the last one, which [`read_all`] uses.
    pub(super) fn start(
        seed: u64,
        target: &Target,
        shared: &Arc<Shared>,
        records: &SyncSender<Message>,
    ) -> Result<Self, Fail> {
        let (mut stop, mut threads) = (Vec::new(), Vec::new());
        let mut rng = Rng::seeded(seed);
        for number in 0..shared.bounds.len() as u16 - 1 {
            let user = User::new(number, rng.fork(), target, shared, records)?;
            let (end, ended) = channel();
            let thread = std::thread::Builder::new()
                .name(format!("client {number}"))
                .spawn(move || user.run(&ended))
                .named("cannot start a thread")?;
            stop.push(end);
            threads.push(thread);
        }
        Ok(Self { stop, threads })
    }

    /// Ends all clients and waits until their operations in progress have ended.
    pub(super) fn end(&mut self) -> Result<(), Fail> {
        self.stop.clear();
        let panicked = self.threads.drain(..).filter_map(|thread| thread.join().err()).count();
        if panicked > 0 {
            return Err(Fail::new("a client has ended by a panic"));
        }
        Ok(())
    }
}

/// Reads every object that the load can have used, as the last client.
pub(super) fn read_all(
    target: &Target,
    shared: &Arc<Shared>,
    records: &SyncSender<Message>,
) -> Result<u64, Fail> {
    let number = shared.bounds.len() as u16 - 1;
    let mut user = User::new(number, Rng::seeded(0), target, shared, records)?;
    let keys: Vec<_> = (0..COLD).chain(COLD..hot_keys(shared).end).collect();
    let mut count = 0;
    for table in 0..target.tables.len() as u64 {
        for key in &keys {
            user.execute((table, *key), Op::Read(Reject::default()), None);
            count += 1;
        }
    }
    shared.bounds[usize::from(number)].store(u64::MAX, Ordering::SeqCst);
    Ok(count)
}

/// Returns the numbers of the keys that are hot now.
fn hot_keys(shared: &Shared) -> std::ops::Range<u64> {
    let generation = shared.now_ns() / GENERATION.as_nanos() as u64;
    let first = COLD + generation * HOT;
    first..first + HOT
}

/// True if the object with this key is a counter. Every fourth one is.
fn is_counter(key: u64) -> bool {
    key % 4 == 3
}

/// True if only appends change the object with this key. Every eighth one is such.
fn is_chain(key: u64) -> bool {
    key % 8 == 6
}

/// True if the object with this key is bytes that may expire. Every fourth one is such.
fn may_expire(key: u64) -> bool {
    key % 4 == 1
}

/// One client, and what it remembers.
struct User {
    number: u16,
    rng: Rng,
    client: Client,
    target: Target,
    shared: Arc<Shared>,
    records: SyncSender<Message>,
    /// The versions that the client has seen last.
    seen: HashMap<Name, u64>,
    operations: u64,
}

impl User {
    fn new(
        number: u16,
        rng: Rng,
        target: &Target,
        shared: &Arc<Shared>,
        records: &SyncSender<Message>,
    ) -> Result<Self, Fail> {
        Ok(Self {
            number,
            rng,
            client: connect(number, target)?,
            target: target.clone(),
            shared: Arc::clone(shared),
            records: records.clone(),
            seen: HashMap::new(),
            operations: 0,
        })
    }

    /// Executes operations until the sender of `ended` is dropped.
    fn run(mut self, ended: &Receiver<()>) {
        loop {
            let pause = Duration::from_micros(self.rng.below(PAUSE_US));
            if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            let (name, op, lifetime_ms) = self.draw();
            self.execute(name, op, lifetime_ms);
            self.operations += 1;
            if self.operations.is_multiple_of(LIFE)
                && let Ok(client) = connect(self.number, &self.target)
            {
                self.client = client;
                self.seen.clear();
            }
        }
        self.shared.bounds[usize::from(self.number)].store(u64::MAX, Ordering::SeqCst);
    }

    /// Draws an operation, its object, and the lifetime that it gives the object.
    fn draw(&mut self) -> (Name, Op, Option<u64>) {
        let table = self.rng.below(self.target.tables.len() as u64);
        let key = if self.rng.chance(500_000) {
            hot_keys(&self.shared).start + self.rng.below(HOT)
        } else {
            self.rng.below(COLD)
        };
        let name = (table, key);
        let reject = self.reject(name);
        let expires = may_expire(key) && self.rng.chance(EXPIRES_PPM);
        let lifetime_ms = expires.then(|| self.rng.below(LONGEST_LIFETIME_MS));
        let op = match self.rng.below(10) {
            0..4 => Op::Read(reject),
            4 => Op::Remove(reject),
            _ if is_counter(key) => Op::AddInteger(reject, 1 + self.rng.below(3) as i64),
            _ if is_chain(key) => {
                Op::Append(reject, self.shared.tag.fetch_add(1, Ordering::Relaxed) + 1)
            }
            _ if may_expire(key) && self.rng.chance(TOUCH_PPM) => Op::Touch(reject, expires),
            _ => {
                let longest = LENGTHS[self.rng.below(LENGTHS.len() as u64) as usize];
                let length = self.rng.below(longest);
                let tag = self.shared.tag.fetch_add(1, Ordering::Relaxed) + 1;
                let tag = length << 48 | tag;
                let value = if expires { Value::Expiring(tag) } else { Value::Bytes(tag) };
                if self.rng.chance(SWAP_PPM) {
                    Op::Swap(reject, value)
                } else {
                    Op::Write(reject, value)
                }
            }
        };
        let gives = !matches!(op, Op::Read(_) | Op::Remove(_));
        (name, op, lifetime_ms.filter(|_| gives))
    }

    /// Draws the condition of an operation.
    fn reject(&mut self, name: Name) -> Reject {
        let seen = self.seen.get(&name).copied();
        let none = Reject::default();
        match (self.rng.below(8), seen) {
            (0, _) => Reject { missing: true, ..none },
            (1, _) => Reject { exists: true, ..none },
            (2 | 3, Some(version)) => Reject { version_ne: Some(version), ..none },
            (4, Some(version)) => Reject { version_le: Some(version), ..none },
            _ => none,
        }
    }

    /// Executes an operation and records it.
    fn execute(&mut self, name: Name, op: Op, lifetime_ms: Option<u64>) {
        let hurries = self.rng.chance(30_000);
        let patience =
            if hurries { Duration::from_millis(1 + self.rng.below(HURRY_MS)) } else { PATIENCE };
        self.client.set_timeout(patience);
        let called = (self.shared.now(), self.shared.now_ns());
        let table = self.client.table_by_id(self.target.tables[name.0 as usize]);
        let lifetime = lifetime_ms.map(Duration::from_millis);
        let (answer, why) = match ask(&table, name.1, &op, lifetime) {
            Ok(answer) => (Some(answer), None),
            Err(error) => (outcome(&error), Some(error)),
        };
        let ended = (self.shared.now(), self.shared.now_ns());
        if let Some(
            Answer::Read(version, _)
            | Answer::Version(version)
            | Answer::Sum(version, _)
            | Answer::Swapped(version, _)
            | Answer::Exists(version)
            | Answer::WrongVersion(version),
        ) = answer
        {
            self.seen.insert(name, version);
        }
        if answer.is_some_and(|answer| answer != Answer::Nothing) {
            self.shared.answered(ended.1);
        }
        let record = Record {
            client: self.number,
            name,
            op,
            lifetime_ms,
            answer,
            moments: [called.0, ended.0],
            times_ns: [called.1, ended.1],
        };
        let why = why.filter(|_| record.answer.is_none_or(|answer| answer == Answer::Nothing));
        // The verdict ends after the clients, unless it has ended by a panic.
        let _ = self.records.send(Message::Ended(record, why.as_ref().map(cause)));
        // After the record, so that the verdict has all operations before this moment.
        self.shared.bounds[usize::from(self.number)].store(ended.0, Ordering::SeqCst);
    }
}

/// Makes the library client of a user.
pub(super) fn connect(number: u16, target: &Target) -> Result<Client, Fail> {
    let transport = TRANSPORTS[usize::from(number) % TRANSPORTS.len()];
    let transports = (!transport.is_empty() && !target.remote).then_some(transport);
    Client::builder(&target.coordinator)
        .transports(transports)
        .options(Options::default().insecure_network(true))
        .connect()
        .named(&target.coordinator)
}

/// Returns the bytes of a key.
fn key_bytes(key: u64) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

/// Returns the bytes of the value that `tag` identifies. The upper 16 bits of the tag are their
/// number beyond nine. They begin with 0, so they are never the text of a number.
fn value_bytes(tag: u64) -> Vec<u8> {
    let len = 9 + (tag >> 48) as usize;
    let mut word = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = [&[0][..], &tag.to_be_bytes()].concat();
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the checker's value for the bytes of the object with `key`. Damaged bytes have a value
/// that no client has written.
fn value_of(key: u64, bytes: &[u8]) -> Value {
    if is_chain(key) {
        let (pieces, rest) = bytes.as_chunks::<8>();
        let chain = pieces.iter().map(|piece| u64::from_be_bytes(*piece)).fold(0, store::chain);
        return Value::Chain(if rest.is_empty() { chain } else { u64::MAX });
    }
    let text = std::str::from_utf8(bytes).ok();
    if let Some(number) = text.and_then(|text| text.parse::<i64>().ok()) {
        return Value::Word(number.cast_unsigned());
    }
    let tag = bytes.get(1..9).and_then(|tag| tag.try_into().ok()).map(u64::from_be_bytes);
    Value::Bytes(tag.filter(|&tag| value_bytes(tag) == bytes).unwrap_or(u64::MAX))
}

/// Executes an operation of the checker in the store.
fn ask(table: &Table<'_>, key: u64, op: &Op, lifetime: Option<Duration>) -> Result<Answer, Error> {
    let (number, key) = (key, key_bytes(key));
    Ok(match op {
        Op::Read(reject) => match table.get_if(&key, condition(reject))? {
            Some(object) => Answer::Read(object.version.0, value_of(number, &object.value)),
            None => Answer::Missing,
        },
        Op::Write(reject, value) => {
            let Some(bytes) = written(*value) else { return Ok(Answer::Nothing) };
            let condition = condition(reject);
            Answer::Version(match lifetime {
                Some(lifetime) => table.put_expiring_if(&key, &bytes, lifetime, condition)?.0,
                None => table.put_if(&key, &bytes, condition)?.0,
            })
        }
        Op::Swap(reject, value) => {
            let Some(bytes) = written(*value) else { return Ok(Answer::Nothing) };
            let (version, old) = table.swap_if(&key, &bytes, lifetime, condition(reject))?;
            let old = old.map(|old| (old.version.0, value_of(number, &old.value)));
            Answer::Swapped(version.0, old)
        }
        Op::Remove(reject) => Answer::Version(
            table.remove_if(&key, condition(reject))?.map_or(0, |version| version.0),
        ),
        Op::AddInteger(reject, by) => {
            let sum = table.increment_if(&key, *by, condition(reject))?;
            Answer::Sum(sum.version.0, Value::Word(sum.value.cast_unsigned()))
        }
        Op::Append(reject, tag) => {
            let length = table.append_if(&key, &tag.to_be_bytes(), condition(reject))?;
            Answer::Version(length.version.0)
        }
        Op::Touch(reject, _) => {
            Answer::Version(table.touch_if(&key, lifetime, condition(reject))?.0)
        }
        Op::AddDouble(..) => Answer::Nothing,
    })
}

/// Returns the bytes of a value that clients write.
fn written(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::Bytes(tag) | Value::Expiring(tag) => Some(value_bytes(tag)),
        Value::Word(word) => Some(word.cast_signed().to_string().into_bytes()),
        Value::Chain(_) => None,
    }
}

/// Returns the checker's condition as the store has it.
fn condition(reject: &Reject) -> Condition {
    RejectRules {
        given_version: Version(reject.version_ne.or(reject.version_le).unwrap_or(0)),
        doesnt_exist: reject.missing,
        exists: reject.exists,
        version_le_given: reject.version_le.is_some(),
        version_ne_given: reject.version_ne.is_some(),
    }
    .into()
}

/// Returns the answer that an error of the store is. `None` if the outcome is unknown.
fn outcome(error: &Error) -> Option<Answer> {
    Some(match error {
        Error::ObjectDoesntExist => Answer::Missing,
        Error::ObjectExists(version) => Answer::Exists(version.0),
        Error::WrongVersion(version) => Answer::WrongVersion(version.0),
        Error::NotANumber(version) => Answer::NotANumber(version.0),
        Error::Overflow(version) => Answer::Overflow(version.0),
        Error::TabletLost => Answer::Lost,
        Error::TableDoesntExist => Answer::Dropped,
        Error::NoSpace
        | Error::TooFewServers
        | Error::Deadline { maybe_executed: false, .. }
        | Error::NotDurable { maybe_executed: false, .. } => Answer::Nothing,
        _ => return None,
    })
}

/// Returns the cause of a missing outcome as a text that names no server.
fn cause(error: &Error) -> String {
    match error {
        Error::Deadline { maybe_executed, waited_for, .. } => {
            let maybe = if *maybe_executed { "; it may have been executed" } else { "" };
            format!("the deadline passed while waiting for {waited_for}{maybe}")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_which_it_is_and_damage_shows() {
        for tag in [1, 7 << 48 | 5, 8_000 << 48 | 77] {
            let mut bytes = value_bytes(tag);
            assert_eq!(value_of(0, &bytes), Value::Bytes(tag));
            assert_eq!(bytes.len() as u64, 9 + (tag >> 48));
            let last = bytes.len() - 1;
            bytes[last] ^= 4;
            assert_ne!(value_of(0, &bytes), Value::Bytes(tag));
        }
        assert_eq!(
            value_of(6, &[7_u64.to_be_bytes(); 2].concat()),
            Value::Chain(store::chain(store::chain(0, 7), 7))
        );
        assert_eq!(value_of(6, &[0; 15]), Value::Chain(u64::MAX));
        assert_eq!(value_of(0, b"-12"), Value::Word((-12_i64).cast_unsigned()));
        assert_eq!(value_of(0, b""), Value::Bytes(u64::MAX));
    }
}
