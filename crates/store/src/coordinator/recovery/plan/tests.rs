//! Tests of the division of tablets into partitions.

use alloc::vec;

use super::*;
use crate::durability::TableDurability;
use crate::objects::segment::SegmentId;
use crate::types::{HashKey, TableId, Version};

const MIB: u64 = 1 << 20;

fn part(table: u64, first: u64, last: u64) -> Part {
    let (hash_key, since) = (HashKey::default(), SegmentId(table as u32));
    Part {
        table: TableId(table),
        first,
        last,
        hash_key,
        durability: TableDurability::Cluster,
        since,
        floor: Version(0),
    }
}

/// Returns the ranges of each share by table, and checks the since of each.
fn divided(parts: Vec<Part>, shares: u64, cuts: bool) -> Vec<Vec<(u64, u64, u64)>> {
    let all = divide(parts, shares, |_| cuts);
    let ranges = |part: &Part| {
        assert_eq!(u64::from(part.since.0), part.table.0);
        (part.table.0, part.first, part.last)
    };
    all.iter().map(|parts| parts.iter().map(ranges).collect()).collect()
}

#[test]
fn a_log_has_shares_for_masters_and_for_time() {
    let shares = |bytes, masters| shares(&Config::default(), bytes, masters);
    assert_eq!([shares(0, 0), shares(0, 9), shares(1, 0), shares(1, 9)], [1; 4]);
    assert_eq!([shares(32 * MIB, 9), shares(32 * MIB + 1, 9), shares(96 * MIB, 2)], [1, 2, 2]);
    // One master does not replay more than 4 GiB at a time. All masters get as many shares.
    let of_long = [(4096 * MIB, 1), (4096 * MIB + 1, 1), (12_288 * MIB, 3), (12_289 * MIB, 3)];
    assert_eq!(of_long.map(|(bytes, masters)| shares(bytes, masters)), [1, 2, 3, 6]);
    assert_eq!([shares(u64::MAX, 1), shares(u64::MAX, 4096)], [256; 2]);
}

#[test]
fn a_tablet_is_cut_where_a_share_ends() {
    assert_eq!(divided(vec![], 3, true), Vec::<Vec<_>>::new());
    assert_eq!(divided(vec![part(1, 0, u64::MAX)], 1, true), [[(1, 0, u64::MAX)]]);
    let half = 1 << 63;
    let halves = [[(1, 0, half - 1)], [(1, half, u64::MAX)]];
    assert_eq!(divided(vec![part(1, 0, u64::MAX)], 2, true), halves);
    assert_eq!(divided(vec![part(1, 0, u64::MAX)], 2, false), [[(1, 0, u64::MAX)]]);
    // 30 hashes in three shares: the second tablet is part of all.
    let parts = vec![part(1, 0, 3), part(2, 0, 21), part(3, 5, 8)];
    let thirds = vec![vec![(1, 0, 3), (2, 0, 5)], vec![(2, 6, 15)], vec![(2, 16, 21), (3, 5, 8)]];
    assert_eq!(divided(parts.clone(), 3, true), thirds);
    let whole = vec![vec![(1, 0, 3), (2, 0, 21)], vec![(3, 5, 8)]];
    assert_eq!(divided(parts, 3, false), whole);
}

#[test]
fn tiny_tablets_are_shared_without_cuts() {
    let tiny: Vec<_> = (0..10).map(|i| part(i, 7, 7)).collect();
    let sizes =
        |shares| divided(tiny.clone(), shares, true).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(
        [sizes(1), sizes(5), sizes(10), sizes(256)],
        [vec![10], vec![2; 5], vec![1; 10], vec![1; 10]]
    );
    assert_eq!(sizes(3), [4, 3, 3]);
}

#[test]
fn a_partition_has_a_limit_of_tablets() {
    let many: Vec<_> = (0..2 * MOST_PARTS as u64 + 1).map(|i| part(i, 0, 0)).collect();
    let all = divided(many, 1, true);
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [MOST_PARTS, MOST_PARTS, 1]);
    assert!(all.iter().flatten().map(|range| range.0).eq(0..2 * MOST_PARTS as u64 + 1));
}

/// Each of three servers crashes in turn, again and again, and the three take a share of its
/// tablets.
#[test]
fn recoveries_do_not_cut_tablets_without_end() {
    let mut servers = [vec![part(1, 0, u64::MAX)], vec![], vec![]];
    let mut counts = Vec::new();
    for round in 0..120 {
        let crashed = core::mem::take(&mut servers[round % 3]);
        for (server, share) in divide(crashed, 3, |_| true).into_iter().enumerate() {
            servers[(round + 1 + server) % 3].extend(share);
        }
        counts.push(servers.iter().map(Vec::len).sum::<usize>());
    }
    assert_eq!(counts[0], 3);
    assert!(counts[119] <= 64, "{counts:?}");
}
