//! YCSB's distributions of records: Zipfian, scrambled Zipfian and latest.
//!
//! Item *i* of *n* has a probability of 1 / ((i + 1)^θ · ζ(n, θ)), where ζ(n, θ) is the sum of
//! 1 / k^θ for k in 1..=n, and θ is 0.99. Drawing takes constant time by the method of Gray et al.,
//! "Quickly generating billion-record synthetic databases" (SIGMOD 1994): the first two items are
//! exact, the others follow an approximation of the sum by an integral.
//!
//! The scrambled distribution draws from [`SCRAMBLED_ITEMS`] items, whatever the number of records,
//! and maps the item to a record by a hash. So popular records lie anywhere in the table, and they
//! stay popular when it grows.

use sprat_proto::Rng;

/// The exponent θ of YCSB's Zipfian distribution.
const THETA: f64 = 0.99;
/// The number of items that the scrambled distribution draws from.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// YCSB's constant for the sum ζ([`SCRAMBLED_ITEMS`], θ).
pub const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Offset basis and prime of the hash FNV-1a with 64 bits.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 1_099_511_628_211;

/// Returns YCSB's hash of a number: FNV-1a with 64 bits over its eight bytes, the lowest first, and
/// the magnitude of the result as a signed number.
#[must_use]
pub fn hash(number: u64) -> u64 {
    let hash = number
        .to_le_bytes()
        .iter()
        .fold(FNV_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    (hash as i64).unsigned_abs()
}

/// Returns `sum` and the terms of ζ(`to`, θ) behind the first `from`.
fn zeta(from: u64, to: u64, sum: f64) -> f64 {
    (from..to).fold(sum, |sum, i| sum + 1.0 / ((i + 1) as f64).powf(THETA))
}

/// Returns a random number in 0..1 with 53 bits.
pub fn uniform(rng: &mut Rng) -> f64 {
    (rng.u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A Zipfian distribution over the numbers from 0 on, of which 0 is the most frequent.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Number of items at the beginning, which `eta` depends on.
    items: u64,
    /// Number of items that `zeta` counts.
    counted: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Makes the distribution over `items` items. It takes time in proportion to `items`.
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self::with_zeta(items, zeta(0, items, 0.0))
    }

    /// Makes the distribution over `items` items, whose sum ζ is known.
    fn with_zeta(items: u64, zeta: f64) -> Self {
        let mut zipf = Self { items, counted: items, zeta, eta: 0.0 };
        zipf.eta = zipf.eta();
        zipf
    }

    fn eta(&self) -> f64 {
        // Of no more than two items, the exact cases of `item` draw both.
        if self.items <= 2 {
            return 1.0;
        }
        let first_two = zeta(0, 2, 0.0);
        (1.0 - (2.0 / self.items as f64).powf(1.0 - THETA)) / (1.0 - first_two / self.zeta)
    }

    /// Returns the item at `uniform`, a number in 0..1, if the distribution has `items` items. The
    /// number of items may grow from call to call. If it is smaller than before, the items that
    /// were popular stay so, and the result is below `items` nevertheless.
    pub fn item(&mut self, items: u64, uniform: f64) -> u64 {
        if items > self.counted {
            self.zeta = zeta(self.counted, items, self.zeta);
            self.counted = items;
            self.eta = self.eta();
        }
        let at = uniform * self.zeta;
        let item = if at < 1.0 {
            0
        } else if at < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            let part = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
            (items as f64 * part) as u64
        };
        item.min(items.saturating_sub(1))
    }
}

/// YCSB's scrambled Zipfian distribution over the numbers in `0..records`.
#[derive(Clone, Debug)]
pub struct Scrambled {
    zipf: Zipf,
    records: u64,
}

impl Scrambled {
    /// Makes the distribution over `records` records, at least one.
    #[must_use]
    pub fn new(records: u64) -> Self {
        // YCSB's generator draws from 0..=ITEM_COUNT, so it has an item more than ζ counts.
        let zipf = Zipf::with_zeta(SCRAMBLED_ITEMS + 1, SCRAMBLED_ZETA);
        Self { zipf, records: records.max(1) }
    }

    /// Draws a record.
    pub fn draw(&mut self, rng: &mut Rng) -> u64 {
        let item = self.zipf.item(SCRAMBLED_ITEMS + 1, uniform(rng));
        hash(item) % self.records
    }
}

/// YCSB's latest distribution: the Zipfian distribution of the distance from the newest record.
#[derive(Clone, Debug)]
pub struct Latest(Zipf);

impl Latest {
    /// Makes the distribution for a table of `records` records, at least two. It takes time in
    /// proportion to `records`.
    #[must_use]
    pub fn new(records: u64) -> Self {
        Self(Zipf::new(records.max(2) - 1))
    }

    /// Draws a record, if `newest` is the newest one.
    pub fn draw(&mut self, newest: u64, rng: &mut Rng) -> u64 {
        newest - self.0.item(newest, uniform(rng)).min(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first records that YCSB loads have these keys, behind "user".
    #[test]
    fn the_hash_is_that_of_ycsb() {
        let golden = [
            (0, 6_284_781_860_667_377_211),
            (1, 8_517_097_267_634_966_620),
            (2, 1_820_151_046_732_198_393),
            (3, 4_052_466_453_699_787_802),
            (999_999, 2_744_965_632_448_235_251),
        ];
        for (number, expected) in golden {
            assert_eq!(hash(number), expected, "{number}");
        }
    }

    /// Numbers of Gray's formulas, calculated apart from this code.
    #[test]
    fn items_are_those_of_the_formulas() {
        let tenths = |zipf: &mut Zipf, items| -> Vec<u64> {
            (0..10).map(|tenth| zipf.item(items, f64::from(tenth) / 10.0)).collect()
        };
        let mut zipf = Zipf::new(1000);
        assert!((zipf.zeta - 7.728_953_217_284_729).abs() < 1e-12, "{}", zipf.zeta);
        assert_eq!(tenths(&mut zipf, 1000), [0, 0, 2, 4, 10, 22, 47, 103, 221, 471]);
        assert_eq!(zipf.item(1000, 0.99), 927);
        let items = SCRAMBLED_ITEMS + 1;
        let mut zipf = Zipf::with_zeta(items, SCRAMBLED_ZETA);
        let large = tenths(&mut zipf, items);
        assert_eq!(large[..6], [0, 6, 83, 1038, 12_175, 134_552]);
        // The last places depend on the machine's function pow.
        assert!(large[9].abs_diff(1_170_869_537) < 1000, "{}", large[9]);
    }

    /// YCSB's constant is the sum over ten billion items: the sum of the first terms, and an
    /// integral for the rest.
    #[test]
    fn the_constant_of_the_scrambled_distribution_is_its_sum() {
        let (n, first) = (SCRAMBLED_ITEMS as f64, 100_000.0_f64);
        let rest = (n.powf(1.0 - THETA) - first.powf(1.0 - THETA)) / (1.0 - THETA)
            + 0.5 * (n.powf(-THETA) - first.powf(-THETA));
        let sum = zeta(0, first as u64, rest);
        assert!((sum - SCRAMBLED_ZETA).abs() < 1e-9, "{sum}");
    }

    /// Compares the shares of items with the distribution's probabilities. Gray's method is exact
    /// for the first two items, and close for ranges of later ones.
    #[test]
    fn frequencies_are_those_of_zipf() {
        const ITEMS: u64 = 10_000;
        const DRAWS: u32 = 400_000;
        let (mut zipf, mut rng) = (Zipf::new(ITEMS), Rng::seeded(1));
        let mut counts = vec![0_u32; ITEMS as usize];
        for _ in 0..DRAWS {
            counts[zipf.item(ITEMS, uniform(&mut rng)) as usize] += 1;
        }
        let whole = zeta(0, ITEMS, 0.0);
        for (from, to, tolerance) in [
            (0, 1, 0.02),
            (1, 2, 0.03),
            (2, 10, 0.1),
            (10, 100, 0.03),
            (100, 1000, 0.03),
            (1000, ITEMS, 0.03),
        ] {
            let expected = zeta(from, to, 0.0) / whole;
            let drawn: u32 = counts[from as usize..to as usize].iter().sum();
            let share = f64::from(drawn) / f64::from(DRAWS);
            assert!(
                (share / expected - 1.0).abs() < tolerance,
                "items {from}..{to}: {share} instead of {expected}"
            );
        }
    }

    #[test]
    fn scrambled_records_are_as_popular_as_items_and_lie_anywhere() {
        const RECORDS: u64 = 1000;
        const DRAWS: u32 = 400_000;
        let (mut scrambled, mut rng) = (Scrambled::new(RECORDS), Rng::seeded(2));
        let mut counts = vec![0_u32; RECORDS as usize];
        for _ in 0..DRAWS {
            counts[scrambled.draw(&mut rng) as usize] += 1;
        }
        // The rest of the probability falls on all records alike.
        for item in [0, 1] {
            let record = (hash(item) % RECORDS) as usize;
            let own = 1.0 / ((item + 1) as f64).powf(THETA) / SCRAMBLED_ZETA;
            let share = f64::from(counts[record]) / f64::from(DRAWS);
            assert!(share > own && share < own + 0.01, "item {item}: {share}, {own}");
        }
        assert!(counts.iter().all(|&count| count > 0), "each record is drawn");
        let upper: u32 = counts[RECORDS as usize / 2..].iter().sum();
        assert!((0.3..0.7).contains(&(f64::from(upper) / f64::from(DRAWS))), "{upper}");
    }

    #[test]
    fn the_newest_record_is_the_most_popular_one() {
        let (mut latest, mut rng) = (Latest::new(1000), Rng::seeded(3));
        for newest in [999, 1999] {
            let mut counts = vec![0_u32; newest as usize + 1];
            for _ in 0..100_000 {
                counts[latest.draw(newest, &mut rng) as usize] += 1;
            }
            let expected = 1.0 / zeta(0, newest, 0.0);
            let share = f64::from(counts[newest as usize]) / 100_000.0;
            assert!((share / expected - 1.0).abs() < 0.05, "{share} instead of {expected}");
            let most = counts.iter().enumerate().max_by_key(|(_, count)| **count);
            assert_eq!(most.map(|(record, _)| record as u64), Some(newest));
        }
    }

    #[test]
    fn few_items_are_all_drawn() {
        let mut rng = Rng::seeded(4);
        for items in 1..5 {
            let mut zipf = Zipf::new(items);
            let mut counts = vec![0; items as usize];
            (0..1000).for_each(|_| counts[zipf.item(items, uniform(&mut rng)) as usize] += 1);
            assert!(counts.iter().all(|&count| count > 0), "{items}: {counts:?}");
        }
        assert_eq!(Latest::new(1).draw(0, &mut rng), 0);
    }
}
