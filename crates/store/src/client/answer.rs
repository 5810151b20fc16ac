//! How an operation ended.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Deref;

use sprat_proto::rpc::Payload;

use super::{Cursor, Op};
use crate::message::Status;
use crate::message::control::{ServerState, Usage};
use crate::message::data::{self, Objects};
use crate::types::{MAX_KEY, MAX_VALUE, ServerId, TableId, Version};

/// An operation ended.
#[derive(Debug)]
pub struct Done<'b> {
    /// Which one.
    pub op: Op,
    /// What came of it.
    pub outcome: Result<Answer<'b>, Error>,
}

/// What an operation answers.
#[derive(Debug)]
#[non_exhaustive]
pub enum Answer<'b> {
    /// To a read.
    Object {
        /// The object's version.
        version: Version,
        /// Its value.
        value: Value<'b>,
    },
    /// To a write or remove: the object's new version, or the version that it had (0 if there was none).
    Version(Version),
    /// To an increment of an integer.
    Integer {
        /// The object's new version.
        version: Version,
        /// The sum.
        sum: i64,
    },
    /// To an increment of a double.
    Double {
        /// The object's new version.
        version: Version,
        /// The sum.
        sum: f64,
    },
    /// To the creation of a table, or a look-up by name.
    Table(TableId),
    /// The table is dropped.
    Dropped,
    /// All tables.
    Tables(Vec<TableInfo>),
    /// The server list.
    Servers(Vec<ServerInfo>),
    /// Some objects of a table.
    Page(Page<'b>),
    /// To an echo: the same bytes; to a request for statistics: a JSON object.
    Bytes(Value<'b>),
}

impl Answer<'_> {
    /// The same with everything in it the caller's own; copies only what was lent.
    #[must_use]
    pub fn into_owned(self) -> Answer<'static> {
        match self {
            Self::Object { version, value } => {
                Answer::Object { version, value: value.into_owned() }
            }
            Self::Version(version) => Answer::Version(version),
            Self::Integer { version, sum } => Answer::Integer { version, sum },
            Self::Double { version, sum } => Answer::Double { version, sum },
            Self::Table(table) => Answer::Table(table),
            Self::Dropped => Answer::Dropped,
            Self::Tables(tables) => Answer::Tables(tables),
            Self::Servers(servers) => Answer::Servers(servers),
            Self::Page(page) => Answer::Page(page.into_owned()),
            Self::Bytes(bytes) => Answer::Bytes(bytes.into_owned()),
        }
    }
}

/// Bytes of a reply: lent if the reply was.
#[derive(Debug)]
pub struct Value<'b> {
    pub(super) payload: Payload<'b>,
    pub(super) skip: usize,
}

impl Value<'_> {
    /// The same bytes as the caller's own; copies them only if they were lent.
    #[must_use]
    pub fn into_owned(self) -> Value<'static> {
        Value { payload: Payload::Owned(self.payload.into_vec()), skip: self.skip }
    }

    /// Keeps the bytes in `buffer` and returns where they begin in it: moved there if they were the caller's own, copied
    /// if they were lent.
    pub fn keep_in(self, buffer: &mut Vec<u8>) -> usize {
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

    /// The bytes as the caller's own; copies them only if they were lent (or stand behind a header in a vector).
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

/// Some objects of a table.
#[derive(Debug)]
pub struct Page<'b> {
    pub(super) payload: Payload<'b>,
    /// Where to go on; `None` if these were the last of the table.
    pub next: Option<Cursor>,
}

impl Page<'_> {
    /// The same page as the caller's own; copies it only if it was lent.
    #[must_use]
    pub fn into_owned(self) -> Page<'static> {
        Page { payload: Payload::Owned(self.payload.into_vec()), next: self.next }
    }

    /// Iterates over (key, version, value).
    pub fn objects(&self) -> impl Iterator<Item = (&[u8], Version, &[u8])> {
        let objects: Option<Objects<'_>> = data::objects_reply(&self.payload).ok();
        objects.into_iter().flatten()
    }
}

/// A table in [`Answer::Tables`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// Its id.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// How many tablets it has.
    pub tablets: u16,
    /// How many of them are lost.
    pub lost: u16,
    /// How many of the others have a server that was not heard of since the coordinator started: perhaps they are lost too.
    pub unheard: u16,
}

/// A server in [`Answer::Servers`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerInfo {
    /// Its id.
    pub server: ServerId,
    /// Whether it lives.
    pub state: ServerState,
    /// How many tablets it owns.
    pub tablets: u32,
    /// What it said of itself last.
    pub usage: Usage,
    /// Where the coordinator reaches it.
    pub control: String,
    /// Where clients reach it.
    pub data: String,
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was sent: use a shorter key.
    #[error("the key has {0} bytes, the limit is {MAX_KEY}")]
    KeyTooLong(usize),
    /// Nothing was sent: use a shorter value.
    #[error("the value has {0} bytes, the limit is {MAX_VALUE}")]
    ValueTooLong(usize),
    /// Nothing was sent: too many operations are in progress (`Config::max_ops`). Wait for some to end.
    #[error("too many operations are in progress")]
    TooManyOps,
    /// The operation is not in progress: its outcome was given before, or it was cancelled.
    #[error("the operation is not in progress: its outcome was given before, or it was cancelled")]
    NotInProgress,
    /// The table was dropped, or there never was one.
    #[error("the table does not exist")]
    TableDoesntExist,
    /// There is no such object.
    #[error("the object does not exist")]
    ObjectDoesntExist,
    /// There is such an object, and the reject rules demand none.
    #[error("the object exists, with version {}", .0.0)]
    ObjectExists(Version),
    /// The object's version is not what the reject rules demand.
    #[error("the object has version {}", .0.0)]
    WrongVersion(Version),
    /// The object is not the text of a number of the kind to be incremented. It is as it was.
    #[error("the object is not a number: it is not the decimal text of one")]
    NotANumber(Version),
    /// The sum is beyond 64 bits, or beyond what a double can be. The object is as it was.
    #[error("the sum is too large for a number of its kind; the object is as it was")]
    Overflow(Version),
    /// An amount to add that is infinite or not a number. Nothing was changed.
    #[error("the amount to add must be finite")]
    NotFinite,
    /// No memory is left for objects of this tablet. Remove some.
    #[error("the server has no space left for objects")]
    NoSpace,
    /// The server that had the object crashed, and nobody has its data. Drop the table.
    #[error(
        "the data is lost: its server crashed and there are no replicas; drop the table to use its name again"
    )]
    TabletLost,
    /// The operation took too long.
    #[error("the deadline passed while waiting for {}{}{}", waited_for, because(why), maybe(*maybe_executed))]
    Deadline {
        /// Whether the operation may have been executed, or may be still.
        maybe_executed: bool,
        /// Who did not answer, or not as it should.
        waited_for: WaitedFor,
        /// What is known of why: each locator that was tried with its cause. `None` if there was only silence.
        why: Option<Box<str>>,
    },
    /// This client's lease ended before an answer came: the operation was executed once or not at all, and never will be
    /// from now on. Read to find out which.
    #[error(
        "the client's lease ended before the answer came: the operation was executed once or not at all"
    )]
    Unknown,
    /// No server is up. If there were some when the creation began, it goes on as soon as one joins: ask again.
    #[error("the cluster has no server for the table")]
    TooFewServers,
    /// The coordinator cannot write its state, so that nothing was changed (unless an earlier try was executed): once it can,
    /// ask again.
    #[error("the coordinator cannot write its state: {text}{}", maybe(*maybe_executed))]
    NotDurable {
        /// Which file, and why.
        text: Box<str>,
        /// Whether the operation may have been executed, or goes on by itself.
        maybe_executed: bool,
    },
    /// The table's name is empty or too long.
    #[error("a table's name has 1 to 255 bytes, in UTF-8")]
    BadName,
    /// None of the ways to reach the server is among those that this client was told to use.
    #[error("{0}")]
    NoTransport(Box<str>),
    /// The coordinator belongs to another cluster than before: table ids mean something else. Make a new client.
    #[error("the coordinator was replaced by that of another cluster; connect anew")]
    ClusterReplaced,
    /// The server does not take the request as it is; probably it is another version of the program.
    #[error("the server refused the request: {status}{}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// Its status.
        status: Status,
        /// Its words.
        text: Box<str>,
    },
}

fn because(why: &Option<Box<str>>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
}

fn maybe(executed: bool) -> &'static str {
    if executed { "; the operation may have been executed" } else { "" }
}

impl Error {
    /// True if the operation may have been executed.
    #[must_use]
    pub fn maybe_executed(&self) -> bool {
        matches!(
            self,
            Self::Unknown
                | Self::Deadline { maybe_executed: true, .. }
                | Self::NotDurable { maybe_executed: true, .. }
        )
    }
}

/// Who an operation waited for when its deadline passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitedFor {
    /// The server of its data.
    Server,
    /// The coordinator, to say where the data is.
    Coordinator,
    /// The coordinator, for the client's lease.
    Lease,
    /// Earlier operations of this client (the window of unanswered mutations is full).
    Window,
}

impl core::fmt::Display for WaitedFor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Server => "the server",
            Self::Coordinator => "the coordinator",
            Self::Lease => "the coordinator to grant a lease",
            Self::Window => "earlier operations",
        })
    }
}
