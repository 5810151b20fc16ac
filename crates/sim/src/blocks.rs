//! A simulated disk of blocks, under the kernel's page cache.
//!
//! ```text
//!  process ── write ─► cache ── a sync begins: changed blocks ─► in flight ── it ends ─► disk
//!               kill: the cache stays            power loss: the disk, and some of the rest
//! ```
//!
//! A loss of power keeps what a sync that has ended carried. Of each other changed block it keeps
//! the old or a newer version, or for each sector any of them: the disk writes blocks in any order,
//! and sectors as a whole.
//!
//! What the disk has may change by itself: bits rot, a sector cannot be read any more, a write goes
//! to the wrong place or nowhere. The cache hides that, unless the block was evicted.
//!
//! After a sync has failed, its blocks count as written although the disk does not have them, as in
//! Linux.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use sprat_proto::Rng;

/// The bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// The bytes of a sector, which a disk writes as a whole.
pub(crate) const SECTOR: usize = 512;
/// The share of changed blocks that the kernel writes to the disk between two syncs.
const WRITTEN_BACK_PPM: u32 = 100_000;

/// A simulated disk of blocks and its cache.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// The bytes that processes read and write.
    cache: Vec<u8>,
    /// The bytes that survive a loss of power.
    disk: Vec<u8>,
    /// The numbers of the blocks that were written since the last sync began.
    changed: BTreeSet<usize>,
    /// The syncs in progress: their numbers, and the blocks that they write.
    in_flight: VecDeque<(u64, BTreeMap<usize, Vec<u8>>)>,
    /// The blocks that the disk does not deliver. A write mends one.
    unreadable: BTreeSet<usize>,
}

fn range(block: usize, len: usize) -> Range<usize> {
    block * BLOCK..len.min((block + 1) * BLOCK)
}

impl Blocks {
    /// Returns a disk that holds these bytes.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { cache: bytes.clone(), disk: bytes, ..Self::default() }
    }

    /// Returns the bytes that a process reads.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.cache
    }

    /// Writes bytes to the cache.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.cache[at..at + bytes.len()].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.changed.extend(at / BLOCK..=(at + bytes.len() - 1) / BLOCK);
        }
    }

    /// Begins a sync, which writes all blocks as they are now.
    pub(crate) fn begin(&mut self, seq: u64) {
        let len = self.cache.len();
        let changed = std::mem::take(&mut self.changed);
        let blocks = changed.into_iter().map(|b| (b, self.cache[range(b, len)].to_vec()));
        self.in_flight.push_back((seq, blocks.collect()));
    }

    /// Ends all syncs up to this number: the disk has what they write.
    pub(crate) fn end(&mut self, seq: u64) {
        let len = self.disk.len();
        while let Some((_, blocks)) = self.in_flight.pop_front_if(|(number, _)| *number <= seq) {
            for (block, bytes) in blocks {
                self.disk[range(block, len)].copy_from_slice(&bytes);
                self.unreadable.remove(&block);
            }
        }
    }

    /// Writes some changed blocks to the disk, as the kernel does at any time.
    pub(crate) fn write_back(&mut self, rng: &mut Rng) {
        let len = self.disk.len();
        for block in std::mem::take(&mut self.changed) {
            if rng.chance(WRITTEN_BACK_PPM) {
                self.disk[range(block, len)].copy_from_slice(&self.cache[range(block, len)]);
                self.unreadable.remove(&block);
            } else {
                self.changed.insert(block);
            }
        }
    }

    /// Returns bytes as a direct read does, which brings them to the disk before. `None` if the
    /// disk does not deliver them.
    pub(crate) fn read_direct(&self, at: usize, bytes: usize) -> Option<Vec<u8>> {
        let len = self.disk.len();
        let mut read = Vec::with_capacity(bytes + BLOCK);
        for block in at / BLOCK..(at + bytes).div_ceil(BLOCK) {
            let is_newer = self.changed.contains(&block)
                || self.in_flight.iter().any(|(_, blocks)| blocks.contains_key(&block));
            if !is_newer && self.unreadable.contains(&block) {
                return None;
            }
            let from = if is_newer { &self.cache } else { &self.disk };
            read.extend_from_slice(&from[range(block, len)]);
        }
        Some(read[at % BLOCK..][..bytes].to_vec())
    }

    /// Replaces a block of the disk, unless a newer version is on its way. Returns false then.
    pub(crate) fn replace(&mut self, block: usize, bytes: &[u8], readable: bool) -> bool {
        let is_newer = self.changed.contains(&block)
            || self.in_flight.iter().any(|(_, blocks)| blocks.contains_key(&block));
        if !is_newer {
            let len = self.disk.len();
            self.disk[range(block, len)].copy_from_slice(bytes);
            if !readable {
                self.unreadable.insert(block);
            }
        }
        !is_newer
    }

    /// Forgets the cache of a block that the disk has, so that processes read what the disk has.
    pub(crate) fn evict(&mut self, block: usize) {
        let range = range(block, self.disk.len());
        self.cache[range.clone()].copy_from_slice(&self.disk[range]);
    }

    /// Returns the bytes of a block of the disk.
    pub(crate) fn on_disk(&self, block: usize) -> &[u8] {
        &self.disk[range(block, self.disk.len())]
    }

    /// Fails all syncs in progress.
    pub(crate) fn fail(&mut self) {
        self.in_flight.clear();
    }

    /// Handles the end of the process. The blocks of its syncs are still to be written.
    pub(crate) fn kill(&mut self) {
        for (_, blocks) in self.in_flight.drain(..) {
            self.changed.extend(blocks.into_keys());
        }
    }

    /// Handles a loss of power. Returns the number of blocks that were lost or torn.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) -> usize {
        let len = self.cache.len();
        let mut newer: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        for (_, blocks) in self.in_flight.drain(..) {
            for (block, bytes) in blocks {
                newer.entry(block).or_default().push(bytes);
            }
        }
        for block in std::mem::take(&mut self.changed) {
            newer.entry(block).or_default().push(self.cache[range(block, len)].to_vec());
        }
        // Some disks had written nearly everything, others nearly nothing.
        let kept_ppm = [100_000, 500_000, 900_000][rng.below(3) as usize];
        let mut lost = 0;
        for (block, mut versions) in newer {
            let (last, old) = (versions.len(), &mut self.disk[range(block, len)]);
            let newest = versions[last - 1].clone();
            versions.insert(0, old.to_vec());
            let draw = |rng: &mut Rng| match rng.chance(kept_ppm) {
                true => last,
                false => rng.below(last as u64 + 1) as usize,
            };
            if rng.chance(300_000) {
                for (sector, bytes) in old.chunks_mut(SECTOR).enumerate() {
                    let from = &versions[draw(rng)][sector * SECTOR..];
                    bytes.copy_from_slice(&from[..bytes.len()]);
                }
            } else {
                old.copy_from_slice(&versions[draw(rng)]);
            }
            lost += usize::from(*old != newest[..]);
            self.unreadable.remove(&block);
        }
        self.cache.copy_from_slice(&self.disk);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 2 * BLOCK;

    #[test]
    fn a_kill_loses_nothing_and_a_sync_survives_a_loss_of_power() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut blocks = Blocks::new(vec![0; BYTES]);
            blocks.write(BLOCK - 1, &[1, 1]);
            blocks.begin(1);
            blocks.write(BLOCK, &[2]);
            blocks.end(1);
            blocks.kill();
            assert_eq!(blocks.bytes()[BLOCK - 1..=BLOCK], [1, 2]);
            lost += blocks.lose_power(&mut Rng::seeded(seed));
            assert_eq!(blocks.bytes()[BLOCK - 1], 1);
            assert!([1, 2].contains(&blocks.bytes()[BLOCK]), "the old or the new version");
        }
        assert!((10..90).contains(&lost), "{lost}");
    }

    #[test]
    fn what_a_sync_in_progress_writes_may_be_lost_or_torn_between_sectors() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut blocks = Blocks::new(vec![0; BYTES]);
            blocks.write(0, &[1; BLOCK]);
            blocks.begin(1);
            blocks.kill();
            blocks.end(1);
            blocks.lose_power(&mut Rng::seeded(seed));
            let sectors: Vec<_> = blocks.bytes()[..BLOCK].chunks(SECTOR).collect();
            assert!(sectors.iter().all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            let new = sectors.iter().filter(|sector| sector[0] == 1).count();
            seen.insert(match new {
                0 => "lost",
                n if n == sectors.len() => "kept",
                _ => "torn",
            });
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["kept", "lost", "torn"]);
    }

    #[test]
    fn a_direct_read_sees_the_disk_and_what_is_on_its_way() {
        let mut blocks = Blocks::new(vec![0; BYTES]);
        blocks.write(5, &[1]);
        assert_eq!(blocks.read_direct(5, 1), Some(vec![1]), "it is written first");
        assert!(!blocks.replace(0, &[9; BLOCK], true), "the write comes later");
        blocks.begin(1);
        blocks.end(1);
        assert!(blocks.replace(0, &[9; BLOCK], true));
        assert_eq!((blocks.read_direct(5, 1), blocks.bytes()[5]), (Some(vec![9]), 1));
        blocks.evict(0);
        assert_eq!(blocks.bytes()[5], 9);
        assert!(blocks.replace(1, &[9; BLOCK], false));
        assert_eq!(blocks.read_direct(BLOCK - 1, 2), None);
        blocks.write(BLOCK, &[2]);
        blocks.begin(2);
        blocks.end(2);
        assert_eq!(blocks.read_direct(BLOCK - 1, 2), Some(vec![9, 2]));
    }

    #[test]
    fn what_a_failed_sync_was_to_write_is_in_the_cache_alone() {
        let mut blocks = Blocks::new(vec![0; BYTES]);
        blocks.write(0, &[1]);
        blocks.begin(1);
        blocks.fail();
        blocks.begin(2);
        blocks.end(2);
        assert_eq!(blocks.bytes()[0], 1);
        blocks.lose_power(&mut Rng::seeded(1));
        assert_eq!(blocks.bytes()[0], 0);
    }
}
