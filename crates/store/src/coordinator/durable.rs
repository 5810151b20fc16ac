//! The coordinator's durable state: what stands under which key (normative: `docs/formats.md`, "Coordinator state").
//!
//! ```text
//! key                    value
//! 'c'                    Cluster     its id and the counters
//! 's', index u32         Server      one place of the server list, kept when empty: its generation is never used again
//! 't', table id u64      Table
//! 'l', lease id u64      nothing     a client lease that has been granted and has not expired
//! ```
//! Values are encoded as in control messages.

use alloc::vec::Vec;

use crate::message::Status;
use crate::message::codec::{Field, Reader, choices, records};
use crate::types::{HashKey, ServerId};

/// The format of the whole state.
pub(super) const FORMAT: u16 = 1;

/// Why a state could not be taken up. It is not touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Another version of the program wrote it.
    #[error("the coordinator's state has format {0}, and this program knows format {FORMAT}")]
    Format(u16),
    /// A key or value makes no sense.
    #[error("a {0} in the coordinator's state is damaged")]
    Damaged(&'static str),
    /// There are tables, servers or leases, but no cluster that they belong to.
    #[error("the coordinator's state has no cluster record")]
    NoCluster,
}

choices! {
    pub(super),

    /// What a place of the server list holds.
    Place {
        /// Nobody: only the generation counts.
        Free = 0,
        /// A server with a lease.
        Up = 1,
        /// A server that is gone but owned tablets, which are lost.
        Crashed = 2,
    }

    /// How far a table has come.
    Stage {
        /// Its servers have not all taken its tablets: nobody has been told its id.
        Creating = 0,
        /// In use.
        Ready = 1,
        /// Its name is free again, its servers have not all forgotten it.
        Dropping = 2,
    }
}

records! {
    pub(super),

    /// The value of 'c'.
    Cluster {
        /// [`FORMAT`].
        format: u16,
        /// The cluster's random id, never 0.
        id: u64,
        /// How often the coordinator has started.
        incarnation: u64,
        /// The id of the next table.
        next_table: u64,
        /// The id of the next lease.
        next_lease: u64,
        /// The longest term that any server was ever granted, in nanoseconds: after a restart nobody can tell who still
        /// holds one.
        server_term_ns: u64,
        /// The same of clients.
        client_term_ns: u64,
    }

    /// The value of 's'.
    Server<'a> {
        /// The last generation given out for this place.
        generation: u32,
        /// What is there.
        place: Place,
        /// The server's own random number.
        nonce: u64,
        /// Bytes of its log.
        capacity_bytes: u64,
        /// Where the coordinator reaches it.
        control: &'a str,
        /// Where clients reach it.
        data: &'a str,
    }

    /// The value of 't'.
    Table<'a> {
        /// How far it has come.
        stage: Stage,
        /// Its name.
        name: &'a str,
        /// The secret under which its keys are hashed.
        hash_key: HashKey,
        /// Its tablets by first hash.
        tablets: Vec<Tablet>,
    }

    /// A part of a table.
    Tablet {
        /// The first key hash.
        first: u64,
        /// The last one.
        last: u64,
        /// Who owns it; it is lost if that server is not up.
        server: ServerId,
    }
}

/// One key of the state.
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

/// The bytes of a record.
pub(super) fn encode<'a>(record: &impl Field<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    record.put(&mut out);
    out
}

/// A record from exactly these bytes.
pub(super) fn decode<'a, T: Field<'a>>(bytes: &'a [u8]) -> Result<T, Status> {
    let mut rest = Reader(bytes);
    let record = T::take(&mut rest)?;
    rest.end()?;
    Ok(record)
}

/// Changes that become durable together.
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
