//! What the journal of frames says of them: its replay, and the bytes that it proves.

use alloc::collections::BTreeMap;

use sprat_proto::wire::checksum::Crc32c;

use super::header::{FileHeader, Found, FrameHeader, Held};
use super::journal::{Content, Proof};
use super::{Block, Frames};

/// The journal of frames, as the backup of the frames sees it.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The bytes at the start of a frame's replica that were durable.
    proven: BTreeMap<u32, u32>,
    /// False if the device has lost some of the journal: any open replica may lack bytes.
    is_whole: bool,
    /// The most bytes of a batch. 0: the journal is not written any more.
    most: usize,
}

impl Journal {
    /// Brings the records of a journal into the frames, as often as wanted. They must be synced
    /// before the journal is written to.
    #[must_use]
    pub fn replay(crc32c: Crc32c, frames: &mut impl Frames, content: &Content<'_>) -> Self {
        let mut proven = BTreeMap::new();
        let (count, size) = (frames.count(), frames.size());
        for frame in content.frames().filter(|frame| *frame < count) {
            let slots = frames.header(Block::Frame(frame));
            let header = slots.map(|slots| FrameHeader::parse(crc32c, frame, slots));
            let Some(header) = header.and_then(Found::header) else { continue };
            let write = |offset, bytes: &[u8]| frames.write(frame, offset, bytes);
            let Some(Proof { len, proven: end }) = content.replay(&header, size, write) else {
                continue;
            };
            proven.insert(frame, end);
            if let Some(held) = header.replica.filter(|held| held.len != len) {
                let replica = Some(Held { len, ..held });
                let header = FrameHeader { sequence: header.sequence + 1, replica, ..header };
                let (slot, bytes) = header.emit(crc32c);
                frames.write_header(Block::Frame(frame), slot, &bytes);
            }
        }
        Self { proven, is_whole: content.is_whole, most: 0 }
    }

    /// Lets the journal take batches of at most `most` bytes.
    pub fn begin(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the bytes at the start of a replica in this frame that were durable. More than a
    /// replica can have: which they are is unknown.
    pub(super) fn proven(&self, frame: u32, held: &Held) -> u32 {
        match self.is_whole || held.closed {
            true => self.proven.get(&frame).copied().unwrap_or(0),
            false => u32::MAX,
        }
    }

    /// Returns the most bytes of a batch for the journal. `None` if it is not written any more.
    pub(super) fn most(&self) -> Option<usize> {
        (self.most > 0).then_some(self.most)
    }
}

/// Records in the header of all frames that they have the journal with this number, and that it
/// has batches up to `last`. The number 0 means that they have none.
pub fn set_journal(crc32c: Crc32c, frames: &mut impl Frames, journal: u32, last: u64) {
    let header = frames.header(Block::File).map(|slots| FileHeader::parse(crc32c, slots));
    if let Some(Found::Header(mut header)) = header {
        (header.journal, header.batches) = (journal, last);
        header.sequence += 1;
        let (slot, bytes) = header.emit(crc32c);
        frames.write_header(Block::File, slot, &bytes);
    }
}
