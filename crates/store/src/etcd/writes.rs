//! The leader's requests for the state itself: it loads the state when its term begins, then makes
//! one write after the other.
//!
//! ```text
//!  load:   batch ─► its pieces, if a long write is there ─► write them ─► remove them ─► state/
//!  write:  [its pieces, if it is long] ─► one transaction with seq ─► [write, remove the pieces]
//! ```
//! Each request can be sent again: it has the same effect, or finds that it had it before.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;

use super::keys::Keys;
use super::txn::{Compare, Failure, Is, Op, Pair, Reply, Request, Txn};
use crate::coordinator::statefile::{Body, changes};

/// The most operations of a transaction besides that on `seq`: etcd takes 128.
const MOST_OPS: usize = 120;
/// The most bytes of keys and values of a transaction: etcd takes 1.5 MiB.
const MOST_BYTES: usize = 1 << 20;
/// The most keys that one request reads.
const PAGE: i64 = 256;
/// The most pieces of a long write. The greatest state has some 100 MB.
const MOST_PIECES: u32 = 256;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The result of a reply, or the reaction of the leader to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More requests follow, or the writes are done.
    Next,
    /// The state is loaded.
    Loaded(Pairs),
    /// The write with this sequence number and all before it are durable.
    Durable(u64),
    /// The writes that wait were refused. The state is as it was.
    Refused { reason: String, durable: Pairs },
    /// The term is another one; the pairs are those of `term`.
    Deposed(Vec<Pair>),
    /// A refused write may still be executed in this term.
    Resign(String),
    /// The request has to be sent again.
    Again(String),
    /// The state in etcd is not what this program writes.
    Failed(String),
}

/// Changes by key. A key without a value is removed.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

#[derive(Debug, Default)]
enum Work {
    #[default]
    Idle,
    /// Read the number of pieces of a long write.
    ReadBatch,
    /// Read a piece of a long write.
    ReadPiece { count: u32, index: u32, changes: Changes },
    /// Read a page of the state. After a refusal, `refused` has its reason.
    ReadPage { from: Vec<u8>, pairs: Pairs, refused: Option<String> },
    /// Store the pieces of a long write before it is durable.
    Store { last: u64, pieces: Vec<Vec<u8>>, index: u32, changes: Changes },
    /// Make a write durable.
    Commit {
        last: u64,
        ops: Vec<Op>,
        /// True if an earlier try may have been executed.
        uncertain: bool,
        /// The changes of a long write, which follow.
        long: Changes,
    },
    /// Make the changes of a long write that is durable.
    Spread {
        changes: Changes,
        /// The sequence number of the write; `None` if an earlier leader made it.
        last: Option<u64>,
    },
    /// Remove the pieces of a long write.
    Clean { last: Option<u64> },
}

#[derive(Debug)]
struct Write {
    seq: u64,
    puts: Pairs,
    deletes: Vec<Vec<u8>>,
}

/// The loads and writes of a leader in its term.
#[derive(Debug, Default)]
pub(super) struct Writer {
    work: Work,
    queue: VecDeque<Write>,
    /// The number of writes that are durable in this term.
    number: u64,
}

impl Writer {
    /// Returns the writer of a term that begins: it loads the state.
    pub(super) fn loading() -> Self {
        Self { work: Work::ReadBatch, ..Self::default() }
    }

    pub(super) fn push(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) {
        self.queue.push_back(Write { seq, puts, deletes });
    }

    pub(super) fn has_work(&self) -> bool {
        !matches!(self.work, Work::Idle) || !self.queue.is_empty()
    }

    /// Returns the next request of the term that began at this revision, if there is work.
    pub(super) fn request(&mut self, keys: &Keys, revision: i64) -> Option<Request> {
        if matches!(self.work, Work::Idle) {
            self.begin_write(keys);
        }
        let then = match &self.work {
            Work::Idle => return None,
            Work::ReadBatch => Vec::from([Op::get(keys.batch())]),
            Work::ReadPiece { index, .. } => Vec::from([Op::get(keys.piece(*index))]),
            Work::ReadPage { from, .. } => {
                Vec::from([Op::Get { from: from.clone(), end: keys.state_end(), limit: PAGE }])
            }
            Work::Store { pieces, index, .. } => {
                let value = pieces.get(*index as usize).cloned().unwrap_or_default();
                Vec::from([Op::Put { key: keys.piece(*index), value }])
            }
            Work::Commit { ops, .. } => return Some(self.commit(keys, revision, ops.clone())),
            Work::Spread { changes, .. } => first_ops(keys, changes),
            Work::Clean { .. } => {
                let (from, end) = keys.pieces();
                let marker = Op::Delete { from: keys.batch(), end: Vec::new() };
                Vec::from([marker, Op::Delete { from, end }])
            }
        };
        let compares = Vec::from([keys.in_term(revision)]);
        let otherwise = Vec::from([Op::get(keys.term())]);
        Some(Request::Txn(Txn { compares, then, otherwise }))
    }

    /// Returns the transaction that makes a write durable, once.
    fn commit(&self, keys: &Keys, revision: i64, mut then: Vec<Op>) -> Request {
        let before = Is::Value(self.number.to_be_bytes().to_vec());
        let compares = [keys.in_term(revision), Compare { key: keys.seq(), is: before }];
        then.push(keys.put_seq(self.number + 1));
        let otherwise = Vec::from([Op::get(keys.term()), Op::get(keys.seq())]);
        Request::Txn(Txn { compares: compares.into(), then, otherwise })
    }

    /// Begins the next write: as many of those that wait as fit into one transaction.
    fn begin_write(&mut self, keys: &Keys) {
        let (mut all, mut bytes, mut last) = (Changes::new(), 0, None);
        while let Some(write) = self.queue.front() {
            let more = write.puts.len() + write.deletes.len();
            let len = keys.state(&[]).len() * more
                + write.puts.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>()
                + write.deletes.iter().map(Vec::len).sum::<usize>();
            if last.is_some() && (all.len() + more > MOST_OPS || bytes + len > MOST_BYTES) {
                break;
            }
            let Some(write) = self.queue.pop_front() else { break };
            bytes += len;
            all.extend(write.puts.into_iter().map(|(key, value)| (key, Some(value))));
            all.extend(write.deletes.into_iter().map(|key| (key, None)));
            last = Some(write.seq);
        }
        let Some(last) = last else { return };
        if all.len() <= MOST_OPS && bytes <= MOST_BYTES {
            let ops = all.into_iter().map(|(key, value)| op(keys, key, value)).collect();
            self.work = Work::Commit { last, ops, uncertain: false, long: Changes::new() };
            return;
        }
        self.work = match cut(&all) {
            Some(pieces) => Work::Store { last, pieces, index: 0, changes: all },
            None => read_again(keys, "a change is longer than a request to etcd may be".into()),
        };
    }

    /// Handles the reply to the last request.
    pub(super) fn reply(&mut self, keys: &Keys, revision: i64, mut reply: Reply) -> Step {
        if !reply.succeeded {
            return self.compared(revision, reply.read);
        }
        let read = reply.read.pop().unwrap_or_default();
        match mem::take(&mut self.work) {
            Work::Idle => Step::Next,
            Work::ReadBatch => {
                let Some(marker) = read.first() else {
                    self.work = Work::Clean { last: None };
                    return Step::Next;
                };
                let count = marker.value[..].try_into().map(u32::from_be_bytes);
                let Some(count) = count.ok().filter(|count| *count <= MOST_PIECES) else {
                    return Step::Failed("the key \"batch\" in etcd is damaged".into());
                };
                self.work = Work::ReadPiece { count, index: 0, changes: Changes::new() };
                Step::Next
            }
            Work::ReadPiece { count, index, changes } => {
                self.piece_read(count, index, changes, read.first())
            }
            Work::ReadPage { pairs, refused, .. } => self.page_read(keys, pairs, refused, read),
            Work::Store { last, pieces, index, changes } if index + 1 < pieces.len() as u32 => {
                self.work = Work::Store { last, pieces, index: index + 1, changes };
                Step::Next
            }
            Work::Store { last, pieces, changes: long, .. } => {
                let value = (pieces.len() as u32).to_be_bytes().to_vec();
                let ops = Vec::from([Op::Put { key: keys.batch(), value }]);
                self.work = Work::Commit { last, ops, uncertain: false, long };
                Step::Next
            }
            Work::Commit { last, long, .. } => self.committed(last, long),
            Work::Spread { mut changes, last } => {
                let made = first_ops(keys, &changes).len();
                let rest = changes.keys().nth(made).cloned();
                changes = rest.map_or_else(Changes::new, |key| changes.split_off(&key));
                self.work = if changes.is_empty() {
                    Work::Clean { last }
                } else {
                    Work::Spread { changes, last }
                };
                Step::Next
            }
            Work::Clean { last: Some(last) } => Step::Durable(last),
            Work::Clean { last: None } => {
                let (from, pairs) = (keys.state(&[]), Pairs::new());
                self.work = Work::ReadPage { from, pairs, refused: None };
                Step::Next
            }
        }
    }

    /// Handles the failure of the last request.
    pub(super) fn failed(&mut self, keys: &Keys, failure: Failure) -> Step {
        match (&mut self.work, failure) {
            (Work::Commit { uncertain, .. }, Failure::Unknown(why)) => {
                *uncertain = true;
                Step::Again(why)
            }
            (Work::Commit { uncertain: true, .. }, Failure::Refused(why)) => Step::Resign(why),
            (Work::Commit { .. } | Work::Store { .. }, Failure::Refused(why)) => {
                self.queue.clear();
                self.work = read_again(keys, why.clone());
                Step::Again(why)
            }
            (_, Failure::Unknown(why) | Failure::Refused(why)) => Step::Again(why),
        }
    }

    /// Handles a transaction whose conditions do not hold.
    fn compared(&mut self, revision: i64, read: Vec<Vec<Pair>>) -> Step {
        let mut read = read.into_iter();
        let term = read.next().unwrap_or_default();
        if term.first().is_none_or(|term| term.modified != revision) {
            return Step::Deposed(term);
        }
        let number = read.next().unwrap_or_default().pop().map(|pair| pair.value);
        match mem::take(&mut self.work) {
            Work::Commit { last, long, .. }
                if number.as_deref() == Some(&(self.number + 1).to_be_bytes()[..]) =>
            {
                self.committed(last, long)
            }
            _ => Step::Failed("another program has changed the state in etcd".into()),
        }
    }

    fn committed(&mut self, last: u64, long: Changes) -> Step {
        self.number += 1;
        if long.is_empty() {
            self.work = Work::Idle;
            return Step::Durable(last);
        }
        self.work = Work::Spread { changes: long, last: Some(last) };
        Step::Next
    }

    fn piece_read(
        &mut self,
        count: u32,
        index: u32,
        mut all: Changes,
        read: Option<&Pair>,
    ) -> Step {
        let whole = read.is_some_and(|pair| {
            changes(&pair.value, &mut |key, value| {
                all.insert(key.to_vec(), value.map(<[u8]>::to_vec));
            })
        });
        if !whole {
            return Step::Failed("a piece of a long write in etcd is damaged".into());
        }
        self.work = if index + 1 < count {
            Work::ReadPiece { count, index: index + 1, changes: all }
        } else {
            Work::Spread { changes: all, last: None }
        };
        Step::Next
    }

    fn page_read(
        &mut self,
        keys: &Keys,
        mut pairs: Pairs,
        refused: Option<String>,
        read: Vec<Pair>,
    ) -> Step {
        let is_full = read.len() as i64 >= PAGE;
        for Pair { key, value, .. } in read {
            if let Some(key) = keys.of_state(&key) {
                pairs.push((key.to_vec(), value));
            }
        }
        if is_full && let Some((last, _)) = pairs.last() {
            let mut from = keys.state(last);
            from.push(0);
            self.work = Work::ReadPage { from, pairs, refused };
            return Step::Next;
        }
        match refused {
            Some(reason) => {
                // The machine made these before it knew of the refusal.
                self.queue.clear();
                Step::Refused { reason, durable: pairs }
            }
            None => Step::Loaded(pairs),
        }
    }
}

/// Returns the work after a refusal: all that is durable is read again.
fn read_again(keys: &Keys, why: String) -> Work {
    Work::ReadPage { from: keys.state(&[]), pairs: Pairs::new(), refused: Some(why) }
}

fn op(keys: &Keys, key: Vec<u8>, value: Option<Vec<u8>>) -> Op {
    let key = keys.state(&key);
    match value {
        Some(value) => Op::Put { key, value },
        None => Op::Delete { from: key, end: Vec::new() },
    }
}

/// Returns the first changes as operations of one transaction.
fn first_ops(keys: &Keys, changes: &Changes) -> Vec<Op> {
    let (mut ops, mut bytes) = (Vec::new(), 0);
    for (key, value) in changes {
        let op = op(keys, key.clone(), value.clone());
        bytes += op.len();
        if !ops.is_empty() && (ops.len() == MOST_OPS || bytes > MOST_BYTES) {
            break;
        }
        ops.push(op);
    }
    ops
}

/// Returns the changes in pieces that each fit into one transaction, as bodies of a state file's
/// records. `None` if a change is too long, or there are too many.
fn cut(changes: &Changes) -> Option<Vec<Vec<u8>>> {
    let (mut pieces, mut body) = (Vec::new(), Body::default());
    for (key, value) in changes {
        let len = key.len() + value.as_ref().map_or(0, Vec::len);
        if len > MOST_BYTES {
            return None;
        }
        if !body.is_empty() && body.len() + len > MOST_BYTES {
            pieces.push(mem::take(&mut body).bytes().to_vec());
        }
        let fits = match value {
            Some(value) => body.put(key, value),
            None => body.delete(key),
        };
        fits.then_some(())?;
    }
    pieces.push(body.bytes().to_vec());
    (pieces.len() <= MOST_PIECES as usize).then_some(pieces)
}
