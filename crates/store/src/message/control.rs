//! What servers, clients and the coordinator say to each other about membership, tables and leases.
//!
//! ```text
//! request   version u8, opcode u8, 0 u16, then the fields of the message in the order of its declaration below
//! reply     version u8, status u8, 0 u16, then, if the status is OK, the fields; else a UTF-8 text for people
//! field     integers big-endian · bool one byte, 0 or 1 · enum one byte · ServerId index u32, generation u32
//!           text: length u16, then UTF-8 · list: count u16, then the entries
//! ```
//!
//! What always holds: `parse` takes exactly what `emit` makes, to the last byte, and answers anything else with a
//! [`Status`]; it never panics, and allocates by the bytes that it was given, never by a count that they claim.
//! Operations on objects are not here but in the messages of the data path.

use alloc::vec::Vec;

use super::codec::{Field, Reader, choices, records};
use super::{Opcode, Status, VERSION};
use crate::types::{HashKey, LeaseId, ServerId, TableId};

/// The longest name of a table, in bytes of UTF-8.
pub const MAX_NAME: usize = 255;
/// The longest list of locators of one server, in bytes.
pub const MAX_LOCATORS: usize = 2048;
/// The most servers that a table can be spread over at its creation.
pub const MAX_SPAN: u32 = 256;
/// The most leases in one [`CheckLease`].
pub const MAX_CHECKED_LEASES: usize = 512;
/// The most entries of one reply that lists tables or servers; the rest is asked for by another request.
pub const MAX_PAGE: usize = 256;

/// The opcode of a request, whoever it is for.
///
/// # Errors
/// [`Status::BadFormat`] if it is shorter than a head, [`Status::BadVersion`], [`Status::UnknownOpcode`]: the status to
/// answer with.
#[inline]
pub fn opcode(request: &[u8]) -> Result<Opcode, Status> {
    match *request {
        [VERSION, code, _, _, ..] => Opcode::from_code(code).ok_or(Status::UnknownOpcode),
        [_, _, _, _, ..] => Err(Status::BadVersion),
        _ => Err(Status::BadFormat),
    }
}

/// How a request ended: its status and what follows it.
///
/// # Errors
/// As [`opcode`]; an unknown status is [`Status::BadFormat`].
#[inline]
pub fn outcome(reply: &[u8]) -> Result<(Status, &[u8]), Status> {
    match *reply {
        [VERSION, code, _, _, ref rest @ ..] => {
            Ok((Status::from_code(code).ok_or(Status::BadFormat)?, rest))
        }
        [_, _, _, _, ..] => Err(Status::BadVersion),
        _ => Err(Status::BadFormat),
    }
}

/// A reply that says nothing but `status`, with a text for people (shortened to 1,000 bytes).
#[must_use]
pub fn failure(status: Status, text: &str) -> Vec<u8> {
    let mut end = text.len().min(1000);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = Vec::with_capacity(4 + end);
    out.extend_from_slice(&[VERSION, status as u8, 0, 0]);
    out.extend_from_slice(&text.as_bytes()[..end]);
    out
}

/// The text for people in a reply whose status is not OK; empty if there is none.
#[must_use]
pub fn failure_text(reply: &[u8]) -> &str {
    reply.get(4..).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or("")
}

/// The reply of an operation that has nothing to tell but that it is done.
#[must_use]
pub fn done() -> Vec<u8> {
    failure(Status::Ok, "")
}

/// Declares requests: records with an opcode.
macro_rules! requests {
    ($($(#[$meta:meta])* $name:ident $(<$l:lifetime>)? { $($fields:tt)* })*) => { $(
        records! { pub, $(#[$meta])* $name $(<$l>)? { $($fields)* } }

        impl<'a> $name $(<$l>)? {
            /// The request's bytes.
            #[must_use]
            pub fn emit(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity(128);
                out.extend_from_slice(&[VERSION, Opcode::$name as u8, 0, 0]);
                self.put(&mut out);
                out
            }

            /// Reads a request whose [`opcode`] is this one.
            ///
            /// # Errors
            /// The status to answer with.
            pub fn parse(request: &'a [u8]) -> Result<Self, Status> {
                if opcode(request)? != Opcode::$name || request[2..4] != [0, 0] {
                    return Err(Status::BadFormat);
                }
                let mut rest = Reader(&request[4..]);
                let parsed = <Self as Field<'a>>::take(&mut rest)?;
                rest.end()?;
                Ok(parsed)
            }
        }
    )* };
}

/// Declares replies: records after an OK.
macro_rules! replies {
    ($($(#[$meta:meta])* $name:ident $(<$l:lifetime>)? { $($fields:tt)* })*) => { $(
        records! { pub, $(#[$meta])* $name $(<$l>)? { $($fields)* } }

        impl<'a> $name $(<$l>)? {
            /// The reply's bytes, with [`Status::Ok`].
            #[must_use]
            pub fn emit(&self) -> Vec<u8> {
                let mut out = done();
                self.put(&mut out);
                out
            }

            /// Reads the reply.
            ///
            /// # Errors
            /// The status that the operation ended with if that is not OK; [`Status::BadFormat`] or
            /// [`Status::BadVersion`] if the reply makes no sense.
            pub fn parse(reply: &'a [u8]) -> Result<Self, Status> {
                let (status, rest) = outcome(reply)?;
                if status != Status::Ok {
                    return Err(status);
                }
                let mut rest = Reader(rest);
                let parsed = <Self as Field<'a>>::take(&mut rest)?;
                rest.end()?;
                Ok(parsed)
            }
        }
    )* };
}

choices! {
    pub,
    /// What the coordinator thinks of a server.
    ServerState {
        /// It holds a lease.
        Up = 0,
        /// Its lease ran out, or it left: its tablets are lost.
        Crashed = 1,
    }

    /// Whether a tablet can be used.
    TabletState {
        /// Its server serves it.
        Normal = 0,
        /// Its server crashed and nobody has its data.
        Lost = 1,
        /// Its server has been asked to take it and has not answered yet.
        Taking = 2,
    }

    /// Why somebody speaks of a server's end.
    Hint {
        /// A client got no answer from it.
        Silent = 0,
        /// The server itself: it has stopped serving for good.
        Leaving = 1,
    }
}

records! {
    pub,
    /// A tablet in [`Tablets`].
    Tablet<'a> {
        /// The first key hash that belongs to it.
        first: u64,
        /// The last one.
        last: u64,
        /// Who owns it.
        server: ServerId,
        /// Whether it can be used.
        state: TabletState,
        /// Where clients reach its server: locators with `;` between them. Empty if it is lost.
        data: &'a str,
    }

    /// A table in [`TablePage`].
    Table<'a> {
        /// Its id.
        table: TableId,
        /// How many tablets it has.
        tablets: u16,
        /// How many of them are lost.
        lost: u16,
        /// How many of the others have a server that was not heard of since the coordinator started: perhaps they are lost.
        unheard: u16,
        /// Its name.
        name: &'a str,
    }

    /// What a server says of itself at each renewal.
    Usage {
        /// Bytes of its log that live objects take.
        used_bytes: u64,
        /// Bytes of its log altogether.
        capacity_bytes: u64,
        /// Objects that it has.
        objects: u64,
    }

    /// A server in [`ServerPage`].
    Server<'a> {
        /// Its id.
        server: ServerId,
        /// Whether it lives.
        state: ServerState,
        /// How many tablets it owns.
        tablets: u32,
        /// What it said of itself last.
        usage: Usage,
        /// Where the coordinator reaches it.
        control: &'a str,
        /// Where clients reach it.
        data: &'a str,
    }
}

requests! {
    /// A server asks to join the cluster. Answered by [`Enlisted`].
    Enlist<'a> {
        /// Drawn at random once in the server's life: asking again with the same one gives the same id.
        nonce: u64,
        /// Bytes of its log.
        capacity_bytes: u64,
        /// Where the coordinator reaches it: locators with `;` between them, at most [`MAX_LOCATORS`] bytes.
        control: &'a str,
        /// Where clients reach it, likewise.
        data: &'a str,
    }

    /// A server asks for its lease to be prolonged. Answered by [`Renewed`], or [`Status::NotInCluster`]: it must stop.
    RenewServer {
        /// The cluster that it joined.
        cluster: u64,
        /// Who it is.
        server: ServerId,
        /// What it says of itself.
        usage: Usage,
    }

    /// A client asks for a lease (`lease` 0) or for its lease to be prolonged. Answered by [`Leased`], or
    /// [`Status::ExpiredLease`].
    RenewClient {
        /// The cluster that granted the lease; 0 with a new one.
        cluster: u64,
        /// The lease, or 0.
        lease: LeaseId,
        /// True if the client has no use for it any more; the answer is then [`Status::Ok`] alone.
        release: bool,
    }

    /// How much longer are these leases valid? Asked by masters; answered by [`LeaseTimes`].
    CheckLease {
        /// The cluster.
        cluster: u64,
        /// The leases, at most [`MAX_CHECKED_LEASES`].
        leases: Vec<LeaseId>,
    }

    /// Create a table, unless there is one of that name. Answered by [`TableKey`].
    CreateTable<'a> {
        /// How many tablets, each on another server as far as there are so many: 1 to [`MAX_SPAN`].
        span: u32,
        /// Its name: 1 to [`MAX_NAME`] bytes.
        name: &'a str,
    }

    /// Drop a table. Answered by [`Status::Ok`] alone, also if it was dropped before.
    DropTable<'a> {
        /// The table that is meant: another one of that name is left alone. 0 for any.
        table: TableId,
        /// Its name.
        name: &'a str,
    }

    /// Look a table up by name. Answered by [`TableKey`].
    GetTable<'a> {
        /// Its name.
        name: &'a str,
    }

    /// All tables, by id. Answered by [`TablePage`].
    ListTables {
        /// Only those with a greater id.
        after: TableId,
    }

    /// A table's tablets and where they are. Answered by [`Tablets`].
    GetTablets {
        /// The table.
        table: TableId,
    }

    /// The server list, by index. Answered by [`ServerPage`].
    ListServers {
        /// Only those with at least this index.
        from: u32,
    }

    /// Something is known of a server's end. Answered by [`Status::Ok`] alone.
    HintCrashed {
        /// The cluster.
        cluster: u64,
        /// The server.
        server: ServerId,
        /// What.
        hint: Hint,
    }

    /// To a master: own this tablet from now on; it is empty. Answered by [`Status::Ok`] alone, also if it owns it
    /// already; [`Status::NotInCluster`] if it is somebody else.
    TakeTablet {
        /// The cluster.
        cluster: u64,
        /// Whom the coordinator means.
        server: ServerId,
        /// The table.
        table: TableId,
        /// The first key hash.
        first: u64,
        /// The last one.
        last: u64,
        /// The secret under which the table's keys are hashed.
        hash_key: HashKey,
    }

    /// To a master: own this tablet no more, and forget its objects. Answered by [`Status::Ok`] alone, also if it does
    /// not own it; [`Status::NotInCluster`] if it is somebody else.
    DropTablet {
        /// The cluster.
        cluster: u64,
        /// Whom the coordinator means.
        server: ServerId,
        /// The table.
        table: TableId,
        /// The first key hash.
        first: u64,
        /// The last one.
        last: u64,
    }
}

replies! {
    /// The answer to [`Enlist`].
    Enlisted {
        /// The cluster, to be named in every later message.
        cluster: u64,
        /// Who the server is from now on.
        server: ServerId,
        /// For how long it may serve, counted from when it sent the request, in nanoseconds.
        lease_ns: u64,
    }

    /// The answer to [`RenewServer`].
    Renewed {
        /// For how long the server may serve, counted from when it sent the request, in nanoseconds.
        lease_ns: u64,
    }

    /// The answer to [`RenewClient`].
    Leased {
        /// The cluster.
        cluster: u64,
        /// The lease.
        lease: LeaseId,
        /// For how long it is valid, counted from when the client sent the request, in nanoseconds.
        term_ns: u64,
    }

    /// The answer to [`CheckLease`].
    LeaseTimes {
        /// For each lease in the order of the question: it is valid at least so long, counted from when the question
        /// was sent, in nanoseconds; 0 means that it has expired and never becomes valid again.
        valid_ns: Vec<u64>,
    }

    /// The answer to [`CreateTable`] and [`GetTable`].
    TableKey {
        /// The cluster, to be named in every operation on the table's objects.
        cluster: u64,
        /// The table.
        table: TableId,
        /// The secret under which its keys are hashed.
        hash_key: HashKey,
    }

    /// The answer to [`ListTables`].
    TablePage<'a> {
        /// True if there are more, after the last of these.
        more: bool,
        /// At most [`MAX_PAGE`] tables by id.
        tables: Vec<Table<'a>>,
    }

    /// The answer to [`GetTablets`].
    Tablets<'a> {
        /// The cluster: the table's id means nothing in another one.
        cluster: u64,
        /// The secret under which the table's keys are hashed.
        hash_key: HashKey,
        /// Its tablets by first key hash: together they cover all hashes, each once.
        tablets: Vec<Tablet<'a>>,
    }

    /// The answer to [`ListServers`].
    ServerPage<'a> {
        /// The index to go on from, if there are more; else 0.
        next: u32,
        /// At most [`MAX_PAGE`] servers by index.
        servers: Vec<Server<'a>>,
    }
}

#[cfg(test)]
mod tests;
