//! Objects of a run that belong together: the accounts of a bank, between which transactions move
//! money, and a table with indexes.
//!
//! Whatever has no answer happened as a whole or not at all. So each read of all accounts finds all
//! of the money, each look-up finds objects that have the key, and at the end each index has
//! exactly the objects of its table.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sprat::kv::{Client, Error, IndexError, IndexedTable, Source, Table, TableId};
use sprat_proto::Rng;

use super::load::{Target, connect};
use crate::fail::{Fail, Named as _};

/// The names of the tables.
const ACCOUNTS: &str = "accounts";
const SHELF: &str = "shelf";
/// The number of accounts, and the money of each at the start.
const COUNT: u64 = 10;
const MONEY: u64 = 1_000;
/// The number of keys of the table with indexes, and of the different index keys.
const KEYS: u64 = 300;
const PLACES: u64 = 12;
/// The indexes of that table.
const INDEXES: [(&str, Source); 2] = [
    ("by place", Source::Field { number: 0, separator: b',' }),
    ("by tag", Source::Field { number: 1, separator: b',' }),
];
/// The longest pause between two operations, in milliseconds.
const PAUSE_MS: u64 = 10;
/// The time that an operation may take: longer than a recovery.
const PATIENCE: Duration = Duration::from_secs(30);
/// The number of times that all objects are read at the end, until what had no answer has ended.
const TRIES: u32 = 5;

/// The pause between two of them.
const AGAIN: Duration = Duration::from_secs(1);

/// The counts of operations of the threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// The number of transactions that moved money.
    pub transfers: u64,
    /// The number of reads of all accounts in one transaction.
    pub audits: u64,
    /// The number of changes of objects with index keys.
    pub changes: u64,
    /// The number of look-ups.
    pub look_ups: u64,
    /// The number of operations without an answer.
    pub unanswered: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.transfers += other.transfers;
        self.audits += other.audits;
        self.changes += other.changes;
        self.look_ups += other.look_ups;
        self.unanswered += other.unanswered;
    }
}

/// A thread that ends with its counts, or with the text of what is wrong.
type Ended = Result<Counts, String>;

/// The threads that use the objects.
pub(super) struct Bonds {
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<Ended>>,
    client: Client,
}

/// Returns `Ok` with none for an operation that had no answer, and the text of what must not be.
fn answered<T>(outcome: Result<T, IndexError>, counts: &mut Counts) -> Result<Option<T>, String> {
    match outcome {
        Ok(answer) => Ok(Some(answer)),
        Err(IndexError::Store(error)) if !matches!(error, Error::TableDoesntExist) => {
            counts.unanswered += 1;
            Ok(None)
        }
        Err(error) => Err(format!("an operation on a table with indexes failed: {error}")),
    }
}

/// Returns the money of an account.
fn money(bytes: &[u8]) -> u64 {
    String::from_utf8_lossy(bytes).parse().unwrap_or(u64::MAX)
}

/// Reads all accounts in one transaction. Returns their money.
fn audit(client: &Client, accounts: &Table<'_>) -> Result<u64, Error> {
    client.transact(|transaction| {
        let mut sum = 0_u64;
        for account in 0..COUNT {
            let object = transaction.get(accounts, &account.to_be_bytes())?;
            sum = sum.saturating_add(object.map_or(u64::MAX, |object| money(&object.value)));
        }
        Ok(sum)
    })
}

/// Moves money between accounts, and counts it, until the sender of `ended` is dropped.
fn bank(client: &Client, table: TableId, mut rng: Rng, ended: &Receiver<()>) -> Ended {
    let (accounts, mut counts) = (client.table_by_id(table), Counts::default());
    while !is_over(&mut rng, ended) {
        let outcome = if rng.chance(300_000) {
            counts.audits += 1;
            audit(client, &accounts).map(Some)
        } else {
            counts.transfers += 1;
            let [from, to] = [rng.below(COUNT), rng.below(COUNT)].map(u64::to_be_bytes);
            let amount = rng.below(MONEY);
            let moved = client.transact(|transaction| {
                let mut of = |key| {
                    let object = transaction.get(&accounts, key)?;
                    Ok::<u64, Error>(object.map_or(u64::MAX, |object| money(&object.value)))
                };
                let (have, other) = (of(&from)?, of(&to)?);
                if let Some(rest) = have.checked_sub(amount).filter(|_| from != to) {
                    let other = other.saturating_add(amount);
                    transaction.put(&accounts, &from, rest.to_string().as_bytes())?;
                    transaction.put(&accounts, &to, other.to_string().as_bytes())?;
                }
                Ok::<(), Error>(())
            });
            moved.map(|()| None)
        };
        match outcome {
            Ok(Some(sum)) if sum != COUNT * MONEY => return Err(wrong_money(sum)),
            Ok(_) => {}
            Err(Error::TableDoesntExist) => return Err("the accounts are gone".to_owned()),
            Err(_) => counts.unanswered += 1,
        }
    }
    Ok(counts)
}

fn wrong_money(sum: u64) -> String {
    format!("the {COUNT} accounts have {sum} in sum, and not {}", COUNT * MONEY)
}

/// Changes and finds objects of the table with indexes until the sender of `ended` is dropped.
fn shelf(client: &Client, table: TableId, mut rng: Rng, ended: &Receiver<()>) -> Ended {
    let mut counts = Counts::default();
    let indexed = loop {
        if is_over(&mut rng, ended) {
            return Ok(counts);
        }
        let indexed = client.indexed(&client.table_by_id(table));
        if let Some(indexed) = answered(indexed, &mut counts)? {
            break indexed;
        }
    };
    while !is_over(&mut rng, ended) {
        let (key, place) = (rng.below(KEYS).to_be_bytes(), rng.below(PLACES));
        if rng.chance(400_000) {
            counts.look_ups += 1;
            let place = place.to_string();
            let found = indexed.look_up(INDEXES[0].0, place.as_bytes());
            for found in answered(found, &mut counts)?.unwrap_or_default() {
                if INDEXES[0].1.key_of(&found.key, &found.value) != Some(place.as_bytes()) {
                    return Err(format!("a look-up of place {place} has found {:?}", found.value));
                }
            }
            continue;
        }
        counts.changes += 1;
        if rng.chance(300_000) {
            answered(indexed.remove(&key), &mut counts)?;
        } else {
            let value = format!("{place},{}", rng.below(1 << 40));
            answered(indexed.put(&key, value.as_bytes()), &mut counts)?;
        }
    }
    Ok(counts)
}

/// Pauses. Returns true if the sender of `ended` is dropped.
fn is_over(rng: &mut Rng, ended: &Receiver<()>) -> bool {
    let pause = Duration::from_millis(rng.below(PAUSE_MS));
    ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout)
}

/// Checks that an index has exactly the objects of its table.
fn check_index(
    indexed: &IndexedTable<'_>,
    objects: &BTreeMap<Vec<u8>, Vec<u8>>,
    (index, source): (&str, Source),
) -> Result<Result<(), String>, IndexError> {
    let mut found = BTreeMap::new();
    for it in indexed.range::<&str>(index, ..) {
        let it = it?;
        if source.key_of(&it.key, &it.value) != Some(&it.index_key) {
            return Ok(Err(format!("index {index} has {:?} for {:?}", it.index_key, it.value)));
        }
        if found.insert(it.key.clone(), it.value).is_some() {
            return Ok(Err(format!("index {index} has object {:?} twice", it.key)));
        }
    }
    if found != *objects {
        let (more, less) = (found.len(), objects.len());
        return Ok(Err(format!(
            "index {index} has {more} objects, and not the {less} of its table"
        )));
    }
    Ok(Ok(()))
}

impl Bonds {
    /// Makes the tables, and starts two threads for each of them.
    pub(super) fn start(seed: u64, target: &Target, span: u32) -> Result<Self, Fail> {
        let client = connect(0, target)?;
        client.set_timeout(PATIENCE);
        let failed = |error: &dyn std::fmt::Display| Fail::new(format!("cannot begin: {error}"));
        let accounts = client.create_table(ACCOUNTS, span).map_err(|error| failed(&error))?;
        for account in 0..COUNT {
            let money = MONEY.to_string();
            accounts
                .put(&account.to_be_bytes(), money.as_bytes())
                .map_err(|error| failed(&error))?;
        }
        let plain = client.create_table(SHELF, span).map_err(|error| failed(&error))?;
        let indexed = client.indexed(&plain).map_err(|error| failed(&error))?;
        for (index, source) in INDEXES {
            indexed.create_index(index, source).map_err(|error| failed(&error))?;
        }
        let (accounts, plain) = (accounts.id(), plain.id());
        let mut rng = Rng::seeded(seed ^ 0xb09d);
        let (mut stop, mut threads) = (Vec::new(), Vec::new());
        for number in 0..4_u16 {
            let (end, ended) = channel();
            let (client, rng) = (connect(number / 2, target)?, rng.fork());
            client.set_timeout(PATIENCE);
            let work = move || match number % 2 {
                0 => bank(&client, accounts, rng, &ended),
                _ => shelf(&client, plain, rng, &ended),
            };
            let thread = thread::Builder::new().name(format!("bonds {number}"));
            threads.push(thread.spawn(work).named("cannot start a thread")?);
            stop.push(end);
        }
        Ok(Self { stop, threads, client })
    }

    /// Ends the threads and reads all objects.
    pub(super) fn end(&mut self) -> Result<Counts, Fail> {
        self.stop.clear();
        let mut counts = Counts::default();
        for thread in self.threads.drain(..) {
            let ended = thread.join().map_err(|_| Fail::new("a client has ended by a panic"))?;
            counts.add(ended.map_err(Fail::new)?);
        }
        let (_never, quiet) = channel::<()>();
        let mut tries = 0;
        loop {
            tries += 1;
            match self.check() {
                Ok(Ok(())) => return Ok(counts),
                Ok(Err(wrong)) if tries == TRIES => return Err(Fail::new(wrong)),
                Err(error) if tries == TRIES => {
                    return Err(Fail::new(format!("cannot read all objects: {error}")));
                }
                // A change without an answer may still be on its way.
                Ok(Err(_)) | Err(_) => {
                    let _ = quiet.recv_timeout(AGAIN);
                }
            }
        }
    }

    fn check(&self) -> Result<Result<(), String>, IndexError> {
        let sum = audit(&self.client, &self.client.table(ACCOUNTS)?)?;
        if sum != COUNT * MONEY {
            return Ok(Err(wrong_money(sum)));
        }
        let plain = self.client.table(SHELF)?;
        let indexed = self.client.indexed(&plain)?;
        let mut objects = BTreeMap::new();
        for object in plain.scan() {
            let (key, object) = object?;
            objects.insert(key, object.value);
        }
        for index in INDEXES {
            if let Err(wrong) = check_index(&indexed, &objects, index)? {
                return Ok(Err(wrong));
            }
        }
        Ok(Ok(()))
    }
}
