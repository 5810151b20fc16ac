use alloc::string::String;
use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::durability::Durability;
use crate::durability::TableDurability;
use crate::message::recovery::{
    AcceptLoss, FreeLeftReplicas, FreeReplicas, ListReplicas, Loss, ReadReplica, Recover,
    Recovering, RecoveryEnded, ReplicaPage,
};
use crate::message::{Opcode, Status, VERSION};
use crate::site::{Role, Site};

/// Returns the bytes of hexadecimal digits, blanks ignored.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Compares a control message with its bytes, which were written by hand from docs/formats.md, both
/// ways. Shorter and longer bytes must be refused.
macro_rules! golden {
    ($name:ident, $hex:literal, $value:expr) => {{
        let bytes = hex($hex);
        let value = $value;
        assert_eq!(value.emit(), bytes, "{value:?}");
        assert_eq!($name::parse(&bytes), Ok(value));
        for short in 0..bytes.len() {
            assert!($name::parse(&bytes[..short]).is_err(), "{short} bytes");
        }
        let mut long = bytes.clone();
        long.push(0);
        assert_eq!($name::parse(&long), Err(Status::BadFormat));
        long[0] = VERSION + 1;
        assert_eq!($name::parse(&long), Err(Status::BadVersion));
    }};
}

mod migration;
mod recovery;

const ONE: ServerId = ServerId { index: 1, generation: 2 };

#[test]
fn requests_of_servers() {
    golden!(
        Enlist,
        "01 40 0000 0102030405060708 0000000040000000 03 04 02 0000000000000007
         000000000000000a 000b 0001 72
         0000000000000009 00000001 00000002 0005 7463703a61 0003 6d3a62",
        Enlist {
            nonce: 0x0102_0304_0506_0708,
            capacity_bytes: 1 << 30,
            replicas: 3,
            durability: Durability::Disk,
            site: Site { role: Role::Backup, host: 7, process: 10, shard: 11, rack: "r" },
            cluster: 9,
            replaces: ONE,
            control: "tcp:a",
            data: "m:b"
        }
    );
    golden!(
        RenewServer,
        "01 41 0000 0000000000000009 00000001 00000002 0000000000000003 0000000000000004
         0000000000000005 0000000000000006",
        RenewServer {
            cluster: 9,
            server: ONE,
            usage: Usage { used_bytes: 3, capacity_bytes: 4, objects: 5, accesses: 6 }
        }
    );
    golden!(
        CheckLease,
        "01 43 0000 0000000000000009 0002 0000000000000001 ffffffffffffffff",
        CheckLease { cluster: 9, leases: vec![LeaseId(1), LeaseId(u64::MAX)] }
    );
    golden!(
        HintCrashed,
        "01 4a 0000 0000000000000009 00000001 00000002 01",
        HintCrashed { cluster: 9, server: ONE, hint: Hint::Leaving }
    );
    golden!(
        SetHead,
        "01 4b 0000 0000000000000009 00000001 00000002 00000003 00000004",
        SetHead { cluster: 9, server: ONE, segment: SegmentId(3), epoch: 4 }
    );
}

#[test]
fn requests_of_clients() {
    golden!(
        RenewClient,
        "01 42 0000 0000000000000009 0000000000000007 01",
        RenewClient { cluster: 9, lease: LeaseId(7), release: true }
    );
    golden!(
        CreateTable,
        "01 44 0000 00000003 00 0004 c3a96161",
        CreateTable { span: 3, durability: TableDurability::Cluster, name: "éaa" }
    );
    golden!(
        DropTable,
        "01 45 0000 0000000000000006 0001 61",
        DropTable { table: TableId(6), name: "a" }
    );
    golden!(GetTable, "01 46 0000 0001 61", GetTable { name: "a" });
    golden!(ListTables, "01 47 0000 0000000000000006", ListTables { after: TableId(6) });
    golden!(GetTablets, "01 48 0000 0000000000000006", GetTablets { table: TableId(6) });
    golden!(ListServers, "01 49 0000 00000006", ListServers { from: 6 });
    golden!(GetLeader, "01 4d 0000", GetLeader {});
}

#[test]
fn requests_of_the_coordinator() {
    golden!(
        TakeTablet,
        "01 80 0000 0000000000000009 0000000000000004 00000001 00000002 0000000000000006
         0000000000000000 7fffffffffffffff
         000102030405060708090a0b0c0d0e0f 01",
        TakeTablet {
            cluster: 9,
            term: 4,
            server: ONE,
            table: TableId(6),
            first: 0,
            last: u64::MAX / 2,
            hash_key: HashKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
            durability: TableDurability::Async,
        }
    );
    golden!(
        Ping,
        "01 83 0000 0000000000000009 0000000000000004 00000001 00000002 0000000000000007",
        Ping { cluster: 9, term: 4, server: ONE, list_version: 7 }
    );
    golden!(
        DropTablet,
        "01 81 0000 0000000000000009 0000000000000004 00000001 00000002 0000000000000006
         0000000000000000 7fffffffffffffff",
        DropTablet {
            cluster: 9,
            term: 4,
            server: ONE,
            table: TableId(6),
            first: 0,
            last: u64::MAX / 2
        }
    );
}

const LISTED: Table<'_> = Table {
    table: TableId(6),
    tablets: 3,
    lost: 1,
    unheard: 2,
    recovering: 4,
    durability: TableDurability::Async,
    name: "a",
};

#[test]
fn replies() {
    golden!(
        Enlisted,
        "01 00 0000 0000000000000009 00000001 00000002 0000000000000005 0000000077359400
         0000000000000004",
        Enlisted { cluster: 9, server: ONE, list_version: 5, lease_ns: 2_000_000_000, term: 4 }
    );
    golden!(
        Renewed,
        "01 00 0000 0000000000000005 0000000077359400 0000000000000004",
        Renewed { list_version: 5, lease_ns: 2_000_000_000, term: 4 }
    );
    golden!(Leader, "01 00 0000 0000000000000004 0003 6d3a62", Leader { term: 4, locators: "m:b" });
    assert_eq!(not_leader("m:b", "x"), hex("01 1e 0000 6d3a62 0a 78"));
    assert_eq!(leader_in("m:b\nx"), ("m:b", "x"));
    golden!(
        Leased,
        "01 00 0000 0000000000000009 0000000000000007 0000000077359400",
        Leased { cluster: 9, lease: LeaseId(7), term_ns: 2_000_000_000 }
    );
    golden!(
        LeaseTimes,
        "01 00 0000 0002 0000000000000000 0000000077359400",
        LeaseTimes { valid_ns: vec![0, 2_000_000_000] }
    );
    golden!(
        TableKey,
        "01 00 0000 0000000000000009 0000000000000006 000102030405060708090a0b0c0d0e0f",
        TableKey {
            cluster: 9,
            table: TableId(6),
            hash_key: HashKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
        }
    );
    golden!(
        TablePage,
        "01 00 0000 01 0001 0000000000000006 0003 0001 0002 0004 01 0001 61",
        TablePage { more: true, tables: vec![LISTED] }
    );
}

#[test]
fn replies_with_servers() {
    golden!(
        Tablets,
        "01 00 0000 0000000000000009 000102030405060708090a0b0c0d0e0f 0002
         0000000000000000 7fffffffffffffff 00000001 00000002 00 0003 6d3a62
         8000000000000000 ffffffffffffffff 00000001 00000001 01 0000",
        Tablets {
            cluster: 9,
            hash_key: HashKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
            tablets: vec![
                Tablet {
                    first: 0,
                    last: u64::MAX / 2,
                    server: ONE,
                    state: TabletState::Normal,
                    data: "m:b"
                },
                Tablet {
                    first: 1 << 63,
                    last: u64::MAX,
                    server: ServerId { index: 1, generation: 1 },
                    state: TabletState::Lost,
                    data: ""
                },
            ],
        }
    );
    golden!(
        ServerPage,
        "01 00 0000 00000005 0001 00000001 00000002 03 00000003
         0000000000000003 0000000000000004 0000000000000005 0000000000000006
         0000000000000007 03 03
         01 0000000000000007 0000000000000000 0000 0000 0001 63 0001 64 0001 65",
        ServerPage {
            next: 5,
            servers: vec![Server {
                server: ONE,
                state: ServerState::Blocked,
                tablets: 3,
                usage: Usage { used_bytes: 3, capacity_bytes: 4, objects: 5, accesses: 6 },
                rate: 7,
                replicas: 3,
                durability: Durability::Process,
                site: Site { role: Role::Master, host: 7, ..Site::default() },
                control: "c",
                data: "d",
                blocked: "e",
            }]
        }
    );
}

#[test]
fn failures_carry_their_text() {
    let reply = failure(Status::BadName, "a name has 1 to 255 bytes");
    assert_eq!(&reply[..4], &[1, 20, 0, 0]);
    assert_eq!(failure_text(&reply), "a name has 1 to 255 bytes");
    assert_eq!(TableKey::parse(&reply), Err(Status::BadName));
    assert_eq!(failure(Status::Retry, &"é".repeat(600)).len(), 1004);
    assert_eq!(failure(Status::Retry, &String::from_iter(["a", &"é".repeat(600)])).len(), 1003);
    assert_eq!(failure_text(&[1, 20, 0, 0, 0xff]), "");
    assert_eq!(failure_text(&[1]), "");
    assert_eq!(outcome(&[1, 255, 0, 0]), Err(Status::BadFormat));
    assert_eq!(done(), [1, 0, 0, 0]);
}

#[test]
fn a_request_is_taken_for_what_its_opcode_says() {
    assert_eq!(opcode(&[1, 64, 0, 0]), Ok(Opcode::Enlist));
    assert_eq!(opcode(&[1, 63, 0, 0]), Err(Status::UnknownOpcode));
    assert_eq!(opcode(&[2, 64, 0, 0]), Err(Status::BadVersion));
    assert_eq!(opcode(&[1, 64, 0]), Err(Status::BadFormat));
    let list = ListServers { from: 6 }.emit();
    assert_eq!(CreateTable::parse(&list), Err(Status::BadFormat));
    let mut keyed = list;
    keyed[3] = 1;
    assert_eq!(ListServers::parse(&keyed), Err(Status::BadFormat));
}

/// A message whose count is larger than its bytes allow is refused without an allocation.
#[test]
fn counts_are_not_believed() {
    assert_eq!(LeaseTimes::parse(&hex("01 00 0000 ffff 0000000000000000")), Err(Status::BadFormat));
}

/// Bytes that parse as a message become the same bytes when `emit` writes that message.
macro_rules! same_again {
    ($bytes:ident, $($name:ident)*) => { $(
        if let Ok(parsed) = $name::parse(&$bytes) {
            prop_assert_eq!(&parsed.emit(), &$bytes);
        }
    )* };
}

proptest! {
    #[test]
    fn arbitrary_requests(
        code in prop_oneof![60u8..135, 190u8..200],
        rest in prop::collection::vec(any::<u8>(), 0..80),
        plain: bool,
    ) {
        let mut bytes = vec![1, code, 0, 0];
        // Half of them small numbers, so that lengths and enums are often right.
        bytes.extend(rest.iter().map(|&b| if plain { b } else { b % 3 }));
        let _ = opcode(&bytes);
        same_again!(bytes, Enlist RenewServer RenewClient CheckLease CreateTable DropTable GetTable
            ListTables GetTablets ListServers GetLeader HintCrashed SetHead TakeTablet DropTablet
            Ping);
        same_again!(bytes, ListReplicas ReadReplica FreeReplicas FreeLeftReplicas);
        same_again!(bytes, Recover RecoveryEnded AcceptLoss);
    }

    #[test]
    fn arbitrary_replies(rest in prop::collection::vec(any::<u8>(), 0..120), plain: bool) {
        let mut bytes = vec![1, 0, 0, 0];
        bytes.extend(rest.iter().map(|&b| if plain { b } else { b % 3 }));
        same_again!(bytes, Leader Enlisted Renewed Leased LeaseTimes TableKey TablePage Tablets
            ServerPage);
        same_again!(bytes, ReplicaPage Recovering Loss);
        // The last two bytes of a head are reserved and ignored in replies.
        bytes[2] = 7;
        prop_assert!(outcome(&bytes).is_ok());
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
        let _ = (opcode(&bytes), outcome(&bytes).is_ok(), failure_text(&bytes));
    }
}
