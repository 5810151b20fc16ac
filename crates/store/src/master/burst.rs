//! Loads the memory that a burst of requests needs into the processor's cache, before the first of
//! them is executed.
//!
//! A request costs a chain of cache misses: the line of the hash table, then the object in the log.
//! One at a time, their latencies add up. A master that knows a whole burst overlaps them: it reads
//! the table lines of all requests, then the first cache lines of all objects, and executes the
//! requests after that ([`Memory::load`]). The reads have no other effect.

use crate::objects::memory::Memory;
use crate::objects::table::spread;
use crate::types::TableId;

/// The most requests of a burst whose memory is loaded into the cache.
const MOST: usize = 64;
/// The number of objects up to which a burst loads nothing ahead: their table lines and small
/// values, 256 bytes each, stay in the processor's second-level cache.
const CACHED: u64 = 4096;

/// The key hashes of a burst's announced requests, by which the hash table finds their objects.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    hashes: [u64; MOST],
    pub(super) len: usize,
}

impl Default for Burst {
    fn default() -> Self {
        Self { hashes: [0; MOST], len: 0 }
    }
}

impl Burst {
    /// Returns true if loading the objects of `memory` ahead pays, since it has more of them than
    /// the processor's cache holds.
    #[inline]
    pub(super) fn pays(memory: &Memory) -> bool {
        memory.table.len() > CACHED
    }

    /// Announces a request for an object.
    #[inline]
    pub(super) fn expect(&mut self, memory: &Memory, table: TableId, key: &[u8]) {
        if self.len < MOST
            && let Some(hash) = memory.tablets.locate(table, key)
        {
            self.hashes[self.len] = spread(table, hash);
            self.len += 1;
        }
    }

    /// Reads the table lines and the objects of all announced requests and forgets the requests.
    pub(super) fn prefetch(&mut self, memory: &Memory) {
        memory.load(&self.hashes[..self.len]);
        self.len = 0;
    }
}
