//! Messages between clients, masters and the coordinator, byte by byte (normative:
//! `docs/formats.md`).
//!
//! A request starts with [`Head`], a reply with [`ReplyHead`]. All integers are big-endian. Parsing
//! never panics: a message that is too short, too long or names an unknown version or opcode gives
//! a [`Status`].

use core::fmt;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of all store messages.
pub const VERSION: u8 = 1;

/// The first 4 bytes of every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Head {
    /// The version of the request's format, [`VERSION`].
    pub version: u8,
    /// The request's operation, an [`Opcode`].
    pub opcode: u8,
    /// Two bytes of a request's head that are zero.
    pub reserved: U16,
}

/// The first 4 bytes of every reply. After a `status` other than OK, a text for people may follow,
/// unless the operation defines something else.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReplyHead {
    /// The version of the reply's format, [`VERSION`].
    pub version: u8,
    /// The outcome of the request, a [`Status`].
    pub status: u8,
    /// Two bytes of a reply's head that are zero.
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
            /// Returns the enum's value for a code on the wire.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// The operation of a request. Clients send those below 64 to masters, and those from 64 to the
    /// coordinator. The coordinator sends those from 128 to masters, and servers send those from
    /// 192 to each other.
    Opcode {
        /// The server replies with the same bytes.
        Echo = 1,
        /// The server reads an object.
        Read = 2,
        /// The server writes an object.
        Write = 3,
        /// The server removes an object.
        Remove = 4,
        /// The server adds to an object that is a 64-bit integer.
        IncrementInteger = 5,
        /// The server adds to an object that is a double.
        IncrementDouble = 6,
        /// The server lists some objects of a tablet.
        Enumerate = 7,
        /// The server returns its counters.
        Stats = 8,
        /// The server executes several operations on objects.
        Multi = 9,
        /// The server adds bytes to the end of an object's value.
        Append = 10,
        /// The server writes an object that expires.
        WriteExpiring = 11,
        /// The server gives an object another lifetime.
        Touch = 12,
        /// The server writes an object and returns the one before.
        Swap = 13,
        /// The server reads an object and the rest of its lifetime.
        ReadExpiring = 14,
        /// The server locks objects for a transaction.
        Prepare = 15,
        /// The server commits a transaction.
        Commit = 16,
        /// The server checks that objects have not changed.
        Validate = 17,
        /// The server learns the decision on a transaction.
        Decide = 18,
        /// The server looks up entries of a leaf of an index, with their objects.
        LookUp = 19,
        /// The server changes an object together with its entries in indexes.
        ChangeIndexed = 20,
        /// A server joins the cluster.
        Enlist = 64,
        /// A server renews its lease.
        RenewServer = 65,
        /// A client gets a lease or renews it.
        RenewClient = 66,
        /// A master asks the coordinator which client leases are still valid.
        CheckLease = 67,
        /// The coordinator creates a table.
        CreateTable = 68,
        /// The coordinator drops a table.
        DropTable = 69,
        /// The coordinator looks a table up by name.
        GetTable = 70,
        /// The coordinator lists all tables.
        ListTables = 71,
        /// The coordinator looks up the tablets of a table and their servers.
        GetTablets = 72,
        /// The coordinator lists all servers.
        ListServers = 73,
        /// A server reports that it stops serving, or a client that a server does not answer.
        HintCrashed = 74,
        /// A master reports that some replicas of its log's head are not valid any more.
        SetHead = 75,
        /// A master reports the end of its recovery of some tablets.
        RecoveryEnded = 76,
        /// The coordinator that leads gives its locators and its term.
        GetLeader = 77,
        /// The coordinator says what a blocked recovery would lose, and accepts that.
        AcceptLoss = 78,
        /// The coordinator divides a tablet in two.
        SplitTablet = 79,
        /// The coordinator unites two tablets that follow each other.
        MergeTablets = 80,
        /// The coordinator lets a part of a table move to another server.
        MoveTablet = 81,
        /// The coordinator lists the migrations of tablets.
        ListMigrations = 82,
        /// A server asks what has become of a tablet that leaves it.
        FindTablet = 83,
        /// A server asks for the server of an object.
        FindOwner = 84,
        /// The coordinator orders a master to take a tablet.
        TakeTablet = 128,
        /// The coordinator orders a master to drop a tablet and its objects.
        DropTablet = 129,
        /// The coordinator orders a master to recover tablets of a crashed master.
        Recover = 130,
        /// The coordinator asks whether its link leads to a server.
        Ping = 131,
        /// The coordinator orders a master to take over a tablet from another one.
        Migrate = 132,
        /// The coordinator asks a master for a range that has a part of its load.
        HotRange = 133,
        /// A master opens, continues or closes a replica of a segment on a backup.
        WriteReplica = 192,
        /// A master does not need a replica any more.
        FreeReplica = 193,
        /// The coordinator fences a crashed master at a backup and lists its replicas there.
        ListReplicas = 194,
        /// A master, or the coordinator, reads bytes of a replica of a crashed master's log.
        ReadReplica = 195,
        /// The coordinator frees the replicas of a crashed master's log.
        FreeReplicas = 196,
        /// A master does not need the replicas that an earlier life of a backup has left.
        FreeLeftReplicas = 197,
        /// A backup has lost replicas of a master's log.
        ReplicaDamaged = 198,
        /// A master asks a backup for a ring in shared memory, for posted writes.
        OpenRing = 199,
        /// A master takes over objects of a tablet from the one that owns it.
        PullTablet = 200,
        /// A master asks another one if a transaction is committed.
        Resolve = 201,
    }
}

codes! {
    /// The outcome of a request.
    Status {
        /// The request succeeded.
        Ok = 0,
        /// The server does not own the tablet. Ask the coordinator for its owner.
        UnknownTablet = 1,
        /// The table does not exist.
        TableDoesntExist = 2,
        /// The object does not exist, and the reject rules or the operation demand it.
        ObjectDoesntExist = 3,
        /// The object exists, and the reject rules refuse that.
        ObjectExists = 4,
        /// The reject rules refuse the object's version.
        WrongVersion = 5,
        /// The server has no memory left for new objects.
        NoSpace = 6,
        /// The server cannot execute the request now. Try again later.
        Retry = 7,
        /// The key exceeds `MAX_KEY`.
        KeyTooLong = 8,
        /// The value exceeds `MAX_VALUE`.
        ValueTooLong = 9,
        /// The object is not the text of a number of the kind to be incremented.
        NotANumber = 10,
        /// The request is malformed.
        BadFormat = 11,
        /// The server does not know the version of the request.
        BadVersion = 12,
        /// The server does not know the opcode of the request.
        UnknownOpcode = 13,
        /// The tablet's server crashed, and no other server has its data.
        TabletLost = 14,
        /// The client's lease has expired. Its mutations must not be executed any more.
        ExpiredLease = 15,
        /// The client has acknowledged the operation's result before.
        StaleRpc = 16,
        /// The server has lost its lease and does not serve requests.
        NotServing = 17,
        /// The server is not a member of the cluster.
        NotInCluster = 18,
        /// Too few servers are up for the table's tablets or for replicas. A creation continues
        /// when a server joins.
        TooFewServers = 19,
        /// The table's name is empty, too long or not UTF-8.
        BadName = 20,
        /// The coordinator is starting and does not know all servers yet.
        Starting = 21,
        /// The sum of an increment does not fit into 64 bits, or is too large for a double.
        Overflow = 22,
        /// The amount to add to an object is infinite or not a number.
        NotFinite = 23,
        /// The coordinator cannot write its state and has not made the change.
        NotDurable = 24,
        /// The coordinator has written the first part of the requested change. The rest follows as
        /// soon as the disk allows.
        Unfinished = 25,
        /// The backup has a replica of the segment with a higher epoch.
        WrongEpoch = 26,
        /// The backup takes no more writes of the master, which has crashed.
        Fenced = 27,
        /// The backup has no replica of the segment, and the write does not open one.
        NoReplica = 28,
        /// The coordinator knows no such recovery: the tablets have another owner.
        NoRecovery = 29,
        /// The coordinator does not lead. Ask the one that does.
        NotLeader = 30,
        /// Another coordinator has replaced the one that sent the order: the server has seen a
        /// higher term.
        StaleTerm = 31,
        /// The tablets are not as the request needs them.
        WrongTablets = 32,
        /// An object of the transaction is not as the transaction needs it.
        Conflict = 33,
        /// A transaction is about to change the object. Try again later.
        Locked = 34,
        /// The transaction was given up, for its client was silent for too long.
        Aborted = 35,
        /// The leaf of an index has another range than the request means, or would become too large
        /// or too small.
        OtherLeaf = 36,
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
            Self::WrongEpoch => "the backup has a replica with a higher epoch",
            Self::Fenced => "the backup takes no more writes of the master",
            Self::NoReplica => "the backup has no replica of the segment",
            Self::NoRecovery => "the tablets have another owner",
            Self::NotLeader => "the coordinator does not lead",
            Self::StaleTerm => "another coordinator has replaced the sender of the order",
            Self::Conflict => "an object of the transaction has changed",
            Self::Locked => "a transaction is about to change the object",
            Self::Aborted => "the transaction was given up, for its client was silent",
            Self::OtherLeaf => "the leaf of the index is another one, or has no room",
            Self::WrongTablets => "the tablets are not as that needs them",
        })
    }
}

pub(crate) mod codec;
pub mod control;
pub mod damage;
pub mod data;
pub mod list;
pub mod migration;
pub mod multi;
pub mod recovery;
pub mod replica;
pub mod ring;
pub mod transaction;
