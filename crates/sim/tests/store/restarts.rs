//! Worlds whose servers keep their replicas when they crash (`kill -9`): no number of crashes loses
//! anything, and every operation completes once the processes stay up.

use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};
use sprat_sim::{Chaos, HostFaults, Options, seeds};

use crate::recovery::{crashing, end_whole, mild_fault, nothing_is_lost, repair, run_steps};
use crate::replicas::Audits;
use crate::{Shape, any_chaos, any_fault, counted, run, world};

fn keeping(rng: &mut Rng, servers: HostFaults) -> Shape {
    Shape { keeps: true, ..crashing(rng, servers) }
}

/// All processes of the cluster end at once, or one server after the other, again and again. Those
/// that follow end while replicas are made anew.
#[test]
fn with_restarts_of_all() {
    let (mut ends, mut audits) = (0, Audits::default());
    seeds::each("with_restarts_of_all", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ee0);
        let shape = keeping(&mut rng, HostFaults::NONE);
        let mut world = world(seed, Options::default(), &shape);
        run_steps(&mut world, |world| {
            if !rng.chance(20_000) {
                return;
            }
            ends += 1;
            if rng.chance(500_000) {
                (0..=shape.masters).for_each(|host| world.crash(host, Some(rng.below(500 * MS))));
                return;
            }
            for _ in 0..shape.masters {
                let host = 1 + rng.below(shape.masters as u64) as usize;
                world.crash(host, Some(rng.below(20 * MS)));
                world.run_for(rng.below(150 * MS));
            }
        });
        end_whole(world, &shape, &mut audits);
    });
    assert!(ends > 0 && audits.outcomes > 0, "{ends}: {audits:?}");
}

/// One server, or one of two while the other is away, holds its replicas itself.
#[test]
fn with_restarts_of_one() {
    seeds::each("with_restarts_of_one", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ee2);
        let mut options = Options::default();
        options.wire.fault = mild_fault(&mut rng);
        options.chaos = Chaos { full_ns: 0, ..any_chaos(&mut rng) };
        let mut shape = keeping(&mut rng, HostFaults::ALL);
        (shape.masters, shape.replicas, shape.own) = (1 + rng.below(2) as usize, 1, true);
        shape.faults[0] = HostFaults::ALL;
        let mut world = world(seed, options, &shape);
        run_steps(&mut world, |_| {});
        assert_eq!(repair(&mut world, &shape), Ok(()));
        let mut world = run(world, &shape);
        nothing_is_lost(&world);
        assert_eq!(repair(&mut world, &shape), Ok(()));
    });
}

/// Any process crashes at any time, on a bad network, and processes are paused.
#[test]
fn with_restarts_under_faults() {
    let mut audits = Audits::default();
    seeds::each("with_restarts_under_faults", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ee1);
        let mut options = Options { drift_ppm: rng.below(5_000) as u32, ..Options::default() };
        options.wire.fault =
            if rng.chance(500_000) { mild_fault(&mut rng) } else { any_fault(&mut rng) };
        options.chaos = Chaos { full_ns: 0, ..any_chaos(&mut rng) };
        let mut shape = keeping(&mut rng, HostFaults::ALL);
        shape.faults[0] = HostFaults::ALL;
        let mut world = world(seed, options, &shape);
        run_steps(&mut world, |_| {});
        assert_eq!(repair(&mut world, &shape), Ok(()));
        end_whole(world, &shape, &mut audits);
    });
    assert!(audits.outcomes > 0, "{audits:?}");
}

/// A server that was away for seconds comes back with replicas that no log names any more, and
/// another one crashes at that time: nothing that was removed returns. The cleaner works much, so
/// that few tombstones are left.
#[test]
fn with_returns_of_long_left_replicas() {
    let (mut returns, mut cleaned, mut helped, mut audits) = (0, 0, 0, Audits::default());
    seeds::each("with_returns_of_long_left_replicas", 5, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ee3);
        let mut shape = keeping(&mut rng, HostFaults::NONE);
        (shape.log_bytes, shape.operations) = (192 << 10, 1_000);
        (shape.habits.longest, shape.habits.pause_ns) = (5_000, 100 * MS);
        shape.habits.names = 6;
        shape.masters = shape.replicas + 2;
        let mut world = world(seed, Options::default(), &shape);
        let (mut back, mut crash) = (Instant::ZERO, false);
        run_steps(&mut world, |world| {
            let host = 1 + rng.below(shape.masters as u64) as usize;
            if crash && world.now() >= back {
                world.run_for(rng.below(80 * MS));
                world.crash(host, Some(rng.below(500 * MS)));
                (crash, returns) = (false, returns + 1);
                back = world.now().after(SECOND);
            } else if !crash && world.now() >= back && rng.chance(100_000) {
                let away_ns = SECOND + rng.below(3 * SECOND);
                world.crash(host, Some(away_ns));
                (crash, back) = (true, world.now().after(away_ns - 100 * MS));
            }
        });
        cleaned += counted(&mut world, &shape, "segments_cleaned");
        helped += counted(&mut world, &shape, "survivors_helped");
        end_whole(world, &shape, &mut audits);
    });
    let cleaning = format!("{cleaned} segments cleaned, {helped} survivors helped");
    assert!(returns > 0 && cleaned > 0 && helped > 0, "{returns} returns, {cleaning}");
}
