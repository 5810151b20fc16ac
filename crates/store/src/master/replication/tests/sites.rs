//! Tests of the sites of replicas.

use super::*;
use crate::site::{Common, Role};

const R: usize = 2;
/// The number of segments to fill.
const SEGMENTS: u32 = 10;
/// The site of the master.
const MINE: (u64, &str) = (1, "a");

fn at((host, rack): (u64, &str)) -> OwnedSite {
    OwnedSite { host, rack: rack.into(), ..OwnedSite::default() }
}

/// Returns the site of a shard of a process on one host with all others.
fn shard(process: u64) -> OwnedSite {
    OwnedSite { process, ..at(MINE) }
}

/// Returns a rig of a master at its site and of backups at others.
fn rig(sites: &[(u64, &str)]) -> Rig {
    rig_of(at(MINE), sites.iter().map(|&site| at(site)))
}

fn rig_of(mine: OwnedSite, sites: impl IntoIterator<Item = OwnedSite>) -> Rig {
    let mut rig = Rig::new(R, 0, 1 << 10);
    rig.replication = Replication::new((R, mine, false), (false, SLOW_NS), Rng::seeded(1));
    for (index, site) in (0..).zip(sites) {
        let server = ServerId { index, generation: 1 };
        rig.add(server, 200);
        rig.sites.insert(server, site);
    }
    rig.list();
    rig
}

/// Fills some segments. Returns for each of them the most that two of its servers have in common,
/// the master among them.
fn commons(rig: &mut Rig) -> Vec<Common> {
    rig.append(200);
    for _ in 0..SEGMENTS {
        rig.roll();
        rig.end_all(any);
    }
    (1..=SEGMENTS)
        .map(|segment| {
            let holders = rig.sites.iter().filter(|(on, _)| rig.replica(**on, segment).is_some());
            let mut sites: Vec<_> = holders.map(|(_, site)| site.clone()).collect();
            assert_eq!(sites.len(), R, "replicas of segment {segment}");
            sites.push(at(MINE));
            let others = |n: usize| sites[n + 1..].iter().map(move |s| (n, s));
            let pairs = (0..sites.len()).flat_map(others);
            pairs.map(|(n, other)| sites[n].common(other)).max().unwrap()
        })
        .collect()
}

#[test]
fn replicas_are_on_different_hosts_and_in_different_racks_if_there_are_some() {
    let all = [(1, "a"), (2, "a"), (3, "b"), (4, "b"), (4, "b"), (5, "c"), (5, "c"), (1, "a")];
    for (sites, common) in [
        (&all[..], Common::Nothing),
        // There is no third rack.
        (&all[..5], Common::Rack),
        // There is no third host.
        (&[(1, "a"), (1, "a"), (2, "b"), (2, "b")], Common::Host),
        (&[(1, "a"), (1, "a"), (1, "a")], Common::Host),
        // Nothing is known of these.
        (&[(0, ""), (0, ""), (1, "a")], Common::Nothing),
    ] {
        let found = commons(&mut rig(sites));
        assert!(found.iter().all(|found| *found == common), "{sites:?}: {found:?}");
    }
}

/// With two hosts the second replica is on the host of the master or of the first one: then the
/// first one is on the other host.
#[test]
fn as_little_as_possible_is_on_one_host() {
    let mut rig = rig(&[(1, "a"), (1, "a"), (1, "a"), (2, "b")]);
    commons(&mut rig);
    let far = ServerId { index: 3, generation: 1 };
    assert!((1..=SEGMENTS).all(|segment| rig.replica(far, segment).is_some()));
}

#[test]
fn a_server_without_the_role_of_a_backup_gets_no_replica() {
    let mut rig = rig(&[(2, "b"), (3, "c"), (4, "d")]);
    let master = ServerId { index: 1, generation: 1 };
    rig.sites.get_mut(&master).unwrap().role = Role::Master;
    rig.list();
    rig.append(200);
    rig.roll();
    rig.end_all(any);
    assert_eq!([0, 1, 2].map(|index| rig.backups[&ServerId { index, ..A }].replicas()), [2, 0, 2]);
}

/// Shards of one process end together, so that two of them are as good as one.
#[test]
fn no_two_shards_of_one_process_have_a_segment() {
    let mut rig = rig_of(shard(1), [1, 1, 2, 2, 2, 3].map(shard));
    rig.append(200);
    for segment in 1..=SEGMENTS {
        rig.roll();
        rig.end_all(any);
        let holders = rig.sites.iter().filter(|(on, _)| rig.replica(**on, segment).is_some());
        let mut processes: Vec<_> = holders.map(|(_, site)| site.process).collect();
        processes.sort_unstable();
        assert_eq!(processes, [2, 3], "segment {segment}");
    }
}

/// With too few processes a segment waits for another one, as with too few servers.
#[test]
fn a_segment_waits_for_a_process_for_each_replica() {
    let mut rig = rig_of(shard(1), [1, 2, 2].map(shard));
    rig.append(200);
    rig.roll();
    rig.end_all(any);
    let holders = rig.sites.iter().filter(|(on, _)| rig.replica(**on, 1).is_some());
    let processes: Vec<_> = holders.map(|(_, site)| site.process).collect();
    assert_eq!(processes, [2]);
    let late = ServerId { index: 3, generation: 1 };
    rig.add(late, 200);
    rig.sites.insert(late, shard(4));
    rig.list();
    rig.now = rig.now.after(SECOND);
    rig.end_all(any);
    assert!(rig.replica(late, 1).is_some());
}
