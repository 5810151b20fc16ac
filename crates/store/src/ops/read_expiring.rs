//! The operation read expiring: it returns the value of an object, and the rest of its lifetime.
//!
//! ```text
//! request   0 target | 32 key
//! reply     0 head | 4 version u64 | 12 lifetime u64 | 20 value
//! ```
//!
//! The lifetime is in milliseconds from the execution on. [`u64::MAX`] means that the object does
//! not expire.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;

use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::read::read;
use super::write::lifetime_or_none;
use crate::master::Master;
use crate::message::data::{self, Refusal, Target, TargetWire, concat, split};
use crate::message::{Opcode, Status};
use crate::types::TableId;

/// A request to read an object and the rest of its lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadExpiring<'a> {
    /// The table of the object, and the conditions of the read.
    pub target: Target,
    /// The key of the object to read.
    pub key: &'a [u8],
}

impl<'a> Operation<'a> for ReadExpiring<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &self.target.wire(Opcode::ReadExpiring), self.key, &[])
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, key) = split::<TargetWire>(request, Opcode::ReadExpiring)?;
        Ok(Self { target: Target::parse(wire)?, key })
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
        read::<true>(master, call, reply, &self.target, self.key)
    }
}

impl<'a> ClientOperation<'a> for ReadExpiring<'a> {
    type Args = ();
    const HAS_TABLET: bool = true;
    const CHANGES: bool = false;

    fn new((): (), parts: Parts<'a>) -> Self {
        Self { target: parts.target, key: parts.key }
    }

    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        let (version, rest) = data::versioned(reply)?;
        let (ms, value) = rest.split_first_chunk().ok_or(Status::BadFormat)?;
        let lifetime = lifetime_or_none(u64::from_be_bytes(*ms).into())?;
        Ok(Reply::Expiring { version, lifetime, value: reply.len() - value.len() })
    }
}
