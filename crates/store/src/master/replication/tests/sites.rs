//! Tests of the sites of replicas.

use super::*;
use crate::site::{Common, Role};

const R: usize = 2;
/// The number of segments to fill.
const SEGMENTS: u32 = 10;
/// The site of the master.
const MINE: (u64, &str) = (1, "a");

fn at((host, rack): (u64, &str)) -> OwnedSite {
    OwnedSite { role: Role::Both, host, rack: rack.into() }
}

/// Returns a rig of a master at its site and of backups at others.
fn rig(sites: &[(u64, &str)]) -> Rig {
    let mut rig = Rig::new(R, 0, 1 << 10);
    rig.replication = Replication::new((R, at(MINE), false), (false, SLOW_NS), Rng::seeded(1));
    for (index, &site) in (0..).zip(sites) {
        let server = ServerId { index, generation: 1 };
        rig.add(server, 200);
        rig.sites.insert(server, at(site));
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
