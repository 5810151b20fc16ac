//! A survey of the frames of a server: the replicas there, and whether they are sound. Nothing
//! changes.
//!
//! The caller reads the bytes, so that an error of the device is that of one frame. The rules are
//! those by which a backup takes over its frames ([`super::Backup::new`]), apart from one: the
//! bytes of each replica are verified. What the journal has is put into the bytes that were read.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::Crc32c;

use super::journal::Proof;
use super::{FileHeader, Found, FrameHeader, Held, JournalContent, SLOTS, Slot};
use crate::types::ServerId;

/// The content of a frame by its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The frame holds no replica.
    Free,
    /// The frame holds this replica.
    Replica(Held),
    /// No slot of the header is intact.
    Unknown,
}

/// The condition of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// All that the header names is intact.
    Sound,
    /// The replica is open, and its last bytes were lost with the power. It has this many.
    Cut(u32),
    /// A slot of the header is not intact, so that the last change may be lost.
    Slot,
    /// No slot of the header is intact.
    Header,
    /// The bytes of the replica are intact up to this offset in the frame.
    Bytes(u32),
    /// The device does not deliver the bytes.
    Unreadable,
}

impl Condition {
    /// Returns true if something is lost that was written.
    #[must_use]
    pub fn is_damaged(self) -> bool {
        !matches!(self, Self::Sound | Self::Cut(_))
    }
}

/// The replicas of one master's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// The number of open replicas.
    pub open: u32,
    /// The number of closed replicas.
    pub closed: u32,
    /// The number of bytes of all replicas.
    pub bytes: u64,
    /// The lowest and the highest epoch of a replica.
    pub epochs: (u32, u32),
}

/// The frames of a server, as far as they were examined.
#[derive(Debug)]
pub struct Survey {
    crc32c: Crc32c,
    lossy: bool,
    size: u32,
    /// The number of free frames.
    pub free: u32,
    /// The replicas by cluster and master.
    pub masters: BTreeMap<(u64, ServerId), Counted>,
    /// The frames that are not sound.
    pub flaws: Vec<(u32, Content, Condition)>,
}

impl Survey {
    /// Begins to examine frames with this header. `boot` is the number of this run of the machine.
    #[must_use]
    pub fn new(crc32c: Crc32c, header: &FileHeader, boot: u64) -> Self {
        let (lossy, size) = (header.boot != boot, header.frame_bytes);
        let (free, masters, flaws) = (0, BTreeMap::new(), Vec::new());
        Self { crc32c, lossy, size, free, masters, flaws }
    }

    /// Examines a frame with this header, whose journal has this content. `read` returns all bytes
    /// of the frame, or `None` if the device does not deliver them.
    pub fn examine<'a>(
        &mut self,
        frame: u32,
        slots: Option<[&Slot; SLOTS]>,
        journal: &JournalContent<'_>,
        read: impl FnOnce() -> Option<&'a mut [u8]>,
    ) {
        let Some(slots) = slots else {
            return self.flaw(frame, Content::Unknown, Condition::Unreadable);
        };
        let slot = if FrameHeader::is_whole(self.crc32c, frame, slots) {
            Condition::Sound
        } else {
            Condition::Slot
        };
        let (content, condition) = match FrameHeader::parse(self.crc32c, frame, slots) {
            Found::Nothing => (Content::Free, slot),
            Found::Damaged => (Content::Unknown, Condition::Header),
            Found::Header(FrameHeader { replica: None, .. }) => (Content::Free, slot),
            Found::Header(header @ FrameHeader { replica: Some(mut held), .. }) => {
                let condition = self.replica(&header, &mut held, journal, read);
                self.count(&held);
                let condition = match condition {
                    Condition::Sound => slot,
                    flaw => flaw,
                };
                (Content::Replica(held), condition)
            }
        };
        self.free += u32::from(content == Content::Free);
        if condition != Condition::Sound {
            self.flaw(frame, content, condition);
        }
    }

    fn flaw(&mut self, frame: u32, content: Content, condition: Condition) {
        self.flaws.push((frame, content, condition));
    }

    fn count(&mut self, held: &Held) {
        let first = || Counted { epochs: (held.epoch, held.epoch), ..Counted::default() };
        let counted = self.masters.entry((held.cluster, held.master)).or_insert_with(first);
        if held.closed {
            counted.closed += 1;
        } else {
            counted.open += 1;
        }
        counted.bytes += u64::from(held.len);
        let (low, high) = counted.epochs;
        counted.epochs = (low.min(held.epoch), high.max(held.epoch));
    }

    /// Verifies the bytes of a replica, and gives it the length that it has by the journal.
    fn replica<'a>(
        &self,
        header: &FrameHeader,
        held: &mut Held,
        journal: &JournalContent<'_>,
        read: impl FnOnce() -> Option<&'a mut [u8]>,
    ) -> Condition {
        if held.len > self.size {
            return Condition::Bytes(0);
        }
        let Some(bytes) = read() else { return Condition::Unreadable };
        let write = |at: u32, data: &[u8]| {
            let to = bytes.get_mut(at as usize..at as usize + data.len());
            to.into_iter().for_each(|to| to.copy_from_slice(data));
        };
        let proof = journal.replay(header, self.size, write);
        let nothing = Proof { len: held.len, proven: 0, sequence: 0 };
        let Proof { len, mut proven, .. } = proof.unwrap_or(nothing);
        held.len = len;
        if !journal.is_whole && !held.closed {
            proven = u32::MAX;
        }
        condition(self.crc32c, held, (self.lossy, proven), bytes)
    }
}

/// Returns the condition of a replica whose frame has these bytes. If `lossy`, what was written
/// last, behind what is `proven`, may be lost with the power.
fn condition(crc32c: Crc32c, held: &Held, (lossy, proven): (bool, u32), bytes: &[u8]) -> Condition {
    let intact = held.intact(crc32c, bytes);
    match held.end(intact, lossy, proven) {
        Some(end) if end == held.len => Condition::Sound,
        Some(end) => Condition::Cut(end),
        None => Condition::Bytes(intact),
    }
}

/// Returns the condition of the replica in a frame that has to have this header. `slots` and
/// `bytes` are what the device has; `None` if it does not deliver them.
#[must_use]
pub fn verify(
    crc32c: Crc32c,
    header: &FrameHeader,
    slots: Option<[&Slot; SLOTS]>,
    bytes: Option<&[u8]>,
) -> Condition {
    let (Some(slots), Some(bytes), Some(held)) = (slots, bytes, &header.replica) else {
        return Condition::Unreadable;
    };
    match condition(crc32c, held, (false, 0), bytes) {
        Condition::Sound => {}
        flaw => return flaw,
    }
    if FrameHeader::parse(crc32c, header.frame, slots) != Found::Header(*header) {
        return Condition::Header;
    }
    match FrameHeader::is_whole(crc32c, header.frame, slots) {
        true => Condition::Sound,
        false => Condition::Slot,
    }
}
