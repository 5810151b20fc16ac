//! The headers of frames that outlive the process: which replica a frame holds, and whose frames
//! they are.
//!
//! A header has two slots of 64 bytes. Each change is written to the slot that does not hold the
//! last one, so that a process that is killed in a write leaves the header before it. That a
//! replica is closed is written to both, or a damaged slot would open it again. All integers are
//! big-endian:
//!
//! ```text
//!  of all frames   magic 8 | frame bytes 4 | count 4 | sequence 8 | boot 8 | cluster 8
//!                  | server 8 | journal 4 | batches 8 | CRC32C 4
//!  of a frame      magic 8 | frame 4 | epoch 4 | sequence 8 | cluster 8 | master 8 | segment 4
//!                  | length 4 | state 1 | committed 1 | 0 10 | CRC32C 4
//! ```

use sprat_proto::wire::checksum::Crc32c;

use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The bytes of a slot.
pub const SLOT_BYTES: usize = 64;
/// The number of slots of a header.
pub const SLOTS: usize = 2;

/// The bytes of a slot.
pub type Slot = [u8; SLOT_BYTES];

const CRC_AT: usize = SLOT_BYTES - 4;
const FILE_MAGIC: [u8; 8] = *b"SPRTBAK2";
const FRAME_MAGIC: [u8; 8] = *b"SPRTFRM1";

/// The header of all frames of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileHeader {
    /// The size of a frame in bytes.
    pub frame_bytes: u32,
    /// The number of frames.
    pub count: u32,
    /// The number of this change of the header.
    pub sequence: u64,
    /// A number of the run of the machine in which the frames were used last. Bytes that were
    /// written in another run may have been lost with the power.
    pub boot: u64,
    /// The server that used the frames last, and its cluster, if any has.
    pub owner: Option<(u64, ServerId)>,
    /// The number of the frames' journal. 0: they have none.
    pub journal: u32,
    /// The number of a batch that the journal has, or has had before later ones.
    pub batches: u64,
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The number of the frame.
    pub frame: u32,
    /// The number of this change of the header.
    pub sequence: u64,
    /// The replica that the frame holds. `None`: the frame is free.
    pub replica: Option<Held>,
}

/// The replica that a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The cluster of the replica.
    pub cluster: u64,
    /// The master of the log that the segment is part of.
    pub master: ServerId,
    /// The segment.
    pub segment: SegmentId,
    /// The epoch of the replica.
    pub epoch: u32,
    /// The number of bytes of the replica.
    pub len: u32,
    /// True if the segment is closed: the replica has all of its bytes.
    pub closed: bool,
    /// True if the replica counts in a recovery.
    pub committed: bool,
}

/// The content of a header whose slots are these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<T> {
    /// Nothing was written since the frames were made.
    Nothing,
    /// The last change that is intact.
    Header(T),
    /// No slot is intact.
    Damaged,
}

impl<T> Found<T> {
    /// Returns the header, if there is one.
    #[must_use]
    pub fn header(self) -> Option<T> {
        match self {
            Self::Header(header) => Some(header),
            Self::Nothing | Self::Damaged => None,
        }
    }
}

fn put(slot: &mut Slot, at: usize, bytes: &[u8]) {
    slot[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u32_at(slot: &Slot, at: usize) -> u32 {
    slot[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn u64_at(slot: &Slot, at: usize) -> u64 {
    slot[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn server_at(slot: &Slot, at: usize) -> ServerId {
    ServerId { index: u32_at(slot, at), generation: u32_at(slot, at + 4) }
}

fn put_server(slot: &mut Slot, at: usize, server: ServerId) {
    put(slot, at, &server.index.to_be_bytes());
    put(slot, at + 4, &server.generation.to_be_bytes());
}

fn seal(crc32c: Crc32c, slot: &mut Slot) {
    let crc = crc32c(0, &slot[..CRC_AT]);
    put(slot, CRC_AT, &crc.to_be_bytes());
}

/// Returns the content of the intact slot with the highest sequence number.
fn newest<T>(
    crc32c: Crc32c,
    slots: [&Slot; SLOTS],
    magic: [u8; 8],
    parse: impl Fn(&Slot) -> Option<T>,
    sequence: impl Fn(&T) -> u64,
) -> Found<T> {
    let intact =
        |slot: &&Slot| slot[..8] == magic && u32_at(slot, CRC_AT) == crc32c(0, &slot[..CRC_AT]);
    let all = slots.into_iter().filter(intact).filter_map(parse);
    match all.max_by_key(sequence) {
        Some(header) => Found::Header(header),
        None if slots.iter().all(|slot| slot.iter().all(|byte| *byte == 0)) => Found::Nothing,
        None => Found::Damaged,
    }
}

impl FileHeader {
    /// Returns the slot that the header belongs to, and its bytes.
    #[must_use]
    pub fn emit(&self, crc32c: Crc32c) -> (usize, Slot) {
        let mut slot = [0; SLOT_BYTES];
        put(&mut slot, 0, &FILE_MAGIC);
        put(&mut slot, 8, &self.frame_bytes.to_be_bytes());
        put(&mut slot, 12, &self.count.to_be_bytes());
        put(&mut slot, 16, &self.sequence.to_be_bytes());
        put(&mut slot, 24, &self.boot.to_be_bytes());
        if let Some((cluster, server)) = self.owner {
            put(&mut slot, 32, &cluster.to_be_bytes());
            put_server(&mut slot, 40, server);
        }
        put(&mut slot, 48, &self.journal.to_be_bytes());
        put(&mut slot, 52, &self.batches.to_be_bytes());
        seal(crc32c, &mut slot);
        (self.sequence as usize % SLOTS, slot)
    }

    /// Returns the last intact header of these slots.
    #[must_use]
    pub fn parse(crc32c: Crc32c, slots: [&Slot; SLOTS]) -> Found<Self> {
        let parse = |slot: &Slot| {
            let (cluster, server) = (u64_at(slot, 32), server_at(slot, 40));
            Some(Self {
                frame_bytes: u32_at(slot, 8),
                count: u32_at(slot, 12),
                sequence: u64_at(slot, 16),
                boot: u64_at(slot, 24),
                owner: (server.generation != 0).then_some((cluster, server)),
                journal: u32_at(slot, 48),
                batches: u64_at(slot, 52),
            })
        };
        newest(crc32c, slots, FILE_MAGIC, parse, |header| header.sequence)
    }
}

impl FrameHeader {
    /// Returns the slot that the header belongs to, and its bytes.
    #[must_use]
    pub fn emit(&self, crc32c: Crc32c) -> (usize, Slot) {
        let mut slot = [0; SLOT_BYTES];
        put(&mut slot, 0, &FRAME_MAGIC);
        put(&mut slot, 8, &self.frame.to_be_bytes());
        put(&mut slot, 16, &self.sequence.to_be_bytes());
        if let Some(held) = self.replica {
            put(&mut slot, 12, &held.epoch.to_be_bytes());
            put(&mut slot, 24, &held.cluster.to_be_bytes());
            put_server(&mut slot, 32, held.master);
            put(&mut slot, 40, &held.segment.0.to_be_bytes());
            put(&mut slot, 44, &held.len.to_be_bytes());
            (slot[48], slot[49]) = (1 + u8::from(held.closed), held.committed.into());
        }
        seal(crc32c, &mut slot);
        (self.sequence as usize % SLOTS, slot)
    }

    /// Returns true if each of these slots, which are those of `frame`, is intact or was never
    /// written. Otherwise a later change than that of [`Self::parse`] may be lost.
    #[must_use]
    pub fn is_whole(crc32c: Crc32c, frame: u32, slots: [&Slot; SLOTS]) -> bool {
        slots.iter().all(|slot| Self::parse(crc32c, frame, [slot, slot]) != Found::Damaged)
    }

    /// Returns true if both slots, which are those of `frame`, name the same replica.
    #[must_use]
    pub fn is_twice(crc32c: Crc32c, frame: u32, slots: [&Slot; SLOTS]) -> bool {
        let [one, other] = slots.map(|slot| Self::parse(crc32c, frame, [slot, slot]).header());
        one.zip(other).is_some_and(|(one, other)| one.replica == other.replica)
    }

    /// Returns the last intact header of these slots, which are those of `frame`.
    #[must_use]
    pub fn parse(crc32c: Crc32c, frame: u32, slots: [&Slot; SLOTS]) -> Found<Self> {
        let parse = |slot: &Slot| {
            let held = Held {
                epoch: u32_at(slot, 12),
                cluster: u64_at(slot, 24),
                master: server_at(slot, 32),
                segment: SegmentId(u32_at(slot, 40)),
                len: u32_at(slot, 44),
                closed: slot[48] == 2,
                committed: slot[49] == 1,
            };
            let replica = match slot[48] {
                0 => None,
                1 | 2 if slot[49] <= 1 => Some(held),
                _ => return None,
            };
            let sequence = u64_at(slot, 16);
            // The slots of another frame were written to this place, or read from it.
            (u32_at(slot, 8) == frame).then_some(Self { frame, sequence, replica })
        };
        newest(crc32c, slots, FRAME_MAGIC, parse, |header| header.sequence)
    }
}
