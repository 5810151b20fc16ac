//! The operation write: it writes an object.
//!
//! ```text
//! Write          0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 value length u32
//!               60 key | value
//! WriteExpiring  0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 lifetime u64
//!               64 value length u32 | 68 key | value
//! reply          0 head | 4 version u64, the object's new one
//! ```
//!
//! A lifetime is in milliseconds. It begins when the master executes the write.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use crate::master::Master;
use crate::message::data::{MutationWire, Once, Refusal, Target, concat, split, versioned};
use crate::message::{Opcode, Status};
use crate::objects::mutate::Change;
use crate::types::{Lifetime, TableId};

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
    /// The time that the object exists, at most [`Lifetime::MAX`]. `None` means until it is
    /// removed.
    pub lifetime: Option<Lifetime>,
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

/// The fixed part of a write with a lifetime.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct LifetimeWire {
    pub(super) mutation: MutationWire,
    pub(super) lifetime_ms: U64,
    pub(super) value_len: U32,
}

impl LifetimeWire {
    #[inline]
    pub(super) fn new(mutation: MutationWire, lifetime_ms: U64, value_len: usize) -> Self {
        let value_len = u32::try_from(value_len).expect("a value of less than 4 GiB").into();
        Self { mutation, lifetime_ms, value_len }
    }
}

/// The lifetime in a request that means that the object does not expire.
const NONE: u64 = u64::MAX;

/// The parts of a mutation with a key and a value: target, identity, key and value.
type Split<'a> = (Target, Once, &'a [u8], &'a [u8]);

/// Parses a mutation with a key and a value.
#[inline]
pub(super) fn split_value(request: &[u8], opcode: Opcode) -> Result<Split<'_>, Status> {
    let (wire, rest) = split::<WriteWire>(request, opcode)?;
    let (key, value) = split_key(rest, wire.value_len)?;
    Ok((Target::parse(&wire.mutation.target)?, Once::parse(&wire.mutation), key, value))
}

/// Splits `bytes` into a key and a value of this length.
#[inline]
pub(super) fn split_key(bytes: &[u8], value_len: U32) -> Result<(&[u8], &[u8]), Status> {
    let key_len = bytes.len().checked_sub(value_len.get() as usize);
    Ok(bytes.split_at(key_len.ok_or(Status::BadFormat)?))
}

impl Write<'_> {
    /// Puts the bytes of the request into `out`, with `value` behind the key and `value_len` as its
    /// length.
    #[inline]
    fn put(&self, value_len: usize, value: &[u8], out: Vec<u8>) -> Vec<u8> {
        let Self { target, once, key, lifetime, .. } = self;
        let Some(Lifetime(ms)) = *lifetime else {
            let value_len = u32::try_from(value_len).expect("a value of less than 4 GiB").into();
            let mutation = once.wire(target.wire(Opcode::Write));
            return concat(out, &WriteWire { mutation, value_len }, key, value);
        };
        let mutation = once.wire(target.wire(Opcode::WriteExpiring));
        concat(out, &LifetimeWire::new(mutation, ms.into(), value_len), key, value)
    }

    /// Puts the bytes of the request before its value, which has `value_len` bytes, into `out`,
    /// whose old contents are dropped.
    #[must_use]
    pub fn emit_front(&self, value_len: u32, out: Vec<u8>) -> Vec<u8> {
        self.put(value_len as usize, &[], out)
    }
}

impl<'a> Operation<'a> for Write<'a> {
    #[inline]
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        self.put(self.value.len(), self.value, out)
    }

    #[inline]
    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        if request.get(1) != Some(&(Opcode::WriteExpiring as u8)) {
            let (target, once, key, value) = split_value(request, Opcode::Write)?;
            return Ok(Self { target, once, key, value, lifetime: None });
        }
        let (wire, rest) = split::<LifetimeWire>(request, Opcode::WriteExpiring)?;
        let (key, value) = split_key(rest, wire.value_len)?;
        let (target, once) = (Target::parse(&wire.mutation.target)?, Once::parse(&wire.mutation));
        let lifetime = Some(lifetime(wire.lifetime_ms)?);
        Ok(Self { target, once, key, value, lifetime })
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
        let Self { target, once, key, value, lifetime } = self;
        mutation::execute(master, call, reply, target, once, key, Change::Write(value, lifetime))
    }
}

impl<'a> ClientOperation<'a> for Write<'a> {
    type Args = Option<Lifetime>;
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    #[inline]
    fn new(lifetime: Option<Lifetime>, parts: Parts<'a>) -> Self {
        let Parts { target, once, key, value, .. } = parts;
        Self { target, once, key, value, lifetime }
    }

    #[inline]
    fn completion(_: Option<Lifetime>, reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        version_alone(reply)
    }
}

/// Checks a lifetime in a request.
#[inline]
pub(super) fn lifetime(ms: U64) -> Result<Lifetime, Status> {
    let lifetime = Lifetime(ms.get());
    if lifetime <= Lifetime::MAX { Ok(lifetime) } else { Err(Status::BadFormat) }
}

/// Returns the lifetime in a request for an object that may have none.
pub(super) fn lifetime_ms(lifetime: Option<Lifetime>) -> U64 {
    lifetime.map_or(NONE, |Lifetime(ms)| ms).into()
}

/// Checks a lifetime in a request for an object that may have none.
pub(super) fn lifetime_or_none(ms: U64) -> Result<Option<Lifetime>, Status> {
    (ms.get() != NONE).then(|| lifetime(ms)).transpose()
}

/// Parses a reply that has an object's version and nothing else.
#[inline]
pub(super) fn version_alone(reply: &[u8]) -> Result<Reply, Refusal<'_>> {
    match versioned(reply)? {
        (version, []) => Ok(Reply::Version(version)),
        _ => Err(Status::BadFormat.into()),
    }
}
