//! Runs a test with many seeds, and draws faults from a seed.

use std::env;

use sprat_proto::Rng;
use sprat_proto::fault::Fault;
use sprat_proto::time::US;

use crate::Chaos;

/// The number of seeds of all tests of this crate together, unless `SPRAT_SEEDS` sets it.
const DEFAULT: u64 = 200;
/// The number of seeds of a test between two lines that tell how many have passed.
const PROGRESS: u64 = 100;

/// Runs `test` with its share, `percent`, of `SPRAT_SEEDS` seeds (at least one), or with the one
/// seed in `SPRAT_SEED`. It prints how many seeds have passed, after each hundred. If a seed
/// fails, it prints the command that repeats the test `name` with it.
///
/// # Panics
/// If one of the variables is not a number, or if `test` panics.
#[allow(clippy::print_stderr, reason = "a developer waits for many seeds")]
pub fn each(name: &str, percent: u64, mut test: impl FnMut(u64)) {
    if let Some(seed) = number("SPRAT_SEED") {
        return one(name, seed, &mut test);
    }
    let first = number("SPRAT_FIRST_SEED").unwrap_or(0);
    let count = (number("SPRAT_SEEDS").unwrap_or(DEFAULT) * percent).div_ceil(100).max(1);
    for passed in 1..=count {
        one(name, first + passed - 1, &mut test);
        if passed.is_multiple_of(PROGRESS) {
            eprintln!("{name}: {passed} of {count} seeds from {first} on pass");
        }
    }
}

/// Draws the rates of network faults: up to 20 % loss, and delays of up to `late_ns`.
pub fn fault(rng: &mut Rng, late_ns: u64) -> Fault {
    let ppm =
        |rng: &mut Rng, most: u64| if rng.chance(300_000) { 0 } else { rng.below(most) as u32 };
    Fault {
        drop_ppm: ppm(rng, 200_001),
        duplicate_ppm: ppm(rng, 100_000),
        reorder_ppm: ppm(rng, 200_000),
        corrupt_ppm: ppm(rng, 50_000),
        truncate_ppm: ppm(rng, 50_000),
        reorder_ns: 10 * US + rng.below(late_ns),
    }
}

/// Draws a mixture of process and host faults. No fault lasts longer than `most` allows, and the
/// mean time between two faults is at most 10 % longer than that of `most`.
pub fn chaos(rng: &mut Rng, most: Chaos) -> Chaos {
    Chaos {
        every_ns: most.every_ns / 10 + rng.below(most.every_ns),
        weights: [(); 4].map(|()| 1 + rng.below(3) as u32),
        down_ns: rng.below(most.down_ns),
        pause_ns: rng.below(most.pause_ns),
        partition_ns: rng.below(most.partition_ns),
        full_ns: rng.below(most.full_ns.max(1)),
    }
}

fn one(name: &str, seed: u64, test: &mut impl FnMut(u64)) {
    let reporter = Reporter { name, seed };
    test(seed);
    drop(reporter);
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let number = text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number"));
    Some(number)
}

struct Reporter<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for Reporter<'_> {
    #[allow(clippy::print_stderr, reason = "the seed must reach the developer")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed } = self;
            eprintln!(
                "seed {seed} fails; to repeat: SPRAT_SEED={seed} cargo test -p sprat-sim {name}"
            );
        }
    }
}
