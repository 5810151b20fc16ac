//! Tests of the time at which a master and its backups acknowledge changes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use sprat_proto::wire::checksum::crc32c;

use super::*;
use crate::backup::{Condition, FlatFrames, FrameHeader, Storage, flat_bytes};
use crate::durability::{Durability, TableDurability};
use crate::message::control::ServerPage;
use crate::message::data::head;
use crate::message::replica::{self, WriteReplica, written};
use crate::objects::entry::{HEADER, Header, put_header};
use crate::objects::segment::SegmentId;
use crate::types::Lifetime;

const SIZE: u32 = 1 << 12;
const FRAMES: u32 = 16;
const OTHER: ServerId = ServerId { index: 4, generation: 2 };

/// Bytes that count as a disk's.
#[derive(Debug)]
struct Bytes {
    bytes: Vec<u8>,
    failed: Arc<AtomicBool>,
}

impl Storage for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn delivers(&self, _: usize, _: usize) -> bool {
        true
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn reserve(&mut self, _: usize) -> bool {
        true
    }

    fn verify(&mut self, _: u64, _: &FrameHeader) -> bool {
        false
    }

    fn verified(&mut self) -> Option<Condition> {
        None
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Returns a master whose replicas are on a disk, and the flag that fails the disk.
fn on_disk(config: Config) -> (Rig, Arc<AtomicBool>) {
    let failed = Arc::new(AtomicBool::new(false));
    let bytes = vec![0; flat_bytes(SIZE, FRAMES) as usize];
    let storage = Bytes { bytes, failed: Arc::clone(&failed) };
    let frames = FlatFrames::format(crc32c, storage, SIZE, FRAMES).unwrap();
    let mut rig = Rig::over(Master::with_frames(config, Box::new(frames), Rng::seeded(1)));
    let enlisted =
        Enlisted { cluster: CLUSTER, server: ME, list_version: 1, lease_ns: TERM_NS, term: TERM };
    rig.answer(Opcode::Enlist, enlisted.emit());
    (rig, failed)
}

/// Returns a write that opens a replica of a segment and has to be on disk.
fn open(segment: u32) -> Vec<u8> {
    let segment = SegmentId(segment);
    let mut data = [0; HEADER];
    let (cluster, server, capacity, safe_version) = (CLUSTER, OTHER, SIZE, Version(1));
    put_header(&mut data, &Header { cluster, server, segment, capacity, safe_version });
    let target = replica::Target { cluster, backup: ME, master: OTHER, segment };
    let (epoch, offset, open, close, commit, sync) = (1, 0, true, false, true, true);
    WriteReplica { target, epoch, offset, open, close, commit, sync, data: &data }.emit()
}

fn opened() -> Vec<u8> {
    written(HEADER as u32).to_vec()
}

impl Rig {
    /// Ends the sync that is in progress.
    fn synced(&mut self) {
        let seq = self.syncs.pop().expect("a sync is in progress");
        self.master.persisted(self.now, seq);
        self.pump();
    }
}

#[test]
fn a_write_is_answered_by_a_sync_that_began_after_it() {
    let (mut rig, _) = on_disk(Config::default());
    let first = rig.send(&open(1)).unwrap_err();
    assert_eq!(rig.syncs, [1]);
    let (second, third) = (rig.send(&open(2)).unwrap_err(), rig.send(&open(3)).unwrap_err());
    assert_eq!((&rig.syncs[..], rig.replies.len()), (&[1][..], 0), "one at a time");
    rig.synced();
    assert_eq!(rig.replies, [(first, opened())].into());
    assert_eq!(rig.syncs, [2], "the next one begins at once");
    rig.synced();
    assert_eq!(rig.replies, [first, second, third].map(|rpc| (rpc, opened())).into());
    assert!(rig.syncs.is_empty() && !rig.master.has_output());
    // A repetition may come while the sync of the write is in progress.
    let fourth = rig.send(&open(4)).unwrap_err();
    let again = rig.send(&open(4)).unwrap_err();
    rig.synced();
    assert!(rig.replies.contains_key(&fourth) && !rig.replies.contains_key(&again));
    rig.synced();
    assert_eq!(rig.replies[&again], opened());
}

#[test]
fn after_an_error_of_the_disk_the_server_goes_on_as_a_master() {
    let (mut rig, failed) = on_disk(Config::default());
    assert_eq!(rig.ask(take(0, u64::MAX).emit()), done());
    rig.client(1, TERM_NS);
    let (first, second) = (rig.send(&open(1)).unwrap_err(), rig.send(&open(2)).unwrap_err());
    failed.store(true, Ordering::Relaxed);
    rig.master.rollback(rig.now, "the disk has failed", Vec::new());
    rig.pump();
    let refused = head(Status::NoReplica).to_vec();
    assert_eq!((&rig.replies[&first], &rig.replies[&second]), (&refused, &refused));
    assert_eq!(rig.ask(open(3)), head(Status::NoSpace));
    assert!(rig.master.backup().bytes(OTHER, SegmentId(1)).is_none());
    assert!(!rig.stopped);
    assert!(rig.write(once(1, 2, 1), b"k", b"v").is_ok());
}

#[test]
fn a_write_that_changes_nothing_needs_no_sync() {
    let (mut rig, _) = on_disk(Config::default());
    let write = |epoch, offset| {
        let mut bytes = open(1);
        bytes[4..8].copy_from_slice(&u32::to_be_bytes(epoch));
        bytes[36..40].copy_from_slice(&u32::to_be_bytes(offset));
        bytes[40] = 12;
        bytes
    };
    assert_eq!(rig.ask(write(1, 0)), head(Status::NoReplica));
    rig.send(&open(1)).unwrap_err();
    rig.synced();
    assert_eq!(rig.ask(write(0, 0)), head(Status::WrongEpoch));
    assert_eq!(rig.ask(write(1, 1_000)), written(HEADER as u32), "a gap");
    assert!(rig.syncs.is_empty());
}

#[test]
fn a_backup_in_memory_has_no_disk_to_write_to() {
    let mut rig = Rig::serving(Config { backup_bytes: 1 << 16, ..Config::default() });
    assert_eq!(rig.ask(open(1)), head(Status::NoSpace));
    assert_eq!(rig.master.backup().replicas(), 0);
}

/// Returns a server whose own disk has the only replica, and which serves a tablet.
fn lone() -> Rig {
    let (mut rig, _) = on_disk(Config {
        replicas: 1,
        durability: Durability::Disk,
        own_replica: true,
        log_bytes: 8 << 12,
        segment_bytes: SIZE,
        ..Config::default()
    });
    rig.answer(Opcode::ListServers, ServerPage { next: 0, servers: Vec::new() }.emit());
    let taken = rig.send(&take(0, u64::MAX).emit()).unwrap_err();
    assert!(rig.replies.is_empty());
    rig.synced();
    assert_eq!(rig.replies.remove(&taken), Some(done()));
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    rig
}

#[test]
fn writers_that_wait_for_their_answers_settle_into_one_sync() {
    const WRITERS: u64 = 8;
    let mut rig = lone();
    let mut rpc = 0;
    let mut send = |rig: &mut Rig| {
        rpc += 1;
        rig.send(&write_of(rpc, 1)).unwrap_err()
    };
    let first = send(&mut rig);
    let mut others: Vec<u64> = (1..WRITERS).map(|_| send(&mut rig)).collect();
    assert_eq!(rig.syncs.len(), 1);
    rig.synced();
    assert_eq!(rig.replies.keys().copied().collect::<Vec<_>>(), [first]);
    assert!(rig.syncs.is_empty() && !rig.master.has_output(), "the first writer has an answer");
    others.push(send(&mut rig));
    for _ in 0..3 {
        assert_eq!(rig.syncs.len(), 1, "all writers are back");
        rig.replies.clear();
        rig.synced();
        assert!(others.iter().all(|rpc| rig.replies.contains_key(rpc)));
        others = (0..WRITERS).map(|_| send(&mut rig)).collect();
    }
    rig.synced();
    // All but two writers are gone. Their changes wait for a pause, once.
    let _two = [send(&mut rig), send(&mut rig)];
    assert!(rig.syncs.is_empty() && rig.is_asleep());
    rig.pass(MS);
    assert_eq!(rig.syncs.len(), 1);
    rig.synced();
    let _two = [send(&mut rig), send(&mut rig)];
    assert_eq!(rig.syncs.len(), 1);
}

#[test]
fn a_lone_server_acknowledges_what_its_disk_has() {
    let mut rig = lone();
    for rpc in 1..30 {
        let (once, value) = (once(1, rpc, rpc - 1), &[7; 500]);
        let write = Write { target: TARGET, once, key: b"k", value, lifetime: None };
        let waiting = rig.send(&write.emit()).unwrap_err();
        assert!(!rig.replies.contains_key(&waiting), "the disk has not confirmed it");
        while !rig.syncs.is_empty() {
            rig.synced();
        }
        assert!(rig.replies.contains_key(&waiting));
    }
    assert!(rig.master.memory().log.tail().segment > SegmentId(1), "several heads");
}

/// Returns a master whose log has replicas that the test calls durable, and the lease 1.
fn replicated(log_bytes: u64, segment_bytes: u32) -> Rig {
    let config = Config { replicas: 1, log_bytes, segment_bytes, ..Config::default() };
    let mut rig = Rig::serving(config);
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    rig
}

#[test]
fn answers_wait_until_the_log_is_safe() {
    let mut rig = replicated(1 << 20, 1 << 16);
    let write = |rpc, key: &'static [u8]| {
        Write { target: TARGET, once: once(1, rpc, 0), key, value: b"v", lifetime: None }.emit()
    };
    let a = rig.send(&write(1, b"a")).unwrap_err();
    let after_a = rig.master.memory().log.tail();
    let b = rig.send(&write(2, b"b")).unwrap_err();
    // A repetition does not get ahead, and a read tells nothing that may be lost yet.
    assert_eq!(rig.send(&write(1, b"a")), Ok(head(Status::Retry).to_vec()));
    let read_a = rig.send(&Read { target: TARGET, key: b"a" }.emit()).unwrap_err();
    let read_nothing = rig.send(&Read { target: TARGET, key: b"c" }.emit()).unwrap_err();
    rig.master.durable(after_a);
    rig.pump();
    assert!(rig.replies.contains_key(&a) && rig.replies.len() == 1);
    assert_eq!(mutation_reply(&rig.send(&write(1, b"a")).unwrap()), Ok(Version(1)));
    assert!(rig.read(b"a").is_ok(), "it is durable now");
    let read_b = rig.send(&Read { target: TARGET, key: b"b" }.emit()).unwrap_err();
    rig.master.durable(rig.master.memory().log.tail());
    rig.pump();
    assert_eq!(
        rig.replies.keys().copied().collect::<Vec<_>>(),
        [a, b, read_a, read_nothing, read_b]
    );
    assert_eq!(read_reply(&rig.replies[&read_b]), Ok((Version(2), &b"v"[..])));
}

/// A master whose replicas the test controls.
fn asynchronous() -> Rig {
    let mut rig = Rig::serving(Config {
        replicas: 1,
        durability: Durability::Async,
        log_bytes: 64 << 20,
        segment_bytes: 1 << 22,
        ..Config::default()
    });
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    rig
}

fn write_of(rpc: u64, len: usize) -> Vec<u8> {
    let value = vec![0; len];
    Write { target: TARGET, once: once(1, rpc, 0), key: b"k", value: &value, lifetime: None }.emit()
}

#[test]
fn an_asynchronous_change_is_acknowledged_before_its_replicas_have_it() {
    let mut rig = asynchronous();
    assert_eq!(mutation_reply(&rig.ask(write_of(1, 1))), Ok(Version(1)));
    assert_eq!(rig.read(b"k"), Ok((Version(1), vec![0])), "reads do not wait either");
    assert_eq!(mutation_reply(&rig.ask(write_of(1, 1))), Ok(Version(1)), "a repetition");
    assert!(!rig.master.memory().log.is_all_durable());
}

#[test]
fn asynchronous_changes_wait_for_replicas_a_mebibyte_behind() {
    let mut rig = asynchronous();
    for rpc in 1..=10 {
        assert!(rig.send(&write_of(rpc, 100_000)).is_ok(), "{rpc}");
    }
    let waiting = rig.send(&write_of(11, 100_000)).unwrap_err();
    let (lag, waits) = rig.master.lag();
    assert!(lag > 1 << 20 && waits == 1, "{lag}, {waits}");
    // The replicas get the first part: the rest is less than a mebibyte.
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    assert!(rig.replies.contains_key(&waiting));
    assert_eq!(rig.master.lag(), (0, 1));
    assert!(rig.send(&write_of(12, 100_000)).is_ok());
}

#[test]
fn asynchronous_changes_wait_for_replicas_ten_milliseconds_behind() {
    let mut rig = asynchronous();
    rig.now = rig.now.after(500 * MS);
    assert!(rig.send(&write_of(1, 1)).is_ok(), "nothing lags, however long ago the last change");
    let first = rig.master.memory().log.tail();
    rig.now = rig.now.after(6 * MS);
    assert!(rig.send(&write_of(2, 1)).is_ok());
    rig.master.durable(first);
    rig.now = rig.now.after(6 * MS);
    assert!(rig.send(&write_of(3, 1)).is_ok(), "the second is 6 ms old");
    rig.now = rig.now.after(6 * MS);
    let waiting = rig.send(&write_of(4, 1)).unwrap_err();
    assert_eq!(rig.master.lag().1, 1);
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    assert!(rig.replies.contains_key(&waiting));
}

/// A table whose changes do not wait for their replicas, beside [`TABLE`], whose changes do.
const HASTY: TableId = TableId(TABLE.0 + 1);

fn hasty(rpc: u64, len: usize) -> Vec<u8> {
    let target = Target { table: HASTY, ..TARGET };
    Write { target, once: once(1, rpc, 0), key: b"k", value: &vec![0; len], lifetime: None }.emit()
}

/// A master whose replicas the test controls, with one table of each durability.
fn mixed() -> Rig {
    let mut rig = Rig::serving(Config {
        replicas: 1,
        log_bytes: 64 << 20,
        segment_bytes: 1 << 22,
        ..Config::default()
    });
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    let durability = TableDurability::Async;
    let take = TakeTablet { table: HASTY, durability, ..take(0, u64::MAX) };
    let taken = rig.send(&take.emit());
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    assert!(taken.is_ok() || rig.replies.remove(&taken.unwrap_err()) == Some(done()));
    rig
}

/// A transaction of one object is such a write.
#[test]
fn a_change_of_an_asynchronous_table_waits_if_it_asks_for_that() {
    let mut rig = mixed();
    let target = Target { table: HASTY, durable: true, ..TARGET };
    let write = |rpc| {
        Write { target, once: once(1, rpc, 0), key: b"k", value: b"v", lifetime: None }.emit()
    };
    let waiting = rig.send(&write(1)).unwrap_err();
    assert_eq!(rig.send(&write(1)), Ok(head(Status::Retry).to_vec()), "a repetition");
    assert!(rig.send(&hasty(2, 1)).is_ok());
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    assert_eq!(mutation_reply(&rig.replies[&waiting]), Ok(Version(1)));
    assert_eq!(mutation_reply(&rig.ask(write(1))), Ok(Version(1)));
}

#[test]
fn changes_of_an_asynchronous_table_do_not_wait_and_those_of_others_do() {
    let mut rig = mixed();
    let patient = rig.send(&write_of(1, 1)).unwrap_err();
    assert_eq!(mutation_reply(&rig.ask(hasty(2, 1))), Ok(Version(2)));
    assert_eq!(mutation_reply(&rig.ask(hasty(2, 1))), Ok(Version(2)), "a repetition");
    let target = Target { table: HASTY, ..TARGET };
    for key in [b"k", b"-"] {
        assert!(rig.send(&Read { target, key }.emit()).is_ok(), "reads do not wait either");
    }
    let list = |table| Enumerate {
        cluster: CLUSTER,
        table,
        first: 0,
        last: u64::MAX,
        cursor: 0,
        limit_bytes: 1000,
    };
    assert!(rig.send(&list(HASTY).emit()).is_ok());
    let waiting = [
        rig.send(&Read { target: TARGET, key: b"k" }.emit()).unwrap_err(),
        rig.send(&list(TABLE).emit()).unwrap_err(),
    ];
    assert_eq!(rig.send(&write_of(1, 1)), Ok(head(Status::Retry).to_vec()));
    assert!(rig.replies.is_empty());
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    assert!(waiting.iter().chain([&patient]).all(|id| rig.replies.contains_key(id)));
}

#[test]
fn changes_of_an_asynchronous_table_wait_for_what_lags_alone() {
    let mut rig = mixed();
    for rpc in 1..=20 {
        let waiting = rig.send(&write_of(rpc, 100_000)).unwrap_err();
        let tail = rig.master.memory().log.tail();
        rig.master.durable(tail);
        rig.pump();
        assert!(rig.replies.contains_key(&waiting));
    }
    rig.now = rig.now.after(500 * MS);
    assert!(rig.send(&hasty(21, 1)).is_ok(), "all before it is replicated");
    // What another table has in progress counts, since it lies between the change and its replicas.
    for rpc in 22..=32 {
        assert!(rig.send(&write_of(rpc, 100_000)).is_err());
    }
    let waiting = rig.send(&hasty(33, 1)).unwrap_err();
    assert_eq!(rig.master.lag().1, 1);
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    assert!(rig.replies.contains_key(&waiting));
    assert!(rig.send(&hasty(34, 1)).is_ok());
}

#[test]
fn a_rare_change_of_an_asynchronous_table_does_not_wait_for_the_others() {
    let mut rig = mixed();
    let mut rpc = 0;
    let mut next = || {
        rpc += 1;
        rpc
    };
    for _ in 0..10 {
        // Before each change some other is in progress, and never the same.
        assert!(rig.send(&write_of(next(), 1)).is_err());
        let tail = rig.master.memory().log.tail();
        assert!(rig.send(&write_of(next(), 1)).is_err());
        assert!(rig.send(&hasty(next(), 1)).is_ok());
        rig.now = rig.now.after(50 * MS);
        rig.master.durable(tail);
        rig.pump();
        let tail = rig.master.memory().log.tail();
        assert!(rig.send(&write_of(next(), 1)).is_err());
        rig.master.durable(tail);
        rig.pump();
    }
    assert_eq!(rig.master.lag().1, 0);
}

/// A read that meets an object at the end of its lifetime is answered once the removal is durable.
/// Until then, and after it, the object does not exist.
#[test]
fn the_end_of_an_object_is_told_once_it_is_durable() {
    let mut rig = replicated(1 << 20, 1 << 16);
    let lifetime = Some(Lifetime(500));
    let write = Write { target: TARGET, once: once(1, 1, 0), key: b"a", value: b"v", lifetime };
    rig.send(&write.emit()).unwrap_err();
    rig.master.durable(rig.master.memory().log.tail());
    rig.pump();
    rig.now = rig.now.after(499 * MS);
    assert!(rig.read(b"a").is_ok());
    rig.now = rig.now.after(MS);
    let read = Read { target: TARGET, key: b"a" }.emit();
    let first = rig.send(&read).unwrap_err();
    assert_eq!(rig.master.memory().expired, 1);
    let second = rig.send(&read).unwrap_err();
    rig.master.durable(rig.master.memory().log.tail());
    rig.pump();
    for read in [first, second] {
        let status = read_reply(&rig.replies[&read]).map_err(|refusal| refusal.status);
        assert_eq!(status, Err(Status::ObjectDoesntExist));
    }
    // The wall clock of a server that recovers the log may be behind.
    rig.now = Instant::from_ns(SECOND);
    assert!(rig.read(b"a").is_err());
}

/// A scan that leaves out objects at the end of their lifetimes is answered once their removal is
/// durable.
#[test]
fn a_scan_removes_what_it_leaves_out() {
    let mut rig = replicated(16 << 12, 1 << 12);
    for (rpc, lifetime) in [(1, Some(Lifetime(10))), (2, None)] {
        let key = if rpc == 1 { b"a" } else { b"b" };
        let write = Write { target: TARGET, once: once(1, rpc, 0), key, value: b"v", lifetime };
        rig.send(&write.emit()).unwrap_err();
    }
    rig.master.durable(rig.master.memory().log.tail());
    rig.pump();
    rig.now = rig.now.after(20 * MS);
    let Target { cluster, table, .. } = TARGET;
    let (first, last, limit_bytes) = (0, u64::MAX, 1 << 20);
    let scan = Enumerate { cluster, table, first, last, cursor: 0, limit_bytes }.emit();
    let waiting = rig.send(&scan).unwrap_err();
    assert_eq!((rig.master.memory().expired, rig.master.memory().table.len()), (1, 1));
    rig.master.durable(rig.master.memory().log.tail());
    rig.pump();
    let listed = objects_reply(&rig.replies[&waiting]).unwrap();
    assert_eq!(listed.map(|object| object.key.to_vec()).collect::<Vec<_>>(), [b"b".to_vec()]);
}

/// While a server lacks backups, the search for objects at the end of their lifetimes waits: what
/// it removes would only wait for replicas.
#[test]
fn expired_objects_wait_for_backups() {
    let mut rig = replicated(1 << 20, 1 << 16);
    let lifetime = Some(Lifetime(8_000));
    let write = Write { target: TARGET, once: once(1, 1, 0), key: b"a", value: b"v", lifetime };
    rig.send(&write.emit()).unwrap_err();
    for _ in 0..200 {
        rig.pass(100 * MS);
    }
    assert!(rig.master.replication.check(rig.now, &rig.master.memory().log).is_err());
    assert_eq!(rig.master.memory().expired, 0);
    // It goes on by itself, without a turn for each moment of the wait.
    assert!(rig.master.expiry.deadline(rig.master.memory()) > rig.now);
}

/// A server that ended had replicas of the changes that waited for them, and not of those that it
/// had acknowledged without: the recovery lost up to 10 ms of an asynchronous table.
#[test]
fn a_server_that_drains_serves_no_more_and_replicates_what_it_has_acknowledged() {
    let mut rig = asynchronous();
    assert!(rig.master.is_drained());
    assert!(rig.send(&write_of(1, 1)).is_ok(), "acknowledged, and nowhere else");
    rig.master.drain();
    assert_eq!(rig.status(write_of(2, 1)), Some(Status::NotServing));
    assert_eq!(rig.read(b"k"), Err(Status::NotServing));
    assert!(!rig.master.is_drained());
    // It is a member as long as that lasts, and serves no more all the same.
    rig.answer(Opcode::ListServers, ServerPage { next: 0, servers: Vec::new() }.emit());
    rig.pass(TERM_NS / 2);
    rig.answer(
        Opcode::RenewServer,
        Renewed { list_version: 1, lease_ns: TERM_NS, term: TERM }.emit(),
    );
    assert_eq!(rig.read(b"k"), Err(Status::NotServing));
    rig.master.durable(rig.master.memory().log.tail());
    assert!(rig.master.is_drained() && rig.master.server().is_some());

    let mut rig = replicated(1 << 20, 1 << 16);
    let waiting = rig.send(&write_of(1, 1)).unwrap_err();
    rig.master.drain();
    assert!(!rig.master.is_drained(), "a client waits");
    rig.master.durable(rig.master.memory().log.tail());
    assert!(!rig.master.is_drained(), "its reply is to be sent");
    rig.pump();
    assert!(rig.master.is_drained() && rig.replies.contains_key(&waiting));
}
