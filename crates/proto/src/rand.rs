//! The random number generator: seeded by the kernel in production, by a number in simulation.

use core::hash::BuildHasher;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use siphasher::sip::SipHasher13;

/// A cryptographically strong random number generator (ChaCha8).
///
/// Tokens, the secrets of cookies and initial sequence numbers come from it, so its output must not
/// reveal what it yields next.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// Makes a random number generator from 32 bytes of entropy.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha8Rng::from_seed(seed))
    }

    /// Makes a random number generator for tests and simulation: equal seeds give equal sequences.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns 64 random bits from the generator.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns 32 random bits from the generator.
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns a random number in `0..bound`, or 0 if `bound` is 0. For bounds below 2³² the bias
    /// is below 2⁻³².
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true at random, with a probability of `per_million` in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Fills `bytes` with random bits from the generator.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// Makes an independent random number generator for one component, so that the number of draws
    /// of one component does not change the sequence of another.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        let mut seed = [0; 32];
        self.fill(&mut seed);
        Self::new(seed)
    }
}

/// A hash with a random key, so that peers cannot choose colliding addresses.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHash(u64, u64);

impl KeyedHash {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self(rng.u64(), rng.u64())
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}
