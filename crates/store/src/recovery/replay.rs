//! The replay of a log: what a recovered master has.
//!
//! Segments come in any order, so that every rule is about versions and numbers: of each key the
//! object of the highest version counts, unless a tombstone has at least that version. Of each
//! client the outcomes count that it had not acknowledged.
//!
//! Invariant: each entry costs a look-up, and a copy if it is newer than what is there.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::Crc32c;

use crate::message::Status;
use crate::message::data::Once;
use crate::objects::entry::{self, Completion, Entry, GROUP, Outcome, Record};
use crate::types::{LeaseId, TableId, Version};

/// The reason why the replay of a segment is not possible: an entry is malformed, cut off, or has a
/// wrong checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a segment of the log is damaged")]
pub struct Damaged;

/// The state of a replay.
#[derive(Debug)]
pub struct Replay {
    crc32c: Crc32c,
    tables: BTreeMap<TableId, BTreeMap<Vec<u8>, Newest>>,
    clients: BTreeMap<LeaseId, Client>,
    safe_version: Version,
}

/// The newest that a replay has seen of a key.
#[derive(Debug, Default)]
struct Newest {
    version: Version,
    /// The value of the object, or `None` if it was removed.
    value: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Client {
    /// The highest number up to which the client has acknowledged.
    ack: u64,
    /// The tables and outcomes of the client's mutations by number.
    outcomes: BTreeMap<u64, Recovered>,
}

/// The table and the outcome of a mutation, and the old value for its reply.
type Recovered = (TableId, Outcome, Vec<u8>);

impl Replay {
    /// Returns a replay without segments.
    #[must_use]
    pub fn new(crc32c: Crc32c) -> Self {
        let (tables, clients) = (BTreeMap::new(), BTreeMap::new());
        Self { crc32c, tables, clients, safe_version: Version(1) }
    }

    /// Replays the bytes of a segment, all of which are entries of it.
    ///
    /// # Errors
    /// [`Damaged`] if some of them are not. Nothing has changed.
    pub fn segment(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        let last = entry::replay(self.crc32c, bytes).last().ok_or(Damaged)?.0;
        let end = last + entry::parse(&bytes[last..]).map_or(0, |(_, len)| len);
        if end != bytes.len() {
            return Err(Damaged);
        }
        for (at, entry) in entry::replay(self.crc32c, bytes) {
            if let Entry::Group(len) = entry
                && bytes.len() < at + GROUP + len
            {
                break;
            }
            self.entry(&entry);
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry<'_>) {
        match *entry {
            Entry::Header(header) => self.raise(header.safe_version),
            Entry::Object(object, record) => {
                let newest = self.newest(object.table, object.key);
                if object.version > newest.version {
                    *newest =
                        Newest { version: object.version, value: Some(object.value.to_vec()) };
                }
                self.changed(object.table, object.version, record);
            }
            Entry::Tombstone(tombstone, record) => {
                let newest = self.newest(tombstone.table, tombstone.key);
                if tombstone.version >= newest.version {
                    *newest = Newest { version: tombstone.version, value: None };
                }
                self.changed(tombstone.table, tombstone.version, record);
            }
            Entry::Completion(completion) => {
                self.raise(Version(completion.outcome.version.0 + 1));
                let Completion { once, table, outcome, old, .. } = completion;
                self.completed(once, (table.base(), outcome, old.to_vec()));
            }
            Entry::Digest(_) | Entry::Change(_) | Entry::Group(_) => {}
        }
    }

    fn newest(&mut self, table: TableId, key: &[u8]) -> &mut Newest {
        self.tables.entry(table).or_default().entry(key.to_vec()).or_default()
    }

    /// Takes the record of a mutation that has given an object of `table` its version, or removed
    /// that version.
    fn changed(&mut self, table: TableId, version: Version, record: Option<Record<'_>>) {
        self.raise(Version(version.0 + 1));
        if let Some(Record { once, sum, old }) = record {
            let outcome = Outcome { status: Status::Ok, version, sum };
            self.completed(once, (table.base(), outcome, old.to_vec()));
        }
    }

    fn completed(&mut self, once: Once, recovered: Recovered) {
        let client = self.clients.entry(once.lease).or_default();
        if once.ack > client.ack {
            client.ack = once.ack;
            client.outcomes = client.outcomes.split_off(&once.ack.saturating_add(1));
        }
        if once.rpc > client.ack {
            client.outcomes.insert(once.rpc, recovered);
        }
    }

    fn raise(&mut self, version: Version) {
        self.safe_version = self.safe_version.max(version);
    }

    /// Returns version and value of an object, if it exists.
    #[must_use]
    pub fn object(&self, table: TableId, key: &[u8]) -> Option<(Version, &[u8])> {
        let newest = self.tables.get(&table)?.get(key)?;
        Some((newest.version, newest.value.as_deref()?))
    }

    /// Iterates over the objects by table and key: table, key, version and value.
    pub fn objects(&self) -> impl Iterator<Item = (TableId, &[u8], Version, &[u8])> {
        self.tables.iter().flat_map(|(&table, keys)| {
            keys.iter().filter_map(move |(key, newest)| {
                Some((table, &key[..], newest.version, newest.value.as_deref()?))
            })
        })
    }

    /// Iterates over the outcomes that their clients have not acknowledged, by lease and number:
    /// lease, number, table and outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (LeaseId, u64, TableId, Outcome)> {
        self.clients.iter().flat_map(|(&lease, client)| {
            let outcomes = client.outcomes.iter();
            outcomes.map(move |(&rpc, &(table, outcome, _))| (lease, rpc, table, outcome))
        })
    }

    /// Returns the old value for the reply to the mutation `rpc` of the client with this lease, if
    /// the client has not acknowledged it. It is empty unless the mutation was a swap.
    #[must_use]
    pub fn old(&self, lease: LeaseId, rpc: u64) -> Option<&[u8]> {
        let (_, _, old) = self.clients.get(&lease)?.outcomes.get(&rpc)?;
        Some(old)
    }

    /// Returns the lowest version for a new object.
    #[must_use]
    pub fn safe_version(&self) -> Version {
        self.safe_version
    }
}
