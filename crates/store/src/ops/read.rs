//! The operation read: it returns the value of an object.
//!
//! ```text
//! request   0 target | 32 key
//! reply     0 head | 4 version u64 | 12 value
//! ```

use alloc::vec::Vec;

use sprat_proto::rpc::Message;
use zerocopy::IntoBytes;

use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::write::lifetime_ms;
use crate::master::Master;
use crate::message::data::{self, Refusal, Target, TargetWire, concat, split};
use crate::message::{Opcode, Status};
use crate::objects::entry::OBJECT;
use crate::objects::locks::Access;
use crate::objects::memory;
use crate::types::{TableId, Version, WallTime};

/// The longest value in bytes that is copied into a reply. The reply refers to a longer value in
/// the log.
pub(super) const INLINE_VALUE: usize = 256;

/// A request to read an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read<'a> {
    /// The table of the object, and the conditions of the read.
    pub target: Target,
    /// The key of the object to read.
    pub key: &'a [u8],
}

impl<'a> Operation<'a> for Read<'a> {
    #[inline(always)]
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &self.target.wire(Opcode::Read), self.key, &[])
    }

    #[inline]
    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, key) = split::<TargetWire>(request, Opcode::Read)?;
        Ok(Self { target: Target::parse(wire)?, key })
    }

    #[inline]
    fn key(&self) -> Option<(TableId, &'a [u8])> {
        Some((self.target.table, self.key))
    }

    #[inline(always)]
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        read::<false>(master, call, reply, &self.target, self.key)
    }
}

/// Reads an object. Its lifetime stands before the value in the reply if `WITH_LIFETIME`.
#[inline(always)]
pub(super) fn read<const WITH_LIFETIME: bool>(
    master: &mut Master,
    call: &Call<'_>,
    reply: &mut Message,
    target: &Target,
    key: &[u8],
) -> Result<Executed, Status> {
    master.counters.reads += 1;
    master.membership.check(call.now, target.cluster)?;
    memory::check_sizes(key, &[])?;
    let hash = master.locate(target.table, key)?;
    if master.memory.transactions.is_locked(target.table, hash, Access::Read) {
        return Err(Status::Locked);
    }
    let Some((place, at)) = master.memory.find(target.table, hash, key) else {
        return Ok(missing(target, reply));
    };
    let object = master.memory.log.object(at);
    if object.expires != WallTime::NEVER && object.expires <= master.wall.at(call.now) {
        master.expire(call.now, place, at)?;
        return Ok(missing(target, reply));
    }
    let durable = master.memory.log.is_durable(at);
    if let Err(status) = target.rules.check(object.version) {
        reply.bytes.extend_from_slice(&data::result_head(status, object.version));
        return Ok(Executed::Read { table: target.table, durable });
    }
    reply.bytes.extend_from_slice(&data::result_head(Status::Ok, object.version));
    if WITH_LIFETIME {
        let rest = object.expires.rest(master.wall.at(call.now));
        reply.bytes.extend_from_slice(lifetime_ms(rest).as_bytes());
    }
    let (at, len) = (at.plus(OBJECT + key.len()), object.value.len());
    if len > INLINE_VALUE {
        reply.slices.push(master.memory.log.lend(at, len).ok_or(Status::Retry)?);
    } else {
        reply.bytes.extend_from_slice(object.value);
    }
    Ok(Executed::Read { table: target.table, durable })
}

/// Writes the reply that there is no object.
fn missing(target: &Target, reply: &mut Message) -> Executed {
    let status = target.rules.check(Version(0)).err().unwrap_or(Status::ObjectDoesntExist);
    reply.bytes.extend_from_slice(&data::result_head(status, Version(0)));
    // The object may have been removed, and the removal may not be durable yet.
    Executed::Read { table: target.table, durable: false }
}

impl<'a> ClientOperation<'a> for Read<'a> {
    type Args = ();
    const HAS_TABLET: bool = true;
    const CHANGES: bool = false;

    #[inline]
    fn new((): (), parts: Parts<'a>) -> Self {
        Self { target: parts.target, key: parts.key }
    }

    #[inline]
    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        let (version, value) = data::versioned(reply)?;
        Ok(Reply::Object { version, value: reply.len() - value.len() })
    }
}
