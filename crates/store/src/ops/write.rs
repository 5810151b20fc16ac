//! The operation write: it writes an object.
//!
//! ```text
//! request   0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 value length u32 | 60 key
//!           value
//! reply     0 head | 4 version u64, the object's new one
//! ```

use alloc::vec::Vec;

use sprat_proto::rpc::Message;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use crate::master::Master;
use crate::message::data::{MutationWire, Once, Refusal, Target, concat, split, versioned};
use crate::message::{Opcode, Status};
use crate::objects::memory::Change;
use crate::types::TableId;

/// A request to write an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write<'a> {
    /// The table of the object, and the conditions of the write.
    pub target: Target,
    /// The identity of the write, by which it is executed exactly once.
    pub once: Once,
    /// The key of the object to write.
    pub key: &'a [u8],
    /// The new value of the object, shorter than 4 GiB.
    pub value: &'a [u8],
}

/// The fixed part of a mutation with a key and a value.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct WriteWire {
    mutation: MutationWire,
    value_len: U32,
}

impl WriteWire {
    #[inline]
    pub(super) fn new(mutation: MutationWire, value: &[u8]) -> Self {
        let value_len = u32::try_from(value.len()).expect("a value of less than 4 GiB");
        Self { mutation, value_len: value_len.into() }
    }
}

/// The parts of a mutation with a key and a value: target, identity, key and value.
type Split<'a> = (Target, Once, &'a [u8], &'a [u8]);

/// Parses a mutation with a key and a value.
#[inline]
pub(super) fn split_value(request: &[u8], opcode: Opcode) -> Result<Split<'_>, Status> {
    let (wire, rest) = split::<WriteWire>(request, opcode)?;
    let key_len = rest.len().checked_sub(wire.value_len.get() as usize);
    let (key, value) = rest.split_at(key_len.ok_or(Status::BadFormat)?);
    Ok((Target::parse(&wire.mutation.target)?, Once::parse(&wire.mutation), key, value))
}

impl Write<'_> {
    #[inline]
    fn mutation(&self) -> MutationWire {
        self.once.wire(self.target.wire(Opcode::Write))
    }

    /// Puts the bytes of the request before its value, which has `value_len` bytes, into `out`,
    /// whose old contents are dropped.
    #[must_use]
    pub fn emit_front(&self, value_len: u32, out: Vec<u8>) -> Vec<u8> {
        let wire = WriteWire { mutation: self.mutation(), value_len: value_len.into() };
        concat(out, &wire, self.key, &[])
    }
}

impl<'a> Operation<'a> for Write<'a> {
    #[inline]
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &WriteWire::new(self.mutation(), self.value), self.key, self.value)
    }

    #[inline]
    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (target, once, key, value) = split_value(request, Opcode::Write)?;
        Ok(Self { target, once, key, value })
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
        let Self { target, once, key, value } = self;
        mutation::execute(master, call, reply, target, once, key, Change::Write(value))
    }
}

impl<'a> ClientOperation<'a> for Write<'a> {
    type Args = ();
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    #[inline]
    fn new((): (), parts: Parts<'a>) -> Self {
        let Parts { target, once, key, value, .. } = parts;
        Self { target, once, key, value }
    }

    #[inline]
    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        version_alone(reply)
    }
}

/// Parses a reply that has an object's version and nothing else.
#[inline]
pub(super) fn version_alone(reply: &[u8]) -> Result<Reply, Refusal<'_>> {
    match versioned(reply)? {
        (version, []) => Ok(Reply::Version(version)),
        _ => Err(Status::BadFormat.into()),
    }
}
