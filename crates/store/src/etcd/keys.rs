//! The keys of a cluster in etcd, and their values (normative: `docs/formats.md`, "Coordinator
//! state in etcd").
//!
//! ```text
//! /sprat/CLUSTER/term          format u16 = 1 | term u64 | nonce u64 | the leader's locators
//! /sprat/CLUSTER/beat          u64, another one every 200 ms
//! /sprat/CLUSTER/seq           u64, the number of writes in this term
//! /sprat/CLUSTER/state/KEY     a value of the coordinator's state; KEY and value as in its file
//! /sprat/CLUSTER/batch         u32, the number of pieces of a long write that is durable
//! /sprat/CLUSTER/batch/INDEX   a piece of it, INDEX u32 from 0: the body of a state file's record
//! ```
//! Integers are big-endian.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::txn::{Compare, Is, Op};

/// The version of the format of the keys.
const FORMAT: u16 = 1;
/// The longest name of a cluster in etcd, in bytes.
pub const MAX_CLUSTER: usize = 64;
/// The longest locators of a leader, in bytes.
const MAX_LOCATORS: usize = crate::message::control::MAX_LOCATORS;

/// The keys of one cluster in etcd.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

/// The value of the key `term`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Term {
    pub(super) term: u64,
    /// A random number of the candidate's attempt to lead.
    pub(super) nonce: u64,
    pub(super) locators: String,
}

impl Term {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(18 + self.locators.len());
        out.extend_from_slice(&FORMAT.to_be_bytes());
        out.extend_from_slice(&self.term.to_be_bytes());
        out.extend_from_slice(&self.nonce.to_be_bytes());
        out.extend_from_slice(self.locators.as_bytes());
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let malformed = || String::from("the key \"term\" in etcd has no value of sprat");
        let (format, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
        let format = u16::from_be_bytes(*format);
        if format != FORMAT {
            return Err(format!(
                "the state in etcd has format {format}, and this program knows format {FORMAT}"
            ));
        }
        let (term, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let (nonce, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let locators = core::str::from_utf8(rest).ok().filter(|text| text.len() <= MAX_LOCATORS);
        let (term, nonce) = (u64::from_be_bytes(*term), u64::from_be_bytes(*nonce));
        // The term is the upper half of versions, as the incarnation of a state file.
        if term >= u64::from(u32::MAX) {
            return Err(malformed());
        }
        Ok(Self { term, nonce, locators: locators.ok_or_else(malformed)?.into() })
    }
}

impl Keys {
    /// Returns the keys of the cluster with this name: 1 to [`MAX_CLUSTER`] letters, digits, `-`,
    /// `_` and `.`. `None` for another text.
    #[must_use]
    pub fn new(cluster: &str) -> Option<Self> {
        let is_usable = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let usable = (1..=MAX_CLUSTER).contains(&cluster.len()) && cluster.bytes().all(is_usable);
        usable.then(|| Self { prefix: format!("/sprat/{cluster}/") })
    }

    /// Returns the first bytes of all keys of the cluster.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn key(&self, name: &str) -> Vec<u8> {
        let mut key = Vec::from(self.prefix.as_bytes());
        key.extend_from_slice(name.as_bytes());
        key
    }

    pub(super) fn term(&self) -> Vec<u8> {
        self.key("term")
    }

    pub(super) fn beat(&self) -> Vec<u8> {
        self.key("beat")
    }

    pub(super) fn seq(&self) -> Vec<u8> {
        self.key("seq")
    }

    pub(super) fn batch(&self) -> Vec<u8> {
        self.key("batch")
    }

    pub(super) fn piece(&self, index: u32) -> Vec<u8> {
        let mut key = self.key("batch/");
        key.extend_from_slice(&index.to_be_bytes());
        key
    }

    /// Returns the range of all pieces of a long write: its first key, and its end.
    pub(super) fn pieces(&self) -> (Vec<u8>, Vec<u8>) {
        (self.key("batch/"), self.key("batch0"))
    }

    pub(super) fn state(&self, key: &[u8]) -> Vec<u8> {
        let mut full = self.key("state/");
        full.extend_from_slice(key);
        full
    }

    /// Returns the end of the range of all keys of the state.
    pub(super) fn state_end(&self) -> Vec<u8> {
        self.key("state0")
    }

    /// Returns the key of the coordinator's state that lies under this key.
    pub(super) fn of_state<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        key.strip_prefix(self.state(&[]).as_slice())
    }

    /// Returns the condition that the key `term` was modified last at this revision.
    pub(super) fn in_term(&self, revision: i64) -> Compare {
        Compare { key: self.term(), is: Is::Modified(revision) }
    }

    /// Returns the operation that sets the number of writes.
    pub(super) fn put_seq(&self, seq: u64) -> Op {
        Op::Put { key: self.seq(), value: seq.to_be_bytes().to_vec() }
    }
}
