//! Messages between servers, clients and the coordinator about membership, tables and leases.
//!
//! ```text
//! request   version u8, opcode u8, 0 u16, then the fields in the order of the declaration below
//! reply     version u8, status u8, 0 u16, then the fields if the status is OK, else a UTF-8 text
//! field     integers big-endian · bool one byte, 0 or 1 · enum one byte
//!           ServerId index u32, generation u32
//!           text: length u16, then UTF-8 · list: count u16, then the entries
//! ```
//!
//! Invariants: `parse` accepts exactly the bytes that `emit` makes, and returns a
//! [status](super::Status) for others. It never panics, and allocates by the bytes present, never
//! by a count in the message. [`super::recovery`] has the messages about recovery,
//! [`crate::ops`] the operations on objects.

use alloc::vec::Vec;

use super::Status;
use super::codec::{choices, records, replies, requests};
pub use super::codec::{done, failure, failure_text, opcode, outcome};
use crate::durability::{Durability, TableDurability};
use crate::objects::segment::SegmentId;
use crate::site::Site;
use crate::types::{HashKey, LeaseId, ServerId, TableId};

/// The longest name of a table, in bytes of UTF-8.
pub const MAX_NAME: usize = 255;
/// The longest list of locators of one server, in bytes.
pub const MAX_LOCATORS: usize = 2048;
/// The most servers over which a table can be spread at its creation.
pub const MAX_SPAN: u32 = 256;
/// The most client leases in one [`CheckLease`].
pub const MAX_CHECKED_LEASES: usize = 512;
/// The most entries of one reply that lists tables or servers. Another request asks for the rest.
pub const MAX_PAGE: usize = 256;

/// Returns the reply of a coordinator that does not lead: the locators of the one that does, empty
/// if none is known, and the reason why none leads.
#[must_use]
pub fn not_leader(leader: &str, why: &str) -> Vec<u8> {
    let mut reply = failure(Status::NotLeader, "");
    reply.extend_from_slice(leader.as_bytes());
    reply.push(b'\n');
    reply.extend_from_slice(why.as_bytes());
    reply
}

/// Returns the locators of the coordinator that leads and the reason, from the text of a refusal
/// with `Status::NotLeader`.
#[must_use]
pub fn leader_in(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

choices! {
    pub,
    /// The state of a server according to the coordinator.
    ServerState {
        /// The server holds a lease.
        Up = 0,
        /// The server's lease expired, or it stopped. Its log had no replicas: its tablets are
        /// lost.
        Crashed = 1,
        /// The server's lease expired, or it stopped. Other servers recover its log.
        Recovering = 2,
        /// The server's log cannot be recovered now: replicas of some segments are missing.
        Blocked = 3,
    }

    /// The state of a tablet according to the coordinator.
    TabletState {
        /// The tablet's server serves the tablet.
        Normal = 0,
        /// The tablet's server crashed, and no other server has its data.
        Lost = 1,
        /// The coordinator has ordered its server to take it, and the server has not replied yet.
        Taking = 2,
        /// The tablet's server crashed, and other servers recover its data.
        Recovering = 3,
    }

    /// The reason of a [`HintCrashed`], by which a server counts as stopped or silent.
    Hint {
        /// A client got no reply from the server.
        Silent = 0,
        /// The server itself reports that it has stopped serving for good.
        Leaving = 1,
    }
}

records! {
    pub,
    /// A tablet in the reply [`Tablets`].
    Tablet<'a> {
        /// The first key hash of the tablet.
        first: u64,
        /// The last key hash of the tablet.
        last: u64,
        /// The server that owns the tablet.
        server: ServerId,
        /// The state of the tablet.
        state: TabletState,
        /// The locators at which clients reach the tablet's server, with `;` between them. Empty if
        /// that server has crashed.
        data: &'a str,
    }

    /// A table in the reply [`TablePage`].
    Table<'a> {
        /// The id of the table.
        table: TableId,
        /// The number of the table's tablets.
        tablets: u16,
        /// The number of the table's tablets that are lost.
        lost: u16,
        /// The number of the table's tablets whose servers have not renewed their leases since the
        /// coordinator started. They may be lost too.
        unheard: u16,
        /// The number of the table's tablets that other servers recover.
        recovering: u16,
        /// The time at which a change of the table's objects is acknowledged.
        durability: TableDurability,
        /// The name of the table.
        name: &'a str,
    }

    /// The usage that a server reports at each renewal.
    #[derive(Default)]
    Usage {
        /// The bytes of the server's log that live entries take.
        used_bytes: u64,
        /// The size of the server's log in bytes.
        capacity_bytes: u64,
        /// The number of the server's objects.
        objects: u64,
        /// The number of accesses to the server's objects since its start.
        accesses: u64,
    }

    /// A server in the reply [`ServerPage`].
    Server<'a> {
        /// The id of the server.
        server: ServerId,
        /// The state of the server according to the coordinator.
        state: ServerState,
        /// The number of tablets that the server owns.
        tablets: u32,
        /// The usage that the server reported last.
        usage: Usage,
        /// The accesses to the server's objects in a second, between its last two renewals.
        rate: u64,
        /// The number of replicas of each segment of the server's log.
        replicas: u8,
        /// The time at which the server acknowledges a change.
        durability: Durability,
        /// The place and the roles of the server.
        site: Site<'a>,
        /// The locators at which the coordinator reaches the server.
        control: &'a str,
        /// The locators at which clients reach the server.
        data: &'a str,
        /// The reason why the server's log cannot be recovered now. Empty unless the state is
        /// [`ServerState::Blocked`].
        blocked: &'a str,
    }
}

requests! {
    /// Asks to join the cluster as a server. The reply is [`Enlisted`].
    Enlist<'a> {
        /// A random number of this life of the server. A repetition with the same number gives the
        /// same id.
        nonce: u64,
        /// The size of the joining server's log in bytes.
        capacity_bytes: u64,
        /// The number of replicas of each segment of the server's log. With 0, a crash loses it.
        replicas: u8,
        /// The time at which the server acknowledges a change. The coordinator refuses a server
        /// whose mode or number of replicas differs from those of the servers that are up.
        durability: Durability,
        /// The place and the roles of the server. The name of its rack has at most
        /// [`MAX_RACK`](crate::site::MAX_RACK) bytes.
        site: Site<'a>,
        /// The id of the cluster whose replicas the server has on its disk, or 0 if it has none.
        cluster: u64,
        /// The last server that has used that disk, with generation 0 if there is none. It is dead:
        /// the joining server has the lock of its files.
        replaces: ServerId,
        /// The locators at which the coordinator reaches the server, with `;` between them, at most
        /// [`MAX_LOCATORS`] bytes.
        control: &'a str,
        /// The locators at which clients reach the server, at most [`MAX_LOCATORS`] bytes.
        data: &'a str,
    }

    /// Asks to renew a server's lease. The reply is [`Renewed`]. `Status::NotInCluster` means
    /// that the server must stop.
    RenewServer {
        /// The id of the cluster that the server joined.
        cluster: u64,
        /// The id of the server.
        server: ServerId,
        /// The usage of the server's log and memory.
        usage: Usage,
    }

    /// Asks to grant (`lease` 0) or renew a client's lease. The reply is [`Leased`], or
    /// `Status::ExpiredLease`.
    RenewClient {
        /// The id of the cluster that granted the lease; 0 to get a new lease.
        cluster: u64,
        /// The client's lease, or 0 to get a new one.
        lease: LeaseId,
        /// True if the client does not need the lease any more. The reply is then `Status::Ok`
        /// alone.
        release: bool,
    }

    /// Asks how long leases of clients remain valid. Masters send it. The reply is [`LeaseTimes`].
    CheckLease {
        /// The id of the cluster that the master joined.
        cluster: u64,
        /// The client leases to check, at most [`MAX_CHECKED_LEASES`].
        leases: Vec<LeaseId>,
    }

    /// Asks to create a table unless the name is in use. The reply is [`TableKey`].
    CreateTable<'a> {
        /// The number of servers that share the new table, 1 to [`MAX_SPAN`]. It gets a tablet on
        /// each of their shards. With fewer servers it gets this number of tablets, and one on each
        /// shard at least.
        span: u32,
        /// The time at which a change of the new table's objects is acknowledged.
        durability: TableDurability,
        /// The name of the new table, 1 to [`MAX_NAME`] bytes.
        name: &'a str,
    }

    /// Asks to drop a table. The reply is `Status::Ok` alone, even if it was dropped before.
    DropTable<'a> {
        /// The id of the table to drop, 0 for any. A table of that name with another id stays.
        table: TableId,
        /// The name of the table to drop.
        name: &'a str,
    }

    /// Looks a table up by name. The reply is [`TableKey`].
    GetTable<'a> {
        /// The name of the table to look up.
        name: &'a str,
    }

    /// Lists the tables by id. The reply is [`TablePage`].
    ListTables {
        /// The id after which the list begins: it has only tables with a greater id.
        after: TableId,
    }

    /// Looks up the tablets of a table and their servers. The reply is [`Tablets`].
    GetTablets {
        /// The id of the table whose tablets to look up.
        table: TableId,
    }

    /// Lists the servers by index. The reply is [`ServerPage`].
    ListServers {
        /// The index at which the list begins: it has only servers with at least this index.
        from: u32,
    }

    /// Reports that a server has stopped or does not answer. The reply is `Status::Ok` alone.
    HintCrashed {
        /// The id of the cluster that the server belongs to.
        cluster: u64,
        /// The server that has stopped or does not answer.
        server: ServerId,
        /// The reason of the report: the server has stopped, or a client got no reply from it.
        hint: Hint,
    }

    /// Reports that a replica of a segment of the log that was not closed was given up, and that
    /// another one takes its place. The reply is `Status::Ok` alone once that is durable.
    /// `Status::NotInCluster` means that the server must stop.
    SetHead {
        /// The id of the cluster that the server joined.
        cluster: u64,
        /// The id of the server that owns the log.
        server: ServerId,
        /// The segment of the log before which no replica that is not closed is valid any more.
        segment: SegmentId,
        /// The lowest epoch of a valid replica of that segment, unless the replica is closed.
        epoch: u32,
    }

    /// Asks which coordinator leads, and in which term. The reply is [`Leader`]. A coordinator that
    /// does not lead replies as to every request: with `Status::NotLeader`.
    GetLeader {}

    /// Orders a master to take an empty tablet. The reply is `Status::Ok` alone, even if it owns
    /// the tablet already. `Status::NotInCluster` means that the master is another server.
    TakeTablet {
        /// The id of the cluster whose coordinator sends the order.
        cluster: u64,
        /// The term of the coordinator that sends the order.
        term: u64,
        /// The server that the coordinator orders to take the tablet.
        server: ServerId,
        /// The table of the tablet to take.
        table: TableId,
        /// The first key hash of the tablet to take.
        first: u64,
        /// The last key hash of the tablet to take.
        last: u64,
        /// The secret under which the table's keys are hashed.
        hash_key: HashKey,
        /// The time at which a change of the table's objects is acknowledged.
        durability: TableDurability,
    }

    /// Asks a server whether it is the one that the coordinator means, and tells it of a change of
    /// the server list. The reply is `Status::Ok` alone. `Status::NotInCluster` means that it is
    /// another server.
    Ping {
        /// The id of the cluster whose coordinator asks.
        cluster: u64,
        /// The term of the coordinator that asks.
        term: u64,
        /// The server that the coordinator means.
        server: ServerId,
        /// The version of the coordinator's server list.
        list_version: u64,
    }

    /// Orders a master to drop a tablet and its objects. The reply is `Status::Ok` alone, even if
    /// it does not own the tablet. `Status::NotInCluster` means that the master is another
    /// server.
    DropTablet {
        /// The id of the cluster whose coordinator sends the order.
        cluster: u64,
        /// The term of the coordinator that sends the order.
        term: u64,
        /// The server that the coordinator orders to drop the tablet.
        server: ServerId,
        /// The table of the tablet to drop.
        table: TableId,
        /// The first key hash of the tablet to drop.
        first: u64,
        /// The last key hash of the tablet to drop.
        last: u64,
    }
}

replies! {
    /// The reply to [`Enlist`]: the server has joined the cluster.
    Enlisted {
        /// The id of the cluster, which every later message must name.
        cluster: u64,
        /// The id of the server that has joined.
        server: ServerId,
        /// The version of the coordinator's server list.
        list_version: u64,
        /// The term of the server's lease, in nanoseconds from the time at which the server sent
        /// the request.
        lease_ns: u64,
        /// The term of the coordinator that replies.
        term: u64,
    }

    /// The reply to [`RenewServer`]: the server's lease has a new term.
    Renewed {
        /// The version of the coordinator's server list. Another version than before means that the
        /// list has changed.
        list_version: u64,
        /// The term of the server's lease, in nanoseconds from the time at which the server sent
        /// the request.
        lease_ns: u64,
        /// The term of the coordinator that replies.
        term: u64,
    }

    /// The reply to [`RenewClient`]: the client has a lease with a new term.
    Leased {
        /// The id of the cluster that granted the lease.
        cluster: u64,
        /// The id of the client's lease.
        lease: LeaseId,
        /// The term of the client's lease, in nanoseconds from the time at which the client sent
        /// the request.
        term_ns: u64,
    }

    /// The reply to [`CheckLease`]: the remaining times of client leases.
    LeaseTimes {
        /// The shortest remaining time of each client lease in the order of the request, in
        /// nanoseconds from the time at which the request was sent. 0 means that the lease has
        /// expired and never becomes valid again.
        valid_ns: Vec<u64>,
    }

    /// The reply to [`CreateTable`] and [`GetTable`].
    TableKey {
        /// The id of the cluster, which every operation on the table's objects must name.
        cluster: u64,
        /// The id of the table.
        table: TableId,
        /// The secret under which the table's keys are hashed.
        hash_key: HashKey,
    }

    /// The reply to [`ListTables`]: some of the tables by id.
    TablePage<'a> {
        /// True if more tables follow the last one of this reply.
        more: bool,
        /// At most [`MAX_PAGE`] tables by id.
        tables: Vec<Table<'a>>,
    }

    /// The reply to [`GetTablets`]: the tablets of a table.
    Tablets<'a> {
        /// The id of the cluster. The table's id means nothing in another cluster.
        cluster: u64,
        /// The secret under which the table's keys are hashed.
        hash_key: HashKey,
        /// The tablets of the table by first key hash. Together they cover each hash once.
        tablets: Vec<Tablet<'a>>,
    }

    /// The reply to [`GetLeader`]: the coordinator that replies leads.
    Leader<'a> {
        /// The coordinator's term.
        term: u64,
        /// The locators of the coordinator, with `;` between them.
        locators: &'a str,
    }

    /// The reply to [`ListServers`]: some of the servers by index.
    ServerPage<'a> {
        /// The index at which the next request continues if more servers follow, else 0.
        next: u32,
        /// At most [`MAX_PAGE`] servers by index.
        servers: Vec<Server<'a>>,
    }
}

#[cfg(test)]
mod tests;
