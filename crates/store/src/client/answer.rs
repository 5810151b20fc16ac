//! The outcome of a client's operation.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Deref;

use sprat_proto::rpc::Payload;

use super::cursor::Cursor;
use super::error::Error;
use super::op::Op;
use super::parts::Parts;
use crate::durability::{Durability, TableDurability};
use crate::message::control::{self, ServerState, TabletState, Usage};
use crate::message::list::{Listed, objects_reply};
use crate::message::migration::{Migration, MigrationState};
use crate::message::recovery::Loss;
use crate::ops::Reply;
use crate::site::OwnedSite;
use crate::types::{Lifetime, ServerId, TableId, Version};

/// An operation that has ended.
#[derive(Debug)]
pub struct Done<'b> {
    /// The operation that has ended.
    pub op: Op,
    /// The outcome of the operation.
    pub outcome: Result<Answer<'b>, Error>,
}

/// The result of an operation that succeeded.
#[derive(Debug)]
#[non_exhaustive]
pub enum Answer<'b> {
    /// The answer to a read: the object.
    Object {
        /// The object's version.
        version: Version,
        /// The value of the object that was read.
        value: Value<'b>,
    },
    /// The new version of a written object, or the old version of a removed one (0 if it did not
    /// exist).
    Version(Version),
    /// The answer to an increment of an integer.
    Integer {
        /// The object's new version.
        version: Version,
        /// The sum of the object's old value and the amount.
        sum: i64,
    },
    /// The answer to an increment of a double.
    Double {
        /// The object's new version.
        version: Version,
        /// The sum of the object's old value and the amount.
        sum: f64,
    },
    /// The answer to an append.
    Length {
        /// The object's new version.
        version: Version,
        /// The new length of the object's value in bytes.
        length: u64,
    },
    /// The answer to a read of an object and the rest of its lifetime.
    Expiring {
        /// The object's version.
        version: Version,
        /// The rest of the object's lifetime when the server read it, or `None` if the object does
        /// not expire.
        lifetime: Option<Lifetime>,
        /// The value of the object that was read.
        value: Value<'b>,
    },
    /// The answer to a swap: the object before.
    Swapped {
        /// The object's new version.
        version: Version,
        /// The version of the object before, 0 if there was none.
        before: Version,
        /// The value of the object before, empty if there was none.
        value: Value<'b>,
    },
    /// The id of the table that was created or looked up.
    Table(TableId),
    /// The answer to a drop: the table is dropped.
    Dropped,
    /// The list of all tables.
    Tables(Vec<TableInfo>),
    /// The answer to a split or a merge: the tablets are as they should be.
    Arranged,
    /// The number of the migration that was asked for. `None` if the server owns the keys already.
    Migration(Option<u64>),
    /// The list of a table's tablets by their first key hashes.
    Tablets(Vec<TabletInfo>),
    /// The list of migrations by number.
    Migrations(Vec<MigrationInfo>),
    /// The list of all servers.
    Servers(Vec<ServerInfo>),
    /// The coordinator that leads.
    Leader(LeaderInfo),
    /// The answer to [`Client::accept_loss`](super::Client::accept_loss): what the recovery of a
    /// server loses.
    Loss(Loss),
    /// A page of an enumeration: some objects of a table.
    Page(Page<'b>),
    /// The results of a multi-operation's parts.
    Parts(Parts),
    /// The answer to a transaction that was committed: the new version of each object that it
    /// wrote and the version of each object that it removed or checked, 0 if there was none, in the
    /// order of its parts. A transaction that changes nothing has no versions: they are 0.
    Committed(Vec<Version>),
    /// The bytes of an echo, or the counters of a server as a JSON object.
    Bytes(Value<'b>),
}

impl<'b> Answer<'b> {
    /// Makes an answer of a parsed reply and the reply's bytes.
    #[inline]
    pub(super) fn new(parsed: Reply, payload: Payload<'b>, next: Option<Cursor>) -> Self {
        match parsed {
            Reply::Object { version, value: skip } => {
                Self::Object { version, value: Value::new(payload, skip) }
            }
            Reply::Version(version) => Self::Version(version),
            Reply::Integer { version, sum } => Self::Integer { version, sum },
            Reply::Double { version, sum } => Self::Double { version, sum },
            Reply::Length { version, length } => Self::Length { version, length },
            Reply::Swapped { version, before, value: skip } => {
                Self::Swapped { version, before, value: Value::new(payload, skip) }
            }
            Reply::Expiring { version, lifetime, value: skip } => {
                Self::Expiring { version, lifetime, value: Value::new(payload, skip) }
            }
            Reply::Objects { .. } => Self::Page(Page { payload, next }),
            Reply::Bytes(skip) => Self::Bytes(Value::new(payload, skip)),
        }
    }
}

impl Answer<'_> {
    /// Returns the answer with bytes of its own. Copies only borrowed bytes.
    #[must_use]
    pub fn into_owned(self) -> Answer<'static> {
        match self {
            Self::Object { version, value } => {
                Answer::Object { version, value: value.into_owned() }
            }
            Self::Version(version) => Answer::Version(version),
            Self::Integer { version, sum } => Answer::Integer { version, sum },
            Self::Double { version, sum } => Answer::Double { version, sum },
            Self::Length { version, length } => Answer::Length { version, length },
            Self::Swapped { version, before, value } => {
                Answer::Swapped { version, before, value: value.into_owned() }
            }
            Self::Expiring { version, lifetime, value } => {
                Answer::Expiring { version, lifetime, value: value.into_owned() }
            }
            Self::Table(table) => Answer::Table(table),
            Self::Dropped => Answer::Dropped,
            Self::Tables(tables) => Answer::Tables(tables),
            Self::Arranged => Answer::Arranged,
            Self::Migration(number) => Answer::Migration(number),
            Self::Tablets(tablets) => Answer::Tablets(tablets),
            Self::Migrations(migrations) => Answer::Migrations(migrations),
            Self::Servers(servers) => Answer::Servers(servers),
            Self::Leader(leader) => Answer::Leader(leader),
            Self::Loss(loss) => Answer::Loss(loss),
            Self::Page(page) => Answer::Page(page.into_owned()),
            Self::Parts(parts) => Answer::Parts(parts),
            Self::Committed(versions) => Answer::Committed(versions),
            Self::Bytes(bytes) => Answer::Bytes(bytes.into_owned()),
        }
    }
}

/// Bytes of a server's reply, borrowed if the reply was.
#[derive(Debug)]
pub struct Value<'b> {
    payload: Payload<'b>,
    skip: usize,
}

impl<'b> Value<'b> {
    /// Makes a value of the bytes of `payload` behind its first `skip` bytes.
    #[must_use]
    pub fn new(payload: Payload<'b>, skip: usize) -> Self {
        let skip = skip.min(payload.len());
        Self { payload, skip }
    }
}

impl Value<'_> {
    /// Returns the value with bytes of its own. Copies only borrowed bytes.
    #[must_use]
    pub fn into_owned(self) -> Value<'static> {
        Value { payload: Payload::Owned(self.payload.into_vec()), skip: self.skip }
    }

    /// Puts the bytes of the reply into `buffer`, whose old bytes are lost, and returns the offset
    /// of the value there. Moves owned bytes and copies borrowed ones.
    #[inline(always)]
    pub fn move_into(self, buffer: &mut Vec<u8>) -> usize {
        match self.payload {
            Payload::Owned(bytes) => {
                *buffer = bytes;
                self.skip
            }
            Payload::Borrowed(bytes) => {
                buffer.clear();
                buffer.extend_from_slice(&bytes[self.skip..]);
                0
            }
        }
    }

    /// Returns the value's bytes in a vector of their own. Copies borrowed bytes; moves owned ones
    /// to the start of their vector.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.payload {
            Payload::Borrowed(bytes) => bytes[self.skip..].to_vec(),
            Payload::Owned(mut bytes) => {
                bytes.drain(..self.skip);
                bytes
            }
        }
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.payload[self.skip..]
    }
}

/// A page of an enumeration: some objects of a table.
#[derive(Debug)]
pub struct Page<'b> {
    pub(super) payload: Payload<'b>,
    /// The position of the next object, or `None` at the end of the table.
    pub next: Option<Cursor>,
}

impl Page<'_> {
    /// Returns the page with bytes of its own. Copies only borrowed bytes.
    #[must_use]
    pub fn into_owned(self) -> Page<'static> {
        Page { payload: Payload::Owned(self.payload.into_vec()), next: self.next }
    }

    /// Iterates over the page's objects.
    pub fn objects(&self) -> impl Iterator<Item = Listed<'_>> {
        objects_reply(&self.payload).ok().into_iter().flatten()
    }
}

/// A table in [`Answer::Tables`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// The id of the table.
    pub table: TableId,
    /// The name of the table.
    pub name: String,
    /// The number of the table's tablets.
    pub tablets: u16,
    /// The number of the table's tablets that are lost: no server has their data.
    pub lost: u16,
    /// The number of the table's tablets whose servers have not renewed their leases since the
    /// coordinator started. They may be lost too.
    pub unheard: u16,
    /// The number of the table's tablets whose server crashed and whose data other servers recover.
    /// Operations on them wait.
    pub recovering: u16,
    /// The time at which a change of the table's objects is acknowledged.
    pub durability: TableDurability,
}

/// A tablet in [`Answer::Tablets`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TabletInfo {
    /// The first key hash of the tablet.
    pub first: u64,
    /// The last key hash of the tablet.
    pub last: u64,
    /// The server that owns the tablet.
    pub server: ServerId,
    /// The coordinator's view of the tablet.
    pub state: TabletState,
}

impl TabletInfo {
    pub(super) fn of(row: &control::Tablet<'_>) -> Self {
        Self { first: row.first, last: row.last, server: row.server, state: row.state }
    }
}

/// A migration in [`Answer::Migrations`]: a part of a table that moves to another server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrationInfo {
    /// The number of the migration. A later one has a higher number.
    pub number: u64,
    /// The state of the migration.
    pub state: MigrationState,
    /// The table of the part that moves.
    pub table: TableId,
    /// The first key hash of the part that moves.
    pub first: u64,
    /// The last key hash of the part that moves.
    pub last: u64,
    /// The server that the part leaves.
    pub source: ServerId,
    /// The server that the part goes to.
    pub target: ServerId,
    /// The number of bytes of log entries that the target has taken over.
    pub bytes: u64,
    /// The reason for which the migration failed. Empty otherwise.
    pub reason: String,
}

impl MigrationInfo {
    pub(super) fn of(row: &Migration<'_>) -> Self {
        let &Migration { number, state, table, first, last, source, target, bytes, reason } = row;
        let reason = reason.into();
        Self { number, state, table, first, last, source, target, bytes, reason }
    }
}

/// The coordinator that leads, in [`Answer::Leader`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaderInfo {
    /// The coordinator's term: it grows each time that a coordinator of the cluster begins to lead.
    pub term: u64,
    /// The locators of the coordinator, with `;` between them.
    pub locators: String,
}

/// A server in [`Answer::Servers`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerInfo {
    /// The id of the server.
    pub server: ServerId,
    /// The coordinator's view of the server.
    pub state: ServerState,
    /// The number of tablets that the server owns.
    pub tablets: u32,
    /// The usage that the server reported last.
    pub usage: Usage,
    /// The accesses to the server's objects in a second, between its last two renewals.
    pub rate: u64,
    /// The number of replicas of each of the server's objects.
    pub replicas: u8,
    /// The time at which the server acknowledges a change.
    pub durability: Durability,
    /// The place and the roles of the server.
    pub site: OwnedSite,
    /// The locators at which the coordinator reaches the server.
    pub control: String,
    /// The locators at which clients reach the server.
    pub data: String,
    /// The reason why the server's log cannot be recovered now. Empty unless the state is
    /// [`ServerState::Blocked`].
    pub blocked: String,
}
