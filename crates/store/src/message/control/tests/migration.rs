//! Golden bytes of the messages about migrations.

use super::*;
use crate::message::migration::*;
use crate::message::recovery::Part;
use crate::types::Version;

const TWO: ServerId = ServerId { index: 3, generation: 4 };

#[test]
fn requests_of_clients() {
    golden!(
        SplitTablet,
        "01 4f 0000 0001 74 8000000000000000",
        SplitTablet { name: "t", at: 1 << 63 }
    );
    golden!(MergeTablets, "01 50 0000 0001 74 0000000000000005", MergeTablets { name: "t", at: 5 });
    golden!(
        MoveTablet,
        "01 51 0000 0001 74 0000000000000005 0000000000000006 00000003",
        MoveTablet { name: "t", first: 5, last: 6, target: 3 }
    );
    golden!(ListMigrations, "01 52 0000 0000000000000007", ListMigrations { after: 7 });
    golden!(Moving, "01 00 0000 0000000000000007", Moving { migration: 7 });
    golden!(
        MigrationPage,
        "01 00 0000 01 0001 0000000000000007 03 0000000000000006 0000000000000005
         0000000000000008 00000001 00000002 00000003 00000004 0000000000000100 0001 72",
        MigrationPage {
            more: true,
            migrations: vec![Migration {
                number: 7,
                state: MigrationState::Failed,
                table: TableId(6),
                first: 5,
                last: 8,
                source: ONE,
                target: TWO,
                bytes: 256,
                reason: "r",
            }],
        }
    );
}

#[test]
fn requests_of_servers() {
    golden!(
        Migrate,
        "01 84 0000 0000000000000009 0000000000000004 0000000000000007 00000003 00000004
         00000001 00000002 0001 64 0000000000000006 0000000000000005 0000000000000008
         02020202020202020202020202020202 00 00000000 000000000000000a",
        Migrate {
            cluster: 9,
            term: 4,
            migration: 7,
            server: TWO,
            source: ONE,
            data: "d",
            part: Part {
                table: TableId(6),
                first: 5,
                last: 8,
                hash_key: HashKey([2; 16]),
                durability: TableDurability::Cluster,
                since: SegmentId(0),
                floor: Version(10),
            },
        }
    );
    golden!(
        PullTablet,
        "01 c8 0000 0000000000000009 00000001 00000002 0000000000000007 0000000000000006
         0000000000000005 0000000000000008 0000000000000002 0000000000000003
         0000000000000001 01",
        PullTablet {
            cluster: 9,
            source: ONE,
            migration: 7,
            table: TableId(6),
            first: 5,
            last: 8,
            page: 2,
            attempt: 3,
            from: 1,
            close: true,
        }
    );
    golden!(
        HotRange,
        "01 85 0000 0000000000000009 0000000000000004 00000001 00000002 0100",
        HotRange { cluster: 9, term: 4, server: ONE, wanted: 256 }
    );
    golden!(
        Hot,
        "01 00 0000 0000000000000006 0000000000000005 0000000000000008 00ff",
        Hot { table: TableId(6), first: 5, last: 8, part: 255 }
    );
    golden!(
        FindTablet,
        "01 53 0000 0000000000000009 00000001 00000002 0000000000000007 0000000000000006
         0000000000000005 0000000000000008",
        FindTablet { cluster: 9, server: ONE, migration: 7, table: TableId(6), first: 5, last: 8 }
    );
    golden!(Found, "01 00 0000 0000000000000004 02", Found { term: 4, fate: Fate::Gone });
}

#[test]
fn a_page_has_its_progress_and_entries() {
    let reply = [&Page::head(Progress::Near)[..], b"entries"].concat();
    assert_eq!(reply, [&[VERSION, 0, 0, 0, 1][..], b"entries"].concat());
    let page = Page { progress: Progress::Near, entries: b"entries" };
    assert_eq!(Page::parse(&reply), Ok(page));
    assert_eq!(Page::parse(&reply[..4]), Err(Status::BadFormat));
    assert_eq!(Page::parse(&[VERSION, 0, 0, 0, 3]), Err(Status::BadFormat));
    assert_eq!(Page::parse(&[VERSION, 7, 0, 0]), Err(Status::Retry));
    assert_eq!(Page::parse(&[2, 0, 0, 0, 1]), Err(Status::BadVersion));
}
