//! Tests of software iWARP under faults: machines with an engine each post every request whose
//! outcome the oracle can predict, over streams that deliver any number of bytes, end at any step
//! and damage bytes. The oracle verifies memory, completions, their order, and errors.

mod atomics;
mod end;
mod flow;
mod hostile;
mod judge;
mod memory;
mod post;
mod posted;
mod tags;
mod world;
mod wrong;

use memory::Bug;
use sprat_proto::Rng;
use sprat_sim::seeds;
use world::{Plan, Seen, World};

fn run(seed: u64, plan: Plan) -> Seen {
    World::new(seed, plan).run()
}

/// Returns the plan of an RDMA world with two or three machines and a random number of streams,
/// without faults.
fn plan(seed: u64) -> Plan {
    let mut rng = Rng::seeded(seed ^ 0x5ca1e);
    let (nodes, links) = (2 + rng.below(2) as usize, 1 + rng.below(5) as usize);
    Plan { nodes, links, steps: 300 + rng.below(6000) as usize, ..Plan::default() }
}

/// Runs `percent` of the seeds and checks that any requests succeeded and any bytes were delivered.
fn each(name: &str, percent: u64, run: impl Fn(u64) -> Seen) {
    let mut all = Seen::default();
    seeds::each(name, percent, |seed| all.add(run(seed)));
    assert!(all.good > 0 && all.bytes > 0, "{all:?}");
}

#[test]
fn in_peace() {
    each("in_peace", 20, |seed| run(seed, plan(seed)));
}

#[test]
fn with_wrong_requests() {
    each("with_wrong_requests", 25, |seed| run(seed, Plan { wrong_ppm: 10_000, ..plan(seed) }));
}

#[test]
fn with_cuts_and_deaths() {
    each("with_cuts_and_deaths", 25, |seed| {
        run(seed, Plan { cut_ppm: 2_000, death_ppm: 200, ..plan(seed) })
    });
}

#[test]
fn with_revoked_tags() {
    each("with_revoked_tags", 10, |seed| run(seed, Plan { revoke_ppm: 3_000, ..plan(seed) }));
}

#[test]
fn with_damage_under_crc() {
    each("with_damage_under_crc", 10, |seed| run(seed, Plan { damage_ppm: 3_000, ..plan(seed) }));
}

#[test]
fn with_everything_at_once() {
    each("with_everything_at_once", 10, |seed| {
        let plan = plan(seed);
        let (wrong_ppm, cut_ppm, death_ppm, damage_ppm, revoke_ppm) =
            (5_000, 500, 100, 1_000, 1_000);
        run(seed, Plan { wrong_ppm, cut_ppm, death_ppm, damage_ppm, revoke_ppm, ..plan })
    });
}

/// The oracle finds every planted bug in memory. Without that, the simulated worlds would prove
/// nothing.
#[test]
fn planted_bugs_are_found() {
    let found = |plan: Plan| {
        (0..20).any(|seed| {
            std::panic::catch_unwind(|| run(seed, Plan { links: 4, ..plan.clone() })).is_err()
        })
    };
    assert!(!found(Plan::default()));
    for bug in [Bug::Shifted, Bug::Lost, Bug::Beside, Bug::Misread, Bug::Twice] {
        assert!(found(Plan { bug, ..Plan::default() }), "{bug:?} is not found");
    }
    // Streams are damaged, and the engines do not verify the CRC.
    assert!(
        found(Plan { crc32c: |_, _| 0, damage_ppm: 3_000, ..Plan::default() }),
        "damage is not found"
    );
    // Streams are damaged, and the engines verify the CRC.
    assert!(!found(Plan { damage_ppm: 3_000, ..Plan::default() }));
}
