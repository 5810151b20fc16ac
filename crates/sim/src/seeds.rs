//! One test, many seeds, and what a seed chooses to go wrong.

use std::env;

use sprat_proto::Rng;
use sprat_proto::fault::Fault;
use sprat_proto::time::US;

use crate::Chaos;

/// Seeds that all tests of this crate together take, unless `SPRAT_SEEDS` says otherwise.
const DEFAULT: u64 = 200;

/// Runs `test` for its share, `percent`, of `SPRAT_SEEDS` seeds (at least one), or for the one seed in `SPRAT_SEED`.
/// `name` is the test's name: when a seed fails, how to repeat it is printed.
///
/// # Panics
/// If a variable is set and is no number, and if `test` panics.
pub fn each(name: &str, percent: u64, mut test: impl FnMut(u64)) {
    if let Some(seed) = number("SPRAT_SEED") {
        return one(name, seed, &mut test);
    }
    let first = number("SPRAT_FIRST_SEED").unwrap_or(0);
    let count = (number("SPRAT_SEEDS").unwrap_or(DEFAULT) * percent).div_ceil(100);
    for seed in first..first + count.max(1) {
        one(name, seed, &mut test);
    }
}

/// Faults of every kind, each as bad as the seed likes: up to 20 % loss, and datagrams late by up to `late_ns`.
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

/// Blows of every kind, in a mixture that the seed likes, none of them longer or rarer than `most` allows.
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
    let told = Told { name, seed };
    test(seed);
    drop(told);
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let number = text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"));
    Some(number)
}

struct Told<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for Told<'_> {
    #[allow(clippy::print_stderr, reason = "this is what the runner is for")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed } = self;
            eprintln!(
                "seed {seed} fails; to repeat: SPRAT_SEED={seed} cargo test -p sprat-sim {name}"
            );
        }
    }
}
