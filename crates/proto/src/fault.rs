//! A model of a faulty network: drops, duplicates, delays and damage, drawn from a seeded
//! generator.
//!
//! The simulator's wire and the fault-injecting wrappers of real drivers and devices share it.

use crate::Rng;

/// Rates of the network's faults, each in parts per million of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Datagrams that the network loses, per million.
    pub drop_ppm: u32,
    /// Datagrams that the network delivers twice, per million.
    pub duplicate_ppm: u32,
    /// Datagrams that the network delays, so that later ones overtake them, per million.
    pub reorder_ppm: u32,
    /// Datagrams in which the network flips one bit, per million.
    pub corrupt_ppm: u32,
    /// Datagrams that the network truncates, per million.
    pub truncate_ppm: u32,
    /// The longest delay of a delayed or duplicated datagram, in nanoseconds.
    pub reorder_ns: u64,
}

/// The faults that the network inflicts on one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fate {
    /// The number of copies of the datagram that the network delivers: 0, 1 or 2.
    pub copies: u8,
    /// The extra delay of each copy of the datagram, in nanoseconds.
    pub delay_ns: [u64; 2],
    /// The bit that the network flips in the first copy of the datagram.
    pub flip_bit: Option<usize>,
    /// The length in bytes to which the network truncates the first copy of the datagram.
    pub cut_to: Option<usize>,
}

impl Fault {
    /// Draws the faults that a datagram of `len` bytes suffers.
    pub fn fate(&self, rng: &mut Rng, len: usize) -> Fate {
        let mut fate = Fate { copies: 1, ..Fate::default() };
        if rng.chance(self.drop_ppm) {
            fate.copies = 0;
            return fate;
        }
        if rng.chance(self.duplicate_ppm) {
            fate.copies = 2;
            fate.delay_ns[1] = rng.below(self.reorder_ns + 1);
        }
        if rng.chance(self.reorder_ppm) {
            fate.delay_ns[0] = rng.below(self.reorder_ns + 1);
        }
        if len > 0 && rng.chance(self.corrupt_ppm) {
            fate.flip_bit = Some(rng.below(8 * len as u64) as usize);
        }
        if len > 0 && rng.chance(self.truncate_ppm) {
            fate.cut_to = Some(rng.below(len as u64) as usize);
        }
        fate
    }
}
