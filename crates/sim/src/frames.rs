//! The frames of a host's replicas, which outlive its processes.
//!
//! A process has a copy of their bytes while it runs, and each of its writes goes to the host's
//! disk of blocks. The end of the process leaves all of them, a loss of power what the disk has.
//! The disk has a region for their journal, too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprat_proto::Rng;
use sprat_proto::wire::checksum::crc32c;
use sprat_store::backup::{
    Block, Condition, FlatFrames, Found, FrameHeader, Frames, Held, Journal, JournalContent,
    SLOT_BYTES, SLOTS, Slot, Storage, flat_bytes, flat_slots, replay, set_journal, verify,
};
use sprat_store::durability::Durability;

use crate::blocks::{BLOCK, Blocks};
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
    /// The size of a frame and the number of frames.
    shape: (u32, u32),
    /// The blocks that were evicted from the cache and that the process has to read again.
    evicted: Vec<usize>,
}

/// Returns the frame that has a block behind the first one of the file, and the number of the block
/// within the frame. The first block of a frame is its header.
fn place(size: u32, block: usize) -> (u32, usize) {
    let stride = 1 + size as usize / BLOCK;
    (((block - 1) / stride) as u32, (block - 1) % stride)
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
    /// The outcome of the last verification.
    verified: Option<Condition>,
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
        state.evicted.clear();
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
        self.state().shape = (frames.size(), frames.count());
        let mut frames = KeptFrames { frames, kept: self.clone(), verified: None };
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

    /// Returns the condition of the replica in a frame that has to have this header, on the disk.
    fn condition(&self, header: &FrameHeader) -> Option<Condition> {
        let state = self.state();
        let (blocks, held) = (state.blocks.as_ref()?, header.replica?);
        let at = flat_bytes(state.shape.0, header.frame) as usize;
        let block = blocks.read_direct(at, HEADER);
        let slots = block.as_deref().and_then(|block| flat_slots(block, 0));
        let bytes = blocks.read_direct(at + HEADER, held.len as usize);
        Some(verify(crc32c, header, slots, bytes.as_deref()))
    }

    /// Returns the closed replicas that the disk has as their headers name them.
    #[must_use]
    pub fn sound(&self) -> Vec<Held> {
        let (_, count) = self.state().shape;
        let sound = |frame| {
            let state = self.state();
            let at = flat_bytes(state.shape.0, frame) as usize;
            let block = state.blocks.as_ref()?.read_direct(at, HEADER)?;
            drop(state);
            let found = FrameHeader::parse(crc32c, frame, flat_slots(&block, 0)?);
            let Found::Header(header) = found else { return None };
            let held = header.replica.filter(|held| held.closed)?;
            (self.condition(&header) == Some(Condition::Sound)).then_some(held)
        };
        (0..count).filter_map(sound).collect()
    }

    /// Damages a frame on the disk: a bit rots, perhaps in a slot of the header, a block cannot be
    /// read, is that of another frame, or was never written, or the frame is another one as a
    /// whole. Half of the time processes see it at once. Returns false if there is nothing to
    /// damage.
    pub fn damage(&self, rng: &mut Rng) -> bool {
        let mut state = self.state();
        let (size, count) = state.shape;
        let Some(blocks) = &mut state.blocks else { return false };
        let stride = 1 + size as usize / BLOCK;
        let of = |frame: u64| 1 + frame as usize * stride;
        let is_used = |frame: &u64| {
            let slots = flat_slots(blocks.on_disk(of(*frame)), 0)?;
            FrameHeader::parse(crc32c, *frame as u32, slots).header()?.replica
        };
        let used: Vec<_> = (0..u64::from(count)).filter(|f| is_used(f).is_some()).collect();
        let any = |rng: &mut Rng| match used.len() as u64 {
            n if n > 0 && rng.chance(900_000) => used[rng.below(n) as usize],
            _ => rng.below(u64::from(count)),
        };
        let (to, from) = (any(rng), any(rng));
        let within = rng.below(stride as u64) as usize;
        let kind = rng.below(6);
        let which = match kind {
            0 => 0..stride,
            5 => 0..1,
            _ => within..within + 1,
        };
        let evict = rng.chance(500_000);
        let mut evicted = Vec::new();
        for within in which {
            let block = of(to) + within;
            let mut bytes = blocks.on_disk(block).to_vec();
            match kind {
                0 | 1 => bytes.copy_from_slice(blocks.on_disk(of(from) + within)),
                2 => bytes.fill(0),
                3 => bytes[rng.below(BLOCK as u64) as usize] ^= 1 << rng.below(8),
                5 => {
                    let slot = rng.below(SLOTS as u64) as usize * SLOT_STEP;
                    bytes[slot + rng.below(SLOT_BYTES as u64) as usize] ^= 1 << rng.below(8);
                }
                _ => bytes.iter_mut().for_each(|byte| *byte = rng.u64() as u8),
            }
            if blocks.replace(block, &bytes, kind != 4) && evict {
                blocks.evict(block);
                evicted.push(block);
            }
        }
        state.evicted.extend(evicted);
        true
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

    fn delivers(&self, _: usize, _: usize) -> bool {
        true
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn reserve(&mut self, end: usize) -> bool {
        end <= self.bytes.len()
    }

    fn verify(&mut self, _: u64, _: &FrameHeader) -> bool {
        false
    }

    fn verified(&mut self) -> Option<Condition> {
        None
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

    /// Takes what the disk has of blocks that were evicted from the cache.
    fn read_evicted(&mut self) {
        let evicted = std::mem::take(&mut self.kept.state().evicted);
        for block in evicted {
            let state = self.kept.state();
            let Some(blocks) = &state.blocks else { return };
            let bytes = blocks.bytes()[block * BLOCK..][..BLOCK].to_vec();
            drop(state);
            let (frame, within) = place(self.frames.size(), block);
            if within > 0 {
                let _ = self.frames.write(frame, ((within - 1) * BLOCK) as u32, &bytes);
                continue;
            }
            for slot in 0..SLOTS {
                let slot_bytes = bytes[slot * SLOT_STEP..].first_chunk().expect("a whole block");
                self.frames.write_header(Block::Frame(frame), slot, slot_bytes);
            }
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
        self.read_evicted();
        self.frames.open(frame)
    }

    fn write(&mut self, frame: u32, offset: u32, bytes: &[u8]) -> bool {
        self.read_evicted();
        let at = self.at(Block::Frame(frame)) + HEADER + offset as usize;
        self.kept.change(|blocks| blocks.write(at, bytes));
        self.frames.write(frame, offset, bytes)
    }

    fn bytes(&self, frame: u32) -> &[u8] {
        self.frames.bytes(frame)
    }

    fn delivers(&self, frame: u32, offset: u32, len: u32) -> bool {
        self.frames.delivers(frame, offset, len)
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

    fn verify(&mut self, header: &FrameHeader) -> bool {
        self.read_evicted();
        self.verified = self.kept.condition(header);
        self.verified.is_some()
    }

    fn verified(&mut self) -> Option<Condition> {
        self.verified.take()
    }

    fn has_failed(&self) -> bool {
        self.frames.has_failed()
    }

    fn journal(&self) -> Option<&Journal> {
        self.frames.journal()
    }
}
