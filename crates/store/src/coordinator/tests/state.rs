//! Tests of the coordinator's durable state, byte by byte.

use super::*;
use crate::durability::{Durability, TableDurability};
use crate::site::{Role, Site};

#[test]
fn a_state_that_makes_no_sense_is_refused() {
    let restore = |pairs: &[(&[u8], &[u8])]| {
        let pairs = pairs.iter().map(|(key, value)| (key.to_vec(), value.to_vec()));
        let restored = Coordinator::restore(Instant::ZERO, config(), Rng::seeded(1), pairs);
        restored.map(|_| ()).unwrap_err()
    };
    assert_eq!(restore(&[(b"c", &[0, 9, 1])]), RestoreError::Format(9));
    assert_eq!(restore(&[(b"c", &[0, 7, 1])]), RestoreError::Format(7));
    assert_eq!(restore(&[(b"c", &[0, 8, 1])]), RestoreError::Damaged("cluster record"));
    assert_eq!(restore(&[(b"l\0\0\0\0\0\0\0\x01", &[])]), RestoreError::NoCluster);
    assert_eq!(restore(&[(b"", &[])]), RestoreError::Damaged("key"));
    assert_eq!(restore(&[(b"x", &[])]), RestoreError::Damaged("key"));
    assert_eq!(restore(&[(b"s\0\0\0", &[])]), RestoreError::Damaged("key"));
    assert_eq!(restore(&[(b"s\xff\0\0\0", &[])]), RestoreError::Damaged("server record"));
    assert_eq!(restore(&[(b"t\0\0\0\0\0\0\0\x01", &[])]), RestoreError::Damaged("table"));

    // What parses but cannot have been written.
    let cluster = |next_table| durable::Cluster {
        format: FORMAT,
        id: 9,
        incarnation: 1,
        next_table,
        next_lease: 3,
        server_term_ns: 4,
        client_term_ns: 5,
        losses: 6,
    };
    let worn = durable::Cluster { incarnation: u64::from(u32::MAX), ..cluster(2) };
    let worn = restore(&[(b"c", &durable::encode(&worn))]);
    assert_eq!(worn, RestoreError::Damaged("cluster record"));
    let lost = durable::Cluster { losses: 64, ..cluster(2) };
    let lost = restore(&[(b"c", &durable::encode(&lost))]);
    assert_eq!(lost, RestoreError::Damaged("cluster record"));
    let table = |name, last| durable::Table {
        stage: durable::Stage::Ready,
        name,
        hash_key: HashKey([7; 16]),
        durability: TableDurability::Cluster,
        tablets: vec![durable::Tablet {
            first: 0,
            last,
            server: ServerId::default(),
            since: SegmentId(0),
            floor: Version(0),
        }],
    };
    let bad_cluster = |next_table| restore(&[(b"c", &durable::encode(&cluster(next_table)))]);
    assert_eq!(bad_cluster(u64::MAX), RestoreError::Damaged("cluster record"));
    let c = durable::encode(&cluster(2));
    let lease = Key::Lease(3).emit();
    assert_eq!(restore(&[(b"c", &c), (&lease, &[])]), RestoreError::Damaged("lease"));
    let bad_tables = |tables: &[(u64, durable::Table<'_>)]| {
        let mut pairs = vec![(b"c".to_vec(), c.clone())];
        pairs.extend(
            tables.iter().map(|(id, table)| (Key::Table(*id).emit(), durable::encode(table))),
        );
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        restore(&pairs)
    };
    let damaged = RestoreError::Damaged("table");
    assert_eq!(bad_tables(&[(2, table("a", u64::MAX))]), damaged);
    assert_eq!(bad_tables(&[(1, table("a", 7))]), damaged);
    assert_eq!(bad_tables(&[(1, table("", u64::MAX))]), damaged);
    assert_eq!(bad_tables(&[(0, table("a", u64::MAX)), (1, table("a", u64::MAX))]), damaged);
}

/// The durable state on the disk has the bytes that docs/formats.md gives.
#[test]
fn golden_state() {
    use super::durable::*;
    let cluster = Cluster {
        format: FORMAT,
        id: 9,
        incarnation: 1,
        next_table: 2,
        next_lease: 3,
        server_term_ns: 4,
        client_term_ns: 5,
        losses: 6,
    };
    let numbers = [9u64, 1, 2, 3, 4, 5].map(u64::to_be_bytes).concat();
    assert_eq!(encode(&cluster), [vec![0, 8], numbers, vec![0, 6]].concat());
    let server = Server {
        generation: 2,
        place: Place::Crashed,
        nonce: 3,
        capacity_bytes: 4,
        replicas: 7,
        durability: Durability::Disk,
        site: Site { role: Role::Master, host: 11, process: 12, shard: 13, rack: "r" },
        head_segment: SegmentId(5),
        head_epoch: 6,
        control: "c",
        data: "d",
        loss: 8,
        kept: vec![Kept { segment: SegmentId(9), len: 10 }],
    };
    let mut bytes = b"\0\0\0\x02\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04".to_vec();
    bytes.extend(b"\x07\x04\x01\0\0\0\0\0\0\0\x0b\0\0\0\0\0\0\0\x0c\0\x0d\0\x01r");
    bytes.extend(b"\0\0\0\x05\0\0\0\x06\0\x01c\0\x01d\0\x08\0\x01\0\0\0\x09\0\0\0\x0a");
    assert_eq!(encode(&server), bytes);
    let table = Table {
        stage: Stage::Dropping,
        name: "a",
        hash_key: HashKey([7; 16]),
        durability: TableDurability::Async,
        tablets: vec![Tablet {
            first: 1,
            last: 2,
            server: ServerId { index: 3, generation: 4 },
            since: SegmentId(5),
            floor: Version(6),
        }],
    };
    let mut bytes = b"\x02\0\x01a".to_vec();
    bytes.extend([7; 16]);
    bytes.extend(b"\x01\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05");
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 6]);
    assert_eq!(encode(&table), bytes);
    for (key, bytes) in [
        (Key::Cluster, &b"c"[..]),
        (Key::Server(1), b"s\0\0\0\x01"),
        (Key::Table(1), b"t\0\0\0\0\0\0\0\x01"),
        (Key::Lease(1), b"l\0\0\0\0\0\0\0\x01"),
    ] {
        assert_eq!(key.emit(), bytes);
        assert_eq!(Key::parse(bytes), Ok(key));
    }
}
