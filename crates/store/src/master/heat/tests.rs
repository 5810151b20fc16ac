use alloc::vec;

use super::*;
use crate::durability::TableDurability;
use crate::types::HashKey;

const TABLE: TableId = TableId(7);

fn tablet(table: u64, first: u64, last: u64) -> Tablet {
    Tablet { table: TableId(table), first, last }
}

/// Returns samples of hashes of table 7, each this many times.
fn samples(hashes: impl IntoIterator<Item = (u64, usize)>) -> Vec<Sample> {
    let each = |(hash, times)| core::iter::repeat_n((TABLE, KeyHash(hash)), times);
    hashes.into_iter().flat_map(each).collect()
}

/// Returns the first and the last hash and the part of the range that is nearest.
fn find(samples: &[Sample], tablets: &[Tablet], wanted: u16) -> (u64, u64, u16) {
    let hot = hot_range(samples, tablets.iter().copied(), wanted);
    assert!(hot.part == 0 || tablets.iter().any(|tablet| tablet.table == hot.table));
    (hot.first, hot.last, hot.part)
}

#[test]
fn an_even_load_is_cut_at_an_end_of_its_tablet() {
    let even = samples((0..512).map(|i| (i << 55, 1)));
    let whole = [tablet(7, 0, u64::MAX)];
    let (first, last, part) = find(&even, &whole, WHOLE / 4);
    assert!(part.abs_diff(WHOLE / 4) <= 32, "{part}");
    assert!(first == 0 || last == u64::MAX, "{first:x} to {last:x}");
    // Two tablets of which one has what is wanted: no new one is made.
    let halves = [tablet(7, 0, (1 << 63) - 1), tablet(7, 1 << 63, u64::MAX)];
    let (first, last, part) = find(&even, &halves, WHOLE / 2);
    assert_eq!(part, WHOLE / 2);
    assert!(halves.contains(&tablet(7, first, last)));
}

#[test]
fn a_hot_key_is_a_range_of_its_own_and_never_cut() {
    let all = samples((0..100).map(|i| (i << 57, 1)).chain([(5 << 57 | 9, 100)]));
    let whole = [tablet(7, 0, u64::MAX)];
    assert_eq!(find(&all, &whole, 500), (5 << 57 | 9, 5 << 57 | 9, 512));
    // With all of the heat it is all that there is, whatever is wanted.
    let alone = samples([(3 << 60, 200)]);
    assert_eq!(find(&alone, &whole, 100), (3 << 60, 3 << 60, WHOLE));
}

#[test]
fn only_samples_in_the_tablets_count() {
    let all = samples([(10, 100), (20, 100), (30, 27)]);
    let some = [tablet(6, 0, u64::MAX), tablet(7, 15, 25), tablet(7, 26, 40)];
    assert_eq!(find(&all, &some, 800), (0, 0, 0), "127 are too few");
    let all = samples([(10, 100), (20, 100), (30, 28)]);
    assert_eq!(find(&all, &some, 800), (20, 20, 800));
    assert_eq!(find(&all, &some, 224), (30, 30, 224));
    assert_eq!(find(&all, &[], 224), (0, 0, 0));
    assert_eq!(find(&[], &some, 224), (0, 0, 0));
}

/// The nearest range is as near as the nearest of all ranges between the samples, up to the error
/// of the samples. It is within a tablet, and its part is that of its samples.
#[test]
fn no_range_is_nearer() {
    let mut rng = Rng::seeded(0x4ea7);
    for _ in 0..300 {
        let keys: Vec<_> = (0..1 + rng.below(40)).map(|_| (rng.below(1000), 1)).collect();
        let picks = 128 + rng.below(300);
        let skewed = |rng: &mut Rng| {
            let at = rng.below(keys.len() as u64);
            keys[rng.below(1 + at) as usize]
        };
        let all = samples((0..picks).map(|_| skewed(&mut rng)));
        let mut tablets = vec![];
        let mut first = rng.below(100);
        while first < 1000 {
            let last = first + rng.below(600);
            tablets.push(tablet(7, first, last));
            first = last + 1 + rng.below(2) * rng.below(200);
        }
        let within = |first: u64, last: u64| {
            all.iter().filter(|(_, hash)| (first..=last).contains(&hash.0)).count()
        };
        let total: usize = tablets.iter().map(|t| within(t.first, t.last)).sum();
        let wanted = rng.below(u64::from(WHOLE)) as u16;
        let (first, last, part) = find(&all, &tablets, wanted);
        if total < LEAST {
            assert_eq!(part, 0);
            continue;
        }
        let count = within(first, last);
        assert_eq!(part, (count * usize::from(WHOLE) / total) as u16);
        assert!(tablets.iter().any(|t| t.first <= first && first <= last && last <= t.last));
        let wanted = (total * usize::from(wanted) / usize::from(WHOLE)).max(1);
        let mut least = usize::MAX;
        for t in &tablets {
            let mut ends: Vec<_> = keys.iter().map(|key| key.0).collect();
            ends.retain(|hash| (t.first..=t.last).contains(hash) && within(*hash, *hash) > 0);
            for &a in &ends {
                for &b in ends.iter().filter(|&&b| b >= a) {
                    least = least.min(within(a, b).abs_diff(wanted));
                }
            }
        }
        let error = wanted.isqrt();
        assert_eq!(count.abs_diff(wanted) / error, least / error, "{count} for {wanted}: {least}");
    }
}

/// The sample has one in 64 accesses, also of requests that repeat after 64 of them, and only of
/// the time since the last tablet came.
#[test]
fn one_access_in_64_is_in_the_sample() {
    let mut tablets = Tablets::default();
    let take = |tablets: &mut Tablets, first| {
        let tablet = tablet(7, first, first + 99);
        tablets.take(tablet, HashKey([1; 16]), TableDurability::Cluster).unwrap();
    };
    take(&mut tablets, 0);
    let mut heat = Heat::new(Rng::seeded(3));
    let mut taken = 0;
    for access in 1..=64 * 4000 {
        if access == heat.due {
            heat.sample(&tablets, TABLE, KeyHash(access % 64));
            taken += 1;
        }
    }
    assert!((3800..4200).contains(&taken), "{taken}");
    assert_eq!(heat.samples.len(), MOST);
    for hash in 0..64 {
        let of_hash = heat.samples.iter().filter(|(_, h)| h.0 == hash).count();
        assert!((4..40).contains(&of_hash), "{of_hash} of {hash}");
    }
    assert!(heat.hottest(&tablets, 100).part > 0);
    take(&mut tablets, 100);
    assert_eq!(heat.hottest(&tablets, 100).part, 0, "they tell nothing about the new tablet");
    heat.sample(&tablets, TABLE, KeyHash(1));
    assert_eq!(heat.samples.len(), 1);
}
