use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use sprat_proto::Rng;

use super::*;

fn hasher(first: u8) -> KeyHasher {
    HashKey(core::array::from_fn(|i| first + i as u8)).into()
}

/// Hashes of the lengths at which rapidhash takes another path. A change breaks every cluster whose
/// parts are not of one version.
#[test]
fn golden() {
    let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let golden = GOLDEN.map(|(len, _)| (len, hasher(1).hash(&bytes[..len]).0));
    assert_eq!(golden, GOLDEN, "{golden:#x?}");
}

const GOLDEN: [(usize, u64); 12] = [
    (0, 0x02fd_781b_e8a2_6f86),
    (1, 0xfadb_c559_c4e3_d665),
    (3, 0x639f_5e85_137f_d583),
    (4, 0x81bb_73dd_aabf_cac1),
    (8, 0x1dfc_522a_edea_1e97),
    (16, 0x5588_7406_0969_42f2),
    (17, 0xee61_6c17_1453_e1fb),
    (30, 0xbf2c_8a03_ccb0_97b9),
    (48, 0x43e6_4e85_e56a_39e5),
    (112, 0x2d0c_ad7b_d7c0_77f5),
    (113, 0x6699_e5ef_b0ae_a46d),
    (1000, 0x668b_2839_6530_84d5),
];

/// Each bit of a key flips each bit of the hash about every second time.
#[test]
fn avalanche() {
    const TRIALS: u32 = 2000;
    let mut rng = Rng::seeded(1);
    for len in [1, 3, 4, 8, 16, 17, 30, 100, 200] {
        for _ in 0..8 {
            let bit = rng.below(8 * len) as usize;
            let mut flips = [0u32; 64];
            for _ in 0..TRIALS {
                let mut key = [0; 200];
                rng.fill(&mut key[..len as usize]);
                let mut seed = [0; 16];
                rng.fill(&mut seed);
                let hasher = KeyHasher::from(HashKey(seed));
                let before = hasher.hash(&key[..len as usize]).0;
                key[bit / 8] ^= 1 << (bit % 8);
                let changed = before ^ hasher.hash(&key[..len as usize]).0;
                (0..64).for_each(|i| flips[i] += (changed >> i & 1) as u32);
            }
            // Six standard deviations of 2,000 fair trials are 134.
            let fair = flips.iter().all(|&n| n.abs_diff(TRIALS / 2) < 135);
            assert!(fair, "length {len}, bit {bit}: {flips:?}");
        }
    }
}

/// Counting keys, text keys and sparse keys fill ranges of the hash, and its low bits, evenly.
#[test]
fn distribution() {
    let text = |n: u64| alloc::format!("user{n:026}").into_bytes();
    let sparse = |n: u64| {
        let mut key = [0; 64];
        key[(n % 64) as usize] = (n / 64 % 255) as u8 + 1;
        key[(n / 16_320 * 7 % 64) as usize] ^= 0x80;
        key.to_vec()
    };
    let keys: [&dyn Fn(u64) -> Vec<u8>; 4] =
        [&|n| n.to_be_bytes().to_vec(), &|n| n.to_le_bytes().to_vec(), &text, &sparse];
    for key in keys {
        let hasher = hasher(7);
        for shift in [0, 24, 56] {
            let mut counts = [0u32; 256];
            for n in 0..1 << 16 {
                counts[(hasher.hash(&key(n)).0 >> shift & 255) as usize] += 1;
            }
            // Chi-square with 255 degrees of freedom: mean 255, standard deviation 22.6.
            let squares: u32 = counts.iter().map(|&n| n.abs_diff(256).pow(2)).sum();
            assert!((150..400).contains(&(squares / 256)), "shift {shift}: {counts:?}");
        }
    }
}

#[test]
fn hashes_differ_by_key_length_and_table() {
    let mut seen = BTreeSet::new();
    for table in 0..8 {
        for len in 0..300 {
            assert!(seen.insert(hasher(table).hash(&[0; 300][..len])), "{table} {len}");
        }
    }
    // The words of a key do not commute, not even with the difference of two secrets, and a secret
    // of rapidhash in a key has no effect.
    for difference in SECRETS.iter().flat_map(|secret| [0, *secret, secret ^ 16]) {
        let key = |a: u64, b: u64| [a, b, 9, 9].map(u64::to_le_bytes).concat();
        let swapped = [key(1, 2), key(2 ^ difference, 1 ^ difference)];
        for len in [16, 30, 32] {
            let [one, other] = &swapped;
            assert_ne!(hasher(1).hash(&one[..len]), hasher(1).hash(&other[..len]), "{difference}");
        }
    }
    let weak = |second: u64| [SECRETS[2], second, 5, 6].map(u64::to_le_bytes).concat();
    assert_ne!(hasher(1).hash(&weak(1)), hasher(1).hash(&weak(2)));
}
