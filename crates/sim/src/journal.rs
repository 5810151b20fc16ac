//! The journal of a host's frames: a region of a simulated disk past the kernel's cache.
//!
//! A write that has ended is durable. A loss of power during a write leaves each sector as it was,
//! or new. A kill lets the write end.

use sprat_proto::Rng;
use sprat_proto::wire::checksum::crc32c;
use sprat_store::backup::{JournalContent, JournalWriter};

use crate::blocks::SECTOR;

/// The bytes of the region: a few batches fill it.
const BYTES: usize = 16 << 12;

/// The region of a journal, and the process's place in it.
#[derive(Debug)]
pub(crate) struct Region {
    disk: Vec<u8>,
    /// The write that the end of the process has left in progress.
    left: Option<(usize, Vec<u8>)>,
    /// The place of the next batch, while a process writes the journal.
    writer: Option<JournalWriter>,
}

impl Default for Region {
    fn default() -> Self {
        Self { disk: vec![0; BYTES], left: None, writer: None }
    }
}

impl Region {
    /// Returns the bytes of the region for a process that starts.
    pub(crate) fn start(&mut self) -> Vec<u8> {
        if let Some((at, bytes)) = self.left.take() {
            self.write(at, &bytes);
        }
        self.disk.clone()
    }

    /// Lets the process write the journal `number`, which has this content. A new one gets its
    /// first batch. Returns the number of the last batch.
    pub(crate) fn open(&mut self, number: u32, content: &JournalContent<'_>) -> u64 {
        self.writer = Some(JournalWriter::new(crc32c, number, BYTES as u64, content));
        if content.last == 0 {
            self.turn();
        }
        self.writer.as_ref().map_or(0, JournalWriter::last)
    }

    /// Returns the most bytes of a batch.
    pub(crate) fn most() -> usize {
        JournalWriter::most(BYTES as u64)
    }

    /// Returns true if the region has room for a batch.
    pub(crate) fn has_room(&self, batch: &[u8]) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.has_room(batch.len()))
    }

    /// Handles the end of a sync of the frames.
    pub(crate) fn synced(&mut self) {
        self.writer.iter_mut().for_each(JournalWriter::synced);
    }

    /// Begins at the start of the region again.
    pub(crate) fn turn(&mut self) {
        if let Some((at, block)) = self.mark() {
            self.write(at, &block);
        }
    }

    fn mark(&mut self) -> Option<(usize, Vec<u8>)> {
        let mut block = vec![0; 4096];
        let at = self.writer.as_mut()?.turn(&mut block);
        Some((at as usize, block))
    }

    /// Returns a batch as it goes to the disk, and the offset where.
    fn seal(&mut self, batch: &[u8]) -> Option<(usize, Vec<u8>)> {
        let mut bytes = batch.to_vec();
        bytes.resize(batch.len().next_multiple_of(4096), 0);
        let at = self.writer.as_mut()?.seal(&mut bytes, batch.len());
        Some((at as usize, bytes))
    }

    /// Writes a batch.
    pub(crate) fn append(&mut self, batch: &[u8]) {
        if let Some((at, bytes)) = self.seal(batch) {
            self.write(at, &bytes);
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.disk[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Handles the end of the process, which was writing this batch, or the mark.
    pub(crate) fn kill(&mut self, batch: Option<&[u8]>, mark: bool) {
        self.left = match batch {
            Some(batch) => self.seal(batch),
            None if mark => self.mark(),
            None => None,
        };
        self.writer = None;
    }

    /// Handles a loss of power.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        let Some((at, bytes)) = self.left.take() else { return };
        let kept_ppm = [0, 500_000, 900_000, 1_000_000][rng.below(4) as usize];
        let sectors = self.disk[at..at + bytes.len()].chunks_mut(SECTOR);
        for (sector, new) in sectors.zip(bytes.chunks(SECTOR)) {
            if rng.chance(kept_ppm) {
                sector.copy_from_slice(new);
            }
        }
    }
}
