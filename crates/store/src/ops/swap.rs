//! The operation swap: it writes an object and returns the object that was there before.
//!
//! ```text
//! request   0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 lifetime u64
//!          64 value length u32 | 68 key | value
//! reply     0 head | 4 version u64, the object's new one
//!          12 version u64 of the old object, 0 if there was none | 20 value of the old object
//! ```
//!
//! A lifetime is in milliseconds. [`u64::MAX`] means that the object does not expire. The record of
//! a swap keeps the old object until the client acknowledges the reply, so that a repetition gets
//! the same one.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::read::INLINE_VALUE;
use super::write::{LifetimeWire, lifetime_ms, lifetime_or_none, split_key};
use crate::master::Master;
use crate::message::data::{Once, Refusal, Target, concat, head, split, versioned};
use crate::message::{Opcode, Status};
use crate::objects::entry;
use crate::objects::memory::Memory;
use crate::objects::mutate::Change;
use crate::types::{Lifetime, TableId, Version};

/// A request to write an object and to return the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swap<'a> {
    /// The table of the object, and the conditions of the swap.
    pub target: Target,
    /// The identity of the swap, by which it is executed exactly once.
    pub once: Once,
    /// The key of the object to write.
    pub key: &'a [u8],
    /// The new value of the object, shorter than 4 GiB.
    pub value: &'a [u8],
    /// The time that the object exists, at most [`Lifetime::MAX`]. `None` means until it is
    /// removed.
    pub lifetime: Option<Lifetime>,
}

impl<'a> Operation<'a> for Swap<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let mutation = self.once.wire(self.target.wire(Opcode::Swap));
        let wire = LifetimeWire::new(mutation, lifetime_ms(self.lifetime), self.value.len());
        concat(out, &wire, self.key, self.value)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, rest) = split::<LifetimeWire>(request, Opcode::Swap)?;
        let (key, value) = split_key(rest, wire.value_len)?;
        let (target, once) = (Target::parse(&wire.mutation.target)?, Once::parse(&wire.mutation));
        Ok(Self { target, once, key, value, lifetime: lifetime_or_none(wire.lifetime_ms)? })
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
        let Self { target, once, key, value, lifetime } = self;
        let (begin, change) = (reply.bytes.len(), Change::Swap(value, lifetime));
        let executed = mutation::execute(master, call, reply, target, once, key, change)?;
        if let Executed::Now { .. } | Executed::Changed(_) = executed {
            write_old(master, once, reply, begin);
        }
        Ok(executed)
    }
}

/// Writes the old value that the record of the swap `once` has, if any, into its reply, which
/// begins at `begin` in `reply`. If too much of the log is lent for that, the client has to repeat
/// the swap.
fn write_old(master: &mut Master, once: Once, reply: &mut Message, begin: usize) {
    let Memory { log, results, .. } = &mut master.memory;
    let Some(at) = results.location(once) else { return };
    let old = entry::old_place(log.bytes(at));
    if old.len() <= INLINE_VALUE {
        reply.bytes.extend_from_slice(&log.bytes(at)[old]);
    } else if let Some(slice) = log.lend(at.plus(old.start), old.len()) {
        reply.slices.push(slice);
    } else {
        master.counters.refused(Status::Retry);
        reply.bytes.truncate(begin);
        reply.bytes.extend_from_slice(&head(Status::Retry));
    }
}

impl<'a> ClientOperation<'a> for Swap<'a> {
    type Args = Option<Lifetime>;
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    fn new(lifetime: Option<Lifetime>, parts: Parts<'a>) -> Self {
        let Parts { target, once, key, value, .. } = parts;
        Self { target, once, key, value, lifetime }
    }

    fn completion(_: Option<Lifetime>, reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        let (version, rest) = versioned(reply)?;
        let (before, value) = rest.split_first_chunk().ok_or(Status::BadFormat)?;
        let before = Version(u64::from_be_bytes(*before));
        Ok(Reply::Swapped { version, before, value: reply.len() - value.len() })
    }
}
