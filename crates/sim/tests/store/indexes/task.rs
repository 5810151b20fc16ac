//! The store as an asynchronous task of a simulated program sees it. A task's requests wait in a
//! queue until the program's turn passes them to its client.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use sprat_proto::time::MS;
use sprat_proto::{Instant, Rng};
use sprat_sim::check::history::Name;
use sprat_sim::check::serial;
use sprat_store::client::{
    Answer, Change, Client, Cursor, Error, Op, OwnedTransactionPart, Part, PartAnswer, PartRequest,
    TransactionPart, WaitedFor,
};
use sprat_store::index::{Changed, Indexes, Listed, Objects, Seen, State, objects_of_answer};
use sprat_store::message::Status;
use sprat_store::message::data::RejectRules;
use sprat_store::types::{TableId, Version};

use crate::score::Score;

/// The reject rules that refuse nothing.
pub(super) const ANY: RejectRules = RejectRules {
    given_version: Version(0),
    doesnt_exist: false,
    exists: false,
    version_le_given: false,
    version_ne_given: false,
};
/// The longest pause of a task between two tries, in nanoseconds, and the one after the first try.
const MOST_PAUSE_NS: u64 = 100 * MS;
const PAUSE_NS: u64 = 3 * MS;

/// The number of objects that answers to look-ups had, in all worlds.
pub(super) static LOOKED_UP: AtomicU64 = AtomicU64::new(0);
/// The numbers of changes that one operation made, and that a server left to a transaction, in all
/// worlds.
pub(super) static WHOLE: AtomicU64 = AtomicU64::new(0);
pub(super) static UNDONE: AtomicU64 = AtomicU64::new(0);
/// The numbers of conflicts, of splits and of merges in all worlds.
pub(super) static CONFLICTS: AtomicU64 = AtomicU64::new(0);
pub(super) static SPLITS: AtomicU64 = AtomicU64::new(0);
pub(super) static MERGES: AtomicU64 = AtomicU64::new(0);

/// The outcome of an operation of the client.
pub(super) type Outcome = Result<Answer<'static>, Error>;
/// The place for the outcome of a request.
pub(super) type Place = Rc<RefCell<Option<Outcome>>>;
/// A request of a task: it starts an operation of the client.
pub(super) type Request = (Box<dyn FnOnce(&mut Client) -> Op>, Place);

/// The state that the tasks of a program share.
pub(super) struct Shared {
    /// The time of the program's turn.
    pub(super) now: Cell<Instant>,
    /// The score of the world, during the turn.
    pub(super) score: RefCell<Score>,
    pub(super) rng: RefCell<Rng>,
    /// The nodes and the catalog that the program keeps.
    pub(super) state: RefCell<State>,
    /// The requests that were not passed to the client yet.
    pub(super) requests: RefCell<Vec<Request>>,
    /// The times until which tasks wait.
    pub(super) wakes: RefCell<Vec<Instant>>,
    /// The table of the objects and that of the nodes, once they are known.
    pub(super) tables: Cell<Option<(TableId, TableId)>>,
    /// The size of the nodes of all indexes of the world.
    pub(super) node_bytes: u32,
}

/// An object that a task has read: its key, version and value.
pub(super) type ReadObject = (u64, Version, Vec<u8>);

/// An asynchronous task's access to the store.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) shared: Rc<Shared>,
    /// The deadline of all operations of the task.
    pub(super) deadline: Instant,
    /// The objects that the task has read.
    pub(super) seen: Rc<RefCell<Vec<ReadObject>>>,
}

pub(super) fn key_bytes(key: u64) -> Vec<u8> {
    format!("key {key:03}").into_bytes()
}

pub(super) fn key_of(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).expect("a key is text");
    text.strip_prefix("key ").and_then(|text| text.parse().ok()).expect("a key has a number")
}

/// Returns the name of an object in the score.
pub(super) fn name_of(key: u64) -> Name {
    (0, key)
}

/// Returns the value with this tag: the tag and two fields. Some values have no field.
pub(super) fn value(tag: u64) -> Vec<u8> {
    let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if mixed.is_multiple_of(13) {
        return format!("{tag}").into_bytes();
    }
    let (field, long) = (mixed % 17, "x".repeat((mixed / 17 % 12) as usize));
    format!("{tag},{field:02}{long},{}", mixed / 256 % 50).into_bytes()
}

/// Returns the tag of a value.
pub(super) fn tag_of(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).expect("a value is text");
    let tag = text.split(',').next().and_then(|tag| tag.parse().ok()).expect("a tag");
    assert!(value(tag) == bytes, "value {tag} is damaged: {text}");
    tag
}

impl Task {
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.shared.rng.borrow_mut().below(bound)
    }

    pub(super) fn chance(&self, per_million: u32) -> bool {
        self.shared.rng.borrow_mut().chance(per_million)
    }

    /// Calls `f` with the score.
    pub(super) fn score<R>(&self, f: impl FnOnce(&mut Score) -> R) -> R {
        f(&mut self.shared.score.borrow_mut())
    }

    /// Returns the table of the objects and that of the nodes.
    pub(super) fn tables(&self) -> (TableId, TableId) {
        self.shared.tables.get().expect("the tables are known")
    }

    pub(super) fn indexes(&self) -> Indexes<'_, Self> {
        let (objects, nodes) = self.tables();
        Indexes::new(self, objects, nodes)
    }

    /// Starts an operation of the client and waits for its outcome.
    pub(super) async fn ask(&self, start: impl FnOnce(&mut Client) -> Op + 'static) -> Outcome {
        let place = Place::default();
        self.shared.requests.borrow_mut().push((Box::new(start), Rc::clone(&place)));
        poll_fn(|_| place.borrow_mut().take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Waits for this time.
    pub(super) async fn wait(&self, ns: u64) {
        let until = self.shared.now.get().after(ns);
        poll_fn(|_| {
            if self.shared.now.get() >= until {
                return Poll::Ready(());
            }
            self.shared.wakes.borrow_mut().push(until);
            Poll::Pending
        })
        .await;
    }

    /// Begins the read of an object in the score, unless the table is that of the nodes.
    fn begin_read(&self, table: TableId, key: &[u8]) -> Option<(usize, u64)> {
        let is_object = table == self.tables().0;
        is_object.then(|| (self.score(|score| score.serial.begin()), key_of(key)))
    }

    /// Records the end of a read of an object.
    fn end_read(&self, (number, key): (usize, u64), result: &Result<Option<Seen>, Error>) {
        self.score(|score| match result {
            Ok(Some((version, bytes))) => {
                let seen = (version.0, tag_of(bytes));
                score.serial.read(number, name_of(key), Some(seen));
                self.seen.borrow_mut().push((key, *version, bytes.clone()));
            }
            Ok(None) => score.serial.read(number, name_of(key), None),
            Err(_) => score.serial.unknown(number),
        });
    }
}

/// Counts the splits and the merges that a transaction makes.
fn count(parts: &[TransactionPart<'_>], nodes: TableId) {
    // The root has the id 0.
    let of_nodes = |part: &&TransactionPart<'_>| {
        part.table == nodes && part.key.len() == 10 && part.key[2..] != [0; 8]
    };
    for part in parts.iter().filter(of_nodes) {
        match part.change {
            Change::Write(..) if part.rules.exists => _ = SPLITS.fetch_add(1, Ordering::Relaxed),
            Change::Remove if part.rules.doesnt_exist => _ = MERGES.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl Objects for Task {
    async fn read(&self, keys: &[(TableId, &[u8])]) -> Result<Vec<Option<Seen>>, Error> {
        let begun: Vec<_> = keys.iter().map(|&(table, key)| self.begin_read(table, key)).collect();
        let owned: Vec<(TableId, Vec<u8>)> =
            keys.iter().map(|&(table, key)| (table, key.to_vec())).collect();
        let deadline = self.deadline;
        let start = move |client: &mut Client| {
            let parts = owned.iter().map(|(table, key)| Part {
                table: *table,
                key,
                rules: ANY,
                request: PartRequest::Read,
            });
            client.multi(parts, deadline)
        };
        let Answer::Parts(parts) = self.ask(start).await? else { panic!("a read has parts") };
        let results = parts.iter().map(|part| match part {
            Ok(PartAnswer::Object { version, value }) => Ok(Some((version, value.to_vec()))),
            Err(Error::ObjectDoesntExist) => Ok(None),
            Err(error) => Err(error.clone()),
            Ok(other) => panic!("{other:?}"),
        });
        let results: Vec<Result<Option<Seen>, Error>> = results.collect();
        for (begun, result) in begun.into_iter().zip(&results) {
            if let Some(begun) = begun {
                self.end_read(begun, result);
            }
        }
        results.into_iter().collect()
    }

    async fn look_up(
        &self,
        nodes: TableId,
        leaves: &[(&[u8], &[u8])],
    ) -> Result<Vec<Option<Seen>>, Error> {
        let owned: Vec<(Vec<u8>, Vec<u8>)> =
            leaves.iter().map(|(key, query)| (key.to_vec(), query.to_vec())).collect();
        let deadline = self.deadline;
        let numbers =
            self.score(|score| Vec::from_iter(owned.iter().map(|_| score.serial.begin())));
        let start = move |client: &mut Client| {
            let parts = owned.iter().map(|(key, query)| Part {
                table: nodes,
                key,
                rules: ANY,
                request: PartRequest::LookUp(query),
            });
            client.multi(parts, deadline)
        };
        let Answer::Parts(parts) = self.ask(start).await? else { panic!("a look-up has parts") };
        let mut answers = Vec::new();
        for (number, part) in numbers.into_iter().zip(parts.iter()) {
            let (version, value) = match part {
                Ok(PartAnswer::Object { version, value }) => (version, value.to_vec()),
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    self.score(|score| score.serial.unknown(number));
                    let is_gone = *error == Error::ObjectDoesntExist;
                    answers.push(if is_gone { Ok(None) } else { Err(error.clone()) });
                    continue;
                }
            };
            // A server reads the objects of an answer at one time, as a transaction does.
            self.score(|score| {
                for (key, version, bytes) in objects_of_answer(&value) {
                    LOOKED_UP.fetch_add(1, Ordering::Relaxed);
                    let (key, seen) = (key_of(&key), (version.0, tag_of(&bytes)));
                    score
                        .serial
                        .add(number, serial::Part::Read { name: name_of(key), seen: Some(seen) });
                    self.seen.borrow_mut().push((key, version, bytes));
                }
                score.serial.commit(number, &[]);
            });
            answers.push(Ok(Some((version, value))));
        }
        answers.into_iter().collect()
    }

    async fn change(&self, nodes: TableId, part: &TransactionPart<'_>) -> Result<Changed, Error> {
        let (part, deadline) = (OwnedTransactionPart::from(part), self.deadline);
        let start = move |client: &mut Client| client.change_indexed(nodes, &part.part(), deadline);
        let outcome = match self.ask(start).await {
            Ok(Answer::Version(version)) => Ok(version),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        let count = match outcome {
            Ok(_) => Some(&WHOLE),
            Err(Error::Refused { status: Status::OtherLeaf, .. }) => Some(&UNDONE),
            Err(_) => None,
        };
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Changed::of(outcome)
    }

    async fn commit(&self, parts: &[TransactionPart<'_>]) -> Result<Vec<Version>, Error> {
        let owned: Vec<OwnedTransactionPart> = parts.iter().map(Into::into).collect();
        let deadline = self.deadline;
        let start = move |client: &mut Client| client.transact_owned(&owned, deadline);
        match self.ask(start).await {
            Ok(Answer::Committed(versions)) => {
                count(parts, self.tables().1);
                Ok(versions)
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                let is_conflict = matches!(error, Error::Conflict { .. });
                CONFLICTS.fetch_add(u64::from(is_conflict), Ordering::Relaxed);
                Err(error)
            }
        }
    }

    async fn scan(
        &self,
        table: TableId,
        from: Cursor,
    ) -> Result<(Vec<Listed>, Option<Cursor>), Error> {
        let deadline = self.deadline;
        let outcome = self.ask(move |client| client.enumerate(table, from, deadline)).await?;
        let Answer::Page(page) = outcome else { panic!("{outcome:?}") };
        let objects = page.objects().map(|it| (it.key.to_vec(), it.version, it.value.to_vec()));
        Ok((objects.collect(), page.next))
    }

    async fn pause(&self, tries: u32) -> Result<(), Error> {
        let most = (u64::from(tries) * PAUSE_NS).min(MOST_PAUSE_NS);
        self.wait(1 + self.below(most)).await;
        if self.shared.now.get() < self.deadline {
            return Ok(());
        }
        let (maybe_executed, waited_for) = (false, WaitedFor::Server);
        Err(Error::Deadline { maybe_executed, waited_for, why: None })
    }

    fn random(&self) -> u64 {
        self.shared.rng.borrow_mut().u64()
    }

    fn nearest(&self, _: (TableId, &[u8]), among: &[(TableId, &[u8])]) -> Option<usize> {
        let mut rng = self.shared.rng.borrow_mut();
        rng.chance(500_000).then(|| rng.below(among.len() as u64) as usize)
    }

    fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.shared.state.borrow_mut())
    }
}
