//! Frames: the memory of replicas, one frame for each.

use alloc::vec::Vec;
use core::fmt::Debug;

use super::header::{FrameHeader, SLOTS, Slot};
use super::journal::Journal;
use super::survey::Condition;
use crate::objects::segment::MAX_SEGMENTS;

/// A header of frames that outlive the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Block {
    /// The header of all frames.
    File,
    /// The header of the frame with this number.
    Frame(u32),
}

/// A fixed number of frames of one size.
///
/// A backup writes each byte of an open frame once, in order. If the frames outlive the process,
/// they have headers. What a process has written is there when the next one opens the frames, in
/// the order of the writes.
pub trait Frames: Debug + Send {
    /// Returns the number of frames.
    fn count(&self) -> u32;

    /// Returns the size of a frame in bytes.
    fn size(&self) -> u32;

    /// Prepares a free frame for writes. Returns false if that is not possible now.
    fn open(&mut self, frame: u32) -> bool;

    /// Writes bytes at `offset` of an open frame. They end within the frame and begin where the
    /// last ones ended. Returns false if they may not be there, because of an error of the device.
    fn write(&mut self, frame: u32, offset: u32, bytes: &[u8]) -> bool;

    /// Returns the bytes of an open frame, at least those that were written.
    fn bytes(&self, frame: u32) -> &[u8];

    /// Returns true if the device delivers the `len` bytes at `offset` of a frame, so that they may
    /// be read by [`Frames::bytes`]. A read of other ones may end the process.
    fn delivers(&self, frame: u32, offset: u32, len: u32) -> bool;

    /// Frees an open frame. Its bytes are not needed any more.
    fn free(&mut self, frame: u32);

    /// Returns the slots of a header. `None` if the frames do not outlive the process, or if the
    /// device does not deliver it.
    fn header(&self, block: Block) -> Option<[&Slot; SLOTS]>;

    /// Writes a slot of a header, if the frames outlive the process.
    fn write_header(&mut self, block: Block, slot: usize, bytes: &Slot);

    /// Begins to verify on the device the replica in a frame that has to have this header. The
    /// last verification has ended. Returns false if that is not possible.
    fn verify(&mut self, header: &FrameHeader) -> bool;

    /// Returns the outcome of the verification, once it has ended.
    fn verified(&mut self) -> Option<Condition>;

    /// Returns true if what was written may be lost, because of an error of the device. No frame
    /// is used any more then.
    fn has_failed(&self) -> bool;

    /// Returns what the journal of the frames says of them. `None` if they have none.
    fn journal(&self) -> Option<&Journal>;
}

/// Frames that take memory while they are open.
#[derive(Debug)]
pub struct MemoryFrames {
    frames: Vec<Vec<u8>>,
    size: u32,
}

impl MemoryFrames {
    /// Returns as many frames of `size` bytes as fit into `bytes`, at most [`MAX_SEGMENTS`].
    #[must_use]
    pub fn new(bytes: u64, size: u32) -> Self {
        let count = (bytes / u64::from(size.max(1))).min(u64::from(MAX_SEGMENTS));
        Self { frames: (0..count).map(|_| Vec::new()).collect(), size }
    }
}

impl Frames for MemoryFrames {
    fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn open(&mut self, frame: u32) -> bool {
        let memory = &mut self.frames[frame as usize];
        memory.clear();
        memory.try_reserve_exact(self.size as usize).is_ok()
    }

    fn write(&mut self, frame: u32, offset: u32, bytes: &[u8]) -> bool {
        let memory = &mut self.frames[frame as usize];
        debug_assert_eq!(memory.len(), offset as usize, "writes are in order");
        memory.extend_from_slice(bytes);
        true
    }

    fn bytes(&self, frame: u32) -> &[u8] {
        &self.frames[frame as usize]
    }

    fn delivers(&self, _: u32, _: u32, _: u32) -> bool {
        true
    }

    fn free(&mut self, frame: u32) {
        self.frames[frame as usize] = Vec::new();
    }

    fn header(&self, _: Block) -> Option<[&Slot; SLOTS]> {
        None
    }

    fn write_header(&mut self, _: Block, _: usize, _: &Slot) {}

    fn verify(&mut self, _: &FrameHeader) -> bool {
        false
    }

    fn verified(&mut self) -> Option<Condition> {
        None
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn journal(&self) -> Option<&Journal> {
        None
    }
}
