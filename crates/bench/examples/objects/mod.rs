//! A memory with objects, for the examples that measure parts of a server in one thread.

use sprat_proto::Instant;
use sprat_store::durability::TableDurability;
use sprat_store::message::data::{Once, Target};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::mutate::{Change, Mutation};
use sprat_store::objects::segment::SEGMENT_BYTES;
use sprat_store::objects::tablet::Tablet;
use sprat_store::types::{HashKey, LeaseId, ServerId, TableId, WallTime};
use sprat_sys::crc::crc32c;

const TABLE: TableId = TableId(1);
pub(crate) const ALL: Tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
pub(crate) const OWNER: ServerId = ServerId { index: 1, generation: 1 };
pub(crate) const KEY: HashKey = HashKey([1; 16]);

/// Returns an empty memory.
pub(crate) fn memory(bytes: u64) -> Memory {
    let mut log = Log::new(bytes, SEGMENT_BYTES, crc32c, false);
    log.set_server(1, OWNER);
    Memory::new(log)
}

/// Returns a memory with about `bytes` bytes in objects of `size`, and their number.
pub(crate) fn filled(size: usize, bytes: u64) -> (Memory, u64) {
    let mut memory = memory(2 * bytes);
    memory.tablets.take(ALL, KEY, TableDurability::Cluster).expect("the only tablet");
    memory.results.extend(LeaseId(1), Instant::NEVER);
    let target = Target { table: TABLE, ..Target::default() };
    let value = vec![7; size];
    let mut objects = 0;
    while memory.log.appended_bytes() < bytes {
        objects += 1;
        let once = Once { lease: LeaseId(1), rpc: objects, ack: objects - 1 };
        let Memory { results, log, .. } = &mut memory;
        results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let mut key = [0; 30];
        key[22..].copy_from_slice(&objects.to_be_bytes());
        let hash = memory.tablets.locate(TABLE, &key).expect("all hashes are owned");
        let change = Change::Write(&value, None);
        memory
            .mutate(&Mutation { target, once, key: &key, hash, change, wall: WallTime(0) })
            .expect("room");
    }
    (memory, objects)
}
