//! Tests of frames that outlive the process: what the next life of a server finds in them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
extern crate std;
use std::sync::Mutex;

use super::*;
use crate::objects::entry::{self, DIGESTED};

mod failing;

pub(super) const HEADER_BYTES: usize = 4096;
pub(super) const SIZE: u32 = 512;
const STRIDE: usize = HEADER_BYTES + SIZE as usize;

/// Bytes that stay when the frames are dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(pub(super) Arc<Mutex<Vec<u8>>>, pub(super) Rot);

/// The bits that are flipped on the device, at offsets of the bytes. No bits: the device does not
/// deliver the byte.
pub(super) type Rot = Arc<Mutex<Vec<(usize, u8)>>>;

#[derive(Debug)]
pub(super) struct Life {
    bytes: Vec<u8>,
    kept: Kept,
    verified: Option<Condition>,
    failed: bool,
    /// The end of the bytes that there is room for, if the disk is full.
    full_at: Option<usize>,
    /// The offset of a byte that the device does not take.
    broken_at: Option<usize>,
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Ok(mut kept) = self.kept.0.lock() {
            *kept = core::mem::take(&mut self.bytes);
        }
    }
}

impl Storage for Life {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn delivers(&self, at: usize, len: usize) -> bool {
        let rot = self.kept.1.lock().unwrap();
        !rot.iter().any(|&(gone, bits)| bits == 0 && (at..at + len).contains(&gone))
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.failed |=
            self.broken_at.is_some_and(|broken| (at..at + bytes.len()).contains(&broken));
        if !self.failed {
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }
        !self.failed
    }

    fn reserve(&mut self, end: usize) -> bool {
        self.full_at.is_none_or(|full_at| end <= full_at)
    }

    fn verify(&mut self, at: u64, header: &FrameHeader) -> bool {
        let (mut device, rot) = (self.bytes.clone(), self.kept.1.lock().unwrap().clone());
        rot.iter().for_each(|&(at, bits)| device[at] ^= bits);
        let read = |from: usize, len: usize| {
            let is_gone = |&(at, bits): &(usize, u8)| bits == 0 && (from..from + len).contains(&at);
            (!rot.iter().any(is_gone)).then(|| &device[from..from + len])
        };
        let at = at as usize;
        let slots = read(at, HEADER_BYTES).and_then(|block| flat_slots(block, 0));
        let bytes = read(at + HEADER_BYTES, header.replica.unwrap().len as usize);
        self.verified = Some(verify(crc32c, header, slots, bytes));
        true
    }

    fn verified(&mut self) -> Option<Condition> {
        self.verified.take()
    }

    fn has_failed(&self) -> bool {
        self.failed
    }
}

impl Kept {
    pub(super) fn new(frames: u32) -> Self {
        let bytes = vec![0; flat_bytes(SIZE, frames) as usize];
        let kept = Self(Arc::new(Mutex::new(bytes)), Rot::default());
        drop(FlatFrames::format(crc32c, kept.life(), SIZE, frames).unwrap());
        kept
    }

    fn life(&self) -> Life {
        let bytes = self.0.lock().unwrap().clone();
        let kept = self.clone();
        Life { bytes, kept, verified: None, failed: false, full_at: None, broken_at: None }
    }

    /// Returns the bytes on a disk that has room up to the offset `full_at`.
    fn full_life(&self, full_at: usize) -> Life {
        let mut life = self.life();
        life.full_at = Some(full_at);
        life
    }

    pub(super) fn frames(&self) -> FlatFrames<Life> {
        FlatFrames::open(crc32c, self.life(), 0).unwrap()
    }

    /// Starts the backup. Its id has this generation.
    pub(super) fn start(&self, boot: u64, generation: u32) -> Backup {
        let mut backup = Backup::new(Box::new(self.frames()), crc32c, boot);
        backup.set_owner(CLUSTER, ServerId { generation, ..ME });
        backup
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.0.lock().unwrap());
    }
}

/// Returns a segment of sealed entries: the header, and changes that name as many segments.
pub(super) fn sealed(id: SegmentId) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    let (cluster, server, capacity) = (CLUSTER, MASTER, SIZE);
    let header = Header { cluster, server, segment: id, capacity, safe_version: Version(1) };
    put_header(&mut bytes, &header);
    entry::seal(crc32c, 0, &mut bytes).unwrap();
    let seed = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
    let mut at = HEADER;
    while at + 8 + DIGESTED <= bytes.len() {
        let entry = &mut bytes[at..at + 8 + DIGESTED];
        entry::put_change(entry, [(SegmentId(at as u32), 1)].into_iter());
        at += entry::seal(crc32c, seed, entry).unwrap();
    }
    bytes.truncate(at);
    bytes
}

pub(super) fn write_of(id: SegmentId, bytes: &[u8], from: usize, to: usize) -> WriteReplica<'_> {
    WriteReplica {
        target: target(MASTER, id),
        epoch: 2,
        offset: from as u32,
        open: from == 0,
        commit: true,
        sync: false,
        close: to == bytes.len(),
        data: &bytes[from..to],
    }
}

/// Writes a segment up to `to` in two pieces.
pub(super) fn fill(backup: &mut Backup, id: SegmentId, to: usize) {
    let bytes = sealed(id);
    assert_eq!(backup.write(&write_of(id, &bytes, 0, HEADER)), Ok(HEADER as u32));
    assert_eq!(backup.write(&write_of(id, &bytes, HEADER, to)), Ok(to as u32));
}

/// Returns segment, epoch, length and state of the listed replicas of [`MASTER`].
pub(super) fn list(backup: &Backup) -> Vec<(u32, u32, u32, bool)> {
    let page = backup.list(MASTER, SegmentId(0));
    page.replicas.iter().map(|r| (r.segment.0, r.epoch, r.len, r.closed)).collect()
}

#[test]
fn the_next_life_has_the_replicas_and_their_bytes() {
    let kept = Kept::new(3);
    let mut backup = kept.start(1, 1);
    assert_eq!(backup.left(), (0, 0));
    let (one, two) = (SegmentId(1), SegmentId(2));
    let len = sealed(one).len();
    fill(&mut backup, one, len);
    fill(&mut backup, two, 104);
    fill(&mut backup, SegmentId(3), 104);
    backup.free(MASTER, SegmentId(3), 2);
    drop(backup);

    // A start that never joined changes nothing.
    let backup = Backup::new(Box::new(kept.frames()), crc32c, 1);
    assert_eq!(backup.owner(), Some((CLUSTER, ME)));
    drop(backup);
    let mut backup = kept.start(1, 2);
    assert_eq!(backup.owner().unwrap().1.generation, 2);
    assert_eq!(list(&backup), [(1, 2, len as u32, true), (2, 2, 104, false)]);
    assert_eq!(backup.bytes(MASTER, two).unwrap(), &sealed(two)[..104]);
    assert_eq!((backup.left(), backup.free_frames()), ((2, 0), 1));

    // The master goes on where the bytes end. The replica is then one of this life.
    let all = sealed(two);
    assert_eq!(backup.write(&write_of(two, &all, 100, len)), Ok(len as u32));
    assert_eq!(backup.left(), (1, 0));
    backup.free_left(MASTER);
    assert_eq!(list(&backup), [(2, 2, len as u32, true)]);
    drop(backup);
    assert_eq!(list(&kept.start(1, 3)), [(2, 2, len as u32, true)]);
}

#[test]
fn a_life_that_ends_in_a_write_leaves_the_header_before_it() {
    let kept = Kept::new(1);
    let mut backup = kept.start(1, 1);
    let bytes = sealed(SEGMENT);
    fill(&mut backup, SEGMENT, 104);
    let before = kept.0.clone();
    drop(backup);
    let old = before.lock().unwrap().clone();
    let mut backup = kept.start(1, 2);
    backup.write(&write_of(SEGMENT, &bytes, 104, 200)).unwrap();
    drop(backup);
    let new = before.lock().unwrap().clone();
    let changed = (0..HEADER_BYTES).filter(|at| {
        let at = HEADER_BYTES + at;
        old[at] != new[at]
    });
    let changed: Vec<_> = changed.collect();
    assert!(!changed.is_empty() && changed.len() <= SLOT_BYTES);
    for cut in 0..changed.len() {
        kept.change(|bytes| {
            bytes.copy_from_slice(&new);
            for at in &changed[cut..] {
                bytes[HEADER_BYTES + at] = old[HEADER_BYTES + at];
            }
        });
        // The bytes are there before the header, and may count.
        let (id, epoch, len, closed) = list(&kept.start(1, 3))[0];
        assert_eq!((id, epoch, closed), (SEGMENT.0, 2, false), "{cut}");
        assert!((104..=200).contains(&len), "{cut}: {len}");
    }
    kept.change(|bytes| bytes.copy_from_slice(&new));
    assert_eq!(list(&kept.start(1, 3)), [(SEGMENT.0, 2, 200, false)]);
}

#[test]
fn damaged_replicas_do_not_count() {
    let kept = Kept::new(2);
    let mut backup = kept.start(1, 1);
    let closed = SegmentId(1);
    let len = sealed(closed).len();
    fill(&mut backup, closed, len);
    let open = SegmentId(2);
    fill(&mut backup, open, 104);
    drop(backup);
    assert_eq!(list(&kept.start(1, 2)).len(), 2);
    for frame in 0..2 {
        kept.change(|bytes| bytes[HEADER_BYTES + frame * STRIDE + HEADER_BYTES + 70] ^= 1);
    }
    // A closed replica is verified when it is read, unless the machine has started again.
    let mut backup = kept.start(1, 3);
    assert_eq!((list(&backup), backup.left()), (vec![(1, 2, len as u32, true)], (2, 1)));
    assert_eq!(backup.bytes(MASTER, open), None);
    let bytes = sealed(open);
    assert_eq!(backup.write(&write_of(open, &bytes, 104, 120)), Err(Status::NoReplica));
    // After a restart of the machine, the last bytes of an open replica may be lost.
    drop(backup);
    let mut backup = kept.start(2, 4);
    assert_eq!((list(&backup), backup.left()), (vec![(2, 2, 56, false)], (2, 1)));
    assert_eq!(backup.bytes(MASTER, closed), None);
    assert_eq!(backup.write(&write_of(closed, &sealed(closed), 1, 2)), Err(Status::NoReplica));
    drop(backup);
    let mut backup = kept.start(2, 5);
    assert_eq!(list(&backup)[1..], [(2, 2, 56, false)], "it was verified before");
    // The master makes a replica anew.
    backup.free(MASTER, closed, 2);
    fill(&mut backup, closed, 104);
    assert_eq!(list(&backup), [(1, 2, 104, false), (2, 2, 56, false)]);
    backup.free_unknown(&[ME].into());
    assert_eq!((backup.replicas(), backup.free_frames()), (1, 1), "only those that were left");
}

/// The bytes of a closed replica are not verified at a start of the process alone. When its master
/// goes on with it, they are.
#[test]
fn a_master_goes_on_with_intact_replicas_alone() {
    let (id, bytes) = (SegmentId(1), sealed(SegmentId(1)));
    for is_flipped in [false, true] {
        let kept = Kept::new(4);
        fill(&mut kept.start(1, 1), id, bytes.len());
        if is_flipped {
            kept.change(|all| {
                let at = all.windows(bytes.len()).position(|there| there == bytes).unwrap();
                all[at + bytes.len() - 1] ^= 4;
            });
        }
        let mut backup = kept.start(1, 2);
        assert_eq!(backup.left(), (1, 0));
        let reply = backup.write(&write_of(id, &bytes, 0, HEADER));
        let len = if is_flipped { HEADER } else { bytes.len() };
        assert_eq!((reply, backup.left()), (Ok(len as u32), (0, 0)));
        if is_flipped {
            let rest = write_of(id, &bytes, HEADER, bytes.len());
            assert_eq!(backup.write(&rest), Ok(bytes.len() as u32));
        }
        assert_eq!(backup.bytes(MASTER, id), Some(&bytes[..]));
        assert_eq!(backup.free_frames(), 3);
    }
}

#[test]
fn a_header_of_another_frame_or_without_an_intact_slot_is_no_replica() {
    let kept = Kept::new(2);
    let mut backup = kept.start(1, 1);
    fill(&mut backup, SEGMENT, 104);
    drop(backup);
    // A write went to the wrong place: the first frame has the replica.
    kept.change(|bytes| {
        bytes.copy_within(HEADER_BYTES..HEADER_BYTES + STRIDE, HEADER_BYTES + STRIDE);
    });
    let backup = kept.start(1, 2);
    assert_eq!((list(&backup).len(), backup.free_frames()), (1, 1));
    drop(backup);
    for slot in 0..SLOTS {
        kept.change(|bytes| bytes[HEADER_BYTES + slot * HEADER_BYTES / SLOTS + 20] ^= 1);
    }
    let mut backup = kept.start(1, 3);
    assert_eq!((backup.replicas(), backup.free_frames()), (0, 2));
    fill(&mut backup, SEGMENT, 104);
    drop(backup);
    assert_eq!(list(&kept.start(1, 4)).len(), 1);
}

#[test]
fn of_two_replicas_of_a_segment_the_better_one_counts_and_the_other_never_returns() {
    let kept = Kept::new(2);
    let mut backup = kept.start(1, 1);
    fill(&mut backup, SEGMENT, 104);
    drop(backup);
    let first = HEADER_BYTES..HEADER_BYTES + STRIDE;
    let old = kept.0.lock().unwrap()[first.clone()].to_vec();
    let mut backup = kept.start(1, 2);
    backup.free(MASTER, SEGMENT, 2);
    // The other frame takes the next replica, and the free header of the first one is lost.
    fill(&mut backup, SegmentId(9), 50);
    fill(&mut backup, SEGMENT, 120);
    backup.free(MASTER, SegmentId(9), 2);
    drop(backup);
    kept.change(|bytes| bytes[first].copy_from_slice(&old));
    let mut backup = kept.start(2, 3);
    assert_eq!((list(&backup), backup.free_frames()), (vec![(SEGMENT.0, 2, 120, false)], 1));
    backup.free(MASTER, SEGMENT, 2);
    drop(backup);
    assert_eq!(kept.start(2, 4).replicas(), 0);
}

#[test]
fn bytes_that_are_no_frames_are_refused() {
    let kept = Kept::new(2);
    let good = kept.0.lock().unwrap().clone();
    let open = |count| FlatFrames::open(crc32c, kept.life(), count).map(|frames| frames.count());
    assert_eq!(open(0), Ok(2));
    let needed = flat_bytes(SIZE, 2);
    *kept.0.lock().unwrap() = good[..good.len() - 1].to_vec();
    assert_eq!(open(0), Err(Unusable::Short(needed)));
    *kept.0.lock().unwrap() = good[..100].to_vec();
    assert_eq!(open(0), Err(Unusable::Foreign));
    *kept.0.lock().unwrap() = vec![0; good.len()];
    assert_eq!(open(0), Err(Unusable::Foreign));
    assert_eq!(flat_header(crc32c, &kept.0.lock().unwrap()), Found::Nothing);
    let none = FlatFrames::format(crc32c, kept.life(), 0, 2).map(|_| ());
    assert_eq!(none, Err(Unusable::Size(0)));
    // More frames are added behind the others, as far as there is room.
    let mut grown = good;
    grown.resize(flat_bytes(SIZE, 4) as usize + 9, 0);
    *kept.0.lock().unwrap() = grown;
    assert_eq!([open(0), open(3), open(9), open(0)], [Ok(2), Ok(3), Ok(4), Ok(4)]);
}

/// The bytes of both headers, as docs/formats.md has them.
#[test]
fn the_headers_have_these_bytes() {
    let owner = Some((0x0102_0304_0506_0708, ServerId { index: 9, generation: 10 }));
    let (frame_bytes, count, sequence, boot) = (0x0080_0000, 3, 5, 0x11);
    let (journal, batches) = (0x71, 0x81);
    let file = FileHeader { frame_bytes, count, sequence, boot, owner, journal, batches };
    let (slot, bytes) = file.emit(crc32c);
    let mut golden = b"SPRTBAK2\x00\x80\0\0\0\0\0\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x11".to_vec();
    golden.extend(*b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x09\0\0\0\x0a");
    golden.extend(*b"\0\0\0\x71\0\0\0\0\0\0\0\x81");
    golden.extend(crc32c(0, &golden).to_be_bytes());
    assert_eq!((slot, bytes.to_vec()), (1, golden));

    let replica = Some(Held {
        cluster: 7,
        master: MASTER,
        segment: SegmentId(0x21),
        epoch: 0x31,
        len: 0x41,
        closed: true,
        committed: true,
    });
    let (slot, bytes) = FrameHeader { frame: 2, sequence: 6, replica }.emit(crc32c);
    let mut golden = b"SPRTFRM1\0\0\0\x02\0\0\0\x31\0\0\0\0\0\0\0\x06".to_vec();
    golden.extend(*b"\0\0\0\0\0\0\0\x07\0\0\0\x02\0\0\0\x05\0\0\0\x21\0\0\0\x41\x02\x01");
    golden.extend([0; 10]);
    golden.extend(crc32c(0, &golden).to_be_bytes());
    assert_eq!((slot, bytes.to_vec()), (0, golden));
}

/// The power fails: each sector has what was synced last, or what was written since.
#[test]
fn a_loss_of_power_loses_what_was_not_synced_and_no_more() {
    let mut rng = Rng::seeded(1);
    let (mut longer, mut cut) = (0, 0);
    for _ in 0..300 {
        let kept = Kept::new(6);
        let mut backup = kept.start(1, 1);
        let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
        let mut change = |backup: &mut Backup, lengths: &mut BTreeMap<u32, usize>| {
            let id = 1 + rng.below(5) as u32;
            let bytes = sealed(SegmentId(id));
            let from = lengths.get(&id).copied().unwrap_or(0);
            if from == bytes.len() || from > 0 && rng.chance(100_000) {
                backup.free(MASTER, SegmentId(id), 2);
                lengths.remove(&id);
                return;
            }
            let least = from.max(HEADER);
            let more = rng.below(8) as usize * (8 + DIGESTED);
            let to = if rng.chance(300_000) { bytes.len() } else { bytes.len().min(least + more) };
            let write = write_of(SegmentId(id), &bytes, from, to);
            assert_eq!(backup.write(&write), Ok(to as u32));
            lengths.insert(id, to);
        };
        (0..12).for_each(|_| change(&mut backup, &mut lengths));
        let (synced, mut freed) = (lengths.clone(), BTreeSet::new());
        drop(backup);
        let old = kept.0.lock().unwrap().clone();
        let mut backup = kept.start(1, 2);
        for _ in 0..4 {
            change(&mut backup, &mut lengths);
            freed.extend(synced.keys().filter(|id| !lengths.contains_key(id)).copied());
        }
        drop(backup);
        kept.change(|new| {
            let sectors = new.chunks_mut(512).zip(old.chunks(512));
            for (new, old) in sectors.filter(|_| rng.chance(500_000)) {
                new.copy_from_slice(old);
            }
        });
        let backup = kept.start(2, 3);
        for (id, .., len, closed) in list(&backup) {
            let (whole, len) = (sealed(SegmentId(id)), len as usize);
            assert_eq!(backup.bytes(MASTER, SegmentId(id)), Some(&whole[..len]));
            assert!(!closed || len == whole.len());
        }
        // A replica that was freed since may be back.
        for (&id, &before) in synced.iter().filter(|(id, _)| !freed.contains(id)) {
            let now = lengths[&id];
            let found = list(&backup).into_iter().find(|replica| replica.0 == id);
            match found {
                Some((.., len, _)) => {
                    assert!((before..=now).contains(&(len as usize)), "{before} {len} {now}");
                    longer += u32::from(len as usize > before);
                }
                // It was closed since, and lacks bytes.
                None => {
                    assert!(before < now && now == sealed(SegmentId(id)).len(), "{id}");
                    cut += 1;
                }
            }
        }
    }
    assert!(longer > 50 && cut > 5, "{longer} {cut}");
}

/// A frame that the disk has no room for is refused, and what is there stays in use.
#[test]
fn a_full_disk_is_a_refusal() {
    let kept = Kept::new(2);
    let frames = FlatFrames::open(crc32c, kept.full_life(HEADER_BYTES + STRIDE), 0).unwrap();
    let mut backup = Backup::new(Box::new(frames), crc32c, 7);
    backup.set_owner(CLUSTER, ME);
    fill(&mut backup, SegmentId(1), 104);
    let second = sealed(SegmentId(2));
    let refused = backup.write(&write_of(SegmentId(2), &second, 0, HEADER));
    assert_eq!((refused, backup.free_frames()), (Err(Status::NoSpace), 1));
    assert!(backup.write(&write_of(SegmentId(1), &sealed(SegmentId(1)), 104, 200)).is_ok());
    drop(backup);

    // A copy lacks the room that the file had.
    for (full_at, opens) in [(HEADER_BYTES + STRIDE, true), (HEADER_BYTES + STRIDE - 1, false)] {
        let opened = FlatFrames::open(crc32c, kept.full_life(full_at), 0).map(|_| ());
        assert_eq!(opened, if opens { Ok(()) } else { Err(Unusable::NoRoom) });
    }
    let zeros = vec![0; flat_bytes(SIZE, 1) as usize];
    let nothing = Kept(Arc::new(Mutex::new(zeros)), Rot::default());
    let made = FlatFrames::format(crc32c, nothing.full_life(0), SIZE, 1).map(|_| ());
    assert_eq!(made, Err(Unusable::NoRoom));
}

/// The bug: with a flipped bit in the last header of an open replica, the header before it counted,
/// and the log ended before changes that were acknowledged.
#[test]
fn a_damaged_last_header_does_not_shorten_an_open_replica() {
    let bytes = sealed(SEGMENT);
    let mut ends = Vec::new();
    let mut entries = entry::Entries::default();
    while entries.next(crc32c, &bytes).is_some() {
        ends.push(entries.at());
    }
    let (before, last) = (ends[ends.len() - 3], ends[ends.len() - 2]);
    for flipped in 0..SLOT_BYTES {
        let kept = Kept::new(1);
        let mut backup = kept.start(1, 1);
        fill(&mut backup, SEGMENT, before);
        backup.write(&write_of(SEGMENT, &bytes, before, last)).unwrap();
        drop(backup);
        // The header was written three times.
        kept.change(|bytes| bytes[HEADER_BYTES + HEADER_BYTES / 2 + flipped] ^= 1);
        let listed = list(&kept.start(1, 2));
        assert_eq!(listed, [(SEGMENT.0, 2, last as u32, false)], "{flipped}");
    }
}

/// A survey finds what a backup would find, and verifies the bytes of closed replicas too.
#[test]
fn a_survey_counts_the_replicas_and_finds_each_flaw() {
    let survey = |kept: &Kept, boot: u64| {
        let bytes = kept.0.lock().unwrap().clone();
        let header = flat_header(crc32c, &bytes).header().unwrap();
        let (mut survey, journal) = (Survey::new(crc32c, &header, boot), JournalContent::default());
        for frame in 0..header.count {
            let at = flat_offset(SIZE, frame) as usize;
            let mut frame_bytes = bytes[at + BLOCK..at + BLOCK + SIZE as usize].to_vec();
            let slots = flat_slots(&bytes, at);
            survey.examine(frame, slots, &journal, || Some(&mut frame_bytes));
        }
        assert_eq!(*kept.0.lock().unwrap(), bytes, "nothing changes");
        survey
    };
    let kept = Kept::new(4);
    let mut backup = kept.start(1, 1);
    let len = sealed(SegmentId(1)).len();
    fill(&mut backup, SegmentId(1), len);
    fill(&mut backup, SegmentId(2), 104);
    fill(&mut backup, SegmentId(3), 104);
    backup.free(MASTER, SegmentId(3), 2);
    drop(backup);
    let sound = survey(&kept, 1);
    assert_eq!((sound.free, sound.flaws.len()), (2, 0), "{:?}", sound.flaws);
    let (open, closed, bytes, epochs) = (1, 1, len as u64 + 104, (2, 2));
    assert_eq!(sound.masters[&(CLUSTER, MASTER)], Counted { open, closed, bytes, epochs });

    // Frames are taken from the first one on.
    let flaws = |at: usize, boot| {
        kept.change(|bytes| bytes[at] ^= 1);
        let flaws = survey(&kept, boot).flaws;
        kept.change(|bytes| bytes[at] ^= 1);
        flaws.into_iter().map(|(frame, _, condition)| (frame, condition)).collect::<Vec<_>>()
    };
    let first = HEADER_BYTES;
    let damaged = flaws(first + HEADER_BYTES + HEADER + 10, 1);
    assert!(
        matches!(damaged[..], [(0, Condition::Bytes(at))] if at == HEADER as u32),
        "{damaged:?}"
    );
    let cut = flaws(first + STRIDE + HEADER_BYTES + HEADER + 10, 2);
    assert!(matches!(cut[..], [(1, Condition::Cut(at))] if at == HEADER as u32), "{cut:?}");
    assert!(!cut[0].1.is_damaged() && damaged[0].1.is_damaged());
    assert_eq!(flaws(first, 1), [(0, Condition::Slot)]);
    let both = |bytes: &mut [u8]| (bytes[first], bytes[first + 2048]) = (1, 1);
    kept.change(both);
    let found = survey(&kept, 1).flaws;
    assert_eq!(found, [(0, Content::Unknown, Condition::Header)]);
    let mut empty = Survey::new(crc32c, &FileHeader::default(), 1);
    empty.examine(7, None, &JournalContent::default(), || None);
    assert_eq!(empty.flaws, [(7, Content::Unknown, Condition::Unreadable)]);
}
