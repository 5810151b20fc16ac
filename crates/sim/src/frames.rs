//! The frames of a host's replicas, which outlive its processes.
//!
//! A process has a copy of their bytes while it runs, and each of its writes goes to the host's
//! disk of blocks. The end of the process leaves all of them, a loss of power what the disk has.
//! The disk has a region for their journal, too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprat_proto::Rng;
use sprat_proto::wire::checksum::crc32c;
use sprat_store::backup::{
    Block, FlatFrames, Frames, Journal, JournalContent, SLOTS, Slot, Storage, flat_bytes, replay,
    set_journal,
};
use sprat_store::durability::Durability;

use crate::blocks::Blocks;
use crate::journal::Region;

/// The bytes from the start of a header to its next slot, and to the bytes of the frame.
const SLOT_STEP: usize = 2048;
const HEADER: usize = 4096;
/// The number of the journal.
const NUMBER: u32 = 7;

/// The frames of one host.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// `None` until the first process makes the frames.
    blocks: Option<Blocks>,
    journal: Region,
    /// The write to the disk that is in progress.
    flight: Option<Flight>,
    lent: bool,
    failed: bool,
    /// The number of losses of power.
    boots: u64,
}

/// A write to a host's disk.
#[derive(Debug)]
enum Flight {
    /// A sync of the frames.
    Sync,
    /// A write of a batch to the journal.
    Append(Vec<u8>),
    /// A sync of the frames, the mark, and then a write of a batch to the start of the journal.
    Turn(Vec<u8>),
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
    /// new ones of `size` bytes. With [`Durability::Disk`] they have a journal.
    ///
    /// # Panics
    /// Another process has them.
    #[must_use]
    pub fn frames(&self, size: u32, count: u32, durability: Durability) -> KeptFrames {
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
        let mut frames = KeptFrames { frames, kept: self.clone() };
        if durability == Durability::Disk {
            self.open_journal(&mut frames);
        }
        frames
    }

    /// Brings what the journal has into the frames, and opens it.
    fn open_journal(&self, frames: &mut KeptFrames) {
        let header = frames.frames.file_header();
        let region = self.state().journal.start();
        let content = JournalContent::parse(crc32c, header.journal, header.batches, &region);
        let mut journal = replay(crc32c, frames, &content);
        self.sync();
        let last = self.state().journal.open(NUMBER, &content);
        set_journal(crc32c, frames, NUMBER, last);
        self.sync();
        journal.begin(Region::most());
        frames.frames.set_journal(journal);
    }

    fn sync(&self) {
        self.change(|blocks| {
            blocks.begin(0);
            blocks.end(0);
        });
    }

    /// Returns a number of this run of the host's machine.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.state().boots
    }

    /// Begins a write of a batch to the journal, or a sync of all that was written to the frames.
    pub(crate) fn begin_sync(&self, seq: u64, batch: Option<Vec<u8>>) {
        let mut state = self.state();
        let (flight, syncs) = match batch {
            Some(batch) if state.journal.has_room(&batch) => (Flight::Append(batch), false),
            Some(batch) => (Flight::Turn(batch), true),
            None => (Flight::Sync, true),
        };
        if let Some(blocks) = &mut state.blocks {
            match syncs {
                true => blocks.begin(seq),
                false => blocks.write_back(&mut Rng::seeded(seq)),
            }
        }
        state.flight = Some(flight);
    }

    /// Ends the write to the disk with this number.
    pub(crate) fn end_sync(&self, seq: u64) {
        self.change(|blocks| blocks.end(seq));
        let mut state = self.state();
        match state.flight.take() {
            None => {}
            Some(Flight::Sync) => state.journal.synced(),
            Some(Flight::Append(batch)) => state.journal.append(&batch),
            Some(Flight::Turn(batch)) => {
                state.journal.turn();
                state.journal.append(&batch);
            }
        }
    }

    /// Fails the syncs in progress, and the frames for the process that has them.
    pub(crate) fn fail_syncs(&self) {
        self.change(Blocks::fail);
        let mut state = self.state();
        (state.failed, state.flight) = (true, None);
    }

    /// Handles the end of the process.
    pub(crate) fn kill(&self, rng: &mut Rng) {
        let mut state = self.state();
        let State { blocks, journal, flight, .. } = &mut *state;
        match flight.take() {
            None | Some(Flight::Sync) => journal.kill(None, false),
            Some(Flight::Append(batch)) => journal.kill(Some(&batch), false),
            // It has three parts, one after the other.
            Some(Flight::Turn(batch)) => match rng.below(3) {
                0 => journal.kill(None, false),
                part => {
                    blocks.iter_mut().for_each(|blocks| blocks.end(u64::MAX));
                    if part == 2 {
                        journal.turn();
                    }
                    journal.kill((part == 2).then_some(&batch[..]), part == 1);
                }
            },
        }
        blocks.iter_mut().for_each(Blocks::kill);
    }

    /// Handles a loss of power. No process has the frames.
    pub(crate) fn lose_power(&self, rng: &mut Rng) {
        let mut state = self.state();
        state.journal.lose_power(rng);
        if let Some(blocks) = &mut state.blocks {
            blocks.lose_power(rng);
        }
        state.boots += 1;
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

    fn journal(&self) -> Option<&Journal> {
        self.frames.journal()
    }
}
