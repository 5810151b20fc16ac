//! The records of transactions, as a master keeps them in its memory.
//!
//! ```text
//! key       0 key hash u64 | 8 lease u64 | 16 rpc u64
//! prepared  0 change u8 (0 check, 1 write, 2 remove) | 1 expires u64
//!           9 the first object: table u64 | 17 key hash u64 | 25 rpc u64
//!          33 key length u32 | 37 key | value
//! committed 0 3 u8 | 1 the prepared objects, as in messages
//! ```
//!
//! A record is an object of the tablet of the object that it is about, under a table id of its own
//! ([`TableId::records`](crate::types::TableId::records)). So the log, the cleaner, recovery and
//! migration keep it as they keep objects, with tombstones and all. It exists from the prepare to
//! the decision, or from the commit until all servers know of it.
//!
//! Invariants: a record never changes. Parsing never panics.

use alloc::vec::Vec;

use crate::message::transaction::{Participant, Participants};
use crate::types::{KeyHash, LeaseId, WallTime};

const CHECK: u8 = 0;
const WRITE: u8 = 1;
const REMOVE: u8 = 2;
const COMMITTED: u8 = 3;

/// The key of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecordKey {
    /// The key hash of the object that the record is about.
    pub hash: KeyHash,
    /// The lease of the transaction's client.
    pub lease: LeaseId,
    /// The client's number for the object.
    pub rpc: u64,
}

impl RecordKey {
    /// Returns the key of the record about an object of a client's transaction.
    #[must_use]
    pub fn of(object: Participant, lease: LeaseId) -> Self {
        Self { hash: object.hash, lease, rpc: object.rpc }
    }

    /// Returns the key's bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.hash.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.lease.0.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rpc.to_be_bytes());
        bytes
    }

    /// Parses a key. `None` means that it is malformed.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        let ([hash, lease, rpc], []) = key.as_chunks() else { return None };
        Some(Self {
            hash: KeyHash(u64::from_be_bytes(*hash)),
            lease: LeaseId(u64::from_be_bytes(*lease)),
            rpc: u64::from_be_bytes(*rpc),
        })
    }
}

/// The change of a prepared object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planned<'a> {
    /// The object stays as it is.
    Check,
    /// The object gets this value, and expires at this time.
    Write(&'a [u8], WallTime),
    /// The object is removed.
    Remove,
}

/// The value of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// An object is locked until the decision.
    Prepared {
        /// The key of the object.
        key: &'a [u8],
        /// The change of the object if the transaction is committed.
        planned: Planned<'a>,
        /// The first object of the transaction, whose master decides.
        first: Participant,
    },
    /// The transaction is committed, and these objects are prepared.
    Committed(Participants<'a>),
}

impl<'a> Record<'a> {
    /// Returns the value's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match *self {
            Self::Committed(others) => {
                out.push(COMMITTED);
                out.extend_from_slice(others.bytes());
            }
            Self::Prepared { key, planned, first } => {
                let (kind, value, expires) = match planned {
                    Planned::Check => (CHECK, &[][..], WallTime::NEVER),
                    Planned::Write(value, expires) => (WRITE, value, expires),
                    Planned::Remove => (REMOVE, &[][..], WallTime::NEVER),
                };
                out.push(kind);
                out.extend_from_slice(&expires.0.to_be_bytes());
                first.emit_to(&mut out);
                out.extend_from_slice(&(key.len() as u32).to_be_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
        }
        out
    }

    /// Parses a value. `None` means that it is malformed.
    #[must_use]
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = value.split_first()?;
        if kind == COMMITTED {
            return Some(Self::Committed(Participants::parse(rest).ok()?));
        }
        let (expires, rest) = rest.split_first_chunk()?;
        let (first, rest) = rest.split_at_checked(24)?;
        let (key_len, rest) = rest.split_first_chunk()?;
        let (key, value) = rest.split_at_checked(u32::from_be_bytes(*key_len) as usize)?;
        let planned = match kind {
            CHECK => Planned::Check,
            WRITE => Planned::Write(value, WallTime(u64::from_be_bytes(*expires))),
            REMOVE => Planned::Remove,
            _ => return None,
        };
        let first = Participants::parse(first).ok()?.iter().next()?;
        Some(Self::Prepared { key, planned, first })
    }
}
