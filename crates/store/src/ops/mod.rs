//! The operations on objects: one file each, with its format, its execution and its reply.
//!
//! A new operation is a file here, an [`Opcode`], and one line in each of the lists below that it
//! belongs to. If it changes state, [`mutation`] executes it, so that it happens exactly once.
//! An order of the coordinator or of another server is an [`Order`].

use alloc::vec::Vec;

use sprat_proto::node::machine::Replied;
use sprat_proto::rpc::Message;

use crate::master::Master;
use crate::message::control::{DropTablet, Ping, TakeTablet};
use crate::message::damage::ReplicaDamaged;
use crate::message::data::Refusal;
use crate::message::migration::{HotRange, Migrate, PullTablet};
use crate::message::recovery::{
    FreeLeftReplicas, FreeReplicas, ListReplicas, ReadReplica, Recover,
};
use crate::message::replica::{FreeReplica, WriteReplica};
use crate::message::ring::OpenRing;
use crate::message::transaction::{Decide, Resolve};
use crate::message::{Opcode, Status, VERSION};
use crate::types::TableId;

mod append;
mod change_indexed;
mod echo;
mod enumerate;
mod increment;
mod look_up;
mod multi;
mod mutation;
mod operation;
mod read;
mod read_expiring;
mod remove;
mod replicas;
mod stats;
mod swap;
mod tablets;
#[cfg(test)]
pub(crate) mod tests;
mod touch;
mod transaction;
mod write;

pub use append::Append;
pub use change_indexed::{ChangeIndexed, Kind};
pub use echo::Echo;
pub use enumerate::{Enumerate, Scan};
pub use increment::Increment;
pub use look_up::LookUp;
pub use multi::{MOST_PARTS, Multi};
pub use operation::{Call, ClientOperation, Executed, Operation, Order, Parts, Reply};
pub use read::Read;
pub use read_expiring::ReadExpiring;
pub use remove::Remove;
pub use stats::Stats;
pub use swap::Swap;
pub use touch::Touch;
pub use transaction::{Commit, Prepare, Validate};
pub use write::Write;

/// Declares the functions by which a master finds an operation by its opcode.
macro_rules! master_operations {
    (
        operations { $($($opcode:ident)|+ => $operation:ty,)* }
        orders { $($order:ident,)* }
    ) => {
        /// Executes a request of any operation. Writes the reply into `reply`, which is empty at
        /// first. Some replies follow later.
        #[inline(always)]
        pub(crate) fn execute(
            master: &mut Master,
            call: &Call<'_>,
            reply: &mut Message,
        ) -> Result<Replied, Status> {
            let code = match *call.request {
                [VERSION, code, _, _, ..] => code,
                [_, _, _, _, ..] => return Err(Status::BadVersion),
                _ => return Err(Status::BadFormat),
            };
            match Opcode::from_code(code) {
                $(Some($(Opcode::$opcode)|+) => {
                    let operation = <$operation as Operation<'_>>::parse(call.request)?;
                    let executed = operation.execute(master, call, reply)?;
                    executed.finish(master, call, reply)
                })*
                $(Some(Opcode::$order) => {
                    Order::execute($order::parse(call.request)?, master, call, reply)
                })*
                _ => Err(Status::UnknownOpcode),
            }
        }

        /// Executes a part of a multi-operation: an operation that names one object. Appends the
        /// part's reply to `reply`.
        pub(super) fn execute_part(
            master: &mut Master,
            call: &Call<'_>,
            reply: &mut Message,
        ) -> Result<Executed, Status> {
            match call.request.get(1).copied().and_then(Opcode::from_code) {
                $(Some($(Opcode::$opcode)|+) => {
                    let operation = <$operation as Operation<'_>>::parse(call.request)?;
                    if operation.key().is_none() {
                        return Err(Status::BadFormat);
                    }
                    operation.execute(master, call, reply)
                })*
                _ => Err(Status::BadFormat),
            }
        }

        /// Returns the table and the key of the object that a request names, if it names one.
        pub(crate) fn key(request: &[u8]) -> Option<(TableId, &[u8])> {
            match Opcode::from_code(*request.get(1)?)? {
                $($(Opcode::$opcode)|+ => {
                    Operation::key(&<$operation as Operation<'_>>::parse(request).ok()?)
                })*
                _ => None,
            }
        }
    };
}

master_operations! {
    operations {
        Read => Read<'_>,
        Write | WriteExpiring => Write<'_>,
        Remove => Remove<'_>,
        IncrementInteger | IncrementDouble => Increment<'_>,
        Append => Append<'_>,
        Touch => Touch<'_>,
        Swap => Swap<'_>,
        ReadExpiring => ReadExpiring<'_>,
        LookUp => LookUp<'_>,
        ChangeIndexed => ChangeIndexed<'_>,
        Enumerate => Enumerate,
        Multi => Multi<'_>,
        Prepare => Prepare<'_>,
        Commit => Commit<'_>,
        Validate => Validate<'_>,
        Decide => Decide<'_>,
        Echo => Echo<'_>,
        Stats => Stats,
    }
    orders {
        TakeTablet,
        DropTablet,
        Recover,
        Migrate,
        HotRange,
        Ping,
        WriteReplica,
        FreeReplica,
        ListReplicas,
        ReadReplica,
        FreeReplicas,
        FreeLeftReplicas,
        ReplicaDamaged,
        OpenRing,
        PullTablet,
        Resolve,
    }
}

/// Declares the operations that a client can start.
macro_rules! client_operations {
    ($($operation:ident => $type:ty,)*) => {
        /// An operation that a client has started, without its key and value.
        #[derive(Clone, Copy, PartialEq, Debug)]
        #[allow(missing_docs)]
        pub enum Request {
            $($operation(<$type as ClientOperation<'static>>::Args),)*
        }

        impl Request {
            /// Returns the bytes of the started operation's request, in `out`.
            #[must_use]
            #[inline(always)]
            pub fn emit_in(self, parts: Parts<'_>, out: Vec<u8>) -> Vec<u8> {
                match self {
                    $(Self::$operation(args) => $operation::new(args, parts).emit_in(out),)*
                }
            }

            /// Parses the reply to the started operation.
            ///
            /// # Errors
            /// The refusal in the reply.
            #[inline]
            pub fn completion(self, reply: &[u8]) -> Result<Reply, Refusal<'_>> {
                match self {
                    $(Self::$operation(args) => $operation::completion(args, reply),)*
                }
            }

            /// Returns true if the started operation goes to the master of a tablet.
            #[must_use]
            #[inline]
            pub fn has_tablet(self) -> bool {
                match self {
                    $(Self::$operation(_) => $operation::HAS_TABLET,)*
                }
            }

            /// Returns true if the started operation changes an object.
            #[must_use]
            #[inline]
            pub fn changes(self) -> bool {
                match self {
                    $(Self::$operation(_) => $operation::CHANGES,)*
                }
            }
        }
    };
}

client_operations! {
    Read => Read<'static>,
    Write => Write<'static>,
    Remove => Remove<'static>,
    Increment => Increment<'static>,
    Append => Append<'static>,
    Touch => Touch<'static>,
    Swap => Swap<'static>,
    ReadExpiring => ReadExpiring<'static>,
    LookUp => LookUp<'static>,
    ChangeIndexed => ChangeIndexed<'static>,
    Enumerate => Enumerate,
    Echo => Echo<'static>,
    Stats => Stats,
}
