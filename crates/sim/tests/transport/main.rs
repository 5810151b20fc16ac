//! Tests of the RPC transport alone under faults: no request is executed twice unless it is
//! idempotent, every request ends, and the bytes received are the bytes sent.

mod echo;

use echo::{Asks, Client, Score, Server};
use sprat_proto::Rng;
use sprat_proto::fault::Fault;
use sprat_proto::rpc::Config;
use sprat_proto::time::{MS, SECOND, US};
use sprat_sim::node::config;
use sprat_sim::{Chaos, HostFaults, Options, World, seeds, wire};

/// The servers and clients of a simulated world, and their workload.
struct Shape {
    servers: usize,
    clients: usize,
    requests: u32,
    /// The longest message of an RPC, in bytes.
    most: u64,
    /// The longest time between two requests of a client, in nanoseconds.
    pause_ns: u64,
    faults: HostFaults,
    config: Config,
}

impl Default for Shape {
    fn default() -> Self {
        let (faults, config) = (HostFaults::NONE, config(true));
        Self {
            servers: 2,
            clients: 3,
            requests: 100,
            most: 50_000,
            pause_ns: 300 * US,
            faults,
            config,
        }
    }
}

fn world(seed: u64, options: Options, shape: &Shape) -> World<Score> {
    let mut world = World::new(seed, options, Score::default());
    for _ in 0..shape.servers {
        let config = shape.config.clone();
        world.host(shape.faults, move |start| Box::new(Server::new(start, config.clone())));
    }
    for client in 0..shape.clients {
        world.score.left.insert(shape.servers + client, shape.requests);
        let servers: Vec<_> = (0..shape.servers).collect();
        let asks = Asks { servers, most: shape.most, pause_ns: shape.pause_ns };
        let config = Config { serve: false, ..shape.config.clone() };
        world.host(shape.faults, move |start| {
            Box::new(Client::new(start, config.clone(), asks.clone()))
        });
    }
    world
}

/// Runs a world with faults until all requests were started, then without faults until all have
/// ended.
fn run(mut world: World<Score>) -> World<Score> {
    world.run_until(20 * SECOND, |w| w.score.left.values().all(|left| *left == 0));
    world.end_faults();
    let rest = |w: &World<Score>| {
        w.score.left.values().all(|left| *left == 0) && w.score.open(|host| w.life(host)).is_empty()
    };
    let ended = world.run_until(120 * SECOND, rest);
    assert!(ended, "these never end: {:?}", world.score.open(|host| world.life(host)));
    let at_rest = world.run_until(120 * SECOND, |w| w.score.lent.values().all(|n| *n == 0));
    assert!(at_rest, "slices are still lent: {:?}", world.score.lent);
    world
}

fn any_fault(rng: &mut Rng) -> Fault {
    seeds::fault(rng, 3 * MS)
}

fn any_chaos(rng: &mut Rng) -> Chaos {
    let most = Chaos {
        every_ns: 30 * MS,
        down_ns: 50 * MS,
        pause_ns: 100 * MS,
        partition_ns: 100 * MS,
        ..Chaos::default()
    };
    seeds::chaos(rng, most)
}

/// Draws options of the transport with limits so low that it reaches them all the time.
fn any_config(rng: &mut Rng) -> Config {
    let mut some =
        |usual: u64, narrow: u64| if rng.chance(500_000) { usual } else { 1 + rng.below(narrow) };
    let usual = config(true);
    Config {
        queue_limit: some(usual.queue_limit as u64, 10) as usize,
        max_sessions: some(u64::from(usual.max_sessions), 4) as u32,
        max_executing: some(u64::from(usual.max_executing), 8) as u32,
        max_assembling_bytes: some(usual.max_assembling_bytes as u64, 200_000) as usize,
        max_kept_bytes: some(usual.max_kept_bytes as u64, 100_000) as usize,
        max_kept: some(u64::from(usual.max_kept), 8) as u32,
        retry_after_ns: some(usual.retry_after_ns, 10 * MS),
        min_pto_ns: some(usual.min_pto_ns, MS),
        max_refusals: some(u64::from(usual.max_refusals), 3) as u8,
        done_after_ns: some(usual.done_after_ns, MS),
        unscheduled_bytes: some(u64::from(usual.unscheduled_bytes), 10_000) as u32,
        credit_bytes: some(u64::from(usual.credit_bytes), 50_000) as u32,
        target_delay_ns: some(usual.target_delay_ns, 100 * US),
        ..usual
    }
}

#[test]
fn every_request_completes_without_faults() {
    seeds::each("every_request_completes_without_faults", 2, |seed| {
        let shape = Shape { requests: 60, most: 1_000_000, ..Shape::default() };
        let world = run(world(seed, Options::default(), &shape));
        assert!(world.score.answered() > 150, "{} answered", world.score.answered());
    });
}

#[test]
fn under_loss_duplication_reordering_and_damage() {
    seeds::each("under_loss_duplication_reordering_and_damage", 12, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x1055);
        let mut options = Options::default();
        options.wire.fault = any_fault(&mut rng);
        run(world(seed, options, &Shape::default()));
    });
}

#[test]
fn large_messages_under_loss() {
    seeds::each("large_messages_under_loss", 4, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x1a59e);
        let mut options = Options::default();
        options.wire.fault = any_fault(&mut rng);
        let shape =
            Shape { servers: 1, clients: 2, requests: 12, most: 1_000_000, ..Shape::default() };
        run(world(seed, options, &shape));
    });
}

#[test]
fn under_crashes_pauses_and_partitions() {
    seeds::each("under_crashes_pauses_and_partitions", 12, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xc4a5);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.wire.fault = any_fault(&mut rng);
        let pause_ns = 300 * US + rng.below(5 * MS);
        let shape = Shape {
            requests: 200,
            most: 20_000,
            pause_ns,
            faults: HostFaults::ALL,
            ..Shape::default()
        };
        run(world(seed, options, &shape));
    });
}

#[test]
fn with_narrow_limits() {
    seeds::each("with_narrow_limits", 12, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x11a1);
        let mut options = Options::default();
        if rng.chance(500_000) {
            options.wire.fault = any_fault(&mut rng);
        }
        if rng.chance(500_000) {
            options.chaos = any_chaos(&mut rng);
        }
        if rng.chance(300_000) {
            options.wire =
                wire::Options { room: 4 + rng.below(20) as usize, ..wire::Options::lossless() };
        }
        let shape =
            Shape { config: any_config(&mut rng), faults: HostFaults::ALL, ..Shape::default() };
        run(world(seed, options, &shape));
    });
}

#[test]
fn over_rings_with_crashes() {
    seeds::each("over_rings_with_crashes", 8, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x51b6);
        let wire = wire::Options { room: 4 + rng.below(100) as usize, ..wire::Options::lossless() };
        let options = Options { chaos: any_chaos(&mut rng), wire, ..Options::default() };
        let pause_ns = 300 * US + rng.below(5 * MS);
        let shape = Shape {
            requests: 300,
            most: 300_000,
            pause_ns,
            faults: HostFaults::ALL,
            ..Shape::default()
        };
        run(world(seed, options, &shape));
    });
}

#[test]
fn a_run_repeats_itself() {
    let hash = |seed| {
        let mut rng = Rng::seeded(seed);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.wire.fault = any_fault(&mut rng);
        run(world(seed, options, &Shape { faults: HostFaults::ALL, ..Shape::default() }))
            .trace_hash()
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}
