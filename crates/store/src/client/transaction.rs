//! Transactions: the objects of one, and what is known of each.

use alloc::vec::Vec;
use core::ops::Range;

use super::answer::Answer;
use super::error::Error;
use super::op::Op;
use crate::message::Status;
use crate::message::data::RejectRules;
use crate::message::transaction::{self, Change, Conflict, Participant};
use crate::types::{
    KeyHash, LeaseId, Lifetime, MAX_KEY, MAX_TRANSACTION, MAX_TRANSACTION_BYTES, MAX_VALUE,
    TableId, Version,
};

/// An object of a transaction: the conditions under which the transaction is refused, and the
/// change that the transaction makes to the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionPart<'a> {
    /// The table of the object.
    pub table: TableId,
    /// The key of the object. A transaction has each object once.
    pub key: &'a [u8],
    /// The conditions under which the transaction is refused.
    pub rules: RejectRules,
    /// The change that the transaction makes to the object.
    pub change: Change<'a>,
}

impl TransactionPart<'_> {
    /// Returns the number of bytes of the key and the value.
    fn len(&self) -> usize {
        let value = match self.change {
            Change::Write(value, _) | Change::Edit(value) => value.len(),
            Change::Check | Change::Remove => 0,
        };
        self.key.len() + value
    }
}

/// A [`TransactionPart`] with a key and a value of its own.
#[derive(Clone, Debug)]
pub struct OwnedTransactionPart {
    table: TableId,
    key: Vec<u8>,
    rules: RejectRules,
    kept: Kept,
}

/// The change of an object, with a value of its own.
#[derive(Clone, Debug)]
enum Kept {
    Check,
    Write(Vec<u8>, Option<Lifetime>),
    Remove,
    Edit(Vec<u8>),
}

impl OwnedTransactionPart {
    /// Returns the part.
    #[must_use]
    pub fn part(&self) -> TransactionPart<'_> {
        let change = match &self.kept {
            Kept::Check => Change::Check,
            Kept::Write(value, lifetime) => Change::Write(value, *lifetime),
            Kept::Remove => Change::Remove,
            Kept::Edit(edits) => Change::Edit(edits),
        };
        TransactionPart { table: self.table, key: &self.key, rules: self.rules, change }
    }
}

impl From<&TransactionPart<'_>> for OwnedTransactionPart {
    fn from(part: &TransactionPart<'_>) -> Self {
        let kept = match part.change {
            Change::Check => Kept::Check,
            Change::Write(value, lifetime) => Kept::Write(value.to_vec(), lifetime),
            Change::Remove => Kept::Remove,
            Change::Edit(edits) => Kept::Edit(edits.to_vec()),
        };
        Self { table: part.table, key: part.key.to_vec(), rules: part.rules, kept }
    }
}

/// The state of an object in a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The object has to be sent in the phase that is in progress.
    Todo,
    /// The object was sent, and may be prepared.
    Sent,
    /// The object is prepared.
    Held,
    /// The change of the object is made, or the object is as the transaction needs it.
    Done,
}

/// An object of a transaction, as the client keeps it.
#[derive(Debug)]
pub(super) struct Object {
    table: TableId,
    /// The index of the object's table.
    pub(super) place: u32,
    /// The bytes of the object's part among those of the transaction.
    part: Range<usize>,
    key_len: usize,
    changes: bool,
    /// True if the transaction is refused unless the object has a version that the client knows.
    is_known: bool,
    /// The hash of the object's key, since the client has known the table's tablets.
    pub(super) hash: KeyHash,
    pub(super) rpc: u64,
    pub(super) state: State,
    pub(super) version: Version,
}

impl Object {
    /// Returns the number of bytes of the key and the value.
    pub(super) fn len(&self) -> usize {
        self.part.len() - transaction::PART
    }

    pub(super) fn participant(&self) -> Participant {
        Participant { table: self.table, hash: self.hash, rpc: self.rpc }
    }
}

/// The phase of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Phase {
    /// The objects of a transaction that changes nothing are checked.
    #[default]
    Validating,
    /// The objects of other masters than the first one's are prepared.
    Preparing,
    /// The master of the first object commits.
    Committing,
    /// The transaction is committed, and the other masters get to know it.
    Deciding,
}

/// A transaction that is in progress.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) objects: Vec<Object>,
    /// The parts of all objects, as requests have them. Empty when no master needs them any more.
    parts: Vec<u8>,
    /// The index of the object whose master decides.
    pub(super) first: usize,
    pub(super) phase: Phase,
    /// The lease of the objects' numbers.
    pub(super) lease: LeaseId,
    /// The number of calls in progress.
    pub(super) calls: usize,
    /// The outcome of the phase's calls so far.
    pub(super) round: Round,
    /// True if a commit was sent and its outcome is not known.
    pub(super) maybe: bool,
    /// The value of `maybe` before the last commit was sent.
    pub(super) was_maybe: bool,
}

/// The outcome of the calls of a phase.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The index of an object that was not as the transaction needs it, with the conflict.
    pub(super) conflict: Option<(usize, Conflict)>,
    /// An error that ends the transaction.
    pub(super) error: Option<Error>,
    /// True if a call has to be repeated, and the least pause before it in nanoseconds.
    pub(super) again: Option<u64>,
    /// The tables whose tablets may have moved.
    pub(super) moved: Vec<u32>,
}

impl Transaction {
    /// Makes a transaction of parts that are as [`check_sizes`] demands. `place` returns the index
    /// of a table.
    pub(super) fn new<'a>(
        parts: impl ExactSizeIterator<Item = TransactionPart<'a>>,
        bytes: usize,
        mut place: impl FnMut(TableId) -> u32,
    ) -> Self {
        let mut objects = Vec::with_capacity(parts.len());
        let mut all = Vec::with_capacity(parts.len() * transaction::PART + bytes);
        for TransactionPart { table, key, rules, change } in parts {
            let from = all.len();
            transaction::Part { table, rules, rpc: 0, key, change }.emit_to(&mut all);
            objects.push(Object {
                table,
                place: place(table),
                part: from..all.len(),
                key_len: key.len(),
                changes: change != Change::Check,
                is_known: rules.version_ne_given && rules.doesnt_exist,
                hash: KeyHash(0),
                rpc: 0,
                state: State::Todo,
                version: Version(0),
            });
        }
        let first = objects.iter().position(|object| object.changes);
        let phase = if first.is_some() { Phase::Preparing } else { Phase::Validating };
        Self { objects, parts: all, first: first.unwrap_or(0), phase, ..Self::default() }
    }

    /// Returns the key of an object, while masters need the parts.
    pub(super) fn key(&self, number: usize) -> &[u8] {
        let Object { part, key_len, .. } = &self.objects[number];
        &self.parts[part.start + transaction::PART..][..*key_len]
    }

    /// Gives an object its number.
    pub(super) fn set_rpc(&mut self, number: usize, rpc: u64) {
        let object = &mut self.objects[number];
        object.rpc = rpc;
        transaction::set_rpc(&mut self.parts[object.part.clone()], rpc);
    }

    /// Returns the number of bytes of the parts of some objects.
    pub(super) fn parts_len(&self, objects: &[usize]) -> usize {
        objects.iter().map(|&number| self.objects[number].part.len()).sum()
    }

    /// Appends the parts of some objects to a request.
    pub(super) fn emit_parts(&self, objects: &[usize], out: &mut Vec<u8>) {
        for &number in objects {
            out.extend_from_slice(&self.parts[self.objects[number].part.clone()]);
        }
    }

    /// Frees the parts, which no master needs any more.
    pub(super) fn forget_parts(&mut self) {
        self.parts = Vec::new();
    }

    /// Lets a transaction without changes, whose objects have several masters, lock them while it
    /// checks them, unless the version of each is known. A version that is gone never returns. But
    /// an object that does not exist at two times may have existed between them.
    pub(super) fn lock_what_may_return(&mut self) {
        if self.phase == Phase::Validating && !self.objects.iter().all(|object| object.is_known) {
            self.phase = Phase::Preparing;
            self.objects.iter_mut().for_each(|object| object.state = State::Todo);
        }
    }

    /// Returns the versions of the objects, in the order of the parts.
    pub(super) fn versions(&self) -> Vec<Version> {
        self.objects.iter().map(|object| object.version).collect()
    }
}

/// The number of objects that a master usually has of a transaction, at most.
const USUAL: usize = 32;

/// The objects of a transaction that one master has: its peer, and their indices.
pub(super) type Group = (u32, Vec<usize>);

/// A request of a transaction to one master.
#[derive(Debug)]
pub(super) struct Step {
    /// The transaction, or `None` if nothing waits for the reply.
    pub(super) of: Option<Op>,
    /// The indices of the objects in the request.
    pub(super) objects: Vec<usize>,
}

/// Adds an object to those of its master.
pub(super) fn add(groups: &mut Vec<Group>, peer: u32, number: usize) {
    match groups.iter_mut().find(|(of, _)| *of == peer) {
        Some((_, objects)) => objects.push(number),
        None => {
            let mut objects = Vec::with_capacity(USUAL);
            objects.push(number);
            groups.push((peer, objects));
        }
    }
}

/// Returns the outcome of a transaction of one object, which was sent as an operation on that.
#[cold]
pub(super) fn single(outcome: Result<Answer<'_>, Error>) -> Result<Answer<'_>, Error> {
    let conflict = |why, version| Err(Error::Conflict { part: 0, why, version });
    match outcome {
        Ok(Answer::Version(version)) => Ok(Answer::Committed([version].into())),
        Err(Error::ObjectDoesntExist) => conflict(Status::ObjectDoesntExist, Version(0)),
        Err(Error::ObjectExists(version)) => conflict(Status::ObjectExists, version),
        Err(Error::WrongVersion(version)) => conflict(Status::WrongVersion, version),
        outcome => outcome,
    }
}

/// Checks the number of a transaction's parts, and their sizes. Returns the number of bytes of all
/// keys and values.
pub(super) fn check_sizes<'a>(
    parts: impl ExactSizeIterator<Item = TransactionPart<'a>>,
) -> Result<usize, Error> {
    if !(1..=MAX_TRANSACTION).contains(&parts.len()) {
        return Err(Error::BadTransaction(parts.len()));
    }
    let mut bytes = 0;
    for part in parts {
        let (key, len) = (part.key.len(), part.len());
        if key > MAX_KEY {
            return Err(Error::KeyTooLong(key));
        }
        if len - key > MAX_VALUE {
            return Err(Error::ValueTooLong(len - key));
        }
        if let Change::Write(_, Some(lifetime)) = part.change
            && lifetime > Lifetime::MAX
        {
            return Err(Error::LifetimeTooLong(lifetime));
        }
        bytes += len;
    }
    if bytes > MAX_TRANSACTION_BYTES { Err(Error::TransactionTooLong(bytes)) } else { Ok(bytes) }
}
