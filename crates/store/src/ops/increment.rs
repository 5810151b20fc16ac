//! The operation increment: it adds to an object that is a number in decimal text (see
//! [`crate::objects::number`]).
//!
//! ```text
//! request   0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 amount 8 B | 64 key
//! reply     0 head | 4 version u64, the object's new one | 12 sum 8 B
//! ```
//!
//! The opcode selects integers or doubles. A missing object counts as zero.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use crate::master::Master;
use crate::message::data::{Amount, MutationWire, Once, Refusal, Target, concat, split, versioned};
use crate::message::{Opcode, Status};
use crate::objects::mutate::Change;
use crate::types::TableId;

/// A request to add a number to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Increment<'a> {
    /// The table of the object, and the conditions of the increment.
    pub target: Target,
    /// The identity of the increment, by which it is executed exactly once.
    pub once: Once,
    /// The number to add to the object.
    pub amount: Amount,
    /// The key of the object to increment.
    pub key: &'a [u8],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct IncrementWire {
    mutation: MutationWire,
    amount: [u8; 8],
}

impl<'a> Operation<'a> for Increment<'a> {
    #[inline]
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let (opcode, amount) = match self.amount {
            Amount::Integer(amount) => (Opcode::IncrementInteger, amount.to_be_bytes()),
            Amount::Double(amount) => (Opcode::IncrementDouble, amount.to_be_bytes()),
        };
        let mutation = self.once.wire(self.target.wire(opcode));
        concat(out, &IncrementWire { mutation, amount }, self.key, &[])
    }

    #[inline]
    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let double = request.get(1) == Some(&(Opcode::IncrementDouble as u8));
        let opcode = if double { Opcode::IncrementDouble } else { Opcode::IncrementInteger };
        let (wire, key) = split::<IncrementWire>(request, opcode)?;
        let amount = if double {
            Amount::Double(f64::from_be_bytes(wire.amount))
        } else {
            Amount::Integer(i64::from_be_bytes(wire.amount))
        };
        let target = Target::parse(&wire.mutation.target)?;
        Ok(Self { target, once: Once::parse(&wire.mutation), amount, key })
    }

    #[inline]
    fn key(&self) -> Option<(TableId, &'a [u8])> {
        Some((self.target.table, self.key))
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        let Self { target, once, amount, key } = self;
        if matches!(amount, Amount::Double(amount) if !amount.is_finite()) {
            return Err(Status::NotFinite);
        }
        mutation::execute(master, call, reply, target, once, key, Change::Add(amount))
    }
}

impl<'a> ClientOperation<'a> for Increment<'a> {
    type Args = Amount;
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    #[inline]
    fn new(amount: Amount, parts: Parts<'a>) -> Self {
        Self { target: parts.target, once: parts.once, amount, key: parts.key }
    }

    #[inline]
    fn completion(amount: Amount, reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        let (version, sum) = versioned(reply)?;
        let sum = sum.try_into().map_err(|_| Status::BadFormat)?;
        Ok(match amount {
            Amount::Integer(_) => Reply::Integer { version, sum: i64::from_be_bytes(sum) },
            Amount::Double(_) => Reply::Double { version, sum: f64::from_be_bytes(sum) },
        })
    }
}
