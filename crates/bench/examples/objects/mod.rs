//! A memory with objects, for the examples that measure parts of a server in one thread.

use sprat_proto::Instant;
use sprat_store::durability::TableDurability;
use sprat_store::message::Status;
use sprat_store::message::data::{Once, Target};
use sprat_store::objects::log::Log;
use sprat_store::objects::memory::Memory;
use sprat_store::objects::mutate::{Change, Mutation};
use sprat_store::objects::segment::SEGMENT_BYTES;
use sprat_store::objects::table::spread;
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
#[allow(dead_code, reason = "not for all of the examples")]
pub(crate) fn filled(size: usize, bytes: u64) -> (Memory, u64) {
    let mut memory = memory(2 * bytes);
    own_all(&mut memory);
    let value = vec![7; size];
    let mut objects = 0;
    while memory.log.appended_bytes() < bytes {
        objects += 1;
        write(&mut memory, objects, objects, &value).expect("room");
    }
    (memory, objects)
}

/// Lets the memory own all hashes of the table.
pub(crate) fn own_all(memory: &mut Memory) {
    memory.tablets.take(ALL, KEY, TableDurability::Cluster).expect("the only tablet");
    memory.results.extend(LeaseId(1), Instant::NEVER);
}

/// Writes the object `number` by the mutation `rpc`, as a server does.
#[inline]
pub(crate) fn write(
    memory: &mut Memory,
    rpc: u64,
    number: u64,
    value: &[u8],
) -> Result<(), Status> {
    let once = Once { lease: LeaseId(1), rpc, ack: rpc - 1 };
    let Memory { results, log, .. } = memory;
    results.check(Instant::ZERO, once, |at| log.dead_record(at));
    let key = key(number);
    let hash = memory.tablets.locate(TABLE, &key).expect("all hashes are owned");
    let target = Target { table: TABLE, ..Target::default() };
    let change = Change::Write(value, None);
    let mutation = Mutation { target, once, key: &key, hash, change, wall: WallTime(0) };
    memory.mutate(&mutation).map(drop)
}

/// Returns the key of the object `number`.
fn key(number: u64) -> [u8; 30] {
    let mut key = [0; 30];
    key[22..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the hash by which the hash table has the object `number`.
#[allow(dead_code, reason = "for one of the examples")]
pub(crate) fn hash(memory: &Memory, number: u64) -> u64 {
    spread(TABLE, memory.tablets.hash(TABLE, &key(number)).expect("all hashes are owned"))
}
