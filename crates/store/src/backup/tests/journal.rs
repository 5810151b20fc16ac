//! Tests of the journal: what it gives back after a loss of power, and what it finds damaged.

use alloc::collections::BTreeMap;

use super::kept::{Kept, SIZE, sealed, write_of};
use super::*;
use crate::backup::journal::{Batch, Record};
use crate::objects::entry::DIGESTED;

const NUMBER: u32 = 0x71;
const BLOCKS: usize = 9;
/// The bytes of an entry of [`sealed`].
const ENTRY: usize = 8 + DIGESTED;

/// A disk with frames and the region of their journal.
struct Disk {
    kept: Kept,
    region: Vec<u8>,
    writer: JournalWriter,
    boot: u64,
    lives: u32,
}

fn parse(region: &[u8], floor: u64) -> JournalContent<'_> {
    JournalContent::parse(crc32c, NUMBER, floor, region)
}

fn writer(content: &JournalContent<'_>) -> JournalWriter {
    JournalWriter::new(crc32c, NUMBER, (BLOCKS * BLOCK) as u64, content)
}

/// Returns a batch with one record of `len` bytes.
fn batch_of(len: usize) -> Vec<u8> {
    let (master, segment, offset) = (MASTER, SegmentId(0x21), 0x31);
    let record =
        Record { frame: 1, epoch: 2, sequence: 3, master, segment, offset, len: len as u32 };
    let mut batch = Batch::new(1 << 20);
    assert!(batch.push(&record, &vec![0xdd; len]));
    batch.finish().unwrap()
}

/// Completes a batch and puts it into a region. Returns its offset and its bytes.
fn put(writer: &mut JournalWriter, region: &mut [u8], batch: &[u8]) -> (usize, Vec<u8>) {
    let mut bytes = batch.to_vec();
    bytes.resize(batch.len().next_multiple_of(BLOCK), 0);
    let at = writer.seal(&mut bytes, batch.len()) as usize;
    region[at..at + bytes.len()].copy_from_slice(&bytes);
    (at, bytes)
}

impl Disk {
    /// Returns a disk with two open replicas of three entries each, synced.
    fn new() -> Self {
        let (kept, mut region) = (Kept::new(3), vec![0; BLOCKS * BLOCK]);
        let mut writer = writer(&JournalContent::default());
        let mut mark = [0; BLOCK];
        let at = writer.turn(&mut mark) as usize;
        region[at..].copy_from_slice(&mark);
        set_journal(crc32c, &mut kept.frames(), NUMBER, writer.last());
        let mut disk = Self { kept, region, writer, boot: 1, lives: 0 };
        let mut backup = disk.start();
        for id in [1, 2].map(SegmentId) {
            let bytes = sealed(id);
            backup.write(&write_of(id, &bytes, 0, HEADER)).unwrap();
            backup.write(&write_of(id, &bytes, HEADER, HEADER + 3 * ENTRY)).unwrap();
        }
        assert!(backup.take_batch().is_none());
        disk
    }

    /// Starts a backup. What it writes to the frames is on the disk when it ends.
    fn start(&mut self) -> Backup {
        let mut frames = self.kept.frames();
        let floor = frames.file_header().batches;
        let content = parse(&self.region, floor);
        let mut journal = replay(crc32c, &mut frames, &content);
        self.writer = writer(&content);
        journal.begin(JournalWriter::most(self.region.len() as u64));
        frames.set_journal(journal);
        let mut backup = Backup::new(Box::new(frames), crc32c, self.boot);
        self.lives += 1;
        backup.set_owner(CLUSTER, ServerId { generation: self.lives, ..ME });
        backup
    }

    /// Appends entries to replicas, as many batches as `appends` has rows, and loses the power.
    /// Each row has the numbers of new entries of both replicas. The frames are as they were.
    fn append(&mut self, appends: &[[usize; 2]]) {
        let before = self.kept.bytes();
        let mut backup = self.start();
        backup.take_batch();
        for row in appends {
            for (id, entries) in [1, 2].map(SegmentId).into_iter().zip(row) {
                let (bytes, len) = (sealed(id), backup.bytes(MASTER, id).unwrap().len());
                backup.write(&write_of(id, &bytes, len, len + entries * ENTRY)).unwrap();
            }
            let batch = backup.take_batch().expect("appends alone");
            put(&mut self.writer, &mut self.region, &batch);
        }
        drop(backup);
        self.kept.change(|bytes| bytes.copy_from_slice(&before));
        self.boot += 1;
    }

    /// Returns the entries of both replicas as the next life finds them, by segment.
    fn found(&mut self) -> BTreeMap<u32, usize> {
        let backup = self.start();
        let page = backup.list(MASTER, SegmentId(0));
        let found = |r: &recovery::Replica| {
            let bytes = backup.bytes(MASTER, r.segment).unwrap();
            assert_eq!(bytes, &sealed(r.segment)[..bytes.len()]);
            (r.segment.0, (bytes.len() - HEADER) / ENTRY)
        };
        page.replicas.iter().map(found).collect()
    }
}

/// A record is not written to a frame that the device does not deliver, since a write to a part of
/// a page reads the page. The next life has no record any more, and the replica lacks bytes.
#[test]
fn a_record_of_a_frame_that_cannot_be_read_makes_its_replica_damaged() {
    let mut disk = Disk::new();
    disk.append(&[[1, 2]]);
    let last = flat_offset(SIZE, 2) as usize - 1;
    let before = disk.kept.bytes();
    disk.kept.1.lock().unwrap().push((last, 0));
    assert_eq!(disk.found(), [(1, 4)].into());
    let bytes = flat_offset(SIZE, 1) as usize + BLOCK;
    assert_eq!(disk.kept.bytes()[bytes..=last], before[bytes..=last]);
    disk.kept.1.lock().unwrap().clear();
    for (region, boot) in [(disk.region.clone(), 2), (vec![0; BLOCKS * BLOCK], 3)] {
        (disk.region, disk.boot) = (region, boot);
        assert!(!disk.found().contains_key(&2), "{boot}");
    }
}

/// The bytes of a batch, as docs/formats.md has them.
#[test]
fn a_batch_has_these_bytes() {
    let mut region = vec![0; BLOCKS * BLOCK];
    let mut writer = writer(&JournalContent::default());
    writer.turn(&mut [0; BLOCK]);
    let (at, bytes) = put(&mut writer, &mut region, &batch_of(5));
    let mut golden = b"SPRTJNL1\0\0\0\x71\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02".to_vec();
    golden.extend(*b"\0\0\0\x29\0\0\0\0\0\0\0\0");
    let mut record = b"\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x02\0\0\0\x05".to_vec();
    record.extend(*b"\0\0\0\x21\0\0\0\x31\0\0\0\x05\xdd\xdd\xdd\xdd\xdd");
    golden.extend(crc32c(crc32c(0, &golden), &record).to_be_bytes());
    golden.extend(record);
    golden.resize(BLOCK, 0);
    assert_eq!((at, bytes), (0, golden));
    let content = parse(&region, 0);
    assert_eq!((content.last, content.needed, content.records()), (2, 1, 1));
}

#[test]
fn what_was_appended_is_there_after_a_loss_of_power() {
    let mut disk = Disk::new();
    disk.append(&[[1, 0], [2, 1], [0, 2]]);
    assert_eq!(disk.found(), [(1, 6), (2, 6)].into());
    assert_eq!(disk.found(), [(1, 6), (2, 6)].into(), "a replay can be repeated");
    // The frames have it now, and the journal goes on.
    disk.append(&[[1, 1]]);
    assert_eq!(parse(&disk.region, 1).needed, 1);
    assert_eq!(disk.found(), [(1, 7), (2, 7)].into());
    disk.append(&[]);
    assert_eq!(disk.found(), [(1, 7), (2, 7)].into());
}

/// The headers of a later life are newer than the records of an earlier one, whose own headers the
/// loss of power took: a record of an earlier epoch proves nothing any more.
#[test]
fn a_replica_that_its_master_goes_on_with_outlives_the_next_loss_of_power() {
    for appends in 1..5 {
        let mut disk = Disk::new();
        disk.append(&vec![[1, 0]; appends]);
        let mut backup = disk.start();
        let (id, len) = (SegmentId(1), HEADER + (3 + appends) * ENTRY);
        let bytes = sealed(id);
        let write = write_of(id, &bytes, 0, len);
        let again = WriteReplica { epoch: write.epoch + 1, ..write };
        assert_eq!(backup.write(&again), Ok(len as u32));
        assert!(backup.take_batch().is_none(), "the frames are synced");
        drop(backup);
        disk.boot += 1;
        assert_eq!(disk.found(), [(1, 3 + appends), (2, 3)].into());
    }
}

/// A record of a later epoch than that of the header shows that the disk has lost a change which it
/// had synced. The replica is damaged, and stays so if the server ends behind the replay.
#[test]
fn a_header_that_lost_a_change_is_found_again_by_the_next_replay() {
    for appends in 2..5 {
        let mut disk = Disk::new();
        let before = disk.kept.bytes();
        let mut backup = disk.start();
        backup.take_batch();
        let (id, mut len) = (SegmentId(1), HEADER + 3 * ENTRY);
        let bytes = sealed(id);
        for epoch in [0, 1] {
            for _ in 0..appends {
                let write = write_of(id, &bytes, len, len + ENTRY);
                len += ENTRY;
                let again = WriteReplica { epoch: write.epoch + epoch, ..write };
                assert_eq!(backup.write(&again), Ok(len as u32));
                if let Some(batch) = backup.take_batch() {
                    put(&mut disk.writer, &mut disk.region, &batch);
                }
            }
        }
        drop(backup);
        disk.kept.change(|bytes| bytes.copy_from_slice(&before));
        disk.boot += 1;
        // The server ends when it has replayed the journal.
        let mut frames = disk.kept.frames();
        let floor = frames.file_header().batches;
        let _ = replay(crc32c, &mut frames, &parse(&disk.region, floor));
        drop(frames);
        assert_eq!(disk.found().get(&1), None, "{appends} appends");
    }
}

/// A batch whose write did not end is torn, and was not acknowledged. One that is damaged before it
/// was: no open replica counts, for any may lack bytes. That is so in later lives, too.
#[test]
fn a_flipped_bit_never_shortens_a_replica_silently() {
    for (batch, damaged) in [(0, true), (1, true), (2, false)] {
        for at in 0..48 + 36 + ENTRY {
            let mut disk = Disk::new();
            disk.append(&[[1, 0], [1, 1], [0, 1]]);
            disk.region[batch * BLOCK + at] ^= 0x10;
            let expected = if damaged { [].into() } else { [(1, 5), (2, 4)].into() };
            assert_eq!(disk.found(), expected, "batch {batch}, byte {at}");
            assert_eq!(disk.found(), expected, "batch {batch}, byte {at}: the life after it");
        }
    }
}

#[test]
fn in_the_same_run_of_the_machine_a_damaged_journal_costs_nothing() {
    let mut disk = Disk::new();
    disk.append(&[[1, 0], [1, 1]]);
    assert_eq!(disk.found(), [(1, 5), (2, 4)].into());
    disk.region[20] ^= 1;
    assert_eq!(disk.found(), [(1, 5), (2, 4)].into(), "the kernel has what was written");
}

#[test]
fn a_journal_that_is_gone_old_or_foreign_is_noticed() {
    let old = Disk::new().region;
    let mut disk = Disk::new();
    disk.append(&[[1, 1]]);
    let number = u32::to_be_bytes(NUMBER + 1);
    let mut foreign = disk.region.clone();
    foreign.chunks_mut(BLOCK).for_each(|block| block[8..12].copy_from_slice(&number));
    let (cut, whole) = (disk.region[..BLOCK / 2].to_vec(), disk.region.clone());
    let frames = disk.kept.bytes();
    for (region, found) in [
        (whole, [(1, 4), (2, 4)].into()),
        (foreign, [].into()),
        (vec![0; BLOCKS * BLOCK], [].into()),
        (Vec::new(), [].into()),
        (cut, [].into()),
    ] {
        disk.kept.change(|bytes| bytes.copy_from_slice(&frames));
        disk.region = region;
        assert_eq!(disk.found(), found);
    }
    // The life after the one that has written the batch names it.
    disk.kept.change(|bytes| bytes.copy_from_slice(&frames));
    set_journal(crc32c, &mut disk.kept.frames(), NUMBER, 2);
    disk.region = old;
    assert_eq!(disk.found(), [].into());
}

/// A record counts for the replica of its epoch. If the frame's header is the newer one, the
/// replica was made anew since. If it is older, a change that was durable is lost.
#[test]
fn a_record_of_another_epoch_does_not_count() {
    for (epoch, sequence, found) in [(2, 9, Some(4)), (1, 1, Some(3)), (3, 9, None)] {
        let mut disk = Disk::new();
        let bytes = sealed(SegmentId(1));
        let from = HEADER + 3 * ENTRY;
        let (segment, offset, len) = (SegmentId(1), from as u32, ENTRY as u32);
        let record = Record { frame: 0, epoch, sequence, master: MASTER, segment, offset, len };
        let mut batch = Batch::new(1 << 12);
        batch.push(&record, &bytes[from..from + ENTRY]);
        put(&mut disk.writer, &mut disk.region, &batch.finish().unwrap());
        disk.boot += 1;
        assert_eq!(disk.found().get(&1).copied(), found, "epoch {epoch}");
    }
}

/// Bytes before a record were durable. If the frame lacks them, the replica is damaged.
#[test]
fn a_gap_before_a_record_is_damage() {
    for gap in [0, 1] {
        let mut disk = Disk::new();
        let (bytes, from) = (sealed(SegmentId(1)), HEADER + (3 + gap) * ENTRY);
        let (master, segment, offset, len) = (MASTER, SegmentId(1), from as u32, ENTRY as u32);
        let record = Record { frame: 0, epoch: 2, sequence: 9, master, segment, offset, len };
        let mut batch = Batch::new(1 << 12);
        batch.push(&record, &bytes[from..from + ENTRY]);
        put(&mut disk.writer, &mut disk.region, &batch.finish().unwrap());
        disk.boot += 1;
        assert_eq!(disk.found().get(&1).copied(), (gap == 0).then_some(4));
        assert_eq!(disk.found().get(&1).copied(), (gap == 0).then_some(4), "a later life");
    }
}

#[test]
fn only_appends_go_to_the_journal() {
    let mut disk = Disk::new();
    let mut backup = disk.start();
    let (id, bytes) = (SegmentId(1), sealed(SegmentId(1)));
    let at = |entries: usize| HEADER + entries * ENTRY;
    assert!(backup.take_batch().is_none(), "the first sync of a life is one of the frames");
    backup.write(&write_of(id, &bytes, at(3), at(4))).unwrap();
    backup.write(&write_of(id, &bytes, at(4), at(5))).unwrap();
    let batch = backup.take_batch().unwrap();
    assert_eq!(batch.len(), 48 + 36 + 2 * ENTRY, "one record");
    let (two, second) = (SegmentId(2), sealed(SegmentId(2)));
    let mut len = 3;
    // What needs the frames needs them also together with an append.
    let mut frames = |change: &mut dyn FnMut(&mut Backup)| {
        backup.write(&write_of(two, &second, at(len), at(len + 1))).unwrap();
        len += 1;
        change(&mut backup);
        let synced = backup.take_batch().is_none();
        assert!(backup.take_batch().is_none(), "nothing was written since");
        synced
    };
    let append = write_of(id, &bytes, at(5), at(6));
    assert!(!frames(&mut |backup| assert!(backup.write(&append).is_ok())));
    assert!(!frames(&mut |backup| assert!(backup.write(&append).is_ok())), "a repetition");
    let stamp = WriteReplica { epoch: 3, ..write_of(id, &bytes, at(6), at(7)) };
    assert!(frames(&mut |backup| assert!(backup.write(&stamp).is_ok())), "another epoch");
    let close = WriteReplica { epoch: 3, ..write_of(id, &bytes, at(7), bytes.len()) };
    assert!(frames(&mut |backup| assert!(backup.write(&close).is_ok())), "a close");
    let (new, other) = (SegmentId(3), sealed(SegmentId(3)));
    let open = write_of(new, &other, 0, HEADER);
    assert!(frames(&mut |backup| assert!(backup.write(&open).is_ok())), "an open");
    let append = WriteReplica { offset: HEADER as u32, data: &other[HEADER..at(1)], ..open };
    let append = WriteReplica { open: false, ..append };
    assert!(!frames(&mut |backup| {
        backup.write(&append).unwrap();
        backup.free(MASTER, new, 2);
    }));
    // A replica that does not count yet is written without a word to the disk.
    let open = WriteReplica { commit: false, ..write_of(new, &other, 0, HEADER) };
    assert!(!frames(&mut |backup| assert!(backup.write(&open).is_ok())));
    let commit = WriteReplica { open: false, ..write_of(new, &other, HEADER, at(2)) };
    assert!(frames(&mut |backup| assert!(backup.write(&commit).is_ok())), "it counts now");
}

#[test]
fn bytes_that_are_many_go_to_the_frames_alone() {
    let mut disk = Disk::new();
    let mut backup = disk.start();
    backup.take_batch();
    backup.appends.as_mut().unwrap().limit(48 + 36 + 2 * ENTRY);
    let (id, bytes) = (SegmentId(1), sealed(SegmentId(1)));
    let at = |entries: usize| HEADER + entries * ENTRY;
    backup.write(&write_of(id, &bytes, at(3), at(5))).unwrap();
    assert!(backup.take_batch().is_some());
    backup.write(&write_of(id, &bytes, at(5), at(8))).unwrap();
    assert!(backup.take_batch().is_none());
}

/// Random batches, syncs of the frames and losses of power: the journal has every batch that was
/// written since the last sync, and finds nothing amiss.
#[test]
fn random_batches_against_a_list_of_them() {
    for seed in 0..300 {
        let mut rng = Rng::seeded(seed);
        let mut region = vec![0; BLOCKS * BLOCK];
        let mut writer = writer(&JournalContent::default());
        // The batches that the frames lack.
        let mut lacking: Vec<Vec<u8>> = Vec::new();
        for _ in 0..rng.below(60) {
            let batch = batch_of(1 + rng.below(3 * BLOCK as u64 - 300) as usize);
            let torn = rng.chance(50_000);
            let old = region.clone();
            if !writer.has_room(batch.len()) {
                lacking.clear();
                let mut mark = vec![0; BLOCK];
                let at = writer.turn(&mut mark) as usize;
                region[at..].copy_from_slice(&mark);
            } else if rng.chance(100_000) {
                lacking.clear();
                writer.synced();
            }
            let (at, bytes) = put(&mut writer, &mut region, &batch);
            if torn {
                for sector in (at..at + bytes.len()).step_by(512) {
                    if rng.chance(500_000) {
                        let sector = sector..sector + 512;
                        region[sector.clone()].copy_from_slice(&old[sector]);
                    }
                }
                let is_whole = region[at..at + batch.len()] == bytes[..batch.len()];
                lacking.extend(is_whole.then_some(batch));
                let content = parse(&region, 0);
                assert!(content.is_whole, "{seed}");
                // The next life has the frames synced.
                writer = self::writer(&content);
                // Without a batch after the sync, the earlier ones are still there.
                let (found, lacked) = (content.records(), lacking.len());
                assert!(found == lacked || lacked == 0, "{seed}");
                lacking.clear();
            } else {
                lacking.push(batch);
            }
        }
        let content = parse(&region, 0);
        assert!(content.is_whole, "{seed}");
        assert!(lacking.is_empty() || content.records() == lacking.len(), "{seed}");
    }
}
