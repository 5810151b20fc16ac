//! Worlds whose disks damage replicas while the servers run. Scrubbing finds that, and the masters
//! make other replicas.
//!
//! Within the budget all damage is on one host at a time, until all logs have all replicas again,
//! and the disks have them. An open replica is verified when it is closed: until then damage to it
//! may be unknown. That host may crash, too. So no segment loses more than one copy, and nothing is
//! lost with two. Beyond the budget operations may block.

use std::collections::BTreeSet;

use sprat_proto::Rng;
use sprat_proto::time::{MS, SECOND};
use sprat_sim::frames::Kept;
use sprat_sim::wire::HostId;
use sprat_sim::{Chaos, HostFaults, Options, World, seeds};
use sprat_store::durability::Durability;
use sprat_store::master::Master;
use sprat_store::objects::segment::SegmentId;
use sprat_store::types::ServerId;

use crate::recovery::{crashing, end_blocked, mild_fault, nothing_is_lost, repair, run_steps};
use crate::replicas::{self, Audits};
use crate::score::Score;
use crate::{Shape, any_chaos, any_fault, counted, run, world};

/// The time between two looks at all disks.
const LOOK_NS: u64 = SECOND;
/// The number of looks within which all closed replicas must be sound on their disks, once no
/// damage occurs.
const MOST_LOOKS: u64 = 60;
/// The most places of a disk that are damaged at a time.
const MOST_PLACES: u64 = 8;

fn scrubbing(rng: &mut Rng, servers: HostFaults) -> Shape {
    let durability = [Durability::Disk, Durability::Process][rng.below(2) as usize];
    let mut shape = Shape { keeps: true, durability, ..crashing(rng, servers) };
    shape.scrub_ns = [2, 5, 10][rng.below(3) as usize] * SECOND;
    shape
}

/// Checks that each segment of all logs has exactly as many replicas as it has to have, and that
/// the disks have those that are closed.
///
/// # Errors
/// The first difference.
fn sound(world: &mut World<Score>, shape: &Shape) -> Result<(), String> {
    let hosts: Vec<HostId> = (1..=shape.masters).collect();
    replicas::whole(world, &hosts, shape.replicas)?;
    let servers: Vec<_> =
        hosts.iter().filter_map(|&host| world.state::<Master>(host)?.server()).collect();
    for &host in &hosts {
        let sound: BTreeSet<_> = world
            .frames(host)
            .map_or_else(Vec::new, Kept::sound)
            .into_iter()
            .map(|held| (held.master, held.segment, held.epoch))
            .collect();
        let Some(backup) = world.state::<Master>(host) else { continue };
        for &server in &servers {
            for listed in replicas::listed_on(backup, server).into_iter().filter(|r| r.closed) {
                if !sound.contains(&(server, listed.segment, listed.epoch)) {
                    return Err(format!("host {host} has {listed:?} of {server} damaged"));
                }
            }
        }
    }
    Ok(())
}

/// Returns the segments with an open replica on one of `hosts`. Their masters are up.
fn open_on(
    world: &mut World<Score>,
    shape: &Shape,
    hosts: impl Iterator<Item = HostId>,
) -> BTreeSet<(ServerId, SegmentId)> {
    let all = 1..=shape.masters;
    let servers: Vec<_> = all.filter_map(|host| world.state::<Master>(host)?.server()).collect();
    let mut open = BTreeSet::new();
    for host in hosts {
        let Some(backup) = world.state::<Master>(host) else { continue };
        for &server in &servers {
            let listed = replicas::listed_on(backup, server);
            let of_host = listed.iter().filter(|replica| !replica.closed);
            open.extend(of_host.map(|replica| (server, replica.segment)));
        }
    }
    open
}

/// Waits until all closed replicas are sound on the disks.
fn wait_sound(world: &mut World<Score>, shape: &Shape) -> Result<(), String> {
    let mut outcome = Err(String::new());
    for _ in 0..MOST_LOOKS {
        world.run_for(LOOK_NS);
        outcome = sound(world, shape);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn damage(world: &World<Score>, host: HostId, rng: &mut Rng) {
    let Some(frames) = world.frames(host) else { return };
    for _ in 0..1 + rng.below(MOST_PLACES) {
        frames.damage(rng);
    }
}

/// One host at a time is damaged, and crashes or loses its power perhaps. Sometimes all servers
/// crash, and find their frames again.
#[test]
fn with_damaged_disks() {
    let (mut damages, mut mended, mut found, mut audits) = (0, 0, 0, Audits::default());
    let mut worlds = 0;
    seeds::each("with_damaged_disks", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xda3a);
        let mut options = Options::default();
        if rng.chance(300_000) {
            options.wire.fault = mild_fault(&mut rng);
        }
        let mut shape = scrubbing(&mut rng, HostFaults::NONE);
        shape.replicas = shape.replicas.max(2);
        shape.masters = shape.masters.max(shape.replicas + 1);
        let mut world = world(seed, options, &shape);
        worlds += 1;
        let mut damaged = None;
        // The segments with replicas that may be damaged although none of them is closed.
        let mut unknown = BTreeSet::new();
        run_steps(&mut world, |world| {
            if !rng.chance(40_000) {
                return;
            }
            let is_sound = sound(world, &shape).is_ok();
            if is_sound && unknown.is_disjoint(&open_on(world, &shape, 1..=shape.masters)) {
                unknown.clear();
                mended += u64::from(damaged.take().is_some());
                damaged = Some(1 + rng.below(shape.masters as u64) as usize);
            }
            let Some(host) = damaged else { return };
            unknown.extend(open_on(world, &shape, [host].into_iter()));
            damages += 1;
            damage(world, host, &mut rng);
            if rng.chance(300_000) {
                match rng.below(3) {
                    0 if shape.durability == Durability::Disk => {
                        world.lose_power(host, rng.below(200 * MS));
                    }
                    1 => (1..=shape.masters)
                        .for_each(|host| world.crash(host, Some(rng.below(200 * MS)))),
                    _ => world.crash(host, Some(rng.below(200 * MS))),
                }
            }
        });
        assert_eq!(repair(&mut world, &shape), Ok(()));
        assert_eq!(wait_sound(&mut world, &shape), Ok(()));
        found += counted(&mut world, &shape, "scrub_damaged");
        let mut world = run(world, &shape);
        nothing_is_lost(&world);
        assert_eq!(repair(&mut world, &shape), Ok(()));
        let hosts: Vec<_> = (1..=shape.masters).collect();
        // With each server in turn gone, an open replica that is left may be damaged.
        replicas::audit(&mut world, &hosts, shape.replicas, false, &mut audits);
    });
    let enough = mended > 0 && found > 0;
    assert!(enough || worlds == 1, "{mended} of {damages} mended, {found} found");
}

/// Any disk is damaged at any time, and servers crash. Operations on what is lost block.
#[test]
fn with_damaged_disks_beyond_the_budget() {
    seeds::each("with_damaged_disks_beyond_the_budget", 5, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xda3b);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.chaos = Chaos { full_ns: 0, ..options.chaos };
        options.wire.fault = any_fault(&mut rng);
        let mut shape = scrubbing(&mut rng, HostFaults::ALL);
        // Blocked operations take all the time that there is.
        shape.scrub_ns *= 2;
        let mut world = world(seed, options, &shape);
        run_steps(&mut world, |world| {
            if rng.chance(100_000) {
                let host = 1 + rng.below(shape.masters as u64) as usize;
                damage(world, host, &mut rng);
            }
        });
        end_blocked(world, &shape);
    });
}
