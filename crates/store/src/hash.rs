//! The hash of keys: rapidhash V3 under the 16-byte hash key of the table (normative:
//! `docs/formats.md`, "The place of a key").
//!
//! ```text
//!  k0, k1      the halves of the hash key, big-endian
//!  seed        low half XOR high half of (k0 XOR C3) × (k1 XOR C4), with C the default secrets
//!  secrets     C0 to C6, XOR k0 those of even index, XOR k1 those of odd index
//! ```
//!
//! Each secret that meets bytes of a key depends on the hash key, so that keys cannot be chosen to
//! collide without it. The seed is no linear function of the secrets, or two keys whose words are
//! swapped would collide. Clients of the cluster know the hash key.
//!
//! Invariant: clients and masters compute the same hash, for they use this code.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

use crate::types::{HashKey, KeyHash};

/// The default secrets of the hash function rapidhash.
const SECRETS: [u64; 7] = [
    0x2d35_8dcc_aa6c_78a5,
    0x8bb8_4b93_962e_acc9,
    0x4b33_a62e_d433_d4a3,
    0x4d5a_2da5_1de1_aa47,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x90ed_1765_281c_388c,
];

/// A hash key with its secrets computed, to hash many keys of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHasher(RapidSecrets);

impl KeyHasher {
    /// Returns the hash of `key` in the table.
    #[must_use]
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(rapidhash_v3_inline::<true, true, false>(key, &self.0))
    }
}

impl From<HashKey> for KeyHasher {
    fn from(HashKey(key): HashKey) -> Self {
        let whole = u128::from_be_bytes(key);
        let halves = [(whole >> 64) as u64, whole as u64];
        let secrets = core::array::from_fn(|i| SECRETS[i] ^ halves[i % 2]);
        let product = u128::from(halves[0] ^ SECRETS[3]) * u128::from(halves[1] ^ SECRETS[4]);
        Self(RapidSecrets { seed: (product >> 64) as u64 ^ product as u64, secrets })
    }
}

#[cfg(test)]
mod tests;
