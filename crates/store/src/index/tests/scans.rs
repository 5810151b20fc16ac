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

/// An object that keeps its key is found once by each scan, whatever changes around it.
#[test]
fn a_scan_finds_each_object_that_stays_once_and_in_order() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        let clients: Vec<Fake> = (0..3).map(|_| world.client(0)).collect();
        world.only(create(&clients[0], "first", FIRST, 100));
        for n in 0..40 {
            let (key, value) = (alloc::format!("stays {n}"), alloc::format!("{},x", n % 9));
            let write = Change::Write(value.as_bytes(), None);
            world.only(of(&clients[0]).change(key.as_bytes(), write, ANY)).unwrap();
        }
        let scan = async {
            let ways = [1, 3, 100].map(|most| [(most, 0), (most, 500_000), (most, 1_000_000)]);
            for (most, back_ppm) in ways.into_iter().flatten() {
                let range = Range::new("2"..="6");
                let found = from_both_ends(&clients[2], "first", range, most, back_ppm).await;
                let points = found.iter().map(|it| (&it.index_key, &it.key));
                assert!(points.is_sorted_by(|a, b| a < b), "each once, in order");
                for it in &found {
                    assert_eq!(FIRST.key_of(&it.key, &it.value), Some(&it.index_key[..]));
                    assert!((&b"2"[..]..=b"6").contains(&&it.index_key[..]));
                }
                let stayed = found.iter().filter(|it| it.key.starts_with(b"stays"));
                assert_eq!(stayed.count(), (0..40).filter(|n| (2..=6).contains(&(n % 9))).count());
            }
        };
        let change = |i: usize, rng| Box::pin(change_at_random(&clients[i], rng, 100, 30));
        let rngs = [world.rng.fork(), world.rng.fork()];
        let [first, second] = rngs;
        world.run(vec![change(0, first), change(1, second), Box::pin(scan)]);
        world.check();
    }
}
