//! The operation change-indexed: it writes or removes an object together with its entries in the
//! indexes of its table.
//!
//! ```text
//! request   0 target | 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 lifetime u64
//!          64 table of the nodes u64 | 72 kind u8 (0: remove, 1: write) | 73 zeros
//!          76 value length u32 | 80 key | value
//! reply     0 head | 4 version u64 of the written object, or of the removed one
//! ```
//!
//! A lifetime is in milliseconds. [`u64::MAX`] means that the object does not expire. A removal has
//! that, and no value. The outcome [`Status::OtherLeaf`] leaves the change to the client: it says
//! that the master does not have all nodes that the change needs, that leaves have to be merged, or
//! that a node above them has to be split. It is recorded as any other outcome, so that the request
//! is not executed later on.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mutation;
use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::write::{lifetime_ms, lifetime_or_none, split_key, version_alone};
use crate::master::Master;
use crate::message::data::{MutationWire, Once, Refusal, Target, concat, split};
use crate::message::{Opcode, Status};
use crate::objects::indexed::Edits;
use crate::objects::mutate::Change;
use crate::types::{Lifetime, TableId};

const REMOVE: u8 = 0;
const WRITE: u8 = 1;

/// The change of an object of a table with indexes, without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The object is written, and expires after this lifetime, at most [`Lifetime::MAX`].
    Write(Option<Lifetime>),
    /// The object is removed.
    Remove,
}

/// A request to change an object together with its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeIndexed<'a> {
    /// The table of the object, and the conditions of the change.
    pub target: Target,
    /// The identity of the change, by which it is executed exactly once.
    pub once: Once,
    /// The table of the nodes of the indexes.
    pub nodes: TableId,
    /// The change.
    pub kind: Kind,
    /// The key of the object.
    pub key: &'a [u8],
    /// The new value of the object, shorter than 4 GiB. Empty for a removal.
    pub value: &'a [u8],
}

/// The fixed part of a change.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ChangeWire {
    mutation: MutationWire,
    lifetime_ms: U64,
    nodes: U64,
    kind: u8,
    zeros: [u8; 3],
    value_len: U32,
}

impl<'a> Operation<'a> for ChangeIndexed<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let (kind, lifetime) = match self.kind {
            Kind::Write(lifetime) => (WRITE, lifetime),
            Kind::Remove => (REMOVE, None),
        };
        let value_len = u32::try_from(self.value.len()).expect("a value of less than 4 GiB");
        let wire = ChangeWire {
            mutation: self.once.wire(self.target.wire(Opcode::ChangeIndexed)),
            lifetime_ms: lifetime_ms(lifetime),
            nodes: self.nodes.0.into(),
            kind,
            zeros: [0; 3],
            value_len: value_len.into(),
        };
        concat(out, &wire, self.key, self.value)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, rest) = split::<ChangeWire>(request, Opcode::ChangeIndexed)?;
        let (key, value) = split_key(rest, wire.value_len)?;
        let lifetime = lifetime_or_none(wire.lifetime_ms)?;
        let kind = match wire.kind {
            WRITE => Kind::Write(lifetime),
            REMOVE if lifetime.is_none() && value.is_empty() => Kind::Remove,
            _ => return Err(Status::BadFormat),
        };
        let (target, once) = (Target::parse(&wire.mutation.target)?, Once::parse(&wire.mutation));
        let nodes = TableId(wire.nodes.get());
        // Otherwise one change could have an object twice.
        if wire.zeros != [0; 3] || nodes == target.table {
            return Err(Status::BadFormat);
        }
        Ok(Self { target, once, nodes, kind, key, value })
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
        let Self { target, once, nodes, kind, key, value } = self;
        let change = match kind {
            Kind::Write(lifetime) => Change::Write(value, lifetime),
            Kind::Remove => Change::Remove,
        };
        let (mut edits, mut is_done) = (Edits::new(), false);
        let mutation = (target, once, key, change);
        let executed = mutation::execute_by(master, call, reply, mutation, |memory, mutation| {
            let outcome = memory.change_indexed(mutation, nodes, &mut edits);
            is_done = outcome.is_ok_and(|outcome| outcome.status == Status::Ok);
            outcome
        })?;
        master.counters.indexed_changes += u64::from(is_done);
        edits.iter().for_each(|&hash| master.count_access(nodes, hash));
        Ok(executed)
    }
}

impl<'a> ClientOperation<'a> for ChangeIndexed<'a> {
    type Args = (TableId, Kind);
    const HAS_TABLET: bool = true;
    const CHANGES: bool = true;

    fn new((nodes, kind): Self::Args, parts: Parts<'a>) -> Self {
        let Parts { target, once, key, value, .. } = parts;
        Self { target, once, nodes, kind, key, value }
    }

    fn completion(_: Self::Args, reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        version_alone(reply)
    }
}
