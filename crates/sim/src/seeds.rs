//! One test, many seeds.

use std::env;

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
            eprintln!("seed {seed} fails; to repeat: SPRAT_SEED={seed} cargo test -p sprat-sim {name}");
        }
    }
}
