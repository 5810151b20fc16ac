//! The journal of frames: the bytes that were appended to replicas since the frames were synced.
//!
//! ```text
//!  0        4096                                                            last block
//!  | batch n | batch n + 1 ........ | batch n + 7 | free, or batches of earlier turns | mark |
//! ```
//!
//! A sync of the frames writes a page for each replica and each header. A batch has the appended
//! bytes alone, in one direct write. A batch begins at a block of 4096 bytes, and its integers are
//! big-endian:
//!
//! ```text
//!  batch    magic 8 | journal 4 | block 4 | number 8 | first 8 | bytes 4 | 0 8 | CRC32C 4
//!           | records | 0 up to a whole block
//!  record   frame 4 | epoch 4 | sequence 8 | master 8 | segment 4 | offset 4 | length 4 | bytes
//! ```
//!
//! Batches have consecutive numbers. `first` is the first batch that is needed: the frames had
//! everything of earlier ones when they were synced. `sequence` is that of the frame's header when
//! the batch was made.
//!
//! Always holds:
//! - One write is in progress at a time, and no batch is overwritten that is needed. When the
//!   region is full, the frames are synced, then the last block gets a batch without records, the
//!   mark, and only then the next batch is written to the start of the region.
//! - So of the batches from `first` of the last intact one to that one, none is missing. A batch
//!   behind it was torn by a loss of power, and no reply depends on it. If one in between is not
//!   intact, the device has lost it.
//! - A record proves that the replica had all bytes below its end. Its epoch and its state were
//!   durable before: a change of them is a sync of the frames.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::Crc32c;

use super::header::{FrameHeader, Held};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The bytes of a block: a direct write has whole ones.
const BLOCK: usize = 4096;
/// The bytes of a batch before its records.
const HEADER: usize = 48;
/// The bytes of a record before those of the replica.
const RECORD: usize = 36;
const CRC_AT: usize = HEADER - 4;
const MAGIC: [u8; 8] = *b"SPRTJNL1";
/// The most bytes of a batch. More are not worth a second write: the frames are synced instead.
const MOST: usize = 256 << 10;
/// The highest number of a batch, which no server reaches.
const MOST_BATCHES: u64 = 1 << 62;

/// Bytes that were appended to a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) frame: u32,
    pub(super) epoch: u32,
    /// The sequence number of the frame's header that counts the bytes.
    pub(super) sequence: u64,
    pub(super) master: ServerId,
    pub(super) segment: SegmentId,
    /// The offset of the bytes in the segment.
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// The records of one batch.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    most: usize,
}

impl Batch {
    /// Makes a batch of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { bytes: alloc::vec![0; HEADER], most }
    }

    /// Adds a record and its bytes. Returns false if there is no room.
    pub(super) fn push(&mut self, record: &Record, data: &[u8]) -> bool {
        let Record { frame, epoch, sequence, master, segment, offset, len } = *record;
        if self.bytes.len() + RECORD + data.len() > self.most || data.len() != len as usize {
            return false;
        }
        let mut head = [0; RECORD];
        put_u32(&mut head, 0, frame);
        put_u32(&mut head, 4, epoch);
        put_u64(&mut head, 8, sequence);
        put_u32(&mut head, 16, master.index);
        put_u32(&mut head, 20, master.generation);
        put_u32(&mut head, 24, segment.0);
        put_u32(&mut head, 28, offset);
        put_u32(&mut head, 32, len);
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(data);
        true
    }

    /// Returns the bytes for [`Writer::seal`]. `None` if there is no record.
    pub(super) fn finish(self) -> Option<Vec<u8>> {
        (self.bytes.len() > HEADER).then_some(self.bytes)
    }
}

/// The place of the next batch in the region of a journal.
#[derive(Debug)]
pub struct Writer {
    crc32c: Crc32c,
    journal: u32,
    /// The number of blocks before that of the mark.
    blocks: u32,
    /// The block of the next batch.
    at: u32,
    /// The number of the next batch.
    next: u64,
    first: u64,
}

impl Writer {
    /// Returns the writer of a region of `bytes` bytes with this content. The frames have been
    /// synced since it was written.
    #[must_use]
    pub fn new(crc32c: Crc32c, journal: u32, bytes: u64, content: &Content<'_>) -> Self {
        let blocks = (bytes / BLOCK as u64).clamp(1, u32::MAX.into()) as u32 - 1;
        let (at, next) = (content.end, content.last + 1);
        Self { crc32c, journal, blocks, at, next, first: next }
    }

    /// Returns the most bytes of a batch in a region of `bytes` bytes.
    #[must_use]
    pub fn most(bytes: u64) -> usize {
        MOST.min((bytes as usize / BLOCK).saturating_sub(1) * BLOCK)
    }

    /// Returns the number of the last batch.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Records that everything in earlier batches is durable in the frames.
    pub fn synced(&mut self) {
        self.first = self.next;
    }

    /// Returns true if the region has room for a batch of `bytes` bytes.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes.div_ceil(BLOCK) <= self.blocks.saturating_sub(self.at) as usize
    }

    /// Begins at the start of the region again. The frames have been synced since the last batch.
    /// Puts the mark that has to be durable before the next batch into `block`, and returns the
    /// offset where it belongs.
    pub fn turn(&mut self, block: &mut [u8]) -> u64 {
        self.synced();
        self.at = self.blocks;
        block.fill(0);
        let offset = self.seal(block, HEADER);
        // The mark itself is not needed once there is a batch behind it.
        self.synced();
        self.at = 0;
        offset
    }

    /// Completes the batch in the first `len` bytes of `buffer`. The rest is zero. Returns the
    /// offset in the region where the buffer belongs.
    pub fn seal(&mut self, buffer: &mut [u8], len: usize) -> u64 {
        let at = self.at;
        buffer[..8].copy_from_slice(&MAGIC);
        put_u32(buffer, 8, self.journal);
        put_u32(buffer, 12, at);
        put_u64(buffer, 16, self.next);
        put_u64(buffer, 24, self.first);
        put_u32(buffer, 32, (len - HEADER) as u32);
        buffer[36..CRC_AT].fill(0);
        let crc = checksum(self.crc32c, &buffer[..len]);
        put_u32(buffer, CRC_AT, crc);
        self.next += 1;
        self.at += len.div_ceil(BLOCK) as u32;
        at as u64 * BLOCK as u64
    }
}

/// The content of a journal: the records that are needed, and where it goes on.
#[derive(Debug)]
pub struct Content<'a> {
    /// The number of the last intact batch.
    pub last: u64,
    /// The number of batches that are needed.
    pub needed: u64,
    /// True if none of the batches that are needed is missing.
    pub is_whole: bool,
    /// The block where the next batch goes.
    end: u32,
    frames: BTreeMap<u32, Vec<(Record, &'a [u8])>>,
}

/// The length of a replica by a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Proof {
    /// The length of the replica.
    pub(super) len: u32,
    /// The bytes at its start that were durable.
    pub(super) proven: u32,
    /// The highest sequence number of a header that a record of the replica names. 0 if one of the
    /// records shows that the header has lost a change.
    pub(super) sequence: u64,
}

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
    /// Returns a journal that is not written any more, and proves these lengths of replicas.
    pub(super) fn new(proven: BTreeMap<u32, u32>, is_whole: bool) -> Self {
        Self { proven, is_whole, most: 0 }
    }

    /// Lets the journal take batches of at most `most` bytes.
    pub fn begin(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the bytes at the start of a replica in this frame that were durable. More than a
    /// replica can have: their number is unknown.
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

/// A batch in a region.
struct Found<'a> {
    first: u64,
    /// The block behind it.
    end: u32,
    records: &'a [u8],
}

impl Default for Content<'_> {
    /// Returns the content of a region to which no batch was written.
    fn default() -> Self {
        Self { last: 0, needed: 0, is_whole: true, end: 0, frames: BTreeMap::new() }
    }
}

impl<'a> Content<'a> {
    /// Reads the journal with this number in the bytes of its region. The frames say that it has
    /// at least the batches up to the number `floor`.
    #[must_use]
    pub fn parse(crc32c: Crc32c, journal: u32, floor: u64, region: &'a [u8]) -> Self {
        let blocks = (region.len() / BLOCK) as u32;
        let (mut all, mut block) = (BTreeMap::new(), 0);
        while block < blocks {
            match batch(crc32c, journal, region, block) {
                Some((number, found)) => {
                    block = found.end;
                    all.insert(number, found);
                }
                None => block += 1,
            }
        }
        let Some((&last, found)) = all.last_key_value() else {
            return Self { last: floor, is_whole: floor == 0, ..Self::default() };
        };
        // Behind the mark in the last block, the region begins again.
        let end = if found.end == blocks { 0 } else { found.end };
        let (needed, intact) = (last - found.first + 1, all.range(found.first..));
        let is_whole = last >= floor && intact.clone().count() as u64 == needed;
        let frames = BTreeMap::new();
        let mut content = Self { last: last.max(floor), needed, is_whole, end, frames };
        intact.for_each(|(_, found)| content.read(found.records));
        content
    }

    /// Adds the records of a batch.
    fn read(&mut self, mut bytes: &'a [u8]) {
        while let Some((head, rest)) = bytes.split_first_chunk::<RECORD>() {
            let record = Record {
                frame: u32_at(head, 0),
                epoch: u32_at(head, 4),
                sequence: u64_at(head, 8),
                master: ServerId { index: u32_at(head, 16), generation: u32_at(head, 20) },
                segment: SegmentId(u32_at(head, 24)),
                offset: u32_at(head, 28),
                len: u32_at(head, 32),
            };
            let Some((data, rest)) = rest.split_at_checked(record.len as usize) else { return };
            self.frames.entry(record.frame).or_default().push((record, data));
            bytes = rest;
        }
    }

    /// Returns the number of records that are needed.
    #[must_use]
    pub fn records(&self) -> usize {
        self.frames.values().map(Vec::len).sum()
    }

    /// Returns the frames that have records.
    pub(super) fn frames(&self) -> impl Iterator<Item = u32> {
        self.frames.keys().copied()
    }

    /// Hands the bytes of a frame with this header to `write`, with their offsets. The frame has
    /// `size` bytes. Returns what the records say of the replica there. `None` if they are those of
    /// another one.
    pub(super) fn replay(
        &self,
        header: &FrameHeader,
        size: u32,
        mut write: impl FnMut(u32, &[u8]),
    ) -> Option<Proof> {
        let held = header.replica?;
        let mut proof = Proof { len: held.len, proven: 0, sequence: 0 };
        let mut is_named = false;
        for (record, data) in self.frames.get(&header.frame)? {
            // A header that is older than the record lacks nothing but the growth of its replica.
            // If the header is newer, it may be that of another replica.
            let is_newer = header.sequence > record.sequence;
            if (record.master, record.segment) != (held.master, held.segment) {
                continue;
            }
            let end = record.offset.checked_add(record.len).filter(|end| *end <= size);
            let end = match end {
                Some(end) if record.epoch == held.epoch => end,
                _ if is_newer => continue,
                // The next life has to find the same.
                _ => return Some(Proof { proven: u32::MAX, sequence: 0, ..proof }),
            };
            is_named = true;
            proof.sequence = proof.sequence.max(record.sequence);
            if is_newer {
                proof.proven = proof.proven.max(end.min(held.len));
            } else {
                (proof.len, proof.proven) = (proof.len.max(end), proof.proven.max(end));
            }
            // Bytes between the length and an earlier record are in the frame, or it is damaged.
            if record.offset <= proof.len {
                write(record.offset, data);
            }
        }
        is_named.then_some(proof)
    }
}

/// Returns the batch that begins at a block, if it is intact.
fn batch(crc32c: Crc32c, journal: u32, region: &[u8], block: u32) -> Option<(u64, Found<'_>)> {
    let bytes = region.get(block as usize * BLOCK..)?;
    let head = bytes.first_chunk::<HEADER>()?;
    if head[..8] != MAGIC || (u32_at(head, 8), u32_at(head, 12)) != (journal, block) {
        return None;
    }
    let len = HEADER + u32_at(head, 32) as usize;
    let bytes = bytes.get(..len)?;
    if checksum(crc32c, bytes) != u32_at(head, CRC_AT) {
        return None;
    }
    let end = block + len.div_ceil(BLOCK) as u32;
    let (number, first) = (u64_at(head, 16), u64_at(head, 24));
    let is_possible = first <= number && number <= MOST_BATCHES;
    is_possible.then(|| (number, Found { first, end, records: &bytes[HEADER..] }))
}

/// Returns the checksum of a batch without its padding: of all bytes but the checksum itself.
fn checksum(crc32c: Crc32c, batch: &[u8]) -> u32 {
    crc32c(crc32c(0, &batch[..CRC_AT]), &batch[HEADER..])
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
