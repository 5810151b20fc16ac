//! Fuzzes the journal of frames: no bytes of a region panic, what is replayed twice changes nothing
//! the second time, and no replica gets longer than its frame.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_store::backup::{
    BLOCK, Backup, Block, Condition, FlatFrames, FrameHeader, Frames as _, Held, JournalContent,
    JournalWriter, Storage, flat_bytes, replay,
};
use sprat_store::objects::segment::SegmentId;
use sprat_store::types::ServerId;

/// The bytes of the input that a block of the region begins with.
const PART: usize = 128;
const SIZE: u32 = 512;
const FRAMES: u32 = 3;
const MASTER: ServerId = ServerId { index: 1, generation: 1 };

#[derive(Debug)]
struct Bytes(Vec<u8>);

impl Storage for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn delivers(&self, _: usize, _: usize) -> bool {
        true
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn reserve(&mut self, end: usize) -> bool {
        end <= self.0.len()
    }

    fn verify(&mut self, _: u64, _: &FrameHeader) -> bool {
        false
    }

    fn verified(&mut self) -> Option<Condition> {
        None
    }

    fn has_failed(&self) -> bool {
        false
    }
}

/// Lets the fuzzer write batches that count as intact.
fn no_checksum(_: u32, _: &[u8]) -> u32 {
    0
}

fn content(frames: &FlatFrames<Bytes>) -> Vec<Vec<u8>> {
    (0..FRAMES).map(|frame| frames.bytes(frame).to_vec()).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let mut region = vec![0; bytes.len().div_ceil(PART) * BLOCK];
    for (part, block) in bytes.chunks(PART).zip(region.chunks_mut(BLOCK)) {
        block[..part.len()].copy_from_slice(part);
    }
    let storage = Bytes(vec![0; flat_bytes(SIZE, FRAMES) as usize]);
    let frames = FlatFrames::format(no_checksum, storage, SIZE, FRAMES);
    let Ok(mut frames) = frames else { unreachable!() };
    for frame in 0..FRAMES {
        let (segment, epoch, len, closed) = (SegmentId(frame), frame, 64 * frame, frame == 2);
        let replica =
            Held { cluster: 1, master: MASTER, segment, epoch, len, closed, committed: true };
        let header = FrameHeader { frame, sequence: 4, replica: Some(replica) };
        let (slot, bytes) = header.emit(no_checksum);
        frames.write_header(Block::Frame(frame), slot, &bytes);
    }
    let journal = JournalContent::parse(no_checksum, 0, 1, &region);
    assert!(journal.last >= 1 && (journal.records() == 0 || journal.needed > 0));
    let _ = replay(no_checksum, &mut frames, &journal);
    let first = content(&frames);
    let replayed = replay(no_checksum, &mut frames, &journal);
    assert_eq!(content(&frames), first);
    frames.set_journal(replayed);
    let backup = Backup::new(Box::new(frames), no_checksum, 1);
    assert!(backup.replicas() <= FRAMES as usize);
    let bytes = (region.len() as u64).max(2 * BLOCK as u64);
    let mut writer = JournalWriter::new(no_checksum, 0, bytes, &journal);
    assert_eq!(writer.turn(&mut [0; BLOCK]), bytes - BLOCK as u64);
});
