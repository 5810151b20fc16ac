use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

fn next(disk: &mut StateDisk) -> Written {
    loop {
        disk.clear();
        if let Some(outcome) = disk.completed() {
            return outcome;
        }
        poll(&mut [PollFd::from_borrowed_fd(disk.fd(), PollFlags::IN)], None).unwrap();
    }
}

/// Waits until the write with this number is on the disk.
fn wait(disk: &mut StateDisk, seq: u64) {
    loop {
        match next(disk) {
            Written::Durable(done) if done == seq => return,
            Written::Durable(done) => assert!(done < seq),
            other => panic!("{other:?}"),
        }
    }
}

fn pair(key: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (key.into(), value.into())
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    (folder, path)
}

#[test]
fn what_was_persisted_is_there_after_reopening() {
    let (_folder, path) = folder();
    let (mut disk, pairs) = StateDisk::open(&path).unwrap();
    assert!(pairs.is_empty());
    disk.persist(1, vec![pair("a", "1"), pair("b", "2")], vec![]);
    disk.persist(2, vec![pair("c", "3")], vec![b"a".to_vec()]);
    wait(&mut disk, 2);
    drop(disk);
    let (_disk, pairs) = StateDisk::open(&path).unwrap();
    assert_eq!(pairs, [pair("b", "2"), pair("c", "3")]);
    let error = StateDisk::open(&path).unwrap_err().to_string();
    assert!(error.contains("another process has it open"), "{error}");
}

#[test]
fn a_path_that_holds_no_state_file_is_named() {
    let (folder, path) = folder();
    for (junk, word) in
        [(&b"not a database"[..], "no state file"), (b"", "empty"), (b"redb\x1a", "format 1")]
    {
        fs::write(&path, junk).unwrap();
        let error = StateDisk::open(&path).unwrap_err().to_string();
        assert!(error.contains("state: ") && error.contains(word), "{error}");
        assert_eq!(fs::read(&path).unwrap(), junk, "it is left as it was");
    }
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("fifo"), 0o600.into()).unwrap();
    for (path, word) in [(folder.path().join("fifo"), "regular"), ("/dev/null".into(), "regular")] {
        let error = StateDisk::open(&path).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(StateDisk::open(folder.path()).is_err(), "a folder");
    assert!(StateDisk::open(&folder.path().join("none/state")).is_err());
}

/// Damages a real state file in many ways. Each damaged file is refused with the file's name, or
/// serves exactly its old pairs. redb served 36 of 71 such files without a word, one of them with
/// another name of a table, and panicked in 12.
#[test]
fn a_damaged_file_is_refused_or_serves_what_it_held() {
    let (_folder, path) = folder();
    let (mut disk, _) = StateDisk::open(&path).unwrap();
    for seq in 1..=60 {
        let name = format!("table {}", seq % 20);
        disk.persist(
            seq,
            vec![pair(&name, &name.repeat(20))],
            vec![format!("table {}", (seq + 9) % 20).into()],
        );
        wait(&mut disk, seq);
    }
    drop(disk);
    let bytes = fs::read(&path).unwrap();
    let (disk, pairs) = StateDisk::open(&path).unwrap();
    drop(disk);
    assert!(!pairs.is_empty());
    let mut damages: Vec<Vec<u8>> = Vec::new();
    let page = 4096;
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    for at in (0..used + page).step_by(page) {
        for flipped in [0, 9, 70, 1000, page - 1] {
            let mut damaged = bytes.clone();
            damaged[at + flipped] ^= 0x10;
            damages.push(damaged);
        }
        let mut damaged = bytes.clone();
        damaged[at..at + page].fill(0);
        damages.push(damaged);
        let mut damaged = bytes.clone();
        damaged.copy_within(at..at + page, (at + page) % (used + page));
        damages.push(damaged);
        damages.push(bytes[..at].to_vec());
        damages.push(bytes[..at + 99].to_vec());
    }
    let mut refused = 0;
    for damaged in damages {
        fs::write(&path, damaged).unwrap();
        match StateDisk::open(&path) {
            Ok((_, found)) => assert_eq!(found, pairs),
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::InvalidData);
                assert!(e.to_string().contains("state: "), "{e}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}");
}

/// Writes to a full disk. A write that does not fit, and the writes handed in behind it, leave no
/// trace; with room again writes go on.
#[test]
fn a_full_disk_refuses_and_recovers() {
    let (_folder, path) = folder();
    let (file, _) = StateFile::open(&path).unwrap();
    let room = Arc::clone(&file.room);
    let mut disk = StateDisk::over(file, "state".into()).unwrap();
    disk.persist(1, vec![pair("a", "1")], vec![]);
    wait(&mut disk, 1);
    room.store(0, Ordering::SeqCst);
    let long = "v".repeat(100_000);
    disk.persist(2, vec![pair("b", &long)], vec![b"a".to_vec()]);
    let refused = |outcome| match outcome {
        Written::Refused { reason, durable } => {
            assert!(reason.starts_with("state: ") && reason.contains("No space left"), "{reason}");
            durable
        }
        other => panic!("{other:?}"),
    };
    poll(&mut [PollFd::from_borrowed_fd(disk.fd(), PollFlags::IN)], None).unwrap();
    // There is room again, but this one was made before anyone knew of the refusal, and may rest on
    // what was refused.
    room.store(u64::MAX, Ordering::SeqCst);
    disk.persist(3, vec![pair("c", "3")], vec![]);
    assert_eq!(refused(next(&mut disk)), [pair("a", "1")]);
    disk.persist(4, vec![pair("d", "4")], vec![]);
    wait(&mut disk, 4);
    drop(disk);
    let (_disk, pairs) = StateDisk::open(&path).unwrap();
    assert_eq!(pairs, [pair("a", "1"), pair("d", "4")]);
}

/// Fails the disk at any point of a change. The coordinator stops with the file's name and the
/// reason, and writes nothing more: the kernel forgets data that it could not write, so that a
/// second sync would succeed and prove nothing. The coordinator's last words were once "it is
/// written no more": the end of the writing thread hid its cause.
#[test]
fn a_disk_that_fails_is_final() {
    let mut at = 0;
    loop {
        let (_folder, path) = folder();
        let (file, _) = StateFile::open(&path).unwrap();
        let sound = Arc::clone(&file.sound);
        let mut disk = StateDisk::over(file, "state".into()).unwrap();
        disk.persist(1, vec![pair("a", "1")], vec![]);
        wait(&mut disk, 1);
        sound.store(at, Ordering::SeqCst);
        disk.persist(2, vec![pair("b", "2")], vec![]);
        match next(&mut disk) {
            Written::Failed(reason) => {
                assert!(
                    reason.starts_with("state: ") && reason.contains("Input/output error"),
                    "{reason}"
                );
            }
            Written::Durable(2) => break,
            other => panic!("{other:?}"),
        }
        sound.store(u64::MAX, Ordering::SeqCst);
        disk.persist(3, vec![pair("c", "3")], vec![]);
        disk.thread.take().unwrap().join().unwrap();
        assert!(disk.completed().is_none(), "what else there is to say would hide the reason");
        drop(disk);
        // A record counts once it is written, though it was not said; what came after the failure
        // never does.
        let (_disk, pairs) = StateDisk::open(&path).unwrap();
        let written = [pair("a", "1"), pair("b", "2")];
        assert!(pairs == written || pairs == written[..1], "{pairs:?}");
        at += 1;
    }
    assert!(at >= 4, "the record, its sync and two superblocks can fail: {at}");
}

/// Removes or replaces the state file of a running coordinator, which then acknowledges no more
/// changes. It once wrote them into the lost file: its next start lost them, and with a removed
/// file the whole cluster.
#[test]
fn a_file_that_was_removed_or_replaced_is_written_no_more() {
    let (folder, path) = folder();
    let aside = folder.path().join("aside");
    let (mut disk, _) = StateDisk::open(&path).unwrap();
    disk.persist(1, vec![pair("a", "1")], vec![]);
    wait(&mut disk, 1);
    for (seq, what) in [(2, "removed"), (4, "replaced")] {
        fs::rename(&path, &aside).unwrap();
        if what == "replaced" {
            fs::copy(&aside, &path).unwrap();
        }
        disk.persist(seq, vec![pair("b", "2")], vec![]);
        match next(&mut disk) {
            Written::Refused { reason, durable } => {
                assert!(reason.contains(what) && reason.contains("/proc/"), "{reason}");
                assert_eq!(durable[0], pair("a", "1"));
            }
            other => panic!("{other:?}"),
        }
        fs::rename(&aside, &path).unwrap();
        disk.persist(seq + 1, vec![pair("c", "3")], vec![]);
        wait(&mut disk, seq + 1);
    }
    drop(disk);
    assert_eq!(StateDisk::open(&path).unwrap().1, [pair("a", "1"), pair("c", "3")]);
}

/// Starts a process on a full disk. The first change after a start has room; else no coordinator
/// could be started there.
#[test]
fn a_process_can_start_on_a_full_disk() {
    let (_folder, path) = folder();
    let mut body = Body::default();
    assert!(body.put(b"k", &[7; 50]));
    for _ in 0..20 {
        let (mut file, _) = StateFile::open(&path).unwrap();
        file.room.store(0, Ordering::SeqCst);
        // A new file has nothing in reserve.
        let first = file.append(&body);
        if first.is_err() {
            file.room.store(u64::MAX, Ordering::SeqCst);
            file.append(&body).unwrap();
            file.room.store(0, Ordering::SeqCst);
        }
        while file.append(&body).is_ok() {}
    }
    let (mut file, _) = StateFile::open(&path).unwrap();
    file.room.store(0, Ordering::SeqCst);
    assert!(file.append(&body).is_ok(), "twenty processes have used less than the reserve");
    assert!(matches!(file.append(&body), Err(Failure::Refused(_))));
}

/// Writes the same keys again and again. The file stays as short as its content.
#[test]
fn checkpoints_keep_the_file_short() {
    let (_folder, path) = folder();
    let (mut file, _) = StateFile::open(&path).unwrap();
    for i in 0..40u32 {
        let mut body = Body::default();
        assert!(body.put(&[i as u8 % 3], &vec![i as u8; 200_000]));
        file.append(&body).unwrap();
    }
    let pairs = file.pairs().unwrap();
    assert_eq!(pairs[&vec![0]], vec![39; 200_000]);
    drop(file);
    assert!(fs::metadata(&path).unwrap().len() < 5_000_000);
    assert_eq!(StateFile::open(&path).unwrap().1, pairs);
}

/// Uses a file without a name, as the coordinator of `sprat up` does.
#[test]
fn a_file_in_memory_is_as_good() {
    let file =
        File::from(rustix::fs::memfd_create("state", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    StateDisk::prepare(&file).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
    let (mut disk, _) = StateDisk::open(&path).unwrap();
    disk.persist(1, vec![pair("a", "1")], vec![]);
    wait(&mut disk, 1);
    drop(disk);
    assert_eq!(StateDisk::open(&path).unwrap().1, [pair("a", "1")]);
}
