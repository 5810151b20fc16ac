//! Worlds of servers with several shards. The shards of a process end together, and the shards of
//! other processes recover their logs.

use sprat_proto::Rng;
use sprat_proto::time::MS;
use sprat_sim::{HostFaults, Options, seeds, wire};

use crate::recovery::{crashing, end_blocked, mild_fault, run_crashing, run_steps};
use crate::replicas::Audits;
use crate::{Shape, any_chaos, world};

/// Returns a shape of servers with several shards each, whose replicas survive as many crashes of
/// whole servers as there are.
fn sharded(rng: &mut Rng, servers: HostFaults) -> Shape {
    let mut shape = crashing(rng, servers);
    shape.shards = 2 + rng.below(2) as usize;
    shape.replicas = 1 + rng.below(2) as usize;
    shape.masters = shape.shards * (shape.replicas + 1 + rng.below(2) as usize);
    shape.habits.span = 1 + rng.below(3) as u32;
    shape
}

/// All shards of a process crash at once, as many processes as a log has replicas. In some worlds
/// tablets move between shards meanwhile, also by the coordinator itself.
#[test]
fn shards_crash_together() {
    let mut audits = Audits::default();
    seeds::each("shards_crash_together", 8, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x5a4d);
        let mut shape = sharded(&mut rng, HostFaults::NONE);
        shape.habits.arrange_ppm = [0, 300_000][rng.below(2) as usize];
        shape.rebalance_ns = [0, 300 * MS][rng.below(2) as usize];
        let lossless = wire::Options { room: 100, ..wire::Options::lossless() };
        let wire = [wire::Options::default(), lossless][rng.below(2) as usize].clone();
        let options = Options { wire, ..Options::default() };
        let run = run_crashing(world(seed, options, &shape), &mut rng, &shape, &mut audits);
        assert!(run.held, "no lease ends");
    });
}

/// Single shards are paused and cut off, so that some lose their leases, and their processes end.
#[test]
fn shards_under_faults() {
    seeds::each("shards_under_faults", 8, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x5a4e);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.wire.fault = mild_fault(&mut rng);
        let shape = sharded(&mut rng, HostFaults::ALL);
        let mut world = world(seed, options, &shape);
        run_steps(&mut world, |_| {});
        end_blocked(world, &shape);
    });
}
