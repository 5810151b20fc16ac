//! Worlds with several coordinators over a simulated etcd: leaders crash, are paused beyond their
//! beat, and lose the network or the etcd. The history stays linearizable, no two coordinators ever
//! lead at one time, and once the faults end, all operations complete.

use sprat_proto::Rng;
use sprat_proto::time::{MS, SECOND};
use sprat_sim::node::{Node, config, locator};
use sprat_sim::{Chaos, HostFaults, Options, World, etcd, seeds};
use sprat_store::coordinator::{self, Candidate};
use sprat_store::etcd::{EtcdState, Keys};

use crate::recovery::{crashing, mild_fault};
use crate::score::Score;
use crate::{Shape, any_chaos, any_fault, any_shape, coordinator_config, run, world};

/// Adds the host of a candidate to a world.
pub(crate) fn candidate(world: &mut World<Score>, shape: &Shape) {
    let shared = coordinator_config(shape);
    world.host(shape.faults[0], move |start| {
        let mut rng = start.rng;
        let own = locator(start.host);
        let keys = Keys::new("sim").expect("a name");
        let state = EtcdState::new(start.now, keys, own.clone(), rng.fork());
        let options = coordinator::Config { locators: own, ..shared.clone() };
        let machine = Candidate::new(options, rng.fork());
        Box::new(Node::new(machine, config(true), rng, start.port).over(state))
    });
}

/// Returns the coordinators that lead now, by their own clocks.
fn leaders(world: &mut World<Score>, shape: &Shape) -> Vec<usize> {
    let leads = |host: &usize| {
        let now = world.local(*host);
        let machine = world.state::<Candidate>(*host);
        machine.is_some_and(|machine| machine.leading(now).is_some())
    };
    shape.coordinators().into_iter().filter(leads).collect()
}

/// The changes of the leader in a world.
#[derive(Debug, Default)]
struct Reigns {
    /// The number of times that another coordinator was seen to lead.
    changes: u32,
    last: Option<usize>,
}

/// Runs a world until its users have started all operations, under watch.
fn watch(world: &mut World<Score>, shape: &Shape, reigns: &mut Reigns) {
    watch_for(world, shape, reigns, 30_000);
}

/// Returns the faults between coordinators and the etcd.
fn etcd_faults(rng: &mut Rng) -> etcd::Options {
    etcd::Options {
        drop_ppm: rng.below(100_000) as u32,
        late_ppm: rng.below(100_000) as u32,
        ..etcd::Options::default()
    }
}

/// Returns faults of hosts, some of which last longer than a beat.
fn long_chaos(rng: &mut Rng) -> Chaos {
    let most = Chaos {
        every_ns: SECOND,
        down_ns: 3 * SECOND,
        pause_ns: 3 * SECOND,
        partition_ns: 3 * SECOND,
        full_ns: 2 * SECOND,
        ..Chaos::default()
    };
    seeds::chaos(rng, most)
}

fn several(rng: &mut Rng, shape: Shape) -> Shape {
    Shape { coordinators: 2 + rng.below(2) as usize, operations: 100, ..shape }
}

/// Everything of [`world`] fails at random, the coordinators and their etcd among it.
#[test]
fn with_coordinators_under_faults() {
    let mut changes = 0;
    seeds::each("with_coordinators_under_faults", 20, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xe7cd);
        let mut options = Options { drift_ppm: rng.below(5_000) as u32, ..Options::default() };
        options.chaos =
            if rng.chance(500_000) { any_chaos(&mut rng) } else { long_chaos(&mut rng) };
        options.etcd = etcd_faults(&mut rng);
        options.wire.fault = any_fault(&mut rng);
        let shape = any_shape(&mut rng, [HostFaults::ALL, HostFaults::PAUSES, HostFaults::NONE]);
        let mut shape = several(&mut rng, shape);
        shape.habits.drop_ppm = 100_000;
        shape.habits.pause_ns = shape.habits.pause_ns.max(60 * MS);
        let (mut world, mut reigns) = (world(seed, options, &shape), Reigns::default());
        watch(&mut world, &shape, &mut reigns);
        run(world, &shape);
        changes += reigns.changes;
    });
    assert!(changes > 0);
}

/// The leader is killed or paused beyond its beat again and again, while servers crash and others
/// recover their logs.
#[test]
fn with_leaders_that_end_during_recoveries() {
    let mut changes = 0;
    seeds::each("with_leaders_that_end_during_recoveries", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xe7ce);
        let mut options = Options { drift_ppm: rng.below(5_000) as u32, ..Options::default() };
        options.wire.fault = mild_fault(&mut rng);
        let servers = HostFaults { crash: true, pause: false };
        let shape = crashing(&mut rng, servers);
        let mut shape = several(&mut rng, Shape { keeps: true, ..shape });
        shape.habits.pause_ns = shape.habits.pause_ns.max(60 * MS);
        options.chaos = Chaos { full_ns: 0, ..long_chaos(&mut rng) };
        options.chaos.weights = [1, 0, 0, 0];
        let (mut world, mut reigns) = (world(seed, options, &shape), Reigns::default());
        for _ in 0..8 {
            watch_for(&mut world, &shape, &mut reigns, 1_000 + rng.below(1_000));
            if let [leader] = leaders(&mut world, &shape)[..] {
                match rng.below(2) {
                    0 => world.crash(leader, Some(rng.below(3 * SECOND))),
                    _ => world.pause(leader, SECOND + rng.below(3 * SECOND)),
                }
            }
        }
        watch(&mut world, &shape, &mut reigns);
        run(world, &shape);
        changes += reigns.changes;
    });
    assert!(changes > 0);
}

/// Runs a world for `ms` milliseconds, or until its users have started all operations. Checks every
/// 2 ms that at most one coordinator leads.
fn watch_for(world: &mut World<Score>, shape: &Shape, reigns: &mut Reigns, ms: u64) {
    for _ in 0..ms / 2 {
        let leaders = leaders(world, shape);
        assert!(leaders.len() <= 1, "{leaders:?} lead at one time");
        if let [leader] = leaders[..] {
            reigns.changes += u32::from(reigns.last.replace(leader) != Some(leader));
        }
        if world.run_until(2 * MS, |w| w.score.left.values().all(|left| *left == 0)) {
            return;
        }
    }
}

/// The keys of the cluster are gone while coordinators run. None of them begins a new cluster.
#[test]
fn with_an_emptied_etcd() {
    seeds::each("with_an_emptied_etcd", 2, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xe7cf);
        let shape = several(&mut rng, Shape::default());
        let mut world = world(seed, Options::default(), &shape);
        world.run_for(3 * SECOND);
        world.etcd.empty();
        let hosts = shape.coordinators();
        let ended = |w: &World<Score>| {
            hosts.iter().all(|&host| w.stopped().iter().any(|(ended, _)| *ended == host))
        };
        assert!(world.run_until(5 * SECOND, ended), "{:?}", world.stopped());
        let of_us = |(host, _): &&(usize, String)| hosts.contains(host);
        let first = world.stopped().iter().find(of_us);
        assert!(first.is_some_and(|(_, why)| why.contains("gone")), "{first:?}");
        // A process that was started anew may have begun another cluster by then.
        let clear = |why: &str| why.contains("gone") || why.contains("replaced");
        assert!(world.stopped().iter().filter(of_us).all(|(_, why)| clear(why)));
    });
}
