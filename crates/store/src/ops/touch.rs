//! The operation touch: it gives an object another lifetime, from now on, and leaves its value.
//!
//! ```text
//! request   0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 lifetime u64 | 64 key
//! reply     0 head | 4 version u64, the object's new one
//! ```
//!
//! A lifetime is in milliseconds. [`u64::MAX`] means that the object does not expire. A missing
//! object is refused. The object gets a new version, as by a write.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;
use zerocopy::byteorder::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::write::{lifetime_ms, lifetime_or_none, version_alone};
use crate::master::Master;
use crate::message::data::{MutationWire, Once, Refusal, Target, concat, split};
use crate::message::{Opcode, Status};
use crate::objects::mutate::Change;
use crate::types::{Lifetime, TableId};

/// A request to give an object another lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch<'a> {
    /// The table of the object, and the conditions of the touch.
    pub target: Target,
    /// The identity of the touch, by which it is executed exactly once.
    pub once: Once,
    /// The time that the object exists from now on, at most [`Lifetime::MAX`]. `None` means until
    /// it is removed.
    pub lifetime: Option<Lifetime>,
    /// The key of the object to touch.
    pub key: &'a [u8],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TouchWire {
    mutation: MutationWire,
    lifetime_ms: U64,
}

impl<'a> Operation<'a> for Touch<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let lifetime_ms = lifetime_ms(self.lifetime);
        let mutation = self.once.wire(self.target.wire(Opcode::Touch));
        concat(out, &TouchWire { mutation, lifetime_ms }, self.key, &[])
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, key) = split::<TouchWire>(request, Opcode::Touch)?;
        let lifetime = lifetime_or_none(wire.lifetime_ms)?;
        let target = Target::parse(&wire.mutation.target)?;
        Ok(Self { target, once: Once::parse(&wire.mutation), lifetime, key })
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        Some((self.target.table, self.key))
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        let Self { target, once, lifetime, key } = self;
        mutation::execute(master, call, reply, target, once, key, Change::Touch(lifetime))
    }
}

impl<'a> ClientOperation<'a> for Touch<'a> {
    type Args = Option<Lifetime>;
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    fn new(lifetime: Option<Lifetime>, parts: Parts<'a>) -> Self {
        Self { target: parts.target, once: parts.once, lifetime, key: parts.key }
    }

    fn completion(_: Option<Lifetime>, reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        version_alone(reply)
    }
}
