//! Requests to etcd and its replies, as far as the coordinator's state needs them.

use alloc::string::String;
use alloc::vec::Vec;

/// A condition of a transaction on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// The key that the condition is about.
    pub key: Vec<u8>,
    /// The state that the key must have.
    pub is: Is,
}

/// The state of a key that a [`Compare`] demands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Is {
    /// The key was modified last at this revision; 0: there is no such key.
    Modified(i64),
    /// The key has this value.
    Value(Vec<u8>),
}

/// An operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Set a key.
    Put {
        /// The key to set.
        key: Vec<u8>,
        /// The value that the key gets.
        value: Vec<u8>,
    },
    /// Remove the keys from `from` up to, and without, `end`; if `end` is empty, `from` alone.
    Delete {
        /// The first key to remove.
        from: Vec<u8>,
        /// The end of the range, or nothing.
        end: Vec<u8>,
    },
    /// Read the keys from `from` up to, and without, `end`, at most `limit` of them; if `end` is
    /// empty, `from` alone.
    Get {
        /// The first key to read.
        from: Vec<u8>,
        /// The end of the range, or nothing.
        end: Vec<u8>,
        /// The most keys to read.
        limit: i64,
    },
}

impl Op {
    /// Returns the operation that reads one key.
    #[must_use]
    pub fn get(key: Vec<u8>) -> Self {
        Self::Get { from: key, end: Vec::new(), limit: 1 }
    }

    /// Returns the length of the operation's keys and values in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::Delete { from, end } | Self::Get { from, end, .. } => from.len() + end.len(),
        }
    }
}

/// A transaction: `then` is executed if all conditions hold, else `otherwise`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    /// The conditions of the transaction.
    pub compares: Vec<Compare>,
    /// The operations if all conditions hold.
    pub then: Vec<Op>,
    /// The operations if a condition does not hold.
    pub otherwise: Vec<Op>,
}

/// A request to etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Execute a transaction.
    Txn(Txn),
    /// Forget the values of keys before this revision.
    Compact(i64),
}

/// A key that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The key that was read.
    pub key: Vec<u8>,
    /// The value of the key.
    pub value: Vec<u8>,
    /// The revision at which the key was modified last.
    pub modified: i64,
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// True if all conditions of the transaction held.
    pub succeeded: bool,
    /// The revision of the store when the request was executed.
    pub revision: i64,
    /// The pairs of each [`Op::Get`] that was executed, in order.
    pub read: Vec<Vec<Pair>>,
}

/// The failure of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The request may be executed, now or later, or not at all.
    Unknown(String),
    /// The request was not executed and never will be.
    Refused(String),
}
