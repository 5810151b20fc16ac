//! The replay of a journal: it brings the journal's records into the frames.

use alloc::collections::BTreeMap;

use sprat_proto::wire::checksum::Crc32c;

use super::frames::{Block, Frames};
use super::header::{FileHeader, Found, FrameHeader, Held};
use super::journal::{Content, Journal, Proof};

/// Brings the records of a journal into the frames, as often as wanted. They must be synced before
/// the journal is written to. Returns the journal as the backup of the frames sees it. A frame that
/// the device does not deliver gets none, and its replica is damaged. After an error of the device
/// the frames have failed.
#[must_use]
pub fn replay(crc32c: Crc32c, frames: &mut impl Frames, content: &Content<'_>) -> Journal {
    let mut proven = BTreeMap::new();
    let (count, size) = (frames.count(), frames.size());
    for frame in content.frames().filter(|frame| *frame < count) {
        let slots = frames.header(Block::Frame(frame));
        let header = slots.map(|slots| FrameHeader::parse(crc32c, frame, slots));
        let Some(header) = header.and_then(Found::header) else { continue };
        // A write to a part of a page reads the page first.
        let is_there = header.replica.is_none() || frames.delivers(frame, 0, size);
        let write = |offset, bytes: &[u8]| _ = is_there && frames.write(frame, offset, bytes);
        let Some(proof) = content.replay(&header, size, write) else { continue };
        let Proof { len, proven: end, sequence } = proof;
        proven.insert(frame, end);
        // Later lives know only by the length that bytes are missing.
        let len = if is_there { len } else { u32::MAX };
        let is_behind = sequence > header.sequence;
        if let Some(held) = header.replica.filter(|held| held.len != len || is_behind) {
            let replica = Some(Held { len, ..held });
            // Headers of later lives have to be newer than the records, which stay in the journal.
            // This one leaves the slot of the last one.
            let next = header.sequence.max(sequence) + 1;
            let sequence = next + u64::from((next - header.sequence).is_multiple_of(2));
            let header = FrameHeader { sequence, replica, ..header };
            let (slot, bytes) = header.emit(crc32c);
            frames.write_header(Block::Frame(frame), slot, &bytes);
        }
    }
    Journal::new(proven, content.is_whole)
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
