//! Tests of scans of an index from both ends of a range.

use alloc::collections::BTreeSet;
use core::ops::{Bound, RangeBounds as _};

use super::*;

/// Scans from either end of random ranges find what a sorted list of all objects has there, with
/// bounds on, before and behind the borders of leaves.
#[test]
fn a_range_has_the_same_objects_from_both_ends() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let client = world.client(0);
        world.only(create(&client, "first", FIRST, 100));
        let mut expected = BTreeSet::new();
        for n in 0..120_u64 {
            let (key, own) = (alloc::format!("{:02}", world.rng.below(40)), n.to_be_bytes());
            let write = Change::Write(key.as_bytes(), None);
            world.only(of(&client).change(&own, write, ANY)).unwrap();
            expected.insert((key.into_bytes(), own.to_vec()));
        }
        for _ in 0..40 {
            let mut bound = || {
                let key = alloc::format!("{:02}", world.rng.below(42)).into_bytes();
                match world.rng.below(3) {
                    0 => Bound::Included(key),
                    1 => Bound::Excluded(key),
                    _ => Bound::Unbounded,
                }
            };
            let keys = (bound(), bound());
            let of_range = expected.iter().filter(|(key, _)| keys.contains(key)).cloned();
            let of_range: Vec<_> = of_range.collect();
            let most = [1, 2, 7, 1000, usize::MAX][world.rng.below(5) as usize];
            let back_ppm = [0, 500_000, 1_000_000][world.rng.below(3) as usize];
            let range = Range::new(keys);
            let found = world.only(from_both_ends(&client, "first", range, most, back_ppm));
            let found: Vec<_> = found.into_iter().map(|it| (it.index_key, it.key)).collect();
            assert_eq!(found, of_range, "{most} {back_ppm}");
        }
    }
}
