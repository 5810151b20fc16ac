//! Tests of the replication in virtual time: real logs and backups, and a test that decides when
//! and how each call ends.

use alloc::boxed::Box;
use alloc::vec;

use sprat_proto::rpc::{Message, Slice};
use sprat_proto::wire::checksum::crc32c;

use super::*;
use crate::backup::tests::posted::TestRings;
use crate::backup::{Backup, MemoryFrames, Rings as _};
use crate::durability::Durability;
use crate::message::control::{Server, ServerPage, ServerState, Usage, done, failure};
use crate::message::recovery::{FreeLeftReplicas, Replica};
use crate::message::replica::{FreeReplica, WriteReplica, written};
use crate::message::ring::Ring;
use crate::objects::entry::{self, OBJECT};
use crate::objects::log::Purpose;
use crate::objects::segment::Span;
use crate::types::{TableId, Version, WallTime};

mod freed;
mod lost;
mod posted;
mod sites;

const CLUSTER: u64 = 7;
const ME: ServerId = ServerId { index: 9, generation: 1 };
const SLOW_NS: u64 = 20 * MS;
const LOST: RpcError = RpcError::Deadline { maybe_executed: true };
const UNSENT: RpcError = RpcError::NotExecuted;

/// The first backup of a rig, and the next ones.
const A: ServerId = ServerId { index: 0, generation: 1 };
const B: ServerId = ServerId { index: 1, generation: 1 };
const C: ServerId = ServerId { index: 2, generation: 1 };

/// A call that the replication has made and that has not ended.
#[derive(Debug)]
struct Sent {
    tag: u64,
    call: Call,
    bytes: Vec<u8>,
    slices: Vec<Slice>,
    deadline: Instant,
}

/// A replication with its log, and the backups and the coordinator that it calls.
struct Rig {
    now: Instant,
    log: Log,
    replication: Replication,
    backups: BTreeMap<ServerId, Backup>,
    sent: Vec<Sent>,
    tag: u64,
    version: u64,
    /// The most slices that were lent at a time.
    most_lent: usize,
    rings: TestRings,
    /// Backups that have just joined, and do not know themselves yet.
    joining: BTreeSet<ServerId>,
    /// The sites of the backups, if they are known.
    sites: BTreeMap<ServerId, OwnedSite>,
}

impl Rig {
    /// Returns a rig that has read the server list, with `servers` backups of 64 frames.
    fn new(replicas: usize, servers: u32, segment_bytes: u32) -> Self {
        let mut log = Log::new(64 * u64::from(segment_bytes), segment_bytes, crc32c, true);
        log.set_server(CLUSTER, ME);
        let mut rig = Self {
            now: Instant::from_ns(MS),
            log,
            replication: Replication::new(
                (replicas, OwnedSite::default(), false),
                (false, SLOW_NS),
                Rng::seeded(1),
            ),
            backups: BTreeMap::new(),
            sent: Vec::new(),
            tag: 0,
            version: 0,
            most_lent: 0,
            rings: TestRings::default(),
            joining: BTreeSet::new(),
            sites: BTreeMap::new(),
        };
        for index in 0..servers {
            rig.add(ServerId { index, generation: 1 }, 64);
        }
        rig.list();
        rig
    }

    /// Returns a rig whose backups share memory with the master.
    fn sharing(replicas: usize, servers: u32, segment_bytes: u32) -> Self {
        let mut rig = Self::new(replicas, servers, segment_bytes);
        rig.replication.allow_posts();
        let rings = &rig.rings;
        rig.backups.values_mut().for_each(|backup| backup.share(Box::new(rings.clone())));
        rig
    }

    fn add(&mut self, server: ServerId, frames: u64) {
        let size = self.log.segment_bytes();
        let frames = MemoryFrames::new(frames * u64::from(size), size);
        self.backups.insert(server, Backup::new(Box::new(frames), crc32c, 0));
    }

    /// Lets the replication read the list of the backups that there are.
    fn list(&mut self) {
        self.version += 1;
        self.replication.member(CLUSTER, ME, self.version);
        self.step();
    }

    /// Appends an object whose entry has `len` bytes. Returns the end of the log.
    fn append(&mut self, len: usize) -> Position {
        let value = vec![0xab; len - OBJECT];
        let (table, version) = (TableId(1), Version(1));
        let object = entry::Object {
            table,
            version,
            older: Span::default(),
            key: &[],
            value: &value,
            expires: WallTime::NEVER,
        };
        let (_, memory) = self.log.append(len, Purpose::Write).unwrap();
        entry::put_object(memory, &object, None);
        self.replication.appended();
        self.log.tail()
    }

    /// Appends objects until the log has a new head.
    fn roll(&mut self) {
        let head = self.log.tail().segment;
        while self.log.tail().segment == head {
            self.append(200);
        }
    }

    /// Takes all calls that the replication makes now. Answers those for the server list.
    fn step(&mut self) {
        self.replication.tick(self.now);
        self.replication.look(&self.log);
        while self.replication.pending {
            self.tag += 1;
            let output = self.replication.next(self.now, &mut self.log, self.tag);
            if let Some(position) = self.replication.take_posted() {
                self.log.set_durable(position);
            }
            let Some(output) = output else { return };
            let Output::Call { link, tag, message, deadline } = output else { continue };
            if self.replication.backups.is_asked(tag) {
                assert_eq!(link, COORDINATOR);
                let page = self.page();
                self.replication.response(self.now, &mut self.log, tag, Ok(Payload::Owned(page)));
                continue;
            }
            let call = self.replication.calls[&tag];
            let Message { mut bytes, slices } = message;
            for &slice in &slices {
                bytes.extend_from_slice(self.log.lent_bytes(slice));
            }
            if let Call::Write { backup, .. } | Call::Free(Free { backup, .. }) = call {
                assert_eq!(link, links::backup(backup));
            }
            let slices = slices.to_vec();
            self.sent.push(Sent { tag, call, bytes, slices, deadline });
            let lent = self.sent.iter().map(|sent| sent.slices.len()).sum();
            self.most_lent = self.most_lent.max(lent);
        }
    }

    fn page(&self) -> Vec<u8> {
        let nowhere = OwnedSite::default();
        let servers = self.backups.keys().map(|&server| Server {
            server,
            state: ServerState::Up,
            tablets: 0,
            usage: Usage::default(),
            rate: 0,
            replicas: 1,
            durability: Durability::Memory,
            site: self.sites.get(&server).unwrap_or(&nowhere).as_site(),
            control: "",
            data: "backup",
            blocked: "",
        });
        ServerPage { next: 0, servers: servers.collect() }.emit()
    }

    /// Ends the first call that `which` accepts as its server does, or with an error instead.
    /// Returns the call.
    fn end(&mut self, which: impl Fn(&Call) -> bool, error: Option<RpcError>) -> Call {
        let at = self.sent.iter().position(|sent| which(&sent.call)).unwrap();
        let Sent { tag, call, bytes, slices, .. } = self.sent.remove(at);
        let result = match error {
            Some(error) if !error.maybe_executed() => Err(error),
            Some(error) => {
                self.execute(call, &bytes);
                Err(error)
            }
            None => Ok(Payload::Owned(self.execute(call, &bytes))),
        };
        for slice in slices {
            self.log.give_back(slice);
        }
        let durable = self.replication.response(self.now, &mut self.log, tag, result);
        if let Some(position) = durable {
            self.log.set_durable(position);
        }
        if let Some((backup, offer)) = self.replication.take_offer() {
            self.replication.set_ring(backup, self.rings.accept(&offer));
        }
        self.step();
        call
    }

    /// Returns the reply to a call.
    fn execute(&mut self, call: Call, bytes: &[u8]) -> Vec<u8> {
        match call {
            Call::OpenRing(backup) | Call::FreeLeft(backup) if self.joining.contains(&backup) => {
                failure(Status::Retry, "")
            }
            Call::Write { backup, .. } => {
                let write = WriteReplica::parse(bytes).unwrap();
                match self.backups.get_mut(&backup).map(|b| b.write(&write)) {
                    Some(Ok(len)) => written(len).to_vec(),
                    Some(Err(status)) => failure(status, ""),
                    None => failure(Status::NotInCluster, ""),
                }
            }
            Call::Free(_) => {
                let FreeReplica { target, epoch } = FreeReplica::parse(bytes).unwrap();
                if let Some(backup) = self.backups.get_mut(&target.backup) {
                    backup.free(target.master, target.segment, epoch);
                }
                done()
            }
            Call::OpenRing(backup) => {
                match self.backups.get_mut(&backup).map(|b| b.open_ring(ME)) {
                    Some(Ok(offer)) => Ring { offer: &offer }.emit(),
                    _ => failure(Status::NoSpace, ""),
                }
            }
            Call::FreeLeft(_) => {
                let FreeLeftReplicas { master, backup, .. } =
                    FreeLeftReplicas::parse(bytes).unwrap();
                if let Some(backup) = self.backups.get_mut(&backup) {
                    backup.free_left(master);
                }
                done()
            }
            Call::SetHead(..) => done(),
        }
    }

    /// Ends all calls that `which` accepts, and those that follow.
    fn end_all(&mut self, which: impl Fn(&Call) -> bool) {
        self.step();
        while self.has(&which) {
            self.end(&which, None);
        }
    }

    fn has(&self, which: impl Fn(&Call) -> bool) -> bool {
        self.sent.iter().any(|sent| which(&sent.call))
    }

    /// Returns the writes in progress: segment, backup, and what they carry.
    fn writes(&self) -> Vec<(u32, ServerId, WriteReplica<'_>)> {
        let mut writes: Vec<_> = self
            .sent
            .iter()
            .filter(|sent| matches!(sent.call, Call::Write { .. }))
            .map(|sent| WriteReplica::parse(&sent.bytes).unwrap())
            .map(|write| (write.target.segment.0, write.target.backup, write))
            .collect();
        writes.sort_by_key(|&(segment, backup, _)| (segment, backup));
        writes
    }

    /// Returns the replica of `segment` on `backup`, if it counts in a recovery.
    fn replica(&self, backup: ServerId, segment: u32) -> Option<Replica> {
        let page = self.backups[&backup].list(ME, SegmentId(0));
        page.replicas.into_iter().find(|replica| replica.segment == SegmentId(segment))
    }

    /// Returns the server that has a replica of `segment`.
    fn holder(&self, segment: u32) -> ServerId {
        let mut all = self.backups.keys().copied();
        all.find(|&backup| self.replica(backup, segment).is_some()).unwrap()
    }

    /// Moves time to the next deadline of the replication.
    fn wait(&mut self) -> u64 {
        let deadline = self.replication.deadline();
        assert!(self.now < deadline && deadline < Instant::NEVER, "{deadline:?}");
        let waited_ns = deadline.since(self.now);
        self.now = deadline;
        self.step();
        waited_ns
    }
}

fn any(_: &Call) -> bool {
    true
}

fn is_write_to(segment: u32, to: ServerId) -> impl Fn(&Call) -> bool {
    let wanted = (SegmentId(segment), to);
    move |call| matches!(*call, Call::Write { segment, backup, .. } if (segment, backup) == wanted)
}

fn is_head(call: &Call) -> bool {
    matches!(call, Call::SetHead(..))
}

fn is_free(call: &Call) -> bool {
    matches!(call, Call::Free(_))
}

/// Returns the segments and backups of the writes, and whether they close and have data behind the
/// front.
fn shapes(rig: &Rig) -> Vec<(u32, ServerId, bool, bool)> {
    let front = |w: &WriteReplica<'_>| w.open || w.data.is_empty();
    rig.writes().iter().map(|(s, b, w)| (*s, *b, w.close, !front(w))).collect()
}

/// A backup may be in the list before it has the reply to its enlistment.
#[test]
fn a_backup_that_has_just_joined_is_asked_again() {
    let is_early = |call: &Call| matches!(call, Call::OpenRing(_) | Call::FreeLeft(_));
    let mut rig = Rig::sharing(2, 2, 1 << 14);
    rig.append(200);
    rig.end_all(any);
    rig.add(C, 64);
    rig.joining.insert(C);
    rig.list();
    for _ in 0..2 {
        rig.end_all(is_early);
        assert!(!rig.has(is_early));
        rig.now = rig.now.after(LATER_NS);
        rig.step();
        assert!(rig.has(|call| matches!(call, Call::OpenRing(_))));
        assert!(rig.has(|call| matches!(call, Call::FreeLeft(_))));
    }
    rig.joining.clear();
    rig.end_all(is_early);
    rig.now = rig.now.after(LATER_NS);
    rig.step();
    assert!(!rig.has(is_early));
}

/// The cluster has given this master up, and it has not heard so yet.
#[test]
fn a_server_in_the_place_of_this_one_gets_no_replicas() {
    let mut rig = Rig::new(1, 0, 1 << 14);
    rig.add(ServerId { generation: ME.generation + 1, ..ME }, 64);
    rig.list();
    rig.append(200);
    rig.step();
    assert!(rig.sent.is_empty());
    rig.add(A, 64);
    rig.list();
    rig.end_all(any);
    assert_eq!(rig.log.durable(), rig.log.tail());
}

#[test]
fn replicas_of_an_earlier_life_are_freed_when_the_log_has_all_elsewhere() {
    let left = |call: &Call| matches!(call, Call::FreeLeft(_));
    let mut rig = Rig::new(1, 2, 1 << 10);
    rig.append(200);
    rig.roll();
    rig.end_all(any);
    let gone = rig.holder(1);
    assert!(!rig.has(left), "the servers of the first list have left nothing");
    // The backup of the first segment starts again, with what it had.
    let next = ServerId { generation: 2, ..gone };
    rig.backups.remove(&gone);
    rig.add(next, 64);
    rig.list();
    assert!(!rig.has(left), "the replica may be the last one");
    rig.end_all(|call| !left(call) && !is_head(call));
    assert!(!rig.has(left) || !rig.has(is_head), "the epoch is not recorded");
    rig.end_all(|call| !left(call));
    assert_eq!(rig.sent.iter().filter(|sent| left(&sent.call)).count(), 1);
    rig.end(left, Some(RpcError::NotExecuted));
    assert!(!rig.has(left));
    rig.wait();
    let call = rig.end(left, None);
    assert!(matches!(call, Call::FreeLeft(backup) if backup == next));
    rig.list();
    assert!(!rig.has(left), "once is enough");
}

#[test]
fn the_next_head_is_open_before_the_last_is_closed_and_empty_until_then() {
    let mut rig = Rig::new(2, 2, 1 << 10);
    rig.append(200);
    rig.end_all(any);
    rig.roll();
    rig.step();
    assert_eq!(
        shapes(&rig),
        [(1, A, false, true), (1, B, false, true), (2, A, false, false), (2, B, false, false)]
    );
    rig.end(is_write_to(1, A), None);
    rig.end(is_write_to(1, B), None);
    rig.end(is_write_to(2, A), None);
    assert_eq!(shapes(&rig), [(2, B, false, false)], "no close before both have the next head");
    rig.end(is_write_to(2, B), None);
    assert_eq!(shapes(&rig), [(1, A, true, false), (1, B, true, false)]);
    rig.end(is_write_to(1, A), None);
    assert_eq!(shapes(&rig), [(1, B, true, false)], "no data before both have closed");
    assert_eq!(rig.log.durable().segment, SegmentId(1));
    rig.end(is_write_to(1, B), None);
    assert_eq!(shapes(&rig), [(2, A, false, true), (2, B, false, true)]);
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
}

#[test]
fn an_entry_is_durable_when_all_replicas_have_it() {
    let mut rig = Rig::new(3, 3, 1 << 10);
    let first = rig.append(200);
    rig.end_all(any);
    assert_eq!(rig.log.durable(), first);
    let second = rig.append(200);
    rig.step();
    rig.append(200);
    for backup in [C, A] {
        rig.end(is_write_to(1, backup), None);
        assert_eq!(rig.log.durable(), first);
    }
    rig.end(is_write_to(1, B), None);
    assert_eq!(rig.log.durable(), second, "and not what was appended since");
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
}

#[test]
fn a_backup_that_fails_is_replaced_and_nothing_is_durable_before_that_is_recorded() {
    let mut rig = Rig::new(2, 2, 1 << 10);
    rig.append(200);
    rig.end_all(any);
    rig.add(C, 64);
    rig.list();
    let before = rig.append(200);
    rig.end_all(any);
    rig.append(200);
    rig.step();
    rig.end(is_write_to(1, B), None);
    rig.end(is_write_to(1, A), Some(LOST));
    // The new replica counts from the write on that makes it whole.
    assert_eq!(shapes(&rig), [(1, B, false, false), (1, C, false, false)]);
    rig.end(is_write_to(1, C), None);
    assert_eq!(rig.replica(C, 1), None);
    rig.end(is_write_to(1, C), None);
    assert_eq!(rig.replica(C, 1).unwrap().epoch, 1);
    assert!(!rig.has(is_head), "a replica has the old epoch");
    rig.end(is_write_to(1, B), None);
    assert_eq!((rig.log.durable(), rig.has(is_free)), (before, false));
    // A failed call is repeated.
    rig.end(is_head, Some(LOST));
    assert!(!rig.has(any));
    assert_eq!(rig.wait(), LATER_NS);
    let recorded = rig.end(is_head, None);
    assert!(matches!(recorded, Call::SetHead(SegmentId(1), 1)), "{recorded:?}");
    assert!(rig.log.is_all_durable());
    assert!(rig.replica(A, 1).is_some());
    rig.end(is_free, None);
    assert_eq!(rig.backups[&A].replicas(), 0);
    assert!(!rig.has(any));
}

/// The second write to a backup does not reach it. That said nothing about the first, but the
/// master took the backup for one without a replica: its old one stayed open and valid.
#[test]
fn a_backup_that_may_have_opened_a_replica_is_fenced_by_the_epoch() {
    let mut rig = Rig::new(1, 1, 1 << 10);
    rig.append(200);
    rig.step();
    rig.end(is_write_to(1, A), Some(LOST));
    rig.wait();
    rig.add(B, 64);
    rig.list();
    rig.end(is_write_to(1, A), Some(UNSENT));
    rig.end_all(|call| !is_free(call));
    assert_eq!((rig.replica(A, 1).unwrap().epoch, rig.replica(B, 1).unwrap().epoch), (0, 1));
    assert_eq!(rig.replication.recorded, (SegmentId(1), 1));
    rig.end_all(any);
    assert_eq!(rig.backups[&A].replicas(), 0);
}

/// The backup that did not answer had the fewest replicas, so that the master chose it again and
/// again. In seed 381 of `with_replicas_on_servers_that_stop` nothing became durable for a minute.
#[test]
fn a_backup_that_does_not_answer_is_not_the_next_choice() {
    let mut rig = Rig::new(1, 2, 1 << 10);
    rig.append(200);
    rig.end_all(any);
    rig.roll();
    rig.step();
    let (first, second) = if rig.has(is_write_to(2, A)) { (B, A) } else { (A, B) };
    assert!(rig.replica(first, 1).is_some(), "the second has the fewest replicas");
    rig.end(is_write_to(1, first), None);
    rig.end(is_write_to(2, second), Some(UNSENT));
    assert!(rig.has(is_write_to(2, first)));
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
}

#[test]
fn without_another_backup_the_pauses_grow() {
    let mut rig = Rig::new(1, 1, 1 << 10);
    rig.append(200);
    rig.step();
    let mut pauses = Vec::new();
    for _ in 0..7 {
        rig.end(is_write_to(1, A), Some(LOST));
        pauses.push(rig.wait() / MS);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 160, 160]);
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
    assert_eq!(rig.replica(A, 1).unwrap().epoch, 0, "no replica was given up");
}

#[test]
fn a_server_that_leaves_is_replaced_in_open_and_complete_segments() {
    let mut rig = Rig::new(2, 2, 1 << 10);
    rig.append(200);
    rig.roll();
    rig.end_all(any);
    assert!(rig.replica(A, 1).unwrap().closed);
    rig.backups.remove(&A);
    rig.add(C, 64);
    rig.list();
    rig.append(200);
    rig.step();
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
    for backup in [B, C] {
        let (complete, head) = (rig.replica(backup, 1).unwrap(), rig.replica(backup, 2).unwrap());
        assert_eq!((complete.epoch, complete.closed), (1, true), "{backup:?}");
        assert_eq!((head.epoch, head.closed), (1, false), "{backup:?}");
        assert_eq!(
            rig.backups[&backup].bytes(ME, SegmentId(1)),
            rig.backups[&B].bytes(ME, SegmentId(1))
        );
    }
    assert_eq!(rig.replication.recorded, (SegmentId(2), 1), "closed replicas need no record");
}

#[test]
fn long_writes_go_in_pieces_and_return_what_they_borrow() {
    let mut rig = Rig::new(2, 2, 8 << 20);
    rig.append(200);
    rig.end_all(any);
    const PART: u32 = 400 << 10;
    (0..3).for_each(|_| _ = rig.append(PART as usize));
    rig.append(2 << 20);
    rig.append(104);
    rig.step();
    let waits = rig.sent.iter().map(|sent| sent.deadline.since(rig.now) / MS);
    assert_eq!(waits.collect::<Vec<_>>(), [36, 36], "20 ms, and 20 ns for each byte");
    let mut pieces = Vec::new();
    while rig.has(is_write_to(1, A)) {
        let at = rig.writes()[0].2;
        pieces.push((at.offset, at.data.len()));
        let lost = (pieces.len() == 2).then_some(LOST);
        rig.end(is_write_to(1, A), lost);
        if lost.is_some() {
            rig.wait();
        }
    }
    // Each piece ends with an entry, and only one that is longer than a mebibyte exceeds that.
    let start = pieces[0].0;
    let second = (start + 2 * PART, PART as usize);
    let third = (start + 3 * PART, 2 << 20);
    let last = (start + 3 * PART + (2 << 20), 104);
    assert_eq!(pieces, [(start, 2 * PART as usize), second, second, third, last]);
    rig.end_all(any);
    assert!(rig.log.is_all_durable());
    assert_eq!((rig.most_lent, rig.log.pinned(), rig.log.copied_bytes()), (2, 0, 0));
    let segment = &rig.log.slots()[rig.log.slot(SegmentId(1)).unwrap() as usize];
    let written = Some(&segment.bytes[..segment.written as usize]);
    assert_eq!([A, B].map(|backup| rig.backups[&backup].bytes(ME, SegmentId(1))), [written; 2]);
}
