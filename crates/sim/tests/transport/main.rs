//! The RPC transport alone, in worlds where everything goes wrong: no request is executed twice, every one ends, and
//! what arrives is what was sent.

mod echo;

use echo::{Client, Score, Server};
use sprat_proto::Rng;
use sprat_proto::fault::Fault;
use sprat_proto::time::{MS, SECOND, US};
use sprat_sim::{Chaos, Frail, Options, World, seeds, wire};

/// Servers and clients, and how much they do.
struct Shape {
    servers: usize,
    clients: usize,
    requests: u32,
    most: u64,
    frail: Frail,
}

fn world(seed: u64, options: Options, shape: &Shape) -> World<Score> {
    let mut world = World::new(seed, options, Score::default());
    for _ in 0..shape.servers {
        world.host(shape.frail, |start| Box::new(Server::new(start)));
    }
    for client in 0..shape.clients {
        world.score.left.insert(shape.servers + client, shape.requests);
        let (servers, most) = ((0..shape.servers).collect::<Vec<_>>(), shape.most);
        world.host(shape.frail, move |start| Box::new(Client::new(start, servers.clone(), most)));
    }
    world
}

/// Lets the world run under its faults until all requests are made, then in peace until all have ended.
fn run(mut world: World<Score>) -> World<Score> {
    world.run_until(20 * SECOND, |w| w.score.left.values().all(|left| *left == 0));
    world.calm();
    let rest = |w: &World<Score>| {
        w.score.left.values().all(|left| *left == 0) && w.score.open(|host| w.life(host)).is_empty()
    };
    let ended = world.run_until(120 * SECOND, rest);
    assert!(ended, "these never end: {:?}", world.score.open(|host| world.life(host)));
    let at_rest = world.run_until(120 * SECOND, |w| w.score.lent.values().all(|n| *n == 0));
    assert!(at_rest, "slices are still lent: {:?}", world.score.lent);
    world
}

/// Faults of every kind, each as bad as the seed likes, up to 20 % loss.
fn any_fault(rng: &mut Rng) -> Fault {
    let ppm = |rng: &mut Rng, most: u64| if rng.chance(300_000) { 0 } else { rng.below(most) as u32 };
    Fault {
        drop_ppm: ppm(rng, 200_001),
        duplicate_ppm: ppm(rng, 100_000),
        reorder_ppm: ppm(rng, 200_000),
        corrupt_ppm: ppm(rng, 50_000),
        truncate_ppm: ppm(rng, 50_000),
        reorder_ns: 10 * US + rng.below(3 * MS),
    }
}

fn any_chaos(rng: &mut Rng) -> Chaos {
    Chaos {
        every_ns: 5 * MS + rng.below(100 * MS),
        weights: [1 + rng.below(3) as u32, 1 + rng.below(3) as u32, 1 + rng.below(3) as u32],
        down_ns: rng.below(50 * MS),
        pause_ns: rng.below(100 * MS),
        partition_ns: rng.below(100 * MS),
    }
}

#[test]
fn every_request_is_answered_when_nothing_goes_wrong() {
    seeds::each("every_request_is_answered_when_nothing_goes_wrong", 2, |seed| {
        let frail = Frail { crash: false, pause: false };
        let shape = Shape { servers: 2, clients: 3, requests: 200, most: 1_000_000, frail };
        let world = run(world(seed, Options::default(), &shape));
        assert!(world.score.answered() > 300, "{} answered", world.score.answered());
    });
}

#[test]
fn under_loss_duplication_reordering_and_damage() {
    seeds::each("under_loss_duplication_reordering_and_damage", 20, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x1055);
        let mut options = Options::default();
        options.wire.fault = any_fault(&mut rng);
        let frail = Frail { crash: false, pause: true };
        let shape = Shape { servers: 2, clients: 3, requests: 100, most: 50_000, frail };
        run(world(seed, options, &shape));
    });
}

#[test]
fn large_messages_under_loss() {
    seeds::each("large_messages_under_loss", 4, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x1a59e);
        let mut options = Options::default();
        options.wire.fault = any_fault(&mut rng);
        let frail = Frail { crash: false, pause: false };
        let shape = Shape { servers: 1, clients: 2, requests: 12, most: 1_000_000, frail };
        run(world(seed, options, &shape));
    });
}

#[test]
fn under_crashes_pauses_and_partitions() {
    seeds::each("under_crashes_pauses_and_partitions", 20, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xc4a5);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.wire.fault = any_fault(&mut rng);
        let frail = Frail { crash: true, pause: true };
        let shape = Shape { servers: 2, clients: 3, requests: 300, most: 20_000, frail };
        run(world(seed, options, &shape));
    });
}

#[test]
fn over_rings_with_crashes() {
    seeds::each("over_rings_with_crashes", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x51b6);
        let wire = wire::Options { room: 4 + rng.below(100) as usize, ..wire::Options::lossless() };
        let options = Options { chaos: any_chaos(&mut rng), wire, ..Options::default() };
        let frail = Frail { crash: true, pause: true };
        let shape = Shape { servers: 2, clients: 3, requests: 300, most: 300_000, frail };
        run(world(seed, options, &shape));
    });
}

#[test]
fn a_run_repeats_itself() {
    let hash = |seed| {
        let mut rng = Rng::seeded(seed);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.wire.fault = any_fault(&mut rng);
        let frail = Frail { crash: true, pause: true };
        let shape = Shape { servers: 2, clients: 3, requests: 100, most: 5_000, frail };
        run(world(seed, options, &shape)).trace_hash()
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}
