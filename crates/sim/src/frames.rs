//! The frames of a host's replicas, which outlive its processes.
//!
//! A process has a copy of their bytes while it runs, and each of its writes goes to the host's
//! disk of blocks. The end of the process leaves all of them, a loss of power what the disk has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprat_proto::Rng;
use sprat_proto::wire::checksum::crc32c;
use sprat_store::backup::{Block, FlatFrames, Frames, SLOTS, Slot, Storage, flat_bytes};

use crate::blocks::Blocks;

/// The bytes from the start of a header to its next slot, and to the bytes of the frame.
const SLOT_STEP: usize = 2048;
const HEADER: usize = 4096;

/// The frames of one host.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// `None` until the first process makes the frames.
    blocks: Option<Blocks>,
    lent: bool,
    failed: bool,
    /// The number of losses of power.
    boots: u64,
}

/// The bytes of the frames of one host, while a process has them.
#[derive(Debug)]
struct Lent {
    bytes: Vec<u8>,
    kept: Kept,
}

/// Frames whose writes go to a simulated disk.
#[derive(Debug)]
pub struct KeptFrames {
    frames: FlatFrames<Lent>,
    kept: Kept,
}

impl Kept {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Blocks)) {
        if let Some(blocks) = &mut self.state().blocks {
            change(blocks);
        }
    }

    /// Returns the frames of the host for a process that starts: those that were left, or `count`
    /// new ones of `size` bytes.
    ///
    /// # Panics
    /// Another process has them.
    #[must_use]
    pub fn frames(&self, size: u32, count: u32) -> KeptFrames {
        let mut state = self.state();
        assert!(!state.lent, "another process has the frames");
        (state.lent, state.failed) = (true, false);
        let left = state.blocks.as_ref().map(|blocks| blocks.bytes().to_vec());
        drop(state);
        let lend = |bytes| Lent { bytes, kept: self.clone() };
        let is_new = left.is_none();
        let frames = match left {
            None => {
                let zeros = vec![0; flat_bytes(size, count) as usize];
                FlatFrames::format(crc32c, lend(zeros), size, count)
            }
            Some(bytes) => FlatFrames::open(crc32c, lend(bytes), count),
        };
        let frames = frames.expect("a process that ends leaves frames");
        if is_new {
            let mut bytes = vec![0; flat_bytes(size, count) as usize];
            for (slot, header) in frames.header(Block::File).into_iter().flatten().enumerate() {
                let at = slot * SLOT_STEP;
                bytes[at..at + header.len()].copy_from_slice(header);
            }
            self.state().blocks = Some(Blocks::new(bytes));
        }
        KeptFrames { frames, kept: self.clone() }
    }

    /// Returns a number of this run of the host's machine.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.state().boots
    }

    /// Begins a sync of all that was written.
    pub(crate) fn begin_sync(&self, seq: u64) {
        self.change(|blocks| blocks.begin(seq));
    }

    /// Ends the syncs up to this number.
    pub(crate) fn end_sync(&self, seq: u64) {
        self.change(|blocks| blocks.end(seq));
    }

    /// Fails the syncs in progress, and the frames for the process that has them.
    pub(crate) fn fail_syncs(&self) {
        self.change(Blocks::fail);
        self.state().failed = true;
    }

    /// Handles the end of the process.
    pub(crate) fn kill(&self) {
        self.change(Blocks::kill);
    }

    /// Handles a loss of power. No process has the frames.
    pub(crate) fn lose_power(&self, rng: &mut Rng) {
        self.change(|blocks| {
            blocks.lose_power(rng);
        });
        self.state().boots += 1;
    }
}

impl Storage for Lent {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn reserve(&mut self, end: usize) -> bool {
        end <= self.bytes.len()
    }

    fn has_failed(&self) -> bool {
        self.kept.state().failed
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.kept.state().lent = false;
    }
}

impl KeptFrames {
    /// Returns the offset of a header.
    fn at(&self, block: Block) -> usize {
        match block {
            Block::File => 0,
            Block::Frame(frame) => flat_bytes(self.frames.size(), frame) as usize,
        }
    }
}

impl Frames for KeptFrames {
    fn count(&self) -> u32 {
        self.frames.count()
    }

    fn size(&self) -> u32 {
        self.frames.size()
    }

    fn open(&mut self, frame: u32) -> bool {
        self.frames.open(frame)
    }

    fn write(&mut self, frame: u32, offset: u32, bytes: &[u8]) {
        let at = self.at(Block::Frame(frame)) + HEADER + offset as usize;
        self.kept.change(|blocks| blocks.write(at, bytes));
        self.frames.write(frame, offset, bytes);
    }

    fn bytes(&self, frame: u32) -> &[u8] {
        self.frames.bytes(frame)
    }

    fn free(&mut self, frame: u32) {
        self.frames.free(frame);
    }

    fn header(&self, block: Block) -> Option<[&Slot; SLOTS]> {
        self.frames.header(block)
    }

    fn write_header(&mut self, block: Block, slot: usize, bytes: &Slot) {
        let at = self.at(block) + slot * SLOT_STEP;
        self.kept.change(|blocks| blocks.write(at, bytes));
        self.frames.write_header(block, slot, bytes);
    }

    fn has_failed(&self) -> bool {
        self.frames.has_failed()
    }
}
