use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use rustix::event::{PollFd, PollFlags, poll};
use sprat_proto::node::{Pairs, Written};
use sprat_store::backup::{BLOCK, Backup, Block, Frames as _, Held, flat_offset};
use sprat_store::objects::entry::{self, HEADER};
use sprat_store::objects::segment::SegmentId;
use sprat_store::types::{ServerId, Version};

use super::*;
use crate::disk::Disk as _;

const SIZE: u32 = 1 << 16;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames");
    (folder, path)
}

/// Opens frames without a journal.
fn open_at(
    path: &Path,
    size: u32,
    count: u32,
    warn: fn(&str),
) -> io::Result<(FileFrames, FrameDisk)> {
    open((path, &path.with_file_name("journal")), size, count, false, warn)
}

fn error(path: &Path, count: u32) -> (io::ErrorKind, String) {
    let e = open_at(path, SIZE, count, |_| {}).unwrap_err();
    assert!(e.to_string().starts_with(&path.display().to_string()), "{e}");
    (e.kind(), e.to_string())
}

#[test]
fn what_was_written_is_there_after_reopening() {
    let (_folder, path) = folder();
    let mut frames = open_at(&path, SIZE, 3, |_| {}).unwrap().0;
    assert_eq!((frames.count(), frames.size()), (3, SIZE));
    assert_eq!(fs::metadata(&path).unwrap().len(), flat_bytes(SIZE, 3));
    frames.write(2, 5, b"hello");
    frames.write_header(Block::Frame(2), 1, &[9; 64]);
    assert_eq!(error(&path, 3).0, io::ErrorKind::ResourceBusy);
    drop(frames);
    // The size of frames stays, and their number only grows.
    for (count, counted) in [(1, 3), (3, 3), (5, 5), (2, 5)] {
        let (frames, _) = open_at(&path, SIZE / 2, count, |_| {}).unwrap();
        assert_eq!((frames.count(), frames.size()), (counted, SIZE));
        assert_eq!(&frames.bytes(2)[5..10], b"hello");
        assert_eq!(frames.header(Block::Frame(2)).unwrap()[1], &[9; 64]);
        assert_eq!(frames.bytes(counted - 1).len(), SIZE as usize);
    }
}

#[test]
fn a_file_that_was_not_finished_is_made_anew() {
    let (_folder, path) = folder();
    for len in [0, 4096, flat_bytes(SIZE, 1), flat_bytes(SIZE, 9)] {
        File::create(&path).unwrap().set_len(len).unwrap();
        assert_eq!(open_at(&path, SIZE, 2, |_| {}).unwrap().0.count(), 2);
    }
}

#[test]
fn other_files_are_refused_and_stay() {
    let (folder, path) = folder();
    drop(open_at(&path, SIZE, 2, |_| {}).unwrap());
    let good = fs::read(&path).unwrap();
    fs::write(&path, &good[..good.len() - 1]).unwrap();
    // What was cut off may be needed: the file is not made longer.
    assert!(error(&path, 2).1.contains("cut off"), "{:?}", error(&path, 2));
    assert_eq!(fs::metadata(&path).unwrap().len(), good.len() as u64 - 1);
    for junk in [&b"hello"[..], &[1; 10_000]] {
        fs::write(&path, junk).unwrap();
        assert_eq!(error(&path, 2).0, io::ErrorKind::InvalidData);
        assert_eq!(fs::read(&path).unwrap(), junk);
    }
    assert!(matches!(error(folder.path(), 2).0, io::ErrorKind::IsADirectory));
    assert_eq!(error(&folder.path().join("no/frames"), 2).0, io::ErrorKind::NotFound);
}

/// Makes frames that are synced by `sync`.
fn synced_by(
    sync: fn(&File) -> io::Result<()>,
    warn: fn(&str),
) -> (FileFrames, FrameDisk, Arc<State>) {
    over(Functions { write: MappedFile::write, sync, warn })
}

/// Makes frames over these functions.
fn over(functions: Functions) -> (FileFrames, FrameDisk, Arc<State>) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(flat_bytes(SIZE, 1)).unwrap();
    let memory = MappedFile::map(file).unwrap();
    let (storage, disk) = FrameFile::start(memory, "test".to_owned(), functions).unwrap();
    let state = Arc::clone(&storage.state);
    (FlatFrames::format(crc32c, storage, SIZE, 1).unwrap(), disk, state)
}

/// Waits for the outcome of the next sync.
fn outcome(disk: &mut FrameDisk) -> Written {
    let mut fds = [PollFd::from_borrowed_fd(disk.fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, None), Ok(1));
    disk.clear();
    disk.completed().expect("its descriptor says so")
}

#[test]
fn after_an_error_of_the_device_no_frame_is_opened() {
    let (mut frames, _, state) =
        synced_by(|_| Err(Errno::IO.into()), |text| assert!(text.contains("test: ")));
    assert!(frames.open(0));
    state.failed.store(true, Ordering::Release);
    assert!(!frames.open(0) && frames.has_failed());
    state.failed.store(false, Ordering::Release);
    frames.write(0, 0, b"x");
    // The last sync is that of the end.
    drop(frames);
    assert!(state.failed.load(Ordering::Acquire));
}

#[test]
fn a_sync_on_demand_is_reported_and_ends_the_wait_of_the_worker() {
    static SYNCED: AtomicU32 = AtomicU32::new(0);
    let count = |_: &File| {
        SYNCED.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let (frames, mut disk, _) = synced_by(count, |_| {});
    for seq in 1..=3 {
        assert!(disk.completed().is_none());
        disk.persist(seq, Pairs::new(), Vec::new());
        assert!(matches!(outcome(&mut disk), Written::Durable(done) if done == seq));
        assert!(SYNCED.load(Ordering::Relaxed) >= seq as u32, "also without a new write");
    }
    drop(frames);
    disk.persist(4, Pairs::new(), Vec::new());
    assert!(disk.completed().is_none(), "the server has ended");
}

/// The kernel forgets what it could not write, so that another sync would succeed.
#[test]
fn after_a_failed_sync_no_other_one_counts() {
    static SYNCED: AtomicU32 = AtomicU32::new(0);
    static WARNED: AtomicU32 = AtomicU32::new(0);
    let fail_once = |_: &File| match SYNCED.fetch_add(1, Ordering::Relaxed) {
        0 => Err(Errno::IO.into()),
        _ => Ok(()),
    };
    let (mut frames, mut disk, _) = synced_by(fail_once, |_| {
        WARNED.fetch_add(1, Ordering::Relaxed);
    });
    for seq in 1..=2 {
        disk.persist(seq, Pairs::new(), Vec::new());
        let outcome = outcome(&mut disk);
        assert!(matches!(&outcome, Written::Refused { .. }), "{outcome:?}");
        assert!(frames.has_failed() && !frames.open(0));
    }
    drop(frames);
    assert_eq!((SYNCED.load(Ordering::Relaxed), WARNED.load(Ordering::Relaxed)), (1, 1));
}

/// The server does not wait for this sync. But it has to tell other servers that their replicas are
/// lost.
#[test]
fn the_failure_of_a_sync_that_nothing_waits_for_is_reported_once() {
    let (mut frames, mut disk, _) = synced_by(|_| Err(Errno::IO.into()), |_| {});
    frames.write(0, 0, b"x");
    assert!(matches!(outcome(&mut disk), Written::Refused { .. }));
    assert!(frames.has_failed());
    frames.write(0, 1, b"y");
    drop(frames);
    assert!(disk.completed().is_none());
}

/// The masters have to learn that their other replicas are lost, too.
#[test]
fn a_write_that_fails_is_reported_once() {
    static WARNED: AtomicU32 = AtomicU32::new(0);
    let (mut frames, mut disk, _) = over(Functions {
        write: |memory, at, bytes| match bytes.len() {
            100 => Err(Errno::IO.into()),
            _ => memory.write(at, bytes),
        },
        sync: File::sync_data,
        warn: |_| _ = WARNED.fetch_add(1, Ordering::Relaxed),
    });
    assert!(frames.open(0) && frames.write(0, 0, b"x"));
    assert!(!frames.write(0, 1, &[7; 100]));
    assert!(frames.has_failed() && !frames.open(0));
    assert!(matches!(outcome(&mut disk), Written::Refused { .. }));
    assert!(!frames.write(0, 1, &[7; 100]));
    drop(frames);
    assert!(disk.completed().is_none());
    assert_eq!(WARNED.load(Ordering::Relaxed), 1);
}

/// The server does not start. Its error, and not a warning alone, has to say why.
#[test]
fn a_journal_that_cannot_be_brought_into_the_frames_names_the_cause() {
    let (mut frames, disk, _) = over(Functions {
        write: |_, _, _| Err(Errno::DQUOT.into()),
        sync: |_| Ok(()),
        warn: |_| {},
    });
    let (_folder, path) = folder();
    let file = File::create(&path).unwrap();
    assert!(!frames.write(0, 0, b"a record"));
    let e = open_journal(&path, (&mut frames, &disk), &file, true).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::QuotaExceeded);
    let (said, cause) = (e.to_string(), io::Error::from(Errno::DQUOT).to_string());
    assert!(said.contains(&format!("test: {cause}")) && said.contains("another directory"));
}

#[test]
fn a_run_of_the_machine_has_one_number_and_tmpfs_a_warning() {
    assert_eq!(boot().unwrap(), boot().unwrap());
    assert_ne!(boot().unwrap(), 0);
    assert!(warning_for(0x0102_1994).unwrap().contains("reboot"));
    assert_eq!(warning_for(0xEF53), None, "ext4");
    assert!(warning(Path::new("/proc")).is_ok());
    assert!(warning(Path::new("/no/such/directory")).is_err());
}

/// A process that was killed may still have the lock.
#[test]
fn a_lock_that_ends_soon_is_waited_for() {
    let (_folder, path) = folder();
    let (frames, _) = open_at(&path, SIZE, 1, |_| {}).unwrap();
    std::thread::scope(|scope| {
        let next =
            scope.spawn(|| open_at(&path, SIZE, 1, |_| {}).map(|(frames, _)| frames.count()));
        let busy = File::open(&path).unwrap();
        assert_eq!(lock(&busy).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(frames);
        assert_eq!(next.join().unwrap().unwrap(), 1);
    });
}

/// Returns a batch for the journal, with one record of a replica that no frame holds.
fn batch(len: u32) -> Vec<u8> {
    let mut bytes = vec![0; 48 + 32];
    bytes.extend(len.to_be_bytes());
    bytes.resize(bytes.len() + len as usize, 7);
    bytes
}

/// Opens frames with a journal. `None` if the file system has no direct writes.
fn open_with_journal(path: &Path) -> Option<(FileFrames, FrameDisk)> {
    let journal = path.with_file_name("journal");
    let opened = open((path, &journal), SIZE, 1, true, |_| {}).unwrap();
    journal.exists().then_some(opened)
}

fn append(disk: &mut FrameDisk, seq: u64, len: u32) {
    disk.persist(seq, vec![(Vec::new(), batch(len))], Vec::new());
    assert!(matches!(outcome(disk), Written::Durable(done) if done == seq));
}

#[test]
fn a_batch_is_in_the_journal_and_the_next_life_goes_on_behind_it() {
    let (_folder, path) = folder();
    let Some((frames, mut disk)) = open_with_journal(&path) else { return };
    let journal = path.with_file_name("journal");
    assert_eq!(fs::metadata(&journal).unwrap().len(), JOURNAL_BYTES);
    append(&mut disk, 1, 5);
    append(&mut disk, 2, 10_000);
    assert!(frames.journal().is_some());
    drop((frames, disk));
    let checked = |path: &Path| check::check(path, |_| {}).unwrap().journal;
    let journal_of = |last, needed| check::CheckedJournal { last, needed, is_whole: true };
    // The first batch is the mark of a new journal. The server's end is a sync of the frames.
    assert_eq!(checked(&path), Some(journal_of(3, (2, 2))));
    let Some((frames, mut disk)) = open_with_journal(&path) else { panic!("it was there") };
    append(&mut disk, 1, 5);
    drop((frames, disk));
    assert_eq!(checked(&path), Some(journal_of(4, (1, 1))));
    // A flipped bit in a batch that is not the last one, or no file, is damage.
    let (frames, mut disk) = open_with_journal(&path).unwrap();
    append(&mut disk, 1, 5);
    append(&mut disk, 2, 5);
    drop((frames, disk));
    let good = fs::read(&journal).unwrap();
    let mut bad = good.clone();
    // The batches before it took blocks 0, 1 to 3, and 4.
    bad[5 * BLOCK + 20] ^= 1;
    fs::write(&journal, bad).unwrap();
    assert_eq!(checked(&path).map(|journal| (journal.last, journal.is_whole)), Some((6, false)));
    fs::remove_file(&journal).unwrap();
    assert!(!checked(&path).unwrap().is_whole);
    // A server whose replies do not wait for the disk replays it, and needs none.
    fs::write(&journal, good).unwrap();
    drop(open_at(&path, SIZE, 1, |_| {}).unwrap());
    assert!(!journal.exists() && checked(&path).is_none());
}

#[test]
fn a_full_journal_begins_again_after_a_sync_of_the_frames() {
    static SYNCED: AtomicU32 = AtomicU32::new(0);
    let count = |_: &File| {
        SYNCED.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let (frames, mut disk, _) = synced_by(count, |_| {});
    let (_folder, path) = folder();
    let Some(file) = journal::open(&path).unwrap() else { return };
    disk.set_journal(JournalFile::new(file, 7, &JournalContent::default()));
    let len = 200_000;
    let most = JOURNAL_BYTES / u64::from(len);
    (1..most - 10).for_each(|seq| append(&mut disk, seq, len));
    assert_eq!(SYNCED.load(Ordering::Relaxed), 0);
    (most..most + 20).for_each(|seq| append(&mut disk, seq, len));
    assert_eq!(SYNCED.load(Ordering::Relaxed), 1);
    let bytes = fs::read(&path).unwrap();
    let content = JournalContent::parse(crc32c, 7, 1, &bytes);
    assert!(content.is_whole && content.needed < 30, "{content:?}");
    drop(frames);
}

/// Puts a closed replica of a segment that has its header alone into a frame. Returns the header of
/// the frame.
fn put_replica(frames: &mut FileFrames, frame: u32, id: u32) -> FrameHeader {
    let (cluster, segment) = (7, SegmentId(id));
    let master = ServerId { index: 1, generation: 2 };
    let mut bytes = vec![0; HEADER];
    let (server, capacity, safe_version) = (master, SIZE, Version(1));
    let header = entry::Header { cluster, server, segment, capacity, safe_version };
    entry::put_header(&mut bytes, &header);
    entry::seal(crc32c, 0, &mut bytes).unwrap();
    let (epoch, len, closed, committed) = (0, HEADER as u32, true, true);
    let held = Held { cluster, master, segment, epoch, len, closed, committed };
    let header = FrameHeader { frame, sequence: 1, replica: Some(held) };
    assert!(frames.open(frame));
    frames.write(frame, 0, &bytes);
    let (slot, bytes) = header.emit(crc32c);
    frames.write_header(Block::Frame(frame), slot, &bytes);
    header
}

/// Waits for the condition of the replica in a frame that has to have this header.
fn verified(frames: &mut FileFrames, header: &FrameHeader) -> Condition {
    assert!(frames.verify(header));
    loop {
        if let Some(condition) = frames.verified() {
            return condition;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_replica_is_verified_on_the_device() {
    let (_folder, path) = folder();
    let mut frames = open_at(&path, SIZE, 2, |_| {}).unwrap().0;
    let one = put_replica(&mut frames, 0, 5);
    let two = put_replica(&mut frames, 1, 6);
    for header in [&one, &two] {
        assert_eq!(verified(&mut frames, header), Condition::Sound);
    }
    let other = FrameHeader { sequence: 2, ..one };
    assert_eq!(verified(&mut frames, &other), Condition::Header, "a later change is lost");
    // Another program changes what the device has.
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let at = |frame| flat_offset(SIZE, frame) + BLOCK as u64;
    let mut bytes = [0; HEADER];
    file.read_exact_at(&mut bytes, at(0)).unwrap();
    file.write_all_at(&bytes, at(1)).unwrap();
    assert_eq!(verified(&mut frames, &two), Condition::Bytes(0), "those of another segment");
    file.write_all_at(&[bytes[9] ^ 1], at(0) + 9).unwrap();
    assert_eq!(verified(&mut frames, &one), Condition::Bytes(0));
    file.write_all_at(&[bytes[9]], at(0) + 9).unwrap();
    file.write_all_at(&[1], flat_offset(SIZE, 0) + 30).unwrap();
    assert_eq!(verified(&mut frames, &one), Condition::Slot);
    file.set_len(at(1)).unwrap();
    assert_eq!(verified(&mut frames, &two), Condition::Bytes(0), "the file was cut off");
    file.set_len(flat_bytes(SIZE, 2)).unwrap();
}

/// A read of the mapping behind the end of the file is SIGBUS, and so is one that the device
/// answers with an error.
#[test]
fn a_server_starts_without_the_frames_that_cannot_be_read() {
    static WARNED: AtomicU32 = AtomicU32::new(0);
    let (_folder, path) = folder();
    let mut frames = open_at(&path, SIZE, 3, |_| {}).unwrap().0;
    let headers = [0, 1, 2].map(|frame| put_replica(&mut frames, frame, frame));
    let master = headers[0].replica.unwrap().master;
    drop(frames);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let memory = MappedFile::map(file.try_clone().unwrap()).unwrap();
    let warn = |_: &str| _ = WARNED.fetch_add(1, Ordering::Relaxed);
    let functions = Functions { write: MappedFile::write, sync: File::sync_data, warn };
    let (storage, _disk) = FrameFile::start(memory, "test".to_owned(), functions).unwrap();
    // The header of the last frame is gone, then also the bytes of the one before it.
    file.set_len(flat_offset(SIZE, 2)).unwrap();
    let frames = FlatFrames::open(crc32c, storage, 3).unwrap();
    file.set_len(flat_offset(SIZE, 1) + BLOCK as u64).unwrap();
    let backup = Backup::new(Box::new(frames), crc32c, 1);
    assert_eq!((backup.left(), backup.free_frames()), ((2, 1), 0));
    assert!(backup.delivers(master, SegmentId(0), 0, HEADER as u32));
    // A replica that the start did not read.
    file.set_len(flat_offset(SIZE, 0) + BLOCK as u64).unwrap();
    assert!(!backup.delivers(master, SegmentId(0), 0, HEADER as u32));
    assert_eq!(WARNED.load(Ordering::Relaxed), 3);
}

#[test]
fn a_server_that_ends_waits_for_no_verification() {
    let (_folder, path) = folder();
    let mut frames = open_at(&path, SIZE, 1, |_| {}).unwrap().0;
    let header = put_replica(&mut frames, 0, 5);
    assert!(frames.verify(&header));
    drop(frames);
    assert!(open_at(&path, SIZE, 1, |_| {}).is_ok());
}
