//! Transactions: the objects of one, and what is known of each.

use alloc::vec::Vec;

use super::error::Error;
use super::op::Op;
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

/// The change of an object, with a value of its own.
#[derive(Clone, Debug)]
enum Kept {
    Check,
    Write(Vec<u8>, Option<Lifetime>),
    Remove,
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
    pub(super) id: TableId,
    /// The index of the object's table.
    pub(super) place: u32,
    key: Vec<u8>,
    rules: RejectRules,
    kept: Kept,
    pub(super) hash: KeyHash,
    pub(super) rpc: u64,
    pub(super) state: State,
    pub(super) version: Version,
}

impl Object {
    pub(super) fn new(part: &TransactionPart<'_>, place: u32) -> Self {
        let kept = match part.change {
            Change::Check => Kept::Check,
            Change::Write(value, lifetime) => Kept::Write(value.to_vec(), lifetime),
            Change::Remove => Kept::Remove,
        };
        let (id, key, rules) = (part.table, part.key.to_vec(), part.rules);
        let (hash, rpc, version) = (KeyHash(0), 0, Version(0));
        Self { id, place, key, rules, kept, hash, rpc, state: State::Todo, version }
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the number of bytes of the key and the value.
    pub(super) fn len(&self) -> usize {
        let value = if let Kept::Write(value, _) = &self.kept { value.len() } else { 0 };
        self.key.len() + value
    }

    pub(super) fn changes(&self) -> bool {
        !matches!(self.kept, Kept::Check)
    }

    pub(super) fn participant(&self) -> Participant {
        Participant { table: self.id, hash: self.hash, rpc: self.rpc }
    }

    /// Returns the object as a part of a request.
    pub(super) fn part(&self) -> transaction::Part<'_> {
        let change = match &self.kept {
            Kept::Check => Change::Check,
            Kept::Write(value, lifetime) => Change::Write(value, *lifetime),
            Kept::Remove => Change::Remove,
        };
        let Self { id: table, rules, rpc, ref key, .. } = *self;
        transaction::Part { table, rules, rpc, key, change }
    }
}

/// The phase of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The objects of a transaction that changes nothing are checked.
    Validating,
    /// The objects of other masters than the first one's are prepared.
    Preparing,
    /// The master of the first object commits.
    Committing,
    /// The transaction is committed, and the other masters get to know it.
    Deciding,
}

/// A transaction that is in progress.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) objects: Vec<Object>,
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
    pub(super) fn new(objects: Vec<Object>) -> Self {
        let first = objects.iter().position(Object::changes);
        let phase = if first.is_some() { Phase::Preparing } else { Phase::Validating };
        Self {
            objects,
            first: first.unwrap_or(0),
            phase,
            lease: LeaseId(0),
            calls: 0,
            round: Round::default(),
            maybe: false,
            was_maybe: false,
        }
    }

    /// Lets a transaction without changes, whose objects have several masters, lock them while it
    /// checks them, unless the version of each is known. A version that is gone never returns. But
    /// an object that does not exist at two times may have existed between them.
    pub(super) fn lock_what_may_return(&mut self) {
        let is_known = |it: &Object| it.rules.version_ne_given && it.rules.doesnt_exist;
        if self.phase == Phase::Validating && !self.objects.iter().all(is_known) {
            self.phase = Phase::Preparing;
            self.objects.iter_mut().for_each(|object| object.state = State::Todo);
        }
    }

    /// Returns the versions of the objects, in the order of the parts.
    pub(super) fn versions(&self) -> Vec<Version> {
        self.objects.iter().map(|object| object.version).collect()
    }
}

/// A request of a transaction to one master.
#[derive(Debug)]
pub(super) struct Step {
    /// The transaction, or `None` if nothing waits for the reply.
    pub(super) of: Option<Op>,
    /// The indices of the objects in the request.
    pub(super) objects: Vec<usize>,
}

/// Checks the sizes of a transaction's parts.
pub(super) fn check_sizes(parts: &[TransactionPart<'_>]) -> Result<(), Error> {
    if !(1..=MAX_TRANSACTION).contains(&parts.len()) {
        return Err(Error::BadTransaction(parts.len()));
    }
    let mut bytes = 0;
    for part in parts {
        let value = if let Change::Write(value, _) = part.change { value.len() } else { 0 };
        if part.key.len() > MAX_KEY {
            return Err(Error::KeyTooLong(part.key.len()));
        }
        if value > MAX_VALUE {
            return Err(Error::ValueTooLong(value));
        }
        if let Change::Write(_, Some(lifetime)) = part.change
            && lifetime > Lifetime::MAX
        {
            return Err(Error::LifetimeTooLong(lifetime));
        }
        bytes += part.key.len() + value;
    }
    if bytes > MAX_TRANSACTION_BYTES { Err(Error::TransactionTooLong(bytes)) } else { Ok(()) }
}
