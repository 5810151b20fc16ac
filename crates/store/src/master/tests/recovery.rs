//! Tests of a master that recovers tablets of a crashed one, by orders, reads and reports.

use super::*;
use crate::durability::TableDurability;
use crate::message::data::head;
use crate::message::recovery::{
    Ending, MOST_READ, Part, Piece, ReadReplica, Recover, Recovering, RecoveryEnded, Source,
};
use crate::objects::log::Log;
use crate::objects::memory::Memory;
use crate::objects::mutate::{Change, Mutation};
use crate::objects::segment::SegmentId;
use crate::objects::tablet::Tablet;

const CRASHED: ServerId = ServerId { index: 8, generation: 3 };
const ALL: Tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
const SEGMENT: u32 = 1 << 12;
const VALUE: [u8; 300] = [7; 300];

fn backup(index: u32) -> ServerId {
    ServerId { index, generation: 1 }
}

/// Returns the segments of a log with `objects` objects, whose keys are their numbers.
fn log_of(objects: u64) -> Vec<(SegmentId, Vec<u8>)> {
    let mut log = Log::new(1 << 20, SEGMENT, sprat_proto::wire::checksum::crc32c, false);
    log.set_server(CLUSTER, CRASHED);
    let mut memory = Memory::new(log);
    memory.tablets.take(ALL, KEY, TableDurability::Cluster).unwrap();
    for n in 0..objects {
        let (once, key) = (once(77, n + 1, n), &n.to_be_bytes()[..]);
        memory.results.extend(once.lease, Instant::NEVER);
        let Memory { log, results, .. } = &mut memory;
        _ = results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let hash = memory.tablets.locate(TABLE, key).unwrap();
        let change = Change::Write(&VALUE, None);
        memory
            .mutate(&Mutation {
                target: TARGET,
                once,
                key,
                hash,
                change,
                wall: crate::types::WallTime(0),
            })
            .unwrap();
    }
    let mut segments = Vec::new();
    let ids: Vec<_> = memory.log.segments().map(|(id, _)| id).collect();
    for id in ids {
        let slot = memory.log.slot(id).unwrap();
        memory.log.seal(slot);
        let segment = &memory.log.slots()[slot as usize];
        segments.push((id, segment.bytes[..segment.written as usize].to_vec()));
    }
    segments
}

/// Returns the order to recover the log from these backups, each of which has all of it.
fn order(recovery: u64, log: &[(SegmentId, Vec<u8>)], on: &[u32]) -> Recover<'static> {
    let indexes: Vec<u16> = (0..on.len() as u16).collect();
    let piece = |(segment, bytes): &(SegmentId, Vec<u8>)| Piece {
        segment: *segment,
        len: bytes.len() as u32,
        on: indexes.clone(),
    };
    let source = |&index: &u32| {
        if index == ME.index {
            return Source { backup: ME, data: "me" };
        }
        Source { backup: backup(index), data: "b" }
    };
    Recover {
        cluster: CLUSTER,
        term: TERM,
        recovery,
        server: ME,
        crashed: CRASHED,
        tablets: vec![Part {
            table: TABLE,
            first: 0,
            last: u64::MAX,
            hash_key: KEY,
            durability: TableDurability::Cluster,
            since: SegmentId(0),
            floor: Version(0),
        }],
        backups: on.iter().map(source).collect(),
        segments: log.iter().map(piece).collect(),
    }
}

/// Returns a master without tablets.
fn heir(log_bytes: u64) -> Rig {
    let config = Config { log_bytes, segment_bytes: SEGMENT, ..Config::default() };
    let mut rig = Rig::new(config);
    let enlisted =
        Enlisted { cluster: CLUSTER, server: ME, list_version: 1, lease_ns: TERM_NS, term: TERM };
    rig.answer(Opcode::Enlist, enlisted.emit());
    rig
}

impl Rig {
    fn order(&mut self, order: &Recover<'_>) -> Result<u64, Status> {
        let reply = self.ask(order.emit());
        Recovering::parse(&reply).map(|recovering| recovering.replayed)
    }

    /// Lets time pass until the master waits for the results of calls. Returns the calls.
    fn wait(&mut self) -> Vec<(u64, Vec<u8>)> {
        for _ in 0..100 {
            self.pass(MS);
        }
        let of_recovery = [Ok(Opcode::ReadReplica), Ok(Opcode::RecoveryEnded)];
        let is_wanted = |request: &[u8]| of_recovery.contains(&opcode(request));
        let (calls, rest) =
            core::mem::take(&mut self.calls).into_iter().partition(|call| is_wanted(&call.1));
        self.calls = rest;
        calls
    }

    fn respond(&mut self, tag: u64, result: Result<&[u8], RpcError>) {
        self.master.response(self.now, tag, result.map(Payload::Borrowed));
        self.pump();
    }

    /// Answers reads with the bytes that `read` gives for backup and segment, until the master
    /// reports the end. Returns the tag of the report, and the report.
    fn feed(
        &mut self,
        mut read: impl FnMut(&ReadReplica) -> Option<Vec<u8>>,
    ) -> (u64, RecoveryEnded) {
        for _ in 0..1000 {
            for (tag, request) in self.wait() {
                if let Ok(ended) = RecoveryEnded::parse(&request) {
                    return (tag, ended);
                }
                let asked = ReadReplica::parse(&request).expect("a read");
                assert_eq!((asked.cluster, asked.master), (CLUSTER, CRASHED));
                assert!(asked.len <= MOST_READ);
                match read(&asked) {
                    Some(bytes) => {
                        let end = (asked.offset + asked.len) as usize;
                        let part = bytes.get(asked.offset as usize..end.min(bytes.len()));
                        let reply = [&head(Status::Ok)[..], part.unwrap_or_default()].concat();
                        self.respond(tag, Ok(&reply));
                    }
                    None => self.respond(tag, Err(RpcError::NotExecuted)),
                }
            }
        }
        panic!("the recovery never ends");
    }
}

fn bytes_of(log: &[(SegmentId, Vec<u8>)], asked: &ReadReplica) -> Option<Vec<u8>> {
    log.iter().find(|(id, _)| *id == asked.segment).map(|(_, bytes)| bytes.clone())
}

#[test]
fn objects_are_served_when_the_coordinator_has_confirmed_the_owner() {
    let log = log_of(40);
    assert!(log.len() > 2);
    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2, 3])), Ok(0));
    let reads = rig.wait();
    assert!(!reads.is_empty() && rig.is_asleep(), "it waits for the replies");
    rig.calls.extend(reads);
    let (tag, ended) = rig.feed(|asked| bytes_of(&log, asked));
    assert_eq!((ended.recovery, ended.crashed, ended.ending), (5, CRASHED, Ending::Done));
    assert_eq!((ended.server, ended.tablets.len()), (ME, 1));
    assert_eq!(rig.read(&0u64.to_be_bytes()), Err(Status::UnknownTablet));
    let all: usize = log.iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(rig.order(&order(5, &log, &[2, 3])), Ok(all as u64), "a poll");

    // The reply is lost, and the disk of the coordinator is full.
    rig.respond(tag, Err(RpcError::MaybeExecuted));
    let (tag, again) = rig.feed(|_| None);
    assert_eq!(again, ended);
    rig.respond(tag, Ok(&failure(Status::NotDurable, "full")));
    let (tag, _) = rig.feed(|_| None);
    rig.respond(tag, Ok(&done()));
    for n in 0..40u64 {
        assert_eq!(rig.read(&n.to_be_bytes()), Ok((Version(n + 1), VALUE.to_vec())));
    }
    assert_eq!(rig.links, BTreeSet::from([COORDINATOR.0]));
    assert_eq!(rig.order(&order(5, &log, &[2])), Err(Status::NoRecovery), "it has ended");

    // The last mutation is repeated, and is not executed again.
    let key = 39u64.to_be_bytes();
    let write = Write {
        target: TARGET,
        once: once(77, 40, 39),
        key: &key,
        value: b"other",
        lifetime: None,
    };
    let waiting = rig.send(&write.emit()).unwrap_err();
    let is_check = |(_, request): &(u64, Vec<u8>)| opcode(request) == Ok(Opcode::CheckLease);
    let tag = rig.calls.iter().find(|call| is_check(call)).unwrap().0;
    rig.respond(tag, Ok(&LeaseTimes { valid_ns: vec![SECOND] }.emit()));
    assert_eq!(mutation_reply(&rig.replies.remove(&waiting).unwrap()), Ok(Version(40)));
    assert_eq!(rig.read(&key), Ok((Version(40), VALUE.to_vec())));
}

#[test]
fn a_damaged_or_missing_replica_is_replaced_by_another() {
    let log = log_of(40);
    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2, 3, 4])), Ok(0));
    let (_, ended) = rig.feed(|asked| {
        let mut bytes = bytes_of(&log, asked)?;
        match asked.backup.index {
            2 => bytes.last_mut().map(|last| *last ^= 1)?,
            3 => bytes.truncate(bytes.len() - 1),
            _ => {}
        }
        Some(bytes)
    });
    assert_eq!(ended.ending, Ending::Done);

    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2, 3])), Ok(0));
    // Another master's segment.
    let (tag, ended) = rig.feed(|asked| {
        let mut bytes = bytes_of(&log, asked)?;
        if asked.backup.index == 2 {
            bytes[17] ^= 1
        } else {
            bytes.clear()
        }
        Some(bytes)
    });
    assert_eq!(ended.ending, Ending::Lacking);
    // The report names the replicas of all segments.
    assert_eq!(ended.damaged.len(), 2 * log.len());
    assert!(ended.damaged.iter().all(|replica| [2, 3].contains(&replica.backup.index)));
    rig.respond(tag, Ok(&done()));
    rig.wait();
    assert_eq!(rig.read(&0u64.to_be_bytes()), Err(Status::UnknownTablet));
    assert!(rig.master.memory.table.is_empty());
    assert_eq!(rig.order(&order(6, &log, &[2, 3])), Ok(0), "and again");
}

#[test]
fn a_backup_that_does_not_answer_is_asked_again_for_a_while() {
    let log = log_of(20);
    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2])), Ok(0));
    let mut asked = 0;
    let (_, ended) = rig.feed(|read| {
        asked += 1;
        if asked % 10 == 0 { bytes_of(&log, read) } else { None }
    });
    assert_eq!(ended.ending, Ending::Done);

    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2])), Ok(0));
    let mut asked = 0;
    let (_, ended) = rig.feed(|_| {
        asked += 1;
        None
    });
    // Two segments are read at a time.
    assert_eq!((ended.ending, asked), (Ending::Lacking, 40));
}

#[test]
fn a_recovery_that_is_given_up_leaves_nothing() {
    let log = log_of(40);
    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2])), Ok(0));
    let (tag, _) = rig.feed(|asked| bytes_of(&log, asked));
    assert_eq!(rig.master.memory.table.len(), 40);
    rig.respond(tag, Ok(&failure(Status::NoRecovery, "another owner")));
    assert_eq!(rig.order(&order(6, &log, &[2])), Err(Status::Retry), "objects are being swept");
    rig.wait();
    assert_eq!(rig.master.memory.table.len(), 0);
    assert_eq!(rig.status(take(0, u64::MAX).emit()), Some(Status::Ok));
}

#[test]
fn a_later_recovery_of_the_same_master_takes_the_place_of_an_earlier_one() {
    let log = log_of(40);
    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2])), Ok(0));
    let late = rig.wait();
    let other = ServerId { index: 9, generation: 1 };
    let refused = rig.order(&Recover { crashed: other, ..order(6, &log, &[2]) });
    assert_eq!(refused, Err(Status::Retry));
    assert_eq!(rig.order(&order(4, &log, &[2])), Err(Status::NoRecovery));
    assert_eq!(rig.order(&order(7, &log, &[2])), Err(Status::Retry), "the old one ends");
    rig.wait();
    assert_eq!(rig.order(&order(7, &log, &[2])), Ok(0));
    for (tag, _) in late {
        rig.respond(tag, Ok(&head(Status::Ok)));
    }
    let (_, ended) = rig.feed(|asked| bytes_of(&log, asked));
    assert_eq!((ended.recovery, ended.ending), (7, Ending::Done));
}

#[test]
fn the_next_partition_waits_until_the_end_of_the_one_before_is_confirmed() {
    let log = log_of(40);
    let mut rig = heir(64 << 12);
    let half = |recovery, first, last| {
        let mut order = order(recovery, &log, &[2]);
        (order.tablets[0].first, order.tablets[0].last) = (first, last);
        order
    };
    let (low, high) = (half(5, 0, u64::MAX / 2), half(6, u64::MAX / 2 + 1, u64::MAX));
    assert_eq!(rig.order(&low), Ok(0));
    let (tag, _) = rig.feed(|asked| bytes_of(&log, asked));
    // The order of the next partition overtakes the coordinator's reply.
    assert_eq!(rig.order(&high), Err(Status::Retry));
    rig.respond(tag, Ok(&done()));
    assert_eq!(rig.order(&high), Ok(0));
    let (tag, _) = rig.feed(|asked| bytes_of(&log, asked));
    rig.respond(tag, Ok(&done()));
    for n in 0..40u64 {
        assert_eq!(rig.read(&n.to_be_bytes()), Ok((Version(n + 1), VALUE.to_vec())));
    }
}

#[test]
fn a_master_without_room_says_so() {
    let log = log_of(100);
    let mut rig = heir(8 << 12);
    assert_eq!(rig.order(&order(5, &log, &[2])), Ok(0));
    let (tag, ended) = rig.feed(|asked| bytes_of(&log, asked));
    assert_eq!(ended.ending, Ending::Full);
    rig.respond(tag, Ok(&done()));
    rig.wait();
    assert!(rig.master.memory.table.is_empty());
}

/// The lost segments may have given the versions below the floor to any key, existing or not.
#[test]
fn after_an_accepted_loss_no_version_is_given_twice() {
    let log = log_of(2);
    let mut rig = heir(64 << 12);
    let floor = Version(1 << 42);
    let mut loss = order(5, &log, &[2]);
    loss.tablets[0].floor = floor;
    assert_eq!(rig.order(&loss), Ok(0));
    let (tag, _) = rig.feed(|asked| bytes_of(&log, asked));
    rig.respond(tag, Ok(&done()));
    let (old, new) = (0u64.to_be_bytes(), 9u64.to_be_bytes());
    assert_eq!(rig.read(&old), Ok((Version(1), VALUE.to_vec())));
    rig.master.memory.results.extend(LeaseId(78), Instant::NEVER);
    assert_eq!(rig.write(once(78, 1, 0), &old, b"a"), Ok(floor));
    assert_eq!(rig.write(once(78, 2, 0), &old, b"b"), Ok(Version(floor.0 + 1)));
    assert_eq!(rig.write(once(78, 3, 0), &new, b"c"), Ok(floor));
}

/// Nothing is left of a log: the tablet is empty, and the coordinator makes this master its owner.
#[test]
fn an_order_without_segments_gives_an_empty_tablet() {
    let mut rig = heir(64 << 12);
    assert_eq!(rig.order(&order(5, &[], &[])), Ok(0));
    let (tag, ended) = rig.feed(|_| None);
    assert_eq!((ended.ending, ended.damaged.len()), (Ending::Done, 0));
    rig.respond(tag, Ok(&done()));
    assert_eq!(rig.read(b"key"), Err(Status::ObjectDoesntExist));
}

#[test]
fn orders_that_make_no_sense_are_refused() {
    let log = log_of(3);
    let good = order(5, &log, &[2]);
    let part = |part: Part| Recover { tablets: vec![part], ..good.clone() };
    let piece = |piece: Piece| Recover { segments: vec![piece], ..good.clone() };
    let (first, one) = (good.tablets[0].clone(), good.segments[0].clone());
    let mut rig = heir(64 << 12);
    for bad in [
        Recover { tablets: vec![], ..good.clone() },
        part(Part { first: 2, last: 1, ..first.clone() }),
        part(Part { table: TableId(1 << 40), ..first.clone() }),
        piece(Piece { len: 0, ..one.clone() }),
        piece(Piece { len: u32::MAX, ..one.clone() }),
        piece(Piece { on: vec![], ..one.clone() }),
        piece(Piece { on: vec![1], ..one }),
        Recover { tablets: vec![first.clone(), first], ..good.clone() },
    ] {
        assert_eq!(rig.order(&bad), Err(Status::BadFormat), "{bad:?}");
    }
    let wrong = Recover { cluster: CLUSTER + 1, ..good.clone() };
    assert_eq!(rig.order(&wrong), Err(Status::NotInCluster));
    assert_eq!(rig.order(&good), Ok(0));
}

#[test]
fn a_recovered_table_keeps_its_durability() {
    for durability in TableDurability::ALL {
        let log = log_of(10);
        let mut rig = heir(1 << 20);
        let mut order = order(1, &log, &[7]);
        order.tablets[0].durability = durability;
        assert_eq!(rig.order(&order), Ok(0));
        assert_eq!(rig.master.memory().tablets.durability(TABLE), durability);
    }
}
