//! The errors of a client's operations.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use crate::message::Status;
use crate::types::{
    Lifetime, MAX_INDEX_KEY, MAX_KEY, MAX_PARTS, MAX_TRANSACTION, MAX_TRANSACTION_BYTES, MAX_VALUE,
    Version,
};

/// The reason why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation's key is too long. Nothing was sent: use a shorter key.
    #[error("the key has {0} bytes, the limit is {MAX_KEY}")]
    KeyTooLong(usize),
    /// The operation's value is too long. Nothing was sent: use a shorter value.
    #[error("the value has {0} bytes, the limit is {MAX_VALUE}")]
    ValueTooLong(usize),
    /// The object's lifetime is too long. Nothing was sent: use a shorter one, or none for an
    /// object that does not expire.
    #[error(
        "the lifetime has {} ms, the limit is {} ms; an object without one does not expire",
        .0.0, Lifetime::MAX.0
    )]
    LifetimeTooLong(Lifetime),
    /// The object's value would become too long by the append of this number of bytes. The object
    /// is unchanged.
    #[error(
        "with the {0} bytes, the value would be longer than the server takes, at most {MAX_VALUE}"
    )]
    NoRoomToAppend(usize),
    /// The limit of operations in progress is reached (`Config::max_ops`). Nothing was sent: wait
    /// for some to end.
    #[error("too many operations are in progress; wait for some to end")]
    TooManyOps,
    /// The multi-operation has too many parts. Nothing was sent: use several multi-operations.
    #[error("the multi-operation has {0} parts, the limit is {MAX_PARTS}")]
    TooManyParts(usize),
    /// The transaction has no object, or too many. Nothing was sent.
    #[error("the transaction has {0} objects; it can have 1 to {MAX_TRANSACTION}")]
    BadTransaction(usize),
    /// The key of an object in an index of its table is too long. Nothing was changed.
    #[error("the index key has {0} bytes, the limit is {MAX_INDEX_KEY}")]
    IndexKeyTooLong(usize),
    /// A node or the catalog of the indexes of a table is malformed: something else has written to
    /// their table. Drop the index and create it again.
    #[error(
        "the index is damaged: something else has written to its table; drop the index and create \
         it again"
    )]
    DamagedIndex,
    /// The keys and values of the transaction are too long in sum, or longer than a segment of a
    /// server's log has room for. Nothing was changed.
    #[error(
        "the transaction has {0} bytes, more than the limit of {MAX_TRANSACTION_BYTES} or than a \
         server has room for at once"
    )]
    TransactionTooLong(usize),
    /// An object of the transaction is not as the transaction needs it: another operation has
    /// changed it, or is about to. Nothing was changed. Read the objects again, and repeat.
    #[error(
        "object {part} of the transaction has changed or is about to: {why}; nothing was changed: \
         read the objects again and repeat the transaction"
    )]
    Conflict {
        /// The index of the object in the transaction.
        part: usize,
        /// The condition that the object does not meet; [`Status::Locked`] if another transaction
        /// is about to change it, which may be one of this client that has just been committed;
        /// [`Status::Aborted`] if this one took too long.
        why: Status,
        /// The version of the object, 0 if it does not exist.
        version: Version,
    },
    /// The operation is not in progress: the client returned its outcome before, or it was
    /// cancelled.
    #[error("the operation is not in progress: its outcome was given before, or it was cancelled")]
    NotInProgress,
    /// The thread of an asynchronous client has ended by a panic. The operation may have been
    /// executed. Make a new client.
    #[error("the client's thread has ended; the operation may have been executed")]
    ClientEnded,
    /// The operation's table was dropped, or never existed.
    #[error("the table does not exist")]
    TableDoesntExist,
    /// The operation needs an object that does not exist.
    #[error("the object does not exist")]
    ObjectDoesntExist,
    /// The object exists, and the reject rules refuse that.
    #[error("the object exists, with version {}", .0.0)]
    ObjectExists(Version),
    /// The reject rules refuse the object's version.
    #[error("the object has version {}", .0.0)]
    WrongVersion(Version),
    /// The object is not the text of a number of the kind to be incremented. It is unchanged.
    #[error("the object is not a number: it is not the decimal text of one")]
    NotANumber(Version),
    /// The sum does not fit into 64 bits, or is too large for a double. The object is unchanged.
    #[error("the sum is too large for a number of its kind; the object is as it was")]
    Overflow(Version),
    /// The amount to add is infinite or not a number. Nothing was changed.
    #[error("the amount to add must be finite")]
    NotFinite,
    /// The server has no memory left for objects of this tablet. Remove some.
    #[error("the server has no space left for objects; remove some")]
    NoSpace,
    /// The server of the object crashed, and no other server has its data. Drop the table.
    #[error(
        "the data is lost: its server crashed and there are no replicas; drop the table to use its \
         name again"
    )]
    TabletLost,
    /// The deadline of the operation passed before it ended.
    #[error(
        "the deadline passed while waiting for {waited_for}{}{}",
        because(why),
        maybe(*maybe_executed)
    )]
    Deadline {
        /// True if the operation may have been executed, or may still be executed.
        maybe_executed: bool,
        /// The party that did not answer the operation as it should.
        waited_for: WaitedFor,
        /// The cause of the missing answer, as far as it is known: each locator that was tried,
        /// with its error. `None` if there was no answer at all.
        why: Option<Box<str>>,
    },
    /// The client's lease ended before a reply arrived. The operation was executed once or not at
    /// all, and never will be from now on. Read the object to find out.
    #[error(
        "the client's lease ended before the answer came: the operation was executed once or not \
         at all"
    )]
    Unknown,
    /// Too few servers are up for the table, or for the replicas of a change. If some were up when
    /// the creation began, it continues as soon as a server joins: repeat it. A refused change was
    /// not made.
    #[error("too few servers are up for the table or its replicas; start one and try again")]
    TooFewServers,
    /// The coordinator cannot write its state. Nothing was changed, unless an earlier try was
    /// executed. Repeat the operation when the coordinator can write again.
    #[error("the coordinator cannot write its state: {text}{}", maybe(*maybe_executed))]
    NotDurable {
        /// The coordinator's file that could not be written, and the cause.
        text: Box<str>,
        /// True if the operation may have been executed, or continues by itself.
        maybe_executed: bool,
    },
    /// The table's name is empty or too long.
    #[error("a table's name has 1 to 255 bytes, in UTF-8")]
    BadName,
    /// The server lists no transport that this client may use.
    #[error("{0}")]
    NoTransport(Box<str>),
    /// The coordinator belongs to another cluster than before, in which table ids mean something
    /// else. Make a new client.
    #[error("the coordinator was replaced by that of another cluster; connect anew")]
    ClusterReplaced,
    /// The server does not accept the request, probably because it is another version of the
    /// program.
    #[error(
        "the server refused the request: {status}{}{text}",
        if text.is_empty() { "" } else { ": " }
    )]
    Refused {
        /// The status of the reply by which the server refused the request.
        status: Status,
        /// The text by which the server explains its refusal.
        text: Box<str>,
    },
}

impl Error {
    /// Returns the error of a request that has no other outcome than this status.
    pub(super) fn refused(status: Status) -> Self {
        Self::Refused { status, text: "".into() }
    }
}

fn because(why: &Option<Box<str>>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
}

fn maybe(executed: bool) -> &'static str {
    if executed { "; the operation may have been executed" } else { "" }
}

impl Error {
    /// Returns true if the failed operation may have been executed.
    #[must_use]
    pub fn maybe_executed(&self) -> bool {
        matches!(
            self,
            Self::Unknown
                | Self::ClientEnded
                | Self::Deadline { maybe_executed: true, .. }
                | Self::NotDurable { maybe_executed: true, .. }
        )
    }
}

/// The party that an operation waited for when its deadline passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitedFor {
    /// The operation waited for the server of the data.
    Server,
    /// The operation waited for the recovery of its tablet: the tablet's server crashed, and other
    /// servers recover its data.
    Recovery,
    /// The operation waited for the coordinator, to learn the location of the data.
    Coordinator,
    /// The operation waited for the coordinator, to get the client's lease.
    Lease,
    /// The operation waited until one of several coordinators leads. They answer, and say that none
    /// does.
    Leader,
    /// The operation waited for earlier operations of this client: the window of mutations without
    /// a reply is full.
    Window,
}

impl core::fmt::Display for WaitedFor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Server => "the server",
            Self::Recovery => "the recovery of the tablet, whose server crashed",
            Self::Coordinator => "the coordinator",
            Self::Lease => "the coordinator to grant a lease",
            Self::Leader => "a coordinator to lead",
            Self::Window => "earlier operations",
        })
    }
}
