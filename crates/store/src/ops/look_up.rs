//! The operation look-up: it returns the entries of a leaf of an index in a range, and those of
//! their objects that are on the same server.
//!
//! ```text
//! request   0 target | 32 query length u32 | 36 key of the leaf | query
//! reply     0 head | 4 version u64 of the leaf | 12 answer
//! ```
//!
//! [`crate::btree::leaf`] has query and answer. An object that is locked or has expired is left
//! out, so that the client reads it by itself.

use alloc::vec::Vec;

use arrayvec::ArrayVec;
use sprat_proto::rpc::Message;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::operation::{Call, ClientOperation, Executed, Operation, Parts, Reply};
use super::write::split_key;
use crate::btree::leaf::{Answer, MOST_OBJECTS, Query};
use crate::btree::{COPIES, catalog_key};
use crate::master::Master;
use crate::message::data::{self, Refusal, Target, TargetWire, concat, split};
use crate::message::{Opcode, Status};
use crate::objects::cache;
use crate::objects::locks::Access;
use crate::objects::memory::{self, Memory};
use crate::objects::table::spread;
use crate::objects::tablet::Tablets;
use crate::types::{KeyHash, TableId, Version, WallTime};

/// A request to look up entries of a leaf, with their objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookUp<'a> {
    /// The table of the leaf.
    pub target: Target,
    /// The key of the leaf.
    pub key: &'a [u8],
    /// The range of the look-up, and the table of the objects.
    pub query: &'a [u8],
}

/// The fixed part of a look-up.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LookUpWire {
    target: TargetWire,
    query_len: U32,
}

impl<'a> Operation<'a> for LookUp<'a> {
    #[inline]
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let query_len = u32::try_from(self.query.len()).expect("a query of less than 4 GiB");
        let wire =
            LookUpWire { target: self.target.wire(Opcode::LookUp), query_len: query_len.into() };
        concat(out, &wire, self.key, self.query)
    }

    #[inline]
    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, rest) = split::<LookUpWire>(request, Opcode::LookUp)?;
        let (key, query) = split_key(rest, wire.query_len)?;
        Ok(Self { target: Target::parse(&wire.target)?, key, query })
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
        let Self { target: Target { cluster, table, .. }, key, query } = self;
        master.membership.check(call.now, cluster)?;
        memory::check_sizes(key, &[])?;
        let query = Query::parse(query)?;
        let hash = master.locate(table, key)?;
        let wall = master.wall.at(call.now);
        let memory @ Memory { log, tablets, transactions, .. } = &master.memory;
        if transactions.is_locked(table, hash, Access::Read) {
            return Err(Status::Locked);
        }
        let here = copy_here(tablets, table, query.copy);
        if here.is_some_and(|(_, hash)| transactions.is_locked(table, hash, Access::Read)) {
            return Err(Status::Locked);
        }
        let Some((_, at)) = memory.find(table, hash, key) else {
            let head = data::result_head(Status::ObjectDoesntExist, Version(0));
            reply.bytes.extend_from_slice(&head);
            return Ok(Executed::Read { table, durable: false });
        };
        let leaf = log.object(at);
        // Finding an entry would miss the cache several times, one after the other.
        cache::load(leaf.value);
        let mut durable = log.is_durable(at);
        let catalog = here.and_then(|(copy, hash)| {
            let (_, at) = memory.find(table, hash, &catalog_key(copy))?;
            durable &= log.is_durable(at);
            Some((copy, log.object(at).version))
        });
        let (Some(picked), Some(catalog)) = (query.pick(leaf.value), catalog) else {
            reply.bytes.extend_from_slice(&data::result_head(Status::Ok, leaf.version));
            reply.bytes.extend_from_slice(&Answer::ELSEWHERE);
            return Ok(Executed::Read { table, durable });
        };
        let points = picked.points.iter().take(MOST_OBJECTS);
        let mut hashes = ArrayVec::<Option<KeyHash>, MOST_OBJECTS>::new();
        hashes.extend(points.map(|point| tablets.locate(query.table, point.object)));
        if hashes.len() > 1 {
            let mut positions = ArrayVec::<u64, MOST_OBJECTS>::new();
            positions.extend(hashes.iter().flatten().map(|&hash| spread(query.table, hash)));
            memory.load(&positions);
        }
        let mut read = ArrayVec::<KeyHash, MOST_OBJECTS>::new();
        let object = |i: usize| {
            let hash = hashes[i]?;
            if transactions.is_locked(query.table, hash, Access::Read) {
                return None;
            }
            let (_, at) = memory.find(query.table, hash, picked.points[i].object)?;
            let object = log.object(at);
            if object.expires != WallTime::NEVER && object.expires <= wall {
                return None;
            }
            durable &= log.is_durable(at);
            read.push(hash);
            Some((object.version, object.value))
        };
        reply.bytes.extend_from_slice(&data::result_head(Status::Ok, leaf.version));
        picked.answer(catalog, object, &mut reply.bytes);
        master.counters.look_ups += 1;
        read.iter().for_each(|&hash| master.count_access(query.table, hash));
        Ok(Executed::Read { table, durable })
    }
}

/// Returns the first copy of the catalog, from `first` on, whose tablet is here, and its hash.
fn copy_here(tablets: &Tablets, table: TableId, first: u8) -> Option<(u8, KeyHash)> {
    (0..COPIES).map(|i| (first + i) % COPIES).find_map(|copy| {
        let hash = tablets.locate(table, &catalog_key(copy))?;
        Some((copy, hash))
    })
}

impl<'a> ClientOperation<'a> for LookUp<'a> {
    type Args = ();
    const HAS_TABLET: bool = true;
    const CHANGES: bool = false;

    #[inline]
    fn new((): (), parts: Parts<'a>) -> Self {
        Self { target: parts.target, key: parts.key, query: parts.value }
    }

    #[inline]
    fn completion((): (), reply: &[u8]) -> Result<Reply, Refusal<'_>> {
        let (version, answer) = data::versioned(reply)?;
        Ok(Reply::Object { version, value: reply.len() - answer.len() })
    }
}
