//! Identifiers of tables, servers, leases, versions and key hashes.

use core::fmt;

/// The longest key of an object, in bytes.
pub const MAX_KEY: usize = 64 << 10;
/// The longest value of an object, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// The most parts of a multi-operation.
pub const MAX_PARTS: usize = 1 << 16;

/// The most objects of a transaction.
pub const MAX_TRANSACTION: usize = 256;

/// The most bytes of keys and values in a transaction.
pub const MAX_TRANSACTION_BYTES: usize = 4 << 20;

/// The most bytes of an index key.
pub const MAX_INDEX_KEY: usize = 1024;

/// The most bytes of the name of an index.
pub const MAX_INDEX_NAME: usize = 64;

/// The most indexes of a table.
pub const MAX_INDEXES: usize = 16;

/// The id of a table, never used again after the table is dropped. 0 names no table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct TableId(pub u64);

impl TableId {
    /// The last table id: the log has 39 bits for it. A thousand new tables a second reach it in 17
    /// years.
    pub const MAX: Self = Self(Self::RECORDS - 1);

    /// The bit of an id under which a master keeps records of transactions.
    const RECORDS: u64 = 1 << 39;

    /// Returns the id under which a master keeps the records of transactions on objects of this
    /// table.
    #[must_use]
    pub fn records(self) -> Self {
        Self(self.0 | Self::RECORDS)
    }

    /// Returns true if objects under this id are records of transactions.
    #[must_use]
    #[inline]
    pub fn is_records(self) -> bool {
        self.0 & Self::RECORDS != 0
    }

    /// Returns the id of the table whose objects the records of transactions under this id are
    /// about. The id of a table is its own.
    #[must_use]
    #[inline]
    pub fn base(self) -> Self {
        Self(self.0 & !Self::RECORDS)
    }
}

/// One life of one server. A restarted server gets a new generation, so that it cannot be taken for
/// the old one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServerId {
    /// The server's index in the coordinator's server list. It is reused after the server is gone.
    pub index: u32,
    /// The generation: the number of the server's life. 0 names none.
    pub generation: u32,
}

impl ServerId {
    /// The largest index.
    pub const MAX_INDEX: u32 = (1 << 16) - 1;
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The version of an object. 0 means that the object does not exist. The versions of a key only
/// grow, even across its removal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Version(pub u64);

impl Version {
    /// The last version: the log has 48 bits for it. A server that creates five million objects a
    /// second reaches it in 20 months, at about the time when it runs out of segment numbers.
    pub const MAX: Self = Self((1 << 48) - 1);
}

/// The place of a key in its table: the hash of the key under the table's [`HashKey`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct KeyHash(pub u64);

/// The secret under which a table's keys are hashed. The coordinator draws it once for each table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashKey(pub [u8; 16]);

/// The id of a client's lease at the coordinator. Masters remember mutations by it. 0 names none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct LeaseId(pub u64);

impl LeaseId {
    /// The last id of a lease: the log has 40 bits for it. A thousand new clients a second reach it
    /// in 35 years.
    pub const MAX: Self = Self((1 << 40) - 1);
}

/// A time of the wall clock, in milliseconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct WallTime(pub u64);

impl WallTime {
    /// The last time that the log has room for, in the year 10889.
    pub const MAX: Self = Self((1 << 48) - 1);
    /// The end of the lifetime of an object that does not expire.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns what is left at the time `now` of a lifetime that ends at this time, or `None` if
    /// this is [`WallTime::NEVER`].
    #[must_use]
    pub fn rest(self, now: Self) -> Option<Lifetime> {
        let rest = Lifetime(self.0.saturating_sub(now.0)).min(Lifetime::MAX);
        (self != Self::NEVER).then_some(rest)
    }

    /// Returns the end of a lifetime that starts at this time, or [`WallTime::NEVER`] without one.
    #[must_use]
    pub fn after(self, lifetime: Option<Lifetime>) -> Self {
        lifetime.map_or(Self::NEVER, |Lifetime(ms)| Self(self.0.saturating_add(ms)).min(Self::MAX))
    }
}

/// The time that an object exists after a write, in milliseconds. An object with a lifetime of 0
/// has expired when it is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Lifetime(pub u64);

impl Lifetime {
    /// The longest lifetime, 4,459 years.
    pub const MAX: Self = Self((1 << 47) - 1);
}
