//! Worlds whose machines lose their power. With durability `disk` every acknowledged change is on
//! the disks of all replicas, so that nothing is lost, whatever the disks did not have yet.

use sprat_proto::Rng;
use sprat_proto::time::MS;
use sprat_sim::{HostFaults, Options, seeds};
use sprat_store::durability::Durability;

use crate::recovery::{crashing, end_whole, mild_fault, run_steps};
use crate::replicas::Audits;
use crate::{Shape, world};

fn on_disk(rng: &mut Rng) -> Shape {
    let durability = Durability::Disk;
    Shape { keeps: true, durability, ..crashing(rng, HostFaults::NONE) }
}

/// All machines of the cluster lose their power at once, or one after the other, again and again.
#[test]
fn with_losses_of_power() {
    let (mut losses, mut audits) = (0, Audits::default());
    seeds::each("with_losses_of_power", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x90e7);
        let mut options = Options::default();
        if rng.chance(300_000) {
            options.wire.fault = mild_fault(&mut rng);
        }
        let shape = on_disk(&mut rng);
        let mut world = world(seed, options, &shape);
        run_steps(&mut world, |world| {
            if !rng.chance(30_000) {
                return;
            }
            losses += 1;
            world.run_for(rng.below(20 * MS));
            if rng.chance(600_000) {
                let hosts = 0..=shape.masters;
                hosts.for_each(|host| world.lose_power(host, rng.below(500 * MS)));
                return;
            }
            for _ in 0..shape.masters {
                let host = 1 + rng.below(shape.masters as u64) as usize;
                world.lose_power(host, rng.below(20 * MS));
                world.run_for(rng.below(150 * MS));
            }
        });
        end_whole(world, &shape, &mut audits);
    });
    assert!(losses > 0 && audits.outcomes > 0, "{losses}: {audits:?}");
}

/// The disk of one server fails. The server goes on as a master, and other servers take all
/// replicas that it had.
#[test]
fn with_failing_disks() {
    let mut audits = Audits::default();
    seeds::each("with_failing_disks", 5, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xe10d);
        let mut shape = on_disk(&mut rng);
        shape.masters = shape.replicas + 2;
        let mut world = world(seed, Options::default(), &shape);
        let failing = 1 + rng.below(shape.masters as u64) as usize;
        run_steps(&mut world, |world| {
            if rng.chance(10_000) {
                world.fail_sync(failing);
            }
        });
        assert_eq!(world.life(failing), 1, "it does not stop: {:?}", world.stopped());
        end_whole(world, &shape, &mut audits);
    });
    assert!(audits.outcomes > 0, "{audits:?}");
}
