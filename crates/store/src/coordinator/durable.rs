//! The coordinator's durable state by key (normative: `docs/formats.md`, "Coordinator state").
//!
//! ```text
//! key                    value
//! 'c'                    Cluster     its id and the counters
//! 's', index u32         Server      a place of the server list; a free one keeps its generation
//! 't', table id u64      Table
//! 'l', lease id u64      nothing     a client lease that has been granted and has not expired
//! ```
//! Values are encoded as in control messages.

use alloc::vec::Vec;

use crate::durability::{Durability, TableDurability};
use crate::message::Status;
use crate::message::codec::{Field, Reader, choices, records};
use crate::objects::segment::SegmentId;
use crate::site::Site;
use crate::types::{HashKey, ServerId, Version};

/// The version of the format in which the coordinator's state is written.
pub(super) const FORMAT: u16 = 8;

/// The reason why the coordinator does not accept a stored state. The state is untouched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Another version of the program wrote the coordinator's state.
    #[error("the coordinator's state has format {0}, and this program knows format {FORMAT}")]
    Format(u16),
    /// A key or value of the coordinator's state is malformed.
    #[error("a {0} in the coordinator's state is damaged")]
    Damaged(&'static str),
    /// The coordinator's state has tables, servers or leases, but no cluster.
    #[error("the coordinator's state has no cluster record")]
    NoCluster,
}

choices! {
    pub(super),

    /// The content of a place of the server list.
    Place {
        /// The place of the server list is free. Only its generation counts.
        Free = 0,
        /// The place of the server list has a server with a lease.
        Up = 1,
        /// The place of the server list has a server that is gone and owned tablets, or whose log
        /// has replicas. It keeps the place until no tablet names it and the replicas are freed.
        Crashed = 2,
    }

    /// The stage of a table's life.
    Stage {
        /// The table's servers have not all taken its tablets. No client knows its id.
        Creating = 0,
        /// The table is in use.
        Ready = 1,
        /// The table's name is free again. Its servers have not all dropped their tablets.
        Dropping = 2,
    }
}

records! {
    pub(super),

    /// The cluster's record in the durable state, the value of the key 'c'.
    Cluster {
        /// The version of the state's format, [`FORMAT`].
        format: u16,
        /// The cluster's random id, never 0.
        id: u64,
        /// The number of times that the coordinator has started.
        incarnation: u64,
        /// The id that the next table gets.
        next_table: u64,
        /// The id that the next client lease gets.
        next_lease: u64,
        /// The longest term that any server was ever granted, in nanoseconds. After a restart, any
        /// server may still hold a lease of that term.
        server_term_ns: u64,
        /// The longest term that any client was ever granted, in nanoseconds.
        client_term_ns: u64,
        /// The number of losses that were accepted. Each begins a new range of versions.
        losses: u16,
    }

    /// A server's record in the durable state, the value of a key 's'.
    Server<'a> {
        /// The last generation of this place of the server list.
        generation: u32,
        /// The content of this place of the server list.
        place: Place,
        /// The random number of the server's life.
        nonce: u64,
        /// The size of the server's log in bytes.
        capacity_bytes: u64,
        /// The number of replicas of each segment of the server's log. With 0, a crash loses it.
        replicas: u8,
        /// The time at which the server acknowledges a change.
        durability: Durability,
        /// The place and the roles of the server.
        site: Site<'a>,
        /// The segment of the server's log before which no replica is valid unless it is closed.
        head_segment: SegmentId,
        /// The lowest epoch of a replica of that segment that is valid although it is not closed.
        head_epoch: u32,
        /// The locators at which the coordinator reaches the server.
        control: &'a str,
        /// The locators at which clients reach the server.
        data: &'a str,
        /// The number of the accepted loss by which the server's recovery goes on, or 0 if none was
        /// accepted.
        loss: u16,
        /// The segments of the server's log that the recovery replays after that loss, by id.
        kept: Vec<Kept>,
    }

    /// A segment that a recovery replays after an accepted loss.
    Kept {
        /// The id of the segment.
        segment: SegmentId,
        /// The number of bytes of the segment to replay.
        len: u32,
    }

    /// A table's record in the durable state, the value of a key 't'.
    Table<'a> {
        /// The stage of the table's life.
        stage: Stage,
        /// The name of the table.
        name: &'a str,
        /// The secret under which the table's keys are hashed.
        hash_key: HashKey,
        /// The time at which a change of the table's objects is acknowledged.
        durability: TableDurability,
        /// The tablets of the table, by first key hash.
        tablets: Vec<Tablet>,
    }

    /// A part of a table in the durable state.
    Tablet {
        /// The first key hash of the tablet.
        first: u64,
        /// The last key hash of the tablet.
        last: u64,
        /// The server that owns the tablet. If that server is not up, the tablet is lost, or other
        /// servers recover it.
        server: ServerId,
        /// The segment of the owner's log up to which entries do not count for the tablet: they are
        /// of an earlier time of the tablet there. 0 in a new tablet.
        since: SegmentId,
        /// The lowest version of a write to the tablet. 0 unless a loss was accepted.
        floor: Version,
    }
}

/// A key of the coordinator's durable state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Cluster,
    Server(u32),
    Table(u64),
    Lease(u64),
}

impl Key {
    pub(super) fn emit(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(9);
        match self {
            Self::Cluster => out.push(b'c'),
            Self::Server(index) => {
                out.push(b's');
                index.put(&mut out);
            }
            Self::Table(id) => {
                out.push(b't');
                id.put(&mut out);
            }
            Self::Lease(id) => {
                out.push(b'l');
                id.put(&mut out);
            }
        }
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, RestoreError> {
        let damaged = |_| RestoreError::Damaged("key");
        let (&kind, rest) = bytes.split_first().ok_or(RestoreError::Damaged("key"))?;
        match kind {
            b'c' if rest.is_empty() => Ok(Self::Cluster),
            b's' => decode(rest).map(Self::Server).map_err(damaged),
            b't' => decode(rest).map(Self::Table).map_err(damaged),
            b'l' => decode(rest).map(Self::Lease).map_err(damaged),
            _ => Err(RestoreError::Damaged("key")),
        }
    }
}

/// Returns the bytes of a record of the durable state.
pub(super) fn encode<'a>(record: &impl Field<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    record.put(&mut out);
    out
}

/// Parses a record of the durable state from exactly these bytes.
pub(super) fn decode<'a, T: Field<'a>>(bytes: &'a [u8]) -> Result<T, Status> {
    let mut rest = Reader(bytes);
    let record = T::take(&mut rest)?;
    rest.end()?;
    Ok(record)
}

/// Changes of the coordinator's state that become durable together.
#[derive(Default, Debug)]
pub(super) struct Batch {
    pub(super) puts: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) deletes: Vec<Vec<u8>>,
}

impl Batch {
    pub(super) fn put<'a>(&mut self, key: Key, record: &impl Field<'a>) {
        self.puts.push((key.emit(), encode(record)));
    }

    pub(super) fn put_empty(&mut self, key: Key) {
        self.puts.push((key.emit(), Vec::new()));
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.deletes.push(key.emit());
    }
}
