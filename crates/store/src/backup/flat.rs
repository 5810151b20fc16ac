//! Frames in bytes that outlive the process, such as a mapped file.
//!
//! ```text
//!  0      4096          8192                 8192 + size
//!  | all  | of frame 0  | bytes of frame 0   | of frame 1 | bytes of frame 1 | ...
//! ```
//!
//! The storage takes room for a frame when that is first opened. A header takes a block of 4096
//! bytes. Its slots are at the offsets 0 and 2048 of the block: a disk writes them in different
//! sectors.

use alloc::collections::BTreeSet;
use core::fmt::Debug;

use sprat_proto::wire::checksum::Crc32c;

use super::{
    Block, Condition, FileHeader, Found, FrameHeader, Frames, Journal, SLOT_BYTES, SLOTS, Slot,
};
use crate::objects::segment::{MAX_SEGMENTS, SEGMENT_BYTES};

/// The bytes of a header's block.
pub const BLOCK: usize = 4096;
/// The distance of two slots of a header.
const STEP: usize = BLOCK / SLOTS;
/// A slot that was never written.
const NONE: Slot = [0; SLOT_BYTES];

/// Bytes that outlive the process.
pub trait Storage: Debug + Send {
    /// Returns all bytes.
    fn bytes(&self) -> &[u8];

    /// Returns true if the device delivers the `len` bytes at the offset `at`, so that they may be
    /// read in [`Storage::bytes`]. A read of other ones may end the process.
    fn delivers(&self, at: usize, len: usize) -> bool;

    /// Writes bytes at the offset `at`. They end within the bytes there are. Returns false if they
    /// may not be there, because of an error of the device.
    fn write(&mut self, at: usize, bytes: &[u8]) -> bool;

    /// Takes room for all bytes below `end`, so that no write there fails for lack of it. Returns
    /// false if there is none.
    fn reserve(&mut self, end: usize) -> bool;

    /// Begins to verify on the device the replica in the frame whose header, which has to be this
    /// one, is in the block at the offset `at`. Returns false if that is not possible.
    fn verify(&mut self, at: u64, header: &FrameHeader) -> bool;

    /// Returns the outcome of the verification, once it has ended.
    fn verified(&mut self) -> Option<Condition>;

    /// Returns true if what was written may be lost, because of an error of the device.
    fn has_failed(&self) -> bool;
}

/// The reason why bytes are no frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// The bytes begin with something else, or with an unknown format.
    Foreign,
    /// There are fewer bytes than the header says: this many are needed.
    Short(u64),
    /// The header names frames of this size, which no server uses.
    Size(u32),
    /// The storage has no room for the frames that are in use. A copy of a file lacks the room
    /// that the file had for what was not written yet.
    NoRoom,
}

/// Frames in bytes that outlive the process.
#[derive(Debug)]
pub struct FlatFrames<S> {
    storage: S,
    header: FileHeader,
    journal: Option<Journal>,
    /// The frames whose headers the device does not deliver.
    unreadable: BTreeSet<u32>,
}

/// Returns the offset of the header of a frame, if the frames have `size` bytes. The bytes of the
/// frame follow [`BLOCK`] bytes later.
#[must_use]
pub fn flat_offset(size: u32, frame: u32) -> u64 {
    flat_bytes(size, 0) + u64::from(frame) * (BLOCK as u64 + u64::from(size))
}

/// Returns the number of bytes that `count` frames of `size` bytes take with their headers.
#[must_use]
pub fn flat_bytes(size: u32, count: u32) -> u64 {
    let frame = BLOCK as u64 + u64::from(size);
    BLOCK as u64 + u64::from(count.min(MAX_SEGMENTS)) * frame
}

impl<S: Storage> FlatFrames<S> {
    /// Makes `count` frames of `size` bytes in storage whose bytes are all zero. If the process
    /// ends before that is done, the storage is still all zero, or is made.
    ///
    /// # Errors
    /// The storage is too short, or no server uses frames of that size.
    pub fn format(crc32c: Crc32c, mut storage: S, size: u32, count: u32) -> Result<Self, Unusable> {
        let count = count.min(MAX_SEGMENTS);
        let header = FileHeader { frame_bytes: size, count, sequence: 1, ..FileHeader::default() };
        check(&storage, &header)?;
        if !storage.reserve(BLOCK) {
            return Err(Unusable::NoRoom);
        }
        put(&mut storage, crc32c, &header);
        Ok(Self { storage, header, journal: None, unreadable: BTreeSet::new() })
    }

    /// Returns the frames in these bytes. If there are fewer than `count` and the storage has room
    /// for more, adds the others. Their bytes are all zero.
    ///
    /// # Errors
    /// The bytes are no frames.
    pub fn open(crc32c: Crc32c, mut storage: S, count: u32) -> Result<Self, Unusable> {
        let Found::Header(mut header) = header(crc32c, storage.bytes()) else {
            return Err(Unusable::Foreign);
        };
        check(&storage, &header)?;
        let room = storage.bytes().len().saturating_sub(BLOCK)
            / (BLOCK + header.frame_bytes as usize).max(1);
        let count = count.min(MAX_SEGMENTS).min(room as u32);
        if count > header.count {
            (header.count, header.sequence) = (count, header.sequence + 1);
            put(&mut storage, crc32c, &header);
        }
        let mut this = Self { storage, header, journal: None, unreadable: BTreeSet::new() };
        let is_there = |frame: &u32| this.storage.delivers(this.at(Block::Frame(*frame)), BLOCK);
        this.unreadable = (0..header.count).filter(|frame| !is_there(frame)).collect();
        let used = |&frame: &u32| {
            this.header(Block::Frame(frame)).is_none_or(|slots| slots.iter().any(|s| **s != NONE))
        };
        let used = (0..header.count).rev().find(used).map_or(0, |last| this.end(last));
        if this.storage.reserve(used.max(BLOCK)) { Ok(this) } else { Err(Unusable::NoRoom) }
    }

    /// Returns the header of all frames as it was when they were opened.
    #[must_use]
    pub fn file_header(&self) -> FileHeader {
        self.header
    }

    /// Sets what the journal of the frames says of them.
    pub fn set_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    fn at(&self, block: Block) -> usize {
        match block {
            Block::File => 0,
            Block::Frame(frame) => flat_offset(self.size(), frame) as usize,
        }
    }

    fn frame(&self, frame: u32) -> usize {
        self.at(Block::Frame(frame)) + BLOCK
    }

    fn end(&self, frame: u32) -> usize {
        self.frame(frame) + self.size() as usize
    }
}

/// Returns the header of the frames in these bytes.
#[must_use]
pub fn header(crc32c: Crc32c, bytes: &[u8]) -> Found<FileHeader> {
    match slots(bytes, 0) {
        Some(slots) => FileHeader::parse(crc32c, slots),
        None => Found::Damaged,
    }
}

/// Checks that the storage has all frames of a header.
fn check(storage: &impl Storage, header: &FileHeader) -> Result<(), Unusable> {
    if !(1..=SEGMENT_BYTES).contains(&header.frame_bytes) || header.count > MAX_SEGMENTS {
        return Err(Unusable::Size(header.frame_bytes));
    }
    let needed = flat_bytes(header.frame_bytes, header.count);
    if (storage.bytes().len() as u64) < needed {
        return Err(Unusable::Short(needed));
    }
    Ok(())
}

fn put(storage: &mut impl Storage, crc32c: Crc32c, header: &FileHeader) {
    let (slot, bytes) = header.emit(crc32c);
    // The next life of the server finds the other slot as it was.
    let _ = storage.write(slot * STEP, &bytes);
}

/// Returns the slots of the header whose block begins at the offset `at`.
#[must_use]
pub fn slots(bytes: &[u8], at: usize) -> Option<[&Slot; SLOTS]> {
    let slot = |n: usize| bytes.get(at + n * STEP..)?.first_chunk();
    Some([slot(0)?, slot(1)?])
}

impl<S: Storage> Frames for FlatFrames<S> {
    fn count(&self) -> u32 {
        self.header.count
    }

    fn size(&self) -> u32 {
        self.header.frame_bytes
    }

    fn open(&mut self, frame: u32) -> bool {
        !self.storage.has_failed() && self.storage.reserve(self.end(frame))
    }

    fn write(&mut self, frame: u32, offset: u32, bytes: &[u8]) -> bool {
        self.storage.write(self.frame(frame) + offset as usize, bytes)
    }

    fn bytes(&self, frame: u32) -> &[u8] {
        let at = self.frame(frame);
        &self.storage.bytes()[at..at + self.size() as usize]
    }

    fn delivers(&self, frame: u32, offset: u32, len: u32) -> bool {
        self.storage.delivers(self.frame(frame) + offset as usize, len as usize)
    }

    fn free(&mut self, _: u32) {}

    fn header(&self, block: Block) -> Option<[&Slot; SLOTS]> {
        if matches!(block, Block::Frame(frame) if self.unreadable.contains(&frame)) {
            return None;
        }
        slots(self.storage.bytes(), self.at(block))
    }

    fn write_header(&mut self, block: Block, slot: usize, bytes: &Slot) {
        // After an error the frames have failed.
        let _ = self.storage.write(self.at(block) + slot * STEP, bytes);
    }

    fn verify(&mut self, header: &FrameHeader) -> bool {
        self.storage.verify(flat_offset(self.size(), header.frame), header)
    }

    fn verified(&mut self) -> Option<Condition> {
        self.storage.verified()
    }

    fn has_failed(&self) -> bool {
        self.storage.has_failed()
    }

    fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }
}
