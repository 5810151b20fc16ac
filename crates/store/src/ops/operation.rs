//! The traits of an operation: its request, its execution and its reply.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Replied};
use sprat_proto::rpc::Message;

use crate::master::{Mark, Master};
use crate::message::Status;
use crate::message::data::{Once, Refusal, Target};
use crate::types::{LeaseId, Lifetime, TableId, Version};

/// A request that a master executes.
///
/// The type that implements it is the request itself: a client emits it, a master parses and
/// executes it.
pub trait Operation<'a>: Sized {
    /// Puts the bytes of the request into `out`, whose old contents are dropped.
    #[must_use]
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8>;

    /// Parses a request that has an opcode of this operation.
    ///
    /// # Errors
    /// The status to reply with.
    fn parse(request: &'a [u8]) -> Result<Self, Status>;

    /// Returns the table and the key of the object that the request names, if it names one.
    fn key(&self) -> Option<(TableId, &'a [u8])>;

    /// Executes the request. Appends the reply to `reply`, unless the reply follows later.
    ///
    /// # Errors
    /// The status to reply with. Nothing has changed.
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status>;

    /// Returns the bytes of the request in a vector of their own.
    #[must_use]
    fn emit(&self) -> Vec<u8> {
        self.emit_in(Vec::new())
    }
}

/// A request that other servers and the coordinator send, and a master executes. It names no object
/// of a client.
pub trait Order: Sized {
    /// Executes the order. Writes the reply into `reply`, which is empty at first, unless the reply
    /// follows later.
    ///
    /// # Errors
    /// The status to reply with. Nothing has changed.
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status>;
}

/// An operation that a client can start.
pub trait ClientOperation<'a>: Operation<'a> {
    /// The part of an operation that a client keeps beside key and value until the reply arrives.
    type Args: Copy;

    /// True if the operation goes to the master of a tablet, false if it goes to any server.
    const HAS_TABLET: bool;
    /// True if the operation changes an object, so that it carries [`Once`].
    const CHANGES: bool;

    /// Creates the request from the client's arguments and parts.
    fn new(args: Self::Args, parts: Parts<'a>) -> Self;

    /// Parses the reply to the operation.
    ///
    /// # Errors
    /// The refusal in the reply.
    fn completion(args: Self::Args, reply: &[u8]) -> Result<Reply, Refusal<'_>>;
}

/// The condition under which the reply to an executed operation goes out.
#[derive(Clone, Copy, Debug)]
pub enum Executed {
    /// The reply goes out at once. `idempotent` is true if the operation may be executed again.
    Now {
        /// True if the operation may be executed again.
        idempotent: bool,
    },
    /// The operation has changed nothing. The reply reports objects of this table.
    Read {
        /// The table whose objects the reply reports.
        table: TableId,
        /// True if everything that the reply reports is durable.
        durable: bool,
    },
    /// The operation has appended to the log. The reply goes out when the log is durable, or at
    /// once if replicas may lag behind this mark ([`Master::may_lag`]).
    Changed(Option<Mark>),
    /// The operation was not executed. It waits until the coordinator has confirmed this lease.
    Suspended(LeaseId),
    /// The reply follows by another way.
    Later,
}

impl Executed {
    /// Lets the reply to an executed operation go out, or keeps it until its condition holds.
    ///
    /// # Errors
    /// The status to reply with. The operation was not executed.
    #[inline(always)]
    pub(super) fn finish(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        Ok(match self {
            Self::Read { table, durable } => master.gate_read(call.caller, reply, table, durable),
            Self::Changed(before) => master.acknowledge(before, call.caller, reply),
            Self::Now { idempotent: true } => Replied::Idempotent,
            Self::Now { idempotent: false } => Replied::Now,
            Self::Suspended(lease) => {
                master.leases.suspend(lease, call.caller, call.request, call.deadline)?;
                Replied::Later
            }
            Self::Later => Replied::Later,
        })
    }
}

/// A request as it arrived at a master.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The time at which the master executes the request.
    pub now: Instant,
    /// The sender of the request, to which the reply goes.
    pub caller: Caller,
    /// The bytes of the request.
    pub request: &'a [u8],
    /// The time at which the sender of the request gives up.
    pub deadline: Instant,
}

/// The parts of a request that a client has for every operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts<'a> {
    /// The table and the conditions of the operation.
    pub target: Target,
    /// The identity of the mutation, by which it is executed exactly once.
    pub once: Once,
    /// The key of the object.
    pub key: &'a [u8],
    /// The value to write, or the bytes of another request.
    pub value: &'a [u8],
    /// The size of the reply to an enumeration, in bytes.
    pub page_bytes: u32,
}

/// The parsed reply of an operation that succeeded. Offsets count from the start of the reply.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// The reply has an object.
    Object {
        /// The version of the object that was read.
        version: Version,
        /// The offset of the object's value in the reply.
        value: usize,
    },
    /// The reply has only the version of an object, as after a write or a removal.
    Version(Version),
    /// The operation incremented an integer.
    Integer {
        /// The new version of the incremented object.
        version: Version,
        /// The sum, which is the object's new value.
        sum: i64,
    },
    /// The operation incremented a double.
    Double {
        /// The new version of the incremented object.
        version: Version,
        /// The sum, which is the object's new value.
        sum: f64,
    },
    /// The operation appended to an object.
    Length {
        /// The new version of the object.
        version: Version,
        /// The new length of the object's value in bytes.
        length: u64,
    },
    /// The reply has an object and the rest of its lifetime.
    Expiring {
        /// The version of the object that was read.
        version: Version,
        /// The rest of the object's lifetime, or `None` if the object does not expire.
        lifetime: Option<Lifetime>,
        /// The offset of the object's value in the reply.
        value: usize,
    },
    /// The operation wrote an object and returned the one before.
    Swapped {
        /// The new version of the object.
        version: Version,
        /// The version of the object before, 0 if there was none.
        before: Version,
        /// The offset of the old object's value in the reply. It is empty if there was none.
        value: usize,
    },
    /// The reply has some objects of a table.
    Objects {
        /// The position of the next object, or `None` at the end of the range that was enumerated.
        next: Option<u64>,
    },
    /// The reply has bytes from this offset on, as after an echo.
    Bytes(usize),
}
