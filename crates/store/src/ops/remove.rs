//! The operation remove: it removes an object.
//!
//! ```text
//! request   0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 key
//! reply     0 head | 4 version u64, that of the removed object, 0 if it did not exist
//! ```

use alloc::vec::Vec;

use sprat_proto::rpc::Message;

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::write::version_alone;
use crate::master::Master;
use crate::message::data::{MutationWire, Once, Refusal, Target, concat, split};
use crate::message::{Opcode, Status};
use crate::objects::mutate::Change;
use crate::types::TableId;

/// A request to remove an object. It succeeds if the object does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remove<'a> {
    /// The table of the object, and the conditions of the removal.
    pub target: Target,
    /// The identity of the removal, by which it is executed exactly once.
    pub once: Once,
    /// The key of the object to remove.
    pub key: &'a [u8],
}

impl<'a> Operation<'a> for Remove<'a> {
    #[inline]
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &self.once.wire(self.target.wire(Opcode::Remove)), self.key, &[])
    }

    #[inline]
    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, key) = split::<MutationWire>(request, Opcode::Remove)?;
        Ok(Self { target: Target::parse(&wire.target)?, once: Once::parse(wire), key })
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
        mutation::execute(master, call, reply, self.target, self.once, self.key, Change::Remove)
    }
}

impl<'a> ClientOperation<'a> for Remove<'a> {
    type Args = ();
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    #[inline]
    fn new((): (), parts: Parts<'a>) -> Self {
        Self { target: parts.target, once: parts.once, key: parts.key }
    }

    #[inline]
    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        version_alone(reply)
    }
}
