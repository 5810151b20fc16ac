//! The operations that a simulated user draws at random: objects, changes and conditions.

use sprat_proto::Rng;
use sprat_sim::check::store::{self, Reject, Value};
use sprat_store::message::data::{Amount, RejectRules};
use sprat_store::types::{Lifetime, Version};

use crate::score::Score;

/// The number of keys that users use in a table.
pub(crate) const KEYS: u64 = 6;
/// The key whose objects often expire, and are not touched: so a read knows when its value expires.
pub(crate) const EXPIRING: u64 = 1;
/// The key whose objects expire and are touched.
const TOUCHED: u64 = 0;
/// The longest lifetime of an object, in milliseconds.
const LONGEST_MS: u64 = 400;
/// The probability that a user swaps a value of bytes instead of writing it, in parts per million.
const SWAP_PPM: u32 = 350_000;
/// The key whose object only appends change.
const CHAIN: u64 = 5;

/// Returns the bytes of the object key with the number `key`.
pub(crate) fn key_bytes(key: u64) -> Vec<u8> {
    let len = [3, 30, 31, 300, 2_000, 8][key as usize];
    (0..len).map(|i| (key as usize * 31 + i) as u8).collect()
}

/// Returns the bytes of the value that `tag` identifies. The upper half of the tag is their length.
/// They begin with 0, so they are never the text of a number.
fn value_bytes(tag: u64) -> Vec<u8> {
    let len = 9 + (tag >> 32) as usize;
    let mut word = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = tag.to_be_bytes().to_vec();
    while bytes.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the checker's value for the bytes of the object with `key`. Text is a number: a double
/// for key 3, otherwise an integer.
pub(crate) fn value_of(key: u64, bytes: &[u8]) -> Value {
    if key == CHAIN {
        let (pieces, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "a piece of {} bytes", rest.len());
        let tags = pieces.iter().map(|piece| u64::from_be_bytes(*piece));
        return Value::Chain(tags.fold(0, store::chain));
    }
    if bytes[0] != 0 {
        let text = std::str::from_utf8(bytes).expect("text of a number");
        let integer = || text.parse::<i64>().expect("an integer") as u64;
        return Value::Word(if key == 3 {
            text.parse::<f64>().expect("a double").to_bits()
        } else {
            integer()
        });
    }
    let tag = u64::from_be_bytes(bytes[..8].try_into().expect("no value is shorter"));
    assert!(value_bytes(tag) == bytes, "the value with tag {tag:x} is damaged");
    Value::Bytes(tag)
}

/// The change that an operation on an object makes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Read,
    Write(Vec<u8>),
    WriteExpiring(Vec<u8>, Lifetime),
    Touch(Option<Lifetime>),
    Remove,
    Add(Amount),
    Append(Vec<u8>),
    Swap(Vec<u8>, Option<Lifetime>),
}

/// An operation on an object that a user has drawn.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) key: u64,
    pub(crate) rules: RejectRules,
    pub(crate) change: Change,
    /// The operation for the checker.
    pub(crate) asked: store::Op,
}

impl Change {
    /// Returns the tag and the lifetime, in milliseconds, of a write of an object that expires.
    pub(crate) fn expires(&self) -> Option<u64> {
        match self {
            Self::WriteExpiring(_, Lifetime(ms)) | Self::Swap(_, Some(Lifetime(ms))) => Some(*ms),
            _ => None,
        }
    }
}

/// The source from which a user draws operations.
pub(crate) struct Draw<'a> {
    pub(crate) rng: &'a mut Rng,
    /// The longest value, in bytes.
    pub(crate) longest: u64,
    /// The versions that the user has seen.
    pub(crate) versions: &'a [u64],
}

impl Draw<'_> {
    /// Draws an operation on an object.
    pub(crate) fn draw(&mut self, score: &mut Score) -> Drawn {
        // Rarely the chain: the order of appends matters, so that each one whose outcome is unknown
        // doubles the states that the checker has to follow.
        let key = if self.rng.chance(50_000) { CHAIN } else { self.rng.below(CHAIN) };
        let (rules, reject) = self.rules();
        let draw = self.rng.below(10);
        let (asked, change) = match (key, draw) {
            (_, 0..3) => (store::Op::Read(reject), Change::Read),
            (_, 3) => (store::Op::Remove(reject), Change::Remove),
            (CHAIN, 4..) => {
                let tag = score.tag();
                (store::Op::Append(reject, tag), Change::Append(tag.to_be_bytes().into()))
            }
            (2 | 4, 4..8) => {
                // Sometimes the sum is so large that the next one overflows.
                let by = if self.rng.chance(20_000) {
                    i64::MAX - 2
                } else {
                    1 + self.rng.below(3) as i64
                };
                (store::Op::AddInteger(reject, by), Change::Add(Amount::Integer(by)))
            }
            (3, 4..8) => {
                let by = 0.5 + self.rng.below(3) as f64;
                (store::Op::AddDouble(reject, by.to_bits()), Change::Add(Amount::Double(by)))
            }
            (2, 8) => {
                let number = self.rng.below(1000) as i64 - 500;
                let value = number.to_string().into_bytes();
                (store::Op::Write(reject, Value::Word(number as u64)), Change::Write(value))
            }
            _ if key == 2 || key == 3 => (store::Op::Read(reject), Change::Read),
            (TOUCHED, 8) => {
                let lifetime = self.rng.chance(500_000).then(|| self.lifetime());
                (store::Op::Touch(reject, lifetime.is_some()), Change::Touch(lifetime))
            }
            (EXPIRING, 4..7) | (TOUCHED, 4) => {
                let (tag, lifetime) = (score.tag(), self.lifetime());
                let (bytes, value) = (value_bytes(tag), Value::Expiring(tag));
                if self.rng.chance(SWAP_PPM) {
                    (store::Op::Swap(reject, value), Change::Swap(bytes, Some(lifetime)))
                } else {
                    (store::Op::Write(reject, value), Change::WriteExpiring(bytes, lifetime))
                }
            }
            _ => {
                let len = [10, 200, self.longest][self.rng.below(3) as usize];
                let tag = self.rng.below(len) << 32 | score.tag();
                let (bytes, value) = (value_bytes(tag), Value::Bytes(tag));
                if self.rng.chance(SWAP_PPM) {
                    (store::Op::Swap(reject, value), Change::Swap(bytes, None))
                } else {
                    (store::Op::Write(reject, value), Change::Write(bytes))
                }
            }
        };
        Drawn { key, rules, change, asked }
    }

    fn lifetime(&mut self) -> Lifetime {
        Lifetime(self.rng.below(LONGEST_MS))
    }

    /// Draws reject rules at random, as the client and as the checker takes them.
    fn rules(&mut self) -> (RejectRules, Reject) {
        let (mut rules, mut reject) = (RejectRules::default(), Reject::default());
        let seen = self.versions.len();
        let version = self.versions[seen - 1 - self.rng.below(seen.min(4) as u64) as usize];
        rules.given_version = Version(version);
        match self.rng.below(12) {
            0 => (rules.doesnt_exist, reject.missing) = (true, true),
            1 => (rules.exists, reject.exists) = (true, true),
            2 => (rules.version_ne_given, reject.version_ne) = (true, Some(version)),
            3 => (rules.version_le_given, reject.version_le) = (true, Some(version)),
            _ => {}
        }
        (rules, reject)
    }
}
