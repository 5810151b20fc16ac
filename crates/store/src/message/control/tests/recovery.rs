//! Golden bytes of the messages about recovery.

use alloc::vec;

use super::*;
use crate::message::damage::{LostReplica, ReplicaDamaged};
use crate::message::recovery::{
    DamagedReplica, Ending, Part, Piece, Range, Replica, SegmentRange, Source,
};
use crate::message::ring::{OpenRing, Ring};
use crate::types::Version;

const MASTER: ServerId = ServerId { index: 3, generation: 4 };

#[test]
fn requests_to_backups() {
    golden!(
        ListReplicas,
        "01 c2 0000 0000000000000009 0000000000000004 00000001 00000002 00000003 00000004 00000005",
        ListReplicas { cluster: 9, term: 4, backup: ONE, master: MASTER, after: SegmentId(5) }
    );
    golden!(
        ReadReplica,
        "01 c3 0000 0000000000000009 00000001 00000002 00000003 00000004 00000005
         00000006 00000007",
        ReadReplica {
            cluster: 9,
            backup: ONE,
            master: MASTER,
            segment: SegmentId(5),
            offset: 6,
            len: 7,
        }
    );
    golden!(
        FreeLeftReplicas,
        "01 c5 0000 0000000000000009 00000001 00000002 00000003 00000004",
        FreeLeftReplicas { cluster: 9, backup: ONE, master: MASTER }
    );
    golden!(
        FreeReplicas,
        "01 c4 0000 0000000000000009 0000000000000004 00000001 00000002 00000003 00000004",
        FreeReplicas { cluster: 9, term: 4, backup: ONE, master: MASTER }
    );
}

#[test]
fn rings_for_posted_writes() {
    golden!(
        OpenRing,
        "01 c7 0000 0000000000000009 00000001 00000002 00000003 00000004",
        OpenRing { cluster: 9, backup: ONE, master: MASTER }
    );
    golden!(Ring, "01 00 0000 0003 612062", Ring { offer: "a b" });
}

#[test]
fn reports_of_lost_replicas() {
    golden!(
        ReplicaDamaged,
        "01 c6 0000 0000000000000009 00000003 00000004 00000001 00000002 0002
         00000005 00000006
         ffffffff 00000000",
        ReplicaDamaged {
            cluster: 9,
            master: MASTER,
            backup: ONE,
            replicas: vec![
                LostReplica { segment: SegmentId(5), epoch: 6 },
                LostReplica { segment: SegmentId(u32::MAX), epoch: 0 },
            ],
        }
    );
}

#[test]
fn requests_of_a_recovery() {
    golden!(
        Recover,
        "01 82 0000 0000000000000009 0000000000000004 0000000000000005 00000001 00000002
         00000003 00000004 0001 0000000000000006 0000000000000000 7fffffffffffffff
              000102030405060708090a0b0c0d0e0f 01 0000000a 000000000000000b
         0001 00000001 00000002 0003 6d3a62
         0001 00000007 00000800 0002 0000 0001",
        Recover {
            cluster: 9,
            term: 4,
            recovery: 5,
            server: ONE,
            crashed: MASTER,
            tablets: vec![Part {
                table: TableId(6),
                first: 0,
                last: u64::MAX / 2,
                hash_key: HashKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
                durability: TableDurability::Async,
                since: SegmentId(10),
                floor: Version(11),
            }],
            backups: vec![Source { backup: ONE, data: "m:b" }],
            segments: vec![Piece { segment: SegmentId(7), len: 2048, on: vec![0, 1] }],
        }
    );
    golden!(
        RecoveryEnded,
        "01 4c 0000 0000000000000009 0000000000000005 00000001 00000002 00000003 00000004 01
         0000000a 0000000000000100 0001 0000000000000006 0000000000000000 7fffffffffffffff
         0001 00000001 00000002 00000007",
        RecoveryEnded {
            cluster: 9,
            recovery: 5,
            server: ONE,
            crashed: MASTER,
            ending: Ending::Lacking,
            since: SegmentId(10),
            replayed: 256,
            tablets: vec![Range { table: TableId(6), first: 0, last: u64::MAX / 2 }],
            damaged: vec![DamagedReplica { backup: ONE, segment: SegmentId(7) }],
        }
    );
    golden!(
        AcceptLoss,
        "01 4e 0000 00000003 00000004 01",
        AcceptLoss { server: MASTER, accept: true }
    );
    golden!(
        Loss,
        "01 00 0000 01 00000002 0000000000000003 0001 00000004 00000005
         0001 00000001 00000002 00000004 00000006 0000000000000007
         00000008 0001 0000000000000009 000000000000000a 000000000000000b",
        Loss {
            head: true,
            segments: 2,
            bytes: 3,
            lost: vec![SegmentRange { first: SegmentId(4), last: SegmentId(5) }],
            damaged: vec![DamagedReplica { backup: ONE, segment: SegmentId(4) }],
            kept_segments: 6,
            kept_bytes: 7,
            tablets: 8,
            ranges: vec![Range { table: TableId(9), first: 10, last: 11 }],
        }
    );
}

#[test]
fn replies_about_replicas() {
    golden!(
        ReplicaPage,
        "01 00 0000 01 0002
         00000003 00000004 00000005 01
         ffffffff 00000000 00800000 00",
        ReplicaPage {
            more: true,
            replicas: vec![
                Replica { segment: SegmentId(3), epoch: 4, len: 5, closed: true },
                Replica { segment: SegmentId(u32::MAX), epoch: 0, len: 8 << 20, closed: false },
            ],
        }
    );
    golden!(Recovering, "01 00 0000 0000000000000007", Recovering { replayed: 7 });
}
