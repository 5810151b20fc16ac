//! Worlds whose servers crash and lose all their memory: other servers recover their logs.
//!
//! A log survives as many crashes as it has replicas, counted from a time at which all logs were
//! whole. A [`Budget`] counts them. Within it every operation completes. Beyond it operations may
//! block. A wrong answer, or an answer that data is lost, is an error in either case.

use sprat_proto::Rng;
use sprat_proto::node::machine::Machine as _;
use sprat_proto::time::{MS, SECOND};
use sprat_sim::check::store::Answer;
use sprat_sim::wire::HostId;
use sprat_sim::{Chaos, HostFaults, Options, World, seeds, wire};
use sprat_store::coordinator::Coordinator;

use crate::replicas::{self, Audits};
use crate::score::Score;
use crate::{Shape, any_chaos, any_fault, check, finish, replicated, run, world};

/// The interval at which a test checks the servers of a world, in nanoseconds.
pub(crate) const STEP_NS: u64 = 20 * MS;
/// The most steps in which the users start their operations.
const MOST_STEPS: u32 = 3_000;
/// The probability that servers crash in a step while the budget allows it, in parts per million.
const CRASH_PPM: u32 = 50_000;
/// The time in which all logs must be whole again, once no fault happens any more.
const REPAIR_NS: u64 = 60 * SECOND;

/// The crashes that the logs of a world survive from now on.
struct Budget {
    /// The hosts of the servers.
    hosts: Vec<HostId>,
    replicas: usize,
    /// The probability that servers crash in a step, in parts per million.
    crash_ppm: u32,
    left: usize,
    crashes: u64,
    /// The number of times that all logs were whole again after a crash.
    repairs: u64,
}

impl Budget {
    fn new(shape: &Shape, crash_ppm: u32) -> Self {
        let hosts = (1..=shape.masters).collect();
        Self { hosts, replicas: shape.replicas, crash_ppm, left: 0, crashes: 0, repairs: 0 }
    }

    /// Returns true if no server has stopped because its lease had ended. Its replicas are gone
    /// then, as after a crash.
    fn holds(&self, world: &World<Score>) -> bool {
        world.stopped().iter().all(|(host, _)| !self.hosts.contains(host))
    }

    /// Renews the budget if all logs are whole, and audits them. Then crashes servers at random.
    fn step(&mut self, world: &mut World<Score>, rng: &mut Rng, audits: &mut Audits) {
        if self.left < self.replicas && replicas::whole(world, &self.hosts, self.replicas).is_ok() {
            self.repairs += u64::from(self.crashes > 0);
            self.left = self.replicas;
            replicas::audit(world, &self.hosts, self.replicas, true, audits);
        }
        if self.left == 0 || !rng.chance(self.crash_ppm) {
            return;
        }
        for _ in 0..1 + rng.below(self.left as u64) {
            let host = self.hosts[rng.below(self.hosts.len() as u64) as usize];
            if world.is_up(host) {
                world.crash(host, Some(rng.below(500 * MS)));
                self.left -= 1;
                self.crashes += 1;
            }
        }
    }
}

/// Runs a world while the users start their operations.
pub(crate) fn run_steps(world: &mut World<Score>, mut step: impl FnMut(&mut World<Score>)) {
    for _ in 0..MOST_STEPS {
        if world.run_until(STEP_NS, |w| w.score.left.values().all(|left| *left == 0)) {
            return;
        }
        step(world);
    }
}

/// Ends the faults of a world and waits until all logs are whole.
pub(crate) fn repair(world: &mut World<Score>, shape: &Shape) -> Result<(), String> {
    let hosts: Vec<_> = (1..=shape.masters).collect();
    world.end_faults();
    let mut whole = Err(String::new());
    for _ in 0..REPAIR_NS / STEP_NS {
        world.run_for(STEP_NS);
        whole = replicas::whole(world, &hosts, shape.replicas);
        if whole.is_ok() {
            break;
        }
    }
    whole
}

/// Checks that no operation was answered by lost data.
pub(crate) fn nothing_is_lost(world: &World<Score>) {
    assert_eq!(world.score.history.count(|answer| *answer == Answer::Lost), 0);
}

/// Ends a world within its budget: all operations complete, and no replica is left that no log
/// needs.
pub(crate) fn end_whole(world: World<Score>, shape: &Shape, audits: &mut Audits) {
    let mut world = run(world, shape);
    nothing_is_lost(&world);
    assert_eq!(repair(&mut world, shape), Ok(()));
    let hosts: Vec<_> = (1..=shape.masters).collect();
    replicas::audit(&mut world, &hosts, shape.replicas, true, audits);
}

/// Ends a world that may be beyond its budget: what operations were answered is right.
pub(crate) fn end_blocked(mut world: World<Score>, shape: &Shape) {
    // The operations on what is missing do not end.
    let _ = finish(&mut world);
    nothing_is_lost(&world);
    check(&mut world, shape);
}

/// Returns a shape whose users work for some seconds, so that servers crash under them.
pub(crate) fn crashing(rng: &mut Rng, servers: HostFaults) -> Shape {
    let mut shape = replicated(rng, servers);
    // An operation that may happen at any later time multiplies the checker's configurations.
    shape.operations = 60;
    shape.habits.pause_ns = 100 * MS + rng.below(300 * MS);
    // The cleaner works if there is little memory, so that backups hold what no log names any more.
    shape.log_bytes = [768 << 10, 192 << 10][rng.below(2) as usize];
    shape
}

/// Returns network faults under which servers keep their leases, nearly always.
pub(crate) fn mild_fault(rng: &mut Rng) -> sprat_proto::fault::Fault {
    let fault = any_fault(rng);
    sprat_proto::fault::Fault { drop_ppm: fault.drop_ppm / 4, ..fault }
}

/// The number of crashes in a world and of repairs after them, true if the budget held, and the hot
/// ranges that the coordinator has moved since its last start.
pub(crate) struct Run {
    pub(crate) crashes: u64,
    repairs: u64,
    pub(crate) held: bool,
    pub(crate) hot_ranges: u64,
}

/// Returns the hot ranges that the coordinator of a world has moved since its last start.
fn hot_ranges(world: &mut World<Score>) -> u64 {
    let coordinator = world.state::<Coordinator>(0);
    let counters = coordinator.map_or_else(Vec::new, |coordinator| coordinator.counters());
    let of = |name| counters.iter().find(|(counter, _)| counter == name).map_or(0, |(_, n)| *n);
    of("hot_ranges_moved").min(of("migrations_done"))
}

/// Runs a world in which servers crash within the budget.
pub(crate) fn run_crashing(
    world: World<Score>,
    rng: &mut Rng,
    shape: &Shape,
    audits: &mut Audits,
) -> Run {
    run_crashing_at(world, rng, shape, audits, CRASH_PPM)
}

/// Runs a world in which servers crash within the budget, with this probability in a step, in parts
/// per million.
pub(crate) fn run_crashing_at(
    mut world: World<Score>,
    rng: &mut Rng,
    shape: &Shape,
    audits: &mut Audits,
    crash_ppm: u32,
) -> Run {
    let mut budget = Budget::new(shape, crash_ppm);
    run_steps(&mut world, |world| {
        if budget.holds(world) {
            budget.step(world, rng, audits);
        }
    });
    let hot_ranges = hot_ranges(&mut world);
    // A server that is cut off learns after the faults that its lease has ended.
    let whole = repair(&mut world, shape);
    let held = budget.holds(&world);
    if held {
        assert_eq!(whole, Ok(()), "{:?}", world.score.open);
        end_whole(world, shape, audits);
    } else {
        end_blocked(world, shape);
    }
    Run { crashes: budget.crashes, repairs: budget.repairs, held, hot_ranges }
}

/// Returns a lossy wire or, in a third of the worlds, a lossless one: over it the coordinator
/// learns of the end of a process at once.
fn any_wire(rng: &mut Rng) -> wire::Options {
    match rng.below(3) {
        0 => wire::Options { room: 4 + rng.below(100) as usize, ..wire::Options::lossless() },
        _ => wire::Options::default(),
    }
}

/// Up to as many servers crash at once as a log has replicas. No other fault happens.
#[test]
fn with_recovery() {
    let (mut crashes, mut repairs, mut audits) = (0, 0, Audits::default());
    seeds::each("with_recovery", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ec0);
        let shape = crashing(&mut rng, HostFaults::NONE);
        let options = Options { wire: any_wire(&mut rng), ..Options::default() };
        let run = run_crashing(world(seed, options, &shape), &mut rng, &shape, &mut audits);
        assert!(run.held, "no lease ends");
        (crashes, repairs) = (crashes + run.crashes, repairs + run.repairs);
    });
    assert!(repairs > 0 && audits.outcomes > 0, "{repairs} of {crashes}: {audits:?}");
}

/// Tablets are split, merged and moved much, in some worlds also by the coordinator itself, while
/// servers crash within the budget.
#[test]
fn with_moves() {
    let mut audits = Audits::default();
    seeds::each("with_moves", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x30fe);
        let mut shape = crashing(&mut rng, HostFaults::NONE);
        shape.operations = 120;
        shape.habits.pause_ns /= 2;
        shape.habits.arrange_ppm = 500_000;
        shape.rebalance_ns = [0, 300 * MS][rng.below(2) as usize];
        let options = Options { wire: any_wire(&mut rng), ..Options::default() };
        let run = run_crashing(world(seed, options, &shape), &mut rng, &shape, &mut audits);
        assert!(run.held, "no lease ends");
    });
}

/// Servers crash within the budget on a bad network. Processes are paused and the network is cut,
/// for less than a lease lasts. The coordinator restarts.
#[test]
fn with_recovery_under_faults() {
    let (mut crashes, mut repairs, mut audits) = (0, 0, Audits::default());
    let (mut worlds, mut held) = (0, 0);
    seeds::each("with_recovery_under_faults", 15, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ec1);
        let mut options = Options { drift_ppm: rng.below(5_000) as u32, ..Options::default() };
        options.wire.fault = mild_fault(&mut rng);
        let short = Chaos { pause_ns: 100 * MS, partition_ns: 100 * MS, ..any_chaos(&mut rng) };
        options.chaos = seeds::chaos(&mut rng, Chaos { down_ns: 500 * MS, ..short });
        let mut shape = crashing(&mut rng, HostFaults::PAUSES);
        shape.faults[0] = HostFaults::ALL;
        shape.server_term_ns = SECOND;
        let run = run_crashing(world(seed, options, &shape), &mut rng, &shape, &mut audits);
        (crashes, repairs) = (crashes + run.crashes, repairs + run.repairs);
        (worlds, held) = (worlds + 1, held + u64::from(run.held));
    });
    assert!(repairs > 0 || worlds == 1, "{repairs} of {crashes}: {audits:?}");
    assert!(held * 2 > worlds || worlds == 1, "{held} of {worlds}");
}

/// Servers crash at any time, also while replicas are few, and lose their leases. Operations on
/// what is missing block.
#[test]
fn with_recovery_beyond_the_budget() {
    seeds::each("with_recovery_beyond_the_budget", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ec2);
        let mut options = Options { chaos: any_chaos(&mut rng), ..Options::default() };
        options.wire = wire::Options { fault: any_fault(&mut rng), ..any_wire(&mut rng) };
        options.drift_ppm = rng.below(5_000) as u32;
        let shape = crashing(&mut rng, HostFaults::ALL);
        let mut world = world(seed, options, &shape);
        let hosts: Vec<_> = (1..=shape.masters).collect();
        let mut audits = Audits::default();
        run_steps(&mut world, |world| {
            replicas::audit(world, &hosts, shape.replicas, false, &mut audits);
        });
        end_blocked(world, &shape);
    });
}
