//! The operation append: it adds bytes to the end of an object's value.
//!
//! ```text
//! request   0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 length of the bytes u32
//!          60 key | bytes
//! reply     0 head | 4 version u64, the object's new one | 12 length u64, the value's new one
//! ```
//!
//! A missing object counts as empty.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::write::{WriteWire, split_value};
use crate::master::Master;
use crate::message::data::{Once, Refusal, Target, concat, versioned};
use crate::message::{Opcode, Status};
use crate::objects::mutate::Change;
use crate::types::TableId;

/// A request to add bytes to the end of an object's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Append<'a> {
    /// The table of the object, and the conditions of the append.
    pub target: Target,
    /// The identity of the append, by which it is executed exactly once.
    pub once: Once,
    /// The key of the object to append to.
    pub key: &'a [u8],
    /// The bytes to append, fewer than 4 Gi.
    pub bytes: &'a [u8],
}

impl<'a> Operation<'a> for Append<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let wire = WriteWire::new(self.once.wire(self.target.wire(Opcode::Append)), self.bytes);
        concat(out, &wire, self.key, self.bytes)
    }

    #[inline]
    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (target, once, key, bytes) = split_value(request, Opcode::Append)?;
        Ok(Self { target, once, key, bytes })
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
        let Self { target, once, key, bytes } = self;
        mutation::execute(master, call, reply, target, once, key, Change::Append(bytes))
    }
}

impl<'a> ClientOperation<'a> for Append<'a> {
    type Args = ();
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    #[inline]
    fn new((): (), parts: Parts<'a>) -> Self {
        let Parts { target, once, key, value, .. } = parts;
        Self { target, once, key, bytes: value }
    }

    #[inline]
    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        let (version, length) = versioned(reply)?;
        let length = length.try_into().map_err(|_| Status::BadFormat)?;
        Ok(Reply::Length { version, length: u64::from_be_bytes(length) })
    }
}
