//! Tests of the terms of coordinators: a master obeys no coordinator that another one has replaced.

use super::*;
use crate::durability::TableDurability;
use crate::message::recovery::{
    FreeReplicas, ListReplicas, Part, Piece, Recover, ReplicaPage, Source,
};
use crate::objects::segment::SegmentId;

const CRASHED: ServerId = ServerId { index: 8, generation: 3 };

/// Returns one order of each kind, from a coordinator of this term.
fn orders(term: u64) -> [Vec<u8>; 5] {
    let (cluster, table, first, last) = (CLUSTER, TABLE, 0, u64::MAX);
    let part = Part {
        table,
        first,
        last,
        hash_key: KEY,
        durability: TableDurability::Cluster,
        since: SegmentId(0),
        floor: Version(0),
    };
    let recover = Recover {
        cluster,
        term,
        recovery: 1,
        server: ME,
        crashed: CRASHED,
        tablets: vec![part],
        backups: vec![Source { backup: CRASHED, data: "m:b" }],
        segments: vec![Piece { segment: SegmentId(1), len: 8, on: vec![0] }],
    };
    [
        DropTablet { cluster, term, server: ME, table, first, last }.emit(),
        recover.emit(),
        ListReplicas { cluster, term, backup: ME, master: CRASHED, after: SegmentId(0) }.emit(),
        FreeReplicas { cluster, term, backup: ME, master: CRASHED }.emit(),
        TakeTablet {
            cluster,
            term,
            server: ME,
            table,
            first,
            last,
            hash_key: KEY,
            durability: TableDurability::Cluster,
        }
        .emit(),
    ]
}

/// A coordinator that was paused while another one took over sends its orders late. Each order of
/// the other one, whatever its kind, ends the obedience.
#[test]
fn no_order_of_a_lower_term_is_obeyed() {
    for raise in 0..orders(0).len() {
        let mut rig = Rig::small();
        rig.client(1, TERM_NS);
        assert!(rig.write(once(1, 2, 1), b"k", b"v").is_ok());
        if raise > 0 {
            // The order may be refused for another reason: its term counts all the same.
            rig.ask(orders(TERM + 1)[raise].clone());
        } else {
            rig.pass(SECOND);
            let renewed = Renewed { list_version: 1, lease_ns: TERM_NS, term: TERM + 1 };
            rig.answer(Opcode::RenewServer, renewed.emit());
        }
        for order in orders(TERM) {
            assert_eq!(rig.status(order), Some(Status::StaleTerm), "raised by {raise}");
        }
        assert!(rig.read(b"k").is_ok(), "the tablet is there");
    }
    let mut rig = Rig::small();
    let [drop, _, list, free, _] = orders(TERM + 1);
    assert_eq!(rig.ask(drop), done());
    assert_eq!(rig.status(free), Some(Status::BadFormat), "nothing is fenced so far");
    assert_eq!(rig.ask(list), ReplicaPage { more: false, replicas: vec![] }.emit());
}

/// A reply of a coordinator that was replaced meanwhile renews nothing.
#[test]
fn no_reply_of_a_lower_term_renews_the_lease() {
    let mut rig = Rig::small();
    rig.ask(orders(TERM + 1)[0].clone());
    rig.pass(SECOND);
    rig.pass(TERM_NS - TERM_NS / 10 - SECOND);
    rig.answer(
        Opcode::RenewServer,
        Renewed { list_version: 9, lease_ns: TERM_NS, term: TERM }.emit(),
    );
    assert_eq!(rig.read(b"k"), Err(Status::NotServing));
    rig.pass(100 * MS);
    let renewed = Renewed { list_version: 9, lease_ns: TERM_NS, term: TERM + 1 };
    rig.answer(Opcode::RenewServer, renewed.emit());
    assert_eq!(rig.read(b"k"), Err(Status::UnknownTablet));
}
