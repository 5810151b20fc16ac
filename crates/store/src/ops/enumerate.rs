//! The operation enumerate: it lists the objects of a tablet, some at a time. An object that does
//! not change meanwhile is listed once.
//!
//! ```text
//! request   0 head | 4 limit u32 | 8 cluster u64 | 16 table u64 | 24 first u64 | 32 last u64
//!          40 cursor u64
//! reply     see message/list.rs
//! ```

use alloc::vec::Vec;

use sprat_proto::rpc::Message;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use crate::master::Master;
use crate::message::data::{Refusal, concat, split};
use crate::message::list::{objects_head, objects_reply};
use crate::message::{Opcode, Status, VERSION};
use crate::objects::tablet::Tablet;
use crate::types::TableId;

/// The most bytes of objects in one reply to an enumeration, apart from a last large value.
const MOST_BYTES: usize = 64 << 10;

/// A request for some objects of a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enumerate {
    /// The id of the cluster that the client means.
    pub cluster: u64,
    /// The table whose tablet the client enumerates.
    pub table: TableId,
    /// The first key hash of the tablet to enumerate.
    pub first: u64,
    /// The last key hash of the tablet to enumerate.
    pub last: u64,
    /// The position of the enumeration in the tablet: 0 at the start, then the one in the last
    /// reply.
    pub cursor: u64,
    /// The approximate number of bytes of objects to send. The master has a limit of its own.
    pub limit_bytes: u32,
}

/// A range of key hashes to enumerate, from a position on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    /// The first key hash of the range.
    pub first: u64,
    /// The last key hash that the range may have.
    pub limit: u64,
    /// The last key hash of the range in the tablet that the request was sent to.
    pub last: u64,
    /// The position of the enumeration in the range, as a master gave it.
    pub within: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EnumerateWire {
    version: u8,
    opcode: u8,
    zero: U16,
    limit_bytes: U32,
    cluster: U64,
    table: U64,
    first: U64,
    last: U64,
    cursor: U64,
}

impl<'a> Operation<'a> for Enumerate {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let wire = EnumerateWire {
            version: VERSION,
            opcode: Opcode::Enumerate as u8,
            zero: U16::ZERO,
            limit_bytes: self.limit_bytes.into(),
            cluster: self.cluster.into(),
            table: self.table.0.into(),
            first: self.first.into(),
            last: self.last.into(),
            cursor: self.cursor.into(),
        };
        concat(out, &wire, &[], &[])
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, rest) = split::<EnumerateWire>(request, Opcode::Enumerate)?;
        if !rest.is_empty() || wire.first > wire.last {
            return Err(Status::BadFormat);
        }
        Ok(Self {
            cluster: wire.cluster.get(),
            table: TableId(wire.table.get()),
            first: wire.first.get(),
            last: wire.last.get(),
            cursor: wire.cursor.get(),
            limit_bytes: wire.limit_bytes.get(),
        })
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        master.counters.enumerations += 1;
        master.membership.check(call.now, self.cluster)?;
        let tablet = Tablet { table: self.table, first: self.first, last: self.last };
        if !master.memory.tablets.owns(tablet) {
            return Err(Status::UnknownTablet);
        }
        let limit = MOST_BYTES.min(self.limit_bytes as usize);
        let wall = master.wall(call.now);
        let listing = master.memory.enumerate(tablet, self.cursor, limit, wall);
        if listing.locked {
            return Err(Status::Locked);
        }
        // The list says that they are gone, and no later reply may say otherwise.
        for &(hash, at) in &listing.expired {
            if let Some(place) = master.memory.table.place(hash, at) {
                master.expire(call.now, place, at)?;
            }
        }
        reply.bytes.extend_from_slice(&objects_head(listing.count, listing.next));
        reply.bytes.extend_from_slice(&listing.bytes);
        if let Some((at, len)) = listing.large {
            reply.slices.push(master.memory.log.lend(at, len).ok_or(Status::Retry)?);
        }
        // Some of the objects may be newer than the durable part of the log.
        Ok(Executed::Read { table: self.table, durable: false })
    }
}

impl<'a> ClientOperation<'a> for Enumerate {
    type Args = Scan;
    const HAS_TABLET: bool = true;
    const CHANGES: bool = false;

    fn new(scan: Scan, parts: Parts<'a>) -> Self {
        let Scan { first, last, within, .. } = scan;
        Self {
            cluster: parts.target.cluster,
            table: parts.target.table,
            first,
            last,
            cursor: within,
            limit_bytes: parts.page_bytes,
        }
    }

    fn completion(_: Scan, reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        Ok(Reply::Objects { next: objects_reply(reply)?.next })
    }
}
