//! What clients, masters and the coordinator say to each other, byte by byte (normative: `docs/formats.md`).
//!
//! A request begins with [`Head`], a reply with [`ReplyHead`]; all integers are big-endian. Parsing never panics: a
//! message that is too short, too long or names an unknown version or opcode is answered with a [`Status`].

use core::fmt;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of all store messages.
pub const VERSION: u8 = 1;

/// How every request begins: 4 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Head {
    /// [`VERSION`].
    pub version: u8,
    /// An [`Opcode`].
    pub opcode: u8,
    /// Zero.
    pub reserved: U16,
}

/// How every reply begins: 4 bytes. A `status` other than OK may be followed by a text for people, unless its operation
/// says otherwise.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReplyHead {
    /// [`VERSION`].
    pub version: u8,
    /// A [`Status`].
    pub status: u8,
    /// Zero.
    pub reserved: U16,
}

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $variant = $code,)* }

        impl $name {
            /// The value for a code on the wire.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// What a request asks for. Below 64: of a master; from 64: of the coordinator; from 128: of a master by the
    /// coordinator.
    Opcode {
        /// Do nothing, answer with the same bytes.
        Echo = 1,
        /// Read an object.
        Read = 2,
        /// Write an object.
        Write = 3,
        /// Remove an object.
        Remove = 4,
        /// Add to an object that is a 64-bit integer.
        IncrementInteger = 5,
        /// Add to an object that is a double.
        IncrementDouble = 6,
        /// Walk the objects of a tablet, some at a time.
        Enumerate = 7,
        /// What the server has counted.
        Stats = 8,
        /// A server asks to join the cluster.
        Enlist = 64,
        /// A server asks for its lease to be prolonged.
        RenewServer = 65,
        /// A client asks for a lease or for its lease to be prolonged.
        RenewClient = 66,
        /// Which of these client leases are still valid (asked by masters).
        CheckLease = 67,
        /// Create a table.
        CreateTable = 68,
        /// Drop a table.
        DropTable = 69,
        /// Look a table up by name.
        GetTable = 70,
        /// All tables.
        ListTables = 71,
        /// A table's tablets and where they are.
        GetTablets = 72,
        /// The server list.
        ListServers = 73,
        /// A server leaves in good order, or a client hints that one does not answer.
        HintCrashed = 74,
        /// Own this tablet from now on.
        TakeTablet = 128,
        /// Own this tablet no more, and forget its objects.
        DropTablet = 129,
    }
}

codes! {
    /// How a request ended.
    Status {
        /// Done.
        Ok = 0,
        /// The server does not own the tablet: ask the coordinator anew.
        UnknownTablet = 1,
        /// There is no such table.
        TableDoesntExist = 2,
        /// There is no such object, and the reject rules or the operation demand one.
        ObjectDoesntExist = 3,
        /// There is such an object, and the reject rules demand none.
        ObjectExists = 4,
        /// The object's version is not what the reject rules demand.
        WrongVersion = 5,
        /// No memory left for new objects.
        NoSpace = 6,
        /// Not now; try again after a while.
        Retry = 7,
        /// The key exceeds `MAX_KEY`.
        KeyTooLong = 8,
        /// The value exceeds `MAX_VALUE`.
        ValueTooLong = 9,
        /// The object is not the text of a number of the kind to be incremented.
        NotANumber = 10,
        /// The request is malformed.
        BadFormat = 11,
        /// The request's version is not spoken here.
        BadVersion = 12,
        /// The request's opcode is not known here.
        UnknownOpcode = 13,
        /// The tablet's server crashed and nobody has its data.
        TabletLost = 14,
        /// The client's lease has expired: what it sent may not be executed any more.
        ExpiredLease = 15,
        /// The operation's result was acknowledged before: its client must have known the answer.
        StaleRpc = 16,
        /// The server has lost its own lease and serves no more.
        NotServing = 17,
        /// The server is not (or no more) a member of the cluster.
        NotInCluster = 18,
        /// No server is up for the table, which may still come to be when one joins.
        TooFewServers = 19,
        /// The table's name is empty, too long or not UTF-8.
        BadName = 20,
        /// The coordinator is starting and does not know everything yet.
        Starting = 21,
        /// The sum is beyond 64 bits, or beyond what a double can be.
        Overflow = 22,
        /// The amount to add is infinite or not a number.
        NotFinite = 23,
        /// The coordinator cannot write the change to its state, and has not made it.
        NotDurable = 24,
        /// The coordinator has written a first part of the change; the rest follows as soon as it can be written.
        Unfinished = 25,
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "done",
            Self::UnknownTablet => "the server does not own the tablet",
            Self::TableDoesntExist => "there is no such table",
            Self::ObjectDoesntExist => "there is no such object",
            Self::ObjectExists => "the object exists",
            Self::WrongVersion => "the object has another version",
            Self::NoSpace => "no space is left",
            Self::Retry => "not now",
            Self::KeyTooLong => "the key is too long",
            Self::ValueTooLong => "the value is too long",
            Self::NotANumber => "the object is not a number",
            Self::BadFormat => "the request is malformed",
            Self::BadVersion => "the server does not speak this version",
            Self::UnknownOpcode => "the server does not know the operation",
            Self::TabletLost => "the data is lost",
            Self::ExpiredLease => "the client's lease has expired",
            Self::StaleRpc => "the operation was acknowledged before",
            Self::NotServing => "the server has lost its lease",
            Self::NotInCluster => "the server is no member of the cluster",
            Self::TooFewServers => "the cluster has too few servers",
            Self::BadName => "the table's name is empty, too long or not UTF-8",
            Self::Starting => "the coordinator is starting",
            Self::Overflow => "the sum is too large",
            Self::NotFinite => "the amount to add is not finite",
            Self::NotDurable => "the coordinator cannot write the change",
            Self::Unfinished => "the coordinator cannot write the rest of the change yet",
        })
    }
}

pub(crate) mod codec;
pub mod control;
pub mod data;
pub mod list;
